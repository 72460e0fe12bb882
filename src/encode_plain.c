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

static void *
plain_plan(const TkEncodeOptions *options, const TkRelation *relation)
{
	TkRowPlan  *plan = malloc(sizeof(TkRowPlan));

	if (plan == NULL)
		return NULL;
	if (!tk_row_plan_init(plan, relation, options->json != TK_JSON_STRING))
	{
		tk_row_plan_free(plan);
		free(plan);
		return NULL;
	}
	return plan;
}

static void
plain_free_plan(void *plan)
{
	if (plan == NULL)
		return;
	tk_row_plan_free(plan);
	free(plan);
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
add_row(const TkEncodeOptions *options, const TkRowPlan *plan, TkTransaction *transaction, char op,
		const TkChange *change, TkBuffer *out, TkRecord *record)
{
	TkSpan		key = tk_row_new_key(plan, change, out);
	size_t		start = out->len;
	int			unavailable = tk_row_new(plan, change, true, out);

	add_record(options, transaction, op, key, tk_span_since(out, start), out, record);
	if (unavailable > 0)
		tk_record_header(record, "pg.unavailable", tk_row_unavailable(change, out));
}

static int
plain_encode(const TkEncodeOptions *options, const void *plan, TkTransaction *transaction,
			 const TkChange *change, TkBuffer *out, TkRecord *records)
{
	const TkRowPlan *row = plan;
	int			n = 0;

	tk_count_event(transaction, change->relation);
	switch (change->operation)
	{
		case TK_INSERT:
			add_row(options, row, transaction, 'c', change, out, &records[n++]);
			break;
		case TK_UPDATE:
			if (tk_row_key_changed(change))
			{
				TkSpan		old_key = tk_row_old_key(row, change, out);

				add_record(options, transaction, 'd', old_key, TK_NULL_SPAN, out, &records[n++]);
				add_row(options, row, transaction, 'c', change, out, &records[n++]);
			}
			else
				add_row(options, row, transaction, 'u', change, out, &records[n++]);
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
