/*
 * closing.c
 *	  A checkpoint's way from its trigger to the slot (DESIGN §2):
 *
 *	  1 trigger, 2 flush, 3 committable, 4 Kafka's commit, 5 slot
 *
 * The steps of one checkpoint are strictly one after the other.  Several
 * checkpoints may be on their way, up to max_concurrent_checkpoints; for them
 * holds:
 *
 *	  A checkpoint's records are sent only after the broker has acknowledged all
 *	  of the one before (2), so only the newest can be in 2.
 *	  A checkpoint is prepared (3) only after the one before has gone through 5,
 *	  so only the oldest can be in 3 to 5, and at most one row is prepared.
 *
 * A crash at any point therefore finds at most one prepared checkpoint to
 * judge; all behind it are open Kafka transactions, which the next start aborts.
 *
 * 2 and 4 wait for the broker.  A thread of the checkpoint's producer does that,
 * or we do when there is nothing to read meanwhile; every decision is made here.
 * 3 and 5 write, so they are done between two WAL records only.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "append.h"
#include "committable.h"
#include "failpoint.h"
#include "pipeline.h"
#include "wal_source.h"

/* How long the commit of a start record may take. */
#define START_PATIENCE_US INT64CONST(60000000)

/* How long a checkpoint waits for its transaction's description; without one it can't be committed after a crash. */
#define DESCRIPTION_PATIENCE_MS 500

/* A commit slower than this may have an EndTxn on its way twice: librdkafka repeats one after 100 ms (less 20 %). */
#define SLOW_COMMIT_US INT64CONST(75000)

/* Without an acknowledgement for so long, a checkpoint asks whether its topics are still there. */
#define MISSING_TOPIC_AFTER_US INT64CONST(10000000)

/*
 * With nothing to read meanwhile, the broker is waited for here first, for so long: handing a task to the thread and
 * back takes time and CPU.
 */
#define HERE_MS 20

/* How long we sleep while a thread is at work; and how often deadlines, and wishes to stop, are looked at. */
#define TASK_SLICE_MS 200
#define LOOK_US INT64CONST(200000)

/* One question about markers; without an answer for so long none is asked any more. */
#define MARKERS_SLICE_MS 50
#define MARKERS_PATIENCE_US INT64CONST(5000000)

/* The end of a producer's task wakes us by it. */
static int	wake_pipe[2] = {-1, -1};

/* At a start that is an answer of Kafka. */
TkWaitKind	tk_sleeps_for = TK_WAIT_REQUEST;

/* What we wait for instead of the closing checkpoints themselves; NOTHING: for them */
static TkWaitKind waits_for = TK_WAIT_NOTHING;

/* ----------------------------------------------------------------
 * What a closing transaction waits for
 * ----------------------------------------------------------------
 */

