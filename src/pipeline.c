/*
 * pipeline.c
 *	  A pipeline worker's life: recovery, then checkpoints, for ever.
 *
 * This is the only file that knows the order of things; src/README walks
 * through the crash between every two of them.  In short:
 *
 *	A checkpoint is one Kafka transaction: whole PostgreSQL transactions and one
 *	progress record.  It is prepared (a durable row here) before Kafka commits
 *	it, and the slot follows only after Kafka has.  So Kafka never holds a
 *	checkpoint that this server doesn't know of, and the WAL of one that Kafka
 *	doesn't hold is never gone.
 *
 *	The way of a checkpoint is in closing.c; here is when it begins.
 *
 *	There is no other way to start than recovery, and no other reaction to an
 *	error than to start.  What Kafka holds is read from Kafka.
 */
#include "postgres.h"

#include "access/timeline.h"
#include "access/xlog.h"
#include "catalog/pg_publication.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "append.h"
#include "committable.h"
#include "failpoint.h"
#include "pg_compat.h"
#include "pipeline.h"
#include "produce.h"
#include "recovery.h"
#include "wal_source.h"

/* How long a start waits for Kafka before the launcher's backoff takes over. */
#define REACH_PATIENCE_US INT64CONST(5000000)

/* … for one step of recovery: fencing may wait for a transaction that is just being ended */
#define RECOVERY_PATIENCE_US INT64CONST(60000000)

/* … for the coordinator to say what has become of a prepared transaction, and to commit it; between two questions */
#define REDRIVE_PATIENCE_US INT64CONST(10000000)
#define DECIDING_POLL_MS 20

/* So much of transactions that have not ended says that a large one may come: it is not begun beside a flush. */
#define LARGE_HELD ((Size) 1024 * 1024)

/* What is asked to end while Kafka commits waits so long for that. */
#define DYING_PATIENCE_US INT64CONST(500000)
#define DYING_POLL_MS 50

/* An idle pipeline marks its last row so long after the commit. */
#define MARK_AFTER_US INT64CONST(1000000)

/* A worker without failure for so long has no failures to count any more. */
#define SOUND_AFTER_US INT64CONST(10000000)

/*
 * Sleeps: nothing to wait for but commits; markers that somebody waits for; WAL inserted but not flushed; flushed, but not by a standby; the longest
 * without listening to commits.
 */
#define IDLE_MS 1000
#define MARKERS_MS 1
#define UNFLUSHED_MS 10
#define STANDBY_MS 50
#define NAP_MS 100

TkPipeline	tk_pipeline;

static int64 running_since_us;

/* When the limit was read up to which the reader ran dry last. */
static TimestampTz dry_at;

/* The fork points of this server's timeline history. */
static struct TkFork *forks;
static int	nforks;

/* ----------------------------------------------------------------
 * Loading
 * ----------------------------------------------------------------
 */

/* "<prefix>.<pipeline>.<first 8 hex digits of the uuid>.progress" */
static char *
default_progress_topic(void)
{
	return psprintf("%s.%s.%.8s.progress", tk_pipeline.prefix, tk_pipeline.definition->name, tk_pipeline.state.uuid);
}

/* The publications must be there: what pgoutput doesn't find, it errors for or (18) leaves out. */
static void
check_publications(void)
{
	TkDefinition *d = tk_pipeline.definition;

	if (d->publication != NULL)
	{
		char	   *name = get_publication_name(d->publication_oid, true);

		if (name == NULL)
			tk_stop_sticky(TK_STATE_FAILED, "Drop the pipeline and create it anew.",
						   "publication \"%s\" was dropped", d->publication);
		d->publication = name;	/* it may have been renamed */
		return;
	}
	for (int i = 0; i < TK_OPERATIONS; i++)
	{
		char	   *name = tk_owned_publication(d->pipeline_id, i);

		if (!OidIsValid(get_publication_oid(name, true)))
			tk_stop_sticky(TK_STATE_FAILED, "Drop the pipeline and create it anew.",
						   "its publication \"%s\" was dropped", name);
	}
}

