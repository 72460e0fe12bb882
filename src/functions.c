/*
 * functions.c
 *	  SQL entry points that ask a pipeline's worker for something and wait for
 *	  it: drop_pipeline, pause, resume, checkpoint, wait_for.
 *
 * The procedures commit in between, because a worker must see what they wrote:
 * a request is a committed change of the definition, its answer is the
 * worker's state in the registry.  A procedure that is cancelled while it waits
 * leaves its request in force.
 */
#include "postgres.h"

#include <math.h>
#include <signal.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "checks.h"
#include "functions.h"
#include "pg_compat.h"
#include "wal_source.h"

PG_FUNCTION_INFO_V1(tk_drop_pipeline);
PG_FUNCTION_INFO_V1(tk_pause);
PG_FUNCTION_INFO_V1(tk_resume);
PG_FUNCTION_INFO_V1(tk_accept_position);
PG_FUNCTION_INFO_V1(tk_checkpoint);
PG_FUNCTION_INFO_V1(tk_wait_for);

/* How long create_pipeline and resume wait for Kafka, once the slot is durable. */
#define REACH_KAFKA_MS 10000

void
tk_utility(const char *command)
{
	int			result = SPI_execute(command, false, 0);

	if (result < 0)
		elog(ERROR, "could not execute \"%s\": %s", command, SPI_result_code_string(result));
}

