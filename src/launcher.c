/*
 * launcher.c
 *	  Launcher and scouts: which pipelines run.
 *
 * The launcher is one static process without a database, so it can't read
 * any pipeline's definition.  It sends a scout, a short-lived process, into
 * one database at a time: at its own start into each (those that own a slot
 * of ours first), later into those where a transaction changed a definition.
 * A scout publishes what the catalog says in the registry and leaves; it reads
 * committed state, so rollbacks and savepoints need no care.
 *
 * From the registry the launcher starts the pipelines that are wanted and have
 * no process.  A worker that failed is started again after 1 s, 2 s, … 30 s; a
 * sticky state is left alone until its definition's generation moves.
 *
 * It also looks after the WAL that the pipelines' slots keep, and warns while
 * that grows: nobody else does, once a pipeline has no process.
 *
 * A crash of any of these costs nothing but time: all is read anew.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "catalog.h"
#include "launcher.h"
#include "pg_compat.h"
#include "registry.h"
#include "wal_source.h"

#define BACKOFF_FIRST_MS 1000
#define BACKOFF_LAST_MS 30000

/* A worker that the postmaster has not brought up by then is taken for lost. */
#define LAUNCH_LIMIT_MS 60000

/* How often it looks at the WAL that slots keep. */
#define WAL_LOOK_MS 10000

PGDLLEXPORT void tk_launcher_main(Datum arg);
PGDLLEXPORT void tk_scout_main(Datum arg);

/* The launcher's own: databases still to be scouted, and the scout that runs. */
static List *to_scout = NIL;
static BackgroundWorkerHandle *scout = NULL;
static Oid	scout_database = InvalidOid;	/* where that one is */
static TimestampTz scout_retry_at = 0;
static bool no_worker_logged = false;
static TimestampTz wal_look_at = 0;

void
tk_launcher_init(void)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, "transactional_kafka launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "transactional_kafka launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "transactional_kafka", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "tk_launcher_main", sizeof(worker.bgw_function_name));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}

/* Registers a process for this library; false if no worker slot is free. */
static bool
start_process(const char *name, const char *type, const char *function, Datum arg, const int32 extra[2],
			  BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker = {0};
	bool		started;

	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, type, BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "transactional_kafka", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = arg;
	memcpy(worker.bgw_extra, extra, 2 * sizeof(int32));
	worker.bgw_notify_pid = MyProcPid;
	started = RegisterDynamicBackgroundWorker(&worker, handle);

	if (!started && !no_worker_logged)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no free background worker slot for %s", name),
				 errhint("Raise max_worker_processes and restart the server.")));
	no_worker_logged = !started;
	return started;
}

static void
launcher_exit(int code, Datum arg)
{
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	tk_shared->launcher_latch = NULL;
	tk_shared->launcher_pid = 0;
	LWLockRelease(tk_shared->lock);
}

/* All databases that can be connected to, those with a slot named as ours first. */
static void
scout_all_databases(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *with_slot = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (slot->in_use && strncmp(NameStr(slot->data.name), "tk_", 3) == 0)
			with_slot = list_append_unique_oid(with_slot, slot->data.database);
	}
	LWLockRelease(ReplicationSlotControlLock);

	StartTransactionCommand();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext transaction;

		if (!database->datallowconn)
			continue;
		transaction = MemoryContextSwitchTo(caller);
		if (list_member_oid(with_slot, database->oid))
			to_scout = lcons_oid(database->oid, to_scout);
		else
			to_scout = lappend_oid(to_scout, database->oid);
		MemoryContextSwitchTo(transaction);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	list_free(with_slot);
}

static bool
database_exists(Oid database)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		exists;

	StartTransactionCommand();
	exists = SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database));
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return exists;
}

/*
 * Can it be connected to?  One that can't is left alone until somebody changes
 * that; -2 is what an interrupted DROP DATABASE leaves.
 */
static bool
database_is_open(Oid database)
{
	MemoryContext caller = CurrentMemoryContext;
	HeapTuple	tuple;
	bool		open = false;

	StartTransactionCommand();

	/* A commit pokes us before it sends its invalidations. */
	InvalidateSystemCaches();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		open = form->datallowconn && form->datconnlimit != -2;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return open;
}

/* Takes over what others asked for. */
static void
collect_requests(void)
{
	bool		all;

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	all = tk_shared->nrequests > TK_MAX_SCOUT_REQUESTS;
	if (!all)
		for (int i = 0; i < tk_shared->nrequests; i++)
			to_scout = list_append_unique_oid(to_scout, tk_shared->requests[i]);
	tk_shared->nrequests = 0;
	LWLockRelease(tk_shared->lock);
	if (all)
		scout_all_databases();
}

