/*
 * test_checkpoint.c
 *	  Which moves a checkpoint may make, and when one is taken.
 */
#include "../../src/checkpoint.h"
#include "unit.h"

#define MS INT64_C(1000)
#define SECOND INT64_C(1000000)

/* Clocks of servers that have been up for a while */
#define NOW (INT64_C(1000) * SECOND)

/*
 * The moves, written once more, by hand: rows are "from", columns are "to", in
 * the order none, open, triggered, acknowledged, prepared, committed.
 */
static const char *const legal_moves[TK_CHECKPOINT_STATES] = {
	[TK_CHECKPOINT_NONE] = ".x....",
	[TK_CHECKPOINT_OPEN] = "..x...",
	[TK_CHECKPOINT_TRIGGERED] = "...x..",
	[TK_CHECKPOINT_ACKNOWLEDGED] = "....x.",
	[TK_CHECKPOINT_PREPARED] = ".....x",
	[TK_CHECKPOINT_COMMITTED] = "x....."
};

static void
every_move_is_legal_or_refused_without_a_trace(void)
{
	for (int from = 0; from < TK_CHECKPOINT_STATES; from++)
		for (int to = 0; to < TK_CHECKPOINT_STATES; to++)
		{
			TkCheckpoint checkpoint = {0};
			TkCheckpoint before;
			bool		legal = legal_moves[from][to] == 'x';
			bool		moved;

			checkpoint.state = (TkCheckpointState) from;
			checkpoint.id = 7;
			before = checkpoint;
			moved = tk_checkpoint_move(&checkpoint, (TkCheckpointState) to, NOW);
			if (!CHECK_INT(moved, legal))
				printf("\tfrom %s to %s\n", tk_checkpoint_state_name((TkCheckpointState) from),
					   tk_checkpoint_state_name((TkCheckpointState) to));
			CHECK_INT(checkpoint.state, legal ? to : from);
			CHECK_INT(checkpoint.id, 7);
			if (!moved)
				CHECK(memcmp(&checkpoint, &before, sizeof(before)) == 0);
		}
}

static void
a_checkpoint_goes_through_all_steps_and_notes_when(void)
{
	TkCheckpoint checkpoint = {0};

	checkpoint.id = 5;
	checkpoint.start_lsn = 100;
	CHECK(tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_OPEN, NOW + 1));
	checkpoint.end_lsn = 200;
	checkpoint.read_lsn = 250;
	checkpoint.transactions = 3;
	checkpoint.records = 10;
	checkpoint.bytes = 1000;
	CHECK(tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_TRIGGERED, NOW + 2));
	CHECK(tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_ACKNOWLEDGED, NOW + 3));
	CHECK(tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_PREPARED, NOW + 4));
	CHECK(tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_COMMITTED, NOW + 5));
	CHECK_INT(checkpoint.first_record_us, NOW + 1);
	CHECK_INT(checkpoint.triggered_us, NOW + 2);
	CHECK_INT(checkpoint.acknowledged_us, NOW + 3);
	CHECK_INT(checkpoint.prepared_us, NOW + 4);
	CHECK_INT(checkpoint.committed_us, NOW + 5);

	/* the next one begins where it ended, with nothing in it */
	tk_checkpoint_next(&checkpoint);
	CHECK_INT(checkpoint.state, TK_CHECKPOINT_NONE);
	CHECK_INT(checkpoint.id, 6);
	CHECK_INT(checkpoint.start_lsn, 200);
	CHECK_INT(checkpoint.end_lsn, 200);
	CHECK_INT(checkpoint.transactions, 0);
	CHECK_INT(checkpoint.records, 0);
	CHECK_INT(checkpoint.bytes, 0);
	CHECK_INT(checkpoint.first_record_us, 0);
	CHECK_INT(checkpoint.committed_us, 0);
}

static void
states_have_names(void)
{
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_NONE), "none");
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_OPEN), "open");
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_TRIGGERED), "triggered");
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_ACKNOWLEDGED), "acknowledged");
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_PREPARED), "prepared");
	CHECK_STR(tk_checkpoint_state_name(TK_CHECKPOINT_COMMITTED), "committed");
}

static const TkCheckpointPolicy usual = {100 * MS, 1000, 1000000};

/* Open since "since", with a few records. */
static TkCheckpoint
open_since(int64_t since)
{
	TkCheckpoint checkpoint = {0};

	checkpoint.id = 1;
	tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_OPEN, since);
	checkpoint.records = 3;
	checkpoint.bytes = 300;
	return checkpoint;
}

static void
only_an_open_checkpoint_comes_due(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	for (int state = 0; state < TK_CHECKPOINT_STATES; state++)
	{
		bool		open = state == TK_CHECKPOINT_OPEN;

		checkpoint.state = (TkCheckpointState) state;
		checkpoint.records = 5000;
		CHECK_INT(tk_checkpoint_due(&checkpoint, &usual, 0, NOW + SECOND, true, true, false), open);
		CHECK_INT(tk_checkpoint_due(&checkpoint, &usual, 0, NOW + SECOND, false, false, false), open);
		CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW, NOW), open ? 100 * MS : -1);
	}
}

static void
a_lone_commit_is_sent_at_once(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	/* the first ever */
	CHECK(tk_checkpoint_due(&checkpoint, &usual, 0, NOW, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, 0, NOW), 0);

	/* the last one is an interval ago: a rate limit, not a delay */
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW - 100 * MS, NOW, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW - 100 * MS, NOW), 0);
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW - SECOND, NOW), 0);
}

