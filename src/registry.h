/*
 * registry.h
 *	  Shared memory: what runs, and how far it is.
 *
 * The catalog says what should run; the registry is its shadow for those who
 * can't read it (the launcher has no database) and carries what is too fast
 * for tables (positions, states).  It is empty after a start and filled by
 * scouts.
 *
 * An entry's definition (wanted, generation) is changed only by
 * tk_registry_publish, and only by a generation that is not older than the
 * one it holds, so a scout that read the catalog before a change can't undo
 * it.  The rest of an entry belongs to the pipeline's worker while it has one,
 * else to the launcher.
 */
#ifndef TK_REGISTRY_H
#define TK_REGISTRY_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

#include "route.h"
#include "stats.h"

typedef enum TkPipelineStateKind
{
	TK_STATE_STOPPED,			/* paused, or a definition that doesn't start by itself */
	TK_STATE_STARTING,
	TK_STATE_RUNNING,
	TK_STATE_RETRYING,			/* failed; the launcher tries again */

	/* sticky: durable, ended only by the operator */
	TK_STATE_DIVERGED,
	TK_STATE_FENCED,
	TK_STATE_SLOT_LOST,
	TK_STATE_FAILED
} TkPipelineStateKind;

#define tk_state_is_sticky(state) ((state) >= TK_STATE_DIVERGED)

#define TK_HINT_MAX 256

typedef struct TkPipelineEntry
{
	/*
	 * Who it is; fixed while in_use.  Protected, as all down to the atomics, by TkShared->lock.  catalog: the OID
	 * of kafka.pipeline, another one after the extension was dropped and created.
	 */
	bool		in_use;
	Oid			database;
	Oid			catalog;
	int32		pipeline_id;
	NameData	name;
	Oid			owner;
	Oid			server;
	char		progress_topic[TK_TOPIC_MAX + 1];	/* "": none yet */

	/* What the catalog wants */
	int64		generation;
	bool		wanted;			/* it should run */
	bool		gone;			/* its definition was dropped */
	bool		no_worker;		/* there was no free worker slot for it */
	bool		altered;		/* a commit changed its definition after the process took it up */

	/* Its process */
	pid_t		pid;			/* 0: none */
	Latch	   *latch;
	TimestampTz launched_at;	/* registered with the postmaster, maybe not up yet; 0: no */
	int			failures;		/* in a row */
	TimestampTz retry_at;

	/* The launcher's: how often the WAL warned of has doubled, plus 1; 0: nothing to warn of */
	int			wal_warned;

	/* What it says */
	TkPipelineStateKind state;
	TimestampTz since;
	bool		slot_ready;		/* its slot was made and is durable */
	char		reason[TK_REASON_MAX];	/* of a sticky state, or of the last failure */
	char		hint[TK_HINT_MAX];
	int			failed_checkpoints; /* in a row */
	int64		batch_limit;	/* the least max.message.bytes of its topics so far, if librdkafka's batches have
								 * to be smaller for it; 0: no need */
	int64		outlived_checkpoint;	/* the one that has outlived transaction_timeout; 0: none */

	/* From here on initialized once, for whoever has the entry. */

	/* Read and written without the lock */
	pg_atomic_uint32 waiting;	/* the worker sleeps and wants to hear of commits */
	pg_atomic_uint64 wanted_lsn;	/* somebody waits for a checkpoint that covers this */
	pg_atomic_uint64 read_lsn;
	pg_atomic_uint64 covered_lsn;	/* everything that ended up to here is committed in Kafka */
	pg_atomic_uint64 visible_lsn;	/* … and read_committed consumers see it */
	pg_atomic_uint64 visible_wanted;	/* somebody waits for that, up to here */
	pg_atomic_uint64 confirmed_lsn; /* the slot's position */
	pg_atomic_uint64 checkpoint_id; /* the newest committed in Kafka */
	pg_atomic_uint64 rejected;	/* messages with our prefix that produce() didn't write */
	pg_atomic_uint32 signing_key;	/* what produce() signs with for it: the newest that its process knows; 0: not
									 * known yet */
	pg_atomic_uint32 settled_key;	/* no message that an older key has signed can still come */

	ConditionVariable changed;	/* state, pid, slot_ready, covered_lsn, visible_lsn */
} TkPipelineEntry;

