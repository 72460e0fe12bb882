/*
 * checkpoint.h
 *	  The state of a checkpoint, and when to take one.  Pure C; time is given,
 *	  in µs of any clock that does not go back.
 */
#ifndef TK_CHECKPOINT_H
#define TK_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum TkCheckpointState
{
	TK_CHECKPOINT_NONE,			/* nothing to send */
	TK_CHECKPOINT_OPEN,			/* a Kafka transaction is open, records are appended */
	TK_CHECKPOINT_TRIGGERED,	/* closed at a transaction boundary; being acknowledged */
	TK_CHECKPOINT_ACKNOWLEDGED, /* the broker has every record */
	TK_CHECKPOINT_PREPARED,		/* the committable is durable in PostgreSQL */
	TK_CHECKPOINT_COMMITTED		/* Kafka said yes; the slot may follow */
} TkCheckpointState;

#define TK_CHECKPOINT_STATES (TK_CHECKPOINT_COMMITTED + 1)

typedef struct TkCheckpoint
{
	TkCheckpointState state;
	int64_t		id;				/* of the checkpoint that is open, or comes next */
	uint64_t	start_lsn;		/* end of the checkpoint before */
	uint64_t	end_lsn;		/* end of the last whole transaction in it */
	uint64_t	read_lsn;		/* how far the WAL had been read when it was triggered */
	int64_t		transactions;
	int64_t		records;		/* without the progress record */
	int64_t		bytes;			/* keys and values */
	int64_t		dead_letters;	/* of the records: those in place of one that was too large */
	int64_t		first_record_us;	/* when its first record was appended */
	int64_t		triggered_us;
	int64_t		acknowledged_us;
	int64_t		prepared_us;
	int64_t		committed_us;
} TkCheckpoint;

typedef struct TkCheckpointPolicy
{
	int64_t		interval_us;	/* a rate limit, not a delay */
	int64_t		max_records;
	int64_t		max_bytes;
} TkCheckpointPolicy;

/* Changes the state; false, and nothing changed, if the move isn't legal. */
extern bool tk_checkpoint_move(TkCheckpoint *checkpoint, TkCheckpointState to, int64_t now_us);

extern const char *tk_checkpoint_state_name(TkCheckpointState state);

/* Makes it the next checkpoint, which begins where this one ends. */
extern void tk_checkpoint_next(TkCheckpoint *checkpoint);

/*
 * Close the open checkpoint now?  To be asked at a transaction boundary.
 * last_us: when the last one was triggered (0: never).  dry: all WAL that may
 * be read has been read.  wanted: somebody waits for it.  busy: the one before
 * it is not committed yet, so this one would have to wait; only one that is full
 * is worth that.
 */
extern bool tk_checkpoint_due(const TkCheckpoint *checkpoint, const TkCheckpointPolicy *policy,
							  int64_t last_us, int64_t now_us, bool dry, bool wanted, bool busy);

/* For a dry reader: µs until tk_checkpoint_due can become true by itself; -1 = not by time. */
extern int64_t tk_checkpoint_delay(const TkCheckpoint *checkpoint, const TkCheckpointPolicy *policy,
								   int64_t last_us, int64_t now_us);

#endif							/* TK_CHECKPOINT_H */
