/*
 * produce.c
 *	  kafka.produce(): a record in the caller's transaction, without a table.
 *
 * It is one transactional logical message in the WAL, so COMMIT, savepoints
 * and two-phase commit treat it as any other write.  Every role may call
 * pg_logical_emit_message, so each message carries an HMAC over all of it,
 * with a key that only this extension reads.  What is signed names the
 * pipeline, the 64-bit id of the top-level transaction and a running number:
 * the bytes of a genuine message count nowhere else and not twice.
 *
 * Keys change by kafka.rotate_key(), which only adds one.  A session signs with
 * the newest key that the pipeline's worker has said it knows (signing_key), so
 * a worker never meets a key that it doesn't.  It starts anew when a key was
 * added, and from then on works towards the end of the older ones: the
 * transactions that were running when it said so may have signed with those;
 * when they have ended, and the slot is confirmed beyond their ends, no message
 * of an older key can come any more (settled_key).  Once that holds for every
 * pipeline of the database the older keys are deleted.  Nothing of this is
 * stored: after a crash the worker waits for a little more than it needs to.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "allowed.h"
#include "catalog.h"
#include "checks.h"
#include "header_json.h"
#include "pg_compat.h"
#include "produce.h"
#include "registry.h"
#include "route.h"

PG_FUNCTION_INFO_V1(tk_make_key);
PG_FUNCTION_INFO_V1(tk_rotate_key);
PG_FUNCTION_INFO_V1(tk_produce);

#define KEY_SIZE 32

typedef struct SigningKey
{
	uint32		id;
	uint8		key[KEY_SIZE];
} SigningKey;

/* The key that a session has used last, of this kafka.pipeline's extension; 0: none. */
static SigningKey session_key;
static Oid	session_key_catalog = InvalidOid;

/* All keys, in a worker, the newest last. */
static SigningKey *worker_keys = NULL;
static int	nworker_keys = 0;

/* How far a worker is with the end of all but the newest, if there are any. */
static bool older_keys = false;
static uint64 signed_before_xid = 0;	/* transactions from here on can't have used them; 0: not said yet */
static XLogRecPtr signed_before_lsn = InvalidXLogRecPtr;	/* where all earlier ones have ended; Invalid: not yet */

/* Between two looks at that, and between two attempts to delete what other pipelines may still need, in ms */
#define SETTLE_MS 1000
#define DELETE_MS 60000

/* The last message of this session: its transaction and number. */
static uint64 last_xid = 0;
static uint32 last_number = 0;

/* HMAC-SHA-256 of everything but the mac's own place. */
static void
sign(const SigningKey *key, const char *bytes, size_t len, uint8 mac[TK_MAC_SIZE])
{
	pg_hmac_ctx *ctx = pg_hmac_create(PG_SHA256);
	const uint8 *data = (const uint8 *) bytes;
	bool		failed;

	StaticAssertStmt(TK_MAC_SIZE == PG_SHA256_DIGEST_LENGTH, "size of the mac");
	if (ctx == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	failed = pg_hmac_init(ctx, key->key, KEY_SIZE) < 0 ||
		pg_hmac_update(ctx, data, TK_MAC_AT) < 0 ||
		pg_hmac_update(ctx, data + TK_MAC_AT + TK_MAC_SIZE, len - TK_MAC_AT - TK_MAC_SIZE) < 0 ||
		pg_hmac_final(ctx, mac, TK_MAC_SIZE) < 0;
	pg_hmac_free(ctx);
	if (failed)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute a message authentication code")));
}

static void
check_key_size(uint32 id, const bytea * bytes)
{
	if (VARSIZE_ANY_EXHDR(bytes) != KEY_SIZE)
		elog(ERROR, "key %u of kafka.produce_key has a wrong size", id);
}

static void
copy_key(SigningKey *key, uint64 row)
{
	bool		isnull;
	bytea	   *bytes;

	key->id = (uint32) DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1, &isnull));
	bytes = DatumGetByteaPP(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 2, &isnull));
	check_key_size(key->id, bytes);
	memcpy(key->key, VARDATA_ANY(bytes), KEY_SIZE);
}

