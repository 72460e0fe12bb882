/*
 * pg_compat.h
 *	  What differs between PostgreSQL 14 and 18, and the only place that asks.
 *
 * Wrappers have the newest version's meaning.
 */
#ifndef TK_PG_COMPAT_H
#define TK_PG_COMPAT_H

#include "access/xlog.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "catalog/pg_class.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_publication.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "replication/slot.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 140000
#error "transactional_kafka needs PostgreSQL 14 or later"
#endif

/* Stands before the declaration. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

static inline XLogRecPtr
tk_flush_position(TimeLineID *timeline)
{
#if PG_VERSION_NUM >= 150000
	return GetFlushRecPtr(timeline);
#else
	if (timeline != NULL)
		*timeline = ThisTimeLineID;
	return GetFlushRecPtr();
#endif
}

static inline TimeLineID
tk_current_timeline(void)
{
#if PG_VERSION_NUM >= 150000
	return GetWALInsertionTimeLine();
#else
	(void) RecoveryInProgress();	/* sets ThisTimeLineID */
	return ThisTimeLineID;
#endif
}

static inline void
tk_slot_create_ephemeral(const char *name)
{
#if PG_VERSION_NUM >= 170000
	ReplicationSlotCreate(name, true, RS_EPHEMERAL, false, false, false);
#else
	ReplicationSlotCreate(name, true, RS_EPHEMERAL, false);
#endif
}

/* ERROR (object in use) if another process has it. */
static inline void
tk_slot_acquire(const char *name)
{
#if PG_VERSION_NUM >= 180000
	ReplicationSlotAcquire(name, true, false);
#else
	ReplicationSlotAcquire(name, true);
#endif
}

/* Has the server given the slot's WAL away?  Up to 15 the restart position is simply cleared. */
static inline bool
tk_slot_is_invalidated(const ReplicationSlotPersistentData *data)
{
#if PG_VERSION_NUM >= 160000
	if (data->invalidated != RS_INVAL_NONE)
		return true;
#endif
	return data->restart_lsn == InvalidXLogRecPtr;
}

/* All catalog caches of this process forget what they know. */
static inline void
tk_forget_catalog_caches(void)
{
	InvalidateSystemCaches();
}

static inline void
tk_determine_timeline(XLogReaderState *state, XLogRecPtr page, uint32 len, TimeLineID timeline)
{
#if PG_VERSION_NUM >= 150000
	XLogReadDetermineTimeline(state, page, len, timeline);
#else
	XLogReadDetermineTimeline(state, page, len);
#endif
}

/* A set-returning function that fills rsinfo->setResult, with the row type of its declaration. */
static inline void
tk_begin_set(FunctionCallInfo fcinfo)
{
#if PG_VERSION_NUM >= 160000
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
#elif PG_VERSION_NUM >= 150000
	SetSingleFuncCall(fcinfo, SRF_SINGLE_USE_EXPECTED);
#else
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext caller;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) || (rsinfo->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));
	caller = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setDesc = CreateTupleDescCopy(rsinfo->expectedDesc);
	rsinfo->setResult = tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	MemoryContextSwitchTo(caller);
#endif
}

/* What a process of ours waits for, in pg_stat_activity: before 17 all extensions have one event. */
static inline uint32
tk_wait_event_new(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

/* A transactional logical message, to be written out with its transaction's commit. */
static inline void
tk_log_message(const char *prefix, const char *message, size_t len)
{
#if PG_VERSION_NUM >= 170000
	(void) LogLogicalMessage(prefix, message, len, true, false);
#else
	(void) LogLogicalMessage(prefix, message, len, true);
#endif
}

/* Commits in a procedure and is in a new transaction afterwards. */
static inline void
tk_spi_commit(void)
{
	SPI_commit();
#if PG_VERSION_NUM < 150000
	SPI_start_transaction();
#endif
}

/* Publications FOR TABLES IN SCHEMA of that schema: a List of OIDs */
static inline List *
tk_schema_publications(Oid schema)
{
#if PG_VERSION_NUM >= 150000
	return GetSchemaPublications(schema);
#else
	return NIL;
#endif
}

/* Does the column have a NOT NULL that all its rows keep?  From 18 on there are some NOT VALID. */
static inline bool
tk_never_null(TupleDesc descriptor, int i)
{
#if PG_VERSION_NUM >= 180000
	return TupleDescCompactAttr(descriptor, i)->attnullability == ATTNULLABLE_VALID;
#else
	return TupleDescAttr(descriptor, i)->attnotnull;
#endif
}

/*
 * A renamed schema: pgoutput takes notice from 16 on.  In 14 the callback for
 * publications must not be called in the middle of an entry's making: it would
 * forget which operations are published.
 */
#define TK_PGOUTPUT_KNOWS_SCHEMAS (PG_VERSION_NUM >= 160000)
#define TK_PGOUTPUT_KEEPS_OPERATIONS (PG_VERSION_NUM >= 150000)

/* Privileges, by class of object */
static inline bool
tk_owns_relation(Oid relid, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, role);
#else
	return pg_class_ownercheck(relid, role);
#endif
}

static inline bool
tk_owns_publication(Oid publication, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(PublicationRelationId, publication, role);
#else
	return pg_publication_ownercheck(publication, role);
#endif
}

static inline bool
tk_owns_server(Oid server, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(ForeignServerRelationId, server, role);
#else
	return pg_foreign_server_ownercheck(server, role);
#endif
}

static inline AclResult
tk_server_usage(Oid server, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ForeignServerRelationId, server, role, ACL_USAGE);
#else
	return pg_foreign_server_aclcheck(server, role, ACL_USAGE);
#endif
}

/*
 * Are synchronous standbys in force?  Until the checkpointer has looked at the
 * setting after a start (newer minors say so by a bit), the setting decides.
 */
static inline bool
tk_synchronous_standbys(void)
{
	if (max_wal_senders <= 0)
		return false;
#ifdef SYNC_STANDBY_DEFINED
	if ((WalSndCtl->sync_standbys_status & SYNC_STANDBY_INIT) == 0)
		return SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
	return (WalSndCtl->sync_standbys_status & SYNC_STANDBY_DEFINED) != 0;
#else
	return WalSndCtl->sync_standbys_defined;
#endif
}

#if PG_VERSION_NUM >= 150000
#define TK_HAVE_SHMEM_REQUEST_HOOK
#endif

#endif							/* TK_PG_COMPAT_H */
