/*
 * functions.c
 *	  The SQL entry points.
 *
 * They check the caller first, as the caller; then they write the catalog as
 * the bootstrap superuser with a search_path of their own ("privileged"), so
 * neither a role's lack of rights nor its objects matter there.
 *
 * The procedures commit in between, because a worker must see what they wrote:
 * a request is a committed change of the definition, its answer is the
 * worker's state in the registry.  A procedure that is cancelled while it waits
 * leaves its request in force.
 */
#include "postgres.h"

#include <math.h>
#include <signal.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "commands/publicationcmds.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/slot.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "catalog.h"
#include "pg_compat.h"
#include "registry.h"
#include "route.h"
#include "wal_source.h"

PG_FUNCTION_INFO_V1(tk_create_pipeline);
PG_FUNCTION_INFO_V1(tk_drop_pipeline);
PG_FUNCTION_INFO_V1(tk_pause);
PG_FUNCTION_INFO_V1(tk_resume);
PG_FUNCTION_INFO_V1(tk_alter_pipeline);
PG_FUNCTION_INFO_V1(tk_set_table);
PG_FUNCTION_INFO_V1(tk_checkpoint);
PG_FUNCTION_INFO_V1(tk_wait_for);
PG_FUNCTION_INFO_V1(tk_live);

/* How long create_pipeline and resume wait for Kafka, once the slot is durable. */
#define REACH_KAFKA_MS 10000

static void
utility(const char *command)
{
	int			result = SPI_execute(command, false, 0);

	if (result < 0)
		elog(ERROR, "could not execute \"%s\": %s", command, SPI_result_code_string(result));
}

/* ----------------------------------------------------------------
 * Checks
 * ----------------------------------------------------------------
 */

/* What every function here needs of the server. */
static void
check_server_ready(const char *what)
{
	PreventCommandDuringRecovery(what);
	tk_require_preloaded();
}

static void
check_logical_decoding(void)
{
	if (wal_level < WAL_LEVEL_LOGICAL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transactional_kafka requires wal_level = logical"),
				 errhint("Set wal_level to logical in postgresql.conf and restart the server.")));
	if (max_replication_slots == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transactional_kafka requires max_replication_slots > 0"),
				 errhint("Set max_replication_slots in postgresql.conf and restart the server.")));
}

/* A procedure that commits can't be part of somebody's transaction. */
static void
check_not_atomic(FunctionCallInfo fcinfo, const char *what)
{
	bool		atomic = true;

	if (fcinfo->context != NULL && IsA(fcinfo->context, CallContext))
		atomic = castNode(CallContext, fcinfo->context)->atomic;
	if (atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", what),
				 errdetail("It commits its request and then waits for a background worker, which has to see it."),
				 errhint("CALL it outside of BEGIN … COMMIT and of functions.")));
}

static char *
required_name(FunctionCallInfo fcinfo, int argument, const char *what)
{
	if (PG_ARGISNULL(argument))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
	return pstrdup(NameStr(*PG_GETARG_NAME(argument)));
}

/*
 * A pipeline's name begins topics and transactional ids, so it must be legal
 * there as it stands.  Type name cuts at 63 bytes without a word: a name of
 * that length may be half of one.
 */
static void
check_pipeline_name(const char *name)
{
	if (strlen(name) >= NAMEDATALEN - 1)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("pipeline name \"%s\" is too long", name),
				 errdetail("It can have %d characters at most.", NAMEDATALEN - 2)));
	if (tk_topic_problem(name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("invalid pipeline name \"%s\"", name),
				 errdetail("The names of its topics begin with it: %s.", tk_topic_problem(name)),
				 errhint("Use letters, digits, '.', '_' and '-'.")));
}

/* The definition of a pipeline that the caller may change. ERROR if there is none. */
static TkDefinition *
owned_definition(const char *name)
{
	Privileged	saved;
	TkDefinition *d;

	tk_begin_privileged(&saved);
	d = tk_definition_by_name(name);
	tk_end_privileged(&saved);
	if (d == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name)));
	if (!has_privs_of_role(GetUserId(), d->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of pipeline \"%s\"", name)));
	return d;
}

/* Would the server refuse UPDATE and DELETE of the table, once they are published? */
static bool
lacks_replica_identity(Oid relid)
{
	Relation	rel = RelationIdGetRelation(relid);
	bool		lacks;

	if (!RelationIsValid(rel))
		return false;
	lacks = rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL && !OidIsValid(RelationGetReplicaIndex(rel));
	RelationClose(rel);
	return lacks;
}

/* The table, or one of its partitions: the server checks the one that holds the row. */
static Oid
without_replica_identity(Oid relid)
{
	List	   *all;
	ListCell   *lc;

	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return lacks_replica_identity(relid) ? relid : InvalidOid;
	all = find_all_inheritors(relid, AccessShareLock, NULL);
	foreach(lc, all)
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_RELATION && lacks_replica_identity(lfirst_oid(lc)))
			return lfirst_oid(lc);
	return InvalidOid;
}

static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name_or_temp(get_rel_namespace(relid)), get_rel_name(relid));
}

static void
check_replica_identity(const char *pipeline, Oid relid, int operations)
{
	Oid			lacking;

	if ((operations & (TK_OP_UPDATE | TK_OP_DELETE)) == 0)
		return;
	lacking = without_replica_identity(relid);
	if (OidIsValid(lacking))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s has no replica identity, so pipeline \"%s\" can't publish its updates and deletes",
						qualified_name(lacking), pipeline),
				 errdetail("PostgreSQL would refuse every UPDATE and DELETE of the table."),
				 errhint("Give it a primary key or ALTER TABLE … REPLICA IDENTITY, or set the option operations to insert.")));
}

