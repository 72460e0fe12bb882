/*
 * statviews.c
 *	  What the views kafka.stat_* and kafka.pipelines are made of: rows of
 *	  shared memory, and resetting them.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "checks.h"
#include "functions.h"
#include "pg_compat.h"
#include "registry.h"
#include "stats.h"

PG_FUNCTION_INFO_V1(tk_live);
PG_FUNCTION_INFO_V1(tk_live_checkpoints);
PG_FUNCTION_INFO_V1(tk_live_progress);
PG_FUNCTION_INFO_V1(tk_stat_reset);

/* A row that is being made */
#define MAX_COLUMNS 40

typedef struct Row
{
	int			n;
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
} Row;

static void
put(Row *row, Datum value, bool isnull)
{
	Assert(row->n < MAX_COLUMNS);
	row->values[row->n] = value;
	row->nulls[row->n++] = isnull;
}

static void
put_bigint(Row *row, int64 value)
{
	put(row, Int64GetDatum(value), false);
}

static void
put_int(Row *row, int32 value)
{
	put(row, Int32GetDatum(value), false);
}

static void
put_lsn(Row *row, XLogRecPtr value)
{
	put(row, LSNGetDatum(value), false);
}

static void
put_double(Row *row, double value)
{
	put(row, Float8GetDatum(value), false);
}

/* 0 is null */
static void
put_time(Row *row, TimestampTz value)
{
	put(row, TimestampTzGetDatum(value), value == 0);
}

static void
put_text(Row *row, const char *value)
{
	put(row, value != NULL ? CStringGetTextDatum(value) : (Datum) 0, value == NULL);
}

static void
end_row(Row *row, ReturnSetInfo *set)
{
	Assert(row->n == set->setDesc->natts);
	tuplestore_putvalues(set->setResult, set->setDesc, row->values, row->nulls);
	row->n = 0;
}

/* Copies an entry and its statistics; false: it is none that the caller may see. */
static bool
read_entry(int index, TkPipelineEntry *entry, TkStats *stats)
{
	LWLockAcquire(tk_shared->lock, LW_SHARED);
	memcpy(entry, &tk_shared->entries[index], sizeof(TkPipelineEntry));
	if (entry->in_use && !entry->gone && entry->database == MyDatabaseId)
		tk_stats_read(index, stats);
	else
		entry->in_use = false;
	LWLockRelease(tk_shared->lock);
	return entry->in_use && tk_may_see(entry->owner);
}

/* Rows of all pipelines of this database that the caller may see. */
static Datum
return_rows(FunctionCallInfo fcinfo, void (*add_rows) (const TkPipelineEntry *, const TkStats *, ReturnSetInfo *))
{
	TkPipelineEntry *entry;
	TkStats    *stats;

	tk_begin_set(fcinfo);
	if (tk_shared == NULL)
		return (Datum) 0;
	entry = palloc(sizeof(TkPipelineEntry));
	stats = palloc(sizeof(TkStats));
	for (int i = 0; i < tk_shared->nentries; i++)
		if (read_entry(i, entry, stats))
			add_rows(entry, stats, (ReturnSetInfo *) fcinfo->resultinfo);
	pfree(stats);
	pfree(entry);
	return (Datum) 0;
}