void
tk_closing_init(void)
{
	if (pipe(wake_pipe) != 0 || fcntl(wake_pipe[0], F_SETFL, O_NONBLOCK) != 0 ||
		fcntl(wake_pipe[1], F_SETFL, O_NONBLOCK) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not make a pipe: %m")));
}

static TkWaitKind
what_is_awaited(void)
{
	TkPipeline *p = &tk_pipeline;

	if (waits_for != TK_WAIT_NOTHING)
		return waits_for;
	if (p->nclosing == 0)
		return tk_sleeps_for;
	if (p->closing[0].checkpoint.state == TK_CHECKPOINT_PREPARED)
		return TK_WAIT_COMMIT;
	return TK_WAIT_ACKNOWLEDGEMENTS;
}

void
tk_await_wakeup(long timeout)
{
	char		bytes[16];
	int			events = WaitLatchOrSocket(MyLatch,
										   WL_LATCH_SET | WL_SOCKET_READABLE | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
										   wake_pipe[0], timeout, tk_wait_begin(what_is_awaited()));

	tk_wait_end();
	if (events & WL_SOCKET_READABLE)
		while (read(wake_pipe[0], bytes, sizeof(bytes)) == (ssize_t) sizeof(bytes))
			 /* all of them */ ;
	if (events & WL_LATCH_SET)
		ResetLatch(MyLatch);
}

/* The current Kafka transaction gets no more records; the turn passes. */
static TkClosing *
begin_closing(int64 deadline)
{
	TkPipeline *p = &tk_pipeline;
	TkClosing  *closing = &p->closing[p->nclosing++];

	memset(closing, 0, sizeof(*closing));
	closing->checkpoint = p->checkpoint;
	closing->attempt = p->attempt;
	closing->producer = p->current;
	closing->opened_us = p->opened_us;
	closing->deadline = deadline;
	closing->look_for_topics_us = tk_now_us() + MISSING_TOPIC_AFTER_US;
	p->transaction_open = false;
	p->begun = false;
	p->current = (p->current + 1) % p->pool_size;
	return closing;
}

/* The oldest is through. */
static void
end_closing(void)
{
	TkPipeline *p = &tk_pipeline;

	p->nclosing--;
	memmove(&p->closing[0], &p->closing[1], p->nclosing * sizeof(TkClosing));
}

/*
 * What a task has come to, or that it is still at work (RETRY): true = it is not
 * done.  Raises an error when it failed, when its time is over, or when
 * somebody wants us to stop.
 */
static bool
task_again(TkClosing *closing, TkProducerTask task, TkKafkaStatus status, const TkKafkaError *error)
{
	bool		flush = task == TK_PRODUCER_FLUSH;

	/* librdkafka waits for a topic that was deleted, or blames another one of the transaction. */
	if (flush && status != TK_KAFKA_OK && (status != TK_KAFKA_RETRY || tk_now_us() >= closing->look_for_topics_us))
	{
		tk_stream_find_missing_topic();
		closing->look_for_topics_us = tk_now_us() + MISSING_TOPIC_AFTER_US;
	}
	if (!tk_kafka_again(status, error, closing->deadline,
						flush ? "waiting for acknowledgements" : "committing a transaction"))
		return false;
	tk_wait_end();				/* it may have to wait, or not */
	return true;
}

static void
start_task(TkProducer *producer, TkProducerTask task, int64 deadline)
{
	int64		left_ms = (deadline - tk_now_us()) / 1000;

	if (!tk_producer_start(producer, task, (int) Max(Min(left_ms, INT_MAX), 1), wake_pipe[1]))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not start a thread: %m")));
}

static void
begin_task(TkClosing *closing, TkProducerTask task)
{
	closing->begun_us = tk_now_us();
	closing->looked_us = closing->begun_us;
	start_task(tk_pipeline.producers[closing->producer], task, closing->deadline);
}

/*
 * Where there is nothing else to do: is the flush done in a moment?  If not, or
 * if it has failed, the task says so again.  (A commit must not be given up and
 * made again: see kafka_producer.c.)
 */
static bool
flush_here(TkClosing *closing)
{
	static const TkKafkaWait here = {HERE_MS, NULL};
	TkKafkaStatus status;
	TkKafkaError ignored;

	(void) tk_wait_begin(TK_WAIT_ACKNOWLEDGEMENTS);
	status = tk_producer_flush(tk_pipeline.producers[closing->producer], &here, &ignored);
	tk_wait_end();
	return status == TK_KAFKA_OK;
}

/* Is the task done?  look: see also whether it has taken too long; the clock is too dear for each WAL record. */
static bool
task_done(TkClosing *closing, TkProducerTask task, bool look)
{
	TkProducer *producer = tk_pipeline.producers[closing->producer];
	TkKafkaStatus status;
	TkKafkaError error;

	if (tk_producer_finished(producer, &status, &error))
	{
		if (!task_again(closing, task, status, &error))
			return true;
		start_task(producer, task, closing->deadline);
	}
	else if (look && tk_now_us() - closing->looked_us >= LOOK_US)
	{
		closing->looked_us = tk_now_us();
		tk_producer_trouble(producer, task, &error);
		(void) task_again(closing, task, TK_KAFKA_RETRY, &error);
	}
	return false;
}

/* Waits for its end. */
static void
await_task(TkClosing *closing, TkProducerTask task)
{
	begin_task(closing, task);
	while (!task_done(closing, task, true))
	{
		CHECK_FOR_INTERRUPTS();
		tk_await_wakeup(TASK_SLICE_MS);
	}
}

void
tk_await_init(TkProducer *producer, int64 deadline, const char *doing)
{
	int64		looked_us = tk_now_us();
	TkKafkaStatus status;
	TkKafkaError error;

	waits_for = TK_WAIT_REQUEST;
	do
	{
		start_task(producer, TK_PRODUCER_INIT, deadline);
		while (!tk_producer_finished(producer, &status, &error))
		{
			CHECK_FOR_INTERRUPTS();
			tk_await_wakeup(TASK_SLICE_MS);
			if (tk_now_us() - looked_us < LOOK_US)
				continue;
			looked_us = tk_now_us();
			tk_producer_trouble(producer, TK_PRODUCER_INIT, &error);
			(void) tk_kafka_again(TK_KAFKA_RETRY, &error, deadline, doing);
		}
	} while (tk_kafka_again(status, &error, deadline, doing));
	waits_for = TK_WAIT_NOTHING;
}

/* Must the producer be renewed after its commit? */
static bool
was_slow(const TkClosing *closing)
{
	return tk_now_us() - closing->begun_us > SLOW_COMMIT_US;
}

void
tk_commit_start_record(void)
{
	TkClosing  *closing;
	int			producer;
	bool		slow;

	tk_open_transaction();
	tk_append_progress(tk_pipeline.checkpoint.id - 1, true);
	closing = begin_closing(tk_now_us() + START_PATIENCE_US);

	/* No checkpoint, but if the process ends now, what is open is treated as that of one. */
	closing->checkpoint.state = TK_CHECKPOINT_TRIGGERED;
	await_task(closing, TK_PRODUCER_FLUSH);
	TK_FAILPOINT(BEFORE_KAFKA_COMMIT);
	closing->checkpoint.state = TK_CHECKPOINT_PREPARED;
	await_task(closing, TK_PRODUCER_COMMIT);
	producer = closing->producer;
	slow = was_slow(closing);
	end_closing();
	TK_FAILPOINT(AFTER_START_RECORD);
	if (slow)
		tk_pool_renew(producer);
}

/* ----------------------------------------------------------------
 * The steps
 * ----------------------------------------------------------------
 */

static void
checkpoint_move(TkCheckpoint *checkpoint, TkCheckpointState to)
{
	TkCheckpointState from = checkpoint->state;

	if (!tk_checkpoint_move(checkpoint, to, tk_now_us()))
		elog(ERROR, "checkpoint " INT64_FORMAT " can't go from %s to %s", checkpoint->id,
			 tk_checkpoint_state_name(from), tk_checkpoint_state_name(to));
	tk_stats_moved(checkpoint);
}

/* 2: every record is in Kafka's logs, so those of the next checkpoint come behind them. */
static void
acknowledged(TkClosing *closing)
{
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_ACKNOWLEDGED);
	TK_FAILPOINT(AFTER_FLUSH);
}

