/*
 * ddl.c
 *	  DDL around pipelines: what may not be dropped beneath one, what is tidied
 *	  up after it, and slots that belong to nobody.
 *
 * Event triggers see drops and renames of single objects, and can be switched
 * off.  An object-access hook can't: it sees that a server, publication or user
 * mapping of a pipeline goes, and makes the worker look at its definition again
 * once that has committed.  DROP EXTENSION fires no event trigger at all, so the
 * hook also notices that kafka.pipeline goes; publications of pipelines go with
 * the extension by dependency.  What isn't transactional, workers and slots, is
 * left to a scout: it comes after the commit, ends workers without a definition
 * and drops slots without one.  So it also finds what a crash in
 * drop_pipeline() has left.
 *
 * A pipeline belongs to a role, which therefore can't be dropped: a row of
 * kafka.pipeline holds its owner by a shared dependency, as a privilege would.
 * Commands about roles and databases fire no event trigger everywhere, so
 * DROP OWNED, REASSIGN OWNED and DROP DATABASE are met in a utility hook.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/dbcommands.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "commands/user.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "allowed.h"
#include "catalog.h"
#include "checks.h"
#include "ddl.h"
#include "pg_compat.h"
#include "registry.h"

PG_FUNCTION_INFO_V1(tk_on_drop);
PG_FUNCTION_INFO_V1(tk_on_alter);
PG_FUNCTION_INFO_V1(tk_keep_owner);

/*
 * Of a pipeline of this database.  One that was restored or cloned into it and
 * not resumed yet has OIDs of another one: they mean nothing here.
 */
#define AT_HOME \
	"EXISTS (SELECT FROM kafka.pipeline_state s, pg_catalog.pg_database d, pg_catalog.pg_control_system() c " \
	"WHERE s.pipeline_id = p.pipeline_id AND s.database_oid = d.oid AND d.datname = pg_catalog.current_database() " \
	"AND s.system_identifier = c.system_identifier)"

static object_access_hook_type previous_access_hook = NULL;
static ProcessUtility_hook_type previous_utility_hook = NULL;

/* This transaction has dropped something that the event trigger would want to look at. */
static bool drop_matters = false;

/* The database that this transaction drops, and one that it changes. */
static Oid	dropped_database = InvalidOid;
static Oid	altered_database = InvalidOid;

/* ----------------------------------------------------------------
 * Objects that go
 * ----------------------------------------------------------------
 */

/*
 * Something that pipelines may use goes: let the workers of those that do look
 * at their definition again.  In the middle of a deletion, so by a plain scan.
 */
static void
used_object_goes(Oid classId, Oid objectId)
{
	Oid			catalog = tk_catalog_oid();
	char	   *publication = NULL;
	Oid			server = InvalidOid;
	Relation	rel;
	TupleDesc	desc;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(catalog))
		return;
	if (classId == PublicationRelationId)
		publication = get_publication_name(objectId, true);
	else if (classId == ForeignServerRelationId)
		server = objectId;
	else
	{
		tuple = SearchSysCache1(USERMAPPINGOID, ObjectIdGetDatum(objectId));
		if (HeapTupleIsValid(tuple))
		{
			server = ((Form_pg_user_mapping) GETSTRUCT(tuple))->umserver;
			ReleaseSysCache(tuple);
		}
	}

	rel = table_open(catalog, AccessShareLock);
	desc = RelationGetDescr(rel);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int32		id = DatumGetInt32(heap_getattr(tuple, get_attnum(catalog, "pipeline_id"), desc, &isnull));
		bool		used;

		if (classId == PublicationRelationId)
		{
			Datum		oid = heap_getattr(tuple, get_attnum(catalog, "publication_oid"), desc, &isnull);

			used = !isnull && DatumGetObjectId(oid) == objectId;
			for (int i = 0; i < TK_OPERATIONS && publication != NULL && !used; i++)
				used = strcmp(publication, tk_owned_publication(id, i)) == 0;
		}
		else
			used = DatumGetObjectId(heap_getattr(tuple, get_attnum(catalog, "server_oid"), desc, &isnull)) == server;
		if (used)
			tk_definition_changes(id);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* May a pipeline have it?  What is temporary can't be published. */