/* A table that a pipeline can publish, owned by the caller. */
static void
check_table(const char *pipeline, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	const char *problem = NULL;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (form->relkind == RELKIND_FOREIGN_TABLE)
		problem = "It is a foreign table: its changes are not in this server's WAL.";
	else if (form->relkind == RELKIND_VIEW || form->relkind == RELKIND_MATVIEW)
		problem = "It is a view: its changes are not in the WAL; publish the tables beneath.";
	else if (form->relkind != RELKIND_RELATION && form->relkind != RELKIND_PARTITIONED_TABLE)
		problem = "It is not a table.";
	else if (form->relpersistence == RELPERSISTENCE_TEMP)
		problem = "It is a temporary table: its changes are not in the WAL.";
	else if (form->relpersistence == RELPERSISTENCE_UNLOGGED)
		problem = "It is an unlogged table: its changes are not in the WAL.";
	else if (relid < FirstNormalObjectId || form->relnamespace == get_namespace_oid("kafka", false))
		problem = "It is a system table.";
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("pipeline \"%s\" can't publish %s", pipeline, qualified_name(relid)),
				 errdetail("%s", problem)));
	ReleaseSysCache(tuple);

	if (!tk_owns_relation(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(relid));
}

static const TkTableEntry *
entry_of(List *entries, Oid relid)
{
	ListCell   *lc;

	foreach(lc, entries)
		if (((TkTableEntry *) lfirst(lc))->relid == relid)
			return (TkTableEntry *) lfirst(lc);
	return NULL;
}

static int
compare_topics(const ListCell *a, const ListCell *b)
{
	return strcmp(((const char **) lfirst(a))[0], ((const char **) lfirst(b))[0]);
}

/*
 * Every table's topic must be legal, and no two tables may share one unless
 * both name it themselves.
 */
static void
check_topics(const TkDefinition *d)
{
	List	   *tables = tk_published_tables(d);
	List	   *entries = tk_table_entries(d);
	List	   *topics = NIL;	/* of char *[3]: topic, table, "" if given by set_table */
	const char **before = NULL;
	ListCell   *lc;

	foreach(lc, tables)
	{
		TkTableName *table = (TkTableName *) lfirst(lc);
		const TkTableEntry *entry = entry_of(entries, table->relid);
		const char **topic = palloc(3 * sizeof(char *));
		char	   *name = palloc(TK_TOPIC_MAX + 1);
		const char *problem = tk_route_topic(d->name, table->schema, table->table,
											 entry ? entry->settings.topic : NULL, name);

		if (problem != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_NAME),
					 errmsg("table %s of pipeline \"%s\" has no legal topic: %s",
							qualified_name(table->relid), d->name, problem),
					 errhint("Give it one: SELECT kafka.set_table('%s', '%s', '{\"topic\": \"…\"}').",
							 d->name, qualified_name(table->relid))));
		topic[0] = name;
		topic[1] = qualified_name(table->relid);
		tk_check_not_progress_topic(name, psprintf("table %s", topic[1]));
		topic[2] = entry && entry->settings.topic ? "" : NULL;
		topics = lappend(topics, topic);
	}
	list_sort(topics, compare_topics);
	foreach(lc, topics)
	{
		const char **topic = (const char **) lfirst(lc);

		if (before != NULL && strcmp(before[0], topic[0]) == 0 && (before[2] == NULL || topic[2] == NULL))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("tables %s and %s of pipeline \"%s\" would share the topic \"%s\"",
							before[1], topic[1], d->name, topic[0]),
					 before[2] == NULL && topic[2] == NULL ?
					 errhint("Leave one of them out, or give it to a pipeline of its own.") :
					 errhint("Give one of them a topic of its own with kafka.set_table().")));
		before = topic;
	}
}

/* ----------------------------------------------------------------
 * Publications
 * ----------------------------------------------------------------
 */

/* Makes the four publications of a pipeline, empty. */
static void
create_publications(int32 pipeline_id)
{
	for (int i = 0; i < TK_OPERATIONS; i++)
		utility(psprintf("CREATE PUBLICATION %s WITH (publish = '%s', publish_via_partition_root = true)",
						 quote_identifier(tk_owned_publication(pipeline_id, i)), tk_operation_names[i]));
}

static void
drop_publications(int32 pipeline_id)
{
	for (int i = 0; i < TK_OPERATIONS; i++)
		utility(psprintf("DROP PUBLICATION IF EXISTS %s", quote_identifier(tk_owned_publication(pipeline_id, i))));
}

/* Puts each table into the publications of its operations, and out of the others. */
static void
arrange_publications(const TkDefinition *d, int default_operations)
{
	List	   *entries = tk_table_entries(d);
	ListCell   *lc;

	for (int i = 0; i < TK_OPERATIONS; i++)
	{
		char	   *name = tk_owned_publication(d->pipeline_id, i);
		Oid			publication = get_publication_oid(name, false);

		foreach(lc, entries)
		{
			TkTableEntry *entry = (TkTableEntry *) lfirst(lc);
			int			operations = entry->operations ? entry->operations : default_operations;
			bool		wanted = (operations & (1 << i)) != 0;
			bool		member = SearchSysCacheExists2(PUBLICATIONRELMAP, ObjectIdGetDatum(entry->relid),
													   ObjectIdGetDatum(publication));

			/* A table that was dropped keeps its row, for what the WAL still holds of it. */
			if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(entry->relid)))
				continue;
			if (wanted != member)
				utility(psprintf("ALTER PUBLICATION %s %s TABLE %s%s", quote_identifier(name),
								 wanted ? "ADD" : "DROP",
								 get_rel_relkind(entry->relid) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ",
								 qualified_name(entry->relid)));
		}
	}
}

