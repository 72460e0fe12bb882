/*
 * sim_world.h
 *	  A small world in which the checkpoint protocol runs: a clock, a source of
 *	  committed transactions, PostgreSQL's catalog and slot, Kafka, a network,
 *	  and faults.  All of it comes out of one seed.
 *
 * Nothing happens at the same time.  What is on its way (a request, an answer, a
 * marker, a commit of the source) is an event with a time; whoever waits lets
 * the clock run up to some time, and the events in between happen.  A crash is
 * a longjmp out of a wait or a step of the worker; what was sent before it is
 * still on its way.
 *
 * test_protocol.c includes the sim_*.c: one translation unit, made anew in a
 * second.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/checkpoint.h"
#include "../../src/kafka_rpc.h"
#include "../../src/recovery.h"

#define MS INT64_C(1000)
#define SECOND INT64_C(1000000)
#define NEVER INT64_MAX

/* max_concurrent_checkpoints is 1 to 3, and transactional_id_prefix one of three */
#define MOST_CONCURRENT 3
#define POOL_MAX (MOST_CONCURRENT + 1)
#define PREFIXES 3
#define IDS (PREFIXES * POOL_MAX)

#define DATA_PARTITIONS 2
#define PROGRESS_PARTITION DATA_PARTITIONS
#define PARTITIONS (DATA_PARTITIONS + 1)

#define SOURCE_MAX 24
#define RECORDS_MAX (SOURCE_MAX * 4)
#define RING_MAX 6
#define CLIENTS (2 * POOL_MAX)
#define PRODUCERS 64			/* producer ids */
#define TRANSACTIONS 1024
#define LOG_MAX 2048
#define PROGRESS_MAX 1024
#define EVENTS_MAX 512
#define SNAPSHOTS 8
#define TIMELINES 8

/* Kafka's error codes */
enum
{
	OUT_OF_ORDER_SEQUENCE_NUMBER = 45,
	INVALID_PRODUCER_EPOCH = 47,
	INVALID_TXN_STATE = 48,
	INVALID_PRODUCER_ID_MAPPING = 49,
	CONCURRENT_TRANSACTIONS = 51,
	PRODUCER_FENCED = 90,
	DELIVERY_FAILED = 7			/* of one record, for good */
};

/* Protocol mistakes that can be planted: test_protocol.c says what each one is */
typedef enum Mutation
{
	NO_MUTATION,
	CONFIRM_BEFORE_COMMIT,
	FENCE_BEFORE_REDRIVE,
	NO_REDRIVE,
	PREPARE_BEFORE_ACKNOWLEDGED,
	COMMIT_BEFORE_PREPARE,
	NO_PROGRESS_RECORD,
	PROGRESS_IN_NEXT_TRANSACTION,
	APPEND_BEFORE_ACKNOWLEDGED,
	PREPARE_BEFORE_RESOLVED,
	REDRIVE_ANY_START,
	REDRIVE_ANY_PRODUCER,
	REDRIVE_IS_VERDICT,
	NO_RENEWAL,
	START_AT_CONFIRMED,
	ROW_IS_VERDICT,
	FENCE_ONE_ID,
	FENCE_OWN_IDS_ONLY,
	NO_SECOND_READ,
	READ_UNCOMMITTED,
	ONE_INSTANCE,
	SPLIT_TRANSACTION,
	IDLE_CONFIRM_WHILE_OPEN,
	IGNORE_DELIVERY_ERRORS,
	NO_VERDICT,
	RENEW_TOO_LATE,
	NO_RENEWAL_AT_START,
	STOP_POSITION_KEPT,
	READ_UNREPLICATED,
	NO_ADOPTED_ROW,
	NO_TIMELINE,
	VISIBLE_WHEN_COMMITTED,
	VISIBLE_WHEN_LAST_IS,
	MUTATIONS
} Mutation;

