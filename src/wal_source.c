/*
 * wal_source.c
 *	  Slot and decoding context: WAL → pgoutput's messages.
 *
 * Decoding runs in the worker itself, with core's own pgoutput: publications
 * do the selecting (tables, row filters, column lists, partition roots) and
 * no walsender, socket or second process stands between WAL and Kafka.
 *
 * Two things must be right for this to be safe in a process that also writes:
 *
 *	- CreateDecodingContext runs inside a transaction.  Outside of one it sets
 *	  PROC_IN_LOGICAL_DECODING (logical.c, StartupDecodingContext), which hides
 *	  this process's xid and xmin from everybody: rows it commits could vanish.
 *
 *	- The reader never sleeps and never reads beyond the limit it is given:
 *	  the page-read callback fails softly there, XLogReadRecord returns NULL
 *	  without an error, and the same call goes on later where it stopped.
 *
 * This is the only file that includes replication/logical.h.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/value.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/slot.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "pg_compat.h"
#include "wal_source.h"

#define OUTPUT_PLUGIN "pgoutput"

/* pgoutput's message buffer, grown beyond this by a large value, is given back. */
#define MESSAGE_KEEP (1024 * 1024)

static LogicalDecodingContext *decoding = NULL;
static TkWalMessage message_callback = NULL;
static XLogRecPtr read_limit = InvalidXLogRecPtr;
static ResourceOwner source_owner = NULL;
static MemoryContext source_context = NULL;
static bool schemas_changed = false;	/* pgoutput is still to be told */

/* Reads a page, but nothing at or beyond read_limit: returns -1 there. */
static int
read_page(XLogReaderState *state, XLogRecPtr page, int reqLen, XLogRecPtr record, char *buffer)
{
	TimeLineID	timeline;
	XLogRecPtr	limit = read_limit;
	int			count;
	WALReadError problem;

	(void) tk_flush_position(&timeline);
	tk_determine_timeline(state, page, reqLen, timeline);

	/* WAL of an older timeline ends where the next one begins. */
	if (state->currTLI != timeline)
		limit = Min(limit, state->currTLIValidUntil);
	if (page + reqLen > limit)
		return -1;

	/* The reader keeps as many bytes as it is told of: no more than are final. */
	count = (int) Min((XLogRecPtr) XLOG_BLCKSZ, limit - page);
	if (!WALRead(state, buffer, page, count, state->currTLI, &problem))
		WALReadRaiseError(&problem);
	return count;
}

/* pgoutput is about to write a message. */
static void
prepare_write(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid, bool last_write)
{
	resetStringInfo(ctx->out);
}

/* pgoutput has written a message. */
static void
write_message(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid, bool last_write)
{
	message_callback(ctx->out, lsn);
	if (ctx->out->maxlen > MESSAGE_KEEP)
	{
		MemoryContext caller = MemoryContextSwitchTo(GetMemoryChunkContext(ctx->out->data));

		pfree(ctx->out->data);
		initStringInfo(ctx->out);
		MemoryContextSwitchTo(caller);
	}
}

static void
write_nothing(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid, bool last_write)
{
	elog(ERROR, "no message is expected while a replication slot is made");
}

/* A copy of what a slot has on disk. */
static bool
find_slot(const char *name, ReplicationSlotPersistentData *data)
{
	bool		found = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !found; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		*data = slot->data;
		SpinLockRelease(&slot->mutex);
		found = strcmp(NameStr(data->name), name) == 0;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return found;
}

TkSlotState
tk_slot_state(const char *name, XLogRecPtr *confirmed)
{
	ReplicationSlotPersistentData data;

	if (!find_slot(name, &data))
		return TK_SLOT_MISSING;
	*confirmed = data.confirmed_flush;
	if (data.database != MyDatabaseId || strcmp(NameStr(data.plugin), OUTPUT_PLUGIN) != 0)
		return TK_SLOT_FOREIGN;
	return tk_slot_is_invalidated(&data) ? TK_SLOT_LOST : TK_SLOT_GOOD;
}

XLogRecPtr
tk_slot_keeps(const char *name)
{
	ReplicationSlotPersistentData data;

	if (!find_slot(name, &data) || tk_slot_is_invalidated(&data))
		return InvalidXLogRecPtr;
	return data.restart_lsn;
}

