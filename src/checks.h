/*
 * checks.h
 *	  What a caller may define.  Each ends with an ERROR that says what is wrong,
 *	  or returns.
 */
#ifndef TK_CHECKS_H
#define TK_CHECKS_H

#include "postgres.h"

#include "fmgr.h"

#include "catalog.h"

/* Not a standby, preloaded.  what: as "pause()". */
extern void tk_check_server_ready(const char *what);

/* wal_level, max_replication_slots */
extern void tk_check_logical_decoding(void);

/* Superuser or REPLICATION. */
extern void tk_check_may_have_slot(void);

/* A procedure that commits can't be part of somebody's transaction. */
extern void tk_check_not_atomic(FunctionCallInfo fcinfo, const char *what);

/* An argument of type name that must not be null; palloc'd. */
extern char *tk_required_name(FunctionCallInfo fcinfo, int argument, const char *what);

extern void tk_check_pipeline_name(const char *name);

/* The definition of a pipeline that the caller may change.  Needs SPI. */
extern TkDefinition *tk_owned_definition(const char *name);

/* The OID of a Kafka cluster that the caller may use. */
extern Oid	tk_check_kafka_server(const char *name);

/* A table that a pipeline can publish, owned by the caller. */
extern void tk_check_table(const char *pipeline, Oid relid);

/* Of the table or its partitions: one whose UPDATEs and DELETEs the server would refuse; Invalid: none. */
extern Oid	tk_without_replica_identity(Oid relid);
extern void tk_check_replica_identity(const char *pipeline, Oid relid, int operations);

/* Chosen key columns (char *) must exist, once each, and be logged in every old row. */
extern void tk_check_key(const TkDefinition *d, Oid relid, List *keys, int operations);

/* The table has what the route outbox needs: its columns, and for events' types one more. */
extern void tk_check_outbox(const TkDefinition *d, Oid relid, bool event_type);

/*
 * Every table has a legal topic, and none by chance another's, or one that the
 * pipeline itself writes to.  "object": only for this table, or the tables of this
 * schema; Invalid: for all.  Needs SPI, privileged.
 */
extern void tk_check_topics(const TkDefinition *d, Oid object);

/* The last part of it alone, for changed options of the pipeline. */
extern void tk_check_reserved_topics(const TkDefinition *d);

/* "schema.table", quoted where needed; palloc'd. */
extern char *tk_qualified_name(Oid relid);

#endif							/* TK_CHECKS_H */