TkPipelineEntry *
tk_request(const TkDefinition *d, int64 generation, bool wanted, bool gone)
{
	TkPublication p;
	TkPipelineEntry *entry;

	tk_describe_for_registry(d, &p);
	p.generation = generation;
	p.wanted = wanted;
	p.gone = gone;
	entry = tk_registry_publish(&p);
	if (entry == NULL && !gone)
		tk_report_registry_full(ERROR, d->name);
	return entry;
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
look(TkPipelineEntry *entry, int32 pipeline_id, EntryView *s)
{
	LWLockAcquire(tk_shared->lock, LW_SHARED);
	s->exists = entry->in_use && entry->database == MyDatabaseId && entry->pipeline_id == pipeline_id;
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

bool
tk_may_see(Oid owner)
{
	return has_privs_of_role(GetUserId(), owner) || has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
}

static void
report_sticky(const char *name, const EntryView *s)
{
	/* A reason may hold a record's key. */
	if (!tk_may_see(s->owner))
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
	SPI_freetuptable(SPI_tuptable);
	tk_end_privileged(&saved);
	if (!TransactionIdIsValid(xid) || xid == *reported)
		return;
	*reported = xid;
	ereport(NOTICE,
			(errmsg("pipeline \"%s\" waits for transaction %u to end", name, xid),
			 holder ? errdetail("It is running in process %s.", holder) : 0,
			 errhint("A replication slot starts only when all transactions that write now have ended. Cancelling leaves the pipeline defined.")));
}

/*
 * Waits until the pipeline's slot is durable, then for a while until it runs.
 * ERROR for a sticky state; WARNING if Kafka isn't reached.
 */
void
tk_await_start(TkPipelineEntry *entry, const TkDefinition *d)
{
	TransactionId reported = InvalidTransactionId;
	TimestampTz give_up = 0;
	EntryView	s;

	for (;;)
	{
		ConditionVariablePrepareToSleep(&entry->changed);
		look(entry, d->pipeline_id, &s);
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
		if (s.state == TK_STATE_RETRYING && !s.slot_ready)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pipeline \"%s\" could not start: %s", d->name, s.reason),
					 errdetail("The pipeline is defined and goes on trying."),
					 s.hint[0] ? errhint("%s", s.hint) : errhint("See the view kafka.stat_pipelines.")));
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
			look(entry, d->pipeline_id, &s);
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
		look(entry, pipeline_id, &s);
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
int64
tk_update_definition(int32 pipeline_id, const char *set, bool dropping_too)
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

	tk_check_server_ready("drop_pipeline()");
	tk_check_not_atomic(fcinfo, "drop_pipeline()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = tk_required_name(fcinfo, 0, "pipeline");
	d = tk_owned_definition(name);
	slot = tk_slot_name(MyDatabaseId, d->pipeline_id);

	/* A crash after this leaves a definition that nobody starts; the same call then ends the work. */
	tk_begin_privileged(&saved);
	generation = tk_update_definition(d->pipeline_id, "dropping = true, enabled = false", true);
	tk_end_privileged(&saved);
	tk_spi_commit();

	entry = tk_request(d, generation, false, false);
	await_stop(entry, d->pipeline_id);

	/* The slot goes first: rows without a slot can be dropped again, a slot without rows would keep WAL. */
	tk_slot_drop(slot);
	tk_begin_privileged(&saved);
	if (d->publication == NULL)
		tk_drop_publications(d->pipeline_id);
	tk_utility(psprintf("DELETE FROM kafka.checkpoint WHERE pipeline_id = %d", d->pipeline_id));
	tk_utility(psprintf("DELETE FROM kafka.pipeline_state WHERE pipeline_id = %d", d->pipeline_id));
	tk_utility(psprintf("DELETE FROM kafka.pipeline WHERE pipeline_id = %d", d->pipeline_id));
	tk_end_privileged(&saved);
	tk_spi_commit();

	/* A scout that has read the rows before they went would bring the pipeline back to the registry. */
	tk_lock_scouting(true);
	(void) tk_request(d, generation, false, true);
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

	tk_check_server_ready("pause()");
	tk_check_not_atomic(fcinfo, "pause()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = tk_required_name(fcinfo, 0, "pipeline");
	d = tk_owned_definition(name);
	if (!d->enabled)
		ereport(NOTICE, (errmsg("pipeline \"%s\" is paused already", name)));

	tk_begin_privileged(&saved);
	generation = tk_update_definition(d->pipeline_id, "enabled = false", false);
	tk_end_privileged(&saved);
	tk_spi_commit();
	entry = tk_request(d, generation, false, false);
	await_stop(entry, d->pipeline_id);
	SPI_finish();
	PG_RETURN_VOID();
}

static bool
is_running(int32 pipeline_id)
{
	Oid			catalog = tk_catalog_oid();
	TkPipelineEntry *entry;
	bool		running;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	entry = tk_registry_find(MyDatabaseId, catalog, pipeline_id);
	running = entry != NULL && entry->wanted && entry->state == TK_STATE_RUNNING;
	LWLockRelease(tk_shared->lock);
	return running;
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

	tk_check_server_ready("resume()");
	tk_check_logical_decoding();
	tk_check_not_atomic(fcinfo, "resume()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = tk_required_name(fcinfo, 0, "pipeline");
	d = tk_owned_definition(name);
	if (d->enabled && is_running(d->pipeline_id))
	{
		ereport(NOTICE, (errmsg("pipeline \"%s\" is running already", name)));
		SPI_finish();
		PG_RETURN_VOID();
	}

	/* The update locks the row: of two that resume a clone, one makes the state. */
	tk_begin_privileged(&saved);
	generation = tk_update_definition(d->pipeline_id, "enabled = true, resumes = resumes + 1", false);
	tk_state_load(d, &state);
	tk_end_privileged(&saved);
	if (!state.exists)
		d = tk_adopt_definition(d);
	tk_spi_commit();
	entry = tk_request(d, generation, true, false);
	tk_await_start(entry, d);
	SPI_finish();
	PG_RETURN_VOID();
}

/* Tells what a position leaves out or repeats, as far as this server remembers. */
static void
explain_position(const TkDefinition *d, XLogRecPtr lsn)
{
	static TkStatement statement = {
		"SELECT max(end_lsn) FROM kafka.checkpoint WHERE pipeline_id = $1 AND state = 'committed'", 1, {INT4OID}, NULL
	};
	Datum		key = Int32GetDatum(d->pipeline_id);
	XLogRecPtr	known = InvalidXLogRecPtr;
	TkPublication publication;
	bool		isnull;
	Datum		value;

	tk_execute(&statement, &key, NULL, false);
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (!isnull)
		known = DatumGetLSN(value);
	tk_describe_for_registry(d, &publication);
	if (!publication.slot_ready)
		ereport(NOTICE,
				(errmsg("pipeline \"%s\" gets a new replication slot", d->name),
				 errdetail("Transactions that committed before it is ready and are not in Kafka are not sent.")));
	if (XLogRecPtrIsInvalid(known))
		return;
	if (lsn > known)
		ereport(NOTICE,
				(errmsg("transactions that committed between %X/%X and %X/%X are skipped, unless Kafka has them",
						LSN_FORMAT_ARGS(known), LSN_FORMAT_ARGS(lsn))));
	else if (lsn < known)
		ereport(NOTICE,
				(errmsg("transactions that committed between %X/%X and %X/%X are sent again, as far as their WAL is still there",
						LSN_FORMAT_ARGS(lsn), LSN_FORMAT_ARGS(known))));
}

/* SQL: CALL kafka.accept_position(pipeline, lsn) */
Datum
tk_accept_position(PG_FUNCTION_ARGS)
{
	char	   *name;
	XLogRecPtr	lsn;
	Privileged	saved;
	TkDefinition *d;
	TkState		state;
	int64		generation;

	tk_check_server_ready("accept_position()");
	tk_check_logical_decoding();
	tk_check_not_atomic(fcinfo, "accept_position()");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	name = tk_required_name(fcinfo, 0, "pipeline");
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("lsn must not be null")));
	lsn = PG_GETARG_LSN(1);
	if (XLogRecPtrIsInvalid(lsn) || lsn > tk_flush_position(NULL))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("position %X/%X is not in this server's WAL", LSN_FORMAT_ARGS(lsn)),
				 errdetail("Its WAL ends at %X/%X.", LSN_FORMAT_ARGS(tk_flush_position(NULL)))));
	d = tk_owned_definition(name);

	tk_begin_privileged(&saved);
	tk_state_load(d, &state);
	if (!state.exists || state.sticky_state == NULL || tk_state_find(state.sticky_state) == TK_STATE_FAILED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pipeline \"%s\" does not ask for a position", name),
				 errdetail("accept_position() answers the states diverged, fenced and slot_lost."),
				 errhint("See the view kafka.pipelines.")));
	explain_position(d, lsn);
	generation = tk_update_definition(d->pipeline_id,
									  psprintf("enabled = true, resumes = resumes + 1, accept_resumes = resumes + 1, "
											   "accept_lsn = '%X/%X'", LSN_FORMAT_ARGS(lsn)), false);
	tk_end_privileged(&saved);
	tk_spi_commit();
	tk_await_start(tk_request(d, generation, true, false), d);
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

