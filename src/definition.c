/*
 * definition.c
 *	  SQL entry points that write a pipeline's definition: create_pipeline,
 *	  alter_pipeline, set_table.
 *
 * They check the caller first, as the caller (checks.c); then they write the
 * catalog as the bootstrap superuser with a search_path of their own
 * ("privileged"), so neither a role's lack of rights nor its objects matter.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "checks.h"
#include "ddl.h"
#include "functions.h"
#include "pg_compat.h"

PG_FUNCTION_INFO_V1(tk_create_pipeline);
PG_FUNCTION_INFO_V1(tk_alter_pipeline);
PG_FUNCTION_INFO_V1(tk_set_table);

/* Makes the four publications of a pipeline, empty. */
static void
create_publications(int32 pipeline_id)
{
	for (int i = 0; i < TK_OPERATIONS; i++)
	{
		char	   *name = tk_owned_publication(pipeline_id, i);

		tk_utility(psprintf("CREATE PUBLICATION %s WITH (publish = '%s', publish_via_partition_root = true)",
							quote_identifier(name), tk_operation_names[i]));
		tk_publication_belongs_to_extension(name);
	}
}

void
tk_drop_publications(int32 pipeline_id)
{
	for (int i = 0; i < TK_OPERATIONS; i++)
		tk_utility(psprintf("DROP PUBLICATION IF EXISTS %s", quote_identifier(tk_owned_publication(pipeline_id, i))));
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
				tk_utility(psprintf("ALTER PUBLICATION %s %s TABLE %s%s", quote_identifier(name),
									wanted ? "ADD" : "DROP",
									get_rel_relkind(entry->relid) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ",
									tk_qualified_name(entry->relid)));
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

		if (OidIsValid(tk_without_replica_identity(relid)))
			appendStringInfo(&names, "%s%s", names.len ? ", " : "", tk_qualified_name(relid));
	}
	if (names.len > 0)
		ereport(WARNING,
				(errmsg("publication \"%s\" has tables without a replica identity: %s", d->publication, names.data),
				 errdetail("PostgreSQL refuses their UPDATEs and DELETEs while it publishes them."),
				 errhint("Give them a primary key or ALTER TABLE … REPLICA IDENTITY.")));
}

/* What the slot can cost, while there is time to think of it. */
static void
tell_of_retained_wal(const char *name)
{
	if (max_slot_wal_keep_size_mb < 0)
		ereport(NOTICE,
				(errmsg("WAL that pipeline \"%s\" keeps is not bounded", name),
				 errdetail("max_slot_wal_keep_size is -1: while Kafka can't be reached or the pipeline is stopped, the server keeps all WAL from its position on, until the disk is full."),
				 errhint("Set max_slot_wal_keep_size; a pipeline that would need more than that stops as slot_lost.")));
}

