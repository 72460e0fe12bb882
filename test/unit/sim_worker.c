/*
 * sim_worker.c
 *	  The worker in the simulated world: what pipeline.c, closing.c, pool.c,
 *	  stream.c and append.c do, step for step and by the same names, with the real checkpoint.c and
 *	  recovery.c.
 *
 * What is left out has no part in the protocol: encoding, topics, options, the
 * registry, states that only the operator ends.  Waiting is run_clock(), a
 * fail-point is step(), ereport(ERROR) is die(DEATH_ERROR).
 */
#include "sim_world.h"

/* As there */
#define RECOVERY_PATIENCE_US (60 * SECOND)
#define REDRIVE_PATIENCE_US (10 * SECOND)
#define DECIDING_POLL_MS 20
#define DESCRIPTION_PATIENCE_MS 500
#define SLOW_COMMIT_US (75 * MS)
#define HERE_MS 20
#define TASK_SLICE_MS 200
#define KAFKA_SLICE_MS 1000
#define MARKERS_PATIENCE_US (5 * SECOND)
#define MARKERS_MS 2
#define DYING_PATIENCE_US (500 * MS)
#define DYING_POLL_MS 50
#define MARK_AFTER_US (1 * SECOND)
#define IDLE_MS 1000
#define STANDBY_MS 50
#define NAP_MS 100
#define STOP_PATIENCE_US (4 * SECOND)
#define PREPARED_PATIENCE_US (30 * SECOND)
#define CHECKPOINT_TIMEOUT_US (600 * SECOND)

typedef enum Task
{
	TASK_FLUSH,
	TASK_COMMIT
} Task;

/* TkClosing */
typedef struct Closing
{
	TkCheckpoint checkpoint;
	int			attempt;
	int			producer;
	int64_t		start_ms;
	int64_t		deadline;
	bool		dry;
	int64_t		begun_us;
	int64_t		called_us;		/* when the call under way was made … */
	int64_t		slice_us;		/* … and how long it may wait */
	bool		repeated;
	bool		slow;
	bool		prepared_early; /* for mutations */
} Closing;

/* TkPipeline, and the statics of its files */
typedef struct Worker
{
	int			prefix;
	int			pool_size;
	uint32_t	timeline;
	uint64_t	instance;
	Client	   *producers[POOL_MAX];
	int			current;
	bool		begun;
	bool		transaction_open;
	TkCheckpoint checkpoint;
	int			attempt;
	Closing		closing[MOST_CONCURRENT];
	int			nclosing;
	bool		unseen[POOL_MAX];	/* markers that are perhaps not written, of each id's last checkpoint */
	int64_t		unseen_start_ms[POOL_MAX];
	int64_t		silent_since;
	int64_t		last_triggered_us;
	int64_t		committed_at;	/* 0: the last row is marked */
	uint64_t	dry_limit;
	bool		boundary;
	bool		running;
	int64_t		stop_wanted_since;

	/* append.c */
	int			gathered[RECORDS_MAX];
	int			ngathered;

	/* wal_source.c */
	int			position;		/* the next source transaction to be read */
	uint64_t	position_lsn;	/* end of the last one read */
	uint64_t	decode_from;

	/* The re-drive */
	bool		redriven;
	bool		redrive_unanswered;
	int			redrivable;		/* what a start could commit, and must not throw away: number of a transaction, or
								 * -1 */

	/* The progress record that goes to the next transaction, for a mutation */
	bool		progress_owed;
	Progress	progress_later;
} Worker;

static Worker worker;

static void tk_trigger_checkpoint(uint64_t read_lsn, bool dry);

static void die(Death how) __attribute__((noreturn));

static void
die(Death how)
{
	longjmp(process_end, (int) how);
}

/* A step of the protocol, or an event while the worker waits: a crash may come after each. */
static void
step(const char *where)
{
	sim.steps++;
	if (sim.now > sim.calm_at + 1200 * SECOND)
		violated("it does not come to rest");
	if (!sim.alive || sim.steps != sim.crash_at)
		return;
	TRACE("crash (%d) at %s, step %u", (int) sim.crash_by, where, sim.steps);
	die(sim.crash_by);
}

static void
failed(const char *doing, int code)
{
	TRACE("error while %s: %d", doing, code);
	die(DEATH_ERROR);
}

/* Something that takes a while and waits for nobody; other things happen meanwhile. */
static void
work(int64_t from_us, int64_t to_us)
{
	run_clock(sim.now + between(from_us, to_us), false);
}

static bool
tk_stop_wanted(void)
{
	return sim.stop_wanted;
}

/* CHECK_FOR_INTERRUPTS() where an interrupt ends the process at once */
static void
check_for_interrupts(void)
{
	if (sim.die_pending)
		failed("being told to die", 0);
}

/* tk_kafka_again() after RETRY: a stop is not waited for too long, and nothing longer than its deadline. */
static void
kafka_again(int64_t deadline, const char *doing)
{
	check_for_interrupts();
	if (tk_stop_wanted())
	{
		bool		prepared = worker.nclosing > 0 && worker.closing[0].checkpoint.state == TK_CHECKPOINT_PREPARED;

		if (worker.stop_wanted_since == 0)
			worker.stop_wanted_since = sim.now;
		if (sim.now - worker.stop_wanted_since > (prepared ? PREPARED_PATIENCE_US : STOP_PATIENCE_US) || !worker.running)
			failed("told to stop", 0);
	}
	if (sim.now >= deadline)
		failed(doing, 0);
}

/* ----------------------------------------------------------------
 * The catalog (committable.c, catalog.c), and the slot
 * ----------------------------------------------------------------
 */

/* At the end of each transaction that wrote. */
static void
catalog_commit(void)
{
	const Catalog *catalog = &sim.catalog;
	int			prepared = 0;

	for (int i = 0; i < sim.retained; i++)
	{
		const Row  *row = &catalog->rows[i];

		if (row->id == 0)
			continue;
		if (row->state == ROW_PREPARED)
			prepared++;
		if (row->state == ROW_COMMITTED)
			check_kafka_has(row->end_lsn, "a row says committed");
	}
	if (prepared > 1)
		violated("%d rows are prepared", prepared);
	sim.snapshots[sim.nsnapshots % SNAPSHOTS].catalog = *catalog;
	sim.snapshots[sim.nsnapshots++ % SNAPSHOTS].committed = sim.committed;
}

