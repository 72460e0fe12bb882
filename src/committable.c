/*
 * committable.c
 *	  The checkpoint table.
 *
 * A row is durable as "prepared" before the Kafka transaction commits, so at
 * every crash Kafka never holds a checkpoint that this server has no row for.
 * At most one row is prepared: the next is written only after the one before
 * is known to be committed, and the same transaction marks it so.
 *
 * What every checkpoint does (prepare, mark) goes to the table directly, as
 * core does with its catalogs; the rest goes through SPI.  Decoding leaves
 * catalog caches of the past, so a transaction with SPI has to forget all
 * caches before and after, and then SPI plans its statements anew: that cost
 * more than Kafka's part of a small checkpoint (src/README).  Here only the
 * table's and its indexes' entries in the relation cache are looked at, and
 * forgotten before (decoding may have made them, with the file the table had
 * then) and after.  They are built by scans of the catalog as it is now, but
 * for syscache entries of these indexes alone, which don't change while an
 * index is the key.  Nothing of any other table is touched, so decoding finds
 * nothing that is too new.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "nodes/nodes.h"
#include "nodes/pg_list.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog.h"
#include "committable.h"

/* The columns of kafka.checkpoint, in the order of the extension's script */
enum
{
	COLUMN_PIPELINE_ID = 1,
	COLUMN_RING,
	COLUMN_CHECKPOINT_ID,
	COLUMN_ATTEMPT,
	COLUMN_STATE,
	COLUMN_TRANSACTIONAL_ID,
	COLUMN_TIMELINE,
	COLUMN_START_LSN,
	COLUMN_END_LSN,
	COLUMN_TRANSACTIONS,
	COLUMN_RECORDS,
	COLUMN_BYTES,
	COLUMN_TRIGGERED_AT,
	COLUMN_PREPARED_AT,
	COLUMN_COMMITTED_AT,
	COLUMN_PRODUCER_ID,
	COLUMN_PRODUCER_EPOCH,
	COLUMN_KAFKA_START_MS,
	COLUMN_OUTCOME,
	COLUMN_OUTCOME_REASON,
	COLUMNS = COLUMN_OUTCOME_REASON
};

static const Oid column_types[COLUMNS] = {
	INT4OID, INT4OID, INT8OID, INT4OID, TEXTOID, TEXTOID, INT4OID, LSNOID, LSNOID, INT8OID, INT8OID, INT8OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT4OID, INT8OID, TEXTOID, TEXTOID
};

static Oid	table_oid = InvalidOid;
static List *index_oids = NIL;	/* all that the table had when it was opened last */
static Oid	key_oid = InvalidOid;

void
tk_committable_init(void)
{
	table_oid = get_relname_relid("checkpoint", get_namespace_oid("kafka", false));
}

static void
forget_relcache(void)
{
	ListCell   *lc;

	RelationCacheInvalidateEntry(table_oid);
	foreach(lc, index_oids)
		RelationCacheInvalidateEntry(lfirst_oid(lc));
}

/* What is written below is laid out for these columns and no others. */
static void
check_columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		same = desc->natts == COLUMNS;

	for (int i = 0; i < COLUMNS && same; i++)
		same = TupleDescAttr(desc, i)->atttypid == column_types[i];
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("table kafka.checkpoint does not have the columns that this library expects"),
				 errhint("After an update of the extension the server must be restarted; then CALL kafka.resume().")));
}

/* Core's functions for catalogs know plain indexes only. */
static void
check_index(Oid oid)
{
	Relation	index = index_open(oid, AccessShareLock);

	if (RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL ||
		!index->rd_index->indimmediate || index->rd_index->indisexclusion)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("index \"%s\" of table kafka.checkpoint is of a kind that can't be kept up",
						RelationGetRelationName(index)),
				 errhint("DROP INDEX, then CALL kafka.resume().")));
	index_close(index, AccessShareLock);
}

/* Opens the table as it is now, whatever decoding has left in the caches. */
static Relation
open_table(void)
{
	Relation	rel;
	List	   *indexes;
	ListCell   *lc;

	forget_relcache();
	rel = table_open(table_oid, RowExclusiveLock);
	check_columns(rel);
	indexes = RelationGetIndexList(rel);
	key_oid = rel->rd_pkindex;
	if (!equal(indexes, index_oids))
	{
		MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

		list_free(index_oids);
		index_oids = list_copy(indexes);
		MemoryContextSwitchTo(caller);
		foreach(lc, indexes)
		{
			RelationCacheInvalidateEntry(lfirst_oid(lc));
			check_index(lfirst_oid(lc));
		}
	}
	list_free(indexes);
	if (!OidIsValid(key_oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("table kafka.checkpoint has no primary key")));
	return rel;
}