static bool
is_permanent_table(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return true;
	form = (Form_pg_class) GETSTRUCT(tuple);
	result = form->relpersistence != RELPERSISTENCE_TEMP &&
		(form->relkind == RELKIND_RELATION || form->relkind == RELKIND_PARTITIONED_TABLE);
	ReleaseSysCache(tuple);
	return result;
}

static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_access_hook)
		previous_access_hook(access, classId, objectId, subId, arg);

	/* It may be open to connections from now on. */
	if (access == OAT_POST_ALTER && classId == DatabaseRelationId)
		altered_database = objectId;
	if (access != OAT_DROP || subId != 0)
		return;

	if (!drop_matters)
		drop_matters = classId == ForeignServerRelationId || classId == PublicationRelationId ||
			(classId == RelationRelationId && is_permanent_table(objectId));

	/* kafka.pipeline goes only with its extension */
	if (classId == RelationRelationId && objectId == tk_catalog_oid())
		tk_all_definitions_change();
	else if (classId == ForeignServerRelationId || classId == PublicationRelationId || classId == UserMappingRelationId)
		used_object_goes(classId, objectId);
	else if (classId == DatabaseRelationId)
		dropped_database = objectId;
}

/* ----------------------------------------------------------------
 * Databases
 * ----------------------------------------------------------------
 */

/*
 * PostgreSQL refuses to drop a database with an active slot, FORCE or not, and
 * names neither slot nor pipeline.
 */
static void
check_drop_database(const DropdbStmt * stmt)
{
	Oid			database = get_database_oid(stmt->dbname, true);
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	NameData	name;
	bool		running = false;
	bool		may;

	if (!HeapTupleIsValid(tuple))
		return;
	may = has_privs_of_role(GetUserId(), ((Form_pg_database) GETSTRUCT(tuple))->datdba);
	ReleaseSysCache(tuple);
	if (!may || database == MyDatabaseId)
		return;					/* PostgreSQL says so */

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries && !running; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		running = entry->in_use && entry->database == database && (entry->pid != 0 || entry->launched_at != 0);
		if (running)
			name = entry->name;
	}
	LWLockRelease(tk_shared->lock);
	if (running)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("database \"%s\" is in use by pipeline \"%s\" of transactional_kafka",
						stmt->dbname, NameStr(name)),
				 errhint("Connect to it and CALL kafka.pause('%s') or kafka.drop_pipeline('%s') first.",
						 NameStr(name), NameStr(name))));
}

/* A database has gone, its slots with it: what the registry knows of its pipelines goes too. */
static void
forget_database(Oid database)
{
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];
		TkPublication p = {0};
		NameData	name;
		bool		meant;

		LWLockAcquire(tk_shared->lock, LW_SHARED);
		meant = entry->in_use && entry->database == database;
		p.database = database;
		p.catalog = entry->catalog;
		p.pipeline_id = entry->pipeline_id;
		p.owner = entry->owner;
		p.server = entry->server;
		p.generation = entry->generation;
		name = entry->name;
		LWLockRelease(tk_shared->lock);
		p.name = NameStr(name);
		p.gone = true;
		if (meant)
			(void) tk_registry_publish(&p);
	}
}

static void
after_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && OidIsValid(dropped_database))
		forget_database(dropped_database);
	if (event == XACT_EVENT_COMMIT && OidIsValid(altered_database))
		tk_request_scout(altered_database);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		dropped_database = altered_database = InvalidOid;
		drop_matters = false;
	}
}

/* ----------------------------------------------------------------
 * Owners
 * ----------------------------------------------------------------
 */

