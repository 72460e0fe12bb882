/*
 * test_outbox.c
 *	  Rows of an outbox → records.
 */
#include "../../src/encode_outbox.h"
#include "unit.h"

#define COLUMNS 6

static TkColumn columns[COLUMNS];
static TkRelation relation;
static TkValue values[COLUMNS];
static TkChange change;
static TkTransaction transaction;
static TkEncodeOptions options;

/* Columns in an order of their own: payload, note, aggregateid, id, type, aggregatetype */
static void
outbox(void)
{
	static const char *const names[COLUMNS] = {"payload", "note", "aggregateid", "id", "type", "aggregatetype"};
	int			i;

	memset(columns, 0, sizeof(columns));
	memset(&relation, 0, sizeof(relation));
	memset(&transaction, 0, sizeof(transaction));
	memset(&options, 0, sizeof(options));
	memset(&change, 0, sizeof(change));
	for (i = 0; i < COLUMNS; i++)
	{
		columns[i].name = names[i];
		columns[i].type.kind = TK_KIND_TEXT;
		values[i].kind = TK_VALUE_TEXT;
		values[i].data = names[i];
		values[i].len = (uint32_t) strlen(names[i]);
	}
	relation.ncolumns = COLUMNS;
	relation.columns = columns;
	relation.schema = "public";
	relation.table = "outbox";
	change.operation = TK_INSERT;
	change.relation = &relation;
	change.new = values;
	transaction.commit_lsn = 9;
}

static void
set(int column, char kind, const char *text)
{
	values[column].kind = kind;
	values[column].data = text;
	values[column].len = text ? (uint32_t) strlen(text) : 0;
}

static void
columns_are_found_by_name(void)
{
	outbox();
	CHECK(tk_outbox_describe(&relation, false) == NULL);
	CHECK(relation.outbox.routed);
	CHECK_INT(relation.outbox.payload, 0);
	CHECK_INT(relation.outbox.aggregateid, 2);
	CHECK_INT(relation.outbox.id, 3);
	CHECK_INT(relation.outbox.aggregatetype, 5);
	CHECK_INT(relation.outbox.type, -1);
	CHECK(tk_outbox_describe(&relation, true) == NULL);
	CHECK_INT(relation.outbox.type, 4);
}

static void
one_that_is_missing_is_named(void)
{
	outbox();
	columns[4].name = "Type";
	CHECK_STR(tk_outbox_describe(&relation, true), "type");
	CHECK(!relation.outbox.routed);
	CHECK(tk_outbox_describe(&relation, false) == NULL);

	outbox();
	relation.ncolumns = 5;
	CHECK_STR(tk_outbox_describe(&relation, false), "aggregatetype");
	relation.ncolumns = 0;
	CHECK_STR(tk_outbox_describe(&relation, false), "id");
}

static void
the_aggregate_names_the_topic(void)
{
	char		topic[TK_TOPIC_MAX + 1];
	char		longest[TK_TOPIC_MAX + 1];

	outbox();
	(void) tk_outbox_describe(&relation, false);
	set(5, TK_VALUE_TEXT, "Order-1_x.y");
	CHECK(tk_outbox_topic(&change, topic) == NULL);
	CHECK_STR(topic, "outbox.event.Order-1_x.y");

	set(5, TK_VALUE_TEXT, "or der");
	CHECK(tk_outbox_topic(&change, topic) != NULL);
	set(5, TK_VALUE_TEXT, "ord\xC3\xA9r");
	CHECK(tk_outbox_topic(&change, topic) != NULL);
	set(5, TK_VALUE_TEXT, "");
	CHECK_STR(tk_outbox_topic(&change, topic), "it is empty");
	set(5, TK_VALUE_NULL, NULL);
	CHECK_STR(tk_outbox_topic(&change, topic), "it is null");

	memset(longest, 'a', sizeof(longest));
	longest[TK_TOPIC_MAX - strlen(TK_OUTBOX_PREFIX)] = '\0';
	set(5, TK_VALUE_TEXT, longest);
	CHECK(tk_outbox_topic(&change, topic) == NULL);
	CHECK_INT(strlen(topic), TK_TOPIC_MAX);
	longest[strlen(longest)] = 'a';
	longest[TK_TOPIC_MAX - strlen(TK_OUTBOX_PREFIX) + 1] = '\0';
	set(5, TK_VALUE_TEXT, longest);
	CHECK(tk_outbox_topic(&change, topic) != NULL);
}

static void
check_span(const TkBuffer *out, TkSpan span, const char *expected, size_t len, const char *file, int line)
{
	unit_check_bytes(tk_span_is_null(span) ? NULL : out->data + span.at, span.len, expected, len, file, line, "span");
}

#define CHECK_SPAN(span, expected) \
	check_span(&out, span, expected, (expected) == NULL ? 0 : sizeof(expected) - 1, __FILE__, __LINE__)
#define CHECK_NULL(span) CHECK(tk_span_is_null(span))

static void
key_and_payload_are_verbatim(void)
{
	TkBuffer	out = {0};
	TkRecord	record;

	outbox();
	(void) tk_outbox_describe(&relation, false);
	tk_outbox_encode(&options, &transaction, &change, &out, &record);
	CHECK_SPAN(record.key, "aggregateid");
	CHECK_SPAN(record.value, "payload");
	CHECK_INT(record.nheaders, 1);
	CHECK_STR(record.headers[0].name, "id");
	CHECK_SPAN(record.headers[0].value, "id");
	CHECK_INT(transaction.sequence, 1);
	CHECK_INT(transaction.total_order, 1);
	CHECK_INT(relation.order, 1);

	/* bytea, as bytes */
	columns[0].type.kind = columns[2].type.kind = TK_KIND_BYTEA;
	set(0, TK_VALUE_TEXT, "\\x00ff0ac3");
	set(2, TK_VALUE_TEXT, "\\x");
	tk_outbox_encode(&options, &transaction, &change, &out, &record);
	CHECK_SPAN(record.value, "\x00\xff\x0a\xc3");
	CHECK_SPAN(record.key, "");

	/* nulls */
	set(0, TK_VALUE_NULL, NULL);
	set(2, TK_VALUE_NULL, NULL);
	set(3, TK_VALUE_NULL, NULL);
	tk_outbox_encode(&options, &transaction, &change, &out, &record);
	CHECK_NULL(record.value);
	CHECK_NULL(record.key);
	CHECK_NULL(record.headers[0].value);
	CHECK_INT(transaction.sequence, 3);
	tk_buffer_free(&out);
}

static void
headers_come_after_those_of_metadata(void)
{
	TkBuffer	out = {0};
	TkRecord	record;

	outbox();
	options.metadata_headers = true;
	(void) tk_outbox_describe(&relation, true);
	tk_outbox_encode(&options, &transaction, &change, &out, &record);
	CHECK_INT(record.nheaders, 7);
	CHECK_STR(record.headers[0].name, "pg.op");
	CHECK_SPAN(record.headers[0].value, "c");
	CHECK_STR(record.headers[5].name, "id");
	CHECK_STR(record.headers[6].name, "eventType");
	CHECK_SPAN(record.headers[6].value, "type");
	tk_buffer_free(&out);
}

int
main(void)
{
	columns_are_found_by_name();
	one_that_is_missing_is_named();
	the_aggregate_names_the_topic();
	key_and_payload_are_verbatim();
	headers_come_after_those_of_metadata();
	return unit_done();
}
