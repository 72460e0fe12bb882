/*
 * encode_debezium.c
 *	  Debezium's envelope: before, after, source, transaction, op.
 *
 * Consumers written for Debezium must not notice the difference, so the fields
 * and their order, the pair of records for a changed key with its headers, the
 * tombstones and the counting of events are Debezium's.  One thing differs on
 * purpose: "before" has only the columns that PostgreSQL logged, where
 * Debezium fills the others with nulls and zeros.
 *
 * Most of a record is the same for every row of its table; the plan holds it
 * as a few pieces of JSON, between which numbers are written.
 */
#include "encode_row.h"
#include "encode_value.h"

#include <stdlib.h>

typedef struct DebeziumPlan
{
	TkRowPlan	row;			/* first: its text holds the pieces below */
	TkPiece		to_ts_ms;		/* ,"source":{… "ts_ms": */
	TkPiece		to_sequence;	/* ,"snapshot":… "sequence":"[ */
	TkPiece		to_ts_us;		/* ]","ts_us": */
	TkPiece		to_xid;			/* ,"schema":… "txId": */
	TkPiece		to_transaction; /* ,"xmin":… "transaction": */
	TkPiece		to_before;		/* {"before":, with schemas in {"schema":…,"payload": */
} DebeziumPlan;

#define append_literal(out, literal) tk_buffer_append(out, literal, sizeof(literal) - 1)

static void
append_json(TkBuffer *out, const char *s, int style)
{
	tk_json_text(out, s, strlen(s), style);
}

/* The piece that was appended since *start; the next one starts here. */
static TkPiece
cut_piece(const TkBuffer *text, size_t *start)
{
	TkPiece		piece = {*start, text->len - *start};

	*start = text->len;
	return piece;
}

static void
debezium_free_plan(void *plan)
{
	DebeziumPlan *p = plan;

	if (p == NULL)
		return;
	tk_row_plan_free(&p->row);
	free(p);
}

#define SOURCE_SCHEMA \
	"{\"type\":\"struct\",\"fields\":[" \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"version\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"connector\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"name\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"ts_ms\"}," \
	"{\"type\":\"string\",\"optional\":true,\"name\":\"io.debezium.data.Enum\",\"version\":1,\"parameters\":" \
	"{\"allowed\":\"true,first,first_in_data_collection,last_in_data_collection,last,false,incremental\"}," \
	"\"default\":\"false\",\"field\":\"snapshot\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"db\"}," \
	"{\"type\":\"string\",\"optional\":true,\"field\":\"sequence\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_us\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ns\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"schema\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"table\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"txId\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"lsn\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"xmin\"}," \
	"{\"type\":\"string\",\"optional\":true,\"field\":\"origin\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"origin_lsn\"}]," \
	"\"optional\":false,\"name\":\"io.debezium.connector.postgresql.Source\",\"version\":1,\"field\":\"source\"}"

#define TRANSACTION_SCHEMA \
	"{\"type\":\"struct\",\"fields\":[" \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"id\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"total_order\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"data_collection_order\"}]," \
	"\"optional\":true,\"name\":\"event.block\",\"version\":1,\"field\":\"transaction\"}"

/*
 * The schema of "before" or "after".  Of an old tuple that isn't whole, the
 * columns that are not logged are missing, so there they are optional.
 */
static void
append_row_schema(const DebeziumPlan *plan, const TkRelation *relation, bool before, TkBuffer *text)
{
	int			i;

	tk_schema_struct_open(text);
	for (i = 0; i < relation->ncolumns; i++)
	{
		const TkColumn *column = &relation->columns[i];
		bool		missing = before && relation->replica_identity != 'f' && !column->identity;

		if (tk_row_has(&plan->row, i))
			tk_schema_field(text, &column->type, missing || !column->not_null, plan->row.style, column->name);
	}
	tk_schema_struct_close(text, true, relation->topic, ".Value", 0, before ? "before" : "after");
}

static void
append_envelope_schema(const DebeziumPlan *plan, const TkRelation *relation, TkBuffer *text)
{
	tk_schema_open(text);
	tk_schema_struct_open(text);
	append_row_schema(plan, relation, true, text);
	tk_buffer_char(text, ',');
	append_row_schema(plan, relation, false, text);
	append_literal(text, "," SOURCE_SCHEMA "," TRANSACTION_SCHEMA
				   ",{\"type\":\"string\",\"optional\":false,\"field\":\"op\"}"
				   ",{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ms\"}"
				   ",{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_us\"}"
				   ",{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ns\"}");
	tk_schema_struct_close(text, false, relation->topic, ".Envelope", 2, NULL);
	tk_schema_close(text);
}

