/*
 * worker.c
 *	  The process of a pipeline: how it begins, and how it ends.
 *
 * It ends by an error (and is started again by the launcher, after a while),
 * in a state that only the operator ends, or because it was told to.  A worker
 * that crashes would restart the whole server, so every end goes through
 * pipeline_exit, which leaves Kafka and the registry tidy within a bound, and
 * through exit handlers only when none of librdkafka's threads is left.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "launcher.h"
#include "pipeline.h"
#include "wal_source.h"

PGDLLEXPORT void tk_pipeline_main(Datum arg);

static bool orderly_exit = false;
static bool state_told = false; /* the registry says why this process ends */
static int64 attached_generation;

static void
pin_setting(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/* What the bytes of a record depend on, whatever the database's or role's settings say. */
static void
pin_settings(void)
{
	StartTransactionCommand();	/* client_encoding looks the conversion up */
	pin_setting("search_path", "pg_catalog");
	pin_setting("datestyle", "ISO, YMD");
	pin_setting("intervalstyle", "iso_8601");
	pin_setting("timezone", "UTC");
	pin_setting("extra_float_digits", "1");
	pin_setting("bytea_output", "hex");
	pin_setting("lc_monetary", "C");
	pin_setting("xmloption", "content");
	if (GetDatabaseEncoding() != PG_SQL_ASCII)
		pin_setting("client_encoding", "UTF8");

	/* A standby's copy of the committable isn't needed, and must not hold the Kafka transaction open. */
	pin_setting("synchronous_commit", "local");
	pin_setting("logical_decoding_work_mem", "32MB");
	pin_setting("default_transaction_isolation", "read committed");
	pin_setting("default_transaction_read_only", "off");
	pin_setting("default_transaction_deferrable", "off");
	pin_setting("row_security", "on");
	pin_setting("statement_timeout", "0");
	pin_setting("lock_timeout", "0");
	pin_setting("idle_in_transaction_session_timeout", "0");
	CommitTransactionCommand();
}

/* before_shmem_exit: leave Kafka and the registry tidy, within about two seconds whatever hangs. */
static void
pipeline_exit(int code, Datum arg)
{
	TkPipeline *p = &tk_pipeline;
	TkPipelineEntry *entry = p->entry;

	tk_set_waiting(entry, false);
	tk_stats_detach();
	if (p->reader != NULL)
		(void) tk_progress_reader_destroy(p->reader, TK_EXIT_PATIENCE_MS);
	for (int i = 0; i < p->pool_size; i++)
	{
		/*
		 * An open transaction is aborted through the handle that opened it. One that is prepared may be committed
		 * already: recovery finds out.
		 */
		bool		abort_open = p->transaction_open && i == p->current;

		for (int j = 0; j < p->nclosing; j++)
			if (i == p->closing[j].producer)
				abort_open = p->closing[j].checkpoint.state < TK_CHECKPOINT_PREPARED;
		if (p->producers[i] != NULL)
			(void) tk_producer_destroy(p->producers[i], abort_open, TK_EXIT_PATIENCE_MS);
	}

	/* Free before the launcher hears of it. */
	tk_slot_release();

	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	entry->pid = 0;
	entry->latch = NULL;
	entry->launched_at = 0;
	if (!orderly_exit)
		entry->failures++;
	if (!state_told)
	{
		entry->since = GetCurrentTimestamp();
		entry->reason[0] = entry->hint[0] = '\0';
		if (!entry->wanted)
			entry->state = TK_STATE_STOPPED;
		else if (orderly_exit)
			entry->state = TK_STATE_STARTING;
		else
		{
			entry->state = TK_STATE_RETRYING;
			strlcpy(entry->reason, "its process was ended; see the server's log", TK_REASON_MAX);
		}
	}
	LWLockRelease(tk_shared->lock);
	ConditionVariableBroadcast(&entry->changed);
	tk_wake_launcher();
}

/*
 * on_proc_exit, after shared memory was released: with threads of librdkafka
 * left behind, the C library's exit handlers would run beside them.
 */
static void
leave_threads_behind(int code, Datum arg)
{
	if (tk_kafka_threads_left())
		_exit(code);
}

/* Takes the registry's entry; false if it isn't ours to run. */
static bool
attach(int index)
{
	TkPipelineEntry *entry = &tk_shared->entries[index];
	int32		ids[2];
	bool		mine;

	memcpy(ids, MyBgworkerEntry->bgw_extra, sizeof(ids));
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	mine = entry->in_use && entry->pid == 0 && entry->database == (Oid) ids[0] && entry->pipeline_id == ids[1];
	if (mine)
	{
		attached_generation = entry->generation;
		entry->altered = false; /* what it says is read after this */
		entry->pid = MyProcPid;
		entry->latch = &MyProc->procLatch;
		entry->state = TK_STATE_STARTING;
		entry->since = GetCurrentTimestamp();
	}
	LWLockRelease(tk_shared->lock);
	tk_pipeline.entry = entry;
	if (mine)
	{
		tk_stats_attach(tk_entry_index(entry));
		ConditionVariableBroadcast(&entry->changed);
	}
	return mine;
}

/* Stores a sticky state, in a transaction of its own; it must outlive a restart of the server. */
static void
store_sticky(TkPipelineStateKind state, const char *reason, const char *hint)
{
	tk_transaction_begin();
	tk_state_sticky(tk_pipeline.definition, tk_state_name(state), reason, hint);
	tk_transaction_commit();
}

/* Errors that come again as long as nobody changes something. */
static bool
heals(int sqlerrcode)
{
	return sqlerrcode != ERRCODE_UNDEFINED_COLUMN && sqlerrcode != ERRCODE_PROGRAM_LIMIT_EXCEEDED;
}

/* A lost slot becomes sticky only after Kafka was asked what it has; until it answers, this is said beside. */
static const char *
lost_slot(void)
{
	TkPipeline *p = &tk_pipeline;
	XLogRecPtr	confirmed;

	if (p->definition == NULL || p->slot_name == NULL || !p->state.slot_created)
		return NULL;
	switch (tk_slot_state(p->slot_name, &confirmed))
	{
		case TK_SLOT_LOST:
			return "was invalidated (see max_slot_wal_keep_size)";
		case TK_SLOT_MISSING:
			return "was dropped";
		default:
			return NULL;
	}
}

/* A pause, but not what drop_pipeline() does: from now on WAL piles up. */
static void
warn_of_pause(void)
{
	TkDefinition *d;

	if (tk_pipeline.entry->wanted || tk_pipeline.entry->gone)
		return;
	tk_transaction_begin();
	MemoryContextSwitchTo(tk_pipeline.context);
	d = tk_definition_by_id(tk_pipeline.entry->pipeline_id);
	tk_transaction_commit();
	if (d != NULL && !d->enabled && !d->dropping)
		ereport(WARNING,
				(errmsg("pipeline \"%s\" is paused: the server keeps all WAL from its position on", d->name),
				 errhint("CALL kafka.resume() goes on from there; kafka.drop_pipeline() lets the WAL go.")));
}

/*
 * A checkpoint has failed with the run, if one was under way.  Returns what
 * makes that sticky, or NULL: it may be tried again.
 */
static char *
count_failed_checkpoint(const char *message)
{
	TkPipeline *p = &tk_pipeline;
	int			failed;

	if (p->options == NULL || (p->nclosing == 0 && p->checkpoint.state == TK_CHECKPOINT_NONE))
		return NULL;
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	failed = ++p->entry->failed_checkpoints;
	if (p->options->tolerable_failed_checkpoints >= 0 && failed > p->options->tolerable_failed_checkpoints)
		p->entry->failed_checkpoints = 0;	/* resume() begins to count anew */
	else
		failed = 0;
	LWLockRelease(tk_shared->lock);
	return failed == 0 ? NULL :
		psprintf("%d checkpoints in a row have failed (tolerable_failed_checkpoints is %d); the last one: %s",
				 failed, p->options->tolerable_failed_checkpoints, message);
}

/* The start has failed, or the run has: tell the log, the registry and, if it is sticky, the catalog. */
static void
handle_error(void)
{
	TkPipeline *p = &tk_pipeline;
	const char *reason;
	const char *hint;
	TkPipelineStateKind sticky = tk_sticky_asked(&reason, &hint);
	const char *lost;
	ErrorData  *error;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(p->context);
	error = CopyErrorData();

	/* Cancelled while it waited, by a procedure that wants it to stop. */
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && p->definition != NULL && tk_stop_wanted())
		tk_stopping = true;
	if (!tk_stopping)
		EmitErrorReport();
	FlushErrorState();

	/* Decoding, and confirming the slot, run outside of a transaction: no abort lets go of what they held. */
	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	tk_wait_end();
	if (sticky == TK_STATE_STOPPED && p->definition != NULL && !heals(error->sqlerrcode))
	{
		sticky = TK_STATE_FAILED;
		reason = error->message;
		hint = error->hint ? error->hint : "CALL kafka.resume() tries again.";
	}
	if (sticky == TK_STATE_STOPPED && !tk_stopping)
	{
		char	   *too_many = count_failed_checkpoint(error->message);

		if (too_many != NULL)
		{
			sticky = TK_STATE_FAILED;
			reason = too_many;
			hint = "Mend the cause, or raise tolerable_failed_checkpoints; then CALL kafka.resume().";
		}
	}
	AbortOutOfAnyTransaction();
	MemoryContextSwitchTo(p->context);
	RESUME_INTERRUPTS();

	if (tk_stopping)
	{
		tk_stats_failed(error->message, false);
		orderly_exit = true;
		warn_of_pause();
		return;
	}
	tk_stats_failed(sticky != TK_STATE_STOPPED ? reason : error->message, true);
	if (sticky != TK_STATE_STOPPED)
	{
		store_sticky(sticky, reason, hint);

		/* A resume() that came meanwhile counts: the catalog says so too. */
		tk_set_state(p->entry, p->entry->generation > p->definition->generation ? TK_STATE_RETRYING : sticky,
					 reason, hint);
		state_told = true;
		ereport(WARNING,
				(errmsg("pipeline \"%s\" has stopped (%s): the server keeps all WAL from its position on",
						NameStr(p->entry->name), tk_state_name(sticky)),
				 errhint("See the view kafka.pipelines; kafka.drop_pipeline() lets the WAL go.")));
		orderly_exit = true;
		return;
	}
	lost = lost_slot();
	reason = lost == NULL ? error->message :
		psprintf("%s; besides, its replication slot %s: it will stop as slot_lost", error->message, lost);
	tk_set_state(p->entry, TK_STATE_RETRYING, reason, error->hint);
	state_told = true;
	tk_request_scout(MyDatabaseId); /* the definition may be gone with its extension */
}

