/*
 * recovery.c
 *	  Progress record against memory: the table of DESIGN §3.
 *
 * Each row is a comparison of numbers that both sides carry, never a guess.
 * The rows are asked in the table's order; the first that holds decides.
 */
#include "recovery.h"

#include <stdio.h>
#include <string.h>

#define LSN_ARGS(lsn) (unsigned) ((lsn) >> 32), (unsigned) (lsn)

static TkVerdict
judge_absence(const TkRemembered *mine, char *reason, size_t size)
{
	if (mine->started)
	{
		snprintf(reason, size, "the progress topic holds no record, but this pipeline has written to it before");
		return TK_VERDICT_DIVERGED;
	}
	return TK_VERDICT_GO;
}

/*
 * The last row.  It holds for a promoted server too: a row says "committed"
 * only after Kafka had it, so an older record is a loss, and adopting it
 * would go on behind what was lost.
 */
static TkVerdict
judge_loss(const TkProgress *p, const TkRemembered *mine, bool settled, TkVerdict otherwise, char *reason, size_t size)
{
	if (settled && p->checkpoint < mine->committed)
	{
		snprintf(reason, size,
				 "checkpoint %lld was committed, but the newest that Kafka holds is %lld (up to %X/%X): Kafka has lost it",
				 (long long) mine->committed, (long long) p->checkpoint, LSN_ARGS(p->end_lsn));
		return TK_VERDICT_DIVERGED;
	}
	return otherwise;
}

/* The record was written on an older timeline, or on one that this server never was on. */
static TkVerdict
judge_other_timeline(const TkProgress *p, const TkRemembered *mine, char *reason, size_t size)
{
	for (int i = 0; i < mine->nforks; i++)
	{
		if (mine->forks[i].timeline != p->timeline)
			continue;
		if (p->end_lsn <= mine->forks[i].end_lsn)
			return TK_VERDICT_ADOPT;
		snprintf(reason, size,
				 "Kafka holds transactions up to %X/%X of timeline %u, but this server left that timeline at %X/%X",
				 LSN_ARGS(p->end_lsn), p->timeline, LSN_ARGS(mine->forks[i].end_lsn));
		return TK_VERDICT_DIVERGED;
	}
	snprintf(reason, size,
			 "the progress record was written on timeline %u (up to %X/%X), which is no ancestor of this server's timeline %u",
			 p->timeline, LSN_ARGS(p->end_lsn), mine->timeline);
	return TK_VERDICT_DIVERGED;
}

TkVerdict
tk_judge(const TkProgress *p, const TkRemembered *mine, bool settled, char *reason, size_t size)
{
	reason[0] = '\0';
	if (p == NULL)
		return settled ? judge_absence(mine, reason, size) : TK_VERDICT_GO;

	if (strcmp(p->uuid, mine->uuid) != 0)
	{
		snprintf(reason, size, "the progress record belongs to pipeline %s, this one is %s", p->uuid, mine->uuid);
		return TK_VERDICT_DIVERGED;
	}
	if (p->system_identifier != mine->system_identifier || p->database != mine->database)
	{
		snprintf(reason, size,
				 "the progress record was written by system %llu, database %u; this is system %llu, database %u",
				 (unsigned long long) p->system_identifier, p->database,
				 (unsigned long long) mine->system_identifier, mine->database);
		return TK_VERDICT_DIVERGED;
	}
	if (p->timeline != mine->timeline)
	{
		TkVerdict	verdict = judge_other_timeline(p, mine, reason, size);

		return verdict == TK_VERDICT_ADOPT ? judge_loss(p, mine, settled, verdict, reason, size) : verdict;
	}

	if (p->instance == 0 || (p->instance != mine->instances[0] && p->instance != mine->instances[1]))
	{
		snprintf(reason, size,
				 "another live instance of this database owns the pipeline: the newest progress record (checkpoint %lld, up to %X/%X) is of instance %016llx",
				 (long long) p->checkpoint, LSN_ARGS(p->end_lsn), (unsigned long long) p->instance);
		return TK_VERDICT_FENCED;
	}
	if (p->checkpoint > mine->newest)
	{
		snprintf(reason, size,
				 "Kafka holds checkpoint %lld up to %X/%X, but the newest that this server knows is %lld: it has lost durable data",
				 (long long) p->checkpoint, LSN_ARGS(p->end_lsn), (long long) mine->newest);
		return TK_VERDICT_DIVERGED;
	}
	return judge_loss(p, mine, settled, TK_VERDICT_GO, reason, size);
}

/*
 * librdkafka's transactions of one producer share producer id and epoch, and
 * the next but one of the checkpoint may be open on its id already while the
 * row still says "prepared".  Only the start time tells them apart, and to
 * commit the wrong one would make half a checkpoint visible.
 *
 * A transaction that is being ended is waited for only if it can be this one:
 * the timeout and InitProducerId end it under a higher epoch, and then there is
 * nothing to commit.
 */
TkRedrive
tk_redrive(const TkVote *vote, uint32_t written_on, uint32_t timeline, const TkTransactionDescription *now,
		   char *reason, size_t size)
{
	reason[0] = '\0';
	if (written_on != timeline)
		snprintf(reason, size, "the row was written on timeline %u, this server is on %u", written_on, timeline);
	else if (!vote->known)
		snprintf(reason, size, "the coordinator had not described the transaction when it was prepared");
	else if (!now->found)
		snprintf(reason, size, "the coordinator no longer knows the transactional id");
	else if (now->producer_id != vote->producer_id || now->epoch != vote->epoch)
		snprintf(reason, size,
				 "the transactional id is producer %lld, epoch %d now, and was %lld, %d: the transaction timed out or was fenced",
				 (long long) now->producer_id, (int) now->epoch, (long long) vote->producer_id, (int) vote->epoch);
	else if (now->state == TK_TRANSACTION_PREPARE_COMMIT || now->state == TK_TRANSACTION_PREPARE_ABORT)
		return TK_REDRIVE_WAIT;
	else if (now->state != TK_TRANSACTION_ONGOING)
		snprintf(reason, size, "the transaction has ended already: %s", tk_transaction_state_name(now->state));
	else if (now->start_ms != vote->start_ms)
		snprintf(reason, size, "another transaction of the same producer is open: it began at %lld, the row's at %lld",
				 (long long) now->start_ms, (long long) vote->start_ms);
	else
		return TK_REDRIVE_COMMIT;
	return TK_REDRIVE_NOTHING;
}
