/*
 * test_protocol.c
 *	  The checkpoint protocol in a simulated world, seed by seed.
 *
 * Each seed makes a source, a worker's lives and their ends, and a Kafka that
 * loses, delays, repeats, times out and fences (sim_world.h).  After the last
 * fault the world comes to rest, and then every committed transaction must have
 * been read exactly once, whole and in order; the sim_*.c check the same, and
 * the slot and the rows, all along.
 *
 *	TK_SEEDS=n	so many seeds instead of as many as fit in five seconds, and 5,000 at least
 *	TK_FIRST=n	beginning with this one
 *	TK_COUNTS=1	says how often what happened
 *	TK_SEED=n	this seed only, told step by step
 *	TK_STEP=n, TK_DEATH=n	… with one crash only, of this kind at this step
 *	TK_MUTATION=n	… with the n-th mistake of the table planted
 *
 * The last test plants one mistake of the protocol at a time: each must be found.
 */
#include <time.h>

#include "unit.h"

#include "sim_kafka.c"
#include "sim_worker.c"

/* A run that must be found to be wrong is looked for among so many seeds at most. */
#define MUTATION_SEEDS 20000

/* How long the seeds run if nobody says how many, and how many they are at least. */
#define DEFAULT_MS 5000
#define DEFAULT_SEEDS 5000

/* ----------------------------------------------------------------
 * A run
 * ----------------------------------------------------------------
 */

static void
schedule_fault(EventKind kind, int number, int64_t at)
{
	Event		event = {0};

	event.kind = kind;
	event.number = number;
	event.at = at;
	schedule(event);
}

/* Bursts, a steady stream, or one now and then */
static int64_t
pause_between_commits(void)
{
	switch (between(0, 5))
	{
		case 0:
		case 1:
			return between(0, 200);
		case 2:
		case 3:
			return between(0, 10 * MS);
		case 4:
			return between(0, 200 * MS);
		default:
			return between(0, 1500 * MS);
	}
}

static void
make_source(void)
{
	int64_t		at = sim.now;
	uint64_t	lsn = 1000;

	sim.nsource = (int) between(2, SOURCE_MAX);
	for (int i = 0; i < sim.nsource; i++)
	{
		SourceTransaction *t = &sim.source[i];

		at += pause_between_commits();
		lsn += (uint64_t) between(10, 200);
		t->at = at;
		t->end_lsn = lsn;
		t->first_record = sim.nrecords;
		t->nrecords = chance(150) ? 0 : (int) between(1, chance(200) ? 4 : 2);
		for (int j = 0; j < t->nrecords; j++)
		{
			sim.record_source[sim.nrecords] = (short) i;
			sim.record_partition[sim.nrecords++] = (char) between(0, DATA_PARTITIONS - 1);
		}
		schedule_fault(EVENT_SOURCE, i, at);
	}
	sim.calm_at = at + between(0, 2 * SECOND);
	schedule_fault(EVENT_CALM, 0, sim.calm_at);
}

static void
make_world(uint64_t seed)
{
	static const int breaks[] = {0, 5, 30, 100};
	static const int slow[] = {0, 10, 100};
	static const int64_t intervals[] = {0, 2 * MS, 20 * MS, 100 * MS};
	static const int64_t timeouts[] = {500 * MS, 3 * SECOND, 60 * SECOND, NEVER, NEVER};

	memset(&sim, 0, sizeof(sim));
	sim.random = seed * UINT64_C(0xD1342543DE82EF95) + 1;
	sim.now = 1000 * SECOND;
	sim.breaks = breaks[between(0, 3)];
	sim.slow = slow[between(0, 2)];
	sim.failures = chance(200) ? 100 : 0;
	sim.transaction_timeout = timeouts[between(0, 4)];
	sim.policy.interval_us = intervals[between(0, 3)];
	sim.policy.max_records = chance(500) ? 1000 : between(1, 6);
	sim.policy.max_bytes = 1000000;
	sim.retained = (int) between(2, RING_MAX);
	sim.send_records = (int) between(1, 6);
	sim.hold_records = sim.send_records + (int) between(0, 10);
	sim.max_concurrent = chance(500) ? 1 : (int) between(1, MOST_CONCURRENT);
	sim.timeline = 1;
	sim.standby = chance(300);
	sim.crashes_left = (int) between(0, 4);
	for (int i = 0; i < PARTITIONS; i++)
		sim.partitions[i].progress = -1;
	make_source();
	for (int i = chance(300) ? 0 : (int) between(1, 4); i > 0; i--)
		schedule_fault(EVENT_FAULT, (int) between(0, FAULTS - 1), between(sim.now, sim.calm_at));
}

