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
#include "encode_value.h"

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

/* The key's columns as a struct <topic>.Key */
static void
append_key_schema(TkRowPlan *plan, const TkRelation *relation)
{
	TkBuffer   *text = &plan->text;
	size_t		start = text->len;
	int			i;

	tk_schema_open(text);
	tk_schema_struct_open(text);
	for (i = 0; i < relation->nkeys; i++)
	{
		const TkColumn *column = &relation->columns[relation->keys[i]];

		if (tk_row_has(plan, relation->keys[i]))
			tk_schema_field(text, &column->type, !column->not_null, plan->style, column->name);
	}
	tk_schema_struct_close(text, false, relation->topic, ".Key", 0, NULL);
	tk_schema_close(text);
	plan->key_schema.at = start;
	plan->key_schema.len = text->len - start;
}

static TkPiece
cut_piece(const TkBuffer *text, size_t start)
{
	TkPiece		piece = {start, text->len - start};

	return piece;
}

static bool
is_key(const TkRelation *relation, int column)
{
	int			i;

	for (i = 0; i < relation->nkeys; i++)
		if (relation->keys[i] == column)
			return true;
	return false;
}

bool
tk_row_plan_init(TkRowPlan *plan, const TkEncodeOptions *options, const TkRelation *relation, int style)
{
	TkBuffer   *text = &plan->text;
	int			i;

	memset(plan, 0, sizeof(*plan));
	plan->style = style | (options->scalars == TK_SCALARS_DEBEZIUM ? TK_STYLE_DEBEZIUM : 0);

	/*
	 * One more, because a table may have no columns and malloc(0) may return NULL.
	 */
	plan->columns = malloc(2 * sizeof(TkPiece) * ((size_t) relation->ncolumns + 1));
	plan->json = malloc(sizeof(int) * ((size_t) relation->ncolumns + 1));
	if (plan->columns == NULL || plan->json == NULL)
		return false;
	plan->unavailable = plan->columns + relation->ncolumns;
	for (i = 0; i < relation->ncolumns; i++)
	{
		const TkColumn *column = &relation->columns[i];
		size_t		start = text->len;

		/* What Debezium leaves out stays in a key: without it rows would have the same. */
		if ((plan->style & TK_STYLE_DEBEZIUM) == 0 || tk_debezium_has(&column->type) || is_key(relation, i))
		{
			tk_buffer_char(text, ',');
			tk_json_text(text, column->name, strlen(column->name), plan->style);
			tk_buffer_char(text, ':');
		}
		plan->columns[i] = cut_piece(text, start);
		start = text->len;
		tk_append_unavailable(text, &column->type, plan->style);
		plan->unavailable[i] = cut_piece(text, start);
		if ((style & TK_STYLE_INLINE_JSON) != 0 && column->type.kind == TK_KIND_JSON)
			plan->json[plan->njson++] = i;
	}
	if (options->schemas && relation->nkeys > 0)
		append_key_schema(plan, relation);
	return !text->failed;
}

void
tk_row_plan_free(TkRowPlan *plan)
{
	tk_buffer_free(&plan->text);
	free(plan->columns);
	free(plan->json);
	plan->columns = NULL;
	plan->json = NULL;
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
	if (!tk_row_has(plan, column))
		return;
	tk_piece(out, plan, plan->columns[column]);
	if (value != NULL)
		tk_json_value(out, &change->relation->columns[column].type, value, plan->style);
	else
		tk_piece(out, plan, plan->unavailable[column]);
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

/* Ends the key that was begun at "start" and whose columns were appended from "object" on. */
static TkSpan
close_key(const TkRowPlan *plan, TkBuffer *out, size_t start, size_t object)
{
	close_object(out, object);
	if (plan->key_schema.len > 0)
		tk_buffer_char(out, '}');
	return tk_span_since(out, start);
}

TkSpan
tk_row_new_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	size_t		object;
	int			i;

	if (relation->nkeys == 0)
		return TK_NULL_SPAN;

	/*
	 * A key column is part of the replica identity, so it is unavailable only when it is unchanged, and a server
	 * older than the fix that logs such values in the old tuple wrote the record: say so, as the row does.
	 */
	tk_piece(out, plan, plan->key_schema);
	object = out->len;
	for (i = 0; i < relation->nkeys; i++)
		append_column(plan, change, relation->keys[i], new_value(change, relation->keys[i]), out);
	return close_key(plan, out, start, object);
}

TkSpan
tk_row_old_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	size_t		object;
	bool		logged = false;
	int			i;

	tk_piece(out, plan, plan->key_schema);
	object = out->len;
	for (i = 0; i < relation->nkeys; i++)
	{
		const TkValue *value = old_value(change, relation->keys[i]);

		if (value == NULL)
			continue;
		append_column(plan, change, relation->keys[i], value, out);
		logged = true;
	}
	if (!logged)
	{
		out->len = start;
		return TK_NULL_SPAN;
	}
	return close_key(plan, out, start, object);
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

		if (value == NULL && tk_row_has(plan, i))
			unavailable++;
		if (value != NULL || !omit)
			append_column(plan, change, i, value, out);
	}
	close_object(out, start);
	return unavailable;
}

TkSpan
tk_row_unavailable(const TkRowPlan *plan, const TkChange *change, TkBuffer *out)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	int			i;

	tk_buffer_char(out, '[');
	for (i = 0; i < relation->ncolumns; i++)
	{
		const char *name = relation->columns[i].name;

		if (new_value(change, i) != NULL || !tk_row_has(plan, i))
			continue;
		if (out->len > start + 1)
			tk_buffer_char(out, ',');
		tk_json_string(out, name, strlen(name));
	}
	tk_buffer_char(out, ']');
	return tk_span_since(out, start);
}

/* True for JSON's null, which json keeps with the blanks around it. */
static bool
is_json_null(const TkValue *value)
{
	const char *p = value->data;
	const char *end;

	if (value->kind != TK_VALUE_TEXT || value->len < 4 || *p == '{' || *p == '[' || *p == '"')
		return false;
	end = p + value->len;
	while (p < end && memchr(" \t\n\r", *p, 4) != NULL)
		p++;
	while (end > p && memchr(" \t\n\r", end[-1], 4) != NULL)
		end--;
	return end - p == 4 && memcmp(p, "null", 4) == 0;
}

void
tk_row_json_nulls(const TkRowPlan *plan, const TkChange *change, TkBuffer *out, TkRecord *record)
{
	const TkRelation *relation = change->relation;
	size_t		start = out->len;
	int			i;

	for (i = 0; i < plan->njson; i++)
	{
		const char *name = relation->columns[plan->json[i]].name;
		const TkValue *value = new_value(change, plan->json[i]);

		if (value == NULL || !is_json_null(value))
			continue;
		tk_buffer_char(out, out->len > start ? ',' : '[');
		tk_json_string(out, name, strlen(name));
	}
	if (out->len == start)
		return;
	tk_buffer_char(out, ']');
	tk_record_header(record, "pg.json_null", tk_span_since(out, start));
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