XLogRecPtr
tk_slot_create(const char *name)
{
	LogicalDecodingContext *ctx;
	XLogRecPtr	start;

	/* Refuses wal_level < logical, a standby, a setting without slots. */
	CheckLogicalDecodingRequirements();

	StartTransactionCommand();

	/* Ephemeral: a crash or cancel before the last step leaves no slot behind. */
	tk_slot_create_ephemeral(name);
	ctx = CreateInitDecodingContext(OUTPUT_PLUGIN, NIL, false, InvalidXLogRecPtr,
									XL_ROUTINE(.page_read = read_local_xlog_page,
											   .segment_open = wal_segment_open,
											   .segment_close = wal_segment_close),
									prepare_write, write_nothing, NULL);
	DecodingContextFindStartpoint(ctx);
	start = MyReplicationSlot->data.confirmed_flush;
	FreeDecodingContext(ctx);
	ReplicationSlotPersist();
	CommitTransactionCommand();
	return start;
}

void
tk_slot_release(void)
{
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
}

void
tk_slot_discard(const char *name)
{
	ReplicationSlotRelease();
	ReplicationSlotDrop(name, true);
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("the pipeline was dropped while its replication slot was made")));
}

void
tk_slot_drop(const char *name)
{
	XLogRecPtr	confirmed;

	if (tk_slot_state(name, &confirmed) != TK_SLOT_MISSING)
		ReplicationSlotDrop(name, false);
}

void
tk_slot_confirm(XLogRecPtr position)
{
	if (position <= MyReplicationSlot->data.confirmed_flush)
		return;
	LogicalConfirmReceivedLocation(position);

	/* Core writes the slot at once only if restart_lsn or xmin moved; else with the next checkpoint. */
	ReplicationSlotMarkDirty();
}

XLogRecPtr
tk_slot_confirmed(void)
{
	return MyReplicationSlot->data.confirmed_flush;
}

/*
 * With synchronous standbys defined, what they have not flushed could be lost
 * by a failover after Kafka has it; so it isn't read yet.  The position in
 * WalSndCtl is the one that lets waiting commits go (syncrep.c).  Not
 * SyncRepRequested(): that looks at this process's own synchronous_commit.
 */
XLogRecPtr
tk_wal_read_limit(void)
{
	XLogRecPtr	limit = tk_flush_position(NULL);

	if (tk_synchronous_standbys())
	{
		XLogRecPtr	standby;

		LWLockAcquire(SyncRepLock, LW_SHARED);
		standby = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
		LWLockRelease(SyncRepLock);
		limit = Min(limit, standby);
	}
	return limit;
}

static List *
plugin_options(const char *publications)
{
	return list_make3(makeDefElem("proto_version", (Node *) makeString("1"), -1),
					  makeDefElem("publication_names", (Node *) makeString(pstrdup(publications)), -1),
					  makeDefElem("messages", (Node *) makeString("true"), -1));
}

/*
 * A schema was renamed, in the past that is decoded.  Up to 15 pgoutput doesn't
 * take notice and would go on with the old name, until something else happens
 * to the table: let it describe its tables anew, as for a changed publication.
 */
static void
schema_changes(Datum arg, int cache, uint32 hash)
{
	if (TK_PGOUTPUT_KEEPS_OPERATIONS)
		CallSyscacheCallbacks(PUBLICATIONRELMAP, 0);
	else
		schemas_changed = true;
}

void
tk_wal_open(MemoryContext context, XLogRecPtr start, const char *publications, TkWalMessage callback)
{
	Assert(decoding == NULL);

	message_callback = callback;
	source_context = context;
	if (!TK_PGOUTPUT_KNOWS_SCHEMAS)
		CacheRegisterSyscacheCallback(NAMESPACEOID, schema_changes, (Datum) 0);
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	decoding = CreateDecodingContext(start, plugin_options(publications), false,
									 XL_ROUTINE(.page_read = read_page,
												.segment_open = wal_segment_open,
												.segment_close = wal_segment_close),
									 prepare_write, write_message, NULL);
	CommitTransactionCommand();
	Assert((MyProc->statusFlags & PROC_IN_LOGICAL_DECODING) == 0);

	source_owner = ResourceOwnerCreate(NULL, "transactional_kafka decoding");
	XLogBeginRead(decoding->reader, MyReplicationSlot->data.restart_lsn);
}

bool
tk_wal_next(XLogRecPtr limit)
{
	XLogRecord *record;
	char	   *problem = NULL;

	read_limit = limit;
	CurrentResourceOwner = source_owner;
	MemoryContextSwitchTo(source_context);
	record = XLogReadRecord(decoding->reader, &problem);
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("could not read WAL at %X/%X: %s",
						LSN_FORMAT_ARGS(decoding->reader->EndRecPtr), problem)));
	if (record == NULL)
		return false;
	if (schemas_changed)
	{
		schemas_changed = false;
		CallSyscacheCallbacks(PUBLICATIONRELMAP, 0);
	}
	LogicalDecodingProcessRecord(decoding, decoding->reader);
	return true;
}

Size
tk_wal_held(void)
{
	return decoding->reorder->size;
}

XLogRecPtr
tk_wal_position(void)
{
	return decoding->reader->EndRecPtr;
}
