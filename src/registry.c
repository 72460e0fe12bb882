/*
 * registry.c
 *	  Shared memory: see registry.h.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "pg_compat.h"
#include "registry.h"

#define TRANCHE_NAME "transactional_kafka"

TkShared   *tk_shared = NULL;

static int	max_pipelines = 64;
int			tk_retained_wal_warning = 1024;

/* Pipelines whose definition this transaction changes; more than fit: all of the database. */
#define MAX_CHANGED 16
static int32 changed_pipelines[MAX_CHANGED];
static int	nchanged = 0;

static XLogRecPtr last_commit_seen = InvalidXLogRecPtr;

static shmem_startup_hook_type previous_startup_hook = NULL;
#ifdef TK_HAVE_SHMEM_REQUEST_HOOK
static shmem_request_hook_type previous_request_hook = NULL;
#endif

static const char *const state_names[] = {
	[TK_STATE_STOPPED] = "stopped",
	[TK_STATE_STARTING] = "starting",
	[TK_STATE_RUNNING] = "running",
	[TK_STATE_RETRYING] = "retrying",
	[TK_STATE_DIVERGED] = "diverged",
	[TK_STATE_FENCED] = "fenced",
	[TK_STATE_SLOT_LOST] = "slot_lost",
	[TK_STATE_FAILED] = "failed"
};

static Size
shared_size(void)
{
	return add_size(offsetof(TkShared, entries), mul_size(max_pipelines, sizeof(TkPipelineEntry)));
}

static void
request_shared_memory(void)
{
#ifdef TK_HAVE_SHMEM_REQUEST_HOOK
	if (previous_request_hook)
		previous_request_hook();
#endif
	RequestAddinShmemSpace(add_size(shared_size(), tk_stats_size(max_pipelines)));
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
}

/*
 * What others may use without the lock is initialized once and for all: a
 * process can still be on the condition variable of the entry's last owner.
 */
static void
init_entry(TkPipelineEntry *entry)
{
	pg_atomic_init_u32(&entry->waiting, 0);
	pg_atomic_init_u64(&entry->wanted_lsn, 0);
	pg_atomic_init_u64(&entry->read_lsn, 0);
	pg_atomic_init_u64(&entry->covered_lsn, 0);
	pg_atomic_init_u64(&entry->visible_lsn, 0);
	pg_atomic_init_u64(&entry->visible_wanted, 0);
	pg_atomic_init_u64(&entry->confirmed_lsn, 0);
	pg_atomic_init_u64(&entry->checkpoint_id, 0);
	pg_atomic_init_u64(&entry->rejected, 0);
	pg_atomic_init_u32(&entry->signing_key, 0);
	pg_atomic_init_u32(&entry->settled_key, 0);
	ConditionVariableInit(&entry->changed);
}

static void
init_shared_memory(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	tk_shared = ShmemInitStruct("transactional_kafka", shared_size(), &found);
	if (!found)
	{
		memset(tk_shared, 0, shared_size());
		tk_shared->lock = &GetNamedLWLockTranche(TRANCHE_NAME)->lock;
		pg_atomic_init_u32(&tk_shared->nwaiting, 0);
		tk_shared->nentries = max_pipelines;
		for (int i = 0; i < max_pipelines; i++)
			init_entry(&tk_shared->entries[i]);
	}
	tk_stats_init(max_pipelines, tk_shared->lock->tranche);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Definitions have changed, for good or (a savepoint that was rolled back) not:
 * at worst a worker starts anew for nothing.
 */
static void
announce_changes(void)
{
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];
		bool		meant = nchanged > MAX_CHANGED;

		if (!entry->in_use || entry->database != MyDatabaseId)
			continue;
		for (int j = 0; j < nchanged && !meant; j++)
			meant = changed_pipelines[j] == entry->pipeline_id;
		if (!meant)
			continue;
		entry->altered = true;
		tk_wake_worker(entry);
	}
	LWLockRelease(tk_shared->lock);
	nchanged = 0;
	tk_request_scout(MyDatabaseId);
}

/*
 * A transaction of this backend has ended.
 *
 * It wakes the workers of its database that sleep, if it wrote WAL (a COMMIT
 * PREPARED has no xid, so the commit's position is what is looked at), and
 * the launcher if it changed a definition.  An asynchronous commit is woken
 * for before it is flushed; the worker's own timeout finds it then.
 */
