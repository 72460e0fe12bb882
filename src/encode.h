/*
 * encode.h
 *	  Change → records: the table of functions behind which each format hides.
 *
 * Pure C: no server, no globals, no clock.  All bytes of a change's records
 * are written into one buffer; a record points into it by offset, because the
 * buffer may move while it grows.
 */
#ifndef TK_ENCODE_H
#define TK_ENCODE_H

#include "buffer.h"
#include "change.h"

typedef struct TkSpan
{
	size_t		at;				/* offset in the buffer; TK_NULL_SPAN = Kafka's null */
	size_t		len;
} TkSpan;

#define TK_NULL_AT	((size_t) -1)
#define TK_NULL_SPAN ((TkSpan) {TK_NULL_AT, 0})
#define tk_span_is_null(s) ((s).at == TK_NULL_AT)

typedef struct TkHeader
{
	const char *name;			/* static */
	TkSpan		value;
} TkHeader;

#define TK_MAX_HEADERS	10
#define TK_MAX_RECORDS	3		/* a key change: delete, tombstone, create */

typedef struct TkRecord
{
	TkSpan		key;
	TkSpan		value;
	int			nheaders;
	TkHeader	headers[TK_MAX_HEADERS];
} TkRecord;

typedef enum TkJsonMode
{
	TK_JSON_DEFAULT,			/* debezium envelope: string; plain: inline */
	TK_JSON_STRING,
	TK_JSON_INLINE
} TkJsonMode;

typedef enum TkScalars
{
	TK_SCALARS_READABLE,
	TK_SCALARS_DEBEZIUM			/* as Debezium writes them with its defaults */
} TkScalars;

typedef struct TkEncodeOptions
{
	const char *pipeline;		/* Debezium's topic.prefix, source.name */
	const char *database;
	const char *version;		/* of the extension */
	bool		tombstones;		/* debezium: after each delete */
	bool		metadata_headers;	/* pg.op, pg.xid, pg.lsn, pg.seq, pg.ts */
	bool		transaction_metadata;	/* debezium: fill "transaction" */
	TkJsonMode	json;			/* not inline with schemas */
	TkScalars	scalars;
	bool		schemas;		/* key and value as {"schema":…,"payload":…} of Kafka Connect's JsonConverter */
} TkEncodeOptions;

typedef struct TkEncoder
{
	const char *name;			/* value of the option "envelope" */
	bool		metadata_headers;	/* default of the option of that name */

	/* Precomputes what is the same for every record of the relation.  malloc'd; NULL when out of memory. */
	void	   *(*plan) (const TkEncodeOptions *options, const TkRelation *relation);
	void		(*free_plan) (void *plan);

	/*
	 * Appends the bytes of the change's records to "out" and describes them in "records" (room for
	 * TK_MAX_RECORDS); returns how many, maybe 0.  Counts transaction->sequence (one a record) and
	 * transaction->total_order and relation->order (one an event; Debezium's changed key is two) up.  The caller
	 * looks at out->failed.
	 */
	int			(*encode) (const TkEncodeOptions *options, const void *plan,
						   TkTransaction *transaction, const TkChange *change,
						   TkBuffer *out, TkRecord *records);
} TkEncoder;

extern const TkEncoder tk_encoder_debezium;
extern const TkEncoder tk_encoder_plain;

/* NULL if there is no envelope of that name. */
extern const TkEncoder *tk_encoder_find(const char *name);

/*
 * Debezium's transaction metadata: the BEGIN (end = false) or END record for
 * the topic <pipeline>.transaction.  collections[]: the relations touched, in
 * order of their first change (END only).
 */
extern void tk_encode_transaction(const TkEncodeOptions *options, const TkTransaction *transaction, bool end,
								  TkRelation *const *collections, int ncollections,
								  TkBuffer *out, TkRecord *record);

/*
 * JSON pieces, shared by the formats.  "text" is UTF-8 of "len" bytes.
 * tk_json_value writes a column value of any kind but TK_VALUE_UNCHANGED, in
 * a style of these bits.
 */
#define TK_STYLE_INLINE_JSON	1	/* json and jsonb stand as they are instead of as a string */
#define TK_STYLE_DEBEZIUM		2	/* TK_SCALARS_DEBEZIUM */

extern void tk_json_string(TkBuffer *out, const char *text, size_t len);
extern void tk_json_value(TkBuffer *out, const TkType *type, const TkValue *value, int style);
extern void tk_decimal(TkBuffer *out, int64_t n);
extern void tk_unsigned(TkBuffer *out, uint64_t n);

#endif							/* TK_ENCODE_H */