/* DROP OWNED takes everything of a role along; a pipeline can't go in a transaction. */
static void
check_drop_owned(const DropOwnedStmt * stmt)
{
	static TkStatement find = {
		"SELECT name FROM kafka.pipeline WHERE owner = $1::regrole ORDER BY name LIMIT 1", 1, {OIDOID}, NULL
	};
	List	   *roles = roleSpecsToIds(stmt->roles);
	ListCell   *lc;

	SPI_connect();
	foreach(lc, roles)
	{
		Oid			role = lfirst_oid(lc);
		Datum		value = ObjectIdGetDatum(role);
		Privileged	saved;

		if (!has_privs_of_role(GetUserId(), role))
			break;				/* PostgreSQL says so */
		tk_begin_privileged(&saved);
		if (tk_execute(&find, &value, NULL, false) > 0)
		{
			char	   *name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);

			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop objects owned by role \"%s\" because pipeline \"%s\" belongs to it",
							GetUserNameFromId(role, false), name),
					 errhint("CALL kafka.drop_pipeline('%s'), or give it away with REASSIGN OWNED, first.", name)));
		}
		tk_end_privileged(&saved);
	}
	SPI_finish();
}

/* REASSIGN OWNED gives a role's pipelines away too. */
static void
follow_owners(const ReassignOwnedStmt * stmt)
{
	static TkStatement follow = {
		"UPDATE kafka.pipeline p SET owner = $2::regrole, generation = generation + 1 "
		"WHERE owner = $1::regrole RETURNING pipeline_id, name, server, "
		"EXISTS (SELECT FROM pg_catalog.pg_user_mapping m WHERE m.umserver = p.server_oid AND m.umuser = $1) AND "
		"NOT EXISTS (SELECT FROM pg_catalog.pg_user_mapping m WHERE m.umserver = p.server_oid AND m.umuser = $2)",
		2, {OIDOID, OIDOID}, NULL
	};
	List	   *roles = roleSpecsToIds(stmt->roles);
	Oid			newrole = get_rolespec_oid(stmt->newrole, false);
	ListCell   *lc;

	SPI_connect();
	foreach(lc, roles)
	{
		Datum		values[2] = {ObjectIdGetDatum(lfirst_oid(lc)), ObjectIdGetDatum(newrole)};
		Privileged	saved;
		uint64		n;

		if (lfirst_oid(lc) == newrole)
			continue;
		tk_begin_privileged(&saved);
		n = tk_execute(&follow, values, NULL, false);
		for (uint64 row = 0; row < n; row++)
		{
			HeapTuple	tuple = SPI_tuptable->vals[row];
			TupleDesc	desc = SPI_tuptable->tupdesc;
			bool		isnull;

			tk_definition_changes(DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull)));
			if (DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull)))
				ereport(WARNING,
						(errmsg("pipeline \"%s\" now belongs to role \"%s\", which has no user mapping for server \"%s\"",
								SPI_getvalue(tuple, desc, 2), GetUserNameFromId(newrole, false),
								SPI_getvalue(tuple, desc, 3)),
						 errdetail("It goes by its owner's user mapping; that of role \"%s\" is not used any more.",
								   GetUserNameFromId(lfirst_oid(lc), false)),
						 errhint("CREATE USER MAPPING for the new owner.")));
		}
		tk_end_privileged(&saved);
	}
	SPI_finish();
}

/*
 * One dependency a role, of type ACL: that is what DROP ROLE looks at, and what
 * DROP OWNED and REASSIGN OWNED don't take for ownership of the table itself.
 */