/* A publication of the user's: tables that it would make read-only for UPDATE and DELETE. */
static void
warn_of_publication(const TkDefinition *d)
{
	Publication *publication = GetPublication(d->publication_oid);
	StringInfoData names;
	ListCell   *lc;

	if (!publication->pubactions.pubupdate && !publication->pubactions.pubdelete)
		return;
	initStringInfo(&names);
	foreach(lc, tk_published_tables(d))
	{
		Oid			relid = ((TkTableName *) lfirst(lc))->relid;

		if (OidIsValid(without_replica_identity(relid)))
			appendStringInfo(&names, "%s%s", names.len ? ", " : "", qualified_name(relid));
	}
	if (names.len > 0)
		ereport(WARNING,
				(errmsg("publication \"%s\" has tables without a replica identity: %s", d->publication, names.data),
				 errdetail("PostgreSQL refuses their UPDATEs and DELETEs while it publishes them."),
				 errhint("Give them a primary key or ALTER TABLE … REPLICA IDENTITY.")));
}

/* ----------------------------------------------------------------
 * Requests and answers
 * ----------------------------------------------------------------
 */

static TkPipelineEntry *
publish(const TkDefinition *d, int64 generation, bool wanted, bool gone)
{
	TkPublication p = {0};

	p.database = MyDatabaseId;
	p.catalog = tk_catalog_oid();
	p.pipeline_id = d->pipeline_id;
	p.name = d->name;
	p.owner = d->owner;
	p.server = d->server;
	p.generation = generation;
	p.wanted = wanted;
	p.gone = gone;
	p.state = TK_STATE_STOPPED;
	return tk_registry_publish(&p);
}

/* What the registry says of a pipeline right now. */
typedef struct EntryView
{
	bool		exists;
	bool		running_process;
	bool		wanted;
	bool		slot_ready;
	bool		no_worker;
	Oid			owner;
	pid_t		pid;
	TkPipelineStateKind state;
	char		reason[TK_REASON_MAX];
	char		hint[TK_HINT_MAX];
} EntryView;

static void
look(TkPipelineEntry *entry, Oid database, int32 pipeline_id, EntryView *s)
{
	LWLockAcquire(tk_shared->lock, LW_SHARED);
	s->exists = entry->in_use && entry->database == database && entry->pipeline_id == pipeline_id;
	s->running_process = s->exists && (entry->pid != 0 || entry->launched_at != 0);
	s->wanted = entry->wanted;
	s->slot_ready = entry->slot_ready;
	s->no_worker = entry->no_worker;
	s->owner = entry->owner;
	s->pid = entry->pid;
	s->state = entry->state;
	strlcpy(s->reason, entry->reason, TK_REASON_MAX);
	strlcpy(s->hint, entry->hint, TK_HINT_MAX);
	LWLockRelease(tk_shared->lock);
}

/* Are the pipeline's state and reason this role's business? */
static bool
may_see(Oid owner)
{
	return has_privs_of_role(GetUserId(), owner) || has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

static void
report_sticky(const char *name, const EntryView *s)
{
	/* A reason may hold a record's key. */
	if (!may_see(s->owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pipeline \"%s\" has stopped (%s)", name, tk_state_name(s->state))));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pipeline \"%s\" has stopped (%s): %s", name, tk_state_name(s->state), s->reason),
			 s->hint[0] ? errhint("%s", s->hint) : 0));
}

/* Tells once of each transaction that the worker's slot waits for. */
static void
report_blocker(const char *name, pid_t worker, TransactionId *reported)
{
	static TkStatement statement = {
		"SELECT w.transactionid, h.pid FROM pg_catalog.pg_locks w LEFT JOIN pg_catalog.pg_locks h "
		"ON h.locktype = 'transactionid' AND h.transactionid = w.transactionid AND h.granted "
		"WHERE w.pid = $1 AND w.locktype = 'transactionid' AND NOT w.granted LIMIT 1", 1, {INT4OID}, NULL
	};
	Privileged	saved;
	Datum		value = Int32GetDatum((int32) worker);
	TransactionId xid = InvalidTransactionId;
	char	   *holder = NULL;

	tk_begin_privileged(&saved);
	if (tk_execute(&statement, &value, NULL, false) > 0)
	{
		bool		isnull;

		xid = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
		holder = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	}
	tk_end_privileged(&saved);
	if (!TransactionIdIsValid(xid) || xid == *reported)
		return;
	*reported = xid;
	ereport(NOTICE,
			(errmsg("pipeline \"%s\" waits for transaction %u to end", name, xid),
			 holder ? errdetail("It is running in process %s.", holder) : 0,
			 errhint("A replication slot starts only when all transactions that write now have ended. Cancelling leaves the pipeline defined.")));
}

/* What the catalog says; the registry forgets it when the worker ends. */
static bool
slot_is_durable(const TkDefinition *d)
{
	Privileged	saved;
	TkState		state;

	tk_begin_privileged(&saved);
	tk_state_load(d, &state);
	tk_end_privileged(&saved);
	return state.slot_created;
}

/*
 * Waits until the pipeline's slot is durable, then for a while until it runs.
 * ERROR for a sticky state; WARNING if Kafka isn't reached.
 */
