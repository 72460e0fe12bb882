/*
 * committable.c
 *	  The checkpoint table (SPI).
 *
 * A row is durable as "prepared" before the Kafka transaction commits, so at
 * every crash Kafka never holds a checkpoint that this server has no row for.
 * At most one row is prepared: the next is written only after the one before
 * is known to be committed, and the same transaction marks it so.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "committable.h"

void
tk_committables_load(int32 pipeline_id, XLogRecPtr confirmed, TkCommittables *result)
{
	static TkStatement statement = {
		"SELECT checkpoint_id, end_lsn, state, attempt FROM kafka.checkpoint "
		"WHERE pipeline_id = $1 ORDER BY checkpoint_id", 1, {INT4OID}, NULL
	};
	Datum		key = Int32GetDatum(pipeline_id);
	uint64		n = tk_execute(&statement, &key, NULL, false);
	int64		last_id = 0;
	int			last_attempt = 0;

	memset(result, 0, sizeof(TkCommittables));
	for (uint64 row = 0; row < n; row++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[row];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		int64		id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		XLogRecPtr	end_lsn = DatumGetLSN(SPI_getbinval(tuple, desc, 2, &isnull));
		char	   *state = SPI_getvalue(tuple, desc, 3);

		last_id = id;
		last_attempt = DatumGetInt32(SPI_getbinval(tuple, desc, 4, &isnull));
		if (strcmp(state, "aborted") == 0)
			continue;
		result->newest = id;
		if (strcmp(state, "committed") == 0 || end_lsn <= confirmed)
			result->committed = id;
	}
	result->next_attempt = last_id > result->committed ? last_attempt + 1 : 1;
}

List *
tk_committable_transactional_ids(int32 pipeline_id)
{
	static TkStatement statement = {
		"SELECT DISTINCT transactional_id FROM kafka.checkpoint "
		"WHERE pipeline_id = $1 AND transactional_id IS NOT NULL", 1, {INT4OID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	Datum		key = Int32GetDatum(pipeline_id);
	uint64		n = tk_execute(&statement, &key, NULL, false);
	List	   *result = NIL;

	for (uint64 row = 0; row < n; row++)
	{
		char	   *id = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1);
		MemoryContext spi = MemoryContextSwitchTo(caller);

		result = lappend(result, pstrdup(id));
		MemoryContextSwitchTo(spi);
	}
	return result;
}

/* INSERT into the ring, over the row that has the place. */
#define WRITE_ROW \
	"INSERT INTO kafka.checkpoint AS c (pipeline_id, ring, checkpoint_id, attempt, state, transactional_id, timeline, " \
	"start_lsn, end_lsn, transactions, records, bytes, triggered_at, prepared_at, committed_at) " \
	"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, pg_catalog.clock_timestamp(), $14) " \
	"ON CONFLICT (pipeline_id, ring) DO UPDATE SET checkpoint_id = EXCLUDED.checkpoint_id, " \
	"attempt = EXCLUDED.attempt, state = EXCLUDED.state, transactional_id = EXCLUDED.transactional_id, " \
	"timeline = EXCLUDED.timeline, start_lsn = EXCLUDED.start_lsn, end_lsn = EXCLUDED.end_lsn, " \
	"transactions = EXCLUDED.transactions, records = EXCLUDED.records, bytes = EXCLUDED.bytes, " \
	"triggered_at = EXCLUDED.triggered_at, prepared_at = EXCLUDED.prepared_at, committed_at = EXCLUDED.committed_at"

static TkStatement write_row = {
	WRITE_ROW, 14, {INT4OID, INT4OID, INT8OID, INT4OID, TEXTOID, TEXTOID, INT4OID, LSNOID, LSNOID, INT8OID, INT8OID,
	INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}, NULL
};

void
tk_committable_prepare(int32 pipeline_id, int retained, const TkCheckpoint *checkpoint, int attempt,
					   const char *transactional_id, TimeLineID timeline,
					   TimestampTz triggered_at, TimestampTz previous_committed_at)
{
	Datum		values[14];

	if (previous_committed_at != 0)
		tk_committable_mark(pipeline_id, checkpoint->id - 1, previous_committed_at);

	values[0] = Int32GetDatum(pipeline_id);
	values[1] = Int32GetDatum((int32) (checkpoint->id % retained));
	values[2] = Int64GetDatum(checkpoint->id);
	values[3] = Int32GetDatum(attempt);
	values[4] = CStringGetTextDatum("prepared");
	values[5] = CStringGetTextDatum(transactional_id);
	values[6] = Int32GetDatum((int32) timeline);
	values[7] = LSNGetDatum(checkpoint->start_lsn);
	values[8] = LSNGetDatum(checkpoint->end_lsn);
	values[9] = Int64GetDatum(checkpoint->transactions);
	values[10] = Int64GetDatum(checkpoint->records);
	values[11] = Int64GetDatum(checkpoint->bytes);
	values[12] = TimestampTzGetDatum(triggered_at);
	values[13] = (Datum) 0;
	tk_execute(&write_row, values, "             n", false);
}