static void
start_process(void)
{
	memset(&worker, 0, sizeof(worker));
	worker.redrivable = -1;
	worker.prefix = sim.prefix;
	worker.pool_size = sim.max_concurrent + 1;
	worker.timeline = sim.timeline;
	sim.alive = true;
	sim.stop_wanted = false;
	sim.die_pending = false;
	if (sim.crash_is_planned || sim.calm || sim.crashes_left == 0)
		return;
	sim.crashes_left--;
	sim.crash_at = sim.steps + (unsigned) between(1, chance(500) ? 80 : 600);
	sim.crash_by = (Death) between(DEATH_KILL, DEATH_ERROR);
}

/*
 * The standby takes over.  What it has of the WAL ends anywhere behind what it
 * had said to have flushed: source transactions beyond that are lost (and were
 * never told to be committed), and so are the worker's last rows, which wait for
 * no standby.  The slot is one that is kept on standbys too.
 */
static void
promote(void)
{
	int			oldest = sim.nsnapshots > SNAPSHOTS ? sim.nsnapshots - SNAPSHOTS : 0;
	int			number = (int) between(oldest, sim.nsnapshots - 1);
	int			low = sim.snapshots[number % SNAPSHOTS].committed;
	int			high = number + 1 < sim.nsnapshots ? sim.snapshots[(number + 1) % SNAPSHOTS].committed : sim.committed;
	int			end;

	if (low < sim.replicated)
		low = sim.replicated;
	if (sim.timeline == TIMELINES || low > high || low == 0 || !sim.snapshots[number % SNAPSHOTS].catalog.slot_created)
		return;
	HAPPENED(PROMOTION);
	if (number + 1 < sim.nsnapshots)
		HAPPENED(PROMOTION_LOST_ROWS);
	end = (int) between(low, high);
	for (int i = end; i < sim.committed; i++)
		sim.source[i].nrecords = 0;
	sim.undecided = next_undecided(sim.undecided);
	for (int i = 0; i < DATA_PARTITIONS; i++)
		sim.partitions[i].next = next_expected(i, sim.partitions[i].next);
	sim.catalog = sim.snapshots[number % SNAPSHOTS].catalog;
	sim.catalog.confirmed = sim.catalog.confirmed_on_disk;
	sim.forks[sim.timeline - 1].timeline = sim.timeline;
	sim.forks[sim.timeline - 1].end_lsn = sim.source[end - 1].end_lsn;
	sim.timeline++;
	sim.nsnapshots = 0;
	TRACE("promoted: timeline %u from %d on", sim.timeline, (int) sim.source[end - 1].end_lsn);
}

/* Between two lives */
static void
process_has_ended(Death how)
{
	static const Happening what[] = {
		[DEATH_KILL] = HAPPENED_CRASH,[DEATH_SERVER] = HAPPENED_SERVER_CRASH,[DEATH_ERROR] = HAPPENED_ERROR_EXIT
	};

	sim.alive = false;
	pipeline_exit(how == DEATH_KILL || how == DEATH_SERVER);
	if (how != DEATH_NONE)
		happenings[what[how]]++;
	if (how == DEATH_SERVER)
		sim.covered_lsn = sim.visible_lsn = 0;	/* shared memory */
	if (how == DEATH_SERVER && sim.catalog.confirmed_on_disk < sim.catalog.confirmed)
	{
		HAPPENED(SLOT_WENT_BACK);
		sim.catalog.confirmed = sim.catalog.confirmed_on_disk;
	}
	if (sim.standby && sim.nsnapshots > 0 && !sim.calm && how == DEATH_SERVER && chance(700))
		promote();
	if (sim.calm && ++sim.deaths_when_calm > 30)
		violated("it starts again and again");
	run_clock(sim.now + between(1 * MS, how == DEATH_NONE ? 10 * MS : 500 * MS), false);

	/*
	 * A changed definition.  If it changes twice around a promotion that loses the state row in between, nobody
	 * knows the ids of the time in between any more: what was open on them ends by its timeout, or by the
	 * operator's kafka.end_transaction().
	 */
	if (chance(100) && !(sim.standby && sim.transaction_timeout == NEVER))
	{
		sim.prefix = (int) between(0, PREFIXES - 1);
		sim.max_concurrent = (int) between(1, MOST_CONCURRENT);
	}

	/* kafka.end_transaction() */
	if (!sim.calm && chance(50))
	{
		int			id = any_id();
		const Coordinator *c = &sim.coordinators[id];

		if (c->exists && c->state == TK_TRANSACTION_ONGOING)
		{
			HAPPENED(ADMIN_ABORT);
			(void) coordinator_end(id, c->pid, c->epoch, false);
		}
	}
}