/* Reads everything that the catalog says.  False: there is nothing to run. */
bool
tk_pipeline_load(void)
{
	TkPipeline *p = &tk_pipeline;

	tk_transaction_begin();
	MemoryContextSwitchTo(p->context);
	p->definition = tk_definition_by_id(p->entry->pipeline_id);
	if (p->definition == NULL || p->definition->dropping || !p->definition->enabled)
	{
		tk_transaction_commit();
		return false;
	}
	tk_state_load(p->definition, &p->state);
	if (!p->state.exists || p->state.sticky_state != NULL)
	{
		tk_transaction_commit();
		return false;
	}
	p->options = tk_parse_pipeline_options(p->definition->raw_options,
										   psprintf("pipeline \"%s\"", p->definition->name));
	p->tables = tk_table_entries(p->definition);
	p->slot_name = tk_slot_name(MyDatabaseId, p->definition->pipeline_id);
	p->prefix = p->options->transactional_id_prefix;
	if (p->prefix == NULL)
		p->prefix = tk_default_prefix();
	p->progress_topic = p->state.progress_topic;
	if (p->progress_topic == NULL)
		p->progress_topic = p->options->progress_topic ? p->options->progress_topic : default_progress_topic();
	p->accepting = !XLogRecPtrIsInvalid(p->definition->accept_lsn) &&
		p->definition->accept_resumes == p->definition->resumes &&
		p->definition->accept_resumes > p->state.accepted_resumes;
	p->conf = tk_server_conf(p->definition);
	if (p->conf == NULL)
		tk_stop_sticky(TK_STATE_FAILED, "Drop the pipeline and create it anew.",
					   "server \"%s\" was dropped", p->definition->server_name);
	check_publications();
	if (p->state.progress_topic == NULL)
		tk_check_not_progress_topic(p->progress_topic, psprintf("pipeline \"%s\"", p->definition->name));
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	strlcpy(p->entry->progress_topic, p->progress_topic, sizeof(p->entry->progress_topic));
	LWLockRelease(tk_shared->lock);
	p->publications = tk_publication_list(p->definition);
	tk_produce_load_keys(p->context, p->entry);
	tk_committable_init();
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);

	p->policy.interval_us = (int64) p->options->checkpoint_interval * 1000;
	p->policy.max_records = p->options->checkpoint_max_records;
	p->policy.max_bytes = p->options->checkpoint_max_bytes;
	return true;
}

/* ----------------------------------------------------------------
 * Recovery (DESIGN §3)
 * ----------------------------------------------------------------
 */

/* Why the slot can't be gone on with, or NULL. *confirmed is its position, if it has one. */
static const char *
slot_problem(XLogRecPtr *confirmed)
{
	switch (tk_slot_state(tk_pipeline.slot_name, confirmed))
	{
		case TK_SLOT_MISSING:
			return "its replication slot was dropped";
		case TK_SLOT_FOREIGN:
			return "its replication slot is not one of this database with plugin pgoutput";
		case TK_SLOT_LOST:
			return "its replication slot was invalidated: the WAL that it needs may be gone (see max_slot_wal_keep_size)";
		case TK_SLOT_GOOD:
			break;
	}
	return NULL;
}

/* Lets sessions know whether what they write for the pipeline is captured. */
static void
publish_slot(bool ready, XLogRecPtr confirmed)
{
	TkPipelineEntry *entry = tk_pipeline.entry;

	pg_atomic_write_u64(&entry->confirmed_lsn, confirmed);
	LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
	entry->slot_ready = ready;
	LWLockRelease(tk_shared->lock);
	ConditionVariableBroadcast(&entry->changed);
}

/*
 * Step 0: the slot is the mutual exclusion of this database's workers.
 * Returns why it is lost, or NULL.  A crash after it was made and before that
 * is stored leaves a leftover, which the next start drops.
 */
static const char *
acquire_slot(void)
{
	TkPipeline *p = &tk_pipeline;
	XLogRecPtr	confirmed = InvalidXLogRecPtr;
	const char *problem = NULL;

	if (!p->state.slot_created || (p->accepting && slot_problem(&confirmed) != NULL))
	{
		tk_slot_drop(p->slot_name);
		confirmed = tk_slot_create(p->slot_name);
		TK_FAILPOINT(AFTER_SLOT_CREATE);
		tk_transaction_begin();
		if (!tk_state_slot_created(p->definition->pipeline_id, p->progress_topic))
			tk_slot_discard(p->slot_name);	/* the pipeline was dropped meanwhile */
		tk_transaction_commit();
		MemoryContextSwitchTo(p->context);
		p->state.slot_created = true;
	}
	else
	{
		problem = slot_problem(&confirmed);
		if (problem == NULL)
		{
			tk_slot_acquire(p->slot_name);
			confirmed = tk_slot_confirmed();
		}
		if (problem == NULL && !p->accepting && !XLogRecPtrIsInvalid(p->state.stop_lsn) &&
			confirmed > p->state.stop_lsn)
			problem = psprintf("its replication slot stands at %X/%X, beyond the %X/%X where the pipeline stopped: somebody has advanced it or made it anew",
							   LSN_FORMAT_ARGS(confirmed), LSN_FORMAT_ARGS(p->state.stop_lsn));
	}
	publish_slot(problem == NULL, confirmed);
	return problem;
}