/* Databases that a scout should look at. */
#define TK_MAX_SCOUT_REQUESTS 64

typedef struct TkShared
{
	LWLock	   *lock;
	Latch	   *launcher_latch; /* NULL: no launcher */
	pid_t		launcher_pid;
	Oid			scouted;		/* the last database whose scout did all it should */
	int			nrequests;		/* > TK_MAX_SCOUT_REQUESTS: scout all */
	Oid			requests[TK_MAX_SCOUT_REQUESTS];
	pg_atomic_uint32 nwaiting;	/* workers whose "waiting" is set */
	int			nentries;
	TkPipelineEntry entries[FLEXIBLE_ARRAY_MEMBER];
} TkShared;

extern TkShared *tk_shared;		/* NULL: the library is not preloaded */

/* Its number, by which stats.c knows it. */
#define tk_entry_index(entry) ((int) ((entry) - tk_shared->entries))

/* Retained WAL, in MB, from which on the launcher warns of it; -1: never */
extern int	tk_retained_wal_warning;

/* _PG_init */
extern void tk_registry_init(void);

extern const char *tk_state_name(TkPipelineStateKind state);

/* TK_STATE_STOPPED if there is no such name. */
extern TkPipelineStateKind tk_state_find(const char *name);

/* ERROR with a hint unless preloaded. */
extern void tk_require_preloaded(void);

/*
 * What the catalog says of a pipeline, with its generation.  Adds the entry if
 * it is new; leaves one alone that knows a newer generation.  Returns the
 * entry, or NULL: there is no room, or it is gone and had none.
 */
typedef struct TkPublication
{
	Oid			database;
	Oid			catalog;
	int32		pipeline_id;
	const char *name;
	Oid			owner;
	Oid			server;
	const char *progress_topic; /* NULL: not known */
	bool		slot_ready;		/* as far as the publisher knows */
	int64		generation;
	bool		wanted;
	bool		gone;
	TkPipelineStateKind state;	/* of a pipeline that isn't wanted: STOPPED or sticky */
	const char *reason;			/* may be NULL */
	const char *hint;
} TkPublication;

extern TkPipelineEntry *tk_registry_publish(const TkPublication *publication);

/* Call with the lock held. NULL if there is none. */
extern TkPipelineEntry *tk_registry_find(Oid database, Oid catalog, int32 pipeline_id);

/* For an entry that there was no room for. */
extern void tk_report_registry_full(int elevel, const char *name);

/* ERROR if the topic holds a pipeline's position: nobody else may write there. what: as 'table x'. */
extern void tk_check_not_progress_topic(const char *topic, const char *what);

/* Wakes a worker / the launcher, if it runs. */
extern void tk_wake_worker(TkPipelineEntry *entry);
extern void tk_wake_launcher(void);

/* Ask for a scout of the database. */
extern void tk_request_scout(Oid database);

/*
 * When this transaction commits: the pipeline's worker takes up its definition
 * anew, before it sends anything that commits later; and a scout comes.
 */
extern void tk_definition_changes(int32 pipeline_id);
extern void tk_all_definitions_change(void);

/* The worker: sets "waiting", for commits to wake it. */
extern void tk_set_waiting(TkPipelineEntry *entry, bool waiting);

/* Changes an entry's state and tells everybody who waits. reason and hint may be NULL. */
extern void tk_set_state(TkPipelineEntry *entry, TkPipelineStateKind state, const char *reason, const char *hint);

#endif							/* TK_REGISTRY_H */
