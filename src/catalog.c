/*
 * catalog.c
 *	  The extension's tables: see catalog.h.
 *
 * The definition (pipeline, pipeline_table) is only read here; functions.c
 * writes it for users.  The worker writes pipeline_state alone, so an open
 * transaction that alters a definition never blocks a start.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/wait_event.h"

#include "allowed.h"
#include "catalog.h"
#include "ddl.h"
#include "pg_compat.h"
#include "wal_source.h"

/* How long a session waits for a scout; one that meets a lock comes again after 2 s and a backoff. */
#define SCOUT_PATIENCE_MS 10000

void
tk_write_begin(void)
{
	/* Decoding with this flag would hide what is written here from everybody. */
	if ((MyProc->statusFlags & PROC_IN_LOGICAL_DECODING) != 0)
		elog(ERROR, "a process that is flagged as decoding must not write");

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
tk_write_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

void
tk_transaction_begin(void)
{
	tk_forget_catalog_caches();
	tk_write_begin();
	SPI_connect();
}

void
tk_transaction_commit(void)
{
	SPI_finish();
	tk_write_commit();
	tk_forget_catalog_caches();
}

void
tk_begin_privileged(Privileged *saved)
{
	GetUserIdAndSecContext(&saved->user, &saved->security_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, saved->security_context | SECURITY_LOCAL_USERID_CHANGE);
	saved->guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

void
tk_end_privileged(const Privileged *saved)
{
	AtEOXact_GUC(true, saved->guc_level);
	SetUserIdAndSecContext(saved->user, saved->security_context);
}

uint64
tk_execute(TkStatement *s, Datum *values, const char *nulls, bool read_only)
{
	MemoryContext caller = CurrentMemoryContext;
	int			result;

	if (s->plan == NULL)
	{
		SPIPlanPtr	plan = SPI_prepare(s->sql, s->nargs, s->types);

		if (plan == NULL)
			elog(ERROR, "could not prepare \"%s\": %s", s->sql, SPI_result_code_string(SPI_result));
		SPI_keepplan(plan);
		s->plan = plan;
	}
	result = SPI_execute_plan(s->plan, values, nulls, read_only, 0);
	if (result < 0)
		elog(ERROR, "could not execute \"%s\": %s", s->sql, SPI_result_code_string(result));
	MemoryContextSwitchTo(caller);	/* SPI leaves its own */
	return SPI_processed;
}

/* A column of a row of SPI_tuptable; by-reference values are copied out of SPI's memory by the callers. */
static Datum
column(uint64 row, int number, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, isnull);
}

/* Its text form in the caller's memory; NULL for null. */
static char *
column_text(MemoryContext context, uint64 row, int number)
{
	char	   *text = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number);

	return text == NULL ? NULL : MemoryContextStrdup(context, text);
}

static Jsonb *
column_jsonb(MemoryContext context, uint64 row, int number)
{
	bool		isnull;
	Datum		value = column(row, number, &isnull);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Jsonb	   *copy = DatumGetJsonbPCopy(value);

	MemoryContextSwitchTo(caller);
	return copy;
}

#define DEFINITION_COLUMNS \
	"pipeline_id, name, owner::oid, server, server_oid, publication, publication_oid, options, " \
	"enabled, dropping, generation, resumes, accept_lsn, accept_resumes"

static TkDefinition *
definition_of_row(MemoryContext context, uint64 row)
{
	TkDefinition *d = MemoryContextAllocZero(context, sizeof(TkDefinition));
	Datum		value;
	bool		isnull;

	d->pipeline_id = DatumGetInt32(column(row, 1, &isnull));
	d->name = column_text(context, row, 2);
	d->owner = DatumGetObjectId(column(row, 3, &isnull));
	d->server_name = column_text(context, row, 4);
	d->server = DatumGetObjectId(column(row, 5, &isnull));
	d->publication = column_text(context, row, 6);
	d->publication_oid = DatumGetObjectId(column(row, 7, &isnull));
	d->raw_options = column_jsonb(context, row, 8);
	d->enabled = DatumGetBool(column(row, 9, &isnull));
	d->dropping = DatumGetBool(column(row, 10, &isnull));
	d->generation = DatumGetInt64(column(row, 11, &isnull));
	d->resumes = DatumGetInt64(column(row, 12, &isnull));
	value = column(row, 13, &isnull);
	d->accept_lsn = isnull ? InvalidXLogRecPtr : DatumGetLSN(value);
	value = column(row, 14, &isnull);
	d->accept_resumes = isnull ? 0 : DatumGetInt64(value);
	return d;
}

