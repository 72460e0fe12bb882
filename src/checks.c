/*
 * checks.c
 *	  What a caller may define: checked as the caller, before anything is written.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/slot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "checks.h"
#include "encode_outbox.h"
#include "pg_compat.h"
#include "registry.h"
#include "route.h"

/* What every function here needs of the server. */
void
tk_check_server_ready(const char *what)
{
	PreventCommandDuringRecovery(what);
	tk_require_preloaded();
}

void
tk_check_logical_decoding(void)
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

void
tk_check_may_have_slot(void)
{
	if (!superuser() && !has_rolreplication(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser or replication role to create a pipeline"),
				 errdetail("A pipeline has a replication slot, which makes the server keep WAL.")));
}

/* A procedure that commits can't be part of somebody's transaction. */
void
tk_check_not_atomic(FunctionCallInfo fcinfo, const char *what)
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

char *
tk_required_name(FunctionCallInfo fcinfo, int argument, const char *what)
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
void
tk_check_pipeline_name(const char *name)
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
TkDefinition *
tk_owned_definition(const char *name)
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
Oid
tk_without_replica_identity(Oid relid)
{
	List	   *all;
	ListCell   *lc;

	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return lacks_replica_identity(relid) ? relid : InvalidOid;
	all = find_all_inheritors(relid, AccessShareLock, NULL);
	foreach(lc, all)
	{
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_RELATION && lacks_replica_identity(lfirst_oid(lc)))
			return lfirst_oid(lc);
	}
	return InvalidOid;
}

char *
tk_qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name_or_temp(get_rel_namespace(relid)), get_rel_name(relid));
}

void
tk_check_replica_identity(const char *pipeline, Oid relid, int operations)
{
	Oid			lacking;

	if ((operations & (TK_OP_UPDATE | TK_OP_DELETE)) == 0)
		return;
	lacking = tk_without_replica_identity(relid);
	if (OidIsValid(lacking))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s has no replica identity, so pipeline \"%s\" can't publish its updates and deletes",
						tk_qualified_name(lacking), pipeline),
				 errdetail("PostgreSQL would refuse every UPDATE and DELETE of the table."),
				 errhint("Give it a primary key or ALTER TABLE … REPLICA IDENTITY, or set the option operations to insert.")));
}

/* A table that a pipeline can publish, owned by the caller. */
void
tk_check_table(const char *pipeline, Oid relid)
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
				 errmsg("pipeline \"%s\" can't publish %s", pipeline, tk_qualified_name(relid)),
				 errdetail("%s", problem)));
	ReleaseSysCache(tuple);

	if (!tk_owns_relation(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE, get_rel_name(relid));
}

Oid
tk_check_kafka_server(const char *name)
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

static const TkTableEntry *
entry_of(List *entries, Oid relid)
{
	ListCell   *lc;

	foreach(lc, entries)
	{
		if (((TkTableEntry *) lfirst(lc))->relid == relid)
			return (TkTableEntry *) lfirst(lc);
	}
	return NULL;
}

static int
compare_topics(const ListCell *a, const ListCell *b)
{
	return strcmp(((const char **) lfirst(a))[0], ((const char **) lfirst(b))[0]);
}

/* What the pipeline writes itself is no table's. */
static void
check_not_reserved(const TkDefinition *d, const TkPipelineOptions *options, const char *table, const char *topic)
{
	const char *what = NULL;

	tk_check_not_progress_topic(topic, psprintf("table %s", table));
	if (options->transaction_metadata && strcmp(topic, psprintf("%s.transaction", d->name)) == 0)
		what = "transaction_metadata";
	else if (options->oversize == TK_OVERSIZE_DEAD_LETTER && strcmp(topic, psprintf("%s.dead_letter", d->name)) == 0)
		what = "oversize => dead_letter";
	if (what != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("table %s of pipeline \"%s\" can't have the topic \"%s\"", table, d->name, topic),
				 errdetail("With %s the pipeline writes to it.", what),
				 errhint("Give the table another topic with kafka.set_table().")));
}

void
tk_check_reserved_topics(const TkDefinition *d)
{
	TkPipelineOptions *options = tk_parse_pipeline_options(d->raw_options, psprintf("pipeline \"%s\"", d->name));
	ListCell   *lc;

	/* By its name no table comes to such a topic. */
	foreach(lc, tk_table_entries(d))
	{
		TkTableEntry *entry = (TkTableEntry *) lfirst(lc);

		if (entry->settings.topic != NULL && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(entry->relid)))
			check_not_reserved(d, options, tk_qualified_name(entry->relid), entry->settings.topic);
	}
}