static void
after_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
			if (nchanged > 0)
				announce_changes();
			if (XactLastCommitEnd == last_commit_seen)
				return;
			last_commit_seen = XactLastCommitEnd;
			if (pg_atomic_read_u32(&tk_shared->nwaiting) == 0)
				return;
			for (int i = 0; i < tk_shared->nentries; i++)
			{
				TkPipelineEntry *entry = &tk_shared->entries[i];

				if (entry->database == MyDatabaseId && pg_atomic_read_u32(&entry->waiting) != 0)
					tk_wake_worker(entry);
			}
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
		case XACT_EVENT_PREPARE:
			nchanged = 0;
			break;
		case XACT_EVENT_PRE_PREPARE:
			if (nchanged > 0)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has changed a pipeline of transactional_kafka")));
			break;
		default:
			break;
	}
}

void
tk_registry_init(void)
{
	DefineCustomIntVariable("transactional_kafka.max_pipelines",
							"How many pipelines this server can have, over all databases.",
							NULL, &max_pipelines, 64, 1, 10000, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("transactional_kafka.retained_wal_warning",
							"Warns in the server's log when a pipeline's slot keeps this much WAL, and at each doubling.",
							"-1 means never.", &tk_retained_wal_warning, 1024, -1, INT_MAX, PGC_SIGHUP,
							GUC_UNIT_MB, NULL, NULL, NULL);

#ifdef TK_HAVE_SHMEM_REQUEST_HOOK
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
#else
	request_shared_memory();
#endif
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = init_shared_memory;
	RegisterXactCallback(after_transaction, NULL);
}

const char *
tk_state_name(TkPipelineStateKind state)
{
	return state_names[state];
}

TkPipelineStateKind
tk_state_find(const char *name)
{
	for (int i = 0; i < (int) lengthof(state_names); i++)
		if (strcmp(state_names[i], name) == 0)
			return (TkPipelineStateKind) i;
	return TK_STATE_STOPPED;
}

void
tk_require_preloaded(void)
{
	if (tk_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transactional_kafka must be loaded via shared_preload_libraries"),
				 errhint("Add transactional_kafka to shared_preload_libraries in postgresql.conf and restart the server.")));
}

TkPipelineEntry *
tk_registry_find(Oid database, Oid catalog, int32 pipeline_id)
{
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (entry->in_use && entry->database == database && entry->catalog == catalog &&
			entry->pipeline_id == pipeline_id)
			return entry;
	}
	return NULL;
}

/* Pipelines of this database whose extension was dropped: they go. */
static void
dismiss_strangers(Oid database, Oid catalog)
{
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (!entry->in_use || entry->database != database || entry->catalog == catalog)
			continue;
		entry->wanted = false;
		entry->gone = true;
		ConditionVariableBroadcast(&entry->changed);
		tk_wake_worker(entry);
	}
}

/* A free entry, made this pipeline's. NULL if all are taken. */
static TkPipelineEntry *
take_entry(const TkPublication *p)
{
	dismiss_strangers(p->database, p->catalog);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (entry->in_use)
			continue;
		memset(entry, 0, offsetof(TkPipelineEntry, waiting));
		entry->database = p->database;
		entry->catalog = p->catalog;
		entry->pipeline_id = p->pipeline_id;
		namestrcpy(&entry->name, p->name);
		entry->generation = p->generation;
		pg_atomic_write_u64(&entry->wanted_lsn, 0);
		pg_atomic_write_u64(&entry->read_lsn, 0);
		pg_atomic_write_u64(&entry->covered_lsn, 0);
		pg_atomic_write_u64(&entry->visible_lsn, 0);
		pg_atomic_write_u64(&entry->visible_wanted, 0);
		pg_atomic_write_u64(&entry->confirmed_lsn, 0);
		pg_atomic_write_u64(&entry->checkpoint_id, 0);
		pg_atomic_write_u64(&entry->rejected, 0);
		pg_atomic_write_u32(&entry->signing_key, 0);
		pg_atomic_write_u32(&entry->settled_key, 0);
		tk_stats_clear(i);
		entry->in_use = true;
		return entry;
	}
	return NULL;
}

static void
note_state(TkPipelineEntry *entry, TkPipelineStateKind state, const char *reason, const char *hint)
{
	entry->state = state;
	entry->since = GetCurrentTimestamp();
	strlcpy(entry->reason, reason ? reason : "", TK_REASON_MAX);
	strlcpy(entry->hint, hint ? hint : "", TK_HINT_MAX);
}