static void *
debezium_plan(const TkEncodeOptions *options, const TkRelation *relation)
{
	DebeziumPlan *plan = calloc(1, sizeof(DebeziumPlan));
	TkBuffer   *text;
	size_t		start;

	if (plan == NULL)
		return NULL;
	text = &plan->row.text;
	if (!tk_row_plan_init(&plan->row, options, relation, options->json == TK_JSON_INLINE ? TK_STYLE_INLINE_JSON : 0))
	{
		debezium_free_plan(plan);
		return NULL;
	}

	start = text->len;
	append_literal(text, ",\"source\":{\"version\":");
	append_json(text, options->version, plan->row.style);
	append_literal(text, ",\"connector\":\"postgresql\",\"name\":");
	append_json(text, options->pipeline, plan->row.style);
	append_literal(text, ",\"ts_ms\":");
	plan->to_ts_ms = cut_piece(text, &start);
	append_literal(text, ",\"snapshot\":\"false\",\"db\":");
	append_json(text, options->database, plan->row.style);
	append_literal(text, ",\"sequence\":\"[");
	plan->to_sequence = cut_piece(text, &start);
	append_literal(text, "]\",\"ts_us\":");
	plan->to_ts_us = cut_piece(text, &start);
	append_literal(text, ",\"schema\":");
	append_json(text, relation->schema, plan->row.style);
	append_literal(text, ",\"table\":");
	append_json(text, relation->table, plan->row.style);
	append_literal(text, ",\"txId\":");
	plan->to_xid = cut_piece(text, &start);
	append_literal(text, ",\"xmin\":null,\"origin\":null,\"origin_lsn\":null},\"transaction\":");
	plan->to_transaction = cut_piece(text, &start);
	if (options->schemas)
		append_envelope_schema(plan, relation, text);
	append_literal(text, "{\"before\":");
	plan->to_before = cut_piece(text, &start);

	if (text->failed)
	{
		debezium_free_plan(plan);
		return NULL;
	}
	return plan;
}

/*
 * A time in the three units of the envelope.  The digits of the microseconds
 * serve all three: three less are milliseconds, three more nanoseconds (whose
 * number may be over 64 bits).
 */
typedef struct Stamp
{
	char		digits[24];
	size_t		len;
	int64_t		us;
} Stamp;

static void
stamp_init(Stamp *stamp, int64_t us)
{
	TkBuffer	digits = {stamp->digits, 0, sizeof(stamp->digits), false};

	tk_decimal(&digits, us);
	stamp->len = digits.len;
	stamp->us = us;
}

static void
append_ms(TkBuffer *out, const Stamp *stamp)
{
	if (stamp->us >= 1000)
		tk_buffer_append(out, stamp->digits, stamp->len - 3);
	else
	{
		/* Rounded down before 1970, too. */
		tk_decimal(out, stamp->us / 1000 - (stamp->us % 1000 < 0));
	}
}

static void
append_us_and_ns(TkBuffer *out, const Stamp *stamp)
{
	tk_buffer_append(out, stamp->digits, stamp->len);
	append_literal(out, ",\"ts_ns\":");
	tk_buffer_append(out, stamp->digits, stamp->len);
	if (stamp->us != 0)
		append_literal(out, "000");
}

/* "id":"xid:lsn" */
static void
append_transaction_id(TkBuffer *out, const TkTransaction *transaction)
{
	append_literal(out, "\"id\":\"");
	tk_unsigned(out, transaction->xid);
	tk_buffer_char(out, ':');
	tk_unsigned(out, transaction->commit_lsn);
	tk_buffer_char(out, '"');
}

static void
append_source(const DebeziumPlan *plan, const TkTransaction *transaction, const TkChange *change, TkBuffer *out)
{
	Stamp		committed;

	stamp_init(&committed, transaction->commit_us);
	tk_piece(out, &plan->row, plan->to_ts_ms);
	append_ms(out, &committed);
	tk_piece(out, &plan->row, plan->to_sequence);

	/* A JSON array inside of a JSON string: [null,"23"] or ["12","23"] */
	if (transaction->previous_commit_lsn == 0)
		append_literal(out, "null,\\\"");
	else
	{
		append_literal(out, "\\\"");
		tk_unsigned(out, transaction->previous_commit_lsn);
		append_literal(out, "\\\",\\\"");
	}
	tk_unsigned(out, change->lsn);
	append_literal(out, "\\\"");
	tk_piece(out, &plan->row, plan->to_ts_us);
	append_us_and_ns(out, &committed);
	tk_piece(out, &plan->row, plan->to_xid);
	tk_unsigned(out, transaction->xid);
	append_literal(out, ",\"lsn\":");
	tk_unsigned(out, change->lsn);
	tk_piece(out, &plan->row, plan->to_transaction);
}

