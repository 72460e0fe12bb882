/*
 * kafka_client.c
 *	  What all users of librdkafka here share: results, logs, bounded waiting,
 *	  bounded destruction.
 *
 * Waiting: librdkafka's calls take a timeout but can't be interrupted, so
 * every wait is cut into slices with a look at the caller's flag between
 * them.  A timed-out call says nothing about the reason; the error callback
 * notes the newest connection error, which a later success clears, so that a
 * call that gives up can name it.
 *
 * Destruction: rd_kafka_destroy joins librdkafka's threads, and one of them
 * can sit in getaddrinfo or a TLS library for as long as it likes.  It is
 * therefore called by a thread of its own, and the worker waits for that
 * thread with a bound.  Past the bound handle and thread are left alone, and
 * the process must not run exit handlers any more (tk_kafka_threads_left).
 */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kafka_internal.h"
#include "kafka_rpc.h"
#include "kafka_producer.h"

#define LOG_LINES		1024	/* 0.5 MB, used only where "debug" says so much */
#define LOG_LINE_SIZE	512

/*
 * All handles are served by one thread, but librdkafka may call the log
 * callback from a thread of its own while a handle is set up or torn down.
 */
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct
{
	int			level;
	char		line[LOG_LINE_SIZE];
}			log_ring[LOG_LINES];
static int	log_first;
static int	log_count;
static long log_lost;

static pthread_mutex_t trouble_mutex = PTHREAD_MUTEX_INITIALIZER;
static long threads_left;		/* atomic: handles and threads that may still run */


/*
 * Results
 */

TkKafkaStatus
tk_ok(TkKafkaError *error)
{
	if (error)
	{
		error->status = TK_KAFKA_OK;
		error->cause = TK_CAUSE_OTHER;
		error->code = 0;
		error->message[0] = '\0';
	}
	return TK_KAFKA_OK;
}

TkKafkaStatus
tk_fail(TkKafkaError *error, TkKafkaStatus status, TkKafkaCause cause, int code, const char *fmt,...)
{
	va_list		args;

	if (error)
	{
		error->status = status;
		error->cause = cause;
		error->code = code;
		va_start(args, fmt);
		vsnprintf(error->message, sizeof(error->message), fmt, args);
		va_end(args);
	}
	return status;
}

bool
tk_is_fenced(int code)
{
	return code == RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH ||
		code == RD_KAFKA_RESP_ERR_PRODUCER_FENCED ||
		code == RD_KAFKA_RESP_ERR__FENCED;
}

TkKafkaCause
tk_cause(int code)
{
	switch (code)
	{
		case RD_KAFKA_RESP_ERR__TRANSPORT:
		case RD_KAFKA_RESP_ERR__RESOLVE:
		case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
			return TK_CAUSE_UNREACHABLE;

		case RD_KAFKA_RESP_ERR__AUTHENTICATION:
		case RD_KAFKA_RESP_ERR__SSL:
		case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM:
		case RD_KAFKA_RESP_ERR_ILLEGAL_SASL_STATE:
			return TK_CAUSE_AUTHENTICATION;

		case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
		case RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
			return TK_CAUSE_AUTHORIZATION;

		case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
		case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
		case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
			return TK_CAUSE_NO_TOPIC;

		case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
			return TK_CAUSE_OVERSIZE;

		case RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT:
		case RD_KAFKA_RESP_ERR_INVALID_CONFIG:
		case RD_KAFKA_RESP_ERR_INVALID_PARTITIONS:
		case RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR:
		case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
		case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE:
		case RD_KAFKA_RESP_ERR__INVALID_ARG:
			return TK_CAUSE_CONFIGURATION;

		case RD_KAFKA_RESP_ERR__TIMED_OUT:
		case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
		case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
		case RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT:
			return TK_CAUSE_TIMED_OUT;

		case RD_KAFKA_RESP_ERR__QUEUE_FULL:
			return TK_CAUSE_QUEUE_FULL;

		case RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE:
			return TK_CAUSE_OUT_OF_MEMORY;

		default:
			return TK_CAUSE_OTHER;
	}
}

