/*
 * checkpoint.c
 *	  The checkpoint's state machine and the trigger policy.
 *
 * One function changes the state, against the table of legal moves, so the
 * order of the protocol (flush before the committable, committable before the
 * Kafka commit, Kafka commit before the slot) can't be left by a slip in
 * pipeline.c: it would fail here.  There is no state for failure: it ends the
 * process, and recovery starts with a new checkpoint.
 */
#include "checkpoint.h"

#include <stddef.h>

/*
 * With an interval of 0 a stream that never runs dry would close a checkpoint
 * at every transaction, and then fall behind by doing nothing else.  Such a
 * stream is cut at least this coarsely; one that runs dry doesn't notice.
 */
#define STEADY_STREAM_US 20000

/* legal[from] has the bit of each state that may follow. */
#define BIT(state) (1u << (state))

static const unsigned legal[TK_CHECKPOINT_STATES] = {
	[TK_CHECKPOINT_NONE] = BIT(TK_CHECKPOINT_OPEN),
	[TK_CHECKPOINT_OPEN] = BIT(TK_CHECKPOINT_TRIGGERED),
	[TK_CHECKPOINT_TRIGGERED] = BIT(TK_CHECKPOINT_ACKNOWLEDGED),
	[TK_CHECKPOINT_ACKNOWLEDGED] = BIT(TK_CHECKPOINT_PREPARED),
	[TK_CHECKPOINT_PREPARED] = BIT(TK_CHECKPOINT_COMMITTED),
	[TK_CHECKPOINT_COMMITTED] = BIT(TK_CHECKPOINT_NONE)
};

bool
tk_checkpoint_move(TkCheckpoint *checkpoint, TkCheckpointState to, int64_t now_us)
{
	if ((legal[checkpoint->state] & BIT(to)) == 0)
		return false;
	checkpoint->state = to;
	switch (to)
	{
		case TK_CHECKPOINT_OPEN:
			checkpoint->first_record_us = now_us;
			break;
		case TK_CHECKPOINT_TRIGGERED:
			checkpoint->triggered_us = now_us;
			break;
		case TK_CHECKPOINT_ACKNOWLEDGED:
			checkpoint->acknowledged_us = now_us;
			break;
		case TK_CHECKPOINT_PREPARED:
			checkpoint->prepared_us = now_us;
			break;
		case TK_CHECKPOINT_COMMITTED:
			checkpoint->committed_us = now_us;
			break;
		case TK_CHECKPOINT_NONE:
			break;
	}
	return true;
}

const char *
tk_checkpoint_state_name(TkCheckpointState state)
{
	static const char *const names[TK_CHECKPOINT_STATES] = {
		[TK_CHECKPOINT_NONE] = "none",
		[TK_CHECKPOINT_OPEN] = "open",
		[TK_CHECKPOINT_TRIGGERED] = "triggered",
		[TK_CHECKPOINT_ACKNOWLEDGED] = "acknowledged",
		[TK_CHECKPOINT_PREPARED] = "prepared",
		[TK_CHECKPOINT_COMMITTED] = "committed"
	};

	return names[state];
}

void
tk_checkpoint_next(TkCheckpoint *checkpoint)
{
	TkCheckpoint next = {0};

	next.state = TK_CHECKPOINT_NONE;
	next.id = checkpoint->id + 1;
	next.start_lsn = checkpoint->end_lsn;
	next.end_lsn = checkpoint->end_lsn;
	*checkpoint = next;
}

bool
tk_checkpoint_due(const TkCheckpoint *checkpoint, const TkCheckpointPolicy *policy,
				  int64_t last_us, int64_t now_us, bool dry, bool wanted, bool busy)
{
	int64_t		steady_us;

	if (checkpoint->state != TK_CHECKPOINT_OPEN)
		return false;
	if (checkpoint->records >= policy->max_records || checkpoint->bytes >= policy->max_bytes)
		return true;
	if (busy)
		return false;
	if (wanted)
		return true;
	if (last_us != 0 && now_us - last_us < policy->interval_us)
		return false;
	if (dry)
		return true;
	steady_us = policy->interval_us > STEADY_STREAM_US ? policy->interval_us : STEADY_STREAM_US;
	return now_us - checkpoint->first_record_us >= steady_us;
}

int64_t
tk_checkpoint_delay(const TkCheckpoint *checkpoint, const TkCheckpointPolicy *policy,
					int64_t last_us, int64_t now_us)
{
	int64_t		left;

	if (checkpoint->state != TK_CHECKPOINT_OPEN)
		return -1;
	left = last_us == 0 ? 0 : last_us + policy->interval_us - now_us;
	return left > 0 ? left : 0;
}
