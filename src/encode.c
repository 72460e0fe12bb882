/*
 * encode.c
 *	  The list of envelopes, and what they share: keys, rows, headers.
 *
 * A row is written in one pass over the columns, each as a constant piece
 * (,"name":) and its value.  Columns may be left out, so which one comes first
 * is known only afterwards: every piece begins with a comma, and the first
 * comma is overwritten by the brace.
 *
 * Nothing is invented.  Of an old tuple of kind 'K' only the identity columns
 * are real (pgoutput fills the others with nulls), and a value that an UPDATE
 * left in its TOAST table is known only if the old tuple has it; both are
 * asked in one place, old_value().
 */
#include "encode_row.h"

#include <stdlib.h>

static const TkEncoder *const encoders[] = {
	&tk_encoder_debezium,
	&tk_encoder_plain
};

const TkEncoder *
tk_encoder_find(const char *name)
{
	size_t		i;

	for (i = 0; i < sizeof(encoders) / sizeof(encoders[0]); i++)
	{
		if (strcmp(encoders[i]->name, name) == 0)
			return encoders[i];
	}
	return NULL;
}

bool
tk_row_plan_init(TkRowPlan *plan, const TkRelation *relation, bool inline_json)
{
	int			i;

	memset(plan, 0, sizeof(*plan));
	plan->inline_json = inline_json;

	/*
	 * One more, because a table may have no columns and malloc(0) may return NULL.
	 */
	plan->columns = malloc(sizeof(TkPiece) * ((size_t) relation->ncolumns + 1));
	if (plan->columns == NULL)
		return false;
	for (i = 0; i < relation->ncolumns; i++)
	{
		const char *name = relation->columns[i].name;
		size_t		start = plan->text.len;

		tk_buffer_char(&plan->text, ',');
		tk_json_string(&plan->text, name, strlen(name));
		tk_buffer_char(&plan->text, ':');
		plan->columns[i].at = start;
		plan->columns[i].len = plan->text.len - start;
	}
	return !plan->text.failed;
}

void
tk_row_plan_free(TkRowPlan *plan)
{
	tk_buffer_free(&plan->text);
	free(plan->columns);
	plan->columns = NULL;
}

/* The old tuple's value of a column; NULL if it wasn't logged. */
static inline const TkValue *
old_value(const TkChange *change, int column)
{
	if (change->old_kind == 0 ||
		(change->old_kind == 'K' && !change->relation->columns[column].identity) ||
		change->old[column].kind == TK_VALUE_UNCHANGED)
		return NULL;
	return &change->old[column];
}

/* The new tuple's value; one that the UPDATE left alone equals the old one.  NULL if unavailable. */
static inline const TkValue *
new_value(const TkChange *change, int column)
{
	if (change->new[column].kind != TK_VALUE_UNCHANGED)
		return &change->new[column];
	return old_value(change, column);
}

static inline void
append_column(const TkRowPlan *plan, const TkChange *change, int column, const TkValue *value, TkBuffer *out)
{
	tk_piece(out, plan, plan->columns[column]);
	if (value != NULL)
		tk_json_value(out, &change->relation->columns[column].type, value, plan->inline_json);
	else
		tk_buffer_append(out, TK_UNAVAILABLE_JSON, strlen(TK_UNAVAILABLE_JSON));
}

/* Makes an object of the columns appended since "start". */
static inline void
close_object(TkBuffer *out, size_t start)
{
	if (out->len > start)
		out->data[start] = '{';
	else
		tk_buffer_char(out, '{');
	tk_buffer_char(out, '}');
}

TkSpan
tk_row_new_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	int			i;

	if (relation->nkeys == 0)
		return TK_NULL_SPAN;

	/*
	 * A key column is part of the replica identity, so it is unavailable only when it is unchanged, and a server
	 * older than the fix that logs such values in the old tuple wrote the record: say so, as the row does.
	 */
	for (i = 0; i < relation->nkeys; i++)
		append_column(plan, change, relation->keys[i], new_value(change, relation->keys[i]), out);
	close_object(out, start);
	return tk_span_since(out, start);
}

