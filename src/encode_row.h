/*
 * encode_row.h
 *	  Keys, rows and headers, which the JSON envelopes have in common.
 *
 * For encode_*.c only; the world outside sees encode.h.
 */
#ifndef TK_ENCODE_ROW_H
#define TK_ENCODE_ROW_H

#include "encode.h"

/* The value that stands for one that is not in the WAL (Debezium's). */
#define TK_UNAVAILABLE_JSON "\"__debezium_unavailable_value\""

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
	TkPiece    *columns;		/* ,"name": */
	bool		inline_json;
} TkRowPlan;

extern bool tk_row_plan_init(TkRowPlan *plan, const TkRelation *relation, bool inline_json);
extern void tk_row_plan_free(TkRowPlan *plan);

static inline void
tk_piece(TkBuffer *out, const TkRowPlan *plan, TkPiece piece)
{
	tk_buffer_append(out, plan->text.data + piece.at, piece.len);
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
 * the old tuple; if it is not there either, it becomes TK_UNAVAILABLE_JSON, or
 * with "omit" its column is left out.  Returns how many such columns there are.
 */
extern int	tk_row_new(const TkRowPlan *plan, const TkChange *change, bool omit, TkBuffer *out);

/* The names of those columns, as a JSON array. */
extern TkSpan tk_row_unavailable(const TkChange *change, TkBuffer *out);

/* Counts one event of the transaction, and of the relation within it. */
extern void tk_count_event(TkTransaction *transaction, TkRelation *relation);

extern void tk_record_init(TkRecord *record, TkSpan key, TkSpan value);
extern void tk_record_header(TkRecord *record, const char *name, TkSpan value);
extern void tk_record_op(TkRecord *record, char op, TkBuffer *out);

/* pg.op, pg.xid, pg.lsn, pg.seq, pg.ts; transaction->sequence is this record's number already. */
extern void tk_record_metadata(TkRecord *record, char op, const TkTransaction *transaction, TkBuffer *out);

#endif							/* TK_ENCODE_ROW_H */