/* The registry wanted what the catalog doesn't: let a scout look again. */
static void
withdraw(void)
{
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	if (tk_pipeline.entry->generation == attached_generation)
		tk_pipeline.entry->wanted = false;
	LWLockRelease(tk_shared->lock);
	tk_request_scout(MyDatabaseId);
	orderly_exit = true;
}

void
tk_pipeline_main(Datum arg)
{
	/* Registered first, so it runs last. */
	on_proc_exit(leave_threads_behind, 0);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	if (!attach(DatumGetInt32(arg)))
		proc_exit(0);
	before_shmem_exit(pipeline_exit, 0);
	BackgroundWorkerInitializeConnectionByOid(tk_pipeline.entry->database, InvalidOid, 0);
	tk_catch_up_with_reload();
	tk_pipeline.context = AllocSetContextCreate(TopMemoryContext, "transactional_kafka pipeline",
												ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(tk_pipeline.context);

	PG_TRY();
	{
		pin_settings();
		MemoryContextSwitchTo(tk_pipeline.context);
		if (tk_pipeline_load())
		{
			tk_pipeline_recover();
			tk_pipeline_run();
			orderly_exit = true;
			warn_of_pause();
		}
		else
			withdraw();
	}
	PG_CATCH();
	{
		handle_error();
	}
	PG_END_TRY();
	proc_exit(orderly_exit ? 0 : 1);
}