/* Sends the next scout when the one before has come back. */
static void
send_scout(TimestampTz now)
{
	pid_t		pid;
	Oid			database;
	int32		extra[2] = {0, 0};

	if (scout != NULL)
	{
		if (GetBackgroundWorkerPid(scout, &pid) != BGWH_STOPPED)
			return;
		pfree(scout);
		scout = NULL;

		/* One that failed proves nothing: once more, after the others. */
		if (tk_shared->scouted != scout_database)
		{
			to_scout = list_append_unique_oid(to_scout, scout_database);
			scout_retry_at = TimestampTzPlusMilliseconds(now, BACKOFF_FIRST_MS);
		}
	}
	while (to_scout != NIL && !database_is_open(linitial_oid(to_scout)))
		to_scout = list_delete_first(to_scout);
	if (to_scout == NIL || now < scout_retry_at)
		return;
	database = linitial_oid(to_scout);
	scout_database = database;
	tk_shared->scouted = InvalidOid;
	if (start_process("transactional_kafka scout", "transactional_kafka scout", "tk_scout_main",
					  ObjectIdGetDatum(database), extra, &scout))
		to_scout = list_delete_first(to_scout);
	else
		scout_retry_at = TimestampTzPlusMilliseconds(now, BACKOFF_FIRST_MS);
}

static int64
backoff_ms(int failures)
{
	int64		ms = BACKOFF_FIRST_MS;

	while (failures-- > 1 && ms < BACKOFF_LAST_MS)
		ms *= 2;
	return Min(ms, BACKOFF_LAST_MS);
}

/* Starts one pipeline's worker, if it is time.  Returns ms until it is; -1: it needs nothing. */
static int64
tend_pipeline(int index, TimestampTz now, BackgroundWorkerHandle **handle)
{
	TkPipelineEntry *entry = &tk_shared->entries[index];
	int32		extra[2];
	char		name[BGW_MAXLEN];
	pid_t		pid;
	bool		start = false;
	int64		delay = -1;

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	if (entry->in_use && entry->launched_at != 0 && entry->pid == 0)
	{
		bool		lost;

		/* Registered; up in a moment, or it never will be. */
		if (*handle != NULL)
			lost = GetBackgroundWorkerPid(*handle, &pid) == BGWH_STOPPED;
		else
			lost = now >= TimestampTzPlusMilliseconds(entry->launched_at, LAUNCH_LIMIT_MS);
		if (lost)
		{
			entry->launched_at = 0;
			entry->failures++;
		}
		else
			delay = BACKOFF_FIRST_MS;
	}
	if (entry->in_use && entry->pid == 0 && entry->launched_at == 0)
	{
		if (entry->gone)
		{
			/* Its slot, if that is still there, belongs to nobody now: a scout looks. */
			entry->in_use = false;
			ConditionVariableBroadcast(&entry->changed);
			to_scout = list_append_unique_oid(to_scout, entry->database);
			delay = 0;
		}
		else if (entry->wanted && !tk_state_is_sticky(entry->state))
		{
			if (entry->failures > 0 && entry->retry_at == 0)
				entry->retry_at = TimestampTzPlusMilliseconds(now, backoff_ms(entry->failures));
			if (now >= entry->retry_at)
			{
				start = true;
				entry->no_worker = false;
				entry->launched_at = now;
				entry->retry_at = 0;
			}
			else
				delay = TimestampDifferenceMilliseconds(now, entry->retry_at) + 1;
		}
	}
	extra[0] = (int32) entry->database;
	extra[1] = entry->pipeline_id;
	snprintf(name, BGW_MAXLEN, "transactional_kafka pipeline %s", NameStr(entry->name));
	LWLockRelease(tk_shared->lock);

	if (!start)
		return delay;
	if (!database_exists((Oid) extra[0]))
	{
		/* DROP DATABASE: a slot that nobody was using didn't hold it up. */
		LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
		entry->launched_at = 0;
		entry->in_use = false;
		ConditionVariableBroadcast(&entry->changed);
		LWLockRelease(tk_shared->lock);
		return -1;
	}
	if (*handle != NULL)
		pfree(*handle);
	*handle = NULL;
	if (start_process(name, name, "tk_pipeline_main", Int32GetDatum(index), extra, handle))
		return BACKOFF_FIRST_MS;

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	entry->launched_at = 0;
	entry->no_worker = true;
	entry->failures++;
	LWLockRelease(tk_shared->lock);
	tk_set_state(entry, TK_STATE_RETRYING, "no free background worker slot",
				 "Raise max_worker_processes and restart the server.");
	return BACKOFF_FIRST_MS;
}

static const char *
retained_wal_hint(TkPipelineStateKind state)
{
	switch (state)
	{
		case TK_STATE_STOPPED:
			return "CALL kafka.resume() goes on from there; kafka.drop_pipeline() lets the WAL go.";
		case TK_STATE_STARTING:
		case TK_STATE_RETRYING:
			return "It goes on by itself once the cause is mended; kafka.drop_pipeline() lets the WAL go.";
		case TK_STATE_RUNNING:
			return "A transaction that is open for long keeps WAL, and so does a Kafka that is slower than this server.";
		default:
			return "The view kafka.pipelines says what to do; kafka.drop_pipeline() lets the WAL go.";
	}
}