static void
depend_on_role(Oid catalog, Oid role, bool depends)
{
	static TkStatement find_dependency = {
		"SELECT FROM pg_catalog.pg_shdepend s, pg_catalog.pg_database d WHERE s.dbid = d.oid "
		"AND d.datname = pg_catalog.current_database() AND s.classid = 'pg_catalog.pg_class'::pg_catalog.regclass "
		"AND s.objid = $1 AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = $2 "
		"AND s.deptype = 'a'", 2, {OIDOID, OIDOID}, NULL
	};
	static TkStatement find_pipeline = {
		"SELECT FROM kafka.pipeline WHERE owner = $2::regrole AND $1 IS NOT NULL", 2, {OIDOID, OIDOID}, NULL
	};
	Datum		values[2] = {ObjectIdGetDatum(catalog), ObjectIdGetDatum(role)};
	Oid		   *members = palloc(sizeof(Oid));

	/* Against another transaction that counts the same role's pipelines, and against DROP ROLE. */
	LockSharedObject(AuthIdRelationId, role, 0, ShareUpdateExclusiveLock);
	members[0] = role;
	if (depends)
	{
		shdepLockAndCheckObject(AuthIdRelationId, role);
		if (tk_execute(&find_dependency, values, NULL, false) == 0)
			updateAclDependencies(RelationRelationId, catalog, 0, InvalidOid, 0, NULL, 1, members);
	}
	else if (tk_execute(&find_pipeline, values, NULL, false) == 0)
		updateAclDependencies(RelationRelationId, catalog, 0, InvalidOid, 1, members, 0, NULL);
}

/*
 * SQL: kafka.keep_owner() → trigger, AFTER INSERT OR UPDATE OF owner OR DELETE ON kafka.pipeline FOR EACH ROW
 *
 * By a trigger, so that it also holds for rows that pg_restore copies.
 */
Datum
tk_keep_owner(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	Oid			catalog;
	AttrNumber	owner;
	Privileged	saved;
	Datum		before;
	Datum		after;
	bool		isnull;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != tk_catalog_oid())
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("kafka.keep_owner() can only be called by the trigger of kafka.pipeline")));
	catalog = RelationGetRelid(trigger->tg_relation);
	owner = get_attnum(catalog, "owner");
	before = after = heap_getattr(trigger->tg_trigtuple, owner, RelationGetDescr(trigger->tg_relation), &isnull);
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		after = heap_getattr(trigger->tg_newtuple, owner, RelationGetDescr(trigger->tg_relation), &isnull);

	SPI_connect();
	tk_begin_privileged(&saved);
	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		depend_on_role(catalog, DatumGetObjectId(after), true);
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) &&
		(TRIGGER_FIRED_BY_DELETE(trigger->tg_event) || before != after))
		depend_on_role(catalog, DatumGetObjectId(before), false);
	tk_end_privileged(&saved);
	SPI_finish();
	return PointerGetDatum(NULL);
}

/* ----------------------------------------------------------------
 * Hooks
 * ----------------------------------------------------------------
 */

static void
process_utility(PlannedStmt * pstmt, const char *queryString, bool readOnlyTree, ProcessUtilityContext context,
				ParamListInfo params, QueryEnvironment * queryEnv, DestReceiver * dest, QueryCompletion * qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	bool		owners = IsA(stmt, DropOwnedStmt) || IsA(stmt, ReassignOwnedStmt);

	if (IsA(stmt, DropdbStmt))
		check_drop_database((DropdbStmt *) stmt);
	if (owners && !OidIsValid(tk_catalog_oid()))
		owners = false;
	if (owners && IsA(stmt, DropOwnedStmt))
		check_drop_owned((DropOwnedStmt *) stmt);
	tk_guard_allowed_topics(stmt);
	if (previous_utility_hook)
		previous_utility_hook(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (owners && IsA(stmt, ReassignOwnedStmt))
		follow_owners((ReassignOwnedStmt *) stmt);
}

void
tk_ddl_init(void)
{
	previous_access_hook = object_access_hook;
	object_access_hook = object_access;
	previous_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(after_transaction, NULL);
}

/* ----------------------------------------------------------------
 * Event triggers
 * ----------------------------------------------------------------
 */

void
tk_publication_belongs_to_extension(const char *publication)
{
	ObjectAddress owned;
	ObjectAddress extension;

	ObjectAddressSet(owned, PublicationRelationId, get_publication_oid(publication, false));
	ObjectAddressSet(extension, ExtensionRelationId, get_extension_oid("transactional_kafka", false));
	recordDependencyOn(&owned, &extension, DEPENDENCY_AUTO);
}

static void
check_event_trigger(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("%s can only be called by an event trigger", function)));
}