static void
tk_write_begin(void)
{
	work(50, 400);
}

static void
tk_write_commit(void)
{
	catalog_commit();
	work(100, 500);
}

static Row *
row_place(int64_t id)
{
	return &sim.catalog.rows[id % sim.retained];
}

static void
tk_committable_mark(int64_t id)
{
	Row		   *row = row_place(id);

	if (row->id == id)
		row->state = ROW_COMMITTED;
}

static void
tk_committable_prepare(const TkCheckpoint *checkpoint, int attempt, int id, const TkVote *vote, bool mark)
{
	Row		   *row = row_place(checkpoint->id);

	if (mark)
		tk_committable_mark(checkpoint->id - 1);
	row->id = checkpoint->id;
	row->attempt = attempt;
	row->state = ROW_PREPARED;
	row->timeline = worker.timeline;
	row->transactional_id = id;
	row->start_lsn = checkpoint->start_lsn;
	row->end_lsn = checkpoint->end_lsn;
	row->vote = *vote;
}

typedef struct TkCommittables
{
	int64_t		newest;
	int64_t		committed;
	int			next_attempt;
} TkCommittables;

static void
tk_committables_load(TkCommittables *result)
{
	int64_t		last_id = 0;
	int			last_attempt = 0;

	memset(result, 0, sizeof(*result));
	for (int i = 0; i < sim.retained; i++)
	{
		const Row  *row = &sim.catalog.rows[i];

		if (row->id == 0)
			continue;
		if (row->id > last_id)
		{
			last_id = row->id;
			last_attempt = row->attempt;
		}
		if (row->state == ROW_ABORTED)
			continue;
		if (row->id > result->newest)
			result->newest = row->id;
		if ((row->state == ROW_COMMITTED || row->end_lsn <= sim.catalog.confirmed) && row->id > result->committed)
			result->committed = row->id;
	}
	result->next_attempt = last_id > result->committed ? last_attempt + 1 : 1;
}

static Row *
tk_committable_prepared(void)
{
	for (int i = 0; i < sim.retained; i++)
		if (sim.catalog.rows[i].id != 0 && sim.catalog.rows[i].state == ROW_PREPARED)
			return &sim.catalog.rows[i];
	return NULL;
}

static void
tk_committable_settle(int64_t held)
{
	Row		   *row = tk_committable_prepared();

	if (row == NULL)
		return;
	row->state = row->id <= held ? ROW_COMMITTED : ROW_ABORTED;
	TRACE("row %d is %s", (int) row->id, row->id <= held ? "committed" : "aborted");
	if (row->state == ROW_ABORTED)
		HAPPENED(REPLAYED);
	else if (worker.redriven)
		HAPPENED(REDRIVEN);
	else
		HAPPENED(ALREADY_COMMITTED);
	if (row->state == ROW_ABORTED && worker.redrivable >= 0 && !worker.redrive_unanswered &&
		sim.transactions[worker.redrivable].cause == ABORTED_BY_INIT)
		violated("checkpoint %d was complete in Kafka, and this start has aborted it instead of committing it",
				 (int) row->id);
}

/* A committed row for what Kafka holds, whatever stood there. */
static void
tk_committable_adopt(int64_t id, uint64_t end_lsn)
{
	Row			row = {0};

	for (int i = 0; i < sim.retained; i++)
		if (sim.catalog.rows[i].id >= id)
			sim.catalog.rows[i].id = 0;
	row.id = id;
	row.attempt = 1;
	row.state = ROW_COMMITTED;
	row.timeline = worker.timeline;
	row.transactional_id = -1;
	row.start_lsn = row.end_lsn = end_lsn;
	*row_place(id) = row;
}

static void
tk_slot_confirm(uint64_t position)
{
	if (position <= sim.catalog.confirmed)
		return;
	check_kafka_has(position, "the slot is confirmed");
	sim.catalog.confirmed = position;
	if (chance(300))
		sim.catalog.confirmed_on_disk = position;
}

static uint64_t
tk_slot_confirmed(void)
{
	return sim.catalog.confirmed;
}

static uint64_t
flush_position(void)
{
	return sim.committed == 0 ? 1 : sim.source[sim.committed - 1].end_lsn;
}

/* What a synchronous standby has not flushed is not read: a failover can lose it. */
static uint64_t
tk_wal_read_limit(void)
{
	if (mutation == READ_UNREPLICATED)
		return flush_position();
	return sim.replicated == 0 ? 1 : sim.source[sim.replicated - 1].end_lsn;
}

/* ----------------------------------------------------------------
 * The pool (pool.c)
 * ----------------------------------------------------------------
 */

static void
create_producer(int i)
{
	worker.producers[i] = client_create(transactional_id(worker.prefix, i));
}

static void
tk_pool_init(Client *client)
{
	int64_t		deadline = sim.now + RECOVERY_PATIENCE_US;

	client_init(client);
	while (!client->initialized)
	{
		if (client->failure != 0)
			failed("taking over a transactional id", client->failure);
		kafka_again(deadline, "taking over a transactional id");
		run_clock(sim.now + KAFKA_SLICE_MS * MS, true);
	}
}

static void
tk_pool_renew(int i)
{
	HAPPENED(RENEWAL);
	client_destroy(worker.producers[i], false);
	worker.producers[i] = NULL;
	create_producer(i);
	tk_pool_init(worker.producers[i]);
}

static void
tk_begin_ahead(void)
{
	Client	   *client = worker.producers[worker.current];

	if (worker.begun)
		return;
	if (mutation == FENCE_ONE_ID && !client->initialized)
		tk_pool_init(client);
	if (client->failure != 0)
		failed("beginning a transaction", client->failure);
	if (client->open)
		violated("a transaction begins on an id whose transaction is still open");
	client_begin(client);
	worker.begun = true;
}

