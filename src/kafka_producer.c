/*
 * kafka_producer.c
 *	  A transactional producer, and the topics it writes to.
 *
 * When a transaction counts as written: librdkafka reports every record once,
 * delivered or failed, inside rd_kafka_poll.  The callback counts the records
 * down and keeps the first failure; tk_producer_flush says OK only when the
 * count is 0 and there is no failure.  A commit can't get around that either:
 * librdkafka refuses it when a record of the transaction failed.
 *
 * The flush uses rd_kafka_flush and not rd_kafka_poll alone, because only it
 * tells librdkafka's threads not to wait for linger.ms: so linger.ms can be
 * long enough for full batches under load and costs a lone record nothing.
 * With a delivery report callback it wakes up at each report; its habit of
 * looking only every 10 ms is that of a producer without one.
 *
 * Failures: what went wrong with a transaction as a whole (a topic that may
 * not be written, a lost epoch) reaches the records only as "purged".  The
 * reason is then asked for with rd_kafka_begin_transaction, which inside a
 * transaction changes nothing and returns the error that made it abortable.
 *
 * A producer has one user at a time: the caller, or from tk_producer_start to
 * the true of tk_producer_finished its thread.  The mutex hands it over; its
 * fields need no other care.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kafka_internal.h"
#include "kafka_producer.h"

#define TOPIC_BUCKETS 64

/* Records of a batch; more are sent as several. */
#define BATCH_MAX 512

/* The thread needs little of it; librdkafka logs through buffers of some kB. */
#define TASK_STACK (512 * 1024)

struct TkProducerTopic
{
	rd_kafka_topic_t *handle;
	TkProducerTopic *next;
	char		name[];
};

typedef enum Progress
{
	IDLE,
	OPEN,						/* a transaction is open */
	COMMITTING,
	ABORTING
} Progress;

typedef enum TaskState
{
	NO_TASK,					/* the producer is the caller's */
	GIVEN,						/* the thread's */
	DONE						/* the caller's again, as soon as it has asked */
} TaskState;

/* The thread, made when it is needed first. */
typedef struct Tasks
{
	bool		running;
	pthread_t	thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	TaskState	state;
	bool		quit;
	bool		gone;
	TkProducerTask task;
	TkKafkaWait wait;
	int			wake_fd;
	TkKafkaStatus status;
	TkKafkaError error;
} Tasks;

struct TkProducer
{
	TkClient	client;			/* must be first: it is the callbacks' opaque */
	char	   *transactional_id;
	Progress	progress;
	long		unacknowledged;
	int64_t		acknowledged;	/* since it was made */
	int			failure_code;	/* the first record that failed in this transaction, 0 = none */
	char		failure[384];
	TkDescriber *describer;		/* NULL: transactions are not described */
	bool		asked;			/* about this transaction */
	size_t		queue_bytes;	/* a value larger than this never gets into librdkafka's queue */
	long		queue_headed;	/* no record with headers is taken while so many wait */
	TkProducerTopic *topics[TOPIC_BUCKETS];
	Tasks		tasks;
};

/*
 * Ours unless the user's.  Memory: at most 64 MB of values and 100000 records
 * (their keys and bookkeeping are some 200 bytes each, which kbytes doesn't
 * count); a full queue only makes the worker wait.
 */
#define QUEUE_KBYTES "65536"

/* A record's headers cost librdkafka some 600 bytes more, an allocation each: of those only so many may wait. */
#define QUEUE_HEADED 50000

static const TkDefault producer_defaults[] = {
	{"linger.ms", "5", "queue.buffering.max.ms"},
	{"queue.buffering.max.messages", "100000", NULL},
	{"queue.buffering.max.kbytes", QUEUE_KBYTES, NULL},
	{"topic.metadata.propagation.max.ms", "10000", NULL},
};

static const char *
what_of(const TkProducer *p, const char *call, char *buffer, size_t size)
{
	snprintf(buffer, size, "transactional id \"%s\": %s", p->transactional_id, call);
	return buffer;
}

static bool
is_purged(int code)
{
	return code == RD_KAFKA_RESP_ERR__PURGE_QUEUE || code == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT;
}

void
tk_describe_key(char *text, size_t size, const char *key, size_t len)
{
	size_t		i;

	if (key == NULL)
	{
		snprintf(text, size, "no key");
		return;
	}
	snprintf(text, size, "key ");
	for (i = 0; i < len && i < 60; i++)
		snprintf(text + 4 + i, size - 4 - i, "%c", key[i] >= 0x20 && key[i] < 0x7f ? key[i] : '?');
	if (len > 60)
		snprintf(text + 4 + i, size - 4 - i, "...");
}

static void
describe_failure(TkProducer *p, int code, const char *topic, int32_t partition, const char *key, size_t key_len,
				 size_t value_len)
{
	char		key_text[80];

	p->failure_code = code;
	tk_describe_key(key_text, sizeof(key_text), key, key_len);
	snprintf(p->failure, sizeof(p->failure), "topic \"%s\" partition %d (%s, %zu bytes): %s%s%s",
			 topic, (int) partition, key_text, key_len + value_len, rd_kafka_err2str(code),
			 TK_NEEDS(code, "Write on the topic"),
			 tk_cause(code) != TK_CAUSE_OVERSIZE ? "" :
			 "; the topic's max.message.bytes must hold a record and a batch (batch.size)");
}

