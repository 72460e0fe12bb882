/*
 * stats.h
 *	  Statistics of each pipeline, in shared memory: they outlive its process,
 *	  and a restart of the server resets them.
 *
 * The pipeline's worker is the only one that writes, but for a reset.  What
 * changes with every checkpoint is behind a lock of the pipeline's own, taken
 * once a checkpoint; the progress of the checkpoints under way and what the
 * worker waits for are written without any.
 */
#ifndef TK_STATS_H
#define TK_STATS_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "checkpoint.h"
#include "histogram.h"

#define TK_REASON_MAX 512

/* Checkpoints under way at a time: more than max_concurrent_checkpoints and the open one. */
#define TK_RUNNING_CHECKPOINTS 32

/* Rates are over so many seconds. */
#define TK_RATE_SECONDS 60

/* What the worker waits for */
typedef enum TkWaitKind
{
	TK_WAIT_NOTHING,
	TK_WAIT_COMMITS,			/* for something to send */
	TK_WAIT_INTERVAL,			/* checkpoint_interval */
	TK_WAIT_WAL_FLUSH,			/* commits that are not flushed yet */
	TK_WAIT_STANDBY,			/* commits that synchronous standbys don't have yet */
	TK_WAIT_ACKNOWLEDGEMENTS,	/* a checkpoint's flush */
	TK_WAIT_COMMIT,				/* Kafka's commit */
	TK_WAIT_MARKERS,			/* those of a commit, for wait_for() */
	TK_WAIT_TRANSACTIONAL_ID,	/* all of the pool are in use */
	TK_WAIT_QUEUE,				/* Kafka's client has a full queue */
	TK_WAIT_REQUEST				/* another answer of Kafka, mostly at a start */
} TkWaitKind;

#define TK_WAIT_KINDS (TK_WAIT_REQUEST + 1)

/* What a start makes of a checkpoint that it finds prepared */
typedef enum TkOutcome
{
	TK_OUTCOME_NONE,			/* there was none */
	TK_OUTCOME_REDRIVEN,		/* its Kafka transaction was still open, and is committed now */
	TK_OUTCOME_ALREADY_COMMITTED,
	TK_OUTCOME_REPLAYED			/* Kafka doesn't have it: its range is sent again */
} TkOutcome;

#define TK_OUTCOMES (TK_OUTCOME_REPLAYED + 1)

/* What is measured of each completed checkpoint; times in µs */
typedef enum TkMeasure
{
	TK_MEASURE_DURATION,		/* trigger to Kafka's commit */
	TK_MEASURE_FLUSH,			/* trigger until all is acknowledged */
	TK_MEASURE_POSTGRES_COMMIT,
	TK_MEASURE_KAFKA_COMMIT,
	TK_MEASURE_RECORDS,
	TK_MEASURE_BYTES
} TkMeasure;

#define TK_MEASURES (TK_MEASURE_BYTES + 1)

/*
 * A checkpoint under way.  "changes" is odd while the worker changes it: who
 * reads then reads again.
 */
typedef struct TkRunning
{
	uint32		changes;
	TkCheckpointState state;	/* NONE: there is none */
	int64		id;
	TimestampTz opened_at;		/* its first record */
	TimestampTz since;			/* it is in this state */
	TimestampTz first_commit_at;	/* of the first transaction in it, and of the last whole one; 0: none */
	TimestampTz last_commit_at;
	int64		transactions;
	int64		records;
	int64		bytes;
	int64		dead_letters;
} TkRunning;

typedef struct TkCompleted
{
	int64		id;				/* 0: none */
	TimestampTz at;
	bool		measured;		/* false: a start has found it committed, so nobody saw how long it took */
	int64		transactions;
	int64		dead_letters;
	int64		values[TK_MEASURES];
} TkCompleted;

typedef struct TkFailed
{
	int64		id;				/* 0: none */
	TimestampTz at;
	TkCheckpointState state;	/* how far it was */
	char		reason[TK_REASON_MAX];
} TkFailed;

typedef struct TkRestored
{
	int64		id;				/* the checkpoint that Kafka had */
	TimestampTz at;				/* 0: none */
	XLogRecPtr	lsn;
	TkOutcome	outcome;
} TkRestored;

/* What was committed in one second */
typedef struct TkSecond
{
	int64		second;			/* since 2000 */
	int64		transactions;
	int64		records;
	int64		bytes;
} TkSecond;