static void
tk_open_transaction(void)
{
	if (worker.transaction_open)
		return;
	tk_begin_ahead();
	worker.transaction_open = true;
}

static void
tk_append_record(int partition, int payload)
{
	Client	   *client = worker.producers[worker.current];

	if (client->failure != 0)
		failed("sending records", client->failure);
	client_send(client, partition, payload);
}

static void
append_progress_record(const Progress *progress)
{
	if (sim.nprogress == PROGRESS_MAX)
		violated("%d progress records: the worker does the same again and again", PROGRESS_MAX);
	sim.progress[sim.nprogress] = *progress;
	tk_append_record(PROGRESS_PARTITION, -1 - sim.nprogress++);
}

static void
tk_append_progress(int64_t checkpoint_id, bool start)
{
	Progress	progress = {0};

	progress.checkpoint = checkpoint_id;
	progress.end_lsn = worker.checkpoint.end_lsn;
	progress.instance = worker.instance;
	progress.timeline = worker.timeline;
	progress.prefix = worker.prefix;
	progress.pool_size = worker.pool_size;
	progress.start = start;
	if (mutation == NO_PROGRESS_RECORD && !start)
		return;
	if (mutation == PROGRESS_IN_NEXT_TRANSACTION && !start)
	{
		if (worker.progress_owed)
			append_progress_record(&worker.progress_later);
		worker.progress_later = progress;
		worker.progress_owed = true;
		return;
	}
	append_progress_record(&progress);
}

/* ----------------------------------------------------------------
 * What a closing transaction waits for (closing.c)
 * ----------------------------------------------------------------
 */

static Closing *
begin_closing(int64_t deadline)
{
	Worker	   *w = &worker;
	Closing    *closing = &w->closing[w->nclosing++];

	if (w->nclosing > w->pool_size - 1)
		violated("%d checkpoints are on their way, with a pool of %d", w->nclosing, w->pool_size);
	memset(closing, 0, sizeof(*closing));
	closing->checkpoint = w->checkpoint;
	closing->attempt = w->attempt;
	closing->producer = w->current;
	closing->deadline = deadline;
	w->transaction_open = false;
	w->begun = false;
	w->current = (w->current + 1) % w->pool_size;
	return closing;
}

static void
end_closing(void)
{
	worker.nclosing--;
	memmove(&worker.closing[0], &worker.closing[1], (size_t) worker.nclosing * sizeof(Closing));
}

/* What tk_producer_flush or tk_producer_commit says now; raises what it failed with. */
static bool
task_finished(const Closing *closing, Task task)
{
	const Client *client = worker.producers[closing->producer];

	if (client->failure != 0)
		failed(task == TASK_FLUSH ? "waiting for acknowledgements" : "committing a transaction", client->failure);
	if (task == TASK_COMMIT)
		return client->ended;
	if (client->delivery_failure != 0 && mutation != IGNORE_DELIVERY_ERRORS)
		failed("waiting for acknowledgements", client->delivery_failure);
	return client->unacknowledged == 0;
}

static void
call_task(Closing *closing, Task task, int64_t slice_us)
{
	Client	   *client = worker.producers[closing->producer];

	closing->called_us = sim.now;
	closing->slice_us = slice_us;
	if (task == TASK_COMMIT && !client->ending)
		client_end(client, true);
}

/* Without an answer in its time the call is made again. */
static void
task_again(Closing *closing, Task task)
{
	if (sim.now - closing->called_us < closing->slice_us)
		return;
	kafka_again(closing->deadline, "waiting for Kafka");
	closing->repeated = true;
	call_task(closing, task, closing->slice_us);
}

static bool
begin_task(Closing *closing, Task task)
{
	closing->begun_us = sim.now;
	closing->repeated = false;
	call_task(closing, task, TASK_SLICE_MS * MS);
	if (!closing->dry)
		return false;
	while (!task_finished(closing, task) && sim.now < closing->begun_us + HERE_MS * MS)
		run_clock(closing->begun_us + HERE_MS * MS, true);
	return task_finished(closing, task);
}

static bool
task_done(Closing *closing, Task task)
{
	if (task_finished(closing, task))
		return true;
	task_again(closing, task);
	return false;
}

static void
do_task(Closing *closing, Task task)
{
	closing->begun_us = sim.now;
	closing->repeated = false;
	call_task(closing, task, KAFKA_SLICE_MS * MS);
	while (!task_done(closing, task))
		run_clock(closing->called_us + closing->slice_us, true);
}

static bool
was_slow(const Closing *closing)
{
	int64_t		bound = mutation == RENEW_TOO_LATE ? 2 * SLOW_COMMIT_US : SLOW_COMMIT_US;

	if (mutation == NO_RENEWAL)
		return false;
	return closing->repeated || sim.now - closing->begun_us > bound;
}

static void
tk_commit_start_record(void)
{
	Closing    *closing;
	int			producer;
	bool		slow;

	tk_open_transaction();
	tk_append_progress(worker.checkpoint.id - 1, true);
	closing = begin_closing(sim.now + RECOVERY_PATIENCE_US);

	closing->checkpoint.state = TK_CHECKPOINT_TRIGGERED;
	do_task(closing, TASK_FLUSH);
	step("before-kafka-commit");
	closing->checkpoint.state = TK_CHECKPOINT_PREPARED;
	do_task(closing, TASK_COMMIT);
	producer = closing->producer;
	slow = was_slow(closing);
	end_closing();
	step("after-start-record");
	if (slow && mutation != NO_RENEWAL_AT_START)
		tk_pool_renew(producer);
}

/* ----------------------------------------------------------------
 * Records (stream.c, append.c)
 * ----------------------------------------------------------------
 */

static void
checkpoint_move(TkCheckpoint *checkpoint, TkCheckpointState to)
{
	TkCheckpointState from = checkpoint->state;

	if (!tk_checkpoint_move(checkpoint, to, sim.now))
		violated("checkpoint %d can't go from %s to %s", (int) checkpoint->id, tk_checkpoint_state_name(from),
				 tk_checkpoint_state_name(to));
	TRACE("checkpoint %d: %s", (int) checkpoint->id, tk_checkpoint_state_name(to));
}