/* The progress topic: one partition, compacted.  Made here at the first start. */
static void
check_progress_topic(void)
{
	TkPipeline *p = &tk_pipeline;
	int64		deadline = tk_now_us() + REACH_PATIENCE_US;
	int			partitions = 0;
	char		policy[64] = "";
	TkKafkaError error;

	/* The first call that needs Kafka. */
	while (tk_kafka_again(tk_topic_describe(p->producers[0], p->progress_topic, &tk_kafka_slice, &partitions, &error),
						  &error, deadline, "looking for the progress topic"))
		 /* again */ ;
	if (partitions == 0)
	{
		static const TkKafkaProperty configs[] = {
			{"cleanup.policy", "compact"},
			{"retention.ms", "-1"},
			{"retention.bytes", "-1"},
			{"segment.bytes", "1048576"},
			{"unclean.leader.election.enable", "false"}
		};
		TkTopicSpec spec = {1, p->options->topic_replication_factor, lengthof(configs), configs};

		/* Gone after it was used: judged in step 4, where absence means something. */
		if (p->state.started && !p->accepting)
			return;
		tk_ensure_topic(p->progress_topic, &spec);
		return;
	}
	if (partitions != 1)
		tk_stop_sticky(TK_STATE_FAILED, "Give the pipeline another progress_topic.",
					   "progress topic \"%s\" has %d partitions instead of 1", p->progress_topic, partitions);

	deadline = tk_now_us() + RECOVERY_PATIENCE_US;
	while (tk_kafka_again(tk_topic_config(p->producers[0], p->progress_topic, "cleanup.policy", &tk_kafka_slice,
										  policy, sizeof(policy), &error), &error, deadline,
						  "reading the progress topic's configuration"))
		 /* again */ ;
	if (strcmp(policy, "compact") != 0)
		tk_stop_sticky(TK_STATE_FAILED, "Set the topic's cleanup.policy to compact, then CALL kafka.resume().",
					   "progress topic \"%s\" has cleanup.policy \"%s\": Kafka would delete the pipeline's position",
					   p->progress_topic, policy);
}

/* Reads P. NULL: there is none. */
static const TkProgress *
read_progress(TkProgress *progress)
{
	TkPipeline *p = &tk_pipeline;
	int64		deadline = tk_now_us() + RECOVERY_PATIENCE_US;
	TkKafkaStatus status;
	TkKafkaError error;
	bool		found = false;

	if (p->reader == NULL)
	{
		p->reader = tk_progress_reader_create(p->conf, p->progress_topic, &error);
		if (p->reader == NULL)
			tk_kafka_failed("creating a consumer", &error);
	}
	for (;;)
	{
		status = tk_progress_read(p->reader, &tk_kafka_slice, progress, &found, &error);
		if (status != TK_KAFKA_OK && error.cause == TK_CAUSE_NO_TOPIC)
			return NULL;
		if (status == TK_KAFKA_FATAL && error.cause == TK_CAUSE_OTHER && p->accepting)
			return NULL;
		if (status == TK_KAFKA_FATAL && error.cause == TK_CAUSE_OTHER)
			tk_stop_sticky(TK_STATE_DIVERGED,
						   "Find out who wrote to the progress topic. CALL kafka.resume() checks again, CALL kafka.accept_position() goes on from where you say.",
						   "%s", error.message);
		if (!tk_kafka_again(status, &error, deadline, "reading the progress topic"))
			break;
	}
	return found ? progress : NULL;
}

static void
await_stable_progress(void)
{
	int64		deadline = tk_now_us() + RECOVERY_PATIENCE_US;
	TkKafkaStatus status;
	TkKafkaError error;

	for (;;)
	{
		status = tk_progress_wait_stable(tk_pipeline.reader, &tk_kafka_slice, &error);
		if (status != TK_KAFKA_OK && error.cause == TK_CAUSE_NO_TOPIC)
			return;
		if (!tk_kafka_again(status, &error, deadline, "waiting for the progress topic's open transactions"))
			return;
	}
}

/* This server's timeline and where it left the older ones. */
static void
load_timelines(void)
{
	List	   *history;
	ListCell   *lc;

	tk_pipeline.timeline = tk_current_timeline();
	history = readTimeLineHistory(tk_pipeline.timeline);
	forks = palloc0(sizeof(struct TkFork) * Max(list_length(history), 1));
	nforks = 0;
	foreach(lc, history)
	{
		TimeLineHistoryEntry *entry = (TimeLineHistoryEntry *) lfirst(lc);

		if (entry->tli == tk_pipeline.timeline)
			continue;
		forks[nforks].timeline = entry->tli;
		forks[nforks].end_lsn = entry->end;
		nforks++;
	}
}

