/*
 * kafka_producer.h
 *	  A transactional producer: one handle, one transactional id.
 *
 * Every handle has allow.auto.create.topics=false, enable.idempotence=true,
 * the partitioner murmur2_random and a delivery-report callback (without one
 * rd_kafka_flush looks only every 10 ms).  Delivery errors are counted: the
 * flush is no vote by itself.
 */
#ifndef TK_KAFKA_PRODUCER_H
#define TK_KAFKA_PRODUCER_H

#include "kafka_describer.h"

typedef struct TkProducer TkProducer;
typedef struct TkProducerTopic TkProducerTopic;

typedef struct TkRecordHeader
{
	const char *name;
	const void *value;			/* NULL = Kafka's null */
	size_t		len;
} TkRecordHeader;

#define TK_PARTITION_BY_KEY (-1)

/* Creates the handle and its threads; talks to nobody yet. NULL on error. */
extern TkProducer *tk_producer_create(const TkKafkaConf *conf, const char *transactional_id,
									  int transaction_timeout_ms, TkKafkaError *error);

/*
 * Has the coordinator asked about each transaction, as soon as the broker has
 * acknowledged its first record.  The describer is the producer's from now on,
 * and destroyed with it.
 */
extern void tk_producer_describe_by(TkProducer *p, TkDescriber *describer);

/* The answer for the open transaction, as tk_describer_answer(). */
extern bool tk_producer_description(TkProducer *p, int timeout_ms, TkTransactionDescription *description,
									TkKafkaError *error);

/*
 * InitProducerId: fences every older producer of the id and aborts what it left
 * open.  init, commit and abort block for as long as the wait says, also when
 * interrupted(): in a process that must react, call them by a task.
 */
extern TkKafkaStatus tk_producer_init(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error);

extern TkKafkaStatus tk_producer_begin(TkProducer *p, TkKafkaError *error);

/* The long-lived handle of a topic; freed with the producer. NULL on error. */
extern TkProducerTopic *tk_producer_topic(TkProducer *p, const char *topic, TkKafkaError *error);

/*
 * Appends a record to the open transaction; copies all bytes.  NULL key or
 * value = Kafka's null.  RETRY/QUEUE_FULL: serve tk_producer_poll and call
 * again.  OVERSIZE when the record is over message.max.bytes.
 */
extern TkKafkaStatus tk_producer_send(TkProducer *p, TkProducerTopic *topic, int32_t partition,
									  const void *key, size_t key_len, const void *value, size_t value_len,
									  const TkRecordHeader *headers, int nheaders, TkKafkaError *error);

/*
 * The same for records without headers whose partition goes by their key:
 * several at once are cheaper.  *sent says how many were taken, from the front.
 */
typedef struct TkKeyValue
{
	const void *key;
	size_t		key_len;
	const void *value;
	size_t		value_len;
} TkKeyValue;

extern TkKafkaStatus tk_producer_send_batch(TkProducer *p, TkProducerTopic *topic, const TkKeyValue *records, int n,
											int *sent, TkKafkaError *error);

/* The handle's own limits: message.max.bytes, the queue's bytes of values, batch.size.  Does it compress? */
extern size_t tk_producer_max_record(const TkProducer *p);
extern size_t tk_producer_max_queue(const TkProducer *p);
extern size_t tk_producer_batch_size(const TkProducer *p);
extern bool tk_producer_compresses(const TkProducer *p);

/* The printable beginning of a key, for messages. NULL: there is none. */
extern void tk_describe_key(char *text, size_t size, const char *key, size_t len);

/* Serves delivery reports, errors and logs for at most timeout_ms (0: only what is there). */
extern void tk_producer_poll(TkProducer *p, int timeout_ms);

/* The first delivery or fatal error since the last begin: OK if there is none. */
extern TkKafkaStatus tk_producer_health(TkProducer *p, TkKafkaError *error);

/*
 * Waits until every record of the transaction is acknowledged.  OK means each
 * one was; any delivery error is returned, with the topic in its message.
 */
extern TkKafkaStatus tk_producer_flush(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error);

/* Records sent and not yet reported; bytes of their keys and values. */
extern long tk_producer_unacknowledged(const TkProducer *p);

/* Records that the broker has said it has, of all transactions so far. */
extern int64_t tk_producer_acknowledged(const TkProducer *p);

extern TkKafkaStatus tk_producer_commit(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error);

/*
 * These calls by a thread of the producer's own, while the caller does
 * something else.  From start to the true of finished() the producer is the
 * thread's: nothing but finished(), trouble() and destroy may be called.  The
 * result is that of the call, made with timeout_ms and without interrupted().
 * A byte is written to wake_fd (non-blocking) at its end.  start: false when
 * there can be no thread.
 */
typedef enum TkProducerTask
{
	TK_PRODUCER_INIT,
	TK_PRODUCER_FLUSH,
	TK_PRODUCER_COMMIT
} TkProducerTask;

extern bool tk_producer_start(TkProducer *p, TkProducerTask task, int timeout_ms, int wake_fd);
extern bool tk_producer_finished(TkProducer *p, TkKafkaStatus *status, TkKafkaError *error);

/* Meanwhile: what the connections are in trouble with, as a RETRY. */
extern void tk_producer_trouble(TkProducer *p, TkProducerTask task, TkKafkaError *error);

extern TkKafkaStatus tk_producer_abort(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error);

/*
 * Destroys the handle; abort_open: after aborting its open transaction, so that
 * it doesn't hold consumers up until it times out.  Waits at most timeout_ms,
 * whatever hangs; false if librdkafka's threads still run: the memory is then
 * leaked.
 */
extern bool tk_producer_destroy(TkProducer *p, bool abort_open, int timeout_ms);

/* Is there a handle that is not destroyed?  The process must then leave by _exit: exit handlers would run beside it. */
extern bool tk_kafka_threads_left(void);

extern const char *tk_producer_transactional_id(const TkProducer *p);

/*
 * Topics, over the producer's own connections (Admin API).
 */
typedef struct TkTopicSpec
{
	int			partitions;		/* -1: the broker's default */
	int			replication_factor; /* -1: likewise */
	int			nconfigs;
	const TkKafkaProperty *configs; /* topic configuration, e.g. cleanup.policy */
} TkTopicSpec;

/* *partitions = how many the topic has, 0 if there is no such topic. */
extern TkKafkaStatus tk_topic_describe(TkProducer *p, const char *topic, const TkKafkaWait *wait,
									   int *partitions, TkKafkaError *error);

/* Creates it and waits until it has leaders; an existing topic is no error. */
extern TkKafkaStatus tk_topic_create(TkProducer *p, const char *topic, const TkTopicSpec *spec,
									 const TkKafkaWait *wait, TkKafkaError *error);

/*
 * The max.message.bytes of existing topics, asked for all at once; 0 where it
 * may not be asked.  An error of one topic is no error.
 */
extern TkKafkaStatus tk_topic_limits(TkProducer *p, const char *const *topics, int n, const TkKafkaWait *wait,
									 size_t *limits, TkKafkaError *error);

/* Copies the value of one configuration entry of an existing topic; RETRY/FATAL as usual. */
extern TkKafkaStatus tk_topic_config(TkProducer *p, const char *topic, const char *entry, const TkKafkaWait *wait,
									 char *value, size_t size, TkKafkaError *error);

#endif							/* TK_KAFKA_PRODUCER_H */