static TkDefinition *
load_definition(TkStatement *statement, Datum key)
{
	MemoryContext caller = CurrentMemoryContext;

	if (tk_execute(statement, &key, NULL, false) == 0)
		return NULL;
	return definition_of_row(caller, 0);
}

TkDefinition *
tk_definition_by_name(const char *name)
{
	static TkStatement statement = {
		"SELECT " DEFINITION_COLUMNS " FROM kafka.pipeline WHERE name = $1", 1, {NAMEOID}, NULL
	};
	NameData	key;

	namestrcpy(&key, name);
	return load_definition(&statement, NameGetDatum(&key));
}

TkDefinition *
tk_definition_by_id(int32 pipeline_id)
{
	static TkStatement statement = {
		"SELECT " DEFINITION_COLUMNS " FROM kafka.pipeline WHERE pipeline_id = $1", 1, {INT4OID}, NULL
	};

	return load_definition(&statement, Int32GetDatum(pipeline_id));
}

/* This cluster's identifier as SQL's numeric text. */
static char *
system_identifier(void)
{
	return psprintf(UINT64_FORMAT, GetSystemIdentifier());
}

void
tk_state_load(const TkDefinition *definition, TkState *state)
{
	static TkStatement statement = {
		"SELECT uuid::text, progress_topic, slot_created, started, instances[1], instances[2], prefix, pool_size, "
		"stop_lsn, sticky_state, sticky_reason, sticky_hint, sticky_resumes, accepted_resumes "
		"FROM kafka.pipeline_state "
		"WHERE pipeline_id = $1 AND database_oid = $2 AND system_identifier = $3::numeric", 3, {INT4OID, OIDOID, TEXTOID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	Datum		values[3];
	Datum		value;
	bool		isnull;

	memset(state, 0, sizeof(TkState));
	values[0] = Int32GetDatum(definition->pipeline_id);
	values[1] = ObjectIdGetDatum(MyDatabaseId);
	values[2] = CStringGetTextDatum(system_identifier());
	if (tk_execute(&statement, values, NULL, false) == 0)
		return;

	state->exists = true;
	strlcpy(state->uuid, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1), sizeof(state->uuid));
	state->progress_topic = column_text(caller, 0, 2);
	state->slot_created = DatumGetBool(column(0, 3, &isnull));
	state->started = DatumGetBool(column(0, 4, &isnull));
	state->instances[0] = (uint64) DatumGetInt64(column(0, 5, &isnull));
	state->instances[1] = (uint64) DatumGetInt64(column(0, 6, &isnull));
	state->prefix = column_text(caller, 0, 7);
	state->pool_size = DatumGetInt32(column(0, 8, &isnull));
	value = column(0, 9, &isnull);
	state->stop_lsn = isnull ? InvalidXLogRecPtr : DatumGetLSN(value);

	state->accepted_resumes = DatumGetInt64(column(0, 14, &isnull));

	/* A sticky state counts until somebody resumes after it. */
	value = column(0, 13, &isnull);
	if (!isnull && DatumGetInt64(value) >= definition->resumes)
	{
		state->sticky_state = column_text(caller, 0, 10);
		state->sticky_reason = column_text(caller, 0, 11);
		state->sticky_hint = column_text(caller, 0, 12);
	}
}

void
tk_state_create(int32 pipeline_id)
{
	static TkStatement forget_state = {
		"DELETE FROM kafka.pipeline_state WHERE pipeline_id = $1", 1, {INT4OID}, NULL
	};
	static TkStatement forget_checkpoints = {
		"DELETE FROM kafka.checkpoint WHERE pipeline_id = $1", 1, {INT4OID}, NULL
	};
	static TkStatement insert = {
		"INSERT INTO kafka.pipeline_state (pipeline_id, system_identifier, database_oid, uuid) "
		"VALUES ($1, $2::numeric, $3, pg_catalog.gen_random_uuid())", 3, {INT4OID, TEXTOID, OIDOID}, NULL
	};
	Datum		values[3];

	values[0] = Int32GetDatum(pipeline_id);
	tk_execute(&forget_state, values, NULL, false);
	tk_execute(&forget_checkpoints, values, NULL, false);
	values[1] = CStringGetTextDatum(system_identifier());
	values[2] = ObjectIdGetDatum(MyDatabaseId);
	tk_execute(&insert, values, NULL, false);
}

bool
tk_state_slot_created(int32 pipeline_id, const char *progress_topic)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline_state SET slot_created = true, progress_topic = $2 WHERE pipeline_id = $1",
		2, {INT4OID, TEXTOID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), CStringGetTextDatum(progress_topic)};

	return tk_execute(&statement, values, NULL, false) > 0;
}