static void
remember(TkRemembered *mine, TkCommittables *rows)
{
	TkPipeline *p = &tk_pipeline;
	XLogRecPtr	confirmed = InvalidXLogRecPtr;

	if (tk_slot_state(p->slot_name, &confirmed) != TK_SLOT_GOOD)
		confirmed = InvalidXLogRecPtr;
	tk_committables_load(p->definition->pipeline_id, confirmed, rows);

	memset(mine, 0, sizeof(TkRemembered));
	strlcpy(mine->uuid, p->state.uuid, sizeof(mine->uuid));
	mine->system_identifier = GetSystemIdentifier();
	mine->database = MyDatabaseId;
	mine->started = p->state.started;
	mine->instances[0] = p->state.instances[0];
	mine->instances[1] = p->state.instances[1];
	mine->newest = rows->newest;
	mine->committed = rows->committed;
	mine->timeline = p->timeline;
	mine->nforks = nforks;
	mine->forks = forks;
}

/* Applies the table; returns GO or ADOPT. */
static TkVerdict
judge(const TkProgress *progress, const TkRemembered *mine, bool settled)
{
	char		reason[TK_REASON_MAX];
	TkVerdict	verdict;

	if (tk_pipeline.accepting)
		return TK_VERDICT_GO;
	verdict = tk_judge(progress, mine, settled, reason, sizeof(reason));

	switch (verdict)
	{
		case TK_VERDICT_DIVERGED:
			tk_stop_sticky(TK_STATE_DIVERGED,
						   "Find out what Kafka holds. CALL kafka.resume() checks again, CALL kafka.accept_position() goes on from where you say.",
						   "%s", reason);
		case TK_VERDICT_FENCED:
			tk_stop_sticky(TK_STATE_FENCED,
						   "Stop the other instance, or drop this pipeline. CALL kafka.resume() checks again, CALL kafka.accept_position() takes the pipeline over.",
						   "%s", reason);
		case TK_VERDICT_GO:
		case TK_VERDICT_ADOPT:
			break;
	}
	return verdict;
}

/* Step 1: judge what the record says, before any transactional id is touched. Returns it; NULL: there is none. */
static const TkProgress *
judge_before_fencing(TkProgress *progress)
{
	TkRemembered mine;
	TkCommittables rows;
	const TkProgress *found = read_progress(progress);

	tk_transaction_begin();
	remember(&mine, &rows);
	tk_transaction_commit();
	MemoryContextSwitchTo(tk_pipeline.context);
	(void) judge(found, &mine, false);
	TK_FAILPOINT(AFTER_PROGRESS_READ);
	return found;
}

/*
 * Asks the coordinator what has become of the prepared row's transaction, until
 * that is decided, and what is to be done about it.
 */
static TkRedrive
judge_prepared(TkRpc *rpc, const TkPrepared *row, char *reason, size_t size)
{
	TkVote		vote = {row->transaction.described, row->transaction.producer_id, row->transaction.epoch,
	row->transaction.start_ms};
	int64		deadline = tk_now_us() + REDRIVE_PATIENCE_US;
	TkTransactionDescription found;
	TkKafkaError error;

	for (;;)
	{
		TkKafkaStatus status = tk_rpc_describe(rpc, row->transaction.transactional_id, &tk_kafka_slice, &found, &error);
		TkRedrive	todo = TK_REDRIVE_NOTHING;

		tk_pipeline.prepared_judged = status == TK_KAFKA_OK && vote.known && row->timeline == tk_pipeline.timeline;
		if (status == TK_KAFKA_OK)
			todo = tk_redrive(&vote, row->timeline, tk_pipeline.timeline, &found, reason, size);
		else
			snprintf(reason, size, "the coordinator could not be asked: %s", error.message);
		if (status == TK_KAFKA_OK ? todo != TK_REDRIVE_WAIT : status != TK_KAFKA_RETRY)
			return todo;
		if (tk_now_us() >= deadline)
		{
			if (status == TK_KAFKA_OK)
				snprintf(reason, size, "the transaction is being ended: %s", tk_transaction_state_name(found.state));
			return TK_REDRIVE_NOTHING;
		}
		if (status == TK_KAFKA_RETRY)
			(void) tk_kafka_again(status, &error, PG_INT64_MAX, "asking about a prepared transaction");
		else
		{
			CHECK_FOR_INTERRUPTS();
			tk_await_wakeup(DECIDING_POLL_MS);
		}
	}
}