/* SQL: kafka.make_key() → bytea: a new key; for the extension's script */
Datum
tk_make_key(PG_FUNCTION_ARGS)
{
	bytea	   *key = palloc(VARHDRSZ + KEY_SIZE);

	SET_VARSIZE(key, VARHDRSZ + KEY_SIZE);
	if (!pg_strong_random(VARDATA(key), KEY_SIZE))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random key")));
	PG_RETURN_BYTEA_P(key);
}

/* SQL: kafka.rotate_key() → integer: the new key's id */
Datum
tk_rotate_key(PG_FUNCTION_ARGS)
{
	static TkStatement insert = {
		"INSERT INTO kafka.produce_key (key) VALUES (kafka.make_key()) RETURNING key_id", 0, {0}, NULL
	};
	Privileged	saved;
	bool		isnull;
	int32		id;

	tk_check_server_ready("rotate_key()");
	PreventCommandIfReadOnly("rotate_key()");
	SPI_connect();
	tk_begin_privileged(&saved);
	(void) tk_execute(&insert, NULL, NULL, false);
	id = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	tk_end_privileged(&saved);
	SPI_finish();

	/* The workers start anew at the commit, and say that they know it. */
	tk_all_definitions_change();
	PG_RETURN_INT32(id);
}

void
tk_produce_load_keys(MemoryContext context, TkPipelineEntry *entry)
{
	static TkStatement load = {
		"SELECT key_id, key FROM kafka.produce_key ORDER BY key_id", 0, {0}, NULL
	};

	nworker_keys = (int) tk_execute(&load, NULL, NULL, false);
	if (nworker_keys == 0)
		elog(ERROR, "kafka.produce_key has no key");
	worker_keys = MemoryContextAlloc(context, sizeof(SigningKey) * nworker_keys);
	for (int i = 0; i < nworker_keys; i++)
		copy_key(&worker_keys[i], i);
	pg_atomic_write_u32(&entry->signing_key, worker_keys[nworker_keys - 1].id);
	older_keys = nworker_keys > 1;
	if (!older_keys)
		pg_atomic_write_u32(&entry->settled_key, worker_keys[0].id);
}