/* Allowed, but hardly meant. */
static void
tell_of_timeouts(const TkPipelineOptions *options, const char *name)
{
	if (options->transaction_timeout < options->checkpoint_timeout)
		ereport(NOTICE,
				(errmsg("transaction_timeout (%d ms) of pipeline \"%s\" is shorter than checkpoint_timeout (%d ms)",
						options->transaction_timeout, name, options->checkpoint_timeout),
				 errdetail("Kafka aborts a transaction that is open for longer; its checkpoint is then made again.")));
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
		tk_check_table(pipeline, relid);
		LockRelationOid(relid, ShareUpdateExclusiveLock);
		tk_check_table(pipeline, relid);
		if (list_member_oid(result, relid))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table %s is named twice for pipeline \"%s\"", tk_qualified_name(relid), pipeline)));
		tk_check_replica_identity(pipeline, relid, operations);
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
	tk_check_topics(d, InvalidOid);
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

	tk_check_server_ready("create_pipeline()");
	tk_check_logical_decoding();
	tk_check_not_atomic(fcinfo, "create_pipeline()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);

	name = tk_required_name(fcinfo, 0, "pipeline");
	server_name = tk_required_name(fcinfo, 1, "server");
	tk_check_pipeline_name(name);
	tk_check_may_have_slot();
	server = tk_check_kafka_server(server_name);
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

	tell_of_retained_wal(name);
	tell_of_timeouts(options, name);

	/* From here on the definition stays, whatever happens. */
	tk_spi_commit();
	entry = tk_request(d, d->generation, true, false);
	tk_await_start(entry, d);
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * A definition that was restored or cloned becomes a pipeline of this
 * database.  OIDs in it may be those of another one: names count.
 */
TkDefinition *
tk_adopt_definition(const TkDefinition *d)
{
	/* The owner too: pg_upgrade takes rows along, and not what their trigger notes. */
	static TkStatement statement = {
		"UPDATE kafka.pipeline SET server_oid = $2, publication_oid = $3, owner = owner WHERE pipeline_id = $1",
		3, {INT4OID, OIDOID, OIDOID}, NULL
	};
	Oid			server = tk_check_kafka_server(d->server_name);
	Oid			publication = d->publication ? get_publication_oid(d->publication, false) : InvalidOid;
	Privileged	saved;
	Datum		values[3];
	TkDefinition *adopted;

	tk_check_may_have_slot();
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

/* The definition, its row locked against a second change; the caller may change it. */
static TkDefinition *
locked_definition(const char *name)
{
	Privileged	saved;
	TkDefinition *d = tk_owned_definition(name);

	tk_begin_privileged(&saved);
	tk_utility(psprintf("SELECT FROM kafka.pipeline WHERE pipeline_id = %d FOR NO KEY UPDATE", d->pipeline_id));
	d = tk_definition_by_name(name);
	tk_end_privileged(&saved);
	if (d == NULL || d->dropping)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name),
				 d != NULL ? errdetail("It is being dropped.") : 0));
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

	tk_check_server_ready("alter_pipeline()");
	PreventCommandIfReadOnly("alter_pipeline()");
	SPI_connect();
	name = tk_required_name(fcinfo, 0, "pipeline");
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
	tell_of_timeouts(after, d->name);
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

			tk_check_replica_identity(name, entry->relid, entry->operations ? entry->operations : after->operations);
		}
		arrange_publications(d, after->operations);
	}
	d->raw_options = merged;
	tk_check_reserved_topics(d);
	tk_end_privileged(&saved);
	tk_definition_changes(d->pipeline_id);
	SPI_finish();
	PG_RETURN_VOID();
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

	tk_check_server_ready("set_table()");
	PreventCommandIfReadOnly("set_table()");
	SPI_connect();
	name = tk_required_name(fcinfo, 0, "pipeline");
	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("table and options must not be null")));
	relid = PG_GETARG_OID(1);
	d = locked_definition(name);
	tk_check_table(name, relid);
	what = psprintf("table %s of pipeline \"%s\"", tk_qualified_name(relid), name);
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
		{
			if (((TkTableName *) lfirst(lc))->relid == relid)
				member = true;
		}
		stored = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	}
	if (!member)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table %s is not part of pipeline \"%s\"", tk_qualified_name(relid), name)));

	stored = tk_merge_options(stored, PG_GETARG_JSONB_P(2));
	table = tk_parse_table_options(stored, what);
	options = tk_parse_pipeline_options(d->raw_options, psprintf("pipeline \"%s\"", name));
	tk_check_table_options(table, what);
	operations = tk_table_operations(table, options->operations);
	if (table->route == TK_ROUTE_OUTBOX)
		tk_check_outbox(d, relid, table->event_type_header);
	tk_check_key(d, relid, table->keys, operations);
	if (d->publication == NULL)
		tk_check_replica_identity(name, relid, operations);
	values[2] = JsonbPGetDatum(stored);
	tk_execute(&store, values, NULL, false);
	(void) tk_update_definition(d->pipeline_id, "enabled = enabled", false);
	if (d->publication == NULL)
		arrange_publications(d, options->operations);
	tk_check_topics(d, relid);
	tk_end_privileged(&saved);
	tk_definition_changes(d->pipeline_id);
	SPI_finish();
	PG_RETURN_VOID();
}