void
tk_committable_mark(int32 pipeline_id, int64 checkpoint_id, TimestampTz committed_at)
{
	static TkStatement statement = {
		"UPDATE kafka.checkpoint SET state = 'committed', committed_at = $3 "
		"WHERE pipeline_id = $1 AND checkpoint_id = $2 AND state = 'prepared'", 3, {INT4OID, INT8OID, TIMESTAMPTZOID}, NULL
	};
	Datum		values[3];

	values[0] = Int32GetDatum(pipeline_id);
	values[1] = Int64GetDatum(checkpoint_id);
	values[2] = TimestampTzGetDatum(committed_at);
	tk_execute(&statement, values, NULL, false);
}

void
tk_committable_settle(int32 pipeline_id, int64 held)
{
	static TkStatement statement = {
		"UPDATE kafka.checkpoint SET state = CASE WHEN checkpoint_id <= $2 THEN 'committed' ELSE 'aborted' END, "
		"committed_at = CASE WHEN checkpoint_id <= $2 THEN pg_catalog.clock_timestamp() END "
		"WHERE pipeline_id = $1 AND state = 'prepared'", 2, {INT4OID, INT8OID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), Int64GetDatum(held)};

	tk_execute(&statement, values, NULL, false);
}

void
tk_committable_adopt(int32 pipeline_id, int retained, int64 checkpoint_id, XLogRecPtr end_lsn, TimeLineID timeline)
{
	static TkStatement forget_newer = {
		"DELETE FROM kafka.checkpoint WHERE pipeline_id = $1 AND checkpoint_id >= $2", 2, {INT4OID, INT8OID}, NULL
	};
	Datum		values[14];

	values[0] = Int32GetDatum(pipeline_id);
	values[1] = Int64GetDatum(checkpoint_id);
	tk_execute(&forget_newer, values, NULL, false);

	values[1] = Int32GetDatum((int32) (checkpoint_id % retained));
	values[2] = Int64GetDatum(checkpoint_id);
	values[3] = Int32GetDatum(1);
	values[4] = CStringGetTextDatum("committed");
	values[5] = (Datum) 0;
	values[6] = Int32GetDatum((int32) timeline);
	values[7] = LSNGetDatum(end_lsn);
	values[8] = LSNGetDatum(end_lsn);
	values[9] = Int64GetDatum(0);
	values[10] = Int64GetDatum(0);
	values[11] = Int64GetDatum(0);
	values[12] = (Datum) 0;
	values[13] = TimestampTzGetDatum(GetCurrentTimestamp());
	tk_execute(&write_row, values, "     n      n ", false);
}

void
tk_committable_rearrange(int32 pipeline_id, int retained)
{
	/* Of two rows that want one place the newer stays; the others step aside (below 0) before they move. */
	static TkStatement clear_places = {
		"DELETE FROM kafka.checkpoint c WHERE c.pipeline_id = $1 AND EXISTS (SELECT FROM kafka.checkpoint n "
		"WHERE n.pipeline_id = $1 AND n.checkpoint_id > c.checkpoint_id AND n.checkpoint_id % $2 = c.checkpoint_id % $2)",
		2, {INT4OID, INT4OID}, NULL
	};
	static TkStatement step_aside = {
		"UPDATE kafka.checkpoint SET ring = -1 - checkpoint_id % $2 WHERE pipeline_id = $1 AND ring <> checkpoint_id % $2",
		2, {INT4OID, INT4OID}, NULL
	};
	static TkStatement move = {
		"UPDATE kafka.checkpoint SET ring = -1 - ring WHERE pipeline_id = $1 AND ring < 0", 1, {INT4OID}, NULL
	};
	Datum		values[2] = {Int32GetDatum(pipeline_id), Int32GetDatum(retained)};

	tk_execute(&clear_places, values, NULL, false);
	if (tk_execute(&step_aside, values, NULL, false) > 0)
		tk_execute(&move, values, NULL, false);
}