/* Called for every record, about a million times a second. */
static void
on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
	TkProducer *p = opaque;

	(void) rk;
	p->unacknowledged--;
	if (message->err == 0)
	{
		p->acknowledged++;
		if (!p->asked)
		{
			p->asked = true;
			if (p->describer)
				tk_describer_ask(p->describer);
		}
		return;
	}
	/* What an abort throws away is no failure; the real reason is worth more than "purged". */
	if (p->progress == ABORTING ||
		(p->failure_code != 0 && !(is_purged(p->failure_code) && !is_purged(message->err))))
		return;
	describe_failure(p, message->err, message->rkt ? rd_kafka_topic_name(message->rkt) : "?", message->partition,
					 message->key, message->key_len, message->len);
}

/* Whoever allows larger records than the queue holds by default wants them sent: librdkafka knows no such thing. */
static bool
make_room(rd_kafka_conf_t *conf, const TkKafkaConf *user, TkKafkaError *error)
{
	int			i;

	if (tk_conf_has(user, "queue.buffering.max.kbytes"))
		return true;
	for (i = 0; i < user->nproperties; i++)
	{
		long		kbytes;

		if (strcmp(user->properties[i].name, "message.max.bytes") != 0)
			continue;
		kbytes = atol(user->properties[i].value) / 1024 + 1;
		if (kbytes > atol(QUEUE_KBYTES) && !tk_conf_set_int(conf, "queue.buffering.max.kbytes", (int) kbytes, error))
			return false;
	}
	return true;
}

/* A number among the handle's properties; SIZE_MAX if there is none. */
static size_t
conf_size(const TkProducer *p, const char *property)
{
	char		value[32];
	size_t		size = sizeof(value);

	if (rd_kafka_conf_get(rd_kafka_conf(p->client.rk), property, value, &size) != RD_KAFKA_CONF_OK)
		return SIZE_MAX;
	return (size_t) strtoul(value, NULL, 10);
}

static size_t
queue_bytes(const TkProducer *p)
{
	size_t		kbytes = conf_size(p, "queue.buffering.max.kbytes");

	return kbytes == SIZE_MAX ? SIZE_MAX : kbytes * 1024;
}

size_t
tk_producer_max_record(const TkProducer *p)
{
	return conf_size(p, "message.max.bytes");
}

size_t
tk_producer_max_queue(const TkProducer *p)
{
	return p->queue_bytes;
}

size_t
tk_producer_batch_size(const TkProducer *p)
{
	return conf_size(p, "batch.size");
}

bool
tk_producer_compresses(const TkProducer *p)
{
	char		value[32];
	size_t		size = sizeof(value);

	return rd_kafka_conf_get(rd_kafka_conf(p->client.rk), "compression.codec", value, &size) == RD_KAFKA_CONF_OK &&
		strcmp(value, "none") != 0;
}

TkProducer *
tk_producer_create(const TkKafkaConf *user, const char *transactional_id, int transaction_timeout_ms,
				   TkKafkaError *error)
{
	TkProducer *p = calloc(1, sizeof(TkProducer));
	rd_kafka_conf_t *conf;
	int			request_timeout = transaction_timeout_ms / 2;

	if (p == NULL || (p->transactional_id = strdup(transactional_id)) == NULL)
	{
		free(p);
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}

	/*
	 * Left alone, librdkafka waits a whole transaction timeout for the answer to a request, before it tries
	 * another connection.
	 */
	if (request_timeout > 30000)
		request_timeout = 30000;

	/*
	 * A record may wait as long as its transaction can live: a broker that is away for less is waited for, and
	 * afterwards there is nothing to write to.
	 */
	conf = rd_kafka_conf_new();
	if (!tk_conf_defaults(conf, producer_defaults, sizeof(producer_defaults) / sizeof(producer_defaults[0]),
						  user, error) ||
		!make_room(conf, user, error) ||
		!tk_conf_set_int(conf, "socket.timeout.ms", request_timeout, error) ||
		!tk_conf_set(conf, "transactional.id", transactional_id, error) ||
		!tk_conf_set_int(conf, "transaction.timeout.ms", transaction_timeout_ms, error) ||
		!tk_conf_set_int(conf, "message.timeout.ms", transaction_timeout_ms, error) ||
		!tk_conf_set(conf, "enable.idempotence", "true", error) ||
		!tk_conf_set(conf, "acks", "all", error) ||
		!tk_conf_set(conf, "retry.backoff.ms", "100", error) ||
		!tk_conf_set(conf, "partitioner", "murmur2_random", error))
	{
		rd_kafka_conf_destroy(conf);
		free(p->transactional_id);
		free(p);
		return NULL;
	}
	rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
	if (!tk_client_open(&p->client, RD_KAFKA_PRODUCER, conf, user, error))
	{
		free(p->transactional_id);
		free(p);
		return NULL;
	}
	p->queue_bytes = queue_bytes(p);
	p->queue_headed = tk_conf_has(user, "queue.buffering.max.messages") ? LONG_MAX : QUEUE_HEADED;
	return p;
}

const char *
tk_producer_transactional_id(const TkProducer *p)
{
	return p->transactional_id;
}

void
tk_producer_describe_by(TkProducer *p, TkDescriber *describer)
{
	p->describer = describer;
}