/*
 * SQL: kafka.on_drop() → event_trigger, ON sql_drop
 *
 * Refuses to drop a server or publication that a pipeline uses; remembers when
 * a table of one was dropped (its settings are needed until the WAL up to then
 * has been sent).
 */
Datum
tk_on_drop(PG_FUNCTION_ARGS)
{
	static TkStatement find_used = {
		"SELECT o.object_type, o.object_identity, p.name FROM pg_catalog.pg_event_trigger_dropped_objects() o "
		"JOIN kafka.pipeline p ON NOT p.dropping AND ("
		"o.object_type = 'server' AND o.objid = p.server_oid AND " AT_HOME " OR "
		"o.object_type = 'publication' AND (o.objid = p.publication_oid AND " AT_HOME " OR p.publication IS NULL AND "
		"o.address_names[1] IN (SELECT pg_catalog.format('tk_%s_%s', p.pipeline_id, operation) "
		"FROM pg_catalog.unnest(ARRAY['insert', 'update', 'delete', 'truncate']) operation))) LIMIT 1", 0, {0}, NULL
	};
	static TkStatement note_tables = {
		"UPDATE kafka.pipeline_table t SET dropped_at = pg_catalog.pg_current_wal_insert_lsn() "
		"FROM pg_catalog.pg_event_trigger_dropped_objects() o "
		"WHERE o.object_type = 'table' AND t.\"table\" = o.objid::regclass", 0, {0}, NULL
	};
	Privileged	saved;

	check_event_trigger(fcinfo, "kafka.on_drop()");

	/*
	 * Thousands of temporary tables shall not pay for it: our hook has seen all that went, if there is one.  Not
	 * forgotten before the transaction ends: an event trigger before this one may have dropped something too, and
	 * come here first.
	 */
	if (tk_shared != NULL && !drop_matters)
		PG_RETURN_NULL();
	SPI_connect();
	tk_begin_privileged(&saved);
	if (tk_execute(&find_used, NULL, NULL, false) > 0)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop %s %s because pipeline \"%s\" uses it",
						SPI_getvalue(row, desc, 1), SPI_getvalue(row, desc, 2), SPI_getvalue(row, desc, 3)),
				 errhint("CALL kafka.drop_pipeline('%s') first.", SPI_getvalue(row, desc, 3))));
	}
	(void) tk_execute(&note_tables, NULL, NULL, false);
	tk_end_privileged(&saved);
	SPI_finish();
	PG_RETURN_NULL();
}

/* Starts the pipelines of these rows (first column: pipeline_id) anew. */
static void
restart_pipelines(uint64 n)
{
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;

		tk_definition_changes(DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1, &isnull)));
	}
}

/* A publication in use must keep its name; this is the old one of a publication that was given another. */
static void
check_publication_names(const char *renamed)
{
	static TkStatement find = {
		"SELECT $1::text, p.name FROM kafka.pipeline p WHERE NOT p.dropping AND (p.publication = $1::name AND " AT_HOME " OR "
		"p.publication IS NULL AND $1::text IN (SELECT pg_catalog.format('tk_%s_%s', p.pipeline_id, operation) "
		"FROM pg_catalog.unnest(ARRAY['insert', 'update', 'delete', 'truncate']) operation)) LIMIT 1", 1, {TEXTOID}, NULL
	};
	Datum		value = CStringGetTextDatum(renamed);

	if (tk_execute(&find, &value, NULL, false) > 0)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot rename publication \"%s\" because pipeline \"%s\" uses it",
						SPI_getvalue(row, desc, 1), SPI_getvalue(row, desc, 2)),
				 errdetail("PostgreSQL decodes each change by the publication's name at that time."),
				 errhint("Drop the pipeline and create it anew with the other name.")));
	}
}