/* What a reset takes back, under the lock */
typedef struct TkCounted
{
	TimestampTz reset_at;
	int64		completed;
	int64		failed;
	int64		restored;
	int64		outcomes[TK_OUTCOMES];
	int64		alarms;
	int64		pool_waits;

	/* of what Kafka has committed */
	int64		transactions;
	int64		records;
	int64		bytes;
	int64		dead_letters;

	TkCompleted last_completed;
	TkFailed	last_failed;
	TkRestored	last_restored;
	TkSecond	seconds[TK_RATE_SECONDS];
	TkHistogram measures[TK_MEASURES];
} TkCounted;

typedef struct TkStats
{
	LWLock		lock;
	TkCounted	counted;

	/* Facts, not counts: a reset leaves them; under the lock, too */
	int32		consecutive_failures;
	TimestampTz last_commit_at; /* when Kafka committed last */
	TimestampTz unsent_since;	/* commit time of the oldest transaction that a failed checkpoint held; 0: none */
	TimestampTz last_error_at;
	char		last_error[TK_REASON_MAX];

	/* Without it */
	pg_atomic_uint64 triggered;
	pg_atomic_uint64 sent_until;	/* a TimestampTz: all that had committed here by then is in Kafka; 0: not
									 * known */
	pg_atomic_uint32 waits_for; /* TkWaitKind */
	pg_atomic_uint64 queued;	/* records that Kafka's client has and the broker has not acknowledged */
	TkRunning	running[TK_RUNNING_CHECKPOINTS];	/* a checkpoint's place is its id modulo the size */
} TkStats;

/*
 * Shared memory: of one pipeline for each of the registry's entries, by its
 * number.
 */
extern Size tk_stats_size(int npipelines);
extern void tk_stats_init(int npipelines, int tranche_id);

/* For another pipeline. */
extern void tk_stats_clear(int index);

/* Counting begins anew. */
extern void tk_stats_reset(int index);

/* A consistent copy. */
extern void tk_stats_read(int index, TkStats *copy);

/* A second's average of the last minute, or of the time since the reset if that is shorter. */
extern void tk_stats_rates(const TkStats *stats, double *transactions, double *records, double *bytes);

/* Commit time of the oldest transaction that has been read and isn't in Kafka; 0: none is known. */
extern TimestampTz tk_stats_oldest_unsent(const TkStats *stats);

extern const char *tk_wait_name(TkWaitKind kind);
extern const char *tk_outcome_name(TkOutcome outcome);

/*
 * The worker, of its own pipeline; without effect before attach.  detach: a
 * checkpoint that is still under way has failed, with the reason that its
 * process was ended; one that is prepared waits for the next start's verdict.
 */
extern void tk_stats_attach(int index);
extern void tk_stats_detach(void);

/* A checkpoint was opened: by a record of a transaction that committed then, in µs since 1970. */
extern void tk_stats_opened(const TkCheckpoint *checkpoint, int64 commit_us);

/* It has grown. */
extern void tk_stats_progress(const TkCheckpoint *checkpoint);

/* It has all of a transaction that committed then. */
extern void tk_stats_transaction(const TkCheckpoint *checkpoint, int64 commit_us);

/* It is in another state. */
extern void tk_stats_moved(const TkCheckpoint *checkpoint);

/*
 * What was under way, but not prepared, is given up.  fault: by an error, which
 * counts as a failure of the first of them even if it wasn't triggered yet;
 * else somebody wanted the process to end, and it counts for no row of failures.
 */
extern void tk_stats_failed(const char *reason, bool fault);

/* How many failed in a row */
extern int	tk_stats_consecutive_failures(void);

/* A start: what it made of the checkpoint that it found prepared; and where it goes on. */
extern void tk_stats_resolved(int64 checkpoint_id, TkOutcome outcome);
extern void tk_stats_restored(int64 checkpoint_id, XLogRecPtr lsn);

/* Kafka had given up a prepared checkpoint's transaction before it was committed. */
extern void tk_stats_alarm(void);

/* A checkpoint had to wait for a free transactional id. */
extern void tk_stats_pool_wait(void);

/* Nothing that committed before this time is left to send. */
extern void tk_stats_settled(TimestampTz at);

extern void tk_stats_queued(long records);

/*
 * What the worker waits for, for pg_stat_activity (from 17 on by its name) and
 * kafka.stat_pipelines.  begin returns the event, for WaitLatch.
 */
extern uint32 tk_wait_begin(TkWaitKind kind);
extern void tk_wait_end(void);

#endif							/* TK_STATS_H */