/* Which transaction a start would have to commit; it was asked for when the first record was acknowledged. */
static void
identify_transaction(TkProducer *producer, TkKafkaTransaction *transaction)
{
	TkTransactionDescription found;
	TkKafkaError error;
	bool		any;

	memset(transaction, 0, sizeof(*transaction));
	transaction->transactional_id = tk_producer_transactional_id(producer);
	(void) tk_wait_begin(TK_WAIT_REQUEST);
	any = tk_producer_description(producer, DESCRIPTION_PATIENCE_MS, &found, &error);
	tk_wait_end();
	if (!any || !found.found || found.state != TK_TRANSACTION_ONGOING)
		return;
	transaction->described = true;
	transaction->producer_id = found.producer_id;
	transaction->epoch = found.epoch;
	transaction->start_ms = found.start_ms;
}

/* 3: durable before visible. A crash after it leaves a prepared row, which the next start judges. */
static void
prepare(TkClosing *closing)
{
	TkPipeline *p = &tk_pipeline;
	TkKafkaTransaction transaction;

	TK_FAILPOINT(BEFORE_PREPARE_COMMIT);
	identify_transaction(p->producers[closing->producer], &transaction);
	closing->start_ms = transaction.start_ms;
	tk_write_begin();
	tk_committable_prepare(p->definition->pipeline_id, p->options->retained_checkpoints, &closing->checkpoint,
						   closing->attempt, &transaction, p->timeline, closing->triggered_at, p->committed_at);
	tk_write_commit();
	MemoryContextSwitchTo(p->context);
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_PREPARED);
	TK_FAILPOINT(AFTER_PREPARE_COMMIT);
}

/* 4: visible. A crash after it finds the progress record. */
static void
committed(TkClosing *closing)
{
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_COMMITTED);
	closing->slow = was_slow(closing);
	tk_pipeline.committed_at = GetCurrentTimestamp();
	TK_FAILPOINT(AFTER_KAFKA_COMMIT);
}