static void
await_start(TkPipelineEntry *entry, const TkDefinition *d)
{
	TransactionId reported = InvalidTransactionId;
	TimestampTz give_up = 0;
	EntryView	s;

	for (;;)
	{
		ConditionVariablePrepareToSleep(&entry->changed);
		look(entry, MyDatabaseId, d->pipeline_id, &s);
		if (!s.exists || !s.wanted)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pipeline \"%s\" was paused or dropped meanwhile", d->name)));
		if (tk_state_is_sticky(s.state))
			report_sticky(d->name, &s);
		if (s.state == TK_STATE_RUNNING)
			break;
		if (s.no_worker && !s.running_process)
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("no free background worker slot for pipeline \"%s\"", d->name),
					 errdetail("The pipeline is defined and starts when there is one."),
					 errhint("Raise max_worker_processes and restart the server.")));
		if (s.state == TK_STATE_RETRYING && !s.slot_ready && give_up == 0)
		{
			/* It failed; was that before its slot was durable? */
			ConditionVariableCancelSleep();
			if (!slot_is_durable(d))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("pipeline \"%s\" could not start: %s", d->name, s.reason),
						 errdetail("The pipeline is defined and goes on trying."),
						 s.hint[0] ? errhint("%s", s.hint) : errhint("See the view kafka.stat_pipelines.")));
			s.slot_ready = true;
		}
		if (s.slot_ready && give_up == 0)
			give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), REACH_KAFKA_MS);
		if (give_up != 0 && (s.state == TK_STATE_RETRYING || GetCurrentTimestamp() >= give_up))
		{
			ereport(WARNING,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("pipeline \"%s\" captures changes, but has not reached Kafka yet", d->name),
					 s.reason[0] ? errdetail("%s", s.reason) : 0,
					 errhint("It goes on trying; see the view kafka.stat_pipelines.")));
			break;
		}
		if (ConditionVariableTimedSleep(&entry->changed, 500, PG_WAIT_EXTENSION))
		{
			ConditionVariableCancelSleep();
			look(entry, MyDatabaseId, d->pipeline_id, &s);
			if (!s.slot_ready && s.pid != 0)
				report_blocker(d->name, s.pid, &reported);
		}
	}
	ConditionVariableCancelSleep();
}

/*
 * Waits until the pipeline has no process.  One that makes its slot waits for
 * other transactions and hears nothing: it is cancelled, and an unfinished slot
 * goes by itself.
 */
static void
await_stop(TkPipelineEntry *entry, int32 pipeline_id)
{
	EntryView	s;
	pid_t		cancelled = 0;

	ConditionVariablePrepareToSleep(&entry->changed);
	for (;;)
	{
		look(entry, MyDatabaseId, pipeline_id, &s);
		if (!s.exists || !s.running_process)
			break;
		if (!s.slot_ready && s.pid != 0 && s.pid != cancelled)
		{
			cancelled = s.pid;
			(void) kill(cancelled, SIGINT);
		}
		(void) ConditionVariableTimedSleep(&entry->changed, 1000, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/*
 * Changes a definition's flags; returns its new generation.  set: an
 * assignment list, constant text.
 */
static int64
update_definition(int32 pipeline_id, const char *set, bool dropping_too)
{
	bool		isnull;
	int			result;

	result = SPI_execute(psprintf("UPDATE kafka.pipeline SET generation = generation + 1, %s "
								  "WHERE pipeline_id = %d %s RETURNING generation", set, pipeline_id,
								  dropping_too ? "" : "AND NOT dropping"), false, 0);
	if (result != SPI_OK_UPDATE_RETURNING || SPI_processed != 1)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the pipeline is being dropped"),
				 errhint("CALL kafka.drop_pipeline() again if that did not end.")));
	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
}

/* ----------------------------------------------------------------
 * Procedures
 * ----------------------------------------------------------------
 */

static Oid
check_kafka_server(const char *name)
{
	ForeignServer *server = GetForeignServerByName(name, false);
	ForeignDataWrapper *wrapper = GetForeignDataWrapper(server->fdwid);

	if (strcmp(wrapper->fdwname, "transactional_kafka") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("server \"%s\" is not a Kafka cluster", name),
				 errdetail("Its foreign-data wrapper is \"%s\".", wrapper->fdwname),
				 errhint("CREATE SERVER … FOREIGN DATA WRAPPER transactional_kafka.")));
	if (tk_server_usage(server->serverid, GetUserId()) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FOREIGN_SERVER, name);
	return server->serverid;
}

/* The tables' OIDs, checked. */
static List *
check_tables(const char *pipeline, ArrayType *array, int operations)
{
	Datum	   *elements;
	bool	   *nulls;
	int			n;
	List	   *result = NIL;

	deconstruct_array(array, REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT, &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		Oid			relid;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("tables of pipeline \"%s\" must not be null", pipeline)));
		relid = DatumGetObjectId(elements[i]);

		/* ALTER and DROP wait until the publications hold it; nobody locks what isn't theirs. */
		check_table(pipeline, relid);
		LockRelationOid(relid, ShareUpdateExclusiveLock);
		check_table(pipeline, relid);
		if (list_member_oid(result, relid))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table %s is named twice for pipeline \"%s\"", qualified_name(relid), pipeline)));
		check_replica_identity(pipeline, relid, operations);
		result = lappend_oid(result, relid);
	}
	return result;
}

/* Writes the rows of a new pipeline and makes its publications. */
static TkDefinition *
insert_definition(const char *name, Oid owner, const char *server_name, Oid server, const char *publication,
				  Oid publication_oid, Jsonb *options, List *tables, int operations)
{
	static TkStatement insert = {
		"INSERT INTO kafka.pipeline (name, owner, server, server_oid, publication, publication_oid, options) "
		"VALUES ($1, $2::regrole, $3, $4, $5, $6, $7) ON CONFLICT (name) DO NOTHING", 7,
		{NAMEOID, OIDOID, NAMEOID, OIDOID, NAMEOID, OIDOID, JSONBOID}, NULL
	};
	static TkStatement insert_table = {
		"INSERT INTO kafka.pipeline_table (pipeline_id, \"table\") VALUES ($1, $2::regclass)", 2, {INT4OID, OIDOID}, NULL
	};
	Datum		values[7];
	NameData	names[3];
	TkDefinition *d;
	ListCell   *lc;

	namestrcpy(&names[0], name);
	namestrcpy(&names[1], server_name);
	values[0] = NameGetDatum(&names[0]);
	values[1] = ObjectIdGetDatum(owner);
	values[2] = NameGetDatum(&names[1]);
	values[3] = ObjectIdGetDatum(server);
	if (publication != NULL)
		namestrcpy(&names[2], publication);
	values[4] = NameGetDatum(&names[2]);
	values[5] = ObjectIdGetDatum(publication_oid);
	values[6] = JsonbPGetDatum(options);
	if (tk_execute(&insert, values, publication ? NULL : "    nn ", false) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("pipeline \"%s\" already exists", name)));
	d = tk_definition_by_name(name);
	foreach(lc, tables)
	{
		values[0] = Int32GetDatum(d->pipeline_id);
		values[1] = ObjectIdGetDatum(lfirst_oid(lc));
		tk_execute(&insert_table, values, NULL, false);
	}
	tk_state_create(d->pipeline_id);
	if (publication == NULL)
	{
		create_publications(d->pipeline_id);
		arrange_publications(d, operations);
	}
	check_topics(d);
	return d;
}