/* Commits it. False: the outcome is not known, or it is refused. */
static bool
commit_prepared(TkRpc *rpc, const TkKafkaTransaction *transaction, TkKafkaError *error)
{
	int64		deadline = tk_now_us() + REDRIVE_PATIENCE_US;
	TkKafkaStatus status;

	for (;;)
	{
		status = tk_rpc_end(rpc, transaction->transactional_id, transaction->producer_id, (int16_t) transaction->epoch,
							true, &tk_kafka_slice, error);
		if (status != TK_KAFKA_RETRY || tk_now_us() >= deadline)
			return status == TK_KAFKA_OK;
		(void) tk_kafka_again(status, error, PG_INT64_MAX, "committing a prepared transaction");
	}
}

/*
 * Step 2: the prepared row's Kafka transaction, if it is still open, is
 * committed over another connection, before step 3 would abort it.  Only a
 * transaction with the same producer id, epoch and start is that one.  It gives
 * no verdict: step 4 reads from Kafka what has become of the checkpoint.  Where
 * this can't be done, the range is produced again: slower, and as right.  An
 * EndTxn that is still on its way can't meet a later transaction, because step 3
 * takes a new epoch.
 */
static void
redrive(const TkProgress *progress)
{
	TkPipeline *p = &tk_pipeline;
	TkPrepared	row;
	TkKafkaError error;
	TkRpc	   *rpc;
	char		reason[700] = "";
	bool		any;

	p->redriven = p->prepared_judged = false;
	p->redrive_reason = NULL;
	tk_transaction_begin();
	MemoryContextSwitchTo(p->context);
	any = tk_committable_prepared(p->definition->pipeline_id, &row);
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);
	if (!any || (progress != NULL && progress->checkpoint >= row.checkpoint_id))
		return;
	rpc = tk_rpc_create(p->conf, &error);
	if (rpc == NULL)
	{
		tk_no_redrive(&error);
		p->redrive_reason = pstrdup(error.message);
		return;
	}
	PG_TRY();
	{
		if (judge_prepared(rpc, &row, reason, sizeof(reason)) == TK_REDRIVE_COMMIT)
		{
			TK_FAILPOINT(BEFORE_REDRIVE);
			p->redriven = commit_prepared(rpc, &row.transaction, &error);
			if (!p->redriven)
				snprintf(reason, sizeof(reason), "Kafka did not commit the transaction: %s", error.message);
			TK_FAILPOINT(AFTER_REDRIVE);
		}
		if (!p->redriven)
			p->redrive_reason = pstrdup(reason);
	}
	PG_FINALLY();
	{
		tk_rpc_destroy(rpc);
	}
	PG_END_TRY();
	ereport(LOG,
			(errmsg("pipeline \"%s\" found checkpoint " INT64_FORMAT " prepared; its Kafka transaction %s%s",
					NameStr(p->entry->name), row.checkpoint_id,
					p->redriven ? "is committed now" : "is not committed by this start: ",
					p->redriven ? "" : p->redrive_reason)));
}

/*
 * Step 3: take over every transactional id that may have a transaction open:
 * the pool's, and those that rows, the state row or the progress record name.
 * A crash here has only fenced; the next start does it again.
 */
static void
fence_transactional_ids(const TkProgress *found)
{
	TkPipeline *p = &tk_pipeline;
	List	   *ids;
	ListCell   *lc;

	tk_transaction_begin();
	MemoryContextSwitchTo(p->context);
	ids = tk_committable_transactional_ids(p->definition->pipeline_id);
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);
	if (p->state.prefix != NULL)
		for (int i = 0; i < p->state.pool_size; i++)
			ids = lappend(ids, tk_transactional_id(p->state.prefix, i));
	if (found != NULL)
		for (int i = 0; i < found->pool_size; i++)
			ids = lappend(ids, tk_transactional_id(found->prefix, i));

	for (int i = 0; i < p->pool_size; i++)
		tk_pool_init(p->producers[i]);
	foreach(lc, ids)
	{
		const char *id = (const char *) lfirst(lc);
		bool		done = false;
		TkProducer *other;
		TkKafkaError error;

		for (int i = 0; i < p->pool_size && !done; i++)
			done = strcmp(id, tk_producer_transactional_id(p->producers[i])) == 0;
		for (ListCell *before = list_head(ids); before != lc && !done; before = lnext(ids, before))
			done = strcmp(id, (const char *) lfirst(before)) == 0;
		if (done)
			continue;
		other = tk_producer_create(p->conf, id, p->options->transaction_timeout, &error);
		if (other == NULL)
			tk_kafka_failed("creating a producer", &error);
		tk_pool_init(other);
		(void) tk_producer_destroy(other, false, TK_EXIT_PATIENCE_MS);
	}
	TK_FAILPOINT(AFTER_INIT_TRANSACTIONS);
}