bool
tk_producer_description(TkProducer *p, int timeout_ms, TkTransactionDescription *description, TkKafkaError *error)
{
	if (p->describer == NULL || !p->asked)
	{
		tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_OTHER, 0, "nobody asked");
		return false;
	}
	return tk_describer_answer(p->describer, timeout_ms, description, error);
}

/*
 * Makes one of librdkafka's transactional calls, again after an error that may
 * pass.
 *
 * It gets all the time there is, in one piece, and is not asked to return before
 * that.  It could be called again and go on, as its documentation says, but
 * where librdkafka's main thread is slow the answer to a request inside it that
 * was given up comes later and is taken for that to the next one: a commit then
 * fails in a state in which it was never, and what follows can abort() the
 * process (2.0.2, rd_kafka_txn_op_req0).
 */
static TkKafkaStatus
call_until(TkProducer *p, rd_kafka_error_t *(*call) (rd_kafka_t *rk, int timeout_ms), const char *name,
		   const TkKafkaWait *wait, TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	char		what[400];

	what_of(p, name, what, sizeof(what));
	for (;;)
	{
		rd_kafka_error_t *result = call(p->client.rk, tk_slice(&deadline, INT_MAX));
		TkKafkaStatus status;

		if (result == NULL)
		{
			tk_client_healthy(&p->client);
			return tk_ok(error);
		}
		if (rd_kafka_error_code(result) == RD_KAFKA_RESP_ERR__TIMED_OUT && tk_is_over(&deadline))
		{
			rd_kafka_error_destroy(result);
			rd_kafka_poll(p->client.rk, 0); /* for the reason */
			return tk_gave_up(&p->client, &deadline, what, error);
		}
		status = tk_fail_from(&p->client, result, what, error);
		if (status != TK_KAFKA_RETRY || tk_is_over(&deadline))
			return status;
		/* Such an answer can come at once: don't spin. */
		rd_kafka_poll(p->client.rk, tk_slice(&deadline, TK_SLICE_MS / 4));
	}
}

TkKafkaStatus
tk_producer_init(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error)
{
	return call_until(p, rd_kafka_init_transactions, "init_transactions", wait, error);
}

TkKafkaStatus
tk_producer_begin(TkProducer *p, TkKafkaError *error)
{
	rd_kafka_error_t *result = rd_kafka_begin_transaction(p->client.rk);
	char		what[400];

	if (result)
		return tk_fail_from(&p->client, result, what_of(p, "begin_transaction", what, sizeof(what)), error);
	p->progress = OPEN;
	p->failure_code = 0;
	p->asked = false;
	p->client.refused[0] = '\0';
	return tk_ok(error);
}

TkProducerTopic *
tk_producer_topic(TkProducer *p, const char *name, TkKafkaError *error)
{
	size_t		len = strlen(name);
	unsigned	hash = 5381;
	TkProducerTopic *topic;
	size_t		i;

	for (i = 0; i < len; i++)
		hash = hash * 33 + (unsigned char) name[i];
	hash %= TOPIC_BUCKETS;
	for (topic = p->topics[hash]; topic; topic = topic->next)
		if (strcmp(topic->name, name) == 0)
			return topic;

	topic = malloc(sizeof(TkProducerTopic) + len + 1);
	if (topic == NULL)
	{
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	memcpy(topic->name, name, len + 1);
	topic->handle = rd_kafka_topic_new(p->client.rk, name, NULL);
	if (topic->handle == NULL)
	{
		int			code = rd_kafka_last_error();

		tk_fail(error, TK_KAFKA_FATAL, tk_cause(code), code, "topic \"%s\": %s", name, rd_kafka_err2str(code));
		free(topic);
		return NULL;
	}
	topic->next = p->topics[hash];
	p->topics[hash] = topic;
	return topic;
}

/*
 * The error of the open transaction as a whole, if it has one.  Out of
 * "purged" or "not allowed now" makes the reason.
 */
static TkKafkaStatus
transaction_error(TkProducer *p, const char *where, TkKafkaError *error)
{
	char		what[700];
	char		why[400] = "";
	int			code = rd_kafka_fatal_error(p->client.rk, why, sizeof(why));
	rd_kafka_error_t *result;

	if (where == NULL && p->client.refused[0])
		where = p->client.refused;
	snprintf(what, sizeof(what), "transactional id \"%s\"%s%s", p->transactional_id, where ? ": " : "",
			 where ? where : "");
	if (code)
		return tk_fail(error, tk_is_fenced(code) ? TK_KAFKA_FENCED : TK_KAFKA_FATAL, tk_cause(code), code,
					   "%s: %s%s", what, why, tk_producer_needs(code));
	if (p->progress != OPEN)
		return TK_KAFKA_OK;
	result = rd_kafka_begin_transaction(p->client.rk);
	if (result && rd_kafka_error_txn_requires_abort(result))
		return tk_fail_from(&p->client, result, what, error);
	if (result)
		rd_kafka_error_destroy(result);
	return TK_KAFKA_OK;
}

/*
 * Why librdkafka didn't take a record.
 */
static TkKafkaStatus
refused(TkProducer *p, TkProducerTopic *topic, int code, int32_t partition, const void *key, size_t key_len,
		size_t value_len, TkKafkaError *error)
{
	char		where[300];
	char		key_text[80];
	TkKafkaStatus status;

	if (code == RD_KAFKA_RESP_ERR__QUEUE_FULL && value_len <= p->queue_bytes)
		return tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_QUEUE_FULL, code,
					   "transactional id \"%s\": the send queue is full", p->transactional_id);

	snprintf(where, sizeof(where), "topic \"%s\"", topic->name);
	status = transaction_error(p, where, error);
	if (status != TK_KAFKA_OK)
		return status;

	tk_describe_key(key_text, sizeof(key_text), key, key_len);
	if (code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE || code == RD_KAFKA_RESP_ERR__QUEUE_FULL)
		return tk_fail(error, TK_KAFKA_ABORT, TK_CAUSE_OVERSIZE, code,
					   "topic \"%s\": a record (%s) of %zu bytes is larger than %s",
					   topic->name, key_text, key_len + value_len,
					   code == RD_KAFKA_RESP_ERR__QUEUE_FULL ? "queue.buffering.max.kbytes" : "message.max.bytes");
	if (code == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION)
		return tk_fail(error, TK_KAFKA_ABORT, TK_CAUSE_NO_TOPIC, code, "topic \"%s\" has no partition %d",
					   topic->name, (int) partition);
	return tk_fail(error, TK_KAFKA_ABORT, tk_cause(code), code, "topic \"%s\": %s%s", topic->name,
				   rd_kafka_err2str(code), TK_NEEDS(code, "Write on the topic"));
}