/* SQL: CALL kafka.create_pipeline(pipeline, server, tables, publication, options) */
Datum
tk_create_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *server_name;
	char	   *publication = NULL;
	Oid			publication_oid = InvalidOid;
	Oid			server;
	Jsonb	   *raw_options;
	TkPipelineOptions *options;
	List	   *tables = NIL;
	Privileged	saved;
	TkDefinition *d;
	TkPipelineEntry *entry;
	Oid			owner = GetUserId();

	check_server_ready("create_pipeline()");
	check_logical_decoding();
	check_not_atomic(fcinfo, "create_pipeline()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);

	name = required_name(fcinfo, 0, "pipeline");
	server_name = required_name(fcinfo, 1, "server");
	check_pipeline_name(name);
	if (!superuser() && !has_rolreplication(owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser or replication role to create a pipeline"),
				 errdetail("A pipeline has a replication slot, which makes the server keep WAL.")));
	server = check_kafka_server(server_name);
	raw_options = PG_ARGISNULL(4) ? DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"))) :
		PG_GETARG_JSONB_P(4);
	tk_check_pipeline_options(raw_options, psprintf("pipeline \"%s\"", name));

	/* null stands for the default: it isn't stored */
	raw_options = tk_merge_options(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"))), raw_options);
	options = tk_parse_pipeline_options(raw_options, psprintf("pipeline \"%s\"", name));
	if (options->progress_topic != NULL)
		tk_check_not_progress_topic(options->progress_topic, psprintf("pipeline \"%s\"", name));
	if (!PG_ARGISNULL(2) && !PG_ARGISNULL(3))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pipeline \"%s\" can have tables or a publication, not both", name)));
	if (!PG_ARGISNULL(2))
		tables = check_tables(name, PG_GETARG_ARRAYTYPE_P(2), options->operations);
	if (!PG_ARGISNULL(3))
	{
		publication = pstrdup(NameStr(*PG_GETARG_NAME(3)));
		publication_oid = get_publication_oid(publication, true);
		if (!OidIsValid(publication_oid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("publication \"%s\" of pipeline \"%s\" does not exist", publication, name),
					 errhint("CREATE PUBLICATION first, or give the pipeline a list of tables.")));
		if (!tk_owns_publication(publication_oid, owner))
			aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_PUBLICATION, publication);
	}

	tk_begin_privileged(&saved);
	d = insert_definition(name, owner, server_name, server, publication, publication_oid, raw_options,
						  tables, options->operations);
	if (publication != NULL)
		warn_of_publication(d);
	tk_end_privileged(&saved);

	/* From here on the definition stays, whatever happens. */
	tk_spi_commit();
	entry = publish(d, d->generation, true, false);
	if (entry != NULL)
		await_start(entry, d);
	SPI_finish();
	PG_RETURN_VOID();
}

/* SQL: CALL kafka.drop_pipeline(pipeline) */
Datum
tk_drop_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *slot;
	Privileged	saved;
	TkDefinition *d;
	TkPipelineEntry *entry;
	int64		generation;

	check_server_ready("drop_pipeline()");
	check_not_atomic(fcinfo, "drop_pipeline()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = required_name(fcinfo, 0, "pipeline");
	d = owned_definition(name);
	slot = tk_slot_name(MyDatabaseId, d->pipeline_id);

	/* A crash after this leaves a definition that nobody starts; the same call then ends the work. */
	tk_begin_privileged(&saved);
	generation = update_definition(d->pipeline_id, "dropping = true, enabled = false", true);
	tk_end_privileged(&saved);
	tk_spi_commit();

	entry = publish(d, generation, false, false);
	if (entry != NULL)
		await_stop(entry, d->pipeline_id);

	/* The slot goes first: rows without a slot can be dropped again, a slot without rows would keep WAL. */
	tk_slot_drop(slot);
	tk_begin_privileged(&saved);
	if (d->publication == NULL)
		drop_publications(d->pipeline_id);
	utility(psprintf("DELETE FROM kafka.checkpoint WHERE pipeline_id = %d", d->pipeline_id));
	utility(psprintf("DELETE FROM kafka.pipeline_state WHERE pipeline_id = %d", d->pipeline_id));
	utility(psprintf("DELETE FROM kafka.pipeline WHERE pipeline_id = %d", d->pipeline_id));
	tk_end_privileged(&saved);
	tk_spi_commit();
	(void) publish(d, generation, false, true);
	SPI_finish();
	PG_RETURN_VOID();
}

