/*
 * catalog.h
 *	  The extension's tables, read and written through SPI.
 */
#ifndef TK_CATALOG_H
#define TK_CATALOG_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"
#include "utils/jsonb.h"

#include "change_reader.h"
#include "kafka_progress.h"
#include "options.h"
#include "registry.h"

/* A definition, as its tables say. */
typedef struct TkDefinition
{
	int32		pipeline_id;
	char	   *name;
	Oid			owner;
	char	   *server_name;
	Oid			server;
	char	   *publication;	/* the user's; NULL: the pipeline's own */
	Oid			publication_oid;
	Jsonb	   *raw_options;
	bool		enabled;
	bool		dropping;
	int64		generation;
	int64		resumes;
	XLogRecPtr	accept_lsn;		/* accept_position() for the start of this many resumes; Invalid: none */
	int64		accept_resumes;
} TkDefinition;

/* What pipeline_state says of it. */
typedef struct TkState
{
	bool		exists;			/* and belongs to this system and database */
	char		uuid[37];
	char	   *progress_topic; /* NULL before the first start */
	bool		slot_created;
	bool		started;
	uint64		instances[2];
	char	   *prefix;			/* NULL: none yet */
	int			pool_size;
	XLogRecPtr	stop_lsn;		/* Invalid: it ran when the server or the worker died */
	int64		accepted_resumes;	/* of the last accept_position() carried out */
	char	   *sticky_state;	/* NULL: none that counts */
	char	   *sticky_reason;
	char	   *sticky_hint;
} TkState;

/*
 * A transaction of the worker around SPI.  Decoding fills catalog caches as of
 * the past; both ends forget them, else a table touched here would be decoded
 * with a newer shape, or used here in an older one.
 */
extern void tk_transaction_begin(void);
extern void tk_transaction_commit(void);

/* A transaction of the worker that uses no catalog cache but as committable.c does. */
extern void tk_write_begin(void);
extern void tk_write_commit(void);

/*
 * A stretch of a user's function that acts as the bootstrap superuser with a
 * search_path of its own.  An error in it needs no care: the end of the
 * transaction restores both.  It must not contain a COMMIT.
 */
typedef struct Privileged
{
	Oid			user;
	int			security_context;
	int			guc_level;
} Privileged;

extern void tk_begin_privileged(Privileged *saved);
extern void tk_end_privileged(const Privileged *saved);

/* SPI with a plan that is kept. nulls as SPI takes them; returns SPI_processed. */
typedef struct TkStatement
{
	const char *sql;
	int			nargs;
	Oid			types[16];
	struct _SPI_plan *plan;		/* made at first use */
} TkStatement;

extern uint64 tk_execute(TkStatement *statement, Datum *values, const char *nulls, bool read_only);

/* Inside a transaction with SPI. NULL if there is no such pipeline. Memory: the current context. */
extern TkDefinition *tk_definition_by_name(const char *name);
extern TkDefinition *tk_definition_by_id(int32 pipeline_id);

extern void tk_state_load(const TkDefinition *definition, TkState *state);

/* Makes the state row of a new (or newly adopted) pipeline, with a fresh uuid. */
extern void tk_state_create(int32 pipeline_id);

/* False: the row is gone. */
extern bool tk_state_slot_created(int32 pipeline_id, const char *progress_topic);

/* Kafka may now hold records of these two instances, under these transactional ids. */
extern void tk_state_instances(int32 pipeline_id, const uint64 instances[2], const char *prefix, int pool_size);

/* It runs; an accept_position() of this many resumes has been carried out. */
extern void tk_state_started(int32 pipeline_id, int64 accepted_resumes);

/* Rows of tables that were dropped before a position that is in Kafka. */
extern void tk_forget_dropped_tables(int32 pipeline_id, XLogRecPtr position);
extern void tk_state_stop(int32 pipeline_id, XLogRecPtr position);	/* Invalid: it runs */
extern void tk_state_sticky(const TkDefinition *definition, const char *state, const char *reason, const char *hint);

/* A copy of text of the database in UTF-8, which Kafka gets. */
extern char *tk_to_utf8(const char *text);

/* "tk_<database>_<pipeline>" */
extern char *tk_slot_name(Oid database, int32 pipeline_id);

/* transactional_id_prefix, where the option is not set. */
extern char *tk_default_prefix(void);

/* The pipeline's publications, quoted and comma-separated, as pgoutput takes them. */
extern char *tk_publication_list(const TkDefinition *definition);

/* Name of the owned publication of an operation (index into tk_operation_names). */
extern char *tk_owned_publication(int32 pipeline_id, int operation);

/* Options of the server and of the owner's user mapping, in one array; palloc'd. */
extern TkKafkaConf *tk_server_conf(const TkDefinition *definition);

/* Settings of the tables that have any: a List of TkTableEntry. */
typedef struct TkTableEntry
{
	Oid			relid;
	TkTableSettings settings;	/* keys in UTF-8 */
	int			operations;		/* 0: the pipeline's */
	bool		outbox;			/* its rows are records themselves */
	bool		event_type_header;
} TkTableEntry;

extern List *tk_table_entries(const TkDefinition *definition);

/* The tables that the pipeline publishes now: a List of TkTableName (names in UTF-8). */
typedef struct TkTableName
{
	Oid			relid;
	char	   *schema;
	char	   *table;
} TkTableName;

extern List *tk_published_tables(const TkDefinition *definition);

/* The OID of kafka.pipeline, which tells one CREATE EXTENSION from the next; Invalid without. */
extern Oid	tk_catalog_oid(void);

/*
 * A session, before it takes what isn't in the registry for not being there:
 * waits until all pipelines of this database are.  Right after the server's
 * start the scouts are still on their way.
 */
extern void tk_await_scout(void);

/*
 * A scout holds this from before it reads the catalog until it has published
 * what it read.  Who takes it exclusively after a commit knows that nothing
 * older will be published any more.  Held until the end of the transaction.
 */
extern void tk_lock_scouting(bool exclusive);

/* What the registry is to know of a definition, but for whether it is wanted.  slot_ready: its slot is usable. */
extern void tk_describe_for_registry(const TkDefinition *definition, TkPublication *publication);

/* Everything a scout does in its database. */
extern void tk_catalog_scout(void);

#endif							/* TK_CATALOG_H */