/* What everybody may see now: Kafka has it. */
static void
publish_progress(const TkCheckpoint *checkpoint)
{
	TkPipelineEntry *entry = tk_pipeline.entry;

	pg_atomic_write_u64(&entry->checkpoint_id, (uint64) checkpoint->id);
	pg_atomic_write_u64(&entry->covered_lsn, Max(pg_atomic_read_u64(&entry->covered_lsn), checkpoint->read_lsn));
	if (entry->failures != 0 || entry->failed_checkpoints != 0 || entry->outlived_checkpoint != 0)
	{
		LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
		entry->failures = 0;
		entry->failed_checkpoints = 0;
		entry->outlived_checkpoint = 0;
		LWLockRelease(tk_shared->lock);
	}
	ConditionVariableBroadcast(&entry->changed);
}

/* 5: only now may the WAL go; a crash before it makes the next start skip by the progress record. */
static void
confirm(TkClosing *closing)
{
	int			producer = closing->producer;
	bool		slow = closing->slow;

	tk_slot_confirm(closing->checkpoint.end_lsn);
	pg_atomic_write_u64(&tk_pipeline.entry->confirmed_lsn, tk_slot_confirmed());
	TK_FAILPOINT(AFTER_SLOT_CONFIRM);

	publish_progress(&closing->checkpoint);
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_NONE);
	tk_pipeline.unseen[producer] = true;
	tk_pipeline.unseen_start_ms[producer] = closing->start_ms;
	end_closing();
	(void) tk_publish_visible();

	/*
	 * After a slow commit an EndTxn may still be on its way a second time, and librdkafka's transactions of one
	 * producer share their epoch: it could end the next one.
	 */
	if (slow)
		tk_pool_renew(producer);
}

/* ----------------------------------------------------------------
 * Visible
 * ----------------------------------------------------------------
 */

/* Questions that got no answer */
static int64 asked_first_us = 0;
static int64 asked_last_us = 0;

/* Are the markers of this id's last commit written?  Until then its records are not visible everywhere. */
static bool
markers_written(int i)
{
	static const TkKafkaWait wait = {MARKERS_SLICE_MS, NULL};
	TkPipeline *p = &tk_pipeline;
	TkTransactionDescription found;
	TkKafkaStatus status;
	TkKafkaError error;

	if (p->rpc == NULL && (p->rpc = tk_rpc_create(p->conf, &error)) == NULL)
	{
		tk_no_redrive(&error);
		return true;
	}
	status = tk_rpc_describe(p->rpc, tk_producer_transactional_id(p->producers[i]), &wait, &found,
							 &error);
	if (status != TK_KAFKA_OK)
	{
		int64		now = tk_now_us();

		if (now - asked_last_us > MARKERS_PATIENCE_US)
			asked_first_us = now;	/* the first question without an answer for a long time */
		asked_last_us = now;
		if (status == TK_KAFKA_RETRY && now - asked_first_us < MARKERS_PATIENCE_US)
			return false;

		/* Kafka commits, but doesn't tell: what waits must not wait for ever. */
		tk_no_redrive(&error);
		return true;
	}
	asked_last_us = 0;
	if (!found.found)
		return true;
	if (found.state == TK_TRANSACTION_ONGOING)
		return found.start_ms != p->unseen_start_ms[i]; /* the id has gone on: not before the markers */
	return found.state != TK_TRANSACTION_PREPARE_COMMIT;
}

bool
tk_publish_visible(void)
{
	TkPipeline *p = &tk_pipeline;
	TkPipelineEntry *entry = p->entry;
	XLogRecPtr	covered = pg_atomic_read_u64(&entry->covered_lsn);
	XLogRecPtr	visible = pg_atomic_read_u64(&entry->visible_lsn);

	if (visible >= covered)
		return false;
	for (int i = 0; i < p->pool_size; i++)
	{
		if (!p->unseen[i])
			continue;
		if (pg_atomic_read_u64(&entry->visible_wanted) <= visible)
			return false;
		if (!markers_written(i))
			return true;
		p->unseen[i] = false;
	}
	pg_atomic_write_u64(&entry->visible_lsn, covered);
	ConditionVariableBroadcast(&entry->changed);
	return false;
}

/* ----------------------------------------------------------------
 * All of them
 * ----------------------------------------------------------------
 */