void
tk_state_instances(int32 pipeline_id, const uint64 instances[2], const char *prefix, int pool_size)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline_state SET instances = ARRAY[$2, $3], prefix = $4, pool_size = $5 WHERE pipeline_id = $1",
		5, {INT4OID, INT8OID, INT8OID, TEXTOID, INT4OID}, NULL
	};
	Datum		values[5];

	values[0] = Int32GetDatum(pipeline_id);
	values[1] = Int64GetDatum((int64) instances[0]);
	values[2] = Int64GetDatum((int64) instances[1]);
	values[3] = CStringGetTextDatum(prefix);
	values[4] = Int32GetDatum(pool_size);
	tk_execute(&statement, values, NULL, false);
}

void
tk_state_started(int32 pipeline_id, int64 accepted_resumes)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline_state SET started = true, stop_lsn = NULL, sticky_state = NULL, sticky_reason = NULL, "
		"sticky_hint = NULL, sticky_since = NULL, sticky_resumes = NULL, accepted_resumes = $2 WHERE pipeline_id = $1",
		2, {INT4OID, INT8OID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), Int64GetDatum(accepted_resumes)};

	tk_execute(&statement, values, NULL, false);
}

void
tk_forget_dropped_tables(int32 pipeline_id, XLogRecPtr position)
{
	static TkStatement statement = {
		"DELETE FROM kafka.pipeline_table WHERE pipeline_id = $1 AND dropped_at <= $2", 2, {INT4OID, LSNOID}, NULL
	};

	/* Dropped while the event trigger was switched off: some time before now. */
	static TkStatement note = {
		"UPDATE kafka.pipeline_table t SET dropped_at = pg_catalog.pg_current_wal_insert_lsn() WHERE pipeline_id = $1 "
		"AND dropped_at IS NULL AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = t.\"table\")",
		1, {INT4OID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), LSNGetDatum(position)};

	tk_execute(&statement, values, NULL, false);
	tk_execute(&note, values, NULL, false);
}

void
tk_state_stop(int32 pipeline_id, XLogRecPtr position)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline_state SET stop_lsn = $2 WHERE pipeline_id = $1", 2, {INT4OID, LSNOID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), LSNGetDatum(position)};

	tk_execute(&statement, values, XLogRecPtrIsInvalid(position) ? " n" : NULL, false);
}

void
tk_state_sticky(const TkDefinition *d, const char *state, const char *reason, const char *hint)
{
	static TkStatement statement = {
		"UPDATE kafka.pipeline_state SET sticky_state = $2, sticky_reason = $3, sticky_hint = $4, "
		"sticky_since = pg_catalog.now(), sticky_resumes = $5 WHERE pipeline_id = $1",
		5, {INT4OID, TEXTOID, TEXTOID, TEXTOID, INT8OID}, NULL
	};
	Datum		values[5];

	/* Not the resumes of now: one since this start shall count. */
	values[4] = Int64GetDatum(d->resumes);
	values[0] = Int32GetDatum(d->pipeline_id);
	values[1] = CStringGetTextDatum(state);
	values[2] = CStringGetTextDatum(reason);
	values[3] = CStringGetTextDatum(hint);
	tk_execute(&statement, values, NULL, false);
}

char *
tk_default_prefix(void)
{
	return psprintf("pg." UINT64_FORMAT ".%u", GetSystemIdentifier(), MyDatabaseId);
}

char *
tk_slot_name(Oid database, int32 pipeline_id)
{
	return psprintf("tk_%u_%d", database, pipeline_id);
}

