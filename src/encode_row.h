/*
 * encode_row.h
 *	  Keys, rows and headers, which the JSON envelopes have in common.
 *
 * For encode_*.c only; the world outside sees encode.h.
 */
#ifndef TK_ENCODE_ROW_H
#define TK_ENCODE_ROW_H

#include "encode.h"

/* A constant piece of JSON in a plan's text */
typedef struct TkPiece
{
	size_t		at;
	size_t		len;
} TkPiece;

/* What is the same for every row of a relation */
typedef struct TkRowPlan
{
	TkBuffer	text;			/* all pieces, the envelope's own ones too */
	TkPiece    *columns;		/* ,"name": or nothing, for a column that is left out */
	TkPiece    *unavailable;	/* what stands for a value that is not in the WAL */
	TkPiece		key_schema;		/* {"schema":…,"payload": or nothing; a brace then ends it */
	int			style;			/* TK_STYLE_*, of the values */
	int			njson;			/* columns whose JSON stands inline … */
	int		   *json;			/* … and which they are */
} TkRowPlan;

/* style: TK_STYLE_INLINE_JSON or 0; the rest is taken from the options. */
extern bool tk_row_plan_init(TkRowPlan *plan, const TkEncodeOptions *options, const TkRelation *relation, int style);
extern void tk_row_plan_free(TkRowPlan *plan);

static inline void
tk_piece(TkBuffer *out, const TkRowPlan *plan, TkPiece piece)
{
	if (piece.len > 0)
		tk_buffer_append(out, plan->text.data + piece.at, piece.len);
}

/* False for a column that is in no record (Debezium has no converter for its type). */
static inline bool
tk_row_has(const TkRowPlan *plan, int column)
{
	return plan->columns[column].len > 0;
}

/* Spans are closed at the buffer's end: span = tk_span_since(out, start). */
static inline TkSpan
tk_span_since(const TkBuffer *out, size_t start)
{
	TkSpan		span = {start, out->len - start};

	return span;
}

/* The key as an object; a null span if the relation has none, or the old tuple holds none of it. */
extern TkSpan tk_row_new_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out);
extern TkSpan tk_row_old_key(const TkRowPlan *plan, const TkChange *change, TkBuffer *out);

/* True for an UPDATE that gave a key column another value. */
extern bool tk_row_key_changed(const TkChange *change);

/* The old tuple as an object: exactly the columns that were logged. */
extern void tk_row_old(const TkRowPlan *plan, const TkChange *change, TkBuffer *out);

/*
 * The new tuple as an object.  A value that is not in the WAL is taken from
 * the old tuple; if it is not there either, a placeholder stands for it, or
 * with "omit" its column is left out.  Returns how many such columns there are.
 */
extern int	tk_row_new(const TkRowPlan *plan, const TkChange *change, bool omit, TkBuffer *out);

/* The names of those columns, as a JSON array. */
extern TkSpan tk_row_unavailable(const TkRowPlan *plan, const TkChange *change, TkBuffer *out);

/*
 * With json inline, the new tuple's columns that hold JSON's null are named in
 * the header pg.json_null: in the row they can't be told from SQL's NULL.
 */
extern void tk_row_json_nulls(const TkRowPlan *plan, const TkChange *change, TkBuffer *out, TkRecord *record);

/* Counts one event of the transaction, and of the relation within it. */
extern void tk_count_event(TkTransaction *transaction, TkRelation *relation);

/*
 * Schemas as Kafka Connect's JsonConverter writes them: {"schema": between
 * open and close, then the payload and a brace.
 */
extern void tk_schema_open(TkBuffer *out);
extern void tk_schema_close(TkBuffer *out);

/* A struct, whose fields are appended between; what is NULL or 0 is left out.  The name is of two parts. */
extern void tk_schema_struct_open(TkBuffer *out);
extern void tk_schema_struct_close(TkBuffer *out, bool optional, const char *name, const char *suffix, int version,
								   const char *field);

/* A field of a struct */
extern void tk_schema_field(TkBuffer *out, const TkType *type, bool optional, int style, const char *field);

extern void tk_record_init(TkRecord *record, TkSpan key, TkSpan value);
extern void tk_record_header(TkRecord *record, const char *name, TkSpan value);
extern void tk_record_op(TkRecord *record, char op, TkBuffer *out);

/* pg.op, pg.xid, pg.lsn, pg.seq, pg.ts; transaction->sequence is this record's number already. */
extern void tk_record_metadata(TkRecord *record, char op, const TkTransaction *transaction, TkBuffer *out);

#endif							/* TK_ENCODE_ROW_H */
