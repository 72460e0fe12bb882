/*
 * options.h
 *	  Options of pipelines and tables (jsonb), of servers and user mappings.
 */
#ifndef TK_OPTIONS_H
#define TK_OPTIONS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "utils/jsonb.h"

#include "encode.h"
#include "kafka_progress.h"

/* Bits of the option "operations" */
#define TK_OP_INSERT	1
#define TK_OP_UPDATE	2
#define TK_OP_DELETE	4
#define TK_OP_TRUNCATE	8
#define TK_OPERATIONS	4		/* how many there are */

/* "insert" … for bit 1 << i; also pgoutput's publish flags. */
extern const char *const tk_operation_names[TK_OPERATIONS];

/* Each has a producer of its own, with its threads. */
#define TK_MAX_CONCURRENT_CHECKPOINTS 7

/* What becomes of a record that is larger than Kafka takes */
typedef enum TkOversize
{
	TK_OVERSIZE_FAIL,			/* the pipeline stops */
	TK_OVERSIZE_DEAD_LETTER		/* another topic gets a description of it */
} TkOversize;

typedef struct TkPipelineOptions
{
	int			checkpoint_interval;	/* ms */
	int			checkpoint_timeout; /* ms */
	int			checkpoint_max_records;
	int64		checkpoint_max_bytes;
	int			max_concurrent_checkpoints;
	int			tolerable_failed_checkpoints;	/* in a row; -1: any number */
	int			retained_checkpoints;
	char	   *transactional_id_prefix;	/* NULL: the default */
	int			transaction_timeout;	/* ms */
	char	   *progress_topic; /* NULL: the default */
	const TkEncoder *envelope;
	bool		tombstones;
	int			operations;		/* TK_OP_* */
	TkJsonMode	json;
	TkScalars	scalars;
	bool		schemas;
	bool		metadata_headers;
	bool		transaction_metadata;
	TkOversize	oversize;
	bool		create_topics;
	int			topic_partitions;	/* -1: the broker's default */
	int			topic_replication_factor;	/* -1: likewise */
	int			ntopic_configs;
	TkKafkaProperty *topic_configs;
} TkPipelineOptions;

typedef enum TkTableRoute
{
	TK_ROUTE_CHANGES,			/* its changes go to its topic */
	TK_ROUTE_OUTBOX				/* its rows are records themselves */
} TkTableRoute;

typedef struct TkTableOptions
{
	char	   *topic;			/* NULL: <pipeline>.<schema>.<table> */
	List	   *keys;			/* of char *, database encoding; NIL: the default key */
	int			operations;		/* 0: the pipeline's */
	TkTableRoute route;
	bool		event_type_header;	/* outbox: send its column type as a header */
} TkTableOptions;

/*
 * Parse and check options.  ERROR for an unknown name (hint: the nearest), a
 * wrong type, a value out of range.  "what" names the owner in messages, as
 * 'pipeline "shop"'.  The result is palloc'd.
 */
extern TkPipelineOptions *tk_parse_pipeline_options(Jsonb *options, const char *what);
extern void tk_check_pipeline_options(Jsonb *options, const char *what);
extern TkTableOptions *tk_parse_table_options(Jsonb *options, const char *what);

/* Which operations of the table are sent, where these are the pipeline's. */
extern int	tk_table_operations(const TkTableOptions *table, int pipeline_operations);

/* Do they fit together?  For a table's whole options; ERROR if not. */
extern void tk_check_table_options(const TkTableOptions *table, const char *what);

/* Merges a change into stored options: null removes a name. */
extern Jsonb *tk_merge_options(Jsonb *stored, Jsonb *change);

#endif							/* TK_OPTIONS_H */