/* Decoding shall not find today's shape of it either. */
static void
close_table(Relation rel)
{
	table_close(rel, NoLock);
	forget_relcache();
}

/* A copy of the row that has a place in the ring; NULL: the place is free. */
static HeapTuple
find_row(Relation rel, int32 pipeline_id, int32 ring)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&keys[0], COLUMN_PIPELINE_ID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(pipeline_id));
	ScanKeyInit(&keys[1], COLUMN_RING, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(ring));
	scan = systable_beginscan(rel, key_oid, true, snapshot, 2, keys);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return row;
}

static void
mark_row(Relation rel, int32 pipeline_id, int retained, int64 checkpoint_id, TimestampTz committed_at)
{
	HeapTuple	row = find_row(rel, pipeline_id, (int32) (checkpoint_id % retained));
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {0};
	bool		replace[COLUMNS] = {0};
	bool		isnull;

	if (row == NULL ||
		DatumGetInt64(heap_getattr(row, COLUMN_CHECKPOINT_ID, RelationGetDescr(rel), &isnull)) != checkpoint_id)
		return;
	values[COLUMN_STATE - 1] = CStringGetTextDatum("committed");
	values[COLUMN_COMMITTED_AT - 1] = TimestampTzGetDatum(committed_at);
	replace[COLUMN_STATE - 1] = true;
	replace[COLUMN_COMMITTED_AT - 1] = true;
	CatalogTupleUpdate(rel, &row->t_self, heap_modify_tuple(row, RelationGetDescr(rel), values, nulls, replace));
}

void
tk_committable_mark(int32 pipeline_id, int retained, int64 checkpoint_id, TimestampTz committed_at)
{
	Relation	rel = open_table();

	mark_row(rel, pipeline_id, retained, checkpoint_id, committed_at);
	close_table(rel);
}

void
tk_committable_prepare(int32 pipeline_id, int retained, const TkCheckpoint *checkpoint, int attempt,
					   const TkKafkaTransaction *transaction, TimeLineID timeline,
					   TimestampTz triggered_at, TimestampTz previous_committed_at)
{
	Relation	rel = open_table();
	int32		ring = (int32) (checkpoint->id % retained);
	HeapTuple	old;
	HeapTuple	row;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS] = {0};
	bool		isnull;

	/* Two rows: with a ring of one, this would be one row changed twice by one command. */
	Assert(retained >= 2);
	if (previous_committed_at != 0)
		mark_row(rel, pipeline_id, retained, checkpoint->id - 1, previous_committed_at);

	values[COLUMN_PIPELINE_ID - 1] = Int32GetDatum(pipeline_id);
	values[COLUMN_RING - 1] = Int32GetDatum(ring);
	values[COLUMN_CHECKPOINT_ID - 1] = Int64GetDatum(checkpoint->id);
	values[COLUMN_ATTEMPT - 1] = Int32GetDatum(attempt);
	values[COLUMN_STATE - 1] = CStringGetTextDatum("prepared");
	values[COLUMN_TRANSACTIONAL_ID - 1] = CStringGetTextDatum(transaction->transactional_id);
	values[COLUMN_TIMELINE - 1] = Int32GetDatum((int32) timeline);
	values[COLUMN_START_LSN - 1] = LSNGetDatum(checkpoint->start_lsn);
	values[COLUMN_END_LSN - 1] = LSNGetDatum(checkpoint->end_lsn);
	values[COLUMN_TRANSACTIONS - 1] = Int64GetDatum(checkpoint->transactions);
	values[COLUMN_RECORDS - 1] = Int64GetDatum(checkpoint->records);
	values[COLUMN_BYTES - 1] = Int64GetDatum(checkpoint->bytes);
	values[COLUMN_TRIGGERED_AT - 1] = TimestampTzGetDatum(triggered_at);
	values[COLUMN_PREPARED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[COLUMN_COMMITTED_AT - 1] = (Datum) 0;
	nulls[COLUMN_COMMITTED_AT - 1] = true;
	values[COLUMN_PRODUCER_ID - 1] = Int64GetDatum(transaction->producer_id);
	values[COLUMN_PRODUCER_EPOCH - 1] = Int32GetDatum(transaction->epoch);
	values[COLUMN_KAFKA_START_MS - 1] = Int64GetDatum(transaction->start_ms);
	nulls[COLUMN_PRODUCER_ID - 1] = !transaction->described;
	nulls[COLUMN_PRODUCER_EPOCH - 1] = !transaction->described;
	nulls[COLUMN_KAFKA_START_MS - 1] = !transaction->described;
	nulls[COLUMN_OUTCOME - 1] = true;
	nulls[COLUMN_OUTCOME_REASON - 1] = true;

	/* A further attempt keeps what became of the one before. */
	old = find_row(rel, pipeline_id, ring);
	if (old != NULL && attempt > 1 &&
		DatumGetInt64(heap_getattr(old, COLUMN_CHECKPOINT_ID, RelationGetDescr(rel), &isnull)) == checkpoint->id)
		for (int i = COLUMN_OUTCOME - 1; i < COLUMN_OUTCOME_REASON; i++)
			values[i] = heap_getattr(old, i + 1, RelationGetDescr(rel), &nulls[i]);
	row = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (old == NULL)
		CatalogTupleInsert(rel, row);
	else
		CatalogTupleUpdate(rel, &old->t_self, row);
	close_table(rel);
}

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