const char *
tk_producer_needs(int code)
{
	return code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED ? TK_NEEDS(code, "Write on the topic") :
		code == RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED ?
		TK_NEEDS(code, "Write on the transactional id") : "";
}

/*
 * Makes a result of what a transactional call returned, and frees that.  An
 * error without any flag leaves the handle in a state nobody described: FATAL.
 */
TkKafkaStatus
tk_fail_from(TkClient *client, rd_kafka_error_t *from, const char *what, TkKafkaError *error)
{
	int			code = rd_kafka_error_code(from);
	TkKafkaCause cause = tk_cause(code);
	TkKafkaStatus status;
	char		text[TK_TROUBLE_SIZE];
	int			trouble;

	if (tk_is_fenced(code))
		status = TK_KAFKA_FENCED;
	else if (rd_kafka_error_is_fatal(from))
		status = TK_KAFKA_FATAL;
	else if (rd_kafka_error_txn_requires_abort(from))
		status = TK_KAFKA_ABORT;
	else if (code == RD_KAFKA_RESP_ERR__CONFLICT)
		status = TK_KAFKA_FATAL;	/* another call of the transaction never finished */
	else if (rd_kafka_error_is_retriable(from))
		status = TK_KAFKA_RETRY;
	else
		status = TK_KAFKA_FATAL;

	if (cause == TK_CAUSE_TIMED_OUT && (trouble = tk_client_trouble(client, text)) != 0)
		tk_fail(error, status, tk_cause(trouble), trouble, "%s: %s: %s", what, rd_kafka_error_string(from), text);
	else
		tk_fail(error, status, cause, code, "%s: %s%s", what, rd_kafka_error_string(from), tk_producer_needs(code));
	rd_kafka_error_destroy(from);
	return status;
}


/*
 * Waiting
 */

int64_t
tk_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void
tk_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t clock;

	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &clock);
	pthread_condattr_destroy(&clock);
}

struct timespec
tk_after_ms(int ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long) (ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000)
	{
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

int
tk_start_thread(pthread_t *thread, size_t stack, void *(*run) (void *arg), void *arg)
{
	pthread_attr_t attributes;
	sigset_t	all,
				before;
	int			failed;

	pthread_attr_init(&attributes);
	if (stack > 0)
		pthread_attr_setstacksize(&attributes, stack);

	/* The thread inherits the mask. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(thread, &attributes, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return failed;
}

void
tk_count_threads(int change)
{
	__atomic_fetch_add(&threads_left, change, __ATOMIC_SEQ_CST);
}

TkDeadline
tk_deadline(const TkKafkaWait *wait)
{
	TkDeadline	deadline;

	deadline.wait = wait;
	deadline.start_ms = tk_now_ms();
	deadline.end_ms = deadline.start_ms + wait->timeout_ms;
	return deadline;
}

/* At least 1 ms: a call with no time at all would never see the answer of librdkafka's thread. */
int
tk_slice(const TkDeadline *deadline, int limit_ms)
{
	int64_t		left = deadline->end_ms - tk_now_ms();

	if (left < 1)
		return 1;
	return left < limit_ms ? (int) left : limit_ms;
}

bool
tk_is_over(const TkDeadline *deadline)
{
	if (deadline->wait->interrupted && deadline->wait->interrupted())
		return true;
	return tk_now_ms() >= deadline->end_ms;
}

/* A broker said who we are not: waiting longer doesn't change its mind. */
bool
tk_is_hopeless(TkClient *client)
{
	char		text[TK_TROUBLE_SIZE];

	return tk_cause(tk_client_trouble(client, text)) == TK_CAUSE_AUTHENTICATION;
}

TkKafkaStatus
tk_gave_up(TkClient *client, const TkDeadline *deadline, const char *what, TkKafkaError *error)
{
	int			waited_ms = (int) (tk_now_ms() - deadline->start_ms);
	char		text[TK_TROUBLE_SIZE];
	int			trouble;

	if (deadline->wait->interrupted && deadline->wait->interrupted())
		return tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_INTERRUPTED, 0, "%s: interrupted", what);
	trouble = tk_client_trouble(client, text);
	if (trouble != 0)
		return tk_fail(error, TK_KAFKA_RETRY, tk_cause(trouble), trouble, "%s: not done after %d ms: %s", what,
					   waited_ms, text);
	return tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_TIMED_OUT, RD_KAFKA_RESP_ERR__TIMED_OUT,
				   "%s: no answer after %d ms", what, waited_ms);
}


