/*
 * kafka_progress.c
 *	  The progress record: writing its text, reading the newest one.
 *
 * The text is JSON, so that an operator can read it with any consumer, but it
 * is not parsed as JSON: the parser takes exactly what tk_progress_format
 * writes, and proves it by formatting what it understood again.  A position
 * that was edited by hand or cut short is thus refused instead of guessed.
 *
 * Reading: "newest committed" is the last record before the partition's last
 * stable offset, as a read_committed consumer gets it.  There is no request
 * for it, because control records and aborted records take offsets too: the
 * reader starts some offsets before the end, reads up to the end, and starts
 * further back when that showed nothing.  Only the consumer's own poll is
 * waited for: rd_kafka_query_watermark_offsets (2.0.2) doesn't keep its
 * timeout when a broker hangs.
 *
 * No group is joined and no offset committed; librdkafka wants a group.id
 * for assign(), and what the broker says about that group is ignored.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka_internal.h"
#include "kafka_progress.h"

#define FIRST_WINDOW	64		/* offsets; control records make it half as many records */
#define WINDOW_FACTOR	8
#define GRACE_MS		500		/* brokers learn of a new topic one by one */
#define VALUE_MAX		1024


/*
 * The record's text
 */

static bool
is_prefix(const char *prefix, size_t len)
{
	size_t		i;

	if (len == 0 || len > TK_PREFIX_MAX)
		return false;
	for (i = 0; i < len; i++)
	{
		char		c = prefix[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			  c == '.' || c == '_' || c == '-'))
			return false;
	}
	return true;
}

/*
 * 0 if the prefix has characters that Kafka doesn't allow in names: nothing
 * in the text needs escaping.
 */
size_t
tk_progress_format(const TkProgress *progress, char *value, size_t size)
{
	int			len;

	if (!is_prefix(progress->prefix, strlen(progress->prefix)))
		return 0;
	len = snprintf(value, size,
				   "{\"version\":%d,\"uuid\":\"%s\",\"system_identifier\":\"%" PRIu64 "\",\"database\":%" PRIu32
				   ",\"timeline\":%" PRIu32 ",\"instance\":\"%" PRIu64 "\",\"checkpoint\":%" PRId64
				   ",\"end_lsn\":\"%X/%X\",\"prefix\":\"%s\",\"pool_size\":%d,\"start\":%s}",
				   TK_PROGRESS_VERSION, progress->uuid, progress->system_identifier, progress->database,
				   progress->timeline, progress->instance, progress->checkpoint,
				   (unsigned) (progress->end_lsn >> 32), (unsigned) progress->end_lsn, progress->prefix,
				   progress->pool_size, progress->start ? "true" : "false");
	return len > 0 && (size_t) len < size ? (size_t) len : 0;
}

typedef struct Scanner
{
	const char *at;
	const char *end;
	const char *expected;		/* what was missing, NULL while all is well */
} Scanner;

static bool
scan(Scanner *s, const char *literal)
{
	size_t		len = strlen(literal);

	if (s->expected)
		return false;
	if ((size_t) (s->end - s->at) < len || memcmp(s->at, literal, len) != 0)
	{
		s->expected = literal;
		return false;
	}
	s->at += len;
	return true;
}

static uint64_t
scan_number(Scanner *s, unsigned base, uint64_t max, const char *what)
{
	uint64_t	n = 0;
	const char *first = s->at;

	if (s->expected)
		return 0;
	for (; s->at < s->end; s->at++)
	{
		char		c = *s->at;
		unsigned	digit;

		if (c >= '0' && c <= '9')
			digit = (unsigned) (c - '0');
		else if (base == 16 && c >= 'A' && c <= 'F')
			digit = (unsigned) (c - 'A') + 10;
		else
			break;
		if (n > (max - digit) / base)
		{
			s->expected = what;
			return 0;
		}
		n = n * base + digit;
	}
	if (s->at == first)
		s->expected = what;
	return n;
}