/* SQL: CALL kafka.pause(pipeline) */
Datum
tk_pause(PG_FUNCTION_ARGS)
{
	char	   *name;
	Privileged	saved;
	TkDefinition *d;
	TkPipelineEntry *entry;
	int64		generation;

	check_server_ready("pause()");
	check_not_atomic(fcinfo, "pause()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = required_name(fcinfo, 0, "pipeline");
	d = owned_definition(name);
	if (!d->enabled)
		ereport(NOTICE, (errmsg("pipeline \"%s\" is paused already", name)));

	tk_begin_privileged(&saved);
	generation = update_definition(d->pipeline_id, "enabled = false", false);
	tk_end_privileged(&saved);
	tk_spi_commit();
	entry = publish(d, generation, false, false);
	if (entry != NULL)
		await_stop(entry, d->pipeline_id);
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * A definition that was restored or cloned becomes a pipeline of this
 * database.  OIDs in it may be those of another one: names count.
 */
static TkDefinition *
adopt_definition(const TkDefinition *d)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline SET server_oid = $2, publication_oid = $3 WHERE pipeline_id = $1",
		3, {INT4OID, OIDOID, OIDOID}, NULL
	};
	Oid			server = check_kafka_server(d->server_name);
	Oid			publication = d->publication ? get_publication_oid(d->publication, false) : InvalidOid;
	Privileged	saved;
	Datum		values[3];
	TkDefinition *adopted;

	if (OidIsValid(publication) && !tk_owns_publication(publication, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_PUBLICATION, d->publication);
	tk_begin_privileged(&saved);
	values[0] = Int32GetDatum(d->pipeline_id);
	values[1] = ObjectIdGetDatum(server);
	values[2] = ObjectIdGetDatum(publication);
	tk_execute(&statement, values, NULL, false);
	tk_state_create(d->pipeline_id);
	adopted = tk_definition_by_id(d->pipeline_id);
	tk_end_privileged(&saved);
	return adopted;
}

/* SQL: CALL kafka.resume(pipeline) */
Datum
tk_resume(PG_FUNCTION_ARGS)
{
	char	   *name;
	Privileged	saved;
	TkDefinition *d;
	TkState		state;
	TkPipelineEntry *entry;
	int64		generation;

	check_server_ready("resume()");
	check_logical_decoding();
	check_not_atomic(fcinfo, "resume()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = required_name(fcinfo, 0, "pipeline");
	d = owned_definition(name);

	/* The update locks the row: of two that resume a clone, one makes the state. */
	tk_begin_privileged(&saved);
	generation = update_definition(d->pipeline_id, "enabled = true, resumes = resumes + 1", false);
	tk_state_load(d, &state);
	tk_end_privileged(&saved);
	if (!state.exists)
		d = adopt_definition(d);
	tk_spi_commit();
	entry = publish(d, generation, true, false);
	if (entry != NULL)
		await_start(entry, d);
	SPI_finish();
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * Functions
 * ----------------------------------------------------------------
 */

/* The definition, its row locked against a second change; the caller may change it. */
static TkDefinition *
locked_definition(const char *name)
{
	Privileged	saved;
	TkDefinition *d = owned_definition(name);

	tk_begin_privileged(&saved);
	utility(psprintf("SELECT FROM kafka.pipeline WHERE pipeline_id = %d FOR NO KEY UPDATE", d->pipeline_id));
	d = tk_definition_by_name(name);
	tk_end_privileged(&saved);
	if (d == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name)));
	return d;
}

static void
check_progress_topic_unchanged(const TkPipelineOptions *before, const TkPipelineOptions *after, const char *name)
{
	const char *a = before->progress_topic ? before->progress_topic : "";
	const char *b = after->progress_topic ? after->progress_topic : "";

	if (strcmp(a, b) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the progress topic of pipeline \"%s\" can't be changed", name),
				 errdetail("It holds the pipeline's position.")));
}

/* SQL: kafka.alter_pipeline(pipeline name, options jsonb) → void */
Datum
tk_alter_pipeline(PG_FUNCTION_ARGS)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline SET options = $2, generation = generation + 1 WHERE pipeline_id = $1", 2, {INT4OID, JSONBOID}, NULL
	};
	char	   *name;
	char	   *what;
	TkDefinition *d;
	TkPipelineOptions *before;
	TkPipelineOptions *after;
	Jsonb	   *merged;
	Privileged	saved;
	Datum		values[2];
	ListCell   *lc;

	check_server_ready("alter_pipeline()");
	PreventCommandIfReadOnly("alter_pipeline()");
	SPI_connect();
	name = required_name(fcinfo, 0, "pipeline");
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("options must not be null")));
	d = locked_definition(name);
	what = psprintf("pipeline \"%s\"", name);

	/* Names are checked in the change too: null for an unknown one is a slip as well. */
	tk_check_pipeline_options(PG_GETARG_JSONB_P(1), what);
	merged = tk_merge_options(d->raw_options, PG_GETARG_JSONB_P(1));
	before = tk_parse_pipeline_options(d->raw_options, what);
	after = tk_parse_pipeline_options(merged, what);
	check_progress_topic_unchanged(before, after, name);

	tk_begin_privileged(&saved);
	values[0] = Int32GetDatum(d->pipeline_id);
	values[1] = JsonbPGetDatum(merged);
	tk_execute(&statement, values, NULL, false);
	if (d->publication == NULL)
	{
		foreach(lc, tk_table_entries(d))
		{
			TkTableEntry *entry = (TkTableEntry *) lfirst(lc);

			check_replica_identity(name, entry->relid, entry->operations ? entry->operations : after->operations);
		}
		arrange_publications(d, after->operations);
	}
	tk_end_privileged(&saved);
	tk_request_scout_at_commit();
	SPI_finish();
	PG_RETURN_VOID();
}