static void
acknowledged(Closing *closing)
{
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_ACKNOWLEDGED);
	step("after-flush");
}

static void
committed(Closing *closing)
{
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_COMMITTED);
	closing->slow = was_slow(closing);
	worker.committed_at = sim.now;
	step("after-kafka-commit");
}

/* Has the broker all of the checkpoint before? */
static bool
newest_is_acknowledged(void)
{
	Closing    *newest;

	if (worker.nclosing == 0)
		return true;
	newest = &worker.closing[worker.nclosing - 1];
	if (newest->checkpoint.state == TK_CHECKPOINT_TRIGGERED && task_done(newest, TASK_FLUSH))
		acknowledged(newest);
	return newest->checkpoint.state != TK_CHECKPOINT_TRIGGERED;
}

static bool
tk_may_append(void)
{
	return mutation == APPEND_BEFORE_ACKNOWLEDGED || newest_is_acknowledged();
}

static void
tk_await_acknowledged(void)
{
	while (!newest_is_acknowledged())
	{
		check_for_interrupts();
		run_clock(sim.now + TASK_SLICE_MS * MS, true);
	}
}

static void
tk_tend_closing(void)
{
	Closing    *oldest = &worker.closing[0];

	if (worker.nclosing > 0 && oldest->checkpoint.state == TK_CHECKPOINT_PREPARED && task_done(oldest, TASK_COMMIT))
		committed(oldest);
}

static void
send_first(int n)
{
	Worker	   *w = &worker;

	if (n == 0)
		return;
	if (!w->transaction_open)
	{
		tk_open_transaction();
		step("after-begin");
	}
	if (w->nclosing > 0)
		HAPPENED(APPEND_BESIDE_COMMIT);
	for (int i = 0; i < n; i++)
	{
		tk_append_record(sim.record_partition[w->gathered[i]], w->gathered[i]);
		step("after-append");
	}
	w->ngathered = 0;
	work(1, 50);
	tk_tend_closing();
	check_for_interrupts();
}

static void
tk_append_done(void)
{
	if (worker.ngathered < sim.send_records)
		return;
	if (!tk_may_append())
	{
		HAPPENED(OVERLAP);
		if (worker.ngathered < sim.hold_records)
			return;
		tk_await_acknowledged();
	}
	send_first(worker.ngathered);
}

static void
tk_append_all(void)
{
	if (tk_may_append())
		send_first(worker.ngathered);
}

/* A source transaction's messages */
static void
tk_stream(const SourceTransaction *transaction)
{
	Worker	   *w = &worker;

	for (int i = 0; i < transaction->nrecords; i++)
	{
		if (w->checkpoint.state != TK_CHECKPOINT_OPEN)
			checkpoint_move(&w->checkpoint, TK_CHECKPOINT_OPEN);
		w->gathered[w->ngathered++] = transaction->first_record + i;
		w->checkpoint.records++;
		w->checkpoint.bytes += 100;
		tk_append_done();
		if (mutation == SPLIT_TRANSACTION && i == 0 && transaction->nrecords > 1)
			tk_trigger_checkpoint(w->position_lsn, false);
	}
	if (transaction->nrecords == 0 || w->checkpoint.state != TK_CHECKPOINT_OPEN)
		return;
	w->checkpoint.transactions++;
	w->checkpoint.end_lsn = transaction->end_lsn;
	w->boundary = true;
}

static void
tk_wal_open(uint64_t start)
{
	Worker	   *w = &worker;

	w->decode_from = start > tk_slot_confirmed() ? start : tk_slot_confirmed();
	w->position = 0;
	while (w->position < sim.nsource && sim.source[w->position].end_lsn <= tk_slot_confirmed())
		w->position++;
	w->position_lsn = tk_slot_confirmed();
	TRACE("decoding begins behind %d", (int) w->decode_from);
}

static bool
tk_wal_next(uint64_t limit)
{
	Worker	   *w = &worker;
	const SourceTransaction *transaction = &sim.source[w->position];

	if (w->position == sim.nsource || transaction->end_lsn > limit)
		return false;
	work(1, 20);
	w->position++;
	w->position_lsn = transaction->end_lsn;
	if (transaction->end_lsn > w->decode_from)
		tk_stream(transaction);
	return true;
}

/* ----------------------------------------------------------------
 * The steps (closing.c)
 * ----------------------------------------------------------------
 */

/* Which Kafka transaction it is, if the coordinator has said so. */
static TkVote
identify_transaction(Client *client)
{
	int64_t		until = sim.now + DESCRIPTION_PATIENCE_MS * MS;
	TkVote		vote = {0};

	while (client->asked && !client->answered && sim.now < until)
		run_clock(until, true);
	if (!client->answered || !client->description.found || client->description.state != TK_TRANSACTION_ONGOING)
	{
		HAPPENED(NO_VOTE);
		return vote;
	}
	vote.known = true;
	vote.producer_id = client->description.producer_id;
	vote.epoch = client->description.epoch;
	vote.start_ms = client->description.start_ms;
	return vote;
}

static void
prepare(Closing *closing)
{
	Worker	   *w = &worker;

	if (!closing->prepared_early)
	{
		TkVote		vote;

		step("before-prepare-commit");
		vote = identify_transaction(w->producers[closing->producer]);
		closing->start_ms = vote.start_ms;
		tk_write_begin();
		tk_committable_prepare(&closing->checkpoint, closing->attempt,
							   w->producers[closing->producer]->transactional_id, &vote, w->committed_at != 0);
		TRACE("row %d is prepared", (int) closing->checkpoint.id);
		tk_write_commit();
	}
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_PREPARED);
	step("after-prepare-commit");
}

/* One call of kafka_rpc.c. False: no answer. */
static bool
rpc(void)
{
	work(200, 3000);
	if (sim.now >= sim.outage_until && (sim.calm || !chance(sim.breaks)))
		return true;
	run_clock(sim.now + backoff(), false);
	return false;
}

