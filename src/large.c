/*
 * large.c
 *	  What is done with a record that is larger than Kafka takes.
 *
 * librdkafka refuses such a record, or the broker does; but the broker says so
 * only after it was sent, and then the whole Kafka transaction is lost.  So the
 * limits are asked for before, and a record over one stops the pipeline by its
 * name, or, with oversize => dead_letter, a description takes its place, on a
 * topic of the pipeline's own.  The transaction stays whole either way.
 *
 * Where a limit is not known (the topic may not be described) the broker's
 * refusal stops the pipeline, as it also does when the limit was lowered since
 * it was asked for.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "large.h"
#include "oversize.h"
#include "topics.h"

/* Headers and varints are counted only where they could matter. */
#define MARGIN 2048

static const TkEncodeOptions *encode_options;
static size_t client_limit;		/* message.max.bytes */
static size_t queue_limit;		/* of values */
static bool compresses;
static TkTopicRoute *dead_letters;	/* NULL: such a record stops the pipeline */
static TimestampTz warned_at;
static int64 unwarned;

void
tk_large_init(const TkEncodeOptions *options)
{
	TkProducer *producer = tk_pipeline.producers[tk_pipeline.current];

	encode_options = options;
	client_limit = tk_producer_max_record(producer);
	queue_limit = tk_producer_max_queue(producer);
	compresses = tk_producer_compresses(producer);
	if (tk_pipeline.options->oversize == TK_OVERSIZE_DEAD_LETTER)
	{
		char		topic[TK_TOPIC_MAX + 1];

		snprintf(topic, sizeof(topic), "%s.dead_letter", tk_pipeline.definition->name);
		dead_letters = tk_reserved_route(topic);
	}
}

/* What a batch of the topic may take; 0: not known, or only the broker can tell. */
static size_t
batch_limit(const TkTopicRoute *route)
{
	return compresses && dead_letters == NULL ? 0 : route->max_batch;
}

void
tk_large_note_limit(TkTopicRoute *route)
{
	size_t		limit = Min(client_limit, queue_limit);

	if (batch_limit(route) > 0)
		limit = Min(limit, batch_limit(route));
	route->easy = limit > MARGIN ? limit - MARGIN : 0;
}

/* NULL, or the name of the limit that it is over. */
static const char *
limit_of(const TkTopicRoute *route, TkSpan value, const TkRecordSize *size, size_t *limit)
{
	if (size->client > client_limit)
	{
		*limit = client_limit;
		return "message.max.bytes";
	}
	if (value.len > queue_limit)
	{
		*limit = queue_limit;
		return "queue.buffering.max.kbytes";
	}
	if (batch_limit(route) > 0 && size->batch > batch_limit(route))
	{
		*limit = batch_limit(route);
		return "max.message.bytes";
	}
	return NULL;
}

/* What it is of, for people. */
static char *
origin(const TkRelation *relation)
{
	return relation == NULL ? pstrdup("a record") : psprintf("a record of table \"%s.%s\"", relation->schema, relation->table);
}

static void
warn(const TkDeadLetter *letter, const TkRelation *relation)
{
	TimestampTz now = GetCurrentTimestamp();

	unwarned++;
	if (!TimestampDifferenceExceeds(warned_at, now, 60000))
		return;
	warned_at = now;
	ereport(WARNING,
			(errmsg("pipeline \"%s\" left out %s of %zu bytes, which topic \"%s\" does not take",
					letter->pipeline, origin(relation), letter->size, letter->topic),
			 errdetail("%s is %zu. Since this was said last: " INT64_FORMAT ".", letter->limit_name, letter->limit, unwarned),
			 errhint("See topic \"%s\".", dead_letters->topic)));
	unwarned = 0;
}

bool
tk_large_replaced(TkTopicRoute **route, const TkRelation *relation, char op, TkSpan *key, TkSpan *value,
				  size_t headers, int nheaders, const TkTransaction *transaction, uint64 lsn)
{
	TkBuffer   *buffer = tk_append_buffer();
	TkRecordSize size;
	TkDeadLetter letter = {0};
	char		shown[80];
	const TkSpan last = {0, strlen("true")};

	/* It may still get pg.last. */
	if (encode_options->metadata_headers)
	{
		headers += tk_header_size(strlen("pg.last"), last);
		nheaders++;
	}
	size = tk_record_size(*key, *value, headers, nheaders);
	letter.limit_name = limit_of(*route, *value, &size, &letter.limit);
	if (letter.limit_name == NULL)
		return false;

	letter.pipeline = encode_options->pipeline;
	letter.topic = (*route)->topic;
	letter.schema = relation ? relation->schema : NULL;
	letter.table = relation ? relation->table : NULL;
	letter.op = op;
	letter.transaction = transaction;
	letter.lsn = lsn;
	letter.size = size.bytes;
	if (!tk_span_is_null(*key))
	{
		/* It must not move while it is read. */
		if (!tk_buffer_reserve(buffer, 8 * TK_DEAD_LETTER_KEY_MAX + 4096))
			return true;
		letter.key = buffer->data + key->at;
		letter.key_len = key->len;
	}
	tk_describe_key(shown, sizeof(shown), letter.key, letter.key_len);

	if (dead_letters == NULL)
		tk_stop_sticky(TK_STATE_FAILED,
					   strcmp(letter.limit_name, "max.message.bytes") == 0 ?
					   "Raise the topic's max.message.bytes, or set the pipeline's option oversize to dead_letter; then CALL kafka.resume()." :
					   "Raise that option of the server with ALTER SERVER, or set the pipeline's option oversize to dead_letter; then CALL kafka.resume().",
					   "record too large: topic \"%s\": %s (%s) of %zu bytes is larger than %s (%zu), at %X/%X",
					   letter.topic, origin(relation), shown, letter.size, letter.limit_name, letter.limit,
					   LSN_FORMAT_ARGS((XLogRecPtr) lsn));

	warn(&letter, relation);
	*value = tk_encode_dead_letter(&letter, buffer);
	*route = dead_letters;
	tk_pipeline.checkpoint.dead_letters++;

	/* A key that is too large itself can't be kept. */
	size = tk_record_size(*key, *value, MARGIN, 0);
	if (limit_of(dead_letters, *value, &size, &letter.limit) != NULL)
		*key = TK_NULL_SPAN;
	return true;
}
