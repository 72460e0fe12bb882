/*
 * ddl.c
 *	  DDL around pipelines: what may not be dropped beneath one, what is tidied
 *	  up after it, and slots that belong to nobody.
 *
 * Event triggers see drops and renames of single objects.  DROP EXTENSION takes
 * them along and fires none, so an object-access hook notices that
 * kafka.pipeline goes; publications of pipelines go with the extension by
 * dependency.  What isn't transactional, workers and slots, is left to a scout:
 * it comes after the commit, ends workers without a definition and drops slots
 * without one.  So it also finds what a crash in drop_pipeline() has left.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_publication.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "catalog.h"
#include "ddl.h"
#include "pg_compat.h"
#include "registry.h"

PG_FUNCTION_INFO_V1(tk_on_drop);
PG_FUNCTION_INFO_V1(tk_on_alter);

static object_access_hook_type previous_hook = NULL;

/* Is it kafka.pipeline, which goes only with its extension? */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (previous_hook)
		previous_hook(access, classId, objectId, subId, arg);
	if (access == OAT_DROP && classId == RelationRelationId && subId == 0 && objectId == tk_catalog_oid())
		tk_all_definitions_change();
}

void
tk_ddl_init(void)
{
	previous_hook = object_access_hook;
	object_access_hook = object_access;
}

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
		"o.object_type = 'server' AND o.objid = p.server_oid OR "
		"o.object_type = 'publication' AND (o.objid = p.publication_oid OR p.publication IS NULL AND "
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

/*
 * SQL: kafka.on_alter() → event_trigger, ON ddl_command_end of ALTER SERVER and ALTER PUBLICATION
 *
 * A server keeps its OID when it is renamed, and that is what counts; its name
 * is kept up for dumps.  A publication is found by its name in the catalog as
 * of the change that is decoded, so after a renaming WAL from before it can't
 * be decoded by the new name, nor later WAL by the old one.
 */
Datum
tk_on_alter(PG_FUNCTION_ARGS)
{
	static TkStatement follow_servers = {
		"UPDATE kafka.pipeline p SET server = s.srvname FROM pg_catalog.pg_foreign_server s "
		"WHERE s.oid = p.server_oid AND s.srvname <> p.server", 0, {0}, NULL
	};
	static TkStatement find_renamed = {
		"SELECT b.pubname, p.publication, p.name FROM kafka.pipeline p JOIN pg_catalog.pg_publication b "
		"ON b.oid = p.publication_oid AND b.pubname <> p.publication WHERE NOT p.dropping LIMIT 1", 0, {0}, NULL
	};
	Privileged	saved;

	check_event_trigger(fcinfo, "kafka.on_alter()");
	SPI_connect();
	tk_begin_privileged(&saved);
	if (tk_execute(&find_renamed, NULL, NULL, false) > 0)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot rename publication \"%s\" because pipeline \"%s\" uses it",
						SPI_getvalue(row, desc, 2), SPI_getvalue(row, desc, 3)),
				 errdetail("PostgreSQL decodes each change by the publication's name at that time."),
				 errhint("Drop the pipeline and create it anew with the other name.")));
	}
	(void) tk_execute(&follow_servers, NULL, NULL, false);
	tk_end_privileged(&saved);
	SPI_finish();
	PG_RETURN_NULL();
}

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