static void
raise_lsn(pg_atomic_uint64 *lsn, XLogRecPtr to)
{
	uint64		old = pg_atomic_read_u64(lsn);

	while (old < to && !pg_atomic_compare_exchange_u64(lsn, &old, to))
		 /* another session moved it */ ;
}

/* Waits until everything up to "target" is visible in Kafka; false at the timeout (-1: none). */
static bool
await_visible(TkPipelineEntry *entry, int32 pipeline_id, const char *name, XLogRecPtr target, TimestampTz give_up)
{
	bool		visible = false;

	/* Once: a worker that starts later looks for itself, and every change of what is looked at here is broadcast. */
	raise_lsn(&entry->visible_wanted, target);
	tk_wake_worker(entry);

	ConditionVariablePrepareToSleep(&entry->changed);
	for (;;)
	{
		EntryView	s;
		long		ms = -1;

		look(entry, pipeline_id, &s);
		if (!s.exists)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("pipeline \"%s\" was dropped", name)));
		visible = pg_atomic_read_u64(&entry->visible_lsn) >= target;
		if (visible)
			break;
		if (tk_state_is_sticky(s.state))
			report_sticky(name, &s);
		if (!s.wanted)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("pipeline \"%s\" does not run", name),
					 s.reason[0] && tk_may_see(s.owner) ? errdetail("%s", s.reason) : errdetail("It is paused."),
					 errhint("CALL kafka.resume('%s').", name)));
		if (give_up != 0)
		{
			ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), give_up);
			if (ms <= 0)
				break;
		}
		(void) ConditionVariableTimedSleep(&entry->changed, ms, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return visible;
}

static TkPipelineEntry *
find_entry(const char *name, int32 *pipeline_id)
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
	return result;
}

static TkPipelineEntry *
entry_by_name(const char *name, int32 *pipeline_id)
{
	TkPipelineEntry *result = find_entry(name, pipeline_id);

	if (result == NULL)
	{
		tk_await_scout();
		result = find_entry(name, pipeline_id);
	}
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
	TimestampTz give_up = 0;

	tk_check_server_ready("checkpoint()");
	check_no_xid("checkpoint()");
	name = tk_required_name(fcinfo, 0, "pipeline");
	if (!PG_ARGISNULL(1))
		give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms(PG_GETARG_INTERVAL_P(1)));
	entry = entry_by_name(name, &pipeline_id);
	if (!has_privs_of_role(GetUserId(), entry->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of pipeline \"%s\"", name)));

	target = flushed_now();
	raise_lsn(&entry->wanted_lsn, target);
	if (!await_visible(entry, pipeline_id, name, target, give_up))
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

	tk_check_server_ready("wait_for()");
	check_no_xid("wait_for()");
	target = PG_ARGISNULL(0) ? flushed_now() : PG_GETARG_LSN(0);
	if (!PG_ARGISNULL(2))
		give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms(PG_GETARG_INTERVAL_P(2)));

	if (!PG_ARGISNULL(1))
	{
		char	   *name = NameStr(*PG_GETARG_NAME(1));
		int32		pipeline_id;
		TkPipelineEntry *entry = entry_by_name(name, &pipeline_id);

		PG_RETURN_BOOL(await_visible(entry, pipeline_id, name, target, give_up));
	}

	/* All of this database, one after the other. */
	tk_await_scout();
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
		if (mine && !await_visible(entry, pipeline_id, NameStr(name), target, give_up))
			PG_RETURN_BOOL(false);
	}
	PG_RETURN_BOOL(true);
}
