/*
 * kafka_describer.c
 *	  Asks the coordinator about a transaction while its records are being
 *	  acknowledged.
 *
 * Questions are numbered: an answer counts only for the newest one.  After a
 * question that got no answer in time none is asked for a while, so that a
 * coordinator that doesn't answer us costs one wait, not one a transaction.
 */
#include <stdlib.h>
#include <string.h>

#include "kafka_describer.h"
#include "kafka_internal.h"

/* A question takes so long at most, and is followed by so long a silence if that was not enough. */
#define ASK_MS 500
#define SILENCE_MS 10000

#define THREAD_STACK (512 * 1024)

struct TkDescriber
{
	TkRpc	   *rpc;
	char	   *transactional_id;
	pthread_t	thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool		quit;
	bool		gone;
	unsigned	asked;			/* number of the newest question */
	unsigned	answered;		/* of the newest one that is done with */
	struct timespec silent_until;
	TkKafkaStatus status;
	TkKafkaError error;
	TkTransactionDescription description;
};

static bool
has_passed(const struct timespec *t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

static void *
describe(void *arg)
{
	static const TkKafkaWait wait = {ASK_MS, NULL};
	TkDescriber *d = arg;

	pthread_mutex_lock(&d->mutex);
	for (;;)
	{
		unsigned	question;
		TkKafkaStatus status;
		TkKafkaError error;
		TkTransactionDescription description;

		while (d->asked == d->answered && !d->quit)
			pthread_cond_wait(&d->changed, &d->mutex);
		if (d->quit)
			break;
		question = d->asked;
		pthread_mutex_unlock(&d->mutex);

		status = tk_rpc_describe(d->rpc, d->transactional_id, &wait, &description, &error);

		pthread_mutex_lock(&d->mutex);
		d->status = status;
		if (status == TK_KAFKA_OK)
			d->description = description;
		else
		{
			d->error = error;
			d->silent_until = tk_after_ms(SILENCE_MS);
		}
		d->answered = question;
		pthread_cond_broadcast(&d->changed);
	}
	d->gone = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->mutex);
	tk_count_threads(-1);
	return NULL;
}

static void
free_describer(TkDescriber *d)
{
	tk_rpc_destroy(d->rpc);
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->mutex);
	free(d->transactional_id);
	free(d);
}

TkDescriber *
tk_describer_create(const TkKafkaConf *conf, const char *transactional_id, TkKafkaError *error)
{
	TkRpc	   *rpc = tk_rpc_create(conf, error);
	TkDescriber *d;
	int			failed;

	if (rpc == NULL)
		return NULL;
	d = calloc(1, sizeof(TkDescriber));
	if (d == NULL || (d->transactional_id = strdup(transactional_id)) == NULL)
	{
		free(d);
		tk_rpc_destroy(rpc);
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "out of memory");
		return NULL;
	}
	d->rpc = rpc;
	pthread_mutex_init(&d->mutex, NULL);
	tk_cond_init(&d->changed);
	tk_count_threads(1);
	failed = tk_start_thread(&d->thread, THREAD_STACK, describe, d);
	if (failed)
	{
		tk_count_threads(-1);
		free_describer(d);
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, 0, "could not start a thread: %s", strerror(failed));
		return NULL;
	}
	return d;
}

void
tk_describer_ask(TkDescriber *d)
{
	pthread_mutex_lock(&d->mutex);
	d->asked++;
	if (has_passed(&d->silent_until))
		pthread_cond_broadcast(&d->changed);
	else
		d->answered = d->asked; /* by the failure before */
	pthread_mutex_unlock(&d->mutex);
}

bool
tk_describer_answer(TkDescriber *d, int timeout_ms, TkTransactionDescription *description, TkKafkaError *error)
{
	struct timespec until = tk_after_ms(timeout_ms);
	bool		found;

	pthread_mutex_lock(&d->mutex);
	while (d->answered != d->asked)
		if (pthread_cond_timedwait(&d->changed, &d->mutex, &until) != 0)
			break;
	if (d->answered != d->asked)
	{
		d->silent_until = tk_after_ms(SILENCE_MS);
		tk_fail(error, TK_KAFKA_RETRY, TK_CAUSE_TIMED_OUT, 0, "no answer after %d ms", timeout_ms);
		found = false;
	}
	else
	{
		found = d->status == TK_KAFKA_OK;
		if (found)
			*description = d->description;
		else
			*error = d->error;
	}
	pthread_mutex_unlock(&d->mutex);
	return found;
}

bool
tk_describer_destroy(TkDescriber *d, int timeout_ms)
{
	struct timespec until = tk_after_ms(timeout_ms);
	bool		gone;

	if (d == NULL)
		return true;
	pthread_mutex_lock(&d->mutex);
	d->quit = true;
	pthread_cond_broadcast(&d->changed);
	while (!d->gone)
		if (pthread_cond_timedwait(&d->changed, &d->mutex, &until) != 0)
			break;
	gone = d->gone;
	pthread_mutex_unlock(&d->mutex);
	if (!gone)
	{
		pthread_detach(d->thread);
		return false;
	}
	pthread_join(d->thread, NULL);
	free_describer(d);
	return true;
}
