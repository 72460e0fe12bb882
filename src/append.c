/*
 * append.c
 *	  Records on their way: encoded, and not yet given to librdkafka.
 *
 * Encoders write straight into one buffer, where the bytes stay until
 * librdkafka copies them, many records at a call.  Nothing is allocated for a
 * record: it is described by offsets, in arrays that are kept.
 *
 * The order of the topics is that of the commits only if a checkpoint's first
 * record is sent after the broker has all of the checkpoint before.  So while
 * that is being acknowledged records gather here, up to a bound, and decoding
 * goes on.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "append.h"
#include "failpoint.h"

/* Sent when so much has gathered … */
#define SEND_BYTES (64 * 1024)
#define SEND_RECORDS 512

/* … or, while it may not be sent, waited for. */
#define HOLD_BYTES (4 * 1024 * 1024)
#define HOLD_RECORDS 50000

/* A buffer larger than this is given back after the records that needed it. */
#define BUFFER_KEEP (2 * HOLD_BYTES)

/* Delivery reports are served after so many records: they cost memory until then. */
#define POLL_EVERY 1024

typedef struct Gathered
{
	TkTopicRoute *route;
	int32		partition;
	TkSpan		key;
	TkSpan		value;
	int			first_header;
	int			nheaders;
} Gathered;

typedef struct GatheredHeader
{
	const char *name;			/* NULL: in the buffer */
	size_t		name_at;
	TkSpan		value;
} GatheredHeader;

static TkBuffer buffer;
static Gathered *records;
static int	nrecords;
static int	record_capacity;
static GatheredHeader *headers;
static int	nheaders;
static int	header_capacity;

/* Of one record, as librdkafka wants them. */
static TkRecordHeader *out_headers;
static int	out_capacity;

static int	since_poll;

void
tk_append_init(void)
{
	record_capacity = SEND_RECORDS + 1;
	records = MemoryContextAlloc(tk_pipeline.context, record_capacity * sizeof(Gathered));
	header_capacity = record_capacity;
	headers = MemoryContextAlloc(tk_pipeline.context, header_capacity * sizeof(GatheredHeader));
	out_capacity = TK_MAX_HEADERS;
	out_headers = MemoryContextAlloc(tk_pipeline.context, out_capacity * sizeof(TkRecordHeader));
}

TkBuffer *
tk_append_buffer(void)
{
	return &buffer;
}

void
tk_append(TkTopicRoute *route, int32 partition, TkSpan key, TkSpan value)
{
	Gathered   *record;

	if (nrecords == record_capacity)
	{
		record_capacity *= 2;
		records = repalloc(records, record_capacity * sizeof(Gathered));
	}
	record = &records[nrecords++];
	record->route = route;
	record->partition = partition;
	record->key = key;
	record->value = value;
	record->first_header = nheaders;
	record->nheaders = 0;
	tk_pipeline.checkpoint.records++;
	tk_pipeline.checkpoint.bytes += key.len + value.len;
}

void
tk_append_header(const char *name, size_t name_at, TkSpan value)
{
	GatheredHeader *header;

	if (nheaders == header_capacity)
	{
		header_capacity *= 2;
		headers = repalloc(headers, header_capacity * sizeof(GatheredHeader));
	}
	header = &headers[nheaders++];
	header->name = name;
	header->name_at = name_at;
	header->value = value;
	records[nrecords - 1].nheaders++;
}

static inline const char *
bytes_of(TkSpan span)
{
	return tk_span_is_null(span) ? NULL : buffer.data + span.at;
}

/* What is the matter with records that librdkafka didn't take; returns if they may be tried again. */
static void
not_taken(TkProducer *producer, TkKafkaStatus status, const TkKafkaError *error)
{
	/* The queue is full: the broker is slower than the WAL. */
	if (status == TK_KAFKA_RETRY)
	{
		TkKafkaError unhealthy;

		tk_note_queue();
		(void) tk_wait_begin(TK_WAIT_QUEUE);
		tk_producer_poll(producer, 10);
		tk_wait_end();
		if (tk_producer_health(producer, &unhealthy) != TK_KAFKA_OK)
			tk_kafka_failed("sending records", &unhealthy);
	}
	(void) tk_kafka_again(status, error, PG_INT64_MAX, "appending a record");
	tk_wait_end();
}

void
tk_append_record(TkProducer *producer, TkProducerTopic *topic, int32_t partition, const void *key, size_t key_len,
				 const void *value, size_t value_len, const TkRecordHeader *with, int n)
{
	TkKafkaStatus status;
	TkKafkaError error;

	while ((status = tk_producer_send(producer, topic, partition, key, key_len, value, value_len, with, n,
									  &error)) != TK_KAFKA_OK)
		not_taken(producer, status, &error);
}

static TkProducerTopic *
topic_handle(TkTopicRoute *route, TkProducer *producer)
{
	TkProducerTopic **handle = &route->handles[tk_pipeline.current];
	TkKafkaError error;

	if (*handle == NULL && (*handle = tk_producer_topic(producer, route->topic, &error)) == NULL)
		tk_kafka_failed("opening a topic", &error);
	return *handle;
}