/*
 * Every table's topic must be legal, and no two tables may share one unless
 * both name it themselves.
 */
void
tk_check_topics(const TkDefinition *d, Oid object)
{
	TkPipelineOptions *options = tk_parse_pipeline_options(d->raw_options, psprintf("pipeline \"%s\"", d->name));
	List	   *tables = tk_published_tables(d);
	List	   *entries = tk_table_entries(d);
	List	   *topics = NIL;	/* of char *[4]: topic, table, "" if given by set_table, "" if it is asked about */
	ListCell   *lc;

	foreach(lc, tables)
	{
		TkTableName *table = (TkTableName *) lfirst(lc);
		const TkTableEntry *entry = entry_of(entries, table->relid);
		const char **topic = palloc(4 * sizeof(char *));
		bool		meant = !OidIsValid(object) || table->relid == object || get_rel_namespace(table->relid) == object;
		char	   *name = palloc(TK_TOPIC_MAX + 1);
		const char *problem = entry && entry->outbox ? NULL : tk_route_topic(d->name, table->schema, table->table,
																			 entry ? entry->settings.topic : NULL, name);

		/* An outbox has no topic of its own. */
		if ((entry != NULL && entry->outbox) || (problem != NULL && !meant))
			continue;
		if (problem != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_NAME),
					 errmsg("table %s of pipeline \"%s\" has no legal topic: %s",
							tk_qualified_name(table->relid), d->name, problem),
					 errhint("Give it one: SELECT kafka.set_table('%s', '%s', '{\"topic\": \"…\"}').",
							 d->name, tk_qualified_name(table->relid))));
		topic[0] = name;
		topic[1] = tk_qualified_name(table->relid);
		if (meant)
			check_not_reserved(d, options, topic[1], name);
		topic[2] = entry && entry->settings.topic ? "" : NULL;
		topic[3] = meant ? "" : NULL;
		topics = lappend(topics, topic);
	}
	list_sort(topics, compare_topics);
	foreach(lc, topics)
	{
		const char **topic = (const char **) lfirst(lc);

		for (ListCell *other = lnext(topics, lc); other != NULL; other = lnext(topics, other))
		{
			const char **next = (const char **) lfirst(other);

			if (strcmp(topic[0], next[0]) != 0)
				break;
			if ((topic[2] != NULL && next[2] != NULL) || (topic[3] == NULL && next[3] == NULL))
				continue;
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("tables %s and %s of pipeline \"%s\" would share the topic \"%s\"",
							topic[1], next[1], d->name, topic[0]),
					 topic[2] == NULL && next[2] == NULL ?
					 errhint("Leave one of them out, or give it to a pipeline of its own.") :
					 errhint("Give one of them a topic of its own with kafka.set_table().")));
		}
	}
}

void
tk_check_outbox(const TkDefinition *d, Oid relid, bool event_type)
{
	for (int i = 0; i < (event_type ? TK_OUTBOX_COLUMNS : TK_OUTBOX_COLUMNS - 1); i++)
	{
		if (get_attnum(relid, tk_outbox_columns[i]) > 0)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table %s does not exist", tk_outbox_columns[i], tk_qualified_name(relid)),
				 errdetail("The route \"outbox\" of pipeline \"%s\" needs the columns id, aggregatetype, aggregateid and payload, and type for event_type_header.",
						   d->name)));
	}
}

/* The chosen key columns must exist and be logged in every old row. */
void
tk_check_key(const TkDefinition *d, Oid relid, List *keys, int operations)
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
						 errmsg("column \"%s\" is named twice in the key of table %s", name, tk_qualified_name(relid))));

		if (attnum <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of table %s does not exist", name, tk_qualified_name(relid)),
					 errdetail("It was to be part of the key in pipeline \"%s\".", d->name)));
		if (old_rows && rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL &&
			!bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber, identity))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("key column \"%s\" of table %s is not in its replica identity", name, tk_qualified_name(relid)),
					 errdetail("PostgreSQL doesn't log it for a DELETE, so the record would have no key."),
					 errhint("Use ALTER TABLE … REPLICA IDENTITY FULL, or USING INDEX with an index that has it.")));
	}
	table_close(rel, AccessShareLock);
}