/* Copies up to the closing quote. */
static void
scan_text(Scanner *s, char *text, size_t size, const char *what)
{
	size_t		len = 0;

	text[0] = '\0';
	if (s->expected)
		return;
	while (s->at + len < s->end && s->at[len] != '"')
		len++;
	if (len == 0 || len >= size || memchr(s->at, '\0', len))
	{
		s->expected = what;
		return;
	}
	memcpy(text, s->at, len);
	text[len] = '\0';
	s->at += len;
}

static bool
is_uuid(const char *uuid)
{
	size_t		i;

	if (strlen(uuid) != 36)
		return false;
	for (i = 0; i < 36; i++)
	{
		if (i == 8 || i == 13 || i == 18 || i == 23)
		{
			if (uuid[i] != '-')
				return false;
		}
		else if (!((uuid[i] >= '0' && uuid[i] <= '9') || (uuid[i] >= 'a' && uuid[i] <= 'f')))
			return false;
	}
	return true;
}

bool
tk_progress_parse(const char *value, size_t len, TkProgress *progress, char *why, size_t size)
{
	Scanner		s = {value, value + len, NULL};
	uint64_t	version;
	uint64_t	high;
	char		again[VALUE_MAX];

	memset(progress, 0, sizeof(*progress));
	scan(&s, "{\"version\":");
	version = scan_number(&s, 10, INT32_MAX, "a version");
	if (s.expected == NULL && version != TK_PROGRESS_VERSION)
	{
		snprintf(why, size, "the progress record has format version %" PRIu64 ", this build knows %d",
				 version, TK_PROGRESS_VERSION);
		return false;
	}
	scan(&s, ",\"uuid\":\"");
	scan_text(&s, progress->uuid, sizeof(progress->uuid), "a uuid");
	if (s.expected == NULL && !is_uuid(progress->uuid))
		s.expected = "a uuid";
	scan(&s, "\",\"system_identifier\":\"");
	progress->system_identifier = scan_number(&s, 10, UINT64_MAX, "a system identifier");
	scan(&s, "\",\"database\":");
	progress->database = (uint32_t) scan_number(&s, 10, UINT32_MAX, "a database oid");
	scan(&s, ",\"timeline\":");
	progress->timeline = (uint32_t) scan_number(&s, 10, UINT32_MAX, "a timeline");
	scan(&s, ",\"instance\":\"");
	progress->instance = scan_number(&s, 10, UINT64_MAX, "an instance");
	scan(&s, "\",\"checkpoint\":");
	progress->checkpoint = (int64_t) scan_number(&s, 10, INT64_MAX, "a checkpoint id");
	scan(&s, ",\"end_lsn\":\"");
	high = scan_number(&s, 16, UINT32_MAX, "an LSN");
	scan(&s, "/");
	progress->end_lsn = high << 32 | scan_number(&s, 16, UINT32_MAX, "an LSN");
	scan(&s, "\",\"prefix\":\"");
	scan_text(&s, progress->prefix, sizeof(progress->prefix), "a prefix");
	if (s.expected == NULL && !is_prefix(progress->prefix, strlen(progress->prefix)))
		s.expected = "a prefix";
	scan(&s, "\",\"pool_size\":");
	progress->pool_size = (int) scan_number(&s, 10, TK_POOL_MAX, "a pool size");
	scan(&s, ",\"start\":");
	progress->start = s.expected == NULL && s.at < s.end && *s.at == 't';
	scan(&s, progress->start ? "true}" : "false}");
	if (s.expected)
	{
		snprintf(why, size, "the progress record has no %s at byte %ld", s.expected, (long) (s.at - value));
		return false;
	}
	if (tk_progress_format(progress, again, sizeof(again)) != len || memcmp(again, value, len) != 0)
	{
		snprintf(why, size, "the progress record is not in the form this build writes");
		return false;
	}
	return true;
}


/*
 * Reading
 */

/* One consumer of the topic's partition. */
typedef struct Consumer
{
	TkClient	client;			/* must be first: it is the callbacks' opaque */
	rd_kafka_topic_t *topic;	/* for metadata */
} Consumer;