/* What must have happened in some run, or the simulation tests less than it seems to */
typedef enum Happening
{
	HAPPENED_CHECKPOINT,
	HAPPENED_SEVERAL_CLOSING,	/* several checkpoints were on their way */
	HAPPENED_OVERLAP,			/* records were gathered while the checkpoint before was not acknowledged */
	HAPPENED_APPEND_BESIDE_COMMIT,
	HAPPENED_FULL_WHILE_BUSY,
	HAPPENED_CRASH,
	HAPPENED_SERVER_CRASH,
	HAPPENED_ERROR_EXIT,
	HAPPENED_ORDERLY_STOP,
	HAPPENED_SLOT_WENT_BACK,
	HAPPENED_NO_VOTE,
	HAPPENED_REDRIVEN,
	HAPPENED_ALREADY_COMMITTED,
	HAPPENED_REPLAYED,
	HAPPENED_OTHER_START,
	HAPPENED_WAITED_FOR_DECISION,
	HAPPENED_RENEWAL,
	HAPPENED_TIMEOUT,
	HAPPENED_LATE_END,			/* an EndTxn that nobody waited for any more */
	HAPPENED_LATE_END_FENCED,
	HAPPENED_LATE_ADD,			/* likewise AddPartitionsToTxn, which opened a transaction of nothing */
	HAPPENED_LATE_PRODUCE_REFUSED,
	HAPPENED_IDEMPOTENT_END,
	HAPPENED_ABORT_BY_INIT,
	HAPPENED_FOREIGN_INIT,
	HAPPENED_EXPIRED_ID,
	HAPPENED_ADMIN_ABORT,
	HAPPENED_OUTAGE,
	HAPPENED_DELIVERY_FAILURE,
	HAPPENED_OTHER_ID_FENCED,	/* one that is not in the pool any more */
	HAPPENED_WAIT_FOR_MARKERS,
	HAPPENED_PROMOTION,
	HAPPENED_PROMOTION_LOST_ROWS,
	HAPPENED_ADOPTED,
	HAPPENINGS
} Happening;

/*
 * The source: transactions that commit, one after the other.
 */
typedef struct SourceTransaction
{
	int64_t		at;
	uint64_t	end_lsn;
	int			first_record;
	int			nrecords;		/* 0: nothing of it is published */
} SourceTransaction;

/*
 * PostgreSQL: rows, state and slot.  A transaction is a change of sim.catalog
 * between two waits, so it is atomic; it is durable at once.
 */
typedef struct Row
{
	int64_t		id;				/* 0: a free place of the ring */
	uint32_t	timeline;
	int			attempt;
	enum
	{
		ROW_PREPARED,
		ROW_COMMITTED,
		ROW_ABORTED
	}			state;
	int			transactional_id;
	uint64_t	start_lsn;
	uint64_t	end_lsn;
	TkVote		vote;
} Row;

typedef struct Catalog
{
	Row			rows[RING_MAX];
	bool		slot_created;
	bool		started;
	uint64_t	instances[2];
	int			prefix;			/* in use; -1: none yet */
	int			pool_size;
	uint64_t	stop_lsn;

	uint64_t	confirmed;		/* the slot's position */
	uint64_t	confirmed_on_disk;	/* what a crash of the server leaves of it */
} Catalog;

/*
 * Kafka
 */
typedef struct Progress
{
	int64_t		checkpoint;
	uint64_t	end_lsn;
	uint64_t	instance;
	int			prefix;
	int			pool_size;
	uint32_t	timeline;
	bool		start;
} Progress;

typedef enum AbortCause
{
	ABORTED_BY_OWNER,			/* EndTxn(abort) */
	ABORTED_BY_INIT,			/* InitProducerId of the start under way, or of a renewal */
	ABORTED_BY_STRANGER,		/* likewise, but somebody else's, or one that came late */
	ABORTED_BY_TIMEOUT
} AbortCause;

typedef struct KafkaTransaction
{
	AbortCause	cause;
	int			nrecords;
	int			first;			/* lowest and highest number of a source record in it */
	int			last;
} KafkaTransaction;