/* Are the markers of the last checkpoint of this id written?  *gave_up: nobody knows, and nobody waits any longer. */
static bool
markers_written(int i, bool *gave_up)
{
	Worker	   *w = &worker;
	TkTransactionDescription found;

	if (mutation == VISIBLE_WHEN_COMMITTED)
		return true;
	if (!rpc())
	{
		if (w->silent_since == 0)
			w->silent_since = sim.now;
		*gave_up = sim.now - w->silent_since >= MARKERS_PATIENCE_US;
		return *gave_up;
	}
	w->silent_since = 0;
	found = coordinator_describe(w->producers[i]->transactional_id);
	work(100, 1500);
	if (!found.found)
		return true;
	if (found.state == TK_TRANSACTION_ONGOING)
		return found.start_ms != w->unseen_start_ms[i];
	return found.state != TK_TRANSACTION_PREPARE_COMMIT;
}

/* True: it has to be asked again soon. */
static bool
tk_publish_visible(void)
{
	Worker	   *w = &worker;
	uint64_t	covered = sim.covered_lsn;
	bool		gave_up = false;

	if (sim.visible_lsn >= covered)
		return false;
	for (int i = 0; i < w->pool_size; i++)
	{
		if (!w->unseen[i])
			continue;
		if (sim.visible_wanted <= sim.visible_lsn)
			return false;
		if (!markers_written(i, &gave_up))
		{
			HAPPENED(WAIT_FOR_MARKERS);
			return true;
		}
		w->unseen[i] = false;
	}
	if (!gave_up)
		check_visible(covered);
	sim.visible_lsn = covered;
	return false;
}

static void
confirm(Closing *closing)
{
	Worker	   *w = &worker;
	int			producer = closing->producer;
	bool		slow = closing->slow;

	tk_slot_confirm(closing->checkpoint.end_lsn);
	step("after-slot-confirm");

	HAPPENED(CHECKPOINT);
	if (closing->checkpoint.read_lsn > sim.covered_lsn)
		sim.covered_lsn = closing->checkpoint.read_lsn;
	checkpoint_move(&closing->checkpoint, TK_CHECKPOINT_NONE);
	if (mutation == VISIBLE_WHEN_LAST_IS)
		memset(w->unseen, 0, sizeof(w->unseen));
	w->unseen[producer] = true;
	w->unseen_start_ms[producer] = closing->start_ms;
	end_closing();
	(void) tk_publish_visible();
	if (slow)
		tk_pool_renew(producer);
}

/* Mistakes in the order of steps 2 to 5 */
static void
mutated_order(Closing *closing)
{
	if (mutation == COMMIT_BEFORE_PREPARE && closing->checkpoint.state == TK_CHECKPOINT_ACKNOWLEDGED)
	{
		do_task(closing, TASK_COMMIT);
		step("mutation");
	}
	if (mutation == CONFIRM_BEFORE_COMMIT && closing->checkpoint.state == TK_CHECKPOINT_ACKNOWLEDGED)
	{
		prepare(closing);
		tk_slot_confirm(closing->checkpoint.end_lsn);
		step("mutation");
		if (begin_task(closing, TASK_COMMIT))
			committed(closing);
	}
	for (int i = 1; mutation == PREPARE_BEFORE_RESOLVED && i < worker.nclosing; i++)
		if (worker.closing[i].checkpoint.state == TK_CHECKPOINT_ACKNOWLEDGED)
		{
			prepare(&worker.closing[i]);
			(void) begin_task(&worker.closing[i], TASK_COMMIT);
		}
}

static void
advance(void)
{
	Worker	   *w = &worker;

	while (w->nclosing > 0)
	{
		Closing    *oldest = &w->closing[0];
		Closing    *newest = &w->closing[w->nclosing - 1];

		if (w->nclosing > 1)
			HAPPENED(SEVERAL_CLOSING);
		if (newest->checkpoint.state == TK_CHECKPOINT_TRIGGERED && task_done(newest, TASK_FLUSH))
			acknowledged(newest);
		mutated_order(oldest);
		if (oldest->checkpoint.state == TK_CHECKPOINT_ACKNOWLEDGED)
		{
			tk_append_all();
			prepare(oldest);
			step("before-kafka-commit");
			if (begin_task(oldest, TASK_COMMIT))
				committed(oldest);
		}
		if (oldest->checkpoint.state == TK_CHECKPOINT_PREPARED && task_done(oldest, TASK_COMMIT))
			committed(oldest);
		if (oldest->checkpoint.state != TK_CHECKPOINT_COMMITTED)
			return;
		confirm(oldest);
	}
}

static void
tk_advance_closing(int most, bool prepared)
{
	Worker	   *w = &worker;

	for (;;)
	{
		advance();
		if (w->nclosing <= most &&
			(!prepared || w->nclosing == 0 || w->closing[0].checkpoint.state >= TK_CHECKPOINT_PREPARED))
			return;
		check_for_interrupts();
		run_clock(sim.now + TASK_SLICE_MS * MS, true);
	}
}

static void
tk_trigger_checkpoint(uint64_t read_lsn, bool dry)
{
	Worker	   *w = &worker;
	Closing    *closing;

	tk_advance_closing(w->pool_size - 2, false);
	tk_await_acknowledged();

	w->checkpoint.read_lsn = read_lsn;
	w->last_triggered_us = sim.now;
	checkpoint_move(&w->checkpoint, TK_CHECKPOINT_TRIGGERED);
	step("checkpoint-triggered");

	tk_append_all();
	tk_append_progress(w->checkpoint.id, false);
	step("after-progress-append");

	closing = begin_closing(sim.now + CHECKPOINT_TIMEOUT_US);
	closing->dry = dry;
	tk_checkpoint_next(&w->checkpoint);
	w->attempt = 1;

	if (mutation == PREPARE_BEFORE_ACKNOWLEDGED && w->nclosing == 1)
	{
		while (!task_finished(closing, TASK_FLUSH) && !w->producers[closing->producer]->answered)
			run_clock(sim.now + TASK_SLICE_MS * MS, true);
		closing->checkpoint.state = TK_CHECKPOINT_ACKNOWLEDGED;
		prepare(closing);
		closing->checkpoint.state = TK_CHECKPOINT_TRIGGERED;
		closing->prepared_early = true;
	}
	if (begin_task(closing, TASK_FLUSH))
		acknowledged(closing);
	advance();
}