static void
commits_in_quick_succession_wait_for_the_interval(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW - 1, NOW, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW - 1, NOW), 100 * MS - 1);
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW - 1, NOW + 100 * MS - 2, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW - 1, NOW + 100 * MS - 2), 1);
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW - 1, NOW + 100 * MS - 1, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &usual, NOW - 1, NOW + 100 * MS - 1), 0);
}

static void
a_stream_that_never_runs_dry_is_cut_an_interval_after_its_first_record(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW - SECOND, NOW, false, false, false));
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW - SECOND, NOW + 100 * MS - 1, false, false, false));
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW - SECOND, NOW + 100 * MS, false, false, false));

	/* the first ever, too: nothing was triggered before */
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, 0, NOW + 100 * MS - 1, false, false, false));
	CHECK(tk_checkpoint_due(&checkpoint, &usual, 0, NOW + 100 * MS, false, false, false));

	/* and not before the rate allows it */
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW + 50 * MS, NOW + 120 * MS, false, false, false));
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW + 50 * MS, NOW + 150 * MS, false, false, false));
}

/* A steady stream, simulated: a transaction each ms for 10 s makes at most one checkpoint an interval. */
static void
a_busy_stream_makes_at_most_one_checkpoint_an_interval(void)
{
	for (int dry_every = 0; dry_every <= 10; dry_every += 5)	/* 0: never */
	{
		TkCheckpoint checkpoint = {0};
		int64_t		last = 0;
		int			taken = 0;

		for (int64_t ms = 0; ms < 10000; ms++)
		{
			int64_t		now = NOW + ms * MS;
			bool		dry = dry_every > 0 && ms % dry_every == 0;

			if (checkpoint.state == TK_CHECKPOINT_NONE)
				tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_OPEN, now);
			checkpoint.records++;
			if (tk_checkpoint_due(&checkpoint, &usual, last, now, dry, false, false))
			{
				CHECK(last == 0 || now - last >= 100 * MS);
				last = now;
				taken++;
				tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_TRIGGERED, now);
				tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_ACKNOWLEDGED, now);
				tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_PREPARED, now);
				tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_COMMITTED, now);
				tk_checkpoint_next(&checkpoint);
			}
		}
		/* ms 100, 201, … opened on the ms after; or on the dry ms */
		CHECK_INT(taken, dry_every == 0 ? 99 : 100);
	}
}

static void
a_large_checkpoint_is_closed_early(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	checkpoint.records = 999;
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, false, false, false));
	checkpoint.records = 1000;
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, false, false, false));

	checkpoint.records = 1;
	checkpoint.bytes = 999999;
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, false, false, false));
	checkpoint.bytes = 1000000;
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, false, false, false));
	checkpoint.bytes = 5000000;
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, true, false, false));
}

static void
a_wanted_checkpoint_does_not_wait_for_the_interval(void)
{
	TkCheckpoint checkpoint = open_since(NOW);

	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, true, true, false));
	CHECK(tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, false, true, false));

	/* with nothing to send there is none to take */
	tk_checkpoint_move(&checkpoint, TK_CHECKPOINT_TRIGGERED, NOW);
	CHECK(!tk_checkpoint_due(&checkpoint, &usual, NOW, NOW, true, true, false));
}

static void
one_that_has_to_wait_for_another_is_closed_only_when_full(void)
{
	const TkCheckpointPolicy at_once = {0, 1000, 1000000};
	TkCheckpoint checkpoint = open_since(NOW);

	CHECK(!tk_checkpoint_due(&checkpoint, &at_once, 0, NOW + SECOND, true, true, true));
	checkpoint.records = 1000;
	CHECK(tk_checkpoint_due(&checkpoint, &at_once, 0, NOW + SECOND, false, false, true));
}

static void
interval_0_is_as_soon_as_the_one_before_is_done(void)
{
	const TkCheckpointPolicy at_once = {0, 1000, 1000000};
	TkCheckpoint checkpoint = open_since(NOW);

	CHECK(tk_checkpoint_due(&checkpoint, &at_once, 0, NOW, true, false, false));
	CHECK(tk_checkpoint_due(&checkpoint, &at_once, NOW, NOW, true, false, false));
	CHECK_INT(tk_checkpoint_delay(&checkpoint, &at_once, NOW, NOW), 0);

	/* a stream that never runs dry isn't cut at every transaction, but never waits long */
	CHECK(!tk_checkpoint_due(&checkpoint, &at_once, NOW - SECOND, NOW, false, false, false));
	CHECK(tk_checkpoint_due(&checkpoint, &at_once, NOW - SECOND, NOW + 50 * MS, false, false, false));
	checkpoint.records = 1000;
	CHECK(tk_checkpoint_due(&checkpoint, &at_once, NOW, NOW, false, false, false));
}

int
main(void)
{
	every_move_is_legal_or_refused_without_a_trace();
	a_checkpoint_goes_through_all_steps_and_notes_when();
	states_have_names();
	only_an_open_checkpoint_comes_due();
	a_lone_commit_is_sent_at_once();
	commits_in_quick_succession_wait_for_the_interval();
	a_stream_that_never_runs_dry_is_cut_an_interval_after_its_first_record();
	a_busy_stream_makes_at_most_one_checkpoint_an_interval();
	a_large_checkpoint_is_closed_early();
	a_wanted_checkpoint_does_not_wait_for_the_interval();
	one_that_has_to_wait_for_another_is_closed_only_when_full();
	interval_0_is_as_soon_as_the_one_before_is_done();
	return unit_done();
}