/*
 * Callbacks: they run inside rd_kafka_poll and only set fields.
 */

static void
on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
	/*
	 * The error of the transaction doesn't say which partition; only the log line does.  Those that were asked
	 * for together with it, and are innocent, have one too.
	 */
	if (rk && strcmp(facility, "ADDPARTS") == 0)
	{
		TkClient   *client = rd_kafka_opaque(rk);
		const char *from = strstr(text, "Failed to add partition");

		if (from && client->refused[0] == '\0' &&
			strstr(from, rd_kafka_err2str(RD_KAFKA_RESP_ERR_OPERATION_NOT_ATTEMPTED)) == NULL)
			snprintf(client->refused, sizeof(client->refused), "%s", from);
	}

	pthread_mutex_lock(&log_mutex);
	if (log_count == LOG_LINES)
		log_lost++;
	else
	{
		int			at = (log_first + log_count++) % LOG_LINES;

		log_ring[at].level = level;
		snprintf(log_ring[at].line, LOG_LINE_SIZE, "%s%s%s: %s",
				 rk ? rd_kafka_name(rk) : "", rk ? ": " : "", facility, text);
	}
	pthread_mutex_unlock(&log_mutex);
}

bool
tk_kafka_next_log(int *level, char *line, size_t size)
{
	bool		found = true;

	pthread_mutex_lock(&log_mutex);
	if (log_count > 0)
	{
		*level = log_ring[log_first].level;
		snprintf(line, size, "%s", log_ring[log_first].line);
		log_first = (log_first + 1) % LOG_LINES;
		log_count--;
	}
	else if (log_lost > 0)
	{
		*level = 4;				/* LOG_WARNING */
		snprintf(line, size, "%ld more log lines of librdkafka were dropped", log_lost);
		log_lost = 0;
	}
	else
		found = false;
	pthread_mutex_unlock(&log_mutex);
	return found;
}

/*
 * librdkafka says of a certificate only that it "could not be verified"; why is
 * told here, by the thread that speaks with the broker.  It is believed nothing
 * that OpenSSL does not believe.
 */
static int
on_certificate(rd_kafka_t *rk, const char *broker, int32_t broker_id, int *x509_error, int depth, const char *der,
			   size_t size, char *why, size_t why_size, void *opaque)
{
	TkClient   *client = opaque;
	const char *problem;

	(void) rk;
	(void) broker_id;
	(void) der;
	(void) size;
	if (*x509_error == 0)
		return 1;
	problem = tk_certificate_problem(*x509_error);
	snprintf(why, why_size, "%s", problem);
	pthread_mutex_lock(&trouble_mutex);
	snprintf(client->certificate, sizeof(client->certificate), "%s of %s is refused: %s",
			 depth == 0 ? "the certificate" : "a CA certificate", broker, problem);
	pthread_mutex_unlock(&trouble_mutex);
	return 0;
}

/*
 * Up to 2.6.0 librdkafka sends its nonce twice in SCRAM's last message.  Brokers
 * look only at its end up to 3.9; from 4.0 on they answer as to a wrong password.
 */
#define SCRAM_MENDED 0x020601ff