/*
 * Names of tables have changed, or the tables of this publication (NULL: not of
 * one, but the names of what the command was about): no two may share a topic
 * now.  The pipelines' own publications are not meant: create_pipeline() checks
 * what it puts there, once for all.
 */
static void
check_all_topics(const char *publication)
{
	static TkStatement find_users = {
		"SELECT pipeline_id, 0::oid FROM kafka.pipeline p WHERE NOT dropping AND publication = $1::name AND " AT_HOME,
		1, {TEXTOID}, NULL
	};
	static TkStatement find_all = {
		"SELECT DISTINCT pipeline_id, c.objid FROM kafka.pipeline p, pg_catalog.pg_event_trigger_ddl_commands() c "
		"WHERE NOT dropping AND c.classid IN ('pg_catalog.pg_class'::pg_catalog.regclass, "
		"'pg_catalog.pg_namespace'::pg_catalog.regclass) AND c.objsubid = 0 AND " AT_HOME, 0, {0}, NULL
	};
	Datum		value = publication ? CStringGetTextDatum(publication) : (Datum) 0;
	uint64		n;
	SPITupleTable *rows;

	if (tk_shared == NULL)
		return;					/* not preloaded: nothing runs */
	n = publication ? tk_execute(&find_users, &value, NULL, false) : tk_execute(&find_all, NULL, NULL, false);
	rows = SPI_tuptable;
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;
		int32		id = DatumGetInt32(SPI_getbinval(rows->vals[row], rows->tupdesc, 1, &isnull));
		Oid			object = DatumGetObjectId(SPI_getbinval(rows->vals[row], rows->tupdesc, 2, &isnull));

		tk_check_topics(tk_definition_by_id(id), object);
	}
}

/* Columns of a table have changed: those that set_table() chose for its key, or that an outbox needs, must still do. */
static void
check_keys(void)
{
	static TkStatement find = {
		"SELECT t.pipeline_id, t.\"table\"::oid, t.options FROM kafka.pipeline_table t "
		"JOIN pg_catalog.pg_event_trigger_ddl_commands() c ON c.classid = 'pg_catalog.pg_class'::pg_catalog.regclass "
		"AND c.objid = t.\"table\"::oid WHERE t.options OPERATOR(pg_catalog.?|) ARRAY['key', 'route']", 0, {0}, NULL
	};
	uint64		n = tk_execute(&find, NULL, NULL, false);
	SPITupleTable *rows = SPI_tuptable;

	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;
		TkDefinition *d = tk_definition_by_id(DatumGetInt32(SPI_getbinval(rows->vals[row], rows->tupdesc, 1, &isnull)));
		Oid			relid = DatumGetObjectId(SPI_getbinval(rows->vals[row], rows->tupdesc, 2, &isnull));
		Jsonb	   *raw = DatumGetJsonbPCopy(SPI_getbinval(rows->vals[row], rows->tupdesc, 3, &isnull));
		char	   *what = psprintf("pipeline \"%s\"", d->name);
		TkTableOptions *table = tk_parse_table_options(raw, what);

		if (table->route == TK_ROUTE_OUTBOX)
			tk_check_outbox(d, relid, table->event_type_header);
		tk_check_key(d, relid, table->keys,
					 tk_table_operations(table, tk_parse_pipeline_options(d->raw_options, what)->operations));
	}
}

/*
 * SQL: kafka.on_alter() → event_trigger, ON ddl_command_end of ALTER SERVER, … USER MAPPING, ALTER PUBLICATION,
 * ALTER TABLE, ALTER SCHEMA
 *
 * A server keeps its OID when it is renamed, and that is what counts; its name
 * is kept up for dumps.  What it says, and a user mapping, is taken up at once:
 * a mistake shall show now and not at a restart months later.
 *
 * A publication is found by its name in the catalog as of the change that is
 * decoded, so after a renaming WAL from before it can't be decoded by the new
 * name, nor later WAL by the old one.  It is the same with a key column that
 * set_table() was given, and two tables must not come to share a topic.
 */