/* ----------------------------------------------------------------
 * Recovery
 * ----------------------------------------------------------------
 */

static void
acquire_slot(void)
{
	Catalog    *catalog = &sim.catalog;

	if (!catalog->slot_created)
	{
		/* one that was made and not noted is dropped */
		catalog->confirmed = catalog->confirmed_on_disk = tk_wal_read_limit();
		step("after-slot-create");
		tk_write_begin();
		catalog->slot_created = true;
		set_origin(catalog->confirmed);
		tk_write_commit();
	}
	else if (catalog->stop_lsn != 0 && catalog->confirmed > catalog->stop_lsn)
		violated("stops as slot_lost: the slot stands at %" PRIu64 ", beyond %" PRIu64, catalog->confirmed,
				 catalog->stop_lsn);
}

#define UUID "0123abcd-89ef-4abc-8def-0123456789ab"
#define SYSTEM UINT64_C(7123456789012345678)
#define DATABASE 16384

static const TkProgress *
read_progress(TkProgress *progress)
{
	Partition  *partition = &sim.partitions[PROGRESS_PARTITION];
	int			number;
	const Progress *p;

	do
		work(200, 3000);
	while (sim.now < sim.outage_until);
	number = partition->progress;
	if (mutation == READ_UNCOMMITTED)
		for (int i = 0; i < partition->end; i++)
			if (partition->log[i].state != ENTRY_MARKER)
				number = -1 - partition->log[i].payload;
	if (number < 0)
		return NULL;
	p = &sim.progress[number];
	memset(progress, 0, sizeof(*progress));
	strcpy(progress->uuid, UUID);
	progress->system_identifier = SYSTEM;
	progress->database = DATABASE;
	progress->timeline = p->timeline;
	progress->instance = p->instance;
	progress->checkpoint = p->checkpoint;
	progress->end_lsn = p->end_lsn;
	progress->prefix[0] = (char) ('0' + p->prefix);
	progress->pool_size = p->pool_size;
	progress->start = p->start;
	return progress;
}

/* First the high watermark, then the last stable offset until it is there. */
static void
await_stable_progress(void)
{
	Partition  *partition = &sim.partitions[PROGRESS_PARTITION];
	int64_t		deadline = sim.now + RECOVERY_PATIENCE_US;
	int			high;

	work(200, 3000);
	high = partition->end;
	for (;;)
	{
		work(200, 3000);
		if (sim.now >= sim.outage_until && last_stable_offset(partition) >= high)
			return;
		kafka_again(deadline, "waiting for the progress topic's open transactions");
		run_clock(sim.now + 20 * MS, true);
	}
}

static void
remember(TkRemembered *mine, TkCommittables *rows)
{
	tk_committables_load(rows);
	memset(mine, 0, sizeof(*mine));
	strcpy(mine->uuid, UUID);
	mine->system_identifier = SYSTEM;
	mine->database = DATABASE;
	mine->started = sim.catalog.started;
	mine->instances[0] = sim.catalog.instances[0];
	mine->instances[1] = sim.catalog.instances[1];
	mine->newest = rows->newest;
	mine->committed = rows->committed;
	mine->timeline = worker.timeline;
	mine->nforks = mutation == NO_TIMELINE ? 0 : (int) sim.timeline - 1;
	mine->forks = sim.forks;
}

/* Nobody else writes here and Kafka loses nothing, so every refusal is a false alarm. */
static TkVerdict
judge(const TkProgress *progress, const TkRemembered *mine, bool settled)
{
	char		reason[512];
	TkVerdict	verdict = tk_judge(progress, mine, settled, reason, sizeof(reason));

	if (verdict != TK_VERDICT_GO && verdict != TK_VERDICT_ADOPT)
		violated("stops as %s: %s", verdict == TK_VERDICT_FENCED ? "fenced" : "diverged", reason);
	return verdict;
}

static const TkProgress *
judge_before_fencing(TkProgress *progress)
{
	TkRemembered mine;
	TkCommittables rows;
	const TkProgress *found = read_progress(progress);

	remember(&mine, &rows);
	(void) judge(found, &mine, false);
	step("after-progress-read");
	return found;
}

/* Is there something that step 2 can commit, at this moment? */
static void
note_redrivable(void)
{
	const Row  *row = tk_committable_prepared();
	char		reason[256];

	worker.redrivable = -1;
	if (row != NULL)
	{
		TkTransactionDescription now = coordinator_describe(row->transactional_id);

		if (tk_redrive(&row->vote, row->timeline, worker.timeline, &now, reason, sizeof(reason)) == TK_REDRIVE_COMMIT)
			worker.redrivable = sim.coordinators[row->transactional_id].transaction;
	}
}

/* EndTxn, tried again until the time is over. False: nobody knows what became of it. */
static bool
tk_rpc_commit(const Row *row, int64_t pid, int epoch, int64_t deadline)
{
	Request		r = {0};

	r.api = API_END;
	r.client = -1;
	r.transactional_id = row->transactional_id;
	r.pid = pid;
	r.epoch = epoch;
	r.commit = true;
	while (sim.now < deadline)
	{
		int			error;

		if (!rpc())
		{
			if (chance(500))
				schedule_request(EVENT_REQUEST, &r, sim.now + late());
			continue;
		}
		error = coordinator_end(r.transactional_id, r.pid, r.epoch, true);
		work(100, 1500);
		if (error == CONCURRENT_TRANSACTIONS)
			run_clock(sim.now + 20 * MS, false);
		else
		{
			worker.redriven = error == 0;
			step("after-redrive");
			return true;
		}
	}
	return false;
}

