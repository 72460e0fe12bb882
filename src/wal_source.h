/*
 * wal_source.h
 *	  The replayable source: a logical slot and pgoutput, decoded in this
 *	  process.  Positions are WAL positions; a slot belongs to this database.
 */
#ifndef TK_WAL_SOURCE_H
#define TK_WAL_SOURCE_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "lib/stringinfo.h"

#include "pg_compat.h"

typedef enum TkSlotState
{
	TK_SLOT_MISSING,
	TK_SLOT_FOREIGN,			/* of that name, but not a pgoutput slot of this database */
	TK_SLOT_LOST,				/* its WAL is gone */
	TK_SLOT_GOOD
} TkSlotState;

/* Reads a slot's state without acquiring it. *confirmed is set where the slot exists. */
extern TkSlotState tk_slot_state(const char *name, XLogRecPtr *confirmed);

/* The oldest WAL that a slot of any database keeps; Invalid: there is no such slot, or it keeps none (any more). */
extern XLogRecPtr tk_slot_keeps(const char *name);

/*
 * Makes the slot, durable when this returns, and keeps it acquired.  Waits
 * for transactions that are running now (cancellable).  Everything that
 * commits after the returned position is decoded.
 */
extern XLogRecPtr tk_slot_create(const char *name);

/* tk_slot_acquire() is in pg_compat.h. */
extern void tk_slot_release(void);

/* Drops the slot that this process has just made, and ends with an ERROR. */
pg_noreturn extern void tk_slot_discard(const char *name);

/* Drops a slot that may be missing; waits for a process that has it. */
extern void tk_slot_drop(const char *name);

/* Everything up to "position" is done with: WAL before it may go. */
extern void tk_slot_confirm(XLogRecPtr position);

/* The position confirmed last, of the acquired slot. */
extern XLogRecPtr tk_slot_confirmed(void);

/*
 * What may be read now: flushed here and, with synchronous standbys in force,
 * flushed by them.
 */
extern XLogRecPtr tk_wal_read_limit(void);

/*
 * Called for each message of pgoutput, inside a transaction that belongs to
 * decoding: no xid, no SPI; catalogs look as they did when the change was
 * made.  The bytes are valid until the callback returns.  May ereport(ERROR).
 */
typedef void (*TkWalMessage) (StringInfo message, XLogRecPtr lsn);

/*
 * Starts decoding with the acquired slot.  Transactions whose commit record
 * begins before "start" are skipped.  publications: comma-separated quoted
 * identifiers.  To be called outside a transaction; memory lives in "context".
 */
extern void tk_wal_open(MemoryContext context, XLogRecPtr start, const char *publications, TkWalMessage callback);

/* Decodes the next record below "limit"; false when there is none (the reader "ran dry"). */
extern bool tk_wal_next(XLogRecPtr limit);

/* Bytes of changes in memory, of transactions that have not ended yet. */
extern Size tk_wal_held(void);

/* End of the last record read. */
extern XLogRecPtr tk_wal_position(void);

#endif							/* TK_WAL_SOURCE_H */
