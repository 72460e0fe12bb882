/*
 * change.h
 *	  What the WAL says, between pgoutput's messages and the encoders.
 *
 * Plain C, without postgres.h: the encoders and their unit tests include it.
 * change.c (which does know the server) fills these structures.  The bytes of
 * values belong to the decoding message and live until the next one; a
 * TkRelation lives until pgoutput describes that relation anew.
 */
#ifndef TK_CHANGE_H
#define TK_CHANGE_H

#include <stdbool.h>
#include <stdint.h>

/* How a column's text form becomes JSON.  Domains are resolved to their base type. */
typedef enum TkKind
{
	TK_KIND_TEXT,				/* a JSON string of PostgreSQL's text */
	TK_KIND_OTHER,				/* likewise; every type not listed, which Debezium leaves out */
	TK_KIND_NAME,				/* likewise */
	TK_KIND_UUID,				/* likewise, as the next four */
	TK_KIND_XML,
	TK_KIND_TSVECTOR,
	TK_KIND_LTREE,
	TK_KIND_ENUM,				/* see labels */
	TK_KIND_BOOL,				/* 't' | 'f' */
	TK_KIND_SMALLINT,			/* digits are JSON already */
	TK_KIND_INTEGER,
	TK_KIND_BIGINT,
	TK_KIND_OID,
	TK_KIND_REAL,				/* number, or NaN | Infinity | -Infinity */
	TK_KIND_FLOAT,
	TK_KIND_NUMERIC,			/* a string of all digits */
	TK_KIND_MONEY,				/* worker pins lc_monetary = C: '$1,000.00' */
	TK_KIND_BYTEA,				/* worker pins bytea_output = hex: '\x00ff' */
	TK_KIND_JSON,				/* json and jsonb */
	TK_KIND_DATE,				/* DateStyle ISO: '2016-11-04', 'infinity', '0044-03-15 BC' */
	TK_KIND_TIME,
	TK_KIND_TIMETZ,
	TK_KIND_TIMESTAMP,			/* '2016-11-04 11:51:30.123456' */
	TK_KIND_TIMESTAMPTZ,		/* TimeZone UTC: '2016-11-04 11:51:30.123456+00' */
	TK_KIND_INTERVAL,			/* IntervalStyle iso_8601 */
	TK_KIND_BIT,				/* '0101', likewise varbit */
	TK_KIND_VARBIT,
	TK_KIND_POINT,				/* '(1.5,-2)' */
	TK_KIND_BOX,				/* '(1,2),(0,0)' */
	TK_KIND_LSEG,				/* '[(1,2),(0,0)]' */
	TK_KIND_PATH,				/* likewise with any number of points, or '((1,2),(0,0))' if it is closed */
	TK_KIND_POLYGON,			/* '((1,2),(0,0),(3,4))' */
	TK_KIND_LINE,				/* '{1,2,3}' */
	TK_KIND_CIRCLE,				/* '<(1,2),3>' */
	TK_KIND_GEOMETRY,			/* PostGIS: hex digits of its extended well-known binary */
	TK_KIND_GEOGRAPHY,
	TK_KIND_VECTOR,				/* pgvector: '[1,2.5]' */
	TK_KIND_HALFVEC,
	TK_KIND_HSTORE,				/* hstore_out's text: "a"=>"1", "b"=>NULL */
	TK_KIND_ARRAY,				/* array_out's text; see element */
	TK_KIND_COMPOSITE			/* record_out's text; see attributes */
} TkKind;

typedef struct TkType
{
	TkKind		kind;
	uint32_t	oid;			/* of the base type */
	int32_t		typmod;
	char		delimiter;		/* arrays: ',' but for box's ';' */
	struct TkType *element;		/* arrays: itself an array only by way of a domain */
	const char *labels;			/* enums: UTF-8, in order, with commas between; else NULL */
	int			nattributes;	/* composites */
	struct TkAttribute *attributes;
} TkType;

typedef struct TkAttribute
{
	const char *name;			/* UTF-8 */
	TkType		type;
} TkAttribute;

typedef struct TkColumn
{
	const char *name;			/* UTF-8, as the user spelt it */
	TkType		type;
	bool		identity;		/* part of the replica identity: logged in old tuples of kind 'K' */
	bool		not_null;
} TkColumn;

/* Columns of an outbox table, as indexes; type: -1 = not asked for */
typedef struct TkOutbox
{
	bool		routed;			/* false: it is none, its rows are sent as changes */
	int			id;
	int			aggregatetype;
	int			aggregateid;
	int			payload;
	int			type;
} TkOutbox;

typedef struct TkRelation
{
	uint32_t	relid;			/* of the partition root, where there is one */
	const char *schema;			/* UTF-8 */
	const char *table;			/* UTF-8 */
	char		replica_identity;	/* 'd' | 'n' | 'f' | 'i', as in pg_class */
	int			ncolumns;
	TkColumn   *columns;
	int			nkeys;			/* 0: records have a null key */
	const int  *keys;			/* indexes into columns, in the order of the key's index */
	const char *topic;
	void	   *plan;			/* the encoder's, see TkEncoder.plan */
	void	   *route;			/* the pipeline's: long-lived topic handles; NULL: never sent */
	TkOutbox	outbox;
	int			operations;		/* which are sent: bits of the option "operations" */
	uint64_t	order_in;		/* data_collection_order: commit LSN of the transaction it counts for … */
	uint64_t	order;			/* … and the count so far */
} TkRelation;

/* One column of a tuple.  kind as pgoutput sends it. */
#define TK_VALUE_NULL		'n'
#define TK_VALUE_UNCHANGED	'u' /* a TOASTed value that the UPDATE left alone: not in the WAL */
#define TK_VALUE_TEXT		't'

typedef struct TkValue
{
	char		kind;
	uint32_t	len;
	const char *data;			/* UTF-8, not NUL-terminated */
} TkValue;

typedef enum TkOperation
{
	TK_INSERT = 'I',
	TK_UPDATE = 'U',
	TK_DELETE = 'D',
	TK_TRUNCATE = 'T'
} TkOperation;

typedef struct TkChange
{
	TkOperation operation;
	TkRelation *relation;
	char		old_kind;		/* 0: no old tuple; 'K': identity columns only; 'O': the whole row (FULL) */
	const TkValue *old;			/* relation->ncolumns values; meaningless where old_kind is 0 */
	const TkValue *new;			/* INSERT, UPDATE */
	uint64_t	lsn;			/* of the change's WAL record */
} TkChange;

/* The transaction that the change belongs to. */
typedef struct TkTransaction
{
	uint32_t	xid;
	uint64_t	commit_lsn;		/* start of the commit record */
	uint64_t	previous_commit_lsn;	/* end of the commit record of the transaction before; 0 = unknown */
	int64_t		commit_us;		/* commit time, µs since the Unix epoch */
	int64_t		processing_us;	/* when this worker began with it, likewise */
	uint64_t	sequence;		/* records given so far; the first is 1 */
	uint64_t	total_order;	/* events (changes) given so far; the first is 1 */
} TkTransaction;

#endif							/* TK_CHANGE_H */