TkSpan
tk_row_old_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	int			i;

	for (i = 0; i < relation->nkeys; i++)
	{
		const TkValue *value = old_value(change, relation->keys[i]);

		if (value != NULL)
			append_column(plan, change, relation->keys[i], value, out);
	}
	if (out->len == start)
		return TK_NULL_SPAN;
	close_object(out, start);
	return tk_span_since(out, start);
}

bool
tk_row_key_changed(const TkChange *change)
{
	const TkRelation *relation = change->relation;
	int			i;

	if (change->operation != TK_UPDATE)
		return false;
	for (i = 0; i < relation->nkeys; i++)
	{
		const TkValue *before = old_value(change, relation->keys[i]);
		const TkValue *after = &change->new[relation->keys[i]];

		if (before == NULL || after->kind == TK_VALUE_UNCHANGED)
			continue;

		/*
		 * Text decides, not the type's equality: the consumer's key is the text, so 1.0 → 1.00 is another key
		 * there.
		 */
		if (before->kind != after->kind)
			return true;
		if (before->kind == TK_VALUE_TEXT &&
			(before->len != after->len ||
			 (before->len > 0 && memcmp(before->data, after->data, before->len) != 0)))
			return true;
	}
	return false;
}

void
tk_row_old(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	size_t		start = out->len;
	int			i;

	for (i = 0; i < change->relation->ncolumns; i++)
	{
		const TkValue *value = old_value(change, i);

		if (value != NULL)
			append_column(plan, change, i, value, out);
	}
	close_object(out, start);
}

int
tk_row_new(const TkRowPlan *plan, const TkChange *change, bool omit, TkBuffer *out)
{
	size_t		start = out->len;
	int			unavailable = 0;
	int			i;

	for (i = 0; i < change->relation->ncolumns; i++)
	{
		const TkValue *value = new_value(change, i);

		if (value == NULL)
			unavailable++;
		if (value != NULL || !omit)
			append_column(plan, change, i, value, out);
	}
	close_object(out, start);
	return unavailable;
}

TkSpan
tk_row_unavailable(const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	int			i;

	tk_buffer_char(out, '[');
	for (i = 0; i < relation->ncolumns; i++)
	{
		const char *name = relation->columns[i].name;

		if (new_value(change, i) != NULL)
			continue;
		if (out->len > start + 1)
			tk_buffer_char(out, ',');
		tk_json_string(out, name, strlen(name));
	}
	tk_buffer_char(out, ']');
	return tk_span_since(out, start);
}

void
tk_count_event(TkTransaction *transaction, TkRelation *relation)
{
	transaction->total_order++;
	if (relation->order_in != transaction->commit_lsn)
	{
		relation->order_in = transaction->commit_lsn;
		relation->order = 0;
	}
	relation->order++;
}

void
tk_record_init(TkRecord *record, TkSpan key, TkSpan value)
{
	record->key = key;
	record->value = value;
	record->nheaders = 0;
}

void
tk_record_header(TkRecord *record, const char *name, TkSpan value)
{
	TkHeader   *header = &record->headers[record->nheaders++];

	header->name = name;
	header->value = value;
}

void
tk_record_op(TkRecord *record, char op, TkBuffer *out)
{
	size_t		start = out->len;

	tk_buffer_char(out, op);
	tk_record_header(record, "pg.op", tk_span_since(out, start));
}

static void
unsigned_header(TkRecord *record, const char *name, uint64_t n, TkBuffer *out)
{
	size_t		start = out->len;

	tk_unsigned(out, n);
	tk_record_header(record, name, tk_span_since(out, start));
}

void
tk_record_metadata(TkRecord *record, char op, const TkTransaction *transaction, TkBuffer *out)
{
	size_t		start;

	tk_record_op(record, op, out);
	unsigned_header(record, "pg.xid", transaction->xid, out);
	unsigned_header(record, "pg.lsn", transaction->commit_lsn, out);
	unsigned_header(record, "pg.seq", transaction->sequence, out);
	start = out->len;
	tk_decimal(out, transaction->commit_us);
	tk_record_header(record, "pg.ts", tk_span_since(out, start));
}
