/*
 * encode_outbox.c
 *	  Rows of an outbox table → records: see encode_outbox.h.
 *
 * The table is the one that Debezium's outbox event router reads with its
 * default settings: aggregatetype names the topic, aggregateid is the key, the
 * payload is the value, byte for byte.  Only inserts are events; outboxes are
 * emptied by DELETE, and that says nothing.
 */
#include "encode_outbox.h"
#include "encode_row.h"

const char *const tk_outbox_columns[TK_OUTBOX_COLUMNS] = {"id", "aggregatetype", "aggregateid", "payload", "type"};

const char *
tk_outbox_describe(TkRelation *relation, bool event_type)
{
	int		   *columns[TK_OUTBOX_COLUMNS];
	int			n = event_type ? TK_OUTBOX_COLUMNS : TK_OUTBOX_COLUMNS - 1;
	int			i;
	int			j;

	columns[0] = &relation->outbox.id;
	columns[1] = &relation->outbox.aggregatetype;
	columns[2] = &relation->outbox.aggregateid;
	columns[3] = &relation->outbox.payload;
	columns[4] = &relation->outbox.type;
	relation->outbox.type = -1;
	for (i = 0; i < n; i++)
	{
		for (j = 0; j < relation->ncolumns; j++)
			if (strcmp(relation->columns[j].name, tk_outbox_columns[i]) == 0)
				break;
		if (j == relation->ncolumns)
			return tk_outbox_columns[i];
		*columns[i] = j;
	}
	relation->outbox.routed = true;
	return NULL;
}

const char *
tk_outbox_topic(const TkChange *change, char topic[TK_TOPIC_MAX + 1])
{
	const TkValue *type = &change->new[change->relation->outbox.aggregatetype];
	size_t		prefix = strlen(TK_OUTBOX_PREFIX);

	topic[0] = '\0';
	if (type->kind != TK_VALUE_TEXT)
		return "it is null";
	if (type->len == 0)
		return "it is empty";
	if (type->len > TK_TOPIC_MAX - prefix)
		return "the name is longer than 249 characters";
	memcpy(topic, TK_OUTBOX_PREFIX, prefix);
	memcpy(topic + prefix, type->data, type->len);
	topic[prefix + type->len] = '\0';
	return tk_topic_problem(topic);
}

static int
hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
}

/* A column as it is: text, or the bytes of a bytea (bytea_output is hex). */
static TkSpan
verbatim(const TkChange *change, int column, TkBuffer *out)
{
	const TkValue *value = &change->new[column];
	size_t		start = out->len;
	uint32_t	i;

	if (value->kind != TK_VALUE_TEXT)
		return TK_NULL_SPAN;
	if (change->relation->columns[column].type.kind != TK_KIND_BYTEA)
		tk_buffer_append(out, value->data, value->len);
	else if (tk_buffer_reserve(out, value->len / 2))
	{
		for (i = 2; i + 1 < value->len; i += 2)
			out->data[out->len++] = (char) (hex_digit(value->data[i]) << 4 | hex_digit(value->data[i + 1]));
	}
	return tk_span_since(out, start);
}

void
tk_outbox_encode(const TkEncodeOptions *options, TkTransaction *transaction, const TkChange *change, TkBuffer *out,
				 TkRecord *record)
{
	const TkOutbox *outbox = &change->relation->outbox;
	TkSpan		key = verbatim(change, outbox->aggregateid, out);
	TkSpan		value = verbatim(change, outbox->payload, out);

	tk_count_event(transaction, change->relation);
	transaction->sequence++;
	tk_record_init(record, key, value);
	if (options->metadata_headers)
		tk_record_metadata(record, 'c', transaction, out);
	tk_record_header(record, "id", verbatim(change, outbox->id, out));
	if (outbox->type >= 0)
		tk_record_header(record, "eventType", verbatim(change, outbox->type, out));
}