static uint64
new_instance(void)
{
	uint64		instance;

	do
	{
		if (!pg_strong_random(&instance, sizeof(instance)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random instance number")));
		instance &= PG_INT64_MAX;	/* it is stored as a bigint */
	} while (instance == 0);
	return instance;
}

/*
 * Step 4: nobody but this process can write now, so what the progress topic
 * holds is final.  The verdict on the prepared row, what a promoted server
 * adopts, and the two instances that may stand in Kafka from now on are one
 * transaction; a crash after it finds the older of the two.
 */
static void
decide(void)
{
	TkPipeline *p = &tk_pipeline;
	TkProgress	progress;
	const TkProgress *found;
	TkRemembered mine;
	TkCommittables rows;
	uint64		instances[2];
	int64		held;
	int64		prepared;
	bool		sent_again;
	XLogRecPtr	held_end;

	await_stable_progress();
	found = read_progress(&progress);
	TK_FAILPOINT(BEFORE_DECIDE);

	p->instance = new_instance();
	instances[0] = found != NULL ? found->instance : 0;
	instances[1] = p->instance;

	tk_transaction_begin();
	remember(&mine, &rows);
	if (judge(found, &mine, true) == TK_VERDICT_ADOPT)
		tk_committable_adopt(p->definition->pipeline_id, p->options->retained_checkpoints,
							 found->checkpoint, found->end_lsn, p->timeline);
	prepared = mine.newest > mine.committed ? mine.newest : 0;
	held = found != NULL ? found->checkpoint : 0;
	held_end = found != NULL ? found->end_lsn : tk_slot_confirmed();
	tk_committable_settle(p->definition->pipeline_id, held, tk_slot_confirmed(), p->redriven, p->accepting,
						  p->accepting ? "kafka.accept_position() went on without it" : p->redrive_reason);
	sent_again = prepared > held;
	if (p->accepting)
	{
		/* Above all ids that were ever in use, so that nothing older is taken for newer. */
		held = Max(held, mine.newest) + 1;
		held_end = p->definition->accept_lsn;
		tk_committable_adopt(p->definition->pipeline_id, p->options->retained_checkpoints, held, held_end, p->timeline);
	}
	tk_committable_rearrange(p->definition->pipeline_id, p->options->retained_checkpoints);
	remember(&mine, &rows);
	tk_state_instances(p->definition->pipeline_id, instances, p->prefix, p->pool_size);
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);

	memset(&p->checkpoint, 0, sizeof(p->checkpoint));
	p->checkpoint.id = held + 1;
	p->checkpoint.start_lsn = held_end;
	p->checkpoint.end_lsn = held_end;
	p->attempt = rows.next_attempt;
	pg_atomic_write_u64(&p->entry->checkpoint_id, (uint64) held);
	if (prepared != 0)
		tk_stats_resolved(prepared, sent_again ? TK_OUTCOME_REPLAYED :
						  p->redriven ? TK_OUTCOME_REDRIVEN : TK_OUTCOME_ALREADY_COMMITTED);
	if (sent_again && p->prepared_judged)
		tk_stats_alarm();
	TK_FAILPOINT(AFTER_DECIDE);
}

/*
 * Step 5: say in Kafka that this instance runs.  A crash before "started" is
 * stored is harmless: the record stands, and absence isn't held against it.
 */
static void
write_start_record(void)
{
	TkPipeline *p = &tk_pipeline;

	tk_commit_start_record();
	tk_transaction_begin();
	tk_state_started(p->definition->pipeline_id,
					 p->accepting ? p->definition->accept_resumes : p->state.accepted_resumes);
	tk_forget_dropped_tables(p->definition->pipeline_id,
							 Max((XLogRecPtr) p->checkpoint.end_lsn, tk_slot_confirmed()));
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);
	TK_FAILPOINT(AFTER_STARTED);
}

void
tk_pipeline_recover(void)
{
	TkPipeline *p = &tk_pipeline;
	TkProgress	progress;
	const TkProgress *found;
	const char *lost;

	TK_FAILPOINT(RECOVERY_START);
	tk_closing_init();
	load_timelines();
	lost = acquire_slot();		/* 0 */
	tk_pool_create();
	check_progress_topic();
	found = judge_before_fencing(&progress);	/* 1 */
	redrive(found);				/* 2 */
	if (lost != NULL)
		tk_stop_sticky(TK_STATE_SLOT_LOST,
					   "Transactions may be missing in Kafka. CALL kafka.accept_position() goes on without them.",
					   "%s", lost);
	fence_transactional_ids(found); /* 3 */
	decide();					/* 4 */
	tk_stream_init();
	tk_stream_ensure_topics();
	write_start_record();		/* 5 */
	(void) tk_progress_reader_destroy(p->reader, TK_EXIT_PATIENCE_MS);
	p->reader = NULL;
	tk_wal_open(p->context, Max((XLogRecPtr) p->checkpoint.end_lsn, tk_slot_confirmed()), p->publications,
				tk_stream_message);
	MemoryContextSwitchTo(p->context);
	tk_stats_restored(p->checkpoint.id - 1, p->checkpoint.end_lsn);
}