static int
send_with_headers(TkProducer *p, TkProducerTopic *topic, int32_t partition, const void *key, size_t key_len,
				  const void *value, size_t value_len, const TkRecordHeader *headers, int nheaders)
{
	rd_kafka_headers_t *list = rd_kafka_headers_new(nheaders);
	rd_kafka_vu_t vu[6];
	rd_kafka_error_t *result;
	int			code;
	int			i;

	for (i = 0; i < nheaders; i++)
	{
		code = rd_kafka_header_add(list, headers[i].name, -1, headers[i].value, (ssize_t) headers[i].len);
		if (code)
		{
			rd_kafka_headers_destroy(list);
			return code;
		}
	}
	vu[0].vtype = RD_KAFKA_VTYPE_RKT;
	vu[0].u.rkt = topic->handle;
	vu[1].vtype = RD_KAFKA_VTYPE_PARTITION;
	vu[1].u.i32 = partition;
	vu[2].vtype = RD_KAFKA_VTYPE_MSGFLAGS;
	vu[2].u.i = RD_KAFKA_MSG_F_COPY;
	vu[3].vtype = RD_KAFKA_VTYPE_KEY;
	vu[3].u.mem.ptr = (void *) key;
	vu[3].u.mem.size = key_len;
	vu[4].vtype = RD_KAFKA_VTYPE_VALUE;
	vu[4].u.mem.ptr = (void *) value;
	vu[4].u.mem.size = value_len;
	vu[5].vtype = RD_KAFKA_VTYPE_HEADERS;
	vu[5].u.headers = list;
	result = rd_kafka_produceva(p->client.rk, vu, 6);
	if (result == NULL)
		return 0;
	code = rd_kafka_error_code(result);
	rd_kafka_error_destroy(result);
	rd_kafka_headers_destroy(list); /* still ours when it fails */
	return code;
}

TkKafkaStatus
tk_producer_send(TkProducer *p, TkProducerTopic *topic, int32_t partition, const void *key, size_t key_len,
				 const void *value, size_t value_len, const TkRecordHeader *headers, int nheaders,
				 TkKafkaError *error)
{
	int			code = 0;

	if (nheaders > 0 && p->unacknowledged >= p->queue_headed)
		code = RD_KAFKA_RESP_ERR__QUEUE_FULL;
	else if (nheaders > 0)
		code = send_with_headers(p, topic, partition, key, key_len, value, value_len, headers, nheaders);
	else if (rd_kafka_produce(topic->handle, partition, RD_KAFKA_MSG_F_COPY, (void *) value, value_len,
							  key, key_len, NULL) != 0)
		code = rd_kafka_last_error();
	if (code == 0)
	{
		p->unacknowledged++;
		return TK_KAFKA_OK;
	}
	return refused(p, topic, code, partition, key, key_len, value_len, error);
}

/*
 * librdkafka partitions them, as in tk_producer_send: with partitions of our own it would leak a record whose
 * partition it doesn't know.  Where the queue is full it takes none of those that follow, so order is kept.
 */
TkKafkaStatus
tk_producer_send_batch(TkProducer *p, TkProducerTopic *topic, const TkKeyValue *records, int n, int *sent,
					   TkKafkaError *error)
{
	rd_kafka_message_t batch[BATCH_MAX];

	*sent = 0;
	while (*sent < n)
	{
		const TkKeyValue *from = records + *sent;
		int			size = n - *sent < BATCH_MAX ? n - *sent : BATCH_MAX;
		int			taken;
		int			i;

		for (i = 0; i < size; i++)
		{
			batch[i].key = (void *) from[i].key;
			batch[i].key_len = from[i].key_len;
			batch[i].payload = (void *) from[i].value;
			batch[i].len = from[i].value_len;
			batch[i].partition = RD_KAFKA_PARTITION_UA;
			batch[i].err = 0;
			batch[i]._private = NULL;
		}
		taken = rd_kafka_produce_batch(topic->handle, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, batch, size);
		p->unacknowledged += taken;
		if (taken == size)
		{
			*sent += size;
			continue;
		}
		for (i = 0; i < size && batch[i].err == 0; i++)
			 /* to the first that was refused */ ;
		*sent += i;
		return refused(p, topic, batch[i].err, TK_PARTITION_BY_KEY, from[i].key, from[i].key_len, from[i].value_len,
					   error);
	}
	return TK_KAFKA_OK;
}