typedef struct Coordinator		/* of one transactional id */
{
	bool		exists;
	int64_t		pid;
	int			epoch;
	TkTransactionState state;
	int64_t		start_ms;
	unsigned	partitions;		/* in the transaction; while it ends, those without a marker */
	int			transaction;	/* its number */
} Coordinator;

typedef struct LogEntry
{
	int			payload;		/* source record; or -1 - number of a progress record */
	short		transaction;
	short		pid;
	enum
	{
		ENTRY_OPEN,
		ENTRY_COMMITTED,
		ENTRY_ABORTED,
		ENTRY_MARKER
	}			state;
} LogEntry;

typedef struct Partition
{
	LogEntry	log[LOG_MAX];
	int			end;
	int			seen;			/* what a read_committed consumer has read */
	int			next;			/* the source record that it must see next */
	int			progress;		/* number of the newest progress record that it has seen; -1: none */
	struct
	{
		int			epoch;
		int			sequence;	/* the last one */
		int			open_from;	/* offset; -1: no transaction is open here */
	}			producers[PRODUCERS];
} Partition;

typedef enum Api
{
	API_INIT,
	API_ADD,
	API_PRODUCE,
	API_END,
	API_DESCRIBE
} Api;

/* A request carries all that it needs: its sender may be dead when it arrives. */
typedef struct Request
{
	Api			api;
	int			client;			/* who waits for the answer; -1: nobody */
	unsigned	generation;
	unsigned	serial;			/* of the client's transaction */
	int			transactional_id;
	int64_t		pid;
	int			epoch;
	int			partition;
	int			sequence;
	int			payload;
	int			outgoing;
	bool		commit;
	int			error;			/* of the answer */
	TkTransactionDescription description;
} Request;

typedef enum EventKind
{
	EVENT_REQUEST,
	EVENT_ANSWER,
	EVENT_RESEND,
	EVENT_MARKER,
	EVENT_TIMEOUT,
	EVENT_SOURCE,
	EVENT_REPLICATED,
	EVENT_FAULT,
	EVENT_CALM
} EventKind;

typedef struct Event
{
	int64_t		at;
	unsigned	order;
	EventKind	kind;
	int			number;			/* transaction, fault */
	bool		commit;
	Request		request;
} Event;

typedef enum Fault
{
	FAULT_OUTAGE,
	FAULT_FOREIGN_INIT,
	FAULT_EXPIRED_ID,
	FAULT_STOP,					/* pause and resume, or a changed definition */
	FAULT_DIE,					/* SIGTERM */
	FAULT_WANTED,				/* kafka.checkpoint() */
	FAULT_VISIBLE_WANTED,		/* kafka.wait_for() */
	FAULTS
} Fault;

/* A handle of librdkafka */
typedef struct Client
{
	bool		in_use;
	unsigned	generation;
	unsigned	serial;
	int			transactional_id;
	int64_t		pid;
	int			epoch;
	bool		initialized;
	bool		open;
	bool		ending;
	bool		ended;
	int			failure;
	int			delivery_failure;
	enum
	{
		NOT_ADDED,
		ADDING,
		ADDED
	}			partitions[PARTITIONS];
	int			next_sequence[PARTITIONS];
	int64_t		last_arrival[PARTITIONS];
	struct
	{
		int			partition;
		int			sequence;
		int			payload;
		bool		acknowledged;
	}			outgoing[RECORDS_MAX + 8];
	int			noutgoing;
	int			unacknowledged;
	bool		asked;			/* what kafka_describer.c does */
	bool		answered;
	TkTransactionDescription description;
} Client;

/* How a process ends */
typedef enum Death
{
	DEATH_NONE,
	DEATH_KILL,					/* the process only: what it had open in Kafka stays */
	DEATH_SERVER,				/* the server: what was not on disk is gone as well */
	DEATH_ERROR					/* an ERROR: its end aborts what is open */
} Death;