/* ----------------------------------------------------------------
 * The stream
 * ----------------------------------------------------------------
 */

/* The last row says "committed", once the pipeline is idle: not worth a write of its own before. */
static void
mark_committed(void)
{
	TkPipeline *p = &tk_pipeline;

	TK_FAILPOINT(BEFORE_MARK);
	tk_write_begin();
	tk_committable_mark(p->definition->pipeline_id, p->options->retained_checkpoints, p->checkpoint.id - 1,
						p->committed_at);
	tk_write_commit();
	MemoryContextSwitchTo(p->context);
	p->committed_at = 0;
	TK_FAILPOINT(AFTER_MARK);
}

/* All that may be read has been read, and nothing of it is left to send. */
static void
settle_idle(void)
{
	TkPipeline *p = &tk_pipeline;

	if (p->checkpoint.state != TK_CHECKPOINT_NONE || p->nclosing > 0)
		return;
	tk_slot_confirm(tk_wal_position());
	pg_atomic_write_u64(&p->entry->confirmed_lsn, tk_slot_confirmed());
	if (p->dry_limit > pg_atomic_read_u64(&p->entry->covered_lsn))
	{
		pg_atomic_write_u64(&p->entry->covered_lsn, p->dry_limit);
		ConditionVariableBroadcast(&p->entry->changed);
	}
	tk_stats_settled(dry_at);
	if (p->committed_at != 0 && tk_now_us() - p->last_triggered_us >= MARK_AFTER_US)
		mark_committed();
}

/* Does somebody wait in kafka.checkpoint() for what has been read up to here? */
static bool
checkpoint_wanted(XLogRecPtr position)
{
	XLogRecPtr	wanted = pg_atomic_read_u64(&tk_pipeline.entry->wanted_lsn);

	return wanted > pg_atomic_read_u64(&tk_pipeline.entry->covered_lsn) && position >= wanted;
}

/* Close the open checkpoint now? */
static bool
checkpoint_due(bool dry, bool wanted)
{
	TkPipeline *p = &tk_pipeline;

	return tk_checkpoint_due(&p->checkpoint, &p->policy, p->last_triggered_us, tk_now_us(), dry, wanted,
							 p->nclosing > p->pool_size - 2);
}

/*
 * Decodes what may be read, up to "limit", and takes the checkpoints that come
 * due on the way.  Returns when the reader has run dry, or something else wants
 * attention (false).
 */
static bool
read_until_dry(XLogRecPtr limit)
{
	TkPipeline *p = &tk_pipeline;

	for (;;)
	{
		/* Before anything is read: what commits after a changed definition goes by the new one. */
		if (InterruptPending || ConfigReloadPending || tk_stop_wanted())
			return false;

		/* While a transaction is decoded nothing can be prepared, so none that may take long is begun before. */
		if (p->nclosing > 0)
		{
			if (tk_wal_held() > LARGE_HELD)
				tk_advance_closing(1, true);
			else
				tk_step_closing();
		}
		if (!tk_wal_next(limit))
			break;
		if (p->boundary)
		{
			p->boundary = false;
			if (checkpoint_due(false, checkpoint_wanted(tk_wal_position())))
				tk_trigger_checkpoint(tk_wal_position(), false);
		}
	}
	p->boundary = false;
	p->dry_limit = limit;
	return true;
}

/* How long the worker may sleep, in ms, if no commit wakes it. */
static long
sleep_ms(XLogRecPtr limit)
{
	TkPipeline *p = &tk_pipeline;
	long		timeout = IDLE_MS;

	tk_sleeps_for = TK_WAIT_COMMITS;

	/* An asynchronous commit is flushed soon, and a standby flushes what is flushed here; nobody tells. */
	if (GetXLogInsertRecPtr() > tk_flush_position(NULL))
	{
		timeout = UNFLUSHED_MS;
		tk_sleeps_for = TK_WAIT_WAL_FLUSH;
	}
	else if (tk_flush_position(NULL) > limit)
	{
		timeout = STANDBY_MS;
		tk_sleeps_for = TK_WAIT_STANDBY;
	}

	/* With as many checkpoints on their way as may be, the next one waits for an end. */
	if (p->nclosing <= p->pool_size - 2)
	{
		int64		delay = tk_checkpoint_delay(&p->checkpoint, &p->policy, p->last_triggered_us, tk_now_us());

		if (delay >= 0)
			timeout = Min(timeout, (long) ((delay + 999) / 1000));
	}
	return timeout;
}