/* Everything has been said: what must be true in the end. */
static void
check_the_end(void)
{
	const Partition *progress = &sim.partitions[PROGRESS_PARTITION];

	for (int i = 0; i < PARTITIONS; i++)
	{
		const Partition *partition = &sim.partitions[i];

		if (last_stable_offset(partition) != partition->end)
			violated("partition %d: a transaction stays open at offset %d of %d", i, last_stable_offset(partition),
					 partition->end);
		if (i < DATA_PARTITIONS && partition->next != sim.nrecords)
			violated("partition %d: record %d of transaction %d is never seen", i, partition->next,
					 sim.record_source[partition->next]);
	}
	if (sim.undecided != sim.nsource)
		violated("transaction %d is not in Kafka", sim.undecided);
	if (sim.catalog.confirmed < flush_position())
		violated("the slot stays at %" PRIu64 ", the end is at %" PRIu64, sim.catalog.confirmed, flush_position());
	if (tk_committable_prepared() != NULL)
		violated("row %d stays prepared", (int) tk_committable_prepared()->id);
	if (progress->progress < 0 || sim.progress[progress->progress].checkpoint != worker.checkpoint.id - 1)
		violated("the progress record is not that of checkpoint %d", (int) worker.checkpoint.id - 1);
}

static bool over;
static Death death;

/* False: "violation" says what was wrong. crash_at: the only crash is at this step; 0: by the seed. */
static bool
run(uint64_t seed, unsigned crash_at, Death crash_by)
{
	if (setjmp(run_end) != 0)
		return false;
	make_world(seed);
	if (crash_by != DEATH_NONE)
	{
		sim.crash_is_planned = true;
		sim.crash_at = crash_at;
		sim.crash_by = crash_by;
	}
	for (over = false; !over;)
	{
		death = (Death) setjmp(process_end);
		if (death == DEATH_NONE)
		{
			start_process();
			tk_pipeline_recover();
			over = tk_pipeline_run();
		}
		if (!over)
			process_has_ended(death);
	}
	check_the_end();
	return true;
}

/* ----------------------------------------------------------------
 * Tests
 * ----------------------------------------------------------------
 */

static int64_t
clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t
number_of(const char *variable, int64_t otherwise)
{
	const char *value = getenv(variable);

	return value != NULL && *value != '\0' ? strtoll(value, NULL, 10) : otherwise;
}

static void
every_seed_ends_with_each_transaction_once_and_in_order(void)
{
	int64_t		first = number_of("TK_FIRST", 1);
	int64_t		seeds = number_of("TK_SEEDS", 0);
	int64_t		begun = clock_ms();
	int64_t		seed = first;
	int			found = 0;

	for (; seeds > 0 ? seed < first + seeds :
		 seed < first + DEFAULT_SEEDS || (seed & 63) != 0 || clock_ms() - begun < DEFAULT_MS; seed++)
	{
		bool		ok = run((uint64_t) seed, 0, DEATH_NONE);

		if (!ok && found++ < 10)
			printf("TK_SEED=%" PRId64 ": %s\n", seed, violation);
	}
	CHECK_INT(found, 0);
	printf("# %" PRId64 " seeds in %" PRId64 " ms, from %" PRId64 " on\n", seed - first, clock_ms() - begun, first);
}

