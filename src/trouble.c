/*
 * trouble.c
 *	  The pipeline worker's errors and waits.
 *
 * Every fault ends the worker by an ERROR and it starts again from the top;
 * what differs is whether anybody has to do something first.  A fault that no
 * retry heals becomes a sticky state; the rest is retried with backoff.
 *
 * All waiting for Kafka goes through tk_kafka_again: a call waits for at most
 * a second, then interrupts are served here, outside librdkafka's frames.
 * When Kafka doesn't answer for a while the state says so, though the process
 * goes on waiting: what is open in Kafka may live through a short outage.
 */
#include "postgres.h"

#include <stdarg.h>

#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "pipeline.h"

/*
 * How long a stop waits for a checkpoint under way; longer for one that is
 * prepared: left alone, its Kafka transaction would hold consumers up until
 * the next start.
 */
#define STOP_PATIENCE_US INT64CONST(4000000)
#define PREPARED_PATIENCE_US INT64CONST(30000000)

/* Without an answer or an acknowledgement for so long, the state is "retrying". */
#define OUTAGE_AFTER_US INT64CONST(5000000)

/* A wait is looked at each second or two; if it was not for so long, it had come to its end. */
#define SAME_WAIT_US INT64CONST(4000000)

static TkPipelineStateKind sticky_state = TK_STATE_STOPPED;
static char sticky_reason[TK_REASON_MAX];
static char sticky_hint[TK_HINT_MAX];

bool		tk_stopping = false;
static int64 stop_wanted_since = 0;

/* The wait under way: since when there is no sign of Kafka */
static int64 silent_since = 0;	/* 0: no wait */
static int64 silent_noted = 0;	/* when it was looked at last */
static int64 silent_records = 0;	/* that had been acknowledged then */
static bool outage = false;		/* the state says so */
static int64 outage_us = 0;		/* when it was noted last */
static TkPipelineStateKind state_before_outage;

static bool
interrupt_pending(void)
{
	return InterruptPending || tk_stop_wanted();
}

const TkKafkaWait tk_kafka_slice = {1000, interrupt_pending};

int64
tk_now_us(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

bool
tk_stop_wanted(void)
{
	TkPipelineEntry *entry = tk_pipeline.entry;

	/* Single words, written under a lock by others: a stale value is read again soon. */
	return !entry->wanted || entry->altered || entry->generation > tk_pipeline.definition->generation;
}

void
tk_stop_sticky(TkPipelineStateKind state, const char *hint, const char *reason,...)
{
	va_list		args;

	sticky_state = state;
	va_start(args, reason);
	vsnprintf(sticky_reason, sizeof(sticky_reason), reason, args);
	va_end(args);
	strlcpy(sticky_hint, hint ? hint : "", sizeof(sticky_hint));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pipeline \"%s\" stops as %s: %s", NameStr(tk_pipeline.entry->name), tk_state_name(state),
					sticky_reason),
			 sticky_hint[0] != '\0' ? errhint("%s", sticky_hint) : 0));
	pg_unreachable();
}

TkPipelineStateKind
tk_sticky_asked(const char **reason, const char **hint)
{
	*reason = sticky_reason;
	*hint = sticky_hint;
	return sticky_state;
}

/* The oldest open Kafka transaction, if it is older than transaction_timeout: its checkpoint, or NULL. */
static const TkCheckpoint *
outlived(void)
{
	TkPipeline *p = &tk_pipeline;
	bool		closing = p->nclosing > 0;
	int64		opened = closing ? p->closing[0].opened_us : p->opened_us;

	if ((!closing && !p->transaction_open) || opened < outage_us ||
		tk_now_us() - opened < (int64) p->options->transaction_timeout * 1000)
		return NULL;
	return closing ? &p->closing[0].checkpoint : &p->checkpoint;
}

/*
 * Kafka has refused our epoch: did the broker end a transaction that took too
 * long?  Once is answered by doing it again; but what took too long twice, with
 * a Kafka that answered all the time, would be done again without end.
 */