char *
tk_owned_publication(int32 pipeline_id, int operation)
{
	return psprintf("tk_%d_%s", pipeline_id, tk_operation_names[operation]);
}

char *
tk_publication_list(const TkDefinition *d)
{
	StringInfoData list;

	if (d->publication != NULL)
		return pstrdup(quote_identifier(d->publication));
	initStringInfo(&list);
	for (int i = 0; i < TK_OPERATIONS; i++)
		appendStringInfo(&list, "%s%s", i > 0 ? "," : "", quote_identifier(tk_owned_publication(d->pipeline_id, i)));
	return list.data;
}

/* Looks like GetUserMapping, but its absence is no error: a cluster may need no secrets. */
static List *
user_mapping_options(Oid user, Oid server)
{
	const Oid	users[] = {user, InvalidOid};	/* his own, or PUBLIC's */

	for (int i = 0; i < (int) lengthof(users); i++)
	{
		HeapTuple	tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(users[i]), ObjectIdGetDatum(server));
		bool		isnull;
		Datum		options;
		List	   *result = NIL;
		bool		account = false;
		ListCell   *lc;

		if (!HeapTupleIsValid(tuple))
			continue;
		options = SysCacheGetAttr(USERMAPPINGUSERSERVER, tuple, Anum_pg_user_mapping_umoptions, &isnull);
		if (!isnull)
			result = untransformRelOptions(options);
		ReleaseSysCache(tuple);

		/* One that says only where its role may produce is no account with Kafka. */
		foreach(lc, result)
			account |= strcmp(((DefElem *) lfirst(lc))->defname, TK_ALLOWED_TOPICS) != 0;
		if (account)
			return result;
	}
	return NIL;
}

TkKafkaConf *
tk_server_conf(const TkDefinition *d)
{
	ForeignServer *server = GetForeignServerExtended(d->server, FSV_MISSING_OK);
	TkKafkaConf *conf = palloc0(sizeof(TkKafkaConf));
	TkKafkaProperty *properties;
	List	   *options;
	ListCell   *lc;

	if (server == NULL)
		return NULL;
	options = list_concat_copy(server->options, user_mapping_options(d->owner, d->server));
	properties = palloc(sizeof(TkKafkaProperty) * Max(list_length(options), 1));
	foreach(lc, options)
	{
		DefElem    *def = (DefElem *) lfirst(lc);

		if (strcmp(def->defname, TK_ALLOWED_TOPICS) == 0)
			continue;			/* not librdkafka's */
		properties[conf->nproperties].name = def->defname;
		properties[conf->nproperties].value = defGetString(def);
		conf->nproperties++;
	}
	conf->properties = properties;
	return conf;
}

char *
tk_to_utf8(const char *text)
{
	char	   *converted = pg_server_to_any(text, strlen(text), PG_UTF8);

	return converted == text ? pstrdup(text) : converted;
}