/* The chosen key columns must exist and be logged in every old row. */
static void
check_key(const TkDefinition *d, Oid relid, List *keys, int operations)
{
	Relation	rel = table_open(relid, AccessShareLock);
	bool		old_rows = (operations & (TK_OP_UPDATE | TK_OP_DELETE)) != 0;
	Bitmapset  *identity = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY);
	ListCell   *lc;

	foreach(lc, keys)
	{
		char	   *name = (char *) lfirst(lc);
		AttrNumber	attnum = get_attnum(relid, name);

		for (ListCell *before = list_head(keys); before != lc; before = lnext(keys, before))
			if (strcmp(name, (char *) lfirst(before)) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_DUPLICATE_COLUMN),
						 errmsg("column \"%s\" is named twice in the key of table %s", name, qualified_name(relid))));

		if (attnum <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of table %s does not exist", name, qualified_name(relid)),
					 errdetail("It was to be part of the key in pipeline \"%s\".", d->name)));
		if (old_rows && rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL &&
			!bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, identity))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("key column \"%s\" of table %s is not in its replica identity", name, qualified_name(relid)),
					 errdetail("PostgreSQL doesn't log it for a DELETE, so the record would have no key."),
					 errhint("Use ALTER TABLE … REPLICA IDENTITY FULL, or USING INDEX with an index that has it.")));
	}
	table_close(rel, AccessShareLock);
}

/* SQL: kafka.set_table(pipeline name, table regclass, options jsonb) → void */
Datum
tk_set_table(PG_FUNCTION_ARGS)
{
	static TkStatement load = {
		"SELECT options FROM kafka.pipeline_table WHERE pipeline_id = $1 AND \"table\" = $2::regclass", 2, {INT4OID, OIDOID}, NULL
	};
	static TkStatement store = {
		"INSERT INTO kafka.pipeline_table (pipeline_id, \"table\", options) VALUES ($1, $2::regclass, $3) "
		"ON CONFLICT (pipeline_id, \"table\") DO UPDATE SET options = EXCLUDED.options", 3, {INT4OID, OIDOID, JSONBOID}, NULL
	};
	char	   *name;
	char	   *what;
	Oid			relid;
	TkDefinition *d;
	TkPipelineOptions *options;
	TkTableOptions *table;
	Jsonb	   *stored = NULL;
	Privileged	saved;
	Datum		values[3];
	bool		member;
	int			operations;
	ListCell   *lc;

	check_server_ready("set_table()");
	PreventCommandIfReadOnly("set_table()");
	SPI_connect();
	name = required_name(fcinfo, 0, "pipeline");
	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table and options must not be null")));
	relid = PG_GETARG_OID(1);
	d = locked_definition(name);
	check_table(name, relid);
	what = psprintf("table %s of pipeline \"%s\"", qualified_name(relid), name);
	(void) tk_parse_table_options(PG_GETARG_JSONB_P(2), what);

	tk_begin_privileged(&saved);
	values[0] = Int32GetDatum(d->pipeline_id);
	values[1] = ObjectIdGetDatum(relid);
	member = tk_execute(&load, values, NULL, false) > 0;
	if (member)
	{
		bool		isnull;

		stored = DatumGetJsonbPCopy(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	}
	else
	{
		foreach(lc, tk_published_tables(d))
			if (((TkTableName *) lfirst(lc))->relid == relid)
				member = true;
		stored = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	}
	if (!member)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table %s is not part of pipeline \"%s\"", qualified_name(relid), name)));

	stored = tk_merge_options(stored, PG_GETARG_JSONB_P(2));
	table = tk_parse_table_options(stored, what);
	options = tk_parse_pipeline_options(d->raw_options, psprintf("pipeline \"%s\"", name));
	operations = table->operations ? table->operations : options->operations;
	check_key(d, relid, table->keys, operations);
	if (d->publication == NULL)
		check_replica_identity(name, relid, operations);
	values[2] = JsonbPGetDatum(stored);
	tk_execute(&store, values, NULL, false);
	(void) update_definition(d->pipeline_id, "enabled = enabled", false);
	if (d->publication == NULL)
		arrange_publications(d, options->operations);
	check_topics(d);
	tk_end_privileged(&saved);
	tk_request_scout_at_commit();
	SPI_finish();
	PG_RETURN_VOID();
}

/* ms of an interval, for a timeout; -1: none */
static int64
timeout_ms(const Interval *interval)
{
	double		ms = interval->time / 1000.0 + (interval->day + (double) interval->month * DAYS_PER_MONTH) * SECS_PER_DAY * 1000;

	/* A year is for ever here, and can be added to a timestamp. */
	return (int64) Max(0, Min(ceil(ms), 365.0 * SECS_PER_DAY * 1000));
}

/* All that has committed on this server, this session's last commit included, is flushed up to here. */
static XLogRecPtr
flushed_now(void)
{
	if (XactLastCommitEnd > tk_flush_position(NULL))
		XLogFlush(XactLastCommitEnd);
	return tk_flush_position(NULL);
}

/* A transaction that has written would wait for itself. */
static void
check_no_xid(const char *what)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run in a transaction that has written", what),
				 errdetail("What it has written reaches Kafka only after its COMMIT."),
				 errhint("COMMIT first.")));
}

/* Waits until everything up to "target" is committed in Kafka; false at the timeout (-1: none). */
static bool
await_covered(TkPipelineEntry *entry, int32 pipeline_id, const char *name, XLogRecPtr target, TimestampTz give_up)
{
	bool		covered = false;

	ConditionVariablePrepareToSleep(&entry->changed);
	for (;;)
	{
		EntryView	s;
		long		ms = 1000;

		look(entry, MyDatabaseId, pipeline_id, &s);
		if (!s.exists)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("pipeline \"%s\" was dropped", name)));
		covered = pg_atomic_read_u64(&entry->covered_lsn) >= target;
		if (covered)
			break;
		if (tk_state_is_sticky(s.state))
			report_sticky(name, &s);
		if (!s.wanted)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pipeline \"%s\" does not run", name),
					 s.reason[0] && may_see(s.owner) ? errdetail("%s", s.reason) : errdetail("It is paused."),
					 errhint("CALL kafka.resume('%s').", name)));
		if (give_up != 0)
		{
			ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), give_up);
			if (ms <= 0)
				break;
		}
		tk_wake_worker(entry);
		(void) ConditionVariableTimedSleep(&entry->changed, Min(ms, 1000), PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return covered;
}