/* Step 2: no verdict; step 4 reads what has become of it. */
static void
redrive(const TkProgress *progress)
{
	const Row  *row = tk_committable_prepared();
	int64_t		deadline = sim.now + REDRIVE_PATIENCE_US;
	char		reason[256];

	bool		any = mutation == REDRIVE_ANY_START || mutation == REDRIVE_ANY_PRODUCER;

	if (row == NULL || (progress != NULL && progress->checkpoint >= row->id && !any) || mutation == NO_REDRIVE)
		return;
	while (sim.now < deadline)
	{
		TkTransactionDescription now;
		TkRedrive	what;

		if (!rpc())
			continue;
		now = coordinator_describe(row->transactional_id);
		work(100, 1500);
		what = tk_redrive(&row->vote, row->timeline, worker.timeline, &now, reason, sizeof(reason));
		if (what == TK_REDRIVE_NOTHING && now.state == TK_TRANSACTION_ONGOING &&
			now.epoch == row->vote.epoch && now.start_ms != row->vote.start_ms)
			HAPPENED(OTHER_START);
		if (any && row->vote.known && now.state == TK_TRANSACTION_ONGOING)
			what = TK_REDRIVE_COMMIT;
		if (what == TK_REDRIVE_WAIT)
		{
			HAPPENED(WAITED_FOR_DECISION);
			run_clock(sim.now + DECIDING_POLL_MS * MS, false);
			continue;
		}
		if (what == TK_REDRIVE_NOTHING)
		{
			TRACE("not re-driven: %s", reason);
			return;
		}
		if (mutation == REDRIVE_IS_VERDICT)
			deadline = sim.now + 1;
		worker.redrive_unanswered = mutation == REDRIVE_ANY_PRODUCER ?
			!tk_rpc_commit(row, now.producer_id, now.epoch, deadline) :
			!tk_rpc_commit(row, row->vote.producer_id, row->vote.epoch, deadline);
		if (mutation == REDRIVE_IS_VERDICT)
			worker.redriven = true;
		return;
	}
	worker.redrive_unanswered = true;
}

static void
fence_transactional_ids(const TkProgress *found)
{
	unsigned	ids = 0;
	Client	   *other;

	for (int i = 0; i < sim.retained; i++)
		if (sim.catalog.rows[i].id != 0 && sim.catalog.rows[i].transactional_id >= 0)
			ids |= 1u << sim.catalog.rows[i].transactional_id;
	for (int i = 0; i < sim.catalog.pool_size; i++)
		ids |= 1u << transactional_id(sim.catalog.prefix, i);
	for (int i = 0; found != NULL && i < found->pool_size; i++)
		ids |= 1u << transactional_id(found->prefix[0] - '0', i);

	for (int i = 0; i < worker.pool_size; i++)
	{
		if (mutation != FENCE_ONE_ID || i == 0)
			tk_pool_init(worker.producers[i]);
		ids &= ~(1u << worker.producers[i]->transactional_id);
	}
	for (int id = 0; id < IDS && mutation != FENCE_OWN_IDS_ONLY; id++)
	{
		if ((ids & 1u << id) == 0)
			continue;
		HAPPENED(OTHER_ID_FENCED);
		other = client_create(id);
		tk_pool_init(other);
		client_destroy(other, false);
	}
	step("after-init-transactions");
}

static void
decide(const TkProgress *found_before)
{
	Worker	   *w = &worker;
	TkProgress	progress;
	const TkProgress *found;
	TkRemembered mine;
	TkCommittables rows;
	uint64_t	instances[2];
	int64_t		held;
	uint64_t	held_end;
	const Row  *row;

	await_stable_progress();
	found = mutation == NO_SECOND_READ ? found_before : read_progress(&progress);
	step("before-decide");

	w->instance = ++sim.next_instance;
	instances[0] = found != NULL && mutation != ONE_INSTANCE ? found->instance : 0;
	instances[1] = w->instance;

	tk_write_begin();
	remember(&mine, &rows);
	if (judge(found, &mine, true) == TK_VERDICT_ADOPT && mutation != NO_ADOPTED_ROW)
	{
		HAPPENED(ADOPTED);
		tk_committable_adopt(found->checkpoint, found->end_lsn);
	}
	held = found != NULL ? found->checkpoint : 0;
	held_end = found != NULL ? found->end_lsn : tk_slot_confirmed();
	row = tk_committable_prepared();
	if (row != NULL && row->id > held && ((mutation == REDRIVE_IS_VERDICT && w->redriven) ||
										  mutation == ROW_IS_VERDICT))
	{
		held = row->id;
		held_end = row->end_lsn;
	}
	if (mutation != NO_VERDICT)
		tk_committable_settle(held);
	remember(&mine, &rows);
	sim.catalog.instances[0] = instances[0];
	sim.catalog.instances[1] = instances[1];
	sim.catalog.prefix = w->prefix;
	sim.catalog.pool_size = w->pool_size;
	tk_write_commit();

	memset(&w->checkpoint, 0, sizeof(w->checkpoint));
	w->checkpoint.id = held + 1;
	w->checkpoint.start_lsn = held_end;
	w->checkpoint.end_lsn = held_end;
	w->attempt = rows.next_attempt;
	step("after-decide");
}

static void
write_start_record(void)
{
	tk_commit_start_record();
	tk_write_begin();
	sim.catalog.started = true;
	if (mutation != STOP_POSITION_KEPT)
		sim.catalog.stop_lsn = 0;
	tk_write_commit();
	step("after-started");
}

static void
tk_pipeline_recover(void)
{
	TkProgress	progress;
	const TkProgress *found;

	step("recovery-start");
	acquire_slot();				/* 0 */
	for (int i = 0; i < worker.pool_size; i++)
		create_producer(i);		/* tk_pool_create() */
	found = judge_before_fencing(&progress);	/* 1 */
	note_redrivable();
	if (mutation == FENCE_BEFORE_REDRIVE)
		fence_transactional_ids(found);
	redrive(found);				/* 2 */
	if (mutation != FENCE_BEFORE_REDRIVE)
		fence_transactional_ids(found); /* 3 */
	decide(found);				/* 4 */
	write_start_record();		/* 5 */
	tk_wal_open(mutation == START_AT_CONFIRMED ? tk_slot_confirmed() : worker.checkpoint.end_lsn);
}

/* ----------------------------------------------------------------
 * The stream
 * ----------------------------------------------------------------
 */