List *
tk_table_entries(const TkDefinition *d)
{
	static TkStatement statement = {
		"SELECT \"table\"::oid, options FROM kafka.pipeline_table WHERE pipeline_id = $1 ORDER BY 1", 1, {INT4OID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	Datum		key = Int32GetDatum(d->pipeline_id);
	uint64		n = tk_execute(&statement, &key, NULL, false);
	List	   *result = NIL;

	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;
		TkTableEntry *entry = MemoryContextAllocZero(caller, sizeof(TkTableEntry));
		Jsonb	   *options = column_jsonb(caller, row, 2);
		MemoryContext spi = MemoryContextSwitchTo(caller);
		TkTableOptions *parsed;
		ListCell   *lc;

		entry->relid = DatumGetObjectId(column(row, 1, &isnull));
		parsed = tk_parse_table_options(options, psprintf("a table of pipeline \"%s\"", d->name));
		entry->operations = tk_table_operations(parsed, 0);
		entry->outbox = parsed->route == TK_ROUTE_OUTBOX;
		entry->event_type_header = parsed->event_type_header;
		entry->settings.topic = parsed->topic;
		entry->settings.keys = palloc(sizeof(char *) * Max(list_length(parsed->keys), 1));
		foreach(lc, parsed->keys)
			entry->settings.keys[entry->settings.nkeys++] = tk_to_utf8(lfirst(lc));
		result = lappend(result, entry);
		MemoryContextSwitchTo(spi);
	}
	return result;
}

List *
tk_published_tables(const TkDefinition *d)
{
	static TkStatement users = {
		"SELECT DISTINCT c.oid, n.nspname, c.relname FROM pg_catalog.pg_publication p, "
		"LATERAL pg_catalog.pg_get_publication_tables(p.pubname) t, pg_catalog.pg_class c, pg_catalog.pg_namespace n "
		"WHERE p.oid = $1 AND c.oid = t.relid AND n.oid = c.relnamespace AND n.nspname <> 'kafka' ORDER BY 1", 1, {OIDOID}, NULL
	};
	static TkStatement own = {
		"SELECT c.oid, n.nspname, c.relname FROM kafka.pipeline_table t, pg_catalog.pg_class c, pg_catalog.pg_namespace n "
		"WHERE t.pipeline_id = $1 AND c.oid = t.\"table\" AND n.oid = c.relnamespace ORDER BY 1", 1, {INT4OID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	List	   *result = NIL;
	Datum		key;
	uint64		n;

	if (d->publication != NULL)
	{
		key = ObjectIdGetDatum(d->publication_oid);
		n = tk_execute(&users, &key, NULL, false);
	}
	else
	{
		key = Int32GetDatum(d->pipeline_id);
		n = tk_execute(&own, &key, NULL, false);
	}
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;
		TkTableName *table = MemoryContextAlloc(caller, sizeof(TkTableName));
		char	   *schema = column_text(caller, row, 2);
		char	   *name = column_text(caller, row, 3);
		MemoryContext spi = MemoryContextSwitchTo(caller);

		table->relid = DatumGetObjectId(column(row, 1, &isnull));
		table->schema = tk_to_utf8(schema);
		table->table = tk_to_utf8(name);
		result = lappend(result, table);
		MemoryContextSwitchTo(spi);
	}
	return result;
}

void
tk_describe_for_registry(const TkDefinition *d, TkPublication *p)
{
	XLogRecPtr	confirmed;

	memset(p, 0, sizeof(TkPublication));
	p->database = MyDatabaseId;
	p->catalog = tk_catalog_oid();
	p->pipeline_id = d->pipeline_id;
	p->name = d->name;
	p->owner = d->owner;
	p->server = d->server;
	p->slot_ready = tk_slot_state(tk_slot_name(MyDatabaseId, d->pipeline_id), &confirmed) == TK_SLOT_GOOD;
	p->generation = d->generation;
	p->state = TK_STATE_STOPPED;
}

/* Publishes what the catalog says of one pipeline. */
static void
publish_definition(const TkDefinition *d)
{
	TkPublication p;
	TkState		state;

	tk_state_load(d, &state);
	tk_describe_for_registry(d, &p);
	p.progress_topic = state.progress_topic;
	p.slot_ready = p.slot_ready && state.slot_created;
	if (!state.exists)
	{
		/* Restored or cloned: its slot and its place in Kafka belong to another database. */
		p.reason = "this definition was restored or cloned into this database";
		p.hint = "CALL kafka.resume() starts it here, as a new pipeline.";
	}
	else if (state.sticky_state != NULL)
	{
		p.state = tk_state_find(state.sticky_state);
		p.reason = state.sticky_reason;
		p.hint = state.sticky_hint;
	}
	else
		p.wanted = d->enabled && !d->dropping;
	if (tk_registry_publish(&p) == NULL)
		tk_report_registry_full(LOG, d->name);
}

/* Copies of this database's entries. */
static List *
known_pipelines(void)
{
	List	   *known = NIL;

	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *copy = palloc(sizeof(TkPipelineEntry));

		LWLockAcquire(tk_shared->lock, LW_SHARED);
		memcpy(copy, &tk_shared->entries[i], sizeof(TkPipelineEntry));
		LWLockRelease(tk_shared->lock);
		if (copy->in_use && copy->database == MyDatabaseId)
			known = lappend(known, copy);
		else
			pfree(copy);
	}
	return known;
}

static void
publish_gone(Oid catalog, int32 pipeline_id)
{
	TkPublication p = {0};
	TkPipelineEntry *entry;
	NameData	name;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	entry = tk_registry_find(MyDatabaseId, catalog, pipeline_id);
	if (entry != NULL)
	{
		name = entry->name;
		p.owner = entry->owner;
		p.server = entry->server;
		p.generation = entry->generation;
	}
	LWLockRelease(tk_shared->lock);
	if (entry == NULL)
		return;
	p.database = MyDatabaseId;
	p.catalog = catalog;
	p.pipeline_id = pipeline_id;
	p.name = NameStr(name);
	p.gone = true;
	(void) tk_registry_publish(&p);
}

/* The OID of kafka.pipeline; Invalid without the extension. */
Oid
tk_catalog_oid(void)
{
	Oid			schema = get_namespace_oid("kafka", true);

	return OidIsValid(schema) ? get_relname_relid("pipeline", schema) : InvalidOid;
}

void
tk_lock_scouting(bool exclusive)
{
	/* The sub-object tells it from locks on the table. */
	LockDatabaseObject(RelationRelationId, tk_catalog_oid(), 1, exclusive ? ExclusiveLock : ShareLock);
}

void
tk_catalog_scout(void)
{
	List	   *definitions = NIL;
	List	   *defined = NIL;
	List	   *known;			/* these two from before the snapshot: a newer one may only be unseen, … */
	List	   *slots;			/* … not gone, or nobody's */
	Oid			catalog = InvalidOid;
	MemoryContext transaction;
	ListCell   *lc;

	known = known_pipelines();
	slots = tk_list_own_slots();
	tk_transaction_begin();
	transaction = CurrentMemoryContext;
	if (OidIsValid(get_extension_oid("transactional_kafka", true)))
	{
		static TkStatement statement = {
			"SELECT " DEFINITION_COLUMNS " FROM kafka.pipeline ORDER BY pipeline_id", 0, {0}, NULL
		};
		uint64		n;

		tk_lock_scouting(false);
		n = tk_execute(&statement, NULL, NULL, false);
		catalog = tk_catalog_oid();
		for (uint64 row = 0; row < n; row++)
			definitions = lappend(definitions, definition_of_row(transaction, row));
	}
	foreach(lc, definitions)
	{
		MemoryContextSwitchTo(TopMemoryContext);	/* it outlives the transaction */
		defined = lappend_int(defined, ((TkDefinition *) lfirst(lc))->pipeline_id);
		MemoryContextSwitchTo(transaction);
	}

	/* Those that go make room. */
	foreach(lc, known)
	{
		TkPipelineEntry *entry = (TkPipelineEntry *) lfirst(lc);

		if (entry->catalog != catalog || !list_member_int(defined, entry->pipeline_id))
			publish_gone(entry->catalog, entry->pipeline_id);
	}
	foreach(lc, definitions)
		publish_definition((TkDefinition *) lfirst(lc));
	tk_transaction_commit();
	tk_drop_orphaned_slots(slots, defined);
}

/* Does the registry have every pipeline that is defined here? */
static bool
registry_is_complete(void)
{
	Oid			catalog = tk_catalog_oid();
	bool		complete = true;
	AttrNumber	id;
	AttrNumber	dropping;
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(catalog))
		return true;
	id = get_attnum(catalog, "pipeline_id");
	dropping = get_attnum(catalog, "dropping");
	rel = table_open(catalog, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (complete && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;

		if (DatumGetBool(heap_getattr(tuple, dropping, RelationGetDescr(rel), &isnull)))
			continue;
		LWLockAcquire(tk_shared->lock, LW_SHARED);
		complete = tk_registry_find(MyDatabaseId, catalog,
									DatumGetInt32(heap_getattr(tuple, id, RelationGetDescr(rel), &isnull))) != NULL;
		LWLockRelease(tk_shared->lock);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return complete;
}

void
tk_await_scout(void)
{
	static bool complete = false;	/* it stays so: whoever defines a pipeline publishes it */
	TimestampTz give_up;

	if (complete)
		return;
	give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SCOUT_PATIENCE_MS);
	while (!registry_is_complete())
	{
		if (GetCurrentTimestamp() >= give_up)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the pipelines of this database are not known yet"),
					 errdetail("After a start of the server a background worker reads their definitions; it has not done so within %d s.",
							   SCOUT_PATIENCE_MS / 1000),
					 errhint("See the server's log; raise max_worker_processes or transactional_kafka.max_pipelines if it asks for that.")));
		tk_request_scout(MyDatabaseId);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 20, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	complete = true;
}
