/*
 * kafka_client.h
 *	  What all users of librdkafka here share: results, configuration, logs,
 *	  bounded waiting, bounded destruction.
 *
 * Nothing behind the kafka_*.h doors includes postgres.h, calls ereport or
 * jumps: each function returns a status and fills a TkKafkaError.  It runs on
 * the worker's main thread, and so do librdkafka's callbacks, inside
 * rd_kafka_poll; they only set fields.  But for the end of a handle: that runs
 * in a thread of ours, which may hang, and so may its last callbacks.
 */
#ifndef TK_KAFKA_CLIENT_H
#define TK_KAFKA_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum TkKafkaStatus
{
	TK_KAFKA_OK,
	TK_KAFKA_RETRY,				/* not done yet, or a passing fault: the same call may be made again */
	TK_KAFKA_ABORT,				/* the open transaction can only be aborted */
	TK_KAFKA_FENCED,			/* another producer took this transactional id, or the broker timed the
								 * transaction out */
	TK_KAFKA_FATAL				/* this handle is of no more use */
} TkKafkaStatus;

/* Why, where it matters to the operator: the causes that no retry heals. */
typedef enum TkKafkaCause
{
	TK_CAUSE_OTHER,
	TK_CAUSE_TIMED_OUT,			/* the bound of the call passed; nothing else known */
	TK_CAUSE_INTERRUPTED,		/* wait->interrupted() said so */
	TK_CAUSE_QUEUE_FULL,
	TK_CAUSE_UNREACHABLE,		/* no broker answers, or the name does not resolve */
	TK_CAUSE_AUTHENTICATION,
	TK_CAUSE_AUTHORIZATION,
	TK_CAUSE_NO_TOPIC,
	TK_CAUSE_OVERSIZE,			/* one record is larger than client or broker allow */
	TK_CAUSE_CONFIGURATION,		/* a property that librdkafka or the broker refuses */
	TK_CAUSE_OUT_OF_MEMORY
} TkKafkaCause;

typedef struct TkKafkaError
{
	TkKafkaStatus status;
	TkKafkaCause cause;
	int			code;			/* rd_kafka_resp_err_t, 0 = none */
	char		message[512];	/* for people: names topic, transactional id, broker; no secrets */
} TkKafkaError;

/*
 * How long a call may wait.  It blocks in slices of 100 ms (metadata requests:
 * up to 1.6 s, they can't be resumed) and asks interrupted() between them (a
 * function that only reads flags).  Returns
 * TK_KAFKA_RETRY with TIMED_OUT or INTERRUPTED when it gives up; the call may
 * then be made again and goes on where it was.
 */
typedef struct TkKafkaWait
{
	int			timeout_ms;
	bool		(*interrupted) (void);	/* may be NULL */
} TkKafkaWait;

typedef struct TkKafkaProperty
{
	const char *name;
	const char *value;
} TkKafkaProperty;

/* Server and user-mapping options, as librdkafka's own properties. The arrays stay the caller's. */
typedef struct TkKafkaConf
{
	int			nproperties;
	const TkKafkaProperty *properties;
} TkKafkaConf;

/*
 * Who may set a librdkafka property, and where.  An allow-list: a property
 * that a newer librdkafka adds is UNKNOWN until somebody classified it.
 */
typedef enum TkPropertyClass
{
	TK_PROPERTY_UNKNOWN,
	TK_PROPERTY_SERVER,			/* CREATE SERVER, by its owner */
	TK_PROPERTY_SECRET,			/* CREATE USER MAPPING only */
	TK_PROPERTY_SUPERUSER,		/* CREATE SERVER by a superuser: reads files, loads code, runs commands */
	TK_PROPERTY_RESERVED		/* set by the extension: transactional.id, enable.idempotence, … */
} TkPropertyClass;

extern TkPropertyClass tk_kafka_property_class(const char *name);

/* The nearest allowed name, for a hint; NULL if none is near. */
extern const char *tk_kafka_property_closest(const char *name);

/* The longest value of a property that is taken, in bytes. */
extern size_t tk_kafka_property_max(const char *name);

/* Asks librdkafka itself. Needs no broker and starts no thread. */
extern bool tk_kafka_property_check(const char *name, const char *value, char *why, size_t size);

/*
 * Log lines of all handles, kept in a small ring inside the poll that
 * delivered them.  Fills "line" with the oldest and its syslog level; false
 * when there is none.  Lines dropped by an overflow are counted in a line.
 */
extern bool tk_kafka_next_log(int *level, char *line, size_t size);

#endif							/* TK_KAFKA_CLIENT_H */
