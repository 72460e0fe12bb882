/*
 * kafka_internal.h
 *	  What the kafka_*.c files share with each other and with nobody else.
 */
#ifndef TK_KAFKA_INTERNAL_H
#define TK_KAFKA_INTERNAL_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <time.h>

#include "kafka_client.h"

#define TK_SLICE_MS		100		/* the longest wait between two looks at interrupted() */

#define TK_TROUBLE_SIZE 384

/*
 * One librdkafka handle.  It is the handle's opaque, so callbacks find it; a
 * struct that has more to remember has it as its first member.
 */
typedef struct TkClient
{
	rd_kafka_t *rk;
	int			trouble_code;	/* newest connection error since the last success, 0 = none; under a mutex */
	char		trouble[TK_TROUBLE_SIZE];
	char		certificate[256];	/* what was wrong with a broker's last; under the mutex too */
	char		refused[256];	/* a partition that may not join the transaction, from the log */
} TkClient;

typedef struct TkDeadline
{
	const TkKafkaWait *wait;
	int64_t		start_ms;
	int64_t		end_ms;
} TkDeadline;

/* A property the extension sets unless one of the names is the user's. */
typedef struct TkDefault
{
	const char *name;
	const char *value;
	const char *unless;			/* another name that also turns the default off, or NULL */
} TkDefault;

/* kafka_conf.c */
extern bool tk_property_for_consumer(const char *name);
extern bool tk_property_is_secret(const char *name);
extern bool tk_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, TkKafkaError *error);
extern bool tk_conf_set_int(rd_kafka_conf_t *conf, const char *name, int value, TkKafkaError *error);
extern bool tk_conf_defaults(rd_kafka_conf_t *conf, const TkDefault *defaults, int n,
							 const TkKafkaConf *user, TkKafkaError *error);
extern bool tk_conf_user(rd_kafka_conf_t *conf, const TkKafkaConf *user, rd_kafka_type_t type,
						 TkKafkaError *error);
extern bool tk_conf_has(const TkKafkaConf *user, const char *name);

/* kafka_connection_conf.c */

/* OpenSSL's reason for not trusting a certificate, in words. */
extern const char *tk_certificate_problem(int x509_error);

/* What a broker's TLS alert means, if it is about our certificate; NULL if it isn't. */
extern const char *tk_alert_means(const rd_kafka_conf_t *conf, int alert);

/* kafka_client.c */
extern TkKafkaStatus tk_ok(TkKafkaError *error);
extern TkKafkaStatus tk_fail(TkKafkaError *error, TkKafkaStatus status, TkKafkaCause cause, int code,
							 const char *fmt,...) __attribute__((format(printf, 5, 6)));
extern TkKafkaCause tk_cause(int code);

/* What to grant, for the end of a message. */
#define TK_NEEDS(code, acl) \
	(tk_cause(code) == TK_CAUSE_AUTHORIZATION ? " (needs the ACL " acl ")" : "")

/* That for a refusal of what a transactional producer does; "" for another code. */
extern const char *tk_producer_needs(int code);

extern bool tk_is_fenced(int code);
extern TkKafkaStatus tk_fail_from(TkClient *client, rd_kafka_error_t *from, const char *what, TkKafkaError *error);

/* What tk_kafka_threads_left() asks for. */
extern void tk_count_threads(int change);

/*
 * Threads of our own: with every signal blocked, because the server's handlers
 * must run in the main thread only.  stack: bytes, 0 = the system's default.
 * Returns an errno, 0 = it runs.
 */
extern int	tk_start_thread(pthread_t *thread, size_t stack, void *(*run) (void *arg), void *arg);

/* By the monotonic clock: ms, a condition variable, and until when to wait for it. */
extern int64_t tk_now_ms(void);
extern void tk_cond_init(pthread_cond_t *cond);
extern struct timespec tk_after_ms(int ms);

extern TkDeadline tk_deadline(const TkKafkaWait *wait);
extern int	tk_slice(const TkDeadline *deadline, int limit_ms);
extern bool tk_is_over(const TkDeadline *deadline);
extern bool tk_is_hopeless(TkClient *client);
extern TkKafkaStatus tk_gave_up(TkClient *client, const TkDeadline *deadline, const char *what,
								TkKafkaError *error);

extern bool tk_client_open(TkClient *client, rd_kafka_type_t type, rd_kafka_conf_t *conf,
						   const TkKafkaConf *user, TkKafkaError *error);
extern void tk_client_healthy(TkClient *client);

/* The newest connection error since the last success: its code (0: none) and text. */
extern int	tk_client_trouble(TkClient *client, char text[TK_TROUBLE_SIZE]);
extern bool tk_client_close(TkClient *client, bool abort, int timeout_ms);
extern TkKafkaStatus tk_client_topic(TkClient *client, rd_kafka_topic_t *topic, const TkDeadline *deadline,
									 int *partitions, bool *has_leaders, TkKafkaError *error);

#endif							/* TK_KAFKA_INTERNAL_H */