static TkPipelineEntry *
entry_by_name(const char *name, int32 *pipeline_id)
{
	TkPipelineEntry *result = NULL;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (entry->in_use && !entry->gone && entry->database == MyDatabaseId && strcmp(NameStr(entry->name), name) == 0)
		{
			result = entry;
			*pipeline_id = entry->pipeline_id;
		}
	}
	LWLockRelease(tk_shared->lock);
	if (result == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name)));
	return result;
}

/* SQL: kafka.checkpoint(pipeline name, timeout interval) → bigint */
Datum
tk_checkpoint(PG_FUNCTION_ARGS)
{
	char	   *name;
	TkPipelineEntry *entry;
	int32		pipeline_id;
	XLogRecPtr	target;
	uint64		wanted;
	TimestampTz give_up = 0;

	check_server_ready("checkpoint()");
	check_no_xid("checkpoint()");
	name = required_name(fcinfo, 0, "pipeline");
	if (!PG_ARGISNULL(1))
		give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms(PG_GETARG_INTERVAL_P(1)));
	entry = entry_by_name(name, &pipeline_id);
	if (!has_privs_of_role(GetUserId(), entry->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of pipeline \"%s\"", name)));

	target = flushed_now();
	wanted = pg_atomic_read_u64(&entry->wanted_lsn);
	while (wanted < target && !pg_atomic_compare_exchange_u64(&entry->wanted_lsn, &wanted, target))
		 /* another session moved it */ ;
	if (!await_covered(entry, pipeline_id, name, target, give_up))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("checkpoint of pipeline \"%s\" was not committed within the timeout", name),
				 errhint("It goes on; see the view kafka.stat_pipelines.")));
	PG_RETURN_INT64((int64) pg_atomic_read_u64(&entry->checkpoint_id));
}

/* SQL: kafka.wait_for(lsn pg_lsn, pipeline name, timeout interval) → boolean */
Datum
tk_wait_for(PG_FUNCTION_ARGS)
{
	XLogRecPtr	target;
	TimestampTz give_up = 0;

	check_server_ready("wait_for()");
	check_no_xid("wait_for()");
	target = PG_ARGISNULL(0) ? flushed_now() : PG_GETARG_LSN(0);
	if (!PG_ARGISNULL(2))
		give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms(PG_GETARG_INTERVAL_P(2)));

	if (!PG_ARGISNULL(1))
	{
		char	   *name = NameStr(*PG_GETARG_NAME(1));
		int32		pipeline_id;
		TkPipelineEntry *entry = entry_by_name(name, &pipeline_id);

		PG_RETURN_BOOL(await_covered(entry, pipeline_id, name, target, give_up));
	}

	/* All of this database, one after the other. */
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];
		NameData	name;
		int32		pipeline_id;
		bool		mine;

		LWLockAcquire(tk_shared->lock, LW_SHARED);
		mine = entry->in_use && !entry->gone && entry->database == MyDatabaseId;
		name = entry->name;
		pipeline_id = entry->pipeline_id;
		LWLockRelease(tk_shared->lock);
		if (mine && !await_covered(entry, pipeline_id, NameStr(name), target, give_up))
			PG_RETURN_BOOL(false);
	}
	PG_RETURN_BOOL(true);
}

/* SQL: kafka.live() → setof record: the registry's entries of this database that the caller may see */
Datum
tk_live(PG_FUNCTION_ARGS)
{
#define LIVE_COLUMNS 18
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tk_begin_set(fcinfo);
	if (tk_shared == NULL)
		return (Datum) 0;
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *shared = &tk_shared->entries[i];
		Datum		values[LIVE_COLUMNS];
		bool		nulls[LIVE_COLUMNS] = {0};
		TkPipelineEntry copy;
		int			n = 0;

		LWLockAcquire(tk_shared->lock, LW_SHARED);
		memcpy(&copy, shared, sizeof(copy));
		LWLockRelease(tk_shared->lock);
		if (!copy.in_use || copy.gone || copy.database != MyDatabaseId)
			continue;
		if (!may_see(copy.owner))
			continue;

		values[n++] = Int32GetDatum(copy.pipeline_id);
		nulls[n] = copy.pid == 0;
		values[n++] = Int32GetDatum((int32) copy.pid);
		values[n++] = CStringGetTextDatum(tk_state_name(copy.state));
		values[n++] = CStringGetTextDatum(copy.reason);
		values[n++] = CStringGetTextDatum(copy.hint);
		nulls[n] = copy.since == 0;
		values[n++] = TimestampTzGetDatum(copy.since);
		values[n++] = Int32GetDatum(copy.failures);
		values[n++] = LSNGetDatum(pg_atomic_read_u64(&copy.read_lsn));
		values[n++] = LSNGetDatum(pg_atomic_read_u64(&copy.covered_lsn));
		values[n++] = LSNGetDatum(pg_atomic_read_u64(&copy.confirmed_lsn));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.checkpoint_id));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.checkpoints));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.transactions));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.records));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.bytes));
		values[n++] = Int64GetDatum((int64) pg_atomic_read_u64(&copy.rejected));
		nulls[n] = copy.last_commit_at == 0;
		values[n++] = TimestampTzGetDatum(copy.last_commit_at);
		nulls[n] = copy.last_failure_at == 0;
		values[n++] = TimestampTzGetDatum(copy.last_failure_at);
		Assert(n == LIVE_COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