/* Appends the value of one event, which is counted here. */
static TkSpan
append_event(const TkEncodeOptions *options, const DebeziumPlan *plan, TkTransaction *transaction,
			 const TkChange *change, char op, TkBuffer *out)
{
	bool		before = change->old_kind != 0 && (op == 'u' || op == 'd');
	bool		after = op == 'c' || op == 'u';
	size_t		start = out->len;
	Stamp		processed;

	tk_count_event(transaction, change->relation);

	tk_piece(out, &plan->row, plan->to_before);
	if (before)
		tk_row_old(&plan->row, change, out);
	else
		append_literal(out, "null");
	append_literal(out, ",\"after\":");
	if (after)
		(void) tk_row_new(&plan->row, change, false, out);
	else
		append_literal(out, "null");

	append_source(plan, transaction, change, out);

	if (options->transaction_metadata)
	{
		tk_buffer_char(out, '{');
		append_transaction_id(out, transaction);
		append_literal(out, ",\"total_order\":");
		tk_unsigned(out, transaction->total_order);
		append_literal(out, ",\"data_collection_order\":");
		tk_unsigned(out, change->relation->order);
		tk_buffer_char(out, '}');
	}
	else
		append_literal(out, "null");

	append_literal(out, ",\"op\":\"");
	tk_buffer_char(out, op);
	append_literal(out, "\",\"ts_ms\":");
	stamp_init(&processed, transaction->processing_us);
	append_ms(out, &processed);
	append_literal(out, ",\"ts_us\":");
	append_us_and_ns(out, &processed);
	tk_buffer_char(out, '}');
	if (options->schemas)
		tk_buffer_char(out, '}');

	return tk_span_since(out, start);
}

static TkRecord *
add_record(const TkEncodeOptions *options, TkTransaction *transaction, char op,
		   TkSpan key, TkSpan value, TkBuffer *out, TkRecord *record)
{
	transaction->sequence++;
	tk_record_init(record, key, value);
	if (options->metadata_headers)
		tk_record_metadata(record, op, transaction, out);
	return record;
}

/*
 * A changed key is a delete under the old key and a create under the new one,
 * because a consumer (and compaction) treats keys separately.  Each names the
 * other's key in a header, the tombstone like the delete that it belongs to.
 */
static int
encode_key_change(const TkEncodeOptions *options, const DebeziumPlan *plan, TkTransaction *transaction,
				  const TkChange *change, TkBuffer *out, TkRecord *records)
{
	TkSpan		old_key = tk_row_old_key(&plan->row, change, out);
	TkSpan		new_key = tk_row_new_key(&plan->row, change, out);
	TkSpan		value;
	TkRecord   *record;
	int			n = 0;

	value = append_event(options, plan, transaction, change, 'd', out);
	record = add_record(options, transaction, 'd', old_key, value, out, &records[n++]);
	tk_record_header(record, "__debezium.newkey", new_key);
	if (options->tombstones)
	{
		record = add_record(options, transaction, 'd', old_key, TK_NULL_SPAN, out, &records[n++]);
		tk_record_header(record, "__debezium.newkey", new_key);
	}

	value = append_event(options, plan, transaction, change, 'c', out);
	record = add_record(options, transaction, 'c', new_key, value, out, &records[n++]);
	tk_record_header(record, "__debezium.oldkey", old_key);
	tk_row_json_nulls(&plan->row, change, out, record);
	return n;
}

static int
debezium_encode(const TkEncodeOptions *options, const void *plan, TkTransaction *transaction,
				const TkChange *change, TkBuffer *out, TkRecord *records)
{
	const DebeziumPlan *p = plan;
	TkSpan		key = TK_NULL_SPAN;
	TkRecord   *record;
	char		op = 'c';
	int			n = 0;

	if (tk_row_key_changed(change))
		return encode_key_change(options, p, transaction, change, out, records);

	switch (change->operation)
	{
		case TK_INSERT:
			op = 'c';
			key = tk_row_new_key(&p->row, change, out);
			break;
		case TK_UPDATE:
			op = 'u';
			key = tk_row_new_key(&p->row, change, out);
			break;
		case TK_DELETE:
			op = 'd';
			key = tk_row_old_key(&p->row, change, out);
			break;
		case TK_TRUNCATE:
			op = 't';
			break;
	}
	record = add_record(options, transaction, op, key, append_event(options, p, transaction, change, op, out),
						out, &records[n++]);
	if (op == 'c' || op == 'u')
		tk_row_json_nulls(&p->row, change, out, record);

	/*
	 * A tombstone tells compaction to forget the key; without one there is nothing to forget.
	 */
	if (op == 'd' && options->tombstones && !tk_span_is_null(key))
		add_record(options, transaction, op, key, TK_NULL_SPAN, out, &records[n++]);
	return n;
}

