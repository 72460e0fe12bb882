/*
 * stats.c
 *	  Statistics of each pipeline: see stats.h.
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "pg_compat.h"
#include "stats.h"

static TkStats *all_stats = NULL;	/* by entry of the registry */
static TkStats *mine = NULL;	/* of this worker's pipeline */

/* What this start has made of a prepared checkpoint */
static TkOutcome outcome_of_start = TK_OUTCOME_NONE;

/* As wait events their names stand among those of others. */
static const char *const wait_names[TK_WAIT_KINDS] = {
	[TK_WAIT_NOTHING] = NULL,
	[TK_WAIT_COMMITS] = "KafkaIdle",
	[TK_WAIT_INTERVAL] = "KafkaCheckpointInterval",
	[TK_WAIT_WAL_FLUSH] = "KafkaWalFlush",
	[TK_WAIT_STANDBY] = "KafkaStandbyFlush",
	[TK_WAIT_ACKNOWLEDGEMENTS] = "KafkaAcknowledgements",
	[TK_WAIT_COMMIT] = "KafkaCommit",
	[TK_WAIT_MARKERS] = "KafkaMarkers",
	[TK_WAIT_TRANSACTIONAL_ID] = "KafkaTransactionalId",
	[TK_WAIT_QUEUE] = "KafkaQueue",
	[TK_WAIT_REQUEST] = "KafkaRequest"
};

static const char *const outcome_names[TK_OUTCOMES] = {
	[TK_OUTCOME_NONE] = NULL,
	[TK_OUTCOME_REDRIVEN] = "redriven",
	[TK_OUTCOME_ALREADY_COMMITTED] = "already_committed",
	[TK_OUTCOME_REPLAYED] = "replayed"
};

const char *
tk_wait_name(TkWaitKind kind)
{
	return wait_names[kind];
}

const char *
tk_outcome_name(TkOutcome outcome)
{
	return outcome_names[outcome];
}

/* ----------------------------------------------------------------
 * Shared memory
 * ----------------------------------------------------------------
 */

Size
tk_stats_size(int npipelines)
{
	return mul_size(npipelines, sizeof(TkStats));
}

void
tk_stats_init(int npipelines, int tranche_id)
{
	bool		found;

	all_stats = ShmemInitStruct("transactional_kafka statistics", tk_stats_size(npipelines), &found);
	if (found)
		return;
	memset(all_stats, 0, tk_stats_size(npipelines));
	for (int i = 0; i < npipelines; i++)
	{
		TkStats    *stats = &all_stats[i];

		LWLockInitialize(&stats->lock, tranche_id);
		pg_atomic_init_u64(&stats->triggered, 0);
		pg_atomic_init_u64(&stats->sent_until, 0);
		pg_atomic_init_u32(&stats->waits_for, TK_WAIT_NOTHING);
		pg_atomic_init_u64(&stats->queued, 0);
	}
}

static void
begin_change(TkRunning *running)
{
	running->changes++;
	pg_write_barrier();
}

static void
end_change(TkRunning *running)
{
	pg_write_barrier();
	running->changes++;
}

static void
set_running_state(TkRunning *running, TkCheckpointState state, TimestampTz now)
{
	begin_change(running);
	running->state = state;
	running->since = now;
	end_change(running);
}

/* The lock is held, exclusively. */
static void
count_anew(TkStats *stats)
{
	memset(&stats->counted, 0, sizeof(stats->counted));
	stats->counted.reset_at = GetCurrentTimestamp();
	pg_atomic_write_u64(&stats->triggered, 0);
}

void
tk_stats_clear(int index)
{
	TkStats    *stats = &all_stats[index];

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	count_anew(stats);
	stats->consecutive_failures = 0;
	stats->last_commit_at = stats->unsent_since = stats->last_error_at = 0;
	pg_atomic_write_u64(&stats->sent_until, 0);
	stats->last_error[0] = '\0';
	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
		set_running_state(&stats->running[i], TK_CHECKPOINT_NONE, 0);
	LWLockRelease(&stats->lock);
}

void
tk_stats_reset(int index)
{
	TkStats    *stats = &all_stats[index];

	LWLockAcquire(&stats->lock, LW_EXCLUSIVE);
	count_anew(stats);
	LWLockRelease(&stats->lock);
}