/* Of a few runs, every single step is once the last one before a crash, of every kind. */
static void
a_crash_at_every_step_leaves_what_the_next_start_can_go_on_from(void)
{
	long		runs = 0;

	for (uint64_t seed = 1; seed <= 4; seed++)
		for (Death how = DEATH_KILL; how <= DEATH_ERROR; how++)
		{
			unsigned	steps = 0;

			for (unsigned at = 0; at <= steps; at++)
			{
				bool		ok = run(seed, at, how);

				runs++;
				if (at == 0)
					steps = sim.steps;
				if (!CHECK(ok))
					printf("\tTK_SEED=%d TK_STEP=%u TK_DEATH=%d: %s\n", (int) seed, at, (int) how, violation);
			}
			CHECK(steps > 100);
		}
	printf("# %ld runs with a crash each\n", runs);
}

static void
everything_that_can_happen_has_happened(void)
{
	static const char *const names[HAPPENINGS] = {
		[HAPPENED_CHECKPOINT] = "checkpoint",
		[HAPPENED_SEVERAL_CLOSING] = "several checkpoints were on their way",
		[HAPPENED_OVERLAP] = "records gathered while the checkpoint before was not acknowledged",
		[HAPPENED_APPEND_BESIDE_COMMIT] = "records sent while the checkpoint before was being committed",
		[HAPPENED_FULL_WHILE_BUSY] = "a full checkpoint had to wait for the one before",
		[HAPPENED_CRASH] = "the process was killed",
		[HAPPENED_SERVER_CRASH] = "the server crashed",
		[HAPPENED_ERROR_EXIT] = "the process ended by an error",
		[HAPPENED_ORDERLY_STOP] = "the process stopped in order",
		[HAPPENED_SLOT_WENT_BACK] = "the slot went back with a crash of the server",
		[HAPPENED_NO_VOTE] = "a row without a description of its transaction",
		[HAPPENED_REDRIVEN] = "redriven",
		[HAPPENED_ALREADY_COMMITTED] = "already committed",
		[HAPPENED_REPLAYED] = "replayed",
		[HAPPENED_OTHER_START] = "another transaction of the same epoch was open at the re-drive",
		[HAPPENED_WAITED_FOR_DECISION] = "the re-drive waited for markers",
		[HAPPENED_RENEWAL] = "a producer was renewed",
		[HAPPENED_TIMEOUT] = "a transaction timed out",
		[HAPPENED_LATE_END] = "an EndTxn came late",
		[HAPPENED_LATE_END_FENCED] = "an EndTxn came late and was fenced",
		[HAPPENED_LATE_ADD] = "a late AddPartitionsToTxn opened an empty transaction",
		[HAPPENED_LATE_PRODUCE_REFUSED] = "a record came late and was refused",
		[HAPPENED_IDEMPOTENT_END] = "an EndTxn was repeated",
		[HAPPENED_ABORT_BY_INIT] = "InitProducerId aborted a transaction",
		[HAPPENED_FOREIGN_INIT] = "somebody else took an id",
		[HAPPENED_EXPIRED_ID] = "an id expired",
		[HAPPENED_ADMIN_ABORT] = "an administrator aborted a transaction",
		[HAPPENED_OUTAGE] = "the broker was away",
		[HAPPENED_DELIVERY_FAILURE] = "a record could not be delivered",
		[HAPPENED_OTHER_ID_FENCED] = "an id that is not in the pool any more was fenced",
		[HAPPENED_WAIT_FOR_MARKERS] = "somebody waited until all was visible",
		[HAPPENED_PROMOTION] = "a standby was promoted",
		[HAPPENED_PROMOTION_LOST_ROWS] = "a standby was promoted without the last rows",
		[HAPPENED_ADOPTED] = "a promoted server adopted what Kafka holds"
	};

	if (number_of("TK_SEEDS", DEFAULT_SEEDS) < DEFAULT_SEEDS)
		return;
	for (int i = 0; i < HAPPENINGS; i++)
		if (!CHECK(happenings[i] > 0) || getenv("TK_COUNTS") != NULL)
			printf("#\t%s: %ld\n", names[i], happenings[i]);
}

