/*
 * committable.h
 *	  The checkpoint table: what a crash finds of the two-phase commit.
 */
#ifndef TK_COMMITTABLE_H
#define TK_COMMITTABLE_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

#include "checkpoint.h"

/*
 * tk_committable_prepare and tk_committable_mark need a transaction (that of
 * tk_write_begin is enough); all others run inside tk_transaction_begin/commit.
 */

/* Once, before the others. */
extern void tk_committable_init(void);

/* What recovery needs to know of the rows. */
typedef struct TkCommittables
{
	int64		newest;			/* id of the newest row that is not aborted; 0 = none */
	int64		committed;		/* newest row known as committed: marked, or its end is confirmed; 0 = none */
	int			next_attempt;	/* of the checkpoint id after the newest committed one */
} TkCommittables;

/* confirmed: the slot's position (Invalid if there is no slot). */
extern void tk_committables_load(int32 pipeline_id, XLogRecPtr confirmed, TkCommittables *result);

/* The transactional ids that the rows name: a List of char *. */
extern List *tk_committable_transactional_ids(int32 pipeline_id);

/* Which Kafka transaction it is. */
typedef struct TkKafkaTransaction
{
	const char *transactional_id;
	bool		described;		/* false: what follows is not known */
	int64		producer_id;
	int32		epoch;
	int64		start_ms;
} TkKafkaTransaction;

/* Step 3: marks the checkpoint before as committed, writes this one as prepared. */
extern void tk_committable_prepare(int32 pipeline_id, int retained, const TkCheckpoint *checkpoint, int attempt,
								   const TkKafkaTransaction *transaction, TimeLineID timeline,
								   TimestampTz triggered_at, TimestampTz previous_committed_at);

/* The row that a start finds prepared; false: there is none. */
typedef struct TkPrepared
{
	int64		checkpoint_id;
	TimeLineID	timeline;
	TkKafkaTransaction transaction;
} TkPrepared;

extern bool tk_committable_prepared(int32 pipeline_id, TkPrepared *result);

/* The lazy mark of an idle pipeline. */
extern void tk_committable_mark(int32 pipeline_id, int retained, int64 checkpoint_id, TimestampTz committed_at);

/*
 * Recovery: the prepared row up to "held", what Kafka has, is committed, one
 * beyond it is aborted.  One that ends at or below "confirmed" was not in doubt,
 * only not marked yet: it keeps what is said of it.  redriven: this start has
 * committed its transaction.  skipped: an aborted one is not sent again.
 * reason: why it is aborted (may be NULL).
 */
extern void tk_committable_settle(int32 pipeline_id, int64 held, XLogRecPtr confirmed, bool redriven, bool skipped,
								  const char *reason);

/* Adopting: a committed row for what Kafka holds, whatever stood there. */
extern void tk_committable_adopt(int32 pipeline_id, int retained, int64 checkpoint_id, XLogRecPtr end_lsn,
								 TimeLineID timeline);

/* After a change of retained_checkpoints: each row moves to its place in the new ring, the older of two goes. */
extern void tk_committable_rearrange(int32 pipeline_id, int retained);

#endif							/* TK_COMMITTABLE_H */
