/*
 * recovery.h
 *	  What a start concludes from the progress record in Kafka and from what
 *	  this server remembers (DESIGN §3).  Pure C.
 */
#ifndef TK_RECOVERY_H
#define TK_RECOVERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kafka_progress.h"
#include "kafka_rpc.h"

/* What this server remembers of a pipeline. */
typedef struct TkRemembered
{
	char		uuid[37];
	uint64_t	system_identifier;
	uint32_t	database;
	bool		started;		/* a start record was committed once */
	uint64_t	instances[2];	/* the two that may stand in Kafka; 0 = none */

	int64_t		newest;			/* id of the newest checkpoint row; 0 = none */
	int64_t		committed;		/* id of the newest row known to be committed; 0 = none */

	uint32_t	timeline;		/* of this server, now */
	int			nforks;			/* its history, oldest first: timeline forks[i].timeline ended at … */
	const struct TkFork
	{
		uint32_t	timeline;
		uint64_t	end_lsn;	/* the position where the next timeline begins */
	}		   *forks;
} TkRemembered;

typedef enum TkVerdict
{
	TK_VERDICT_GO,				/* Kafka and this server agree */
	TK_VERDICT_ADOPT,			/* this server was promoted: what Kafka has stands */
	TK_VERDICT_DIVERGED,
	TK_VERDICT_FENCED
} TkVerdict;

/*
 * Judges the progress record (NULL: none there).  settled: every transactional
 * id has been fenced and all markers are written, so absence means something;
 * before that only what the record says is judged.  For DIVERGED and FENCED
 * "reason" says why, for people.
 */
extern TkVerdict tk_judge(const TkProgress *progress, const TkRemembered *remembered, bool settled,
						  char *reason, size_t size);

/* What a row says of its Kafka transaction: the coordinator was asked while all of it was being acknowledged. */
typedef struct TkVote
{
	bool		known;			/* false: it gave no answer, and the rest means nothing */
	int64_t		producer_id;
	int32_t		epoch;
	int64_t		start_ms;
} TkVote;

typedef enum TkRedrive
{
	TK_REDRIVE_COMMIT,			/* the row's own transaction is open: EndTxn(commit) with what the row says */
	TK_REDRIVE_WAIT,			/* it is just being ended: ask again */
	TK_REDRIVE_NOTHING			/* it has ended, or is another one; "reason" says which */
} TkRedrive;

/*
 * What to do about a prepared row's transaction before any id is fenced (step
 * 2).  written_on: the row's timeline.  This is no verdict on the row: the
 * progress record that is read after fencing gives it.
 */
extern TkRedrive tk_redrive(const TkVote *vote, uint32_t written_on, uint32_t timeline,
							const TkTransactionDescription *now, char *reason, size_t size);

#endif							/* TK_RECOVERY_H */