struct TkProgressReader
{
	Consumer   *committed;
	Consumer   *uncommitted;	/* NULL until somebody asks for the high watermark */
	char	   *name;
	int64_t		window;			/* how far from the end the next look starts */
	TkKafkaConf user;			/* a copy, for the second handle */
};

static const TkDefault consumer_defaults[] = {
	/* how long a hung broker is believed; a producer's follows transaction.timeout.ms */
	{"socket.timeout.ms", "10000", NULL},
	{"topic.metadata.refresh.fast.interval.ms", "50", NULL},
};

static Consumer *
open_consumer(const TkKafkaConf *user, const char *topic, const char *isolation, TkKafkaError *error)
{
	static const char *const settings[][2] = {
		{"enable.auto.commit", "false"},
		{"enable.auto.offset.store", "false"},
		{"enable.partition.eof", "true"},
		{"auto.offset.reset", "earliest"},
		{"check.crcs", "true"},
		{"fetch.wait.max.ms", "10"},
		{"fetch.error.backoff.ms", "50"},
		{"queued.max.messages.kbytes", "4096"},
	};
	Consumer   *consumer = calloc(1, sizeof(Consumer));
	rd_kafka_conf_t *conf;
	bool		ok;
	size_t		i;

	if (consumer == NULL)
	{
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	conf = rd_kafka_conf_new();
	ok = tk_conf_defaults(conf, consumer_defaults, sizeof(consumer_defaults) / sizeof(consumer_defaults[0]),
						  user, error) &&
		tk_conf_set(conf, "group.id", topic, error) &&
		tk_conf_set(conf, "isolation.level", isolation, error);
	for (i = 0; ok && i < sizeof(settings) / sizeof(settings[0]); i++)
		ok = tk_conf_set(conf, settings[i][0], settings[i][1], error);
	if (!ok)
	{
		rd_kafka_conf_destroy(conf);
		free(consumer);
		return NULL;
	}
	if (!tk_client_open(&consumer->client, RD_KAFKA_CONSUMER, conf, user, error))
	{
		free(consumer);
		return NULL;
	}
	consumer->topic = rd_kafka_topic_new(consumer->client.rk, topic, NULL);
	if (consumer->topic == NULL)
	{
		int			code = rd_kafka_last_error();

		tk_fail(error, TK_KAFKA_FATAL, tk_cause(code), code, "topic \"%s\": %s", topic, rd_kafka_err2str(code));
		if (tk_client_close(&consumer->client, false, 1000))
			free(consumer);
		return NULL;
	}
	return consumer;
}

static bool
close_consumer(Consumer *consumer, int timeout_ms)
{
	if (consumer == NULL)
		return true;
	rd_kafka_topic_destroy(consumer->topic);
	if (!tk_client_close(&consumer->client, false, timeout_ms))
		return false;
	free(consumer);
	return true;
}

static void
free_reader(TkProgressReader *reader)
{
	TkKafkaProperty *properties = (TkKafkaProperty *) reader->user.properties;
	int			i;

	for (i = 0; properties && i < reader->user.nproperties; i++)
	{
		free((char *) properties[i].name);
		free((char *) properties[i].value);
	}
	free(properties);
	free(reader->name);
	free(reader);
}

/* The second handle is made later, when the caller's arrays may be gone. */
static bool
copy_conf(const TkKafkaConf *from, TkKafkaConf *to)
{
	TkKafkaProperty *properties = calloc(from->nproperties > 0 ? from->nproperties : 1, sizeof(TkKafkaProperty));
	int			i;

	to->properties = properties;
	to->nproperties = from->nproperties;
	if (properties == NULL)
		return false;
	for (i = 0; i < from->nproperties; i++)
	{
		properties[i].name = strdup(from->properties[i].name);
		properties[i].value = strdup(from->properties[i].value);
		if (properties[i].name == NULL || properties[i].value == NULL)
			return false;
	}
	return true;
}

TkProgressReader *
tk_progress_reader_create(const TkKafkaConf *user, const char *topic, TkKafkaError *error)
{
	TkProgressReader *reader = calloc(1, sizeof(TkProgressReader));

	if (reader == NULL)
	{
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	reader->name = strdup(topic);
	if (reader->name == NULL || !copy_conf(user, &reader->user))
	{
		free_reader(reader);
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	reader->window = FIRST_WINDOW;
	reader->committed = open_consumer(user, topic, "read_committed", error);
	if (reader->committed == NULL)
	{
		free_reader(reader);
		return NULL;
	}
	return reader;
}

bool
tk_progress_reader_destroy(TkProgressReader *reader, int timeout_ms)
{
	bool		done;

	if (reader == NULL)
		return true;
	done = close_consumer(reader->committed, timeout_ms / 2);
	done = close_consumer(reader->uncommitted, timeout_ms / 2) && done;
	free_reader(reader);
	return done;
}

/* NO_TOPIC, but only when it is still missing after a moment. */
static TkKafkaStatus
require_topic(TkProgressReader *reader, Consumer *consumer, const TkDeadline *deadline, TkKafkaError *error)
{
	TkKafkaWait grace = {GRACE_MS, deadline->wait->interrupted};
	TkDeadline	grace_end = tk_deadline(&grace);

	for (;;)
	{
		int			partitions;
		bool		has_leaders;
		TkKafkaStatus status = tk_client_topic(&consumer->client, consumer->topic, deadline, &partitions,
											   &has_leaders, error);

		if (status != TK_KAFKA_OK || partitions > 0)
			return status;
		if (tk_is_over(&grace_end))
			return tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_NO_TOPIC, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
						   "topic \"%s\" does not exist", reader->name);
		if (tk_is_over(deadline))
			return tk_gave_up(&consumer->client, deadline, "reading the progress topic", error);
		rd_kafka_poll(consumer->client.rk, 50);
	}
}

/*
 * Errors that come with the records.  Most pass by themselves; the caller goes
 * on polling until its deadline.
 */
static TkKafkaStatus
consumer_error(TkProgressReader *reader, int code, const char *text, TkKafkaError *error)
{
	if (code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_AUTHORIZATION, code, "reading topic \"%s\": %s%s",
					   reader->name, text, TK_NEEDS(code, "Read on the topic"));
	return TK_KAFKA_OK;
}

/*
 * Reads the partition from "from" (an offset or one of librdkafka's logical
 * ones) to its end as this consumer sees it.  The newest record becomes
 * *newest, to be destroyed by the caller; NULL if there was none.
 */
static TkKafkaStatus
read_to_end(TkProgressReader *reader, Consumer *consumer, int64_t from, const TkDeadline *deadline,
			rd_kafka_message_t **newest, int64_t *end, TkKafkaError *error)
{
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
	TkKafkaStatus status = TK_KAFKA_OK;
	bool		at_end = false;
	int			code;

	*newest = NULL;
	rd_kafka_topic_partition_list_add(list, reader->name, 0)->offset = from;
	code = rd_kafka_assign(consumer->client.rk, list);
	rd_kafka_topic_partition_list_destroy(list);
	if (code)
		return tk_fail(error, TK_KAFKA_FATAL, tk_cause(code), code, "reading topic \"%s\": %s", reader->name,
					   rd_kafka_err2str(code));

	while (status == TK_KAFKA_OK && !at_end)
	{
		rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer->client.rk, tk_slice(deadline, TK_SLICE_MS));

		rd_kafka_poll(consumer->client.rk, 0);
		if (message && message->err == 0 &&
			message->key_len == strlen(TK_PROGRESS_KEY) &&
			memcmp(message->key, TK_PROGRESS_KEY, message->key_len) == 0)
		{
			if (*newest)
				rd_kafka_message_destroy(*newest);
			*newest = message;
			message = NULL;
		}
		if (message)
		{
			if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
			{
				*end = message->offset;
				at_end = true;
			}
			else if (message->err)
				status = consumer_error(reader, message->err, rd_kafka_message_errstr(message), error);
			rd_kafka_message_destroy(message);
		}
		if (status == TK_KAFKA_OK && !at_end && tk_is_over(deadline))
			status = tk_gave_up(&consumer->client, deadline, "reading the progress topic", error);
	}
	/* Else it would go on fetching. */
	rd_kafka_assign(consumer->client.rk, NULL);
	if (at_end)
		tk_client_healthy(&consumer->client);
	else if (*newest)
	{
		rd_kafka_message_destroy(*newest);
		*newest = NULL;
	}
	return status;
}

TkKafkaStatus
tk_progress_read(TkProgressReader *reader, const TkKafkaWait *wait, TkProgress *progress, bool *found,
				 TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	rd_kafka_message_t *newest = NULL;
	int64_t		from = RD_KAFKA_OFFSET_TAIL(reader->window);
	int64_t		end;
	char		why[256];
	bool		ok;
	TkKafkaStatus status;

	*found = false;
	status = require_topic(reader, reader->committed, &deadline, error);
	while (status == TK_KAFKA_OK)
	{
		status = read_to_end(reader, reader->committed, from, &deadline, &newest, &end, error);
		if (status != TK_KAFKA_OK || newest || reader->window >= end)
			break;
		reader->window *= WINDOW_FACTOR;	/* kept if the time runs out: the next call starts there */
		from = end > reader->window ? end - reader->window : 0;
	}
	if (status != TK_KAFKA_OK)
		return status;
	reader->window = FIRST_WINDOW;
	if (newest == NULL)
		return tk_ok(error);

	if (newest->payload == NULL)
	{
		snprintf(why, sizeof(why), "somebody deleted the progress record");
		ok = false;
	}
	else
		ok = tk_progress_parse(newest->payload, newest->len, progress, why, sizeof(why));
	if (ok)
	{
		*found = true;
		status = tk_ok(error);
	}
	else
		status = tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OTHER, 0, "topic \"%s\", offset %" PRId64 ": %s",
						 reader->name, newest->offset, why);
	rd_kafka_message_destroy(newest);
	return status;
}