static const char *
scram_fault(rd_kafka_t *rk)
{
	char		mechanism[64] = "";
	size_t		size = sizeof(mechanism);

	if (rd_kafka_version() >= SCRAM_MENDED ||
		rd_kafka_conf_get(rd_kafka_conf(rk), "sasl.mechanisms", mechanism, &size) != RD_KAFKA_CONF_OK ||
		strncmp(mechanism, "SCRAM-", 6) != 0)
		return "";
	return " (or because librdkafka is older than 2.6.1: its SCRAM is refused by brokers from 4.0 on)";
}

/* In TLS 1.3 a broker looks at our certificate when the handshake is over for us: librdkafka has lost a connection. */
static const char *
alert_of(rd_kafka_t *rk, const char *reason)
{
	const char *alert = strstr(reason, "SSL alert number ");

	return alert ? tk_alert_means(rd_kafka_conf(rk), atoi(alert + strlen("SSL alert number "))) : NULL;
}

static void
on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
	TkClient   *client = opaque;
	TkKafkaCause cause = tk_cause(code);
	const char *alert = NULL;

	if ((code == RD_KAFKA_RESP_ERR__TRANSPORT || code == RD_KAFKA_RESP_ERR__SSL) &&
		(alert = alert_of(rk, reason)) != NULL)
	{
		code = RD_KAFKA_RESP_ERR__SSL;
		cause = TK_CAUSE_AUTHENTICATION;
	}
	if (cause != TK_CAUSE_UNREACHABLE && cause != TK_CAUSE_AUTHENTICATION)
		return;
	/* "All brokers down" only sums up what came before, and a lost connection often follows a refused password. */
	pthread_mutex_lock(&trouble_mutex);
	if (!(client->trouble_code != 0 && code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) &&
		!(tk_cause(client->trouble_code) == TK_CAUSE_AUTHENTICATION && cause == TK_CAUSE_UNREACHABLE))
	{
		client->trouble_code = code;
		if (alert)
			snprintf(client->trouble, sizeof(client->trouble), "%s: %.*s", alert, (int) strcspn(reason, "("), reason);
		else if (client->certificate[0] != '\0' && strstr(reason, "certificate verify failed") != NULL)
			snprintf(client->trouble, sizeof(client->trouble), "%s", client->certificate);
		else
			snprintf(client->trouble, sizeof(client->trouble), "%s%s", reason,
					 code == RD_KAFKA_RESP_ERR__AUTHENTICATION ? scram_fault(rk) : "");
	}
	pthread_mutex_unlock(&trouble_mutex);
}

/* A call succeeded: whatever was wrong with a connection is not what stops us. */
void
tk_client_healthy(TkClient *client)
{
	pthread_mutex_lock(&trouble_mutex);
	client->trouble_code = 0;
	pthread_mutex_unlock(&trouble_mutex);
}

int
tk_client_trouble(TkClient *client, char text[TK_TROUBLE_SIZE])
{
	int			code;

	pthread_mutex_lock(&trouble_mutex);
	code = client->trouble_code;
	snprintf(text, TK_TROUBLE_SIZE, "%s", code ? client->trouble : "");
	pthread_mutex_unlock(&trouble_mutex);
	return code;
}


/*
 * Handles
 */

static const TkDefault client_defaults[] = {
	{"client.id", "transactional_kafka", NULL},
	{"socket.nagle.disable", "true", NULL},
	{"socket.keepalive.enable", "true", NULL},
	{"socket.connection.setup.timeout.ms", "10000", NULL},
	{"reconnect.backoff.max.ms", "1000", "reconnect.backoff.ms"},
	{"log.connection.close", "false", NULL},
};

/*
 * Completes the configuration with what every handle has and opens it.  Takes
 * "conf" over, also when it fails.
 */