static void
add_live(const TkPipelineEntry *entry, const TkStats *stats, ReturnSetInfo *set)
{
	TkPipelineEntry *e = unconstify(TkPipelineEntry *, entry);	/* for the atomics */
	TkStats    *s = unconstify(TkStats *, stats);
	Row			row = {0};
	double		transactions;
	double		records;
	double		bytes;

	put_int(&row, e->pipeline_id);
	put(&row, Int32GetDatum((int32) e->pid), e->pid == 0);
	put_text(&row, tk_state_name(e->state));
	put_text(&row, e->reason);
	put_text(&row, e->hint);
	put_time(&row, e->since);
	put_int(&row, e->failures);
	put_lsn(&row, pg_atomic_read_u64(&e->read_lsn));
	put_lsn(&row, pg_atomic_read_u64(&e->covered_lsn));
	put_lsn(&row, pg_atomic_read_u64(&e->confirmed_lsn));
	put_bigint(&row, (int64) pg_atomic_read_u64(&e->checkpoint_id));
	put_bigint(&row, s->counted.completed);
	put_bigint(&row, s->counted.transactions);
	put_bigint(&row, s->counted.records);
	put_bigint(&row, s->counted.bytes);
	put_bigint(&row, (int64) pg_atomic_read_u64(&e->rejected));
	put_bigint(&row, s->counted.dead_letters);
	put_time(&row, s->last_commit_at);
	put_time(&row, s->last_error_at);
	put_text(&row, s->last_error_at != 0 ? s->last_error : NULL);
	put_text(&row, tk_wait_name((TkWaitKind) pg_atomic_read_u32(&s->waits_for)));
	put_time(&row, tk_stats_oldest_unsent(s));
	put_time(&row, (TimestampTz) pg_atomic_read_u64(&s->sent_until));
	tk_stats_rates(s, &transactions, &records, &bytes);
	put_double(&row, transactions);
	put_double(&row, records);
	put_double(&row, bytes);
	put_bigint(&row, (int64) pg_atomic_read_u64(&s->queued));
	put_time(&row, s->counted.reset_at);
	end_row(&row, set);
}

/* SQL: kafka.live() → setof record: the registry's entries of this database that the caller may see */
Datum
tk_live(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, add_live);
}

/* Times are kept in µs and shown in ms. */
static double
shown(TkMeasure measure, double value)
{
	return measure <= TK_MEASURE_KAFKA_COMMIT ? value / 1000.0 : value;
}

/* {min, avg, p50, p95, p99, max}; null: nothing was measured */
static void
put_distribution(Row *row, TkMeasure measure, const TkHistogram *h)
{
	Datum		values[6];

	if (h->count == 0)
	{
		put(row, (Datum) 0, true);
		return;
	}
	values[0] = Float8GetDatum(shown(measure, h->min));
	values[1] = Float8GetDatum(shown(measure, (double) h->sum / h->count));
	values[2] = Float8GetDatum(shown(measure, tk_histogram_percentile(h, 50)));
	values[3] = Float8GetDatum(shown(measure, tk_histogram_percentile(h, 95)));
	values[4] = Float8GetDatum(shown(measure, tk_histogram_percentile(h, 99)));
	values[5] = Float8GetDatum(shown(measure, h->max));
	put(row, PointerGetDatum(construct_array(values, lengthof(values), FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL,
											 TYPALIGN_DOUBLE)), false);
}

static void
put_completed(Row *row, const TkCompleted *completed)
{
	bool		none = completed->id == 0;

	put(row, Int64GetDatum(completed->id), none);
	put_time(row, completed->at);
	for (int i = 0; i <= TK_MEASURE_KAFKA_COMMIT; i++)
		put(row, Float8GetDatum(shown(i, completed->values[i])), none || !completed->measured);
	put(row, Int64GetDatum(completed->transactions), none);
	put(row, Int64GetDatum(completed->values[TK_MEASURE_RECORDS]), none);
	put(row, Int64GetDatum(completed->values[TK_MEASURE_BYTES]), none);
}

static void
put_failed(Row *row, const TkFailed *failed)
{
	bool		none = failed->id == 0;

	put(row, Int64GetDatum(failed->id), none);
	put_time(row, failed->at);
	put_text(row, none ? NULL : tk_checkpoint_state_name(failed->state));
	put_text(row, none ? NULL : failed->reason);
}

static void
put_restored(Row *row, const TkRestored *restored)
{
	put(row, Int64GetDatum(restored->id), restored->at == 0);
	put_time(row, restored->at);
	put(row, LSNGetDatum(restored->lsn), restored->at == 0);
	put_text(row, tk_outcome_name(restored->outcome));
}