/* The record "first", and those behind it that can be sent in one call; returns how many. */
static int
send_some(TkProducer *producer, int first, int end)
{
	TkKeyValue	batch[SEND_RECORDS];
	const Gathered *record = &records[first];
	TkProducerTopic *topic = topic_handle(record->route, producer);
	int			n = 0;
	int			sent = 0;

	if (record->nheaders > 0 || record->partition != TK_PARTITION_BY_KEY)
	{
		if (record->nheaders > out_capacity)
		{
			out_capacity = record->nheaders;
			out_headers = repalloc(out_headers, out_capacity * sizeof(TkRecordHeader));
		}
		for (int i = 0; i < record->nheaders; i++)
		{
			const GatheredHeader *header = &headers[record->first_header + i];

			out_headers[i].name = header->name ? header->name : buffer.data + header->name_at;
			out_headers[i].value = bytes_of(header->value);
			out_headers[i].len = header->value.len;
		}
		tk_append_record(producer, topic, record->partition, bytes_of(record->key), record->key.len,
						 bytes_of(record->value), record->value.len, out_headers, record->nheaders);
		return 1;
	}

	while (n < SEND_RECORDS && first + n < end && record[n].route == record->route &&
		   record[n].nheaders == 0 && record[n].partition == TK_PARTITION_BY_KEY)
	{
		batch[n].key = bytes_of(record[n].key);
		batch[n].key_len = record[n].key.len;
		batch[n].value = bytes_of(record[n].value);
		batch[n].value_len = record[n].value.len;
		n++;
	}
	while (sent < n)
	{
		TkKafkaError error;
		int			taken;
		TkKafkaStatus status = tk_producer_send_batch(producer, topic, batch + sent, n - sent, &taken, &error);

		sent += taken;
		if (status != TK_KAFKA_OK)
			not_taken(producer, status, &error);
	}
	return n;
}

static size_t
earlier(size_t at, TkSpan span)
{
	return tk_span_is_null(span) ? at : Min(at, span.at);
}

static TkSpan
moved(TkSpan span, size_t by)
{
	if (!tk_span_is_null(span))
		span.at -= by;
	return span;
}

/* Moves the record to the front of everything, and forgets what was there. */
static void
keep_only(Gathered record)
{
	GatheredHeader *its = headers + record.first_header;
	size_t		at = earlier(earlier(buffer.len, record.key), record.value);

	/* Its bytes begin with the first of what it points to. */
	for (int i = 0; i < record.nheaders; i++)
		at = Min(earlier(at, its[i].value), its[i].name ? at : its[i].name_at);
	record.key = moved(record.key, at);
	record.value = moved(record.value, at);
	for (int i = 0; i < record.nheaders; i++)
	{
		headers[i] = its[i];
		headers[i].value = moved(headers[i].value, at);
		headers[i].name_at -= at;
	}
	buffer.len -= at;
	memmove(buffer.data, buffer.data + at, buffer.len);
	nheaders = record.nheaders;
	record.first_header = 0;
	records[0] = record;
	nrecords = 1;
}

/* Sends the first "n" records. */
static void
send_first(int n)
{
	TkProducer *producer = tk_pipeline.producers[tk_pipeline.current];
	int			sent = 0;

	if (n == 0)
		return;
	if (tk_pipeline.checkpoint.state == TK_CHECKPOINT_OPEN)
		tk_stats_progress(&tk_pipeline.checkpoint);
	if (!tk_pipeline.transaction_open)
	{
		tk_open_transaction();
		TK_FAILPOINT(AFTER_BEGIN);
	}
	while (sent < n)
	{
		int			some = send_some(producer, sent, n);

		sent += some;
		since_poll += some;
		for (int i = 0; i < some; i++)
			TK_FAILPOINT(AFTER_APPEND);
	}
	if (n < nrecords)
	{
		Assert(n == nrecords - 1);
		keep_only(records[n]);
	}
	else
	{
		nrecords = 0;
		nheaders = 0;
		tk_buffer_reset(&buffer, BUFFER_KEEP);
	}
	if (since_poll >= POLL_EVERY)
	{
		since_poll = 0;
		tk_producer_poll(producer, 0);
		tk_note_queue();
		tk_tend_closing();
		CHECK_FOR_INTERRUPTS();
	}
}

void
tk_append_done(bool keep_last)
{
	if (buffer.len < SEND_BYTES && nrecords < SEND_RECORDS)
		return;
	if (!tk_may_append())
	{
		if (buffer.len < HOLD_BYTES && nrecords < HOLD_RECORDS)
			return;
		tk_await_acknowledged();
	}
	send_first(keep_last ? nrecords - 1 : nrecords);
}

void
tk_append_all(void)
{
	if (tk_may_append())
		send_first(nrecords);
}