static const char *const mistakes[MUTATIONS] = {
	[CONFIRM_BEFORE_COMMIT] = "the slot is confirmed before Kafka has committed",
	[FENCE_BEFORE_REDRIVE] = "InitProducerId before the re-drive",
	[NO_REDRIVE] = "no re-drive",
	[PREPARE_BEFORE_ACKNOWLEDGED] = "the row is prepared before all is acknowledged",
	[COMMIT_BEFORE_PREPARE] = "EndTxn before the row",
	[NO_PROGRESS_RECORD] = "no progress record",
	[PROGRESS_IN_NEXT_TRANSACTION] = "the progress record is in another transaction",
	[APPEND_BEFORE_ACKNOWLEDGED] = "N+1 is appended before N is acknowledged",
	[PREPARE_BEFORE_RESOLVED] = "N+1 is prepared before N is resolved",
	[REDRIVE_ANY_START] = "the re-drive looks neither at P nor at the start time",
	[REDRIVE_ANY_PRODUCER] = "the re-drive looks neither at P nor at start time and epoch",
	[REDRIVE_IS_VERDICT] = "the re-drive writes the verdict",
	[NO_RENEWAL] = "the producer is not renewed after a commit that was slow or gave no answer",
	[START_AT_CONFIRMED] = "decoding starts at confirmed_flush instead of P",
	[ROW_IS_VERDICT] = "a prepared row is taken for committed",
	[FENCE_ONE_ID] = "only one of the two ids is fenced",
	[FENCE_OWN_IDS_ONLY] = "ids that only rows, state or P name are not fenced",
	[NO_SECOND_READ] = "P is not read again after fencing",
	[READ_UNCOMMITTED] = "P is read with read_uncommitted",
	[ONE_INSTANCE] = "only the new instance number is kept",
	[SPLIT_TRANSACTION] = "a checkpoint is closed within a transaction",
	[IDLE_CONFIRM_WHILE_OPEN] = "the slot of an idle reader is confirmed with a checkpoint open",
	[IGNORE_DELIVERY_ERRORS] = "a failed delivery doesn't fail the checkpoint",
	[NO_VERDICT] = "no verdict on the prepared row",
	[RENEW_TOO_LATE] = "a commit of twice the bound counts as fast",
	[NO_RENEWAL_AT_START] = "the producer is not renewed after a slow start record",
	[STOP_POSITION_KEPT] = "a start leaves the position of the last orderly stop",
	[READ_UNREPLICATED] = "what no synchronous standby has is read",
	[NO_ADOPTED_ROW] = "a promoted server writes no row for what it adopts",
	[NO_TIMELINE] = "a promoted server doesn't know its history",
	[VISIBLE_WHEN_COMMITTED] = "wait_for() doesn't wait for the markers",
	[VISIBLE_WHEN_LAST_IS] = "wait_for() waits for the markers of the last checkpoint only"
};

static void
every_planted_mistake_is_found(void)
{
	for (int i = NO_MUTATION + 1; i < MUTATIONS; i++)
	{
		uint64_t	seed = 1;

		mutation = (Mutation) i;
		while (seed <= MUTATION_SEEDS && run(seed, 0, DEATH_NONE))
			seed++;
		if (CHECK(seed <= MUTATION_SEEDS))
			printf("# %s: seed %d: %s\n", mistakes[i], (int) seed, violation);
		else
			printf("\tnot found: %s\n", mistakes[i]);
	}
	mutation = NO_MUTATION;
}

int
main(void)
{
	int64_t		seed = number_of("TK_SEED", 0);

	if (seed != 0)
	{
		trace_on = true;
		mutation = (Mutation) number_of("TK_MUTATION", NO_MUTATION);
		CHECK(run((uint64_t) seed, (unsigned) number_of("TK_STEP", 0), (Death) number_of("TK_DEATH", DEATH_NONE)));
		return unit_done();
	}
	every_seed_ends_with_each_transaction_once_and_in_order();
	a_crash_at_every_step_leaves_what_the_next_start_can_go_on_from();
	everything_that_can_happen_has_happened();
	every_planted_mistake_is_found();
	return unit_done();
}