/*
 * First the high watermark, then the last stable offset: when that has reached
 * it, every transaction that was open at the first look has ended.
 */
TkKafkaStatus
tk_progress_wait_stable(TkProgressReader *reader, const TkKafkaWait *wait, TkKafkaError *error)
{
	TkDeadline	deadline = tk_deadline(wait);
	rd_kafka_message_t *newest;
	int64_t		high;
	int64_t		stable = -1;	/* not seen yet */
	TkKafkaStatus status;

	if (reader->uncommitted == NULL)
	{
		reader->uncommitted = open_consumer(&reader->user, reader->name, "read_uncommitted", error);
		if (reader->uncommitted == NULL)
			return TK_KAFKA_FATAL;
	}
	status = require_topic(reader, reader->uncommitted, &deadline, error);
	if (status != TK_KAFKA_OK)
		return status;
	status = read_to_end(reader, reader->uncommitted, RD_KAFKA_OFFSET_END, &deadline, &newest, &high, error);
	if (newest)
		rd_kafka_message_destroy(newest);
	while (status == TK_KAFKA_OK)
	{
		int64_t		now_stable;

		status = read_to_end(reader, reader->committed, RD_KAFKA_OFFSET_END, &deadline, &newest, &now_stable, error);
		if (newest)
			rd_kafka_message_destroy(newest);
		if (status == TK_KAFKA_OK)
		{
			stable = now_stable;
			if (stable >= high)
				return tk_ok(error);
		}
		else if (status != TK_KAFKA_RETRY || error->cause == TK_CAUSE_INTERRUPTED || stable < 0)
			break;
		if (tk_is_over(&deadline) && !(wait->interrupted && wait->interrupted()))
			return tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_TIMED_OUT, RD_KAFKA_RESP_ERR__TIMED_OUT,
						   "topic \"%s\" has an open transaction: its last stable offset is %" PRId64
						   ", its high watermark %" PRId64, reader->name, stable, high);
		rd_kafka_poll(reader->committed->client.rk, 20);
	}
	return status;
}