/* Deletes the keys that no pipeline of this database needs.  True: none older than the newest is left. */
static bool
delete_old_keys(Oid catalog)
{
	static TkStatement delete = {
		"DELETE FROM kafka.produce_key WHERE key_id < $1 AND NOT EXISTS (SELECT FROM kafka.pipeline p "
		"JOIN kafka.pipeline_state s USING (pipeline_id) "
		"WHERE NOT p.dropping AND s.slot_created AND p.pipeline_id <> ALL ($2))", 2, {INT4OID, INT4ARRAYOID}, NULL
	};
	static TkStatement find = {
		"SELECT FROM kafka.produce_key WHERE key_id < $1 LIMIT 1", 1, {INT4OID}, NULL
	};
	MemoryContext caller = CurrentMemoryContext;
	Datum	   *ids = palloc(sizeof(Datum) * tk_shared->nentries);
	Datum		values[2];
	int			n = 0;
	uint32		newest = worker_keys[nworker_keys - 1].id;
	uint32		oldest = newest;
	bool		done;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];
		uint32		settled = pg_atomic_read_u32(&entry->settled_key);

		/* One that is not as far is not in the list, and if it has a slot nothing goes. */
		if (!entry->in_use || entry->gone || entry->database != MyDatabaseId || entry->catalog != catalog || settled == 0)
			continue;
		oldest = Min(oldest, settled);
		ids[n++] = Int32GetDatum(entry->pipeline_id);
	}
	LWLockRelease(tk_shared->lock);

	tk_transaction_begin();
	values[0] = Int32GetDatum((int32) oldest);
	values[1] = PointerGetDatum(construct_array(ids, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	(void) tk_execute(&delete, values, NULL, false);
	values[0] = Int32GetDatum((int32) newest);
	done = tk_execute(&find, values, NULL, false) == 0;
	tk_transaction_commit();
	MemoryContextSwitchTo(caller);
	pfree(ids);
	return done;
}

/* Has everything ended, and been sent, that an older key than the newest may have signed? */
static bool
older_keys_are_settled(TkPipelineEntry *entry)
{
	/* Whoever reads the signing_key of before ours has got its transaction id before; see tk_produce. */
	if (signed_before_xid == 0)
	{
		pg_memory_barrier();
		signed_before_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
	}
	if (XLogRecPtrIsInvalid(signed_before_lsn) &&
		TransactionIdFollowsOrEquals(GetOldestActiveTransactionId(), (TransactionId) signed_before_xid))
		signed_before_lsn = GetXLogInsertRecPtr();
	return !XLogRecPtrIsInvalid(signed_before_lsn) && pg_atomic_read_u64(&entry->confirmed_lsn) >= signed_before_lsn;
}

void
tk_produce_settle_keys(TkPipelineEntry *entry)
{
	static TimestampTz looked_at = 0;
	TimestampTz now;

	if (!older_keys)
		return;
	now = GetCurrentTimestamp();
	if (!TimestampDifferenceExceeds(looked_at, now, nworker_keys > 1 ? SETTLE_MS : DELETE_MS))
		return;
	looked_at = now;
	if (nworker_keys > 1)
	{
		if (!older_keys_are_settled(entry))
			return;

		/* From here on a message of an older key is a forgery. */
		worker_keys[0] = worker_keys[nworker_keys - 1];
		nworker_keys = 1;
	}
	pg_atomic_write_u32(&entry->settled_key, worker_keys[0].id);
	older_keys = !delete_old_keys(entry->catalog);
}

/* Reads the key of that id, or with 0 the oldest, which every worker will know. */
static void
load_session_key(Oid catalog, uint32 id)
{
	Oid			table;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (session_key.id != 0 && session_key.id == id && session_key_catalog == catalog)
		return;
	session_key.id = 0;
	table = get_relname_relid("produce_key", get_namespace_oid("kafka", false));
	if (!OidIsValid(table))
		elog(ERROR, "kafka.produce_key does not exist");
	rel = table_open(table, AccessShareLock);

	/*
	 * What has committed by now, whatever the caller's snapshot: no part of what a SERIALIZABLE transaction
	 * reads.
	 */
	scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		uint32		found = (uint32) DatumGetInt32(heap_getattr(tuple, 1, RelationGetDescr(rel), &isnull));
		bytea	   *bytes;

		if (id != 0 ? found != id : session_key.id != 0 && found > session_key.id)
			continue;
		bytes = DatumGetByteaPP(heap_getattr(tuple, 2, RelationGetDescr(rel), &isnull));
		check_key_size(found, bytes);
		memcpy(session_key.key, VARDATA_ANY(bytes), KEY_SIZE);
		session_key.id = found;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (session_key.id == 0)
		elog(ERROR, "kafka.produce_key has no key %u", id);
	session_key_catalog = catalog;
}

/* The full id of a transaction of now or of the recent past. */
static uint64
full_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		behind = XidFromFullTransactionId(next) - xid;

	return U64FromFullTransactionId(next) - behind;
}

bool
tk_produce_verify(const char *bytes, size_t len, int32 pipeline_id, TransactionId xid, int64 last, TkProduced *m)
{
	uint8		mac[TK_MAC_SIZE];

	if (!tk_message_parse(bytes, len, m))
		return false;
	if (m->pipeline_id != pipeline_id || m->xid != full_xid(xid) || (int64) m->number <= last)
		return false;
	for (int i = 0; i < nworker_keys; i++)
	{
		if (worker_keys[i].id != m->key_id)
			continue;
		sign(&worker_keys[i], bytes, len, mac);
		return memcmp(mac, bytes + TK_MAC_AT, TK_MAC_SIZE) == 0;
	}
	return false;
}

typedef struct Chosen
{
	TkPipelineEntry *entry;
	NameData	name;
	int32		pipeline_id;
	Oid			catalog;
	Oid			server;
	bool		slot_ready;
} Chosen;