bool
tk_committable_prepared(int32 pipeline_id, TkPrepared *result)
{
	static TkStatement statement = {
		"SELECT checkpoint_id, timeline, transactional_id, producer_id, producer_epoch, kafka_start_ms "
		"FROM kafka.checkpoint WHERE pipeline_id = $1 AND state = 'prepared' ORDER BY checkpoint_id DESC LIMIT 1",
		1, {INT4OID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	Datum		key = Int32GetDatum(pipeline_id);
	HeapTuple	tuple;
	TupleDesc	desc;
	bool		isnull;

	if (tk_execute(&statement, &key, NULL, false) == 0)
		return false;
	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	result->checkpoint_id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
	result->timeline = (TimeLineID) DatumGetInt32(SPI_getbinval(tuple, desc, 2, &isnull));
	result->transaction.transactional_id = MemoryContextStrdup(caller, SPI_getvalue(tuple, desc, 3));
	result->transaction.producer_id = DatumGetInt64(SPI_getbinval(tuple, desc, 4, &isnull));
	result->transaction.described = !isnull;
	result->transaction.epoch = DatumGetInt32(SPI_getbinval(tuple, desc, 5, &isnull));
	result->transaction.start_ms = DatumGetInt64(SPI_getbinval(tuple, desc, 6, &isnull));
	return true;
}

void
tk_committable_settle(int32 pipeline_id, int64 held, XLogRecPtr confirmed, bool redriven, bool skipped,
					  const char *reason)
{
	static TkStatement statement = {
		"UPDATE kafka.checkpoint SET state = CASE WHEN checkpoint_id <= $2 THEN 'committed' ELSE 'aborted' END, "
		"committed_at = CASE WHEN checkpoint_id <= $2 THEN pg_catalog.clock_timestamp() END, "
		"outcome = CASE WHEN checkpoint_id > $2 THEN CASE WHEN NOT $6 THEN 'replayed' END "
		"WHEN end_lsn <= $5 THEN outcome WHEN $3 THEN 'redriven' ELSE 'already_committed' END, "
		"outcome_reason = CASE WHEN checkpoint_id > $2 THEN $4 WHEN end_lsn <= $5 THEN outcome_reason END "
		"WHERE pipeline_id = $1 AND state = 'prepared'",
		6, {INT4OID, INT8OID, BOOLOID, TEXTOID, LSNOID, BOOLOID}, NULL
	};
	Datum		values[6] = {Int32GetDatum(pipeline_id), Int64GetDatum(held), BoolGetDatum(redriven), 0,
	LSNGetDatum(confirmed), BoolGetDatum(skipped)};

	if (reason != NULL)
		values[3] = CStringGetTextDatum(reason);
	tk_execute(&statement, values, reason ? NULL : "   n  ", false);
}

void
tk_committable_adopt(int32 pipeline_id, int retained, int64 checkpoint_id, XLogRecPtr end_lsn, TimeLineID timeline)
{
	static TkStatement forget = {
		"DELETE FROM kafka.checkpoint WHERE pipeline_id = $1 AND (checkpoint_id >= $2 OR ring = $3)",
		3, {INT4OID, INT8OID, INT4OID}, NULL
	};
	static TkStatement insert = {
		"INSERT INTO kafka.checkpoint (pipeline_id, ring, checkpoint_id, attempt, state, timeline, start_lsn, end_lsn, "
		"transactions, records, bytes, prepared_at, committed_at) "
		"VALUES ($1, $3, $2, 1, 'committed', $4, $5, $5, 0, 0, 0, pg_catalog.now(), pg_catalog.now())",
		5, {INT4OID, INT8OID, INT4OID, INT4OID, LSNOID}, NULL
	};
	Datum		values[5];

	values[0] = Int32GetDatum(pipeline_id);
	values[1] = Int64GetDatum(checkpoint_id);
	values[2] = Int32GetDatum((int32) (checkpoint_id % retained));
	values[3] = Int32GetDatum((int32) timeline);
	values[4] = LSNGetDatum(end_lsn);
	tk_execute(&forget, values, NULL, false);
	tk_execute(&insert, values, NULL, false);
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