static void
check_outlived(const TkKafkaError *error)
{
	TkPipelineEntry *entry = tk_pipeline.entry;
	const TkCheckpoint *checkpoint = error->status == TK_KAFKA_FENCED ? outlived() : NULL;
	int64		before;

	if (checkpoint == NULL)
		return;
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	before = entry->outlived_checkpoint;
	entry->outlived_checkpoint = before == checkpoint->id ? 0 : checkpoint->id;
	LWLockRelease(tk_shared->lock);
	if (before == checkpoint->id)
		tk_stop_sticky(TK_STATE_FAILED,
					   "Raise transaction_timeout (at most the broker's transaction.max.timeout.ms) or make the transaction smaller, then CALL kafka.resume().",
					   "checkpoint " INT64_FORMAT " (" INT64_FORMAT " transactions, " INT64_FORMAT " records, " INT64_FORMAT
					   " bytes so far) was not done within transaction_timeout (%d ms), for the second time: %s",
					   checkpoint->id, checkpoint->transactions, checkpoint->records, checkpoint->bytes,
					   tk_pipeline.options->transaction_timeout, error->message);
}

void
tk_kafka_failed(const char *doing, const TkKafkaError *error)
{
	static const char *const retry_hint = "CALL kafka.resume() tries again.";

	tk_forward_logs();
	switch (error->cause)
	{
		case TK_CAUSE_AUTHORIZATION:
			tk_stop_sticky(TK_STATE_FAILED, "Grant it in Kafka's ACLs, then CALL kafka.resume().",
						   "not authorized while %s: %s", doing, error->message);
		case TK_CAUSE_NO_TOPIC:
			tk_stop_sticky(TK_STATE_FAILED, "Create it, then CALL kafka.resume().",
						   "topic or partition missing while %s: %s", doing, error->message);
		case TK_CAUSE_OVERSIZE:
			tk_stop_sticky(TK_STATE_FAILED,
						   "Raise the limit that is named: an option of the server, or the topic's max.message.bytes. Then CALL kafka.resume().",
						   "record too large while %s: %s", doing, error->message);
		case TK_CAUSE_CONFIGURATION:
			tk_stop_sticky(TK_STATE_FAILED, retry_hint, "refused configuration while %s: %s", doing, error->message);
		case TK_CAUSE_OUT_OF_MEMORY:
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("pipeline \"%s\": out of memory while %s", NameStr(tk_pipeline.entry->name), doing)));
		default:
			break;
	}

	check_outlived(error);

	/*
	 * An epoch error may be a rival instance or the broker's transaction timeout: the next start tells them apart
	 * by the instance number.
	 */
	ereport(ERROR,
			(errcode(error->cause == TK_CAUSE_UNREACHABLE ? ERRCODE_CONNECTION_FAILURE : ERRCODE_FDW_ERROR),
			 errmsg("pipeline \"%s\": Kafka failed while %s: %s", NameStr(tk_pipeline.entry->name), doing,
					error->message)));
	pg_unreachable();
}

/* Records that are with Kafka's client.  One may be in use by a thread of its own: a stale number is read again soon. */
void
tk_note_queue(void)
{
	long		records = 0;

	for (int i = 0; i < tk_pipeline.pool_size; i++)
		if (tk_pipeline.producers[i] != NULL)
			records += tk_producer_unacknowledged(tk_pipeline.producers[i]);
	tk_stats_queued(records);
}

/* Kafka has answered. */
static void
end_silence(void)
{
	silent_since = 0;
	if (!outage)
		return;
	outage = false;
	outage_us = tk_now_us();
	ereport(LOG,
			(errmsg("pipeline \"%s\" has an answer from Kafka again", NameStr(tk_pipeline.entry->name))));
	tk_set_state(tk_pipeline.entry, state_before_outage, NULL, NULL);
}

