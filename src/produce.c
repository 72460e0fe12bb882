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
 */
#include "postgres.h"

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
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "catalog.h"
#include "pg_compat.h"
#include "produce.h"
#include "registry.h"
#include "route.h"

PG_FUNCTION_INFO_V1(tk_make_key);
PG_FUNCTION_INFO_V1(tk_produce);

#define KEY_SIZE 32

typedef struct SigningKey
{
	uint32		id;
	uint8		key[KEY_SIZE];
} SigningKey;

/* The newest key, in a session that produces; 0 = not read yet. */
static SigningKey session_key;
static Oid	session_key_table = InvalidOid;

/* All keys, in a worker. */
static SigningKey *worker_keys = NULL;
static int	nworker_keys = 0;

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
copy_key(SigningKey *key, uint64 row)
{
	bool		isnull;
	bytea	   *bytes;

	key->id = (uint32) DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1, &isnull));
	bytes = DatumGetByteaPP(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 2, &isnull));
	if (VARSIZE_ANY_EXHDR(bytes) != KEY_SIZE)
		elog(ERROR, "key %u of kafka.produce_key has a wrong size", key->id);
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

static const char *const load_keys = "SELECT key_id, key FROM kafka.produce_key ORDER BY key_id";

void
tk_produce_load_keys(MemoryContext context)
{
	int			result = SPI_execute(load_keys, true, 0);

	if (result != SPI_OK_SELECT)
		elog(ERROR, "could not read kafka.produce_key: %s", SPI_result_code_string(result));
	nworker_keys = (int) SPI_processed;
	worker_keys = MemoryContextAlloc(context, sizeof(SigningKey) * Max(nworker_keys, 1));
	for (int i = 0; i < nworker_keys; i++)
		copy_key(&worker_keys[i], i);
}

/* The key table has changed, or was dropped with the extension and made anew. */
static void
forget_session_key(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == session_key_table)
		session_key.id = 0;
}

static void
load_session_key(void)
{
	static bool registered = false;
	Privileged	saved;
	int			result;

	if (session_key.id != 0)
		return;
	if (!registered)
	{
		CacheRegisterRelcacheCallback(forget_session_key, (Datum) 0);
		registered = true;
	}
	SPI_connect();
	tk_begin_privileged(&saved);
	session_key_table = get_relname_relid("produce_key", get_namespace_oid("kafka", false));

	/* A snapshot of its own: an older one of the caller's may not see a newer key yet, which is fine for both. */
	result = SPI_execute(load_keys, false, 0);
	if (result != SPI_OK_SELECT || SPI_processed == 0)
		elog(ERROR, "kafka.produce_key has no key");
	copy_key(&session_key, SPI_processed - 1);
	tk_end_privileged(&saved);
	SPI_finish();
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
	NameData	name;
	int32		pipeline_id;
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
static int32
choose_pipeline(const char *name)
{
	Chosen		chosen;
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
	return chosen.pipeline_id;
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

static void
add_header(TkBuffer *out, int *n, const JsonbValue *name, const JsonbValue *value)
{
	TkMessageBytes key = utf8_bytes(name->val.string.val, name->val.string.len);
	TkMessageBytes bytes = {NULL, 0};
	char	   *text;

	switch (value->type)
	{
		case jbvNull:
			break;
		case jbvString:
			bytes = utf8_bytes(value->val.string.val, value->val.string.len);
			break;
		case jbvNumeric:
			text = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
			bytes = utf8_bytes(text, strlen(text));
			break;
		case jbvBool:
			bytes = utf8_bytes(value->val.boolean ? "true" : "false", value->val.boolean ? 4 : 5);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("header \"%.*s\" must be a scalar or an array of scalars",
							name->val.string.len, name->val.string.val)));
	}
	if (key.len > PG_UINT16_MAX || ++*n > TK_MESSAGE_HEADERS_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a record can have %d headers with names of %d bytes at most",
						TK_MESSAGE_HEADERS_MAX, PG_UINT16_MAX)));
	tk_message_add_header(out, key, bytes);
}

/* {"a": "1", "b": ["2", "3"]}: an array repeats its name. */
static int
add_headers(TkBuffer *out, Jsonb *headers)
{
	JsonbIterator *it = JsonbIteratorInit(&headers->root);
	JsonbValue	name;
	JsonbValue	value;
	int			n = 0;

	if (!JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers must be a JSON object")));
	(void) JsonbIteratorNext(&it, &name, false);
	while (JsonbIteratorNext(&it, &name, true) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&it, &value, true);
		if (value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data))
		{
			JsonbIterator *elements = JsonbIteratorInit(value.val.binary.data);
			JsonbValue	element;

			(void) JsonbIteratorNext(&elements, &element, false);
			while (JsonbIteratorNext(&elements, &element, true) == WJB_ELEM)
				add_header(out, &n, &name, &element);
		}
		else
			add_header(out, &n, &name, &value);
	}
	return n;
}

/*
 * SQL: kafka.produce(topic text, value, key, headers jsonb, partition int, pipeline name) → void
 *
 * value and key: text, bytea or (value) jsonb; null = Kafka's null.
 */
Datum
tk_produce(PG_FUNCTION_ARGS)
{
	static TkBuffer headers;
	static TkBuffer out;
	TkProduced	message = {0};
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
	message.pipeline_id = choose_pipeline(PG_ARGISNULL(5) ? NULL : NameStr(*PG_GETARG_NAME(5)));
	message.topic = utf8_bytes(topic, strlen(topic));
	message.value = argument_bytes(fcinfo, 1);
	message.key = argument_bytes(fcinfo, 2);
	message.partition = PG_ARGISNULL(4) ? -1 : PG_GETARG_INT32(4);
	if (!PG_ARGISNULL(4) && message.partition < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition must not be negative")));
	load_session_key();
	message.key_id = session_key.id;

	/* Signed with the id of the transaction that will write it. */
	message.xid = U64FromFullTransactionId(GetTopFullTransactionId());
	if (message.xid != last_xid)
		last_number = 0;
	last_xid = message.xid;
	message.number = ++last_number;

	tk_buffer_reset(&headers, BLCKSZ);
	tk_buffer_reset(&out, 64 * BLCKSZ);
	if (!PG_ARGISNULL(3))
		message.nheaders = add_headers(&headers, PG_GETARG_JSONB_P(3));
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