void
tk_producer_poll(TkProducer *p, int timeout_ms)
{
	rd_kafka_poll(p->client.rk, timeout_ms);
}

long
tk_producer_unacknowledged(const TkProducer *p)
{
	return p->unacknowledged;
}

int64_t
tk_producer_acknowledged(const TkProducer *p)
{
	return p->acknowledged;
}

TkKafkaStatus
tk_producer_health(TkProducer *p, TkKafkaError *error)
{
	TkKafkaStatus status;
	char		text[TK_TROUBLE_SIZE];
	int			trouble;

	if (p->failure_code == 0 && rd_kafka_fatal_error(p->client.rk, NULL, 0) == 0)
		return TK_KAFKA_OK;

	/* The reason of the whole comes before what one record says, unless the record knows more. */
	if (p->failure_code == 0 || is_purged(p->failure_code) || rd_kafka_fatal_error(p->client.rk, NULL, 0) != 0)
	{
		status = transaction_error(p, is_purged(p->failure_code) || p->failure_code == 0 ? NULL : p->failure, error);
		if (status != TK_KAFKA_OK)
			return status;
	}
	if (tk_is_fenced(p->failure_code))
		return tk_fail(error, TK_KAFKA_FENCED, TK_CAUSE_OTHER, p->failure_code, "transactional id \"%s\": %s",
					   p->transactional_id, p->failure);
	if (tk_cause(p->failure_code) == TK_CAUSE_TIMED_OUT && (trouble = tk_client_trouble(&p->client, text)) != 0)
		return tk_fail(error, TK_KAFKA_ABORT, tk_cause(trouble), p->failure_code, "%s: %s", p->failure, text);
	return tk_fail(error, TK_KAFKA_ABORT, tk_cause(p->failure_code), p->failure_code, "%s", p->failure);
}

TkKafkaStatus
tk_producer_flush(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	char		what[400];
	char		call[64];

	for (;;)
	{
		TkKafkaStatus status;

		rd_kafka_flush(p->client.rk, tk_slice(&deadline, TK_SLICE_MS));
		status = tk_producer_health(p, error);
		if (status != TK_KAFKA_OK)
			return status;
		if (p->unacknowledged == 0)
		{
			tk_client_healthy(&p->client);
			return tk_ok(error);
		}
		if (tk_is_over(&deadline))
		{
			snprintf(call, sizeof(call), "%ld records not acknowledged", p->unacknowledged);
			return tk_gave_up(&p->client, &deadline, what_of(p, call, what, sizeof(what)), error);
		}
	}
}

/*
 * A commit without partitions sends no EndTxn, so it succeeds whatever became
 * of the transactional id.
 */
TkKafkaStatus
tk_producer_commit(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error)
{
	TkKafkaStatus status;

	p->progress = COMMITTING;
	status = call_until(p, rd_kafka_commit_transaction, "commit_transaction", wait, error);
	if (status == TK_KAFKA_OK)
		p->progress = IDLE;
	else if (status == TK_KAFKA_ABORT)
		p->progress = OPEN;
	return status;
}

static void *
run_tasks(void *arg)
{
	TkProducer *p = arg;
	Tasks	   *tasks = &p->tasks;

	pthread_mutex_lock(&tasks->mutex);
	for (;;)
	{
		TkKafkaStatus status = TK_KAFKA_FATAL;
		ssize_t		ignored;

		while (tasks->state != GIVEN && !tasks->quit)
			pthread_cond_wait(&tasks->changed, &tasks->mutex);
		if (tasks->quit)
			break;
		pthread_mutex_unlock(&tasks->mutex);

		switch (tasks->task)
		{
			case TK_PRODUCER_INIT:
				status = tk_producer_init(p, &tasks->wait, &tasks->error);
				break;
			case TK_PRODUCER_FLUSH:
				status = tk_producer_flush(p, &tasks->wait, &tasks->error);
				break;
			case TK_PRODUCER_COMMIT:
				status = tk_producer_commit(p, &tasks->wait, &tasks->error);
				break;
		}

		pthread_mutex_lock(&tasks->mutex);
		tasks->status = status;
		__atomic_store_n(&tasks->state, DONE, __ATOMIC_RELEASE);

		/* A full pipe wakes as well. */
		ignored = write(tasks->wake_fd, "", 1);
		(void) ignored;
	}
	tasks->gone = true;
	pthread_cond_broadcast(&tasks->changed);
	pthread_mutex_unlock(&tasks->mutex);
	return NULL;
}

static bool
start_thread(TkProducer *p)
{
	Tasks	   *tasks = &p->tasks;

	pthread_mutex_init(&tasks->mutex, NULL);
	tk_cond_init(&tasks->changed);
	tasks->running = tk_start_thread(&tasks->thread, TASK_STACK, run_tasks, p) == 0;
	if (!tasks->running)
	{
		pthread_cond_destroy(&tasks->changed);
		pthread_mutex_destroy(&tasks->mutex);
	}
	return tasks->running;
}