static void
add_checkpoints(const TkPipelineEntry *entry, const TkStats *stats, ReturnSetInfo *set)
{
	const TkCounted *c = &stats->counted;
	Row			row = {0};
	int			in_progress = 0;

	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
		in_progress += stats->running[i].state >= TK_CHECKPOINT_TRIGGERED;

	put_int(&row, entry->pipeline_id);
	put_bigint(&row, (int64) pg_atomic_read_u64(&unconstify(TkStats *, stats)->triggered));
	put_int(&row, in_progress);
	put_bigint(&row, c->completed);
	put_bigint(&row, c->failed);
	put_int(&row, stats->consecutive_failures);
	put_bigint(&row, c->restored);
	for (int i = TK_OUTCOME_REDRIVEN; i < TK_OUTCOMES; i++)
		put_bigint(&row, c->outcomes[i]);
	put_bigint(&row, c->alarms);
	put_bigint(&row, c->pool_waits);
	put_completed(&row, &c->last_completed);
	put_failed(&row, &c->last_failed);
	put_restored(&row, &c->last_restored);
	for (int i = 0; i < TK_MEASURES; i++)
		put_distribution(&row, i, &c->measures[i]);
	put_time(&row, c->reset_at);
	end_row(&row, set);
}

/* SQL: kafka.live_checkpoints() → setof record: the statistics of their checkpoints */
Datum
tk_live_checkpoints(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, add_checkpoints);
}

static void
add_progress(const TkPipelineEntry *entry, const TkStats *stats, ReturnSetInfo *set)
{
	for (int i = 0; i < TK_RUNNING_CHECKPOINTS; i++)
	{
		const TkRunning *running = &stats->running[i];
		Row			row = {0};

		if (running->state == TK_CHECKPOINT_NONE)
			continue;
		put_int(&row, entry->pipeline_id);
		put_bigint(&row, running->id);
		put_text(&row, tk_checkpoint_state_name(running->state));
		put_time(&row, running->since);
		put_time(&row, running->opened_at);
		put_time(&row, running->first_commit_at);
		put_bigint(&row, running->transactions);
		put_bigint(&row, running->records);
		put_bigint(&row, running->bytes);
		end_row(&row, set);
	}
}

/* SQL: kafka.live_progress() → setof record: the checkpoints under way */
Datum
tk_live_progress(PG_FUNCTION_ARGS)
{
	return return_rows(fcinfo, add_progress);
}

/* Is it still this pipeline of this database? The lock is held. */
static bool
is_pipeline(const TkPipelineEntry *entry, int32 pipeline_id)
{
	return entry->in_use && !entry->gone && entry->database == MyDatabaseId && entry->pipeline_id == pipeline_id;
}

/*
 * SQL: kafka.stat_reset(pipeline name) → void: of a pipeline that the caller
 * may change; null: of all those in this database.
 */
Datum
tk_stat_reset(PG_FUNCTION_ARGS)
{
	int32		only = 0;

	tk_require_preloaded();
	if (!PG_ARGISNULL(0))
	{
		SPI_connect();
		only = tk_owned_definition(NameStr(*PG_GETARG_NAME(0)))->pipeline_id;
		SPI_finish();
	}
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];
		int32		pipeline_id;
		Oid			owner;
		bool		meant;

		LWLockAcquire(tk_shared->lock, LW_SHARED);
		pipeline_id = entry->pipeline_id;
		owner = entry->owner;
		meant = is_pipeline(entry, only != 0 ? only : pipeline_id);
		LWLockRelease(tk_shared->lock);

		/* Not with the lock held: it looks into the catalog. */
		if (!meant || (only == 0 && !has_privs_of_role(GetUserId(), owner)))
			continue;
		LWLockAcquire(tk_shared->lock, LW_SHARED);
		if (is_pipeline(entry, pipeline_id))
		{
			tk_stats_reset(i);
			pg_atomic_write_u64(&entry->rejected, 0);
		}
		LWLockRelease(tk_shared->lock);
	}
	PG_RETURN_VOID();
}