/* Records that Kafka has acknowledged; a stale number here too */
static int64
acknowledged(void)
{
	int64		records = 0;

	for (int i = 0; i < tk_pipeline.pool_size; i++)
		if (tk_pipeline.producers[i] != NULL)
			records += tk_producer_acknowledged(tk_pipeline.producers[i]);
	return records;
}

/*
 * Kafka has not answered yet.  Acknowledgements are signs of life too: a long
 * flush to a slow broker is no outage.  But fewer records under way are none:
 * librdkafka gives up what it could not send.
 */
static void
note_silence(const TkKafkaError *error, const char *doing, int64 now)
{
	int64		records = acknowledged();
	bool		same_wait = silent_since != 0 && (outage || now - silent_noted < SAME_WAIT_US);

	silent_noted = now;
	tk_note_queue();
	if (!same_wait || records > silent_records)
	{
		end_silence();
		silent_since = now;
		silent_records = records;
		return;
	}
	silent_records = records;
	if (outage || now - silent_since < OUTAGE_AFTER_US || error->cause == TK_CAUSE_INTERRUPTED)
		return;
	outage = true;
	outage_us = now;
	state_before_outage = tk_pipeline.entry->state;
	ereport(WARNING,
			(errmsg("pipeline \"%s\" has no answer from Kafka while %s", NameStr(tk_pipeline.entry->name), doing),
			 errdetail("%s", error->message),
			 errhint("It goes on trying; the server keeps all WAL from its position on.")));
	tk_set_state(tk_pipeline.entry, TK_STATE_RETRYING,
				 psprintf("no answer from Kafka while %s: %s", doing, error->message),
				 "It goes on by itself once Kafka answers.");
}

bool
tk_kafka_again(TkKafkaStatus status, const TkKafkaError *error, int64 deadline_us, const char *doing)
{
	int64		now;

	tk_forward_logs();
	if (status == TK_KAFKA_OK)
	{
		tk_wait_end();
		end_silence();
		return false;
	}
	CHECK_FOR_INTERRUPTS();
	if (status != TK_KAFKA_RETRY || error->cause == TK_CAUSE_AUTHENTICATION)
		tk_kafka_failed(doing, error);

	now = tk_now_us();
	note_silence(error, doing, now);
	if (tk_stop_wanted())
	{
		const TkClosing *oldest = &tk_pipeline.closing[0];
		bool		prepared = tk_pipeline.nclosing > 0 && oldest->checkpoint.state == TK_CHECKPOINT_PREPARED;

		if (stop_wanted_since == 0)
			stop_wanted_since = now;
		if (now - stop_wanted_since > (prepared ? PREPARED_PATIENCE_US : STOP_PATIENCE_US) ||
			(outage ? state_before_outage : tk_pipeline.entry->state) != TK_STATE_RUNNING)
		{
			if (prepared)
				ereport(WARNING,
						(errmsg("pipeline \"%s\" stops with checkpoint " INT64_FORMAT " unresolved",
								NameStr(tk_pipeline.entry->name), oldest->checkpoint.id),
						 errdetail("Kafka has not answered the commit. Its transaction may hold up read_committed consumers until the pipeline runs again, or for transaction_timeout.")));
			tk_stopping = true;
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("pipeline \"%s\" was told to stop while %s", NameStr(tk_pipeline.entry->name), doing)));
		}

		/* interrupted() is true all the time now: don't spin. */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
	if (now >= deadline_us)
		tk_kafka_failed(doing, error);
	(void) tk_wait_begin(TK_WAIT_REQUEST);	/* the caller calls again at once */
	return true;
}

void
tk_forward_logs(void)
{
	char		line[1024];
	int			level;

	/* syslog's levels: 4 is a warning; below that librdkafka repeats what its calls return. */
	while (tk_kafka_next_log(&level, line, sizeof(line)))
		ereport(level <= 6 ? LOG : DEBUG1,
				(errmsg_internal("librdkafka, pipeline \"%s\": %s", NameStr(tk_pipeline.entry->name), line)));
}
