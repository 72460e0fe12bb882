/*
 * pipeline.h
 *	  What the files of the pipeline worker share: worker.c (the process),
 *	  pipeline.c (its life and the order of everything), stream.c (changes →
 *	  records), append.c (records → the open Kafka transaction), trouble.c (errors
 *	  and waiting).  One pipeline a process, so one structure.
 */
#ifndef TK_PIPELINE_H
#define TK_PIPELINE_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

#include "catalog.h"
#include "checkpoint.h"
#include "encode.h"
#include "kafka_producer.h"
#include "kafka_progress.h"
#include "options.h"
#include "pg_compat.h"
#include "registry.h"

/* max_concurrent_checkpoints, and one transactional id more, to fill meanwhile */
#define TK_PRODUCERS (TK_MAX_CONCURRENT_CHECKPOINTS + 1)

/* Debezium's source.version */
#define TK_VERSION "1.0"

/* A checkpoint from its trigger until Kafka has committed it and the slot has followed. */
typedef struct TkClosing
{
	TkCheckpoint checkpoint;
	int			attempt;
	int			producer;		/* in the pool */
	TimestampTz triggered_at;
	int64		opened_us;		/* when its Kafka transaction began … */
	int64		start_ms;		/* … by the coordinator's clock; 0: not known */
	int64		deadline;		/* µs */

	/* What it waits for, flush or commit */
	int64		begun_us;
	int64		looked_us;		/* when its deadline was looked at */
	int64		look_for_topics_us;
	bool		slow;			/* its producer must be renewed */
} TkClosing;

typedef struct TkPipeline
{
	MemoryContext context;		/* lives as long as the process */
	TkPipelineEntry *entry;

	/* The definition, as it was at this start */
	TkDefinition *definition;
	TkPipelineOptions *options;
	TkState		state;
	TkKafkaConf *conf;
	List	   *tables;			/* TkTableEntry: what set_table says */
	char	   *slot_name;
	char	   *prefix;
	char	   *progress_topic;
	char	   *publications;
	TimeLineID	timeline;
	uint64		instance;		/* of this start */
	bool		redriven;		/* this start has committed a prepared checkpoint's Kafka transaction */
	const char *redrive_reason; /* why it hasn't; NULL: there was no need to */
	bool		prepared_judged;	/* the coordinator knew what had become of that transaction */
	bool		accepting;		/* the operator has said where to go on: no verdict at this start */

	/* Kafka */
	int			pool_size;
	TkProducer *producers[TK_PRODUCERS];
	TkProducerTopic *progress_topics[TK_PRODUCERS];
	int			current;		/* whose turn it is */
	bool		begun;			/* librdkafka's transaction is, on the current producer; Kafka hears of it … */
	bool		transaction_open;	/* … with its first record */
	int64		opened_us;		/* since when */
	TkProgressReader *reader;

	/* The checkpoint that is open, or comes next */
	TkCheckpoint checkpoint;
	int			attempt;

	/* Those before it that are on their way, oldest first */
	TkClosing	closing[TK_MAX_CONCURRENT_CHECKPOINTS];
	int			nclosing;

	/*
	 * Of the last one of each id that Kafka has committed: may markers be missing?  Those of an older checkpoint
	 * can come after those of a newer one.
	 */
	bool		unseen[TK_PRODUCERS];
	int64		unseen_start_ms[TK_PRODUCERS];
	TkRpc	   *rpc;			/* to ask about that; NULL: not needed yet, or impossible */

	TkCheckpointPolicy policy;
	int64		last_triggered_us;	/* 0: never */
	TimestampTz committed_at;	/* of the last checkpoint; 0: its row is marked */
	XLogRecPtr	dry_limit;		/* where the reader ran dry last */

	bool		boundary;		/* a transaction with records has just ended */
} TkPipeline;

extern TkPipeline tk_pipeline;

extern int64 tk_now_us(void);	/* monotonic */

/* How long the process's end waits for an abort and for librdkafka's threads, each handle. */
#define TK_EXIT_PATIENCE_MS 700

/*
 * pipeline.c, in this order
 */

/* Reads everything that the catalog says.  False: there is nothing to run. */
extern bool tk_pipeline_load(void);

/* Finds out what Kafka holds, and is ready to go on from there. */
extern void tk_pipeline_recover(void);

/* Returns when the process should end, in order. */
extern void tk_pipeline_run(void);

/*
 * pool.c
 */
extern char *tk_transactional_id(const char *prefix, int i);

/* Makes the pool's handles: no transactional id is touched by that. */
extern void tk_pool_create(void);

/* InitProducerId: fences what used the id before, and aborts what it left open. */
extern void tk_pool_init(TkProducer *producer);

/* Destroys a producer and takes its id anew, with a new epoch. */
extern void tk_pool_renew(int i);