/* How many pipelines of that name (NULL: of any) this database has; the last of them. */
static int
find_pipelines(const char *name, Chosen *chosen)
{
	int			n = 0;

	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (!entry->in_use || entry->gone || entry->database != MyDatabaseId)
			continue;
		if (name != NULL && strcmp(name, NameStr(entry->name)) != 0)
			continue;
		chosen->entry = entry;
		chosen->catalog = entry->catalog;
		chosen->name = entry->name;
		chosen->pipeline_id = entry->pipeline_id;
		chosen->server = entry->server;
		chosen->slot_ready = entry->slot_ready;
		n++;
	}
	LWLockRelease(tk_shared->lock);
	return n;
}

/* The pipeline to send through: the one of that name, or the database's only one. */
static Chosen
choose_pipeline(const char *name)
{
	Chosen		chosen = {0};
	int			n = name != NULL ? find_pipelines(name, &chosen) : 0;

	if (n == 0)
	{
		tk_await_scout();
		n = find_pipelines(name, &chosen);
	}
	if (n == 0 && name != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name)));
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("this database has no pipeline"),
				 errhint("CALL kafka.create_pipeline() first.")));
	if (n > 1)
		ereport(ERROR,
				(errcode(ERRCODE_AMBIGUOUS_PARAMETER),
				 errmsg("this database has %d pipelines", n),
				 errhint("Name one: kafka.produce(…, pipeline => '…').")));
	if (tk_server_usage(chosen.server, GetUserId()) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to produce through pipeline \"%s\"", NameStr(chosen.name)),
				 errhint("GRANT USAGE ON FOREIGN SERVER … is needed.")));
	if (!chosen.slot_ready)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pipeline \"%s\" does not capture yet", NameStr(chosen.name)),
				 errdetail("Its replication slot is not there; the record would be lost.")));
	return chosen;
}

static TkMessageBytes
utf8_bytes(const char *text, int len)
{
	TkMessageBytes b;

	b.data = pg_server_to_any(text, len, PG_UTF8);
	b.len = b.data == text ? (uint32) len : (uint32) strlen(b.data);
	return b;
}

/* An argument's bytes: text and jsonb as UTF-8, bytea as it is. */
static TkMessageBytes
argument_bytes(FunctionCallInfo fcinfo, int n)
{
	TkMessageBytes b = {NULL, 0};
	Oid			type;

	if (PG_ARGISNULL(n))
		return b;
	type = get_fn_expr_argtype(fcinfo->flinfo, n);
	if (!OidIsValid(type))
	{
		/* called without an expression, by the protocol's function call */
		Oid		   *declared;
		int			nargs;

		(void) get_func_signature(fcinfo->flinfo->fn_oid, &declared, &nargs);
		type = declared[n];
	}
	if (type == JSONBOID)
	{
		Jsonb	   *json = PG_GETARG_JSONB_P(n);
		char	   *text = JsonbToCString(NULL, &json->root, VARSIZE(json));

		return utf8_bytes(text, strlen(text));
	}
	else
	{
		/* text and bytea look alike inside */
		bytea	   *value = PG_GETARG_BYTEA_PP(n);

		if (type == BYTEAOID)
		{
			b.data = VARDATA_ANY(value);
			b.len = VARSIZE_ANY_EXHDR(value);
			return b;
		}
		return utf8_bytes(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
	}
}

/* {"a": "1", "b": ["2", "3"]}, in its own order: an array repeats its name.  Returns how many. */
static int
add_headers(TkBuffer *out, text * json)
{
	static TkBuffer scratch;
	TkMessageBytes bytes = utf8_bytes(VARDATA_ANY(json), VARSIZE_ANY_EXHDR(json));
	TkMessageBytes culprit;
	TkHeadersResult result;
	char	   *name = "";
	int			n;

	tk_buffer_reset(&scratch, 8 * BLCKSZ);
	result = tk_headers_read(bytes.data, bytes.len, out, &n, &scratch, &culprit);
	if (scratch.failed)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	if (culprit.data != NULL)
		name = pg_any_to_server(pnstrdup(culprit.data, culprit.len), culprit.len, PG_UTF8);
	switch (result)
	{
		case TK_HEADERS_OK:
			break;
		case TK_HEADERS_NO_OBJECT:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("headers must be a JSON object")));
			break;
		case TK_HEADERS_NO_SCALAR:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("header \"%s\" must be a scalar or an array of scalars", name)));
			break;
		case TK_HEADERS_TOO_MANY:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a record can have %d headers with names of %d bytes at most",
							TK_MESSAGE_HEADERS_MAX, PG_UINT16_MAX)));
			break;
		case TK_HEADERS_BAD_CHARACTER:
			ereport(ERROR,
					(errcode(ERRCODE_UNTRANSLATABLE_CHARACTER),
					 culprit.data != NULL ? errmsg("header \"%s\" has an escape that stands for no character", name) :
					 errmsg("the name of a header has an escape that stands for no character"),
					 errdetail("\\u0000, and half of a surrogate pair, can't be part of a text.")));
			break;
		case TK_HEADERS_BAD_JSON:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
					 errmsg("headers are no valid JSON")));
			break;
	}
	return n;
}