static void
read_running(const TkRunning *running, TkRunning *copy)
{
	const volatile uint32 *changes = &running->changes;
	uint32		before;

	do
	{
		before = *changes;
		pg_read_barrier();
		memcpy(copy, running, sizeof(TkRunning));
		pg_read_barrier();
	} while ((before & 1) != 0 || *changes != before);
}

void
tk_stats_read(int index, TkStats *copy)
{
	TkStats    *stats = &all_stats[index];

	LWLockAcquire(&stats->lock, LW_SHARED);
	memcpy(copy, stats, sizeof(TkStats));

	/* A checkpoint that completes leaves its place while the lock is held, so it is seen in one place only. */
	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
		read_running(&stats->running[i], &copy->running[i]);
	LWLockRelease(&stats->lock);
}

void
tk_stats_rates(const TkStats *stats, double *transactions, double *records, double *bytes)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		second = now / USECS_PER_SEC;
	double		over = (double) (now - stats->counted.reset_at) / USECS_PER_SEC;

	over = Max(Min(over, TK_RATE_SECONDS), 1);
	*transactions = *records = *bytes = 0;
	for (int i = 0; i < TK_RATE_SECONDS; i++)
	{
		const TkSecond *s = &stats->counted.seconds[i];

		if (s->second <= second - TK_RATE_SECONDS || s->second > second)
			continue;
		*transactions += s->transactions / over;
		*records += s->records / over;
		*bytes += s->bytes / over;
	}
}

static TimestampTz
earlier(TimestampTz a, TimestampTz b)
{
	if (a == 0 || b == 0)
		return a == 0 ? b : a;
	return Min(a, b);
}

TimestampTz
tk_stats_oldest_unsent(const TkStats *stats)
{
	TimestampTz oldest = stats->unsent_since;

	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
		if (stats->running[i].state != TK_CHECKPOINT_NONE)
			oldest = earlier(oldest, stats->running[i].first_commit_at);
	return oldest;
}

/* ----------------------------------------------------------------
 * The worker: a checkpoint's way
 * ----------------------------------------------------------------
 */

static TkRunning *
place_of(int64 checkpoint_id)
{
	return &mine->running[checkpoint_id % TK_RUNNING_CHECKPOINTS];
}