/*
 * Warns when a pipeline's slot keeps retained_wal_warning of WAL, and at each
 * doubling: a disk that fills in minutes is warned of as often as one that
 * fills in weeks, and a log is not filled instead.  Said again only after it
 * has fallen by two doublings.  The state doesn't matter: WAL of a pipeline
 * that runs too slowly fills the disk as well.
 */
static void
warn_of_retained_wal(TkPipelineEntry *shared)
{
	TkPipelineEntry entry;
	MemoryContext caller = CurrentMemoryContext;
	char		slot[NAMEDATALEN];
	XLogRecPtr	from;
	uint64		megabytes = 0;
	int			level = 0;
	char	   *database;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	memcpy(&entry, shared, offsetof(TkPipelineEntry, waiting));
	LWLockRelease(tk_shared->lock);
	if (!entry.in_use || entry.gone)
		return;
	snprintf(slot, sizeof(slot), "tk_%u_%d", entry.database, entry.pipeline_id);
	from = tk_slot_keeps(slot);
	if (tk_retained_wal_warning >= 0 && !XLogRecPtrIsInvalid(from))
	{
		XLogRecPtr	end = tk_flush_position(NULL);

		megabytes = end > from ? (end - from) / (1024 * 1024) : 0;
		for (uint64 limit = Max(tk_retained_wal_warning, 1); limit <= megabytes; limit *= 2)
			level++;
	}
	if (level <= entry.wal_warned)
	{
		/* Only the launcher writes this, and who takes the entry when it is free. */
		if (level < entry.wal_warned - 1)
			shared->wal_warned = level;
		return;
	}
	shared->wal_warned = level;

	StartTransactionCommand();
	database = get_database_name(entry.database);
	ereport(WARNING,
			(errmsg("pipeline \"%s\" of database \"%s\" (%s) keeps " UINT64_FORMAT " MB of WAL",
					NameStr(entry.name), database ? database : "?", tk_state_name(entry.state), megabytes),
			 errdetail("Its replication slot \"%s\" needs all WAL from %X/%X on.%s%s", slot, LSN_FORMAT_ARGS(from),
					   entry.reason[0] ? " The pipeline says: " : "", entry.reason),
			 errhint("%s max_slot_wal_keep_size limits what slots keep, at the price of the slot.",
					 retained_wal_hint(entry.state))));
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/* Looks after the WAL of all pipelines, if it is time.  Returns ms until it is; -1: there is none. */
static int64
look_after_wal(TimestampTz now)
{
	bool		any = false;

	for (int i = 0; i < tk_shared->nentries; i++)
		any |= tk_shared->entries[i].in_use;
	if (!any || tk_retained_wal_warning < 0)
		return -1;
	if (now >= wal_look_at)
	{
		for (int i = 0; i < tk_shared->nentries; i++)
			warn_of_retained_wal(&tk_shared->entries[i]);
		wal_look_at = TimestampTzPlusMilliseconds(now, WAL_LOOK_MS);
	}
	return TimestampDifferenceMilliseconds(now, wal_look_at) + 1;
}

void
tk_launcher_main(Datum arg)
{
	BackgroundWorkerHandle **handles;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	tk_catch_up_with_reload();
	before_shmem_exit(launcher_exit, 0);

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	tk_shared->launcher_latch = MyLatch;
	tk_shared->launcher_pid = MyProcPid;
	LWLockRelease(tk_shared->lock);

	MemoryContextSwitchTo(TopMemoryContext);
	handles = palloc0(sizeof(BackgroundWorkerHandle *) * tk_shared->nentries);
	scout_all_databases();

	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();
		int64		timeout = -1;
		int64		delay;

		collect_requests();
		send_scout(now);
		for (int i = 0; i < tk_shared->nentries; i++)
		{
			delay = tend_pipeline(i, now, &handles[i]);
			if (delay >= 0 && (timeout < 0 || delay < timeout))
				timeout = delay;
		}
		delay = look_after_wal(now);
		if (delay >= 0)
			timeout = timeout < 0 ? delay : Min(timeout, delay);
		if (scout != NULL || to_scout != NIL)
			timeout = timeout < 0 ? BACKOFF_FIRST_MS : Min(timeout, BACKOFF_FIRST_MS);

		/* The end of a scout or worker comes as a signal that sets the latch. */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout >= 0 ? WL_TIMEOUT : 0),
						 timeout, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			wal_look_at = 0;
		}
	}
}

/*
 * Until a background worker has its own handler core has it ignore SIGHUP
 * (bgworker.c, StartBackgroundWorker), and then even one that is pending is
 * thrown away: a reload between the fork and the handler would never be heard of.
 */
void
tk_catch_up_with_reload(void)
{
	ProcessConfigFile(PGC_SIGHUP);
}

/* One database: publish what its catalog says, and leave. */
void
tk_scout_main(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);

	/* Somebody who holds a lock there must not keep the other databases waiting. */
	SetConfigOption("lock_timeout", "2s", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "pg_catalog", PGC_SUSET, PGC_S_OVERRIDE);
	tk_catalog_scout();
	tk_shared->scouted = MyDatabaseId;
	proc_exit(0);
}