/* Has the broker all of the newest one? */
static bool
newest_acknowledged(bool look)
{
	TkPipeline *p = &tk_pipeline;
	TkClosing  *newest;

	if (p->nclosing == 0)
		return true;
	newest = &p->closing[p->nclosing - 1];
	if (newest->checkpoint.state == TK_CHECKPOINT_TRIGGERED && task_done(newest, TK_PRODUCER_FLUSH, look))
		acknowledged(newest);
	return newest->checkpoint.state != TK_CHECKPOINT_TRIGGERED;
}

/* Takes the closing checkpoints on as far as they go without waiting. */
static void
advance(bool look)
{
	TkPipeline *p = &tk_pipeline;

	while (p->nclosing > 0)
	{
		TkClosing  *oldest = &p->closing[0];

		(void) newest_acknowledged(look);
		if (oldest->checkpoint.state == TK_CHECKPOINT_ACKNOWLEDGED)
		{
			tk_append_all();	/* what has gathered meanwhile is on its way while we write */
			prepare(oldest);
			TK_FAILPOINT(BEFORE_KAFKA_COMMIT);
			begin_task(oldest, TK_PRODUCER_COMMIT);
		}
		if (oldest->checkpoint.state == TK_CHECKPOINT_PREPARED && task_done(oldest, TK_PRODUCER_COMMIT, look))
			committed(oldest);
		if (oldest->checkpoint.state != TK_CHECKPOINT_COMMITTED)
			return;
		confirm(oldest);
	}
}

void
tk_step_closing(void)
{
	advance(false);
}

void
tk_advance_closing(int most, bool prepared)
{
	TkPipeline *p = &tk_pipeline;

	for (;;)
	{
		advance(true);
		if (p->nclosing <= most &&
			(!prepared || p->nclosing == 0 || p->closing[0].checkpoint.state >= TK_CHECKPOINT_PREPARED))
			return;
		CHECK_FOR_INTERRUPTS();
		tk_await_wakeup(TASK_SLICE_MS);
	}
}

bool
tk_may_append(void)
{
	return newest_acknowledged(false);
}

void
tk_await_acknowledged(void)
{
	while (!newest_acknowledged(true))
	{
		CHECK_FOR_INTERRUPTS();
		tk_await_wakeup(TASK_SLICE_MS);
	}
}

bool
tk_is_closing(int producer)
{
	for (int i = 0; i < tk_pipeline.nclosing; i++)
		if (tk_pipeline.closing[i].producer == producer)
			return true;
	return false;
}

void
tk_tend_closing(void)
{
	TkClosing  *oldest = &tk_pipeline.closing[0];

	if (tk_pipeline.nclosing > 0 && oldest->checkpoint.state == TK_CHECKPOINT_PREPARED &&
		task_done(oldest, TK_PRODUCER_COMMIT, false))
		committed(oldest);
}

void
tk_trigger_checkpoint(XLogRecPtr read_lsn, bool dry)
{
	TkPipeline *p = &tk_pipeline;
	TkClosing  *closing;
	TimestampTz triggered_at;

	/* A free transactional id for the next one; and its records go behind those of the one before. */
	tk_advance_closing(p->nclosing, false);
	if (p->nclosing > p->pool_size - 2)
	{
		tk_stats_pool_wait();
		waits_for = TK_WAIT_TRANSACTIONAL_ID;
		tk_advance_closing(p->pool_size - 2, false);
		waits_for = TK_WAIT_NOTHING;
	}
	tk_await_acknowledged();

	/* 1: nothing but whole transactions up to end_lsn is in it */
	p->checkpoint.read_lsn = read_lsn;
	p->last_triggered_us = tk_now_us();
	triggered_at = GetCurrentTimestamp();
	checkpoint_move(&p->checkpoint, TK_CHECKPOINT_TRIGGERED);
	TK_FAILPOINT(CHECKPOINT_TRIGGERED);

	/* 2: a crash here, or before, leaves an open Kafka transaction, which the next start aborts */
	tk_append_all();
	tk_append_progress(p->checkpoint.id, false);
	TK_FAILPOINT(AFTER_PROGRESS_APPEND);

	closing = begin_closing(tk_now_us() + (int64) p->options->checkpoint_timeout * 1000);
	closing->triggered_at = triggered_at;
	tk_checkpoint_next(&p->checkpoint);
	p->attempt = 1;

	if (dry && flush_here(closing))
		acknowledged(closing);
	else
		begin_task(closing, TK_PRODUCER_FLUSH);
	advance(false);
}