typedef struct Sim
{
	uint64_t	random;
	int64_t		now;
	bool		calm;			/* from here on nothing breaks any more */
	bool		alive;			/* a worker runs */
	unsigned	steps;
	unsigned	crash_at;		/* 0: not planned */
	Death		crash_by;
	int			crashes_left;
	bool		crash_is_planned;	/* by the caller of the run, calm or not */
	int			deaths_when_calm;
	int64_t		calm_at;

	/* The character of this run */
	int			breaks;			/* requests of 1000 whose connection breaks */
	int			slow;			/* … that take long */
	int			failures;		/* records of 10,000 that can't be delivered */
	int64_t		transaction_timeout;
	TkCheckpointPolicy policy;
	int			retained;
	int			send_records;
	int			hold_records;

	Event		events[EVENTS_MAX];
	int			nevents;
	unsigned	order;
	int			on_their_way;	/* requests and markers among them */

	SourceTransaction source[SOURCE_MAX];
	int			nsource;
	int			committed;		/* so many of them have committed */
	int			replicated;		/* … and a synchronous standby has flushed so many */
	int			nrecords;
	short		record_source[RECORDS_MAX];
	char		record_partition[RECORDS_MAX];
	uint64_t	origin;			/* what commits beyond it must be sent */
	int			undecided;		/* the first source transaction that Kafka has not decided to commit */

	Catalog		catalog;
	bool		standby;		/* there is a synchronous one, which may be promoted */
	int64_t		standby_stalls_until;
	struct
	{
		Catalog		catalog;
		int			committed;	/* what its WAL comes behind */
	}			snapshots[SNAPSHOTS];	/* a ring: the catalog after each of its last transactions */
	int			nsnapshots;
	uint32_t	timeline;
	struct TkFork forks[TIMELINES];
	int			prefix;			/* of the definition */
	int			max_concurrent;
	bool		stop_wanted;
	bool		die_pending;
	uint64_t	wanted_lsn;
	uint64_t	visible_wanted;
	uint64_t	covered_lsn;	/* shared memory, like these two */
	uint64_t	visible_lsn;

	Coordinator coordinators[IDS];
	Partition	partitions[PARTITIONS];
	KafkaTransaction transactions[TRANSACTIONS];
	int			ntransactions;
	Progress	progress[PROGRESS_MAX];
	int			nprogress;
	int64_t		next_pid;
	int64_t		outage_until;
	Client		clients[CLIENTS];
	unsigned	generation;
	bool		wakeup;
	uint64_t	next_instance;
} Sim;

static Sim	sim;
static Mutation mutation;
static bool trace_on;
static long happenings[HAPPENINGS];
static char violation[400];

static jmp_buf run_end;
static jmp_buf process_end;

#define HAPPENED(what) (happenings[HAPPENED_##what]++)

#define TRACE(...) \
	do { \
		if (trace_on) \
		{ \
			printf("%12.3f ms  ", (double) sim.now / 1000); \
			printf(__VA_ARGS__); \
			printf("\n"); \
		} \
	} while (0)

/* The end of a run that broke an invariant. */
static void violated(const char *format,...) __attribute__((noreturn, format(printf, 1, 2)));

static void
violated(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(violation, sizeof(violation), format, args);
	va_end(args);
	TRACE("VIOLATED: %s", violation);
	longjmp(run_end, 1);
}

/* splitmix64 */
static inline uint64_t
random64(void)
{
	uint64_t	z = (sim.random += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/* Both ends included */
static inline int64_t
between(int64_t low, int64_t high)
{
	return low + (int64_t) (random64() % (uint64_t) (high - low + 1));
}

static inline bool
chance(int per_mille)
{
	return between(0, 999) < per_mille;
}

static inline int
transactional_id(int prefix, int i)
{
	return prefix * POOL_MAX + i;
}

#endif							/* SIM_WORLD_H */
