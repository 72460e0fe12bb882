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
#include "registry.h"

/* max_concurrent_checkpoints (1) + 1 transactional ids, used in turn */
#define TK_POOL_SIZE 2

/* Debezium's source.version */
#define TK_VERSION "1.0"

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
	bool		accepting;		/* the operator has said where to go on: no verdict at this start */

	/* Kafka */
	TkProducer *producers[TK_POOL_SIZE];
	TkProducerTopic *progress_topics[TK_POOL_SIZE];
	int			current;		/* whose turn it is */
	bool		transaction_open;	/* on the current producer */
	TkProgressReader *reader;

	/* The checkpoint that is open, or comes next */
	TkCheckpoint checkpoint;
	int			attempt;

	/* The one before it, from its trigger until Kafka has committed it; state NONE: there is none */
	TkCheckpoint closing;
	int			closing_attempt;
	int			closing_producer;
	int64		closing_deadline;	/* µs */
	bool		closing_dry;	/* when it was triggered there was nothing more to read */
	TimestampTz triggered_at;

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

/* Begins the current producer's Kafka transaction, unless it is open. */
extern void tk_open_transaction(void);

/*
 * May records of the open checkpoint be sent?  The broker must have all of the
 * one before; await waits until that is so.  tend looks after the one before
 * in a long transaction.  They write nothing to PostgreSQL, so they may be
 * called while decoding.
 */
extern bool tk_may_append(void);
extern void tk_await_acknowledged(void);
extern void tk_tend_closing(void);

/*
 * trouble.c
 */

/* Ends this start: a state that only the operator ends. The format is the reason; hint may be NULL. */
extern void tk_stop_sticky(TkPipelineStateKind state, const char *hint, const char *reason,...)
			pg_attribute_printf(3, 4) pg_attribute_noreturn();

/* The sticky state that the last error asked for; STOPPED: none. Fills both texts. */
extern TkPipelineStateKind tk_sticky_asked(const char **reason, const char **hint);

/* Raises a failed call to Kafka as the error, or sticky state, that it is. */
extern void tk_kafka_failed(const char *doing, const TkKafkaError *error) pg_attribute_noreturn();

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

/* Set when a wait gave up because of tk_stop_wanted(). */
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