bool
tk_client_open(TkClient *client, rd_kafka_type_t type, rd_kafka_conf_t *conf, const TkKafkaConf *user,
			   TkKafkaError *error)
{
	char		why[400] = "";
	char		verifies[16];
	size_t		size = sizeof(verifies);
	bool		oidc = tk_conf_has(user, "sasl.oauthbearer.method");

	if (!tk_conf_defaults(conf, client_defaults, sizeof(client_defaults) / sizeof(client_defaults[0]),
						  user, error) ||
		!tk_conf_user(conf, user, type, error) ||
		!tk_conf_set(conf, "allow.auto.create.topics", "false", error) ||
		!tk_conf_set(conf, "log.thread.name", "false", error) ||
		!tk_conf_set(conf, "log.queue", "true", error))
	{
		rd_kafka_conf_destroy(conf);
		return false;
	}
	rd_kafka_conf_set_opaque(conf, client);
	rd_kafka_conf_set_log_cb(conf, on_log);
	rd_kafka_conf_set_error_cb(conf, on_error);
	/* It would be called, and complained of, without verification too. */
	if (rd_kafka_conf_get(conf, "enable.ssl.certificate.verification", verifies, &size) == RD_KAFKA_CONF_OK &&
		strcmp(verifies, "true") == 0)
		(void) rd_kafka_conf_set_ssl_cert_verify_cb(conf, on_certificate);
	if (oidc)
		rd_kafka_conf_enable_sasl_queue(conf, 1);

	client->trouble_code = 0;
	client->rk = rd_kafka_new(type, conf, why, sizeof(why));
	if (client->rk == NULL)
	{
		int			code = rd_kafka_last_error();

		rd_kafka_conf_destroy(conf);
		tk_fail(error, TK_KAFKA_FATAL, code == RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE ?
				TK_CAUSE_OUT_OF_MEMORY : TK_CAUSE_CONFIGURATION, code, "%s", why);
		return false;
	}
	tk_count_threads(1);
	rd_kafka_set_log_queue(client->rk, NULL);

	/* Fetching a token is an HTTP request without a bound: not in our thread.  An error means no such mechanism. */
	if (oidc)
	{
		rd_kafka_error_t *ignored = rd_kafka_sasl_background_callbacks_enable(client->rk);

		if (ignored)
			rd_kafka_error_destroy(ignored);
	}
	tk_ok(error);
	return true;
}

typedef struct Closer
{
	rd_kafka_t *rk;
	int			abort_ms;		/* > 0: abort the open transaction first, for so long */
	pthread_mutex_t mutex;
	pthread_cond_t finished;
	bool		done;
	bool		given_up;
} Closer;

static void
free_closer(Closer *closer)
{
	pthread_cond_destroy(&closer->finished);
	pthread_mutex_destroy(&closer->mutex);
	free(closer);
}