/*
 * SQL: kafka.produce(topic text, value, key, headers kafka.headers, partition int, pipeline name) → void
 *
 * value and key: text, bytea or (value) jsonb; null = Kafka's null.
 * kafka.headers is json by another name, to which jsonb casts too.
 */
Datum
tk_produce(PG_FUNCTION_ARGS)
{
	static TkBuffer headers;
	static TkBuffer out;
	TkProduced	message = {0};
	Chosen		chosen;
	const char *problem;
	char	   *topic;
	uint8		mac[TK_MAC_SIZE];

	PreventCommandDuringRecovery("produce()");
	PreventCommandIfReadOnly("produce()");
	tk_require_preloaded();
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("topic must not be null")));
	topic = text_to_cstring(PG_GETARG_TEXT_PP(0));
	problem = tk_topic_problem(topic);
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("invalid topic \"%s\": %s", topic, problem)));
	tk_check_not_progress_topic(topic, "produce()");
	chosen = choose_pipeline(PG_ARGISNULL(5) ? NULL : NameStr(*PG_GETARG_NAME(5)));
	tk_check_topic_allowed(topic, chosen.server);
	message.pipeline_id = chosen.pipeline_id;
	message.topic = utf8_bytes(topic, strlen(topic));
	message.value = argument_bytes(fcinfo, 1);
	message.key = argument_bytes(fcinfo, 2);
	message.partition = PG_ARGISNULL(4) ? -1 : PG_GETARG_INT32(4);
	if (!PG_ARGISNULL(4) && message.partition < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition must not be negative")));
	tk_buffer_reset(&headers, BLCKSZ);
	if (!PG_ARGISNULL(3))
		message.nheaders = add_headers(&headers, PG_GETARG_TEXT_PP(3));

	/*
	 * Signed with the id of the transaction that will write it.  The id first, then the key: so who signs with an
	 * older key than the worker's newest has an id from before the worker said so.
	 */
	message.xid = U64FromFullTransactionId(GetTopFullTransactionId());
	pg_memory_barrier();
	load_session_key(chosen.catalog, pg_atomic_read_u32(&chosen.entry->signing_key));
	message.key_id = session_key.id;
	if (message.xid != last_xid)
		last_number = 0;
	last_xid = message.xid;
	message.number = ++last_number;

	tk_buffer_reset(&out, 64 * BLCKSZ);
	tk_message_format(&out, &message);
	tk_buffer_append(&out, headers.data ? headers.data : "", headers.len);
	if (out.failed || headers.failed || out.len > MaxAllocSize / 2)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the record is too large")));
	sign(&session_key, out.data, out.len, mac);
	memcpy(out.data + TK_MAC_AT, mac, TK_MAC_SIZE);
	tk_log_message(TK_MESSAGE_PREFIX, out.data, out.len);
	PG_RETURN_VOID();
}