bool
tk_producer_start(TkProducer *p, TkProducerTask task, int timeout_ms, int wake_fd)
{
	Tasks	   *tasks = &p->tasks;

	if (!tasks->running && !start_thread(p))
		return false;
	pthread_mutex_lock(&tasks->mutex);
	tasks->task = task;
	tasks->wait.timeout_ms = timeout_ms;
	tasks->wait.interrupted = NULL;
	tasks->wake_fd = wake_fd;
	tasks->state = GIVEN;
	pthread_cond_broadcast(&tasks->changed);
	pthread_mutex_unlock(&tasks->mutex);
	return true;
}

bool
tk_producer_finished(TkProducer *p, TkKafkaStatus *status, TkKafkaError *error)
{
	Tasks	   *tasks = &p->tasks;

	/* Asked for each WAL record: without the mutex as long as the answer is no. */
	if (__atomic_load_n(&tasks->state, __ATOMIC_ACQUIRE) != DONE)
		return false;
	pthread_mutex_lock(&tasks->mutex);
	*status = tasks->status;
	*error = tasks->error;
	tasks->state = NO_TASK;
	pthread_mutex_unlock(&tasks->mutex);
	return true;
}

/*
 * Nobody else serves callbacks during the two calls that block.  No record is on
 * its way then, so only trouble with connections is reported.
 */
void
tk_producer_trouble(TkProducer *p, TkProducerTask task, TkKafkaError *error)
{
	char		text[TK_TROUBLE_SIZE];
	int			trouble;

	if (task != TK_PRODUCER_FLUSH)
		rd_kafka_poll(p->client.rk, 0);
	trouble = tk_client_trouble(&p->client, text);
	if (trouble != 0)
		tk_fail(error, TK_KAFKA_RETRY, tk_cause(trouble), trouble, "transactional id \"%s\": %s",
				p->transactional_id, text);
	else
		tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_TIMED_OUT, RD_KAFKA_RESP_ERR__TIMED_OUT,
				"transactional id \"%s\": no answer yet", p->transactional_id);
}

/* False: it is still at something, and needs the producer. */
static bool
end_thread(TkProducer *p, int timeout_ms)
{
	Tasks	   *tasks = &p->tasks;
	struct timespec until = tk_after_ms(timeout_ms);
	bool		gone;

	if (!tasks->running)
		return true;
	pthread_mutex_lock(&tasks->mutex);
	tasks->quit = true;
	pthread_cond_broadcast(&tasks->changed);
	while (!tasks->gone)
		if (pthread_cond_timedwait(&tasks->changed, &tasks->mutex, &until) != 0)
			break;
	gone = tasks->gone;
	pthread_mutex_unlock(&tasks->mutex);
	if (!gone)
	{
		pthread_detach(tasks->thread);
		return false;
	}
	pthread_join(tasks->thread, NULL);
	pthread_cond_destroy(&tasks->changed);
	pthread_mutex_destroy(&tasks->mutex);
	tasks->running = false;
	return true;
}

/*
 * Queued records are thrown away; those on their way are waited for.  After a
 * commit that gave no answer this is FATAL: the commit may still arrive, and
 * only destroying the handle ends that.
 */
TkKafkaStatus
tk_producer_abort(TkProducer *p, const TkKafkaWait *wait, TkKafkaError *error)
{
	TkKafkaStatus status;

	if (p->progress == IDLE)
		return tk_ok(error);
	p->progress = ABORTING;
	status = call_until(p, rd_kafka_abort_transaction, "abort_transaction", wait, error);
	if (status == TK_KAFKA_OK)
	{
		p->progress = IDLE;
		p->failure_code = 0;
	}
	return status;
}

bool
tk_producer_destroy(TkProducer *p, bool abort_open, int timeout_ms)
{
	const TkKafkaWait wait = {timeout_ms, NULL};
	TkDeadline	deadline = tk_deadline(&wait);
	int			i;

	if (p == NULL)
		return true;
	if (!end_thread(p, timeout_ms))
		return false;			/* leaked: the thread looks at it */
	(void) tk_describer_destroy(p->describer, tk_slice(&deadline, timeout_ms));
	p->describer = NULL;
	/* librdkafka waits for every topic handle */
	for (i = 0; i < TOPIC_BUCKETS; i++)
	{
		while (p->topics[i])
		{
			TkProducerTopic *topic = p->topics[i];

			p->topics[i] = topic->next;
			rd_kafka_topic_destroy(topic->handle);
			free(topic);
		}
	}
	if (!tk_client_close(&p->client, abort_open, tk_slice(&deadline, timeout_ms)))
		return false;			/* leaked: librdkafka may still look at it */
	free(p->transactional_id);
	free(p);
	return true;
}


/*
 * Topics
 */

TkKafkaStatus
tk_topic_describe(TkProducer *p, const char *name, const TkKafkaWait *wait, int *partitions, TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	TkProducerTopic *topic = tk_producer_topic(p, name, error);
	bool		has_leaders;

	*partitions = 0;
	if (topic == NULL)
		return TK_KAFKA_FATAL;
	return tk_client_topic(&p->client, topic->handle, &deadline, partitions, &has_leaders, error);
}

/*
 * Waits for the answer to an administrative request.  A request that nobody
 * waits for any more ends in a queue that is gone.
 */