static void
sleep_until_commit(XLogRecPtr limit)
{
	TkPipeline *p = &tk_pipeline;
	int64		nap = p->last_triggered_us == 0 ? 0 :
	(p->last_triggered_us + p->policy.interval_us - tk_now_us()) / 1000;

	tk_begin_ahead();

	/*
	 * What commits now is sent when the interval is over, so it may as well be read then: all of it at once costs
	 * a fraction of the CPU.
	 */
	if (nap > 0)
	{
		tk_sleeps_for = TK_WAIT_INTERVAL;
		tk_await_wakeup(Min(nap, NAP_MS));
		return;
	}

	/* Announce first, then look again: a commit in between is seen by one or the other. */
	tk_set_waiting(p->entry, true);
	if (tk_wal_read_limit() <= limit)
	{
		long		timeout = sleep_ms(limit);

		if (timeout > 0)
			tk_await_wakeup(timeout);
	}
	tk_set_waiting(p->entry, false);
}

/* Checkpoints on their way get a moment to end. */
static void
finish_before_death(void)
{
	int64		until = tk_now_us() + DYING_PATIENCE_US;

	while (tk_pipeline.nclosing > 0 && tk_now_us() < until)
	{
		tk_advance_closing(tk_pipeline.nclosing, false);
		if (tk_pipeline.nclosing > 0)
			tk_await_wakeup(DYING_POLL_MS);
	}
	if (tk_pipeline.nclosing > 0)
		CHECK_FOR_INTERRUPTS();
}

/* An orderly end remembers the slot's position, so that a slot made anew by somebody is noticed. */
static void
stop_orderly(void)
{
	TkPipeline *p = &tk_pipeline;
	int64		until = tk_now_us() + DYING_PATIENCE_US;

	/* The request has been heard; what follows must not be interrupted by it. */
	ProcDiePending = false;
	InterruptPending = false;
	SetConfigOption("lock_timeout", "1s", PGC_SUSET, PGC_S_OVERRIDE);

	while (tk_publish_visible() && tk_now_us() < until)
		tk_await_wakeup(MARKERS_MS);
	TK_FAILPOINT(ORDERLY_STOP);
	tk_transaction_begin();
	if (p->committed_at != 0)
		tk_committable_mark(p->definition->pipeline_id, p->options->retained_checkpoints, p->checkpoint.id - 1,
							p->committed_at);
	tk_state_stop(p->definition->pipeline_id, tk_slot_confirmed());
	tk_transaction_commit();
	MemoryContextSwitchTo(p->context);
}

void
tk_pipeline_run(void)
{
	TkPipeline *p = &tk_pipeline;

	tk_set_state(p->entry, TK_STATE_RUNNING, NULL, NULL);
	running_since_us = tk_now_us();
	for (;;)
	{
		TimestampTz limit_at = GetCurrentTimestamp();	/* before it is read: what had committed is below it */
		XLogRecPtr	limit = tk_wal_read_limit();
		bool		dry = read_until_dry(limit);
		bool		stop = tk_stop_wanted();
		bool		asking;

		if (dry)
			dry_at = limit_at;
		pg_atomic_write_u64(&p->entry->read_lsn, tk_wal_position());
		tk_advance_closing(stop ? 0 : p->nclosing, false);
		if (dry || stop)
		{
			if (checkpoint_due(true, stop || checkpoint_wanted(limit)))
				tk_trigger_checkpoint(dry ? Max(limit, tk_wal_position()) : tk_wal_position(), true);
			else
				tk_append_all();
			if (stop)
				tk_advance_closing(0, false);
			settle_idle();
		}
		tk_produce_settle_keys(p->entry);
		asking = tk_publish_visible();
		if (ProcDiePending)
			finish_before_death();
		if (stop || ProcDiePending)
		{
			stop_orderly();
			return;
		}
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		for (int i = 0; i < p->pool_size; i++)
			if (!tk_is_closing(i))
				tk_producer_poll(p->producers[i], 0);
		tk_note_queue();
		tk_forward_logs();
		if (p->entry->failures != 0 && tk_now_us() - running_since_us > SOUND_AFTER_US)
		{
			LWLockAcquire(tk_shared->lock, LW_EXCLUSIVE);
			p->entry->failures = 0;
			LWLockRelease(tk_shared->lock);
		}
		if (dry)
		{
			(void) pgstat_report_stat(false);	/* autovacuum goes by it */
			if (asking)
			{
				tk_sleeps_for = TK_WAIT_MARKERS;
				tk_await_wakeup(MARKERS_MS);
			}
			else
				sleep_until_commit(limit);
		}
	}
}