Datum
tk_on_alter(PG_FUNCTION_ARGS)
{
	static TkStatement follow_servers = {
		"UPDATE kafka.pipeline p SET server = s.srvname FROM pg_catalog.pg_foreign_server s "
		"WHERE s.oid = p.server_oid AND s.srvname <> p.server AND " AT_HOME, 0, {0}, NULL
	};
	static TkStatement take_up = {
		"UPDATE kafka.pipeline p SET generation = generation + 1 FROM pg_catalog.pg_event_trigger_ddl_commands() c "
		"WHERE (c.classid = 'pg_catalog.pg_foreign_server'::pg_catalog.regclass AND c.objid = p.server_oid "
		"OR c.classid = 'pg_catalog.pg_user_mapping'::pg_catalog.regclass AND EXISTS "
		"(SELECT FROM pg_catalog.pg_user_mapping m WHERE m.oid = c.objid AND m.umserver = p.server_oid "
		"AND m.umuser IN (0, p.owner::oid))) "
		"AND NOT p.dropping AND " AT_HOME " RETURNING pipeline_id", 0, {0}, NULL
	};
	Privileged	saved;
	Node	   *stmt;

	check_event_trigger(fcinfo, "kafka.on_alter()");
	stmt = ((EventTriggerData *) fcinfo->context)->parsetree;
	SPI_connect();
	tk_begin_privileged(&saved);
	switch (nodeTag(stmt))
	{
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_PUBLICATION)
				check_publication_names(strVal(((RenameStmt *) stmt)->object));
			(void) tk_execute(&follow_servers, NULL, NULL, false);
			check_keys();
			check_all_topics(NULL);
			break;
		case T_AlterObjectSchemaStmt:
			check_all_topics(NULL);
			break;
		case T_AlterPublicationStmt:
			check_all_topics(((AlterPublicationStmt *) stmt)->pubname);
			break;
		case T_AlterTableStmt:
			check_keys();
			break;
		case T_AlterForeignServerStmt:
		case T_AlterUserMappingStmt:
		case T_CreateUserMappingStmt:
			restart_pipelines(tk_execute(&take_up, NULL, NULL, false));
			break;
		default:
			break;
	}
	tk_end_privileged(&saved);
	SPI_finish();
	PG_RETURN_NULL();
}

/* ----------------------------------------------------------------
 * Slots
 * ----------------------------------------------------------------
 */

/* A slot named exactly as a pipeline's of this database; its pipeline's id, or 0. */
static int32
pipeline_of_slot(const char *name)
{
	unsigned	database;
	int			pipeline_id;

	if (sscanf(name, "tk_%u_%d", &database, &pipeline_id) != 2 || database != MyDatabaseId || pipeline_id <= 0 ||
		strcmp(name, tk_slot_name(database, pipeline_id)) != 0)
		return 0;
	return pipeline_id;
}

List *
tk_list_own_slots(void)
{
	List	   *ids = NIL;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		int32		id;

		/* One that is in use is looked at again when its process has gone. */
		if (!slot->in_use || slot->active_pid != 0 || slot->data.database != MyDatabaseId ||
			strcmp(NameStr(slot->data.plugin), "pgoutput") != 0)
			continue;
		id = pipeline_of_slot(NameStr(slot->data.name));
		if (id != 0)
			ids = lappend_int(ids, id);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return ids;
}

void
tk_drop_orphaned_slots(List *slots, List *defined)
{
	ListCell   *lc;

	foreach(lc, slots)
	{
		int32		id = lfirst_int(lc);
		char	   *name = tk_slot_name(MyDatabaseId, id);

		if (list_member_int(defined, id))
			continue;

		/* An error (somebody has just acquired it) ends the scout, and another one comes. */
		ReplicationSlotDrop(name, true);
		ereport(LOG,
				(errmsg("dropped replication slot \"%s\": it belongs to no pipeline", name)));
	}
}