static rd_kafka_event_t *
admin_answer(TkProducer *p, rd_kafka_queue_t *queue, const TkDeadline *deadline)
{
	for (;;)
	{
		rd_kafka_event_t *event = rd_kafka_queue_poll(queue, tk_slice(deadline, TK_SLICE_MS));

		rd_kafka_poll(p->client.rk, 0);
		if (event || tk_is_over(deadline))
			return event;
	}
}

/* NULL when librdkafka refuses them; the caller then does without. */
static rd_kafka_AdminOptions_t *
admin_options(TkProducer *p, rd_kafka_admin_op_t op, const TkDeadline *deadline)
{
	rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(p->client.rk, op);
	char		ignored[200];

	if (options)
		rd_kafka_AdminOptions_set_request_timeout(options, tk_slice(deadline, 300000), ignored, sizeof(ignored));
	return options;
}

/* What an administrative request failed with: some errors pass, some are for people. */
static TkKafkaStatus
admin_failed(TkProducer *p, int code, const char *text, const char *needs, const char *what, TkKafkaError *error)
{
	TkKafkaCause cause = tk_cause(code);
	char		reason[TK_TROUBLE_SIZE];
	int			trouble;

	if (cause == TK_CAUSE_TIMED_OUT && (trouble = tk_client_trouble(&p->client, reason)) != 0)
		return tk_fail(error, TK_KAFKA_RETRY, tk_cause(trouble), trouble, "%s: %s: %s", what, text, reason);
	if (cause == TK_CAUSE_AUTHORIZATION || cause == TK_CAUSE_CONFIGURATION)
		return tk_fail(error, TK_KAFKA_FATAL, cause, code, "%s: %s%s", what, text,
					   cause == TK_CAUSE_AUTHORIZATION ? needs : "");
	return tk_fail(error, TK_KAFKA_RETRY, cause, code, "%s: %s", what, text);
}

TkKafkaStatus
tk_topic_create(TkProducer *p, const char *name, const TkTopicSpec *spec, const TkKafkaWait *wait,
				TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	TkProducerTopic *topic = tk_producer_topic(p, name, error);
	const char *needs = " (needs the ACL Create on the topic)";
	char		what[300];
	char		why[300] = "";
	rd_kafka_NewTopic_t *request;
	rd_kafka_AdminOptions_t *options;
	rd_kafka_queue_t *queue;
	rd_kafka_event_t *event;
	TkKafkaStatus status = TK_KAFKA_OK;
	int			i;

	if (topic == NULL)
		return TK_KAFKA_FATAL;
	snprintf(what, sizeof(what), "creating topic \"%s\"", name);
	request = rd_kafka_NewTopic_new(name, spec->partitions, spec->replication_factor, why, sizeof(why));
	if (request == NULL)
		return tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG, "%s: %s",
					   what, why);
	for (i = 0; i < spec->nconfigs; i++)
		rd_kafka_NewTopic_set_config(request, spec->configs[i].name, spec->configs[i].value);

	queue = rd_kafka_queue_new(p->client.rk);
	options = admin_options(p, RD_KAFKA_ADMIN_OP_CREATETOPICS, &deadline);
	rd_kafka_CreateTopics(p->client.rk, &request, 1, options, queue);
	event = admin_answer(p, queue, &deadline);
	if (event == NULL)
		status = tk_gave_up(&p->client, &deadline, what, error);
	else if (rd_kafka_event_error(event))
		status = admin_failed(p, rd_kafka_event_error(event), rd_kafka_event_error_string(event), needs, what, error);
	else
	{
		const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(event);
		size_t		n = 0;
		const rd_kafka_topic_result_t **topics = result ? rd_kafka_CreateTopics_result_topics(result, &n) : NULL;
		int			code = n == 1 ? rd_kafka_topic_result_error(topics[0]) : RD_KAFKA_RESP_ERR__BAD_MSG;
		const char *text = n == 1 ? rd_kafka_topic_result_error_string(topics[0]) : NULL;

		if (code != 0 && code != RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
			status = admin_failed(p, code, text ? text : rd_kafka_err2str(code), needs, what, error);
	}
	if (event)
		rd_kafka_event_destroy(event);
	if (options)
		rd_kafka_AdminOptions_destroy(options);
	rd_kafka_NewTopic_destroy(request);
	rd_kafka_queue_destroy(queue);

	/* The brokers hear of it one by one, and its leaders are chosen a moment later. */
	while (status == TK_KAFKA_OK)
	{
		int			partitions;
		bool		has_leaders;

		status = tk_client_topic(&p->client, topic->handle, &deadline, &partitions, &has_leaders, error);
		if (status == TK_KAFKA_OK && has_leaders)
			return tk_ok(error);
		if (status == TK_KAFKA_OK && tk_is_over(&deadline))
			return tk_gave_up(&p->client, &deadline, what, error);
		rd_kafka_poll(p->client.rk, tk_slice(&deadline, 10));
	}
	return status;
}

/*
 * The answer to a question for configurations of topics, or NULL with *status
 * and *error.  entry: the only one that is asked for.  needs: what to grant.
 */
