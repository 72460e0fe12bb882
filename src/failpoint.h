/*
 * failpoint.h
 *	  Named places where a test makes the worker fail: compiled in by
 *	  "make FAILPOINTS=1", driven by transactional_kafka.failpoints.
 *
 * TK_FAILPOINT(AFTER_FLUSH) does what the setting says of 'after-flush':
 *	  error	an ERROR, as from any call here
 *	  exit	the process leaves (exit code 1) as FATAL does
 *	  kill	SIGKILL to itself: the whole server crashes and recovers
 *	  wait	waits until the setting no longer says so
 * and of 'after-append:exit@150' only when the process comes by for the 150th
 * time.
 * The list below is the only one: kafka.failpoints() shows it, and the test
 * that loops over it meets a new fail-point by its being here.
 */
#ifndef TK_FAILPOINT_H
#define TK_FAILPOINT_H

#define TK_FAILPOINT_LIST(X) \
	X(RECOVERY_START, "recovery-start") \
	X(AFTER_SLOT_CREATE, "after-slot-create") \
	X(AFTER_PROGRESS_READ, "after-progress-read") \
	X(BEFORE_REDRIVE, "before-redrive") \
	X(AFTER_REDRIVE, "after-redrive") \
	X(AFTER_INIT_TRANSACTIONS, "after-init-transactions") \
	X(BEFORE_DECIDE, "before-decide") \
	X(AFTER_DECIDE, "after-decide") \
	X(AFTER_START_RECORD, "after-start-record") \
	X(AFTER_STARTED, "after-started") \
	X(AFTER_BEGIN, "after-begin") \
	X(AFTER_APPEND, "after-append") \
	X(CHECKPOINT_TRIGGERED, "checkpoint-triggered") \
	X(AFTER_PROGRESS_APPEND, "after-progress-append") \
	X(AFTER_FLUSH, "after-flush") \
	X(BEFORE_PREPARE_COMMIT, "before-prepare-commit") \
	X(AFTER_PREPARE_COMMIT, "after-prepare-commit") \
	X(BEFORE_KAFKA_COMMIT, "before-kafka-commit") \
	X(AFTER_KAFKA_COMMIT, "after-kafka-commit") \
	X(AFTER_SLOT_CONFIRM, "after-slot-confirm") \
	X(BEFORE_MARK, "before-mark") \
	X(AFTER_MARK, "after-mark") \
	X(ORDERLY_STOP, "orderly-stop")

typedef enum TkFailpoint
{
#define TK_FAILPOINT_ENUM(symbol, name) TK_FP_##symbol,
	TK_FAILPOINT_LIST(TK_FAILPOINT_ENUM)
#undef TK_FAILPOINT_ENUM
	TK_FP_COUNT
} TkFailpoint;

#ifdef TK_FAILPOINTS
extern void tk_failpoint(TkFailpoint point);

#define TK_FAILPOINT(symbol) tk_failpoint(TK_FP_##symbol)
#else
#define TK_FAILPOINT(symbol) ((void) 0)
#endif

extern void tk_failpoint_init(void);

#endif							/* TK_FAILPOINT_H */
