/*
 * encode_plain.c
 *	  The plain envelope: the value is the row, a delete is a tombstone.
 *
 * What a topic of this shape must keep true: after the last record of a key
 * was read, the key's row is known.  Hence a changed key gives a tombstone for
 * the old key first, and a column whose value is not in the WAL is left out
 * and named in a header: a null would claim a value.  Records without a key or
 * without headers could be taken for each other (delete, truncate), so those
 * always say what they are.
 */
#include "encode_row.h"

#include <stdlib.h>

typedef struct PlainPlan
{
	TkRowPlan	row;			/* its text holds the piece below */
	TkPiece		schema;			/* with schemas: {"schema":…,"payload": */
} PlainPlan;

static void
plain_free_plan(void *plan)
{
	PlainPlan  *p = plan;

	if (p == NULL)
		return;
	tk_row_plan_free(&p->row);
	free(p);
}

/*
 * A column is missing where its value is not in the WAL, so only those that
 * an UPDATE always logs are required: the key's.
 */
static void
append_value_schema(PlainPlan *plan, const TkRelation *relation)
{
	TkBuffer   *text = &plan->row.text;
	size_t		start = text->len;
	int			i;

	tk_schema_open(text);
	tk_schema_struct_open(text);
	for (i = 0; i < relation->ncolumns; i++)
	{
		const TkColumn *column = &relation->columns[i];

		if (tk_row_has(&plan->row, i))
			tk_schema_field(text, &column->type, !column->identity || !column->not_null, plan->row.style,
							column->name);
	}
	tk_schema_struct_close(text, false, relation->topic, ".Value", 0, NULL);
	tk_schema_close(text);
	plan->schema.at = start;
	plan->schema.len = text->len - start;
}

static void *
plain_plan(const TkEncodeOptions *options, const TkRelation *relation)
{
	PlainPlan  *plan = calloc(1, sizeof(PlainPlan));
	bool		as_string = options->json == TK_JSON_STRING || options->schemas;
	bool		done;

	if (plan == NULL)
		return NULL;
	done = tk_row_plan_init(&plan->row, options, relation, as_string ? 0 : TK_STYLE_INLINE_JSON);
	if (done && options->schemas)
		append_value_schema(plan, relation);
	if (!done || plan->row.text.failed)
	{
		plain_free_plan(plan);
		return NULL;
	}
	return plan;
}

static void
add_record(const TkEncodeOptions *options, TkTransaction *transaction, char op,
		   TkSpan key, TkSpan value, TkBuffer *out, TkRecord *record)
{
	transaction->sequence++;
	tk_record_init(record, key, value);
	if (options->metadata_headers)
		tk_record_metadata(record, op, transaction, out);
	else if (tk_span_is_null(key) && tk_span_is_null(value))
		tk_record_op(record, op, out);
}

/* The row as it is now, under its key. */
static void
add_row(const TkEncodeOptions *options, const PlainPlan *plan, TkTransaction *transaction, char op,
		const TkChange *change, TkBuffer *out, TkRecord *record)
{
	const TkRowPlan *row = &plan->row;
	TkSpan		key = tk_row_new_key(row, change, out);
	size_t		start = out->len;
	int			unavailable;

	tk_piece(out, row, plan->schema);
	unavailable = tk_row_new(row, change, true, out);
	if (options->schemas)
		tk_buffer_char(out, '}');
	add_record(options, transaction, op, key, tk_span_since(out, start), out, record);
	if (unavailable > 0)
		tk_record_header(record, "pg.unavailable", tk_row_unavailable(row, change, out));
	tk_row_json_nulls(row, change, out, record);
}

static int
plain_encode(const TkEncodeOptions *options, const void *plan, TkTransaction *transaction,
			 const TkChange *change, TkBuffer *out, TkRecord *records)
{
	const PlainPlan *p = plan;
	const TkRowPlan *row = &p->row;
	int			n = 0;

	tk_count_event(transaction, change->relation);
	switch (change->operation)
	{
		case TK_INSERT:
			add_row(options, p, transaction, 'c', change, out, &records[n++]);
			break;
		case TK_UPDATE:
			if (tk_row_key_changed(change))
			{
				TkSpan		old_key = tk_row_old_key(row, change, out);

				add_record(options, transaction, 'd', old_key, TK_NULL_SPAN, out, &records[n++]);
				add_row(options, p, transaction, 'c', change, out, &records[n++]);
			}
			else
				add_row(options, p, transaction, 'u', change, out, &records[n++]);
			break;
		case TK_DELETE:
			add_record(options, transaction, 'd', tk_row_old_key(row, change, out), TK_NULL_SPAN,
					   out, &records[n++]);
			break;
		case TK_TRUNCATE:
			add_record(options, transaction, 't', TK_NULL_SPAN, TK_NULL_SPAN, out, &records[n++]);
			break;
	}
	return n;
}

const TkEncoder tk_encoder_plain = {
	.name = "plain",
	.metadata_headers = true,
	.plan = plain_plan,
	.free_plan = plain_free_plan,
	.encode = plain_encode
};