static rd_kafka_event_t *
describe_configs(TkProducer *p, const char *const *topics, int n, const char *entry, const char *needs,
				 const char *what, const TkDeadline *deadline, TkKafkaStatus *status, TkKafkaError *error)
{
	rd_kafka_ConfigResource_t **requests = calloc((size_t) n + 1, sizeof(*requests));
	rd_kafka_AdminOptions_t *options;
	rd_kafka_queue_t *queue;
	rd_kafka_event_t *event = NULL;
	int			made;

	if (requests == NULL)
	{
		*status = tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	for (made = 0; made < n; made++)
	{
		requests[made] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topics[made]);
		if (requests[made] == NULL)
			break;
		rd_kafka_ConfigResource_set_config(requests[made], entry, "");
	}
	if (made < n)
		*status = tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
						  "%s: no such name is possible", what);
	else
	{
		queue = rd_kafka_queue_new(p->client.rk);
		options = admin_options(p, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, deadline);
		rd_kafka_DescribeConfigs(p->client.rk, requests, (size_t) n, options, queue);
		event = admin_answer(p, queue, deadline);
		if (event == NULL)
			*status = tk_gave_up(&p->client, deadline, what, error);
		else if (rd_kafka_event_error(event))
		{
			*status = admin_failed(p, rd_kafka_event_error(event), rd_kafka_event_error_string(event), needs, what, error);
			rd_kafka_event_destroy(event);
			event = NULL;
		}
		if (options)
			rd_kafka_AdminOptions_destroy(options);
		rd_kafka_queue_destroy(queue);
	}
	rd_kafka_ConfigResource_destroy_array(requests, (size_t) made);
	free(requests);
	return event;
}

static const rd_kafka_ConfigResource_t **
config_resources(rd_kafka_event_t *event, size_t *n)
{
	const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(event);

	*n = 0;
	return result ? rd_kafka_DescribeConfigs_result_resources(result, n) : NULL;
}

/* NULL if there is no such entry. */
static const char *
config_value(const rd_kafka_ConfigResource_t *resource, const char *entry)
{
	size_t		n = 0;
	const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &n);
	size_t		i;

	for (i = 0; i < n; i++)
	{
		const char *value;

		if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), entry) != 0)
			continue;
		value = rd_kafka_ConfigEntry_value(entries[i]);
		return value ? value : "";
	}
	return NULL;
}

TkKafkaStatus
tk_topic_config(TkProducer *p, const char *name, const char *entry, const TkKafkaWait *wait,
				char *value, size_t size, TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	const char *needs = " (needs the ACL DescribeConfigs on the topic)";
	char		what[300];
	rd_kafka_event_t *event;
	const rd_kafka_ConfigResource_t **resources;
	TkKafkaStatus status = TK_KAFKA_OK;
	size_t		n;
	int			code;

	snprintf(what, sizeof(what), "configuration of topic \"%s\"", name);
	event = describe_configs(p, &name, 1, entry, needs, what, &deadline, &status, error);
	if (event == NULL)
		return status;
	resources = config_resources(event, &n);
	code = n == 1 ? rd_kafka_ConfigResource_error(resources[0]) : RD_KAFKA_RESP_ERR__BAD_MSG;
	if (code)
	{
		const char *text = n == 1 ? rd_kafka_ConfigResource_error_string(resources[0]) : NULL;

		status = admin_failed(p, code, text ? text : rd_kafka_err2str(code), needs, what, error);
	}
	else
	{
		const char *text = config_value(resources[0], entry);

		if (text == NULL)
			status = tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, 0, "%s has no entry \"%s\"", what, entry);
		else
			snprintf(value, size, "%s", text);
	}
	rd_kafka_event_destroy(event);
	if (status != TK_KAFKA_OK)
		return status;
	tk_client_healthy(&p->client);
	return tk_ok(error);
}

TkKafkaStatus
tk_topic_limits(TkProducer *p, const char *const *topics, int n, const TkKafkaWait *wait, size_t *limits,
				TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	TkKafkaStatus status = TK_KAFKA_OK;
	rd_kafka_event_t *event;
	const rd_kafka_ConfigResource_t **resources;
	size_t		nresources;
	size_t		i;
	int			j;

	for (j = 0; j < n; j++)
		limits[j] = 0;
	event = describe_configs(p, topics, n, "max.message.bytes", " (needs the ACL DescribeConfigs on the topics)",
							 "configuration of topics", &deadline, &status, error);
	if (event == NULL)
		return status;
	resources = config_resources(event, &nresources);
	for (i = 0; i < nresources; i++)
	{
		int			code = rd_kafka_ConfigResource_error(resources[i]);
		const char *value = code == 0 ? config_value(resources[i], "max.message.bytes") : NULL;

		/* Another broker may not have heard of a new one yet. */
		if (tk_cause(code) == TK_CAUSE_NO_TOPIC)
			status = tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_NO_TOPIC, code, "configuration of topic \"%s\": %s",
							 rd_kafka_ConfigResource_name(resources[i]), rd_kafka_err2str(code));

		/* In the order of the question; but that is nowhere promised. */
		for (j = 0; j < n && value != NULL; j++)
		{
			int			at = (int) ((i + (size_t) j) % (size_t) n);

			if (strcmp(rd_kafka_ConfigResource_name(resources[i]), topics[at]) != 0)
				continue;
			limits[at] = (size_t) strtoul(value, NULL, 10);
			break;
		}
	}
	rd_kafka_event_destroy(event);
	tk_client_healthy(&p->client);
	return status == TK_KAFKA_OK ? tk_ok(error) : status;
}