/* An element of "data_collections": how many of the transaction's events were of this table */
static void
append_collection(TkBuffer *out, const TkTransaction *transaction, const TkRelation *relation, bool first, int style)
{
	size_t		dot;

	if (!first)
		tk_buffer_char(out, ',');
	append_literal(out, "{\"data_collection\":");

	/*
	 * Two JSON strings become one: the second starts over the first one's end, and a dot takes the quote's place.
	 */
	append_json(out, relation->schema, style);
	if (out->failed)
		return;
	dot = --out->len;
	append_json(out, relation->table, style);
	if (!out->failed)
		out->data[dot] = '.';
	append_literal(out, ",\"event_count\":");
	tk_unsigned(out, relation->order_in == transaction->commit_lsn ? relation->order : 0);
	tk_buffer_char(out, '}');
}

void
tk_encode_transaction(const TkEncodeOptions *options, const TkTransaction *transaction, bool end,
					  TkRelation *const *collections, int ncollections,
					  TkBuffer *out, TkRecord *record)
{
	Stamp		committed;
	TkSpan		key;
	size_t		start = out->len;
	int			i;

	stamp_init(&committed, transaction->commit_us);

	if (options->schemas)
		append_literal(out, "{\"schema\":{\"type\":\"struct\",\"fields\":["
					   "{\"type\":\"string\",\"optional\":false,\"field\":\"id\"}],\"optional\":false,"
					   "\"name\":\"io.debezium.connector.common.TransactionMetadataKey\",\"version\":1},\"payload\":");
	tk_buffer_char(out, '{');
	append_transaction_id(out, transaction);
	tk_buffer_char(out, '}');
	if (options->schemas)
		tk_buffer_char(out, '}');
	key = tk_span_since(out, start);

	start = out->len;
	if (options->schemas)
		append_literal(out, "{\"schema\":{\"type\":\"struct\",\"fields\":["
					   "{\"type\":\"string\",\"optional\":false,\"field\":\"status\"},"
					   "{\"type\":\"string\",\"optional\":false,\"field\":\"id\"},"
					   "{\"type\":\"int64\",\"optional\":true,\"field\":\"event_count\"},"
					   "{\"type\":\"array\",\"items\":{\"type\":\"struct\",\"fields\":["
					   "{\"type\":\"string\",\"optional\":false,\"field\":\"data_collection\"},"
					   "{\"type\":\"int64\",\"optional\":false,\"field\":\"event_count\"}],"
					   "\"optional\":true,\"name\":\"event.collection\",\"version\":1},"
					   "\"optional\":true,\"field\":\"data_collections\"},"
					   "{\"type\":\"int64\",\"optional\":false,\"field\":\"ts_ms\"}],\"optional\":false,"
					   "\"name\":\"io.debezium.connector.common.TransactionMetadataValue\",\"version\":1},\"payload\":");
	append_literal(out, "{\"status\":\"");
	tk_buffer_string(out, end ? "END" : "BEGIN");
	append_literal(out, "\",");
	append_transaction_id(out, transaction);
	append_literal(out, ",\"event_count\":");
	if (end)
	{
		tk_unsigned(out, transaction->total_order);
		append_literal(out, ",\"data_collections\":[");
		for (i = 0; i < ncollections; i++)
			append_collection(out, transaction, collections[i], i == 0,
							  options->scalars == TK_SCALARS_DEBEZIUM ? TK_STYLE_DEBEZIUM : 0);
		tk_buffer_char(out, ']');
	}
	else
		append_literal(out, "null,\"data_collections\":null");
	append_literal(out, ",\"ts_ms\":");
	append_ms(out, &committed);
	tk_buffer_char(out, '}');
	if (options->schemas)
		tk_buffer_char(out, '}');
	tk_record_init(record, key, tk_span_since(out, start));
}

const TkEncoder tk_encoder_debezium = {
	.name = "debezium",
	.metadata_headers = false,
	.plan = debezium_plan,
	.free_plan = debezium_free_plan,
	.encode = debezium_encode
};