static void *
close_handle(void *arg)
{
	Closer	   *closer = arg;
	bool		given_up;

	if (closer->abort_ms > 0)
	{
		rd_kafka_error_t *ignored = rd_kafka_abort_transaction(closer->rk, closer->abort_ms);

		if (ignored)
			rd_kafka_error_destroy(ignored);
	}

	/* Records nobody will report on any more; without waiting for the threads that hold them. */
	if (rd_kafka_type(closer->rk) == RD_KAFKA_PRODUCER)
		rd_kafka_purge(closer->rk,
					   RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
	rd_kafka_destroy_flags(closer->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	tk_count_threads(-1);

	pthread_mutex_lock(&closer->mutex);
	closer->done = true;
	given_up = closer->given_up;
	pthread_cond_signal(&closer->finished);
	pthread_mutex_unlock(&closer->mutex);

	if (given_up)
		free_closer(closer);
	return NULL;
}

/*
 * True when the handle is gone.  The memory of "client" may be freed only
 * then: false means that librdkafka may still look at it.  abort: its open
 * transaction is aborted first, also by the thread: an abort can hang in a name
 * lookup.  Callbacks then run there, while nobody else uses the handle.
 */
bool
tk_client_close(TkClient *client, bool abort, int timeout_ms)
{
	Closer	   *closer;
	pthread_t	thread;
	struct timespec until = tk_after_ms(timeout_ms);
	bool		done;

	if (client->rk == NULL)
		return true;
	closer = calloc(1, sizeof(Closer));
	if (closer == NULL)
		return false;
	closer->rk = client->rk;
	closer->abort_ms = abort ? timeout_ms : 0;
	client->rk = NULL;
	pthread_mutex_init(&closer->mutex, NULL);
	tk_cond_init(&closer->finished);
	if (tk_start_thread(&thread, 0, close_handle, closer) != 0)
	{
		free_closer(closer);
		return false;
	}

	pthread_mutex_lock(&closer->mutex);
	while (!closer->done)
		if (pthread_cond_timedwait(&closer->finished, &closer->mutex, &until) != 0)
			break;
	done = closer->done;
	closer->given_up = !done;
	pthread_mutex_unlock(&closer->mutex);
	if (done)
	{
		/* It is at its end; what it still runs must not run beside the exit handlers. */
		pthread_join(thread, NULL);
		free_closer(closer);
	}
	else
		pthread_detach(thread);
	return done;
}

bool
tk_kafka_threads_left(void)
{
	return __atomic_load_n(&threads_left, __ATOMIC_SEQ_CST) > 0 || tk_rpc_threads_left();
}

/*
 * Asks a broker for a topic: *partitions = 0 if there is none.
 *
 * rd_kafka_metadata starts anew with each call, so slices of one length
 * would never see the answer of a broker that is slower than that: they grow,
 * up to 1.6 s.
 */
TkKafkaStatus
tk_client_topic(TkClient *client, rd_kafka_topic_t *topic, const TkDeadline *deadline, int *partitions,
				bool *has_leaders, TkKafkaError *error)
{
	const char *name = rd_kafka_topic_name(topic);
	int			slice = TK_SLICE_MS;
	char		what[300];

	snprintf(what, sizeof(what), "metadata of topic \"%s\"", name);
	*partitions = 0;
	*has_leaders = false;
	for (;;)
	{
		const struct rd_kafka_metadata *metadata = NULL;
		int			code;
		int			i;

		rd_kafka_poll(client->rk, 0);
		code = rd_kafka_metadata(client->rk, 0, topic, &metadata, tk_slice(deadline, slice));
		rd_kafka_poll(client->rk, 0);
		if (code == 0)
		{
			tk_client_healthy(client);
			code = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
			for (i = 0; i < metadata->topic_cnt; i++)
			{
				const struct rd_kafka_metadata_topic *t = &metadata->topics[i];
				int			j;

				if (strcmp(t->topic, name) != 0)
					continue;
				code = t->err;
				*partitions = t->partition_cnt;
				*has_leaders = t->partition_cnt > 0;
				for (j = 0; j < t->partition_cnt; j++)
					if (t->partitions[j].leader < 0)
						*has_leaders = false;
			}
			rd_kafka_metadata_destroy(metadata);
			if (code == 0)
				return tk_ok(error);
			if (tk_cause(code) == TK_CAUSE_NO_TOPIC)
			{
				*partitions = 0;
				*has_leaders = false;
				return tk_ok(error);
			}
			/* LEADER_NOT_AVAILABLE and the like pass; a refusal doesn't */
			if (tk_cause(code) == TK_CAUSE_AUTHORIZATION || tk_cause(code) == TK_CAUSE_CONFIGURATION)
				return tk_fail(error, TK_KAFKA_FATAL, tk_cause(code), code, "%s: %s%s", what,
							   rd_kafka_err2str(code), TK_NEEDS(code, "Describe on the topic"));
		}
		if (tk_is_over(deadline) || tk_is_hopeless(client))
			return tk_gave_up(client, deadline, what, error);
		if (code != RD_KAFKA_RESP_ERR__TIMED_OUT)
			rd_kafka_poll(client->rk, tk_slice(deadline, TK_SLICE_MS / 4));
		else if (slice < 1600)
			slice *= 2;
	}
}