static void
mark_committed(void)
{
	step("before-mark");
	tk_write_begin();
	tk_committable_mark(worker.checkpoint.id - 1);
	tk_write_commit();
	worker.committed_at = 0;
	step("after-mark");
}

static void
settle_idle(void)
{
	Worker	   *w = &worker;

	if (mutation == IDLE_CONFIRM_WHILE_OPEN && w->nclosing == 0)
		tk_slot_confirm(w->position_lsn);
	if (w->checkpoint.state != TK_CHECKPOINT_NONE || w->nclosing > 0)
		return;
	tk_slot_confirm(w->position_lsn);
	if (w->dry_limit > sim.covered_lsn)
		sim.covered_lsn = w->dry_limit;
	if (w->committed_at != 0 && sim.now - w->last_triggered_us >= MARK_AFTER_US)
		mark_committed();
}

static bool
checkpoint_wanted(uint64_t position)
{
	return sim.wanted_lsn > sim.covered_lsn && position >= sim.wanted_lsn;
}

static bool
checkpoint_due(bool dry, bool wanted)
{
	bool		busy = worker.nclosing > worker.pool_size - 2;
	bool		due = tk_checkpoint_due(&worker.checkpoint, &sim.policy, worker.last_triggered_us, sim.now, dry,
										wanted, busy);

	if (due && busy)
		HAPPENED(FULL_WHILE_BUSY);
	return due;
}

static bool
read_until_dry(uint64_t limit)
{
	Worker	   *w = &worker;

	for (;;)
	{
		if (sim.die_pending || tk_stop_wanted())
			return false;
		if (w->nclosing > 0)
		{
			if (chance(100))	/* a large transaction is in memory */
				tk_advance_closing(1, true);
			else
				tk_advance_closing(w->nclosing, false);
		}
		if (!tk_wal_next(limit))
			break;
		if (w->boundary)
		{
			w->boundary = false;
			if (checkpoint_due(false, checkpoint_wanted(w->position_lsn)))
				tk_trigger_checkpoint(w->position_lsn, false);
		}
	}
	w->boundary = false;
	w->dry_limit = limit;
	return true;
}

static void
sleep_until_commit(uint64_t limit)
{
	Worker	   *w = &worker;
	int64_t		nap = w->last_triggered_us == 0 ? 0 :
	(w->last_triggered_us + sim.policy.interval_us - sim.now) / 1000;
	int64_t		timeout = IDLE_MS;

	tk_begin_ahead();
	if (nap > 0)
	{
		run_clock(sim.now + (nap < NAP_MS ? nap : NAP_MS) * MS, true);
		return;
	}
	if (tk_wal_read_limit() > limit)
		return;
	if (flush_position() > limit)
		timeout = STANDBY_MS;
	if (w->nclosing <= w->pool_size - 2)
	{
		int64_t		delay = tk_checkpoint_delay(&w->checkpoint, &sim.policy, w->last_triggered_us, sim.now);

		if (delay >= 0 && (delay + 999) / 1000 < timeout)
			timeout = (delay + 999) / 1000;
	}
	if (timeout > 0)
		run_clock(sim.now + timeout * MS, true);
}

static void
finish_before_death(void)
{
	int64_t		until = sim.now + DYING_PATIENCE_US;

	while (worker.nclosing > 0 && sim.now < until)
	{
		tk_advance_closing(worker.nclosing, false);
		if (worker.nclosing > 0)
			run_clock(sim.now + DYING_POLL_MS * MS, true);
	}
	if (worker.nclosing > 0)
		check_for_interrupts();
}

static void
stop_orderly(void)
{
	int64_t		until = sim.now + DYING_PATIENCE_US;

	sim.die_pending = false;
	while (tk_publish_visible() && sim.now < until)
		run_clock(sim.now + MARKERS_MS * MS, true);
	step("orderly-stop");
	tk_write_begin();
	if (worker.committed_at != 0)
		tk_committable_mark(worker.checkpoint.id - 1);
	sim.catalog.stop_lsn = tk_slot_confirmed();
	tk_write_commit();
	HAPPENED(ORDERLY_STOP);
}

/* Nothing is left to do, and nothing is on its way any more. */
static bool
is_over(void)
{
	return sim.calm && sim.committed == sim.nsource && worker.position == sim.nsource &&
		worker.checkpoint.state == TK_CHECKPOINT_NONE && worker.nclosing == 0 &&
		worker.committed_at == 0 && sim.on_their_way == 0;
}

/* True: the run is over, and the worker idle. */
static bool
tk_pipeline_run(void)
{
	Worker	   *w = &worker;

	w->running = true;
	for (;;)
	{
		uint64_t	limit = tk_wal_read_limit();
		bool		dry = read_until_dry(limit);
		bool		stop = tk_stop_wanted();
		bool		asking;

		tk_advance_closing(stop ? 0 : w->nclosing, false);
		if (dry || stop)
		{
			if (checkpoint_due(true, stop || checkpoint_wanted(limit)))
				tk_trigger_checkpoint(dry && limit > w->position_lsn ? limit : w->position_lsn, true);
			else
				tk_append_all();
			if (stop)
				tk_advance_closing(0, false);
			settle_idle();
		}
		asking = tk_publish_visible();
		if (sim.die_pending)
			finish_before_death();
		if (stop || sim.die_pending)
		{
			stop_orderly();
			return false;
		}
		if (is_over())
			return true;
		check_for_interrupts();
		if (dry && asking)
			run_clock(sim.now + MARKERS_MS * MS, true);
		else if (dry)
			sleep_until_commit(limit);
	}
}

/* pipeline_exit() in worker.c */
static void
pipeline_exit(bool kill)
{
	Worker	   *w = &worker;

	for (int i = 0; i < w->pool_size; i++)
	{
		bool		abort_open = w->transaction_open && i == w->current;

		for (int j = 0; j < w->nclosing; j++)
			if (i == w->closing[j].producer)
				abort_open = w->closing[j].checkpoint.state < TK_CHECKPOINT_PREPARED;
		if (w->producers[i] != NULL)
			client_destroy(w->producers[i], abort_open && !kill);
		w->producers[i] = NULL;
	}
}