static TimestampTz
timestamp_of(int64 unix_us)
{
	return unix_us - (int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

/* It won't be completed. The lock is held. */
static void
leave_unsent(TkRunning *running)
{
	mine->unsent_since = earlier(mine->unsent_since, running->first_commit_at);
	set_running_state(running, TK_CHECKPOINT_NONE, 0);
}

void
tk_stats_attach(int index)
{
	mine = &all_stats[index];
	outcome_of_start = TK_OUTCOME_NONE;
	tk_wait_end();
	tk_stats_queued(0);
}

void
tk_stats_detach(void)
{
	if (mine == NULL)
		return;
	tk_stats_failed("its process was ended", false);
	tk_wait_end();
	tk_stats_queued(0);
	mine = NULL;
}

void
tk_stats_opened(const TkCheckpoint *checkpoint, int64 commit_us)
{
	TkRunning  *running = place_of(checkpoint->id);
	TimestampTz now = GetCurrentTimestamp();

	begin_change(running);
	running->id = checkpoint->id;
	running->state = TK_CHECKPOINT_OPEN;
	running->opened_at = running->since = now;
	running->first_commit_at = timestamp_of(commit_us);
	running->last_commit_at = 0;
	running->transactions = checkpoint->transactions;
	running->records = checkpoint->records;
	running->bytes = checkpoint->bytes;
	running->dead_letters = checkpoint->dead_letters;
	end_change(running);
}

/* Between begin_change and end_change */
static void
copy_size(TkRunning *running, const TkCheckpoint *checkpoint)
{
	running->transactions = checkpoint->transactions;
	running->records = checkpoint->records;
	running->bytes = checkpoint->bytes;
	running->dead_letters = checkpoint->dead_letters;
}

void
tk_stats_progress(const TkCheckpoint *checkpoint)
{
	TkRunning  *running = place_of(checkpoint->id);

	begin_change(running);
	copy_size(running, checkpoint);
	end_change(running);
}

void
tk_stats_transaction(const TkCheckpoint *checkpoint, int64 commit_us)
{
	TkRunning  *running = place_of(checkpoint->id);

	begin_change(running);
	copy_size(running, checkpoint);
	running->last_commit_at = timestamp_of(commit_us);
	end_change(running);
}

/* By the commits' own times, which are in the order of the WAL but for what commits at the same moment. */
static void
note_sent(TimestampTz until)
{
	if (until > (TimestampTz) pg_atomic_read_u64(&mine->sent_until))
		pg_atomic_write_u64(&mine->sent_until, (uint64) until);
}

/* Kafka has it. completed->transactions and values are filled in. The lock is held. */
static void
note_completed(TkCompleted *completed, TkRunning *running, TimestampTz now)
{
	TkCounted  *c = &mine->counted;
	int64		second = now / USECS_PER_SEC;
	TkSecond   *s = &c->seconds[second % TK_RATE_SECONDS];
	int64		records = completed->values[TK_MEASURE_RECORDS];
	int64		bytes = completed->values[TK_MEASURE_BYTES];

	completed->id = running->id;
	completed->at = now;
	c->completed++;
	c->transactions += completed->transactions;
	c->records += records;
	c->bytes += bytes;
	c->dead_letters += completed->dead_letters;
	if (s->second != second)
	{
		memset(s, 0, sizeof(*s));
		s->second = second;
	}
	s->transactions += completed->transactions;
	s->records += records;
	s->bytes += bytes;
	c->last_completed = *completed;

	mine->consecutive_failures = 0;
	mine->last_commit_at = now;
	note_sent(running->last_commit_at);

	/* What failed before began at an earlier position than this one, or was this one. */
	mine->unsent_since = 0;
	set_running_state(running, TK_CHECKPOINT_NONE, now);
}

static void
measure_completed(const TkCheckpoint *checkpoint, TkRunning *running, TimestampTz now)
{
	TkCompleted completed = {0};
	int64	   *values = completed.values;

	completed.measured = true;
	completed.transactions = checkpoint->transactions;
	completed.dead_letters = checkpoint->dead_letters;
	values[TK_MEASURE_DURATION] = checkpoint->committed_us - checkpoint->triggered_us;
	values[TK_MEASURE_FLUSH] = checkpoint->acknowledged_us - checkpoint->triggered_us;
	values[TK_MEASURE_POSTGRES_COMMIT] = checkpoint->prepared_us - checkpoint->acknowledged_us;
	values[TK_MEASURE_KAFKA_COMMIT] = checkpoint->committed_us - checkpoint->prepared_us;
	values[TK_MEASURE_RECORDS] = checkpoint->records;
	values[TK_MEASURE_BYTES] = checkpoint->bytes;

	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	for (int i = 0; i < TK_MEASURES; i++)
		tk_histogram_add(&mine->counted.measures[i], values[i]);
	note_completed(&completed, running, now);
	LWLockRelease(&mine->lock);
}

void
tk_stats_moved(const TkCheckpoint *checkpoint)
{
	TkRunning  *running = place_of(checkpoint->id);
	TimestampTz now;

	/* It has left its place as it was committed. */
	if (checkpoint->state == TK_CHECKPOINT_NONE)
		return;
	now = GetCurrentTimestamp();
	if (checkpoint->state == TK_CHECKPOINT_COMMITTED)
	{
		measure_completed(checkpoint, running, now);
		return;
	}
	if (checkpoint->state == TK_CHECKPOINT_TRIGGERED)
		pg_atomic_fetch_add_u64(&mine->triggered, 1);
	begin_change(running);
	copy_size(running, checkpoint);
	running->state = checkpoint->state;
	running->since = now;
	end_change(running);
}

/* The lock is held. */
static void
note_failed(const TkRunning *running, const char *reason, TimestampTz now)
{
	TkFailed   *failed = &mine->counted.last_failed;

	mine->counted.failed++;
	failed->id = running->id;
	failed->at = now;
	failed->state = running->state;
	strlcpy(failed->reason, reason, sizeof(failed->reason));
}

/* The one that came first of those under way */
static TkRunning *
first_running(void)
{
	TkRunning  *first = NULL;

	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
	{
		TkRunning  *running = &mine->running[i];

		if (running->state != TK_CHECKPOINT_NONE && (first == NULL || running->id < first->id))
			first = running;
	}
	return first;
}

void
tk_stats_failed(const char *reason, bool fault)
{
	TimestampTz now = GetCurrentTimestamp();
	TkRunning  *first;
	bool		any = false;

	if (mine == NULL)
		return;
	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	if (fault)
	{
		mine->last_error_at = now;
		strlcpy(mine->last_error, reason, sizeof(mine->last_error));
	}
	first = first_running();

	/* The last one first, so that the reason is told of the one that the others waited for. */
	for (int i = TK_RUNNING_CHECKPOINTS; first != NULL && i-- > 0;)
	{
		TkRunning  *running = place_of(first->id + i);

		if (running->state == TK_CHECKPOINT_NONE || running->state >= TK_CHECKPOINT_PREPARED)
			continue;

		/* One that is open is no checkpoint yet to those who wanted the end, or to what befell the one before. */
		if (running->state != TK_CHECKPOINT_OPEN || (fault && running == first))
		{
			note_failed(running, reason, now);
			any = true;
		}
		leave_unsent(running);
	}
	if (fault && any)
		mine->consecutive_failures++;
	LWLockRelease(&mine->lock);
}

int
tk_stats_consecutive_failures(void)
{
	return mine->consecutive_failures;
}

/* ----------------------------------------------------------------
 * The worker: its start, and what it waits for
 * ----------------------------------------------------------------
 */

void
tk_stats_resolved(int64 checkpoint_id, TkOutcome outcome)
{
	TkRunning  *running = place_of(checkpoint_id);
	TimestampTz now = GetCurrentTimestamp();

	outcome_of_start = outcome;
	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	mine->counted.outcomes[outcome]++;

	/* The server may have been restarted since: then it was never counted as triggered. */
	if (running->state == TK_CHECKPOINT_PREPARED && running->id == checkpoint_id)
	{
		if (outcome == TK_OUTCOME_REPLAYED)
		{
			note_failed(running, "Kafka did not commit it; its range is sent again", now);
			mine->consecutive_failures++;
			leave_unsent(running);
		}
		else
		{
			TkCompleted completed = {0};

			completed.transactions = running->transactions;
			completed.dead_letters = running->dead_letters;
			completed.values[TK_MEASURE_RECORDS] = running->records;
			completed.values[TK_MEASURE_BYTES] = running->bytes;
			note_completed(&completed, running, now);
		}
	}
	LWLockRelease(&mine->lock);
}

void
tk_stats_restored(int64 checkpoint_id, XLogRecPtr lsn)
{
	TkRestored *restored = &mine->counted.last_restored;

	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);

	/* The operator has said otherwise: nobody asks any more what became of it. */
	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
		set_running_state(&mine->running[i], TK_CHECKPOINT_NONE, 0);
	mine->counted.restored++;
	restored->id = checkpoint_id;
	restored->at = GetCurrentTimestamp();
	restored->lsn = lsn;
	restored->outcome = outcome_of_start;
	LWLockRelease(&mine->lock);
}

void
tk_stats_alarm(void)
{
	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	mine->counted.alarms++;
	LWLockRelease(&mine->lock);
}

void
tk_stats_pool_wait(void)
{
	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	mine->counted.pool_waits++;
	LWLockRelease(&mine->lock);
}

void
tk_stats_settled(TimestampTz at)
{
	note_sent(at);
	if (mine->unsent_since == 0)
		return;
	LWLockAcquire(&mine->lock, LW_EXCLUSIVE);
	mine->unsent_since = 0;
	LWLockRelease(&mine->lock);
}

void
tk_stats_queued(long records)
{
	pg_atomic_write_u64(&mine->queued, (uint64) records);
}

/* From 17 on events have names of their own. */
static uint32
wait_event(TkWaitKind kind)
{
	static uint32 events[TK_WAIT_KINDS];

	if (events[kind] == 0)
		events[kind] = tk_wait_event_new(wait_names[kind]);
	return events[kind];
}

uint32
tk_wait_begin(TkWaitKind kind)
{
	uint32		event = wait_event(kind);

	if (mine != NULL)
		pg_atomic_write_u32(&mine->waits_for, kind);
	pgstat_report_wait_start(event);
	return event;
}

void
tk_wait_end(void)
{
	if (mine != NULL)
		pg_atomic_write_u32(&mine->waits_for, TK_WAIT_NOTHING);
	pgstat_report_wait_end();
}