/* Takes over what the catalog says; the lock is held. */
static void
apply_publication(TkPipelineEntry *entry, const TkPublication *p, bool news)
{
	entry->generation = p->generation;
	entry->owner = p->owner;
	entry->server = p->server;
	if (p->progress_topic != NULL)
		strlcpy(entry->progress_topic, p->progress_topic, sizeof(entry->progress_topic));
	entry->slot_ready = entry->pid != 0 ? entry->slot_ready || p->slot_ready : p->slot_ready;
	entry->wanted = p->wanted;
	entry->gone = p->gone;
	if (news)
	{
		/* The operator has changed something: no waiting out of an old failure. */
		entry->failures = 0;
		entry->retry_at = 0;
		entry->batch_limit = 0; /* the topics may take more now: it is asked again */
		if (entry->pid == 0 || (p->wanted && tk_state_is_sticky(entry->state)))
			note_state(entry, p->wanted ? TK_STATE_STARTING : p->state, p->reason, p->hint);
	}
	if (entry->gone && entry->pid == 0 && entry->launched_at == 0)
		entry->in_use = false;
}

void
tk_report_registry_full(int elevel, const char *name)
{
	ereport(elevel,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no room for pipeline \"%s\": this server can have %d pipelines", name, max_pipelines),
			 errdetail("The pipeline is defined and starts when there is room."),
			 errhint("Raise transactional_kafka.max_pipelines and restart the server.")));
}

TkPipelineEntry *
tk_registry_publish(const TkPublication *p)
{
	TkPipelineEntry *entry;
	bool		known;

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	entry = tk_registry_find(p->database, p->catalog, p->pipeline_id);
	known = entry != NULL;
	if (!known && !p->gone)
		entry = take_entry(p);
	if (entry != NULL && p->generation >= entry->generation)
		apply_publication(entry, p, !known || p->generation > entry->generation);
	LWLockRelease(tk_shared->lock);

	if (entry == NULL)
		return NULL;
	ConditionVariableBroadcast(&entry->changed);
	tk_wake_worker(entry);
	tk_wake_launcher();
	return entry;
}

void
tk_check_not_progress_topic(const char *topic, const char *what)
{
	NameData	owner;
	bool		taken = false;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries && !taken; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		/* Not its own, of a start before this one. */
		if (entry->in_use && entry->pid != MyProcPid && strcmp(entry->progress_topic, topic) == 0)
		{
			taken = true;
			owner = entry->name;
		}
	}
	LWLockRelease(tk_shared->lock);
	if (taken)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("topic \"%s\" can't be used for %s", topic, what),
				 errdetail("A topic of this name is the progress topic of pipeline \"%s\" of this server: what it holds says where that pipeline is.",
						   NameStr(owner))));
}

void
tk_wake_worker(TkPipelineEntry *entry)
{
	/* A latch of shared memory: at worst it wakes a stranger for nothing. */
	Latch	   *latch = entry->latch;

	if (latch != NULL)
		SetLatch(latch);
}

void
tk_wake_launcher(void)
{
	Latch	   *latch = tk_shared->launcher_latch;

	if (latch != NULL)
		SetLatch(latch);
}

void
tk_request_scout(Oid database)
{
	bool		known = false;

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Min(tk_shared->nrequests, TK_MAX_SCOUT_REQUESTS); i++)
		known |= tk_shared->requests[i] == database;
	if (!known && tk_shared->nrequests < TK_MAX_SCOUT_REQUESTS)
		tk_shared->requests[tk_shared->nrequests] = database;
	if (!known && tk_shared->nrequests <= TK_MAX_SCOUT_REQUESTS)
		tk_shared->nrequests++;
	LWLockRelease(tk_shared->lock);
	tk_wake_launcher();
}

void
tk_definition_changes(int32 pipeline_id)
{
	if (nchanged < MAX_CHANGED)
		changed_pipelines[nchanged] = pipeline_id;
	if (nchanged <= MAX_CHANGED)
		nchanged++;
}

void
tk_all_definitions_change(void)
{
	nchanged = MAX_CHANGED + 1;
}

void
tk_set_waiting(TkPipelineEntry *entry, bool waiting)
{
	if (pg_atomic_exchange_u32(&entry->waiting, waiting ? 1 : 0) == (waiting ? 1 : 0))
		return;
	if (waiting)
		pg_atomic_fetch_add_u32(&tk_shared->nwaiting, 1);
	else
		pg_atomic_fetch_sub_u32(&tk_shared->nwaiting, 1);
}

void
tk_set_state(TkPipelineEntry *entry, TkPipelineStateKind state, const char *reason, const char *hint)
{
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	note_state(entry, state, reason, hint);
	LWLockRelease(tk_shared->lock);
	ConditionVariableBroadcast(&entry->changed);
}