/* Begins the current producer's Kafka transaction, unless it is open. */
extern void tk_open_transaction(void);

/*
 * The part of it that Kafka doesn't hear of, in a moment without work: it asks
 * librdkafka's main thread, which takes 0.1 ms, and the next commit would wait.
 */
extern void tk_begin_ahead(void);

/* Appends a progress record to the current producer's transaction. */
extern void tk_append_progress(int64 checkpoint_id, bool start);

/* Says, once, that Kafka can't be asked about transactions. */
extern void tk_no_redrive(const TkKafkaError *error);

/*
 * closing.c
 */
extern void tk_closing_init(void);

/* Sleeps until a producer's task ends, somebody sets the latch, or the time (ms) is over. */
extern void tk_await_wakeup(long timeout);

/* What a sleep is for when no checkpoint is closing. */
extern TkWaitKind tk_sleeps_for;

/* init_transactions, by the producer's thread. */
extern void tk_await_init(TkProducer *producer, int64 deadline, const char *doing);

/* Writes the start record and has Kafka commit it. */
extern void tk_commit_start_record(void);

/* Closes the open checkpoint: at a transaction boundary.  dry: there is nothing to read meanwhile. */
extern void tk_trigger_checkpoint(XLogRecPtr read_lsn, bool dry);

/*
 * Takes the closing checkpoints on, and waits until at most so many are left
 * and, if "prepared", the oldest is at least prepared.  Between two WAL records
 * only: it writes to PostgreSQL.
 */
extern void tk_advance_closing(int most, bool prepared);

/* The same without waiting, cheap enough for each WAL record. */
extern void tk_step_closing(void);

/*
 * May records of the open checkpoint be sent?  The broker must have all of the
 * one before; await waits until that is so.  tend looks after the oldest in a
 * long transaction.  They write nothing to PostgreSQL, so they may be called
 * while decoding.
 */
extern bool tk_may_append(void);
extern void tk_await_acknowledged(void);
extern void tk_tend_closing(void);

/*
 * Lets those who wait for it know what read_committed consumers see.  Asks
 * Kafka only if somebody waits; true: it has to be asked again soon.
 */
extern bool tk_publish_visible(void);

/* Is the producer a closing checkpoint's, and so perhaps its thread's? */
extern bool tk_is_closing(int producer);

/*
 * trouble.c
 */

/* Ends this start: a state that only the operator ends. The format is the reason; hint may be NULL. */
pg_noreturn extern void tk_stop_sticky(TkPipelineStateKind state, const char *hint, const char *reason,...)
			pg_attribute_printf(3, 4);

/* The sticky state that the last error asked for; STOPPED: none. Fills both texts. */
extern TkPipelineStateKind tk_sticky_asked(const char **reason, const char **hint);

/* Raises a failed call to Kafka as the error, or sticky state, that it is. */
pg_noreturn extern void tk_kafka_failed(const char *doing, const TkKafkaError *error);

/*
 * A call that may have to be made again: true = do so.  Serves interrupts
 * and requests to stop; raises an error when "deadline_us" has passed or the
 * call failed for good.  TK_KAFKA_SLICE is how long one call waits.
 */
extern bool tk_kafka_again(TkKafkaStatus status, const TkKafkaError *error, int64 deadline_us, const char *doing);
extern const TkKafkaWait tk_kafka_slice;

/*
 * append.c: appends one record to the Kafka transaction that is open on
 * "producer"; waits while its queue is full.  Bytes are copied.
 */
extern void tk_append_record(TkProducer *producer, TkProducerTopic *topic, int32_t partition,
							 const void *key, size_t key_len, const void *value, size_t value_len,
							 const TkRecordHeader *headers, int nheaders);

/* Somebody wants this process to end or to start anew (pause, drop, a changed definition). */
extern bool tk_stop_wanted(void);

/* Tells the statistics how many records are with Kafka's client. */
extern void tk_note_queue(void);

/* Set when a wait gave up because of tk_stop_wanted(), or a new start is needed: the error that follows is no failure. */
extern bool tk_stopping;

/* librdkafka's log lines, into ours. */
extern void tk_forward_logs(void);

/*
 * stream.c
 */
extern void tk_stream_init(void);

/* TkWalMessage: one message of pgoutput. */
extern void tk_stream_message(StringInfo message, XLogRecPtr lsn);

/* Makes sure that the topics of all published tables are there. */
extern void tk_stream_ensure_topics(void);

/* A topic that must exist: creates it, or stops with an error that names it. */
extern void tk_ensure_topic(const char *topic, const TkTopicSpec *spec);

/* Looks whether a topic in use was deleted; stops with its name, or returns. */
extern void tk_stream_find_missing_topic(void);

/* Handles of a producer that was destroyed are void. */
extern void tk_stream_forget_producer(int index);

#endif							/* TK_PIPELINE_H */
