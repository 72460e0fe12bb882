/*
 * stream.c
 *	  Changes → records → the open Kafka transaction.
 *
 * This is the hot path, called by decoding for each message.  A record's bytes
 * are written once, into append.c's buffer, and copied once, by librdkafka.
 * What is the same for every row of a table (encoder's plan, topic handles)
 * hangs at its relation.
 *
 * With metadata headers the last record of a transaction says that it is the
 * last, so the newest record is not sent before the next one, or the commit,
 * is seen.
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "append.h"
#include "encode_outbox.h"
#include "large.h"
#include "oversize.h"
#include "pg_compat.h"
#include "pipeline.h"
#include "produce.h"
#include "topics.h"

static const TkEncoder *encoder;
static TkEncodeOptions encode_options;

static TkTransaction transaction;
static int64 transaction_records;
static uint64 last_commit_end;	/* of the transaction before; 0: none was read yet */
static int64 last_message;		/* number of the last genuine message in it */
static TimestampTz rejection_logged_at;

/* transaction_metadata: the relations that this transaction has touched */
static TkRelation **collections;
static int	ncollections;
static int	collection_capacity;
static TkTopicRoute *transaction_route;

static const TkTableSettings *
table_settings(Oid relid)
{
	const TkTableEntry *entry = tk_table_entry(relid);

	return entry ? &entry->settings : NULL;
}

static void
describe_outbox(TkRelation *relation, bool event_type)
{
	const char *missing = tk_outbox_describe(relation, event_type);

	if (missing != NULL)
		tk_stop_sticky(TK_STATE_FAILED,
					   "Publish the column; or let kafka.set_table() take the option route back: its rows are then sent as changes. Then CALL kafka.resume().",
					   "table \"%s.%s\" with the route \"outbox\" has no column \"%s\", or it is not published",
					   relation->schema, relation->table, missing);
}

/* The encoder's plan and the topic of a relation that pgoutput has described. */
static void
relation_described(TkRelation *relation, TkRelation *old)
{
	const TkTableEntry *entry = tk_table_entry(relation->relid);

	/* The extension's own tables: a publication FOR ALL TABLES has them too, and one holds a key. */
	if (strcmp(relation->schema, "kafka") == 0)
		return;
	relation->operations = entry != NULL && entry->operations != 0 ? entry->operations : tk_pipeline.options->operations;
	for (int i = 0; i < ncollections; i++)
		if (collections[i] == old)
			collections[i] = relation;
	if (entry != NULL && entry->outbox)
	{
		describe_outbox(relation, entry->event_type_header);
		return;
	}
	relation->route = tk_table_route(relation->relid, relation->schema, relation->table);
	relation->topic = ((TkTopicRoute *) relation->route)->topic;
	relation->plan = encoder->plan(&encode_options, relation);
	if (relation->plan == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
}

static void
relation_dropped(TkRelation *relation)
{
	if (relation->plan != NULL)
		encoder->free_plan(relation->plan);
}

static const TkChangeHooks hooks = {table_settings, relation_described, relation_dropped};

void
tk_stream_init(void)
{
	tk_transaction_begin();
	MemoryContextSwitchTo(tk_pipeline.context);
	encoder = tk_pipeline.options->envelope;
	encode_options.pipeline = tk_to_utf8(tk_pipeline.definition->name);
	encode_options.database = tk_to_utf8(get_database_name(MyDatabaseId));
	encode_options.version = TK_VERSION;
	encode_options.tombstones = tk_pipeline.options->tombstones;
	encode_options.metadata_headers = tk_pipeline.options->metadata_headers;
	encode_options.transaction_metadata = tk_pipeline.options->transaction_metadata;
	encode_options.json = tk_pipeline.options->json;
	encode_options.scalars = tk_pipeline.options->scalars;
	encode_options.schemas = tk_pipeline.options->schemas;
	tk_transaction_commit();

	tk_topics_init();
	tk_large_init(&encode_options);
	if (tk_pipeline.options->transaction_metadata)
	{
		char		topic[TK_TOPIC_MAX + 1];

		snprintf(topic, sizeof(topic), "%s.transaction", tk_pipeline.definition->name);
		transaction_route = tk_reserved_route(topic);
	}
	tk_change_reader_init(tk_pipeline.context, &hooks);
	tk_append_init();
}

/* A checkpoint begins with its first record. */
static void
open_checkpoint(void)
{
	if (!tk_checkpoint_move(&tk_pipeline.checkpoint, TK_CHECKPOINT_OPEN, tk_now_us()))
		elog(ERROR, "a record came while checkpoint " INT64_FORMAT " is %s",
			 tk_pipeline.checkpoint.id, tk_checkpoint_state_name(tk_pipeline.checkpoint.state));
	tk_stats_opened(&tk_pipeline.checkpoint, transaction.commit_us);
}

static void
check_buffer(const TkBuffer *buffer, const TkRelation *relation)
{
	if (!buffer->failed)
		return;
	if (relation != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a row of table \"%s.%s\" makes a record that is larger than memory or Kafka's format allows",
						relation->schema, relation->table)));
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory")));
}

static char
op_of(const TkChange *change)
{
	switch (change->operation)
	{
		case TK_INSERT:
			return 'c';
		case TK_UPDATE:
			return 'u';
		case TK_DELETE:
			return 'd';
		case TK_TRUNCATE:
			return 't';
	}
	return 0;
}

/* Of what a record says of its transaction, so short that it goes with what is sent in its place. */
static bool
stays(const TkHeader *header)
{
	static const char *const names[] = {"pg.op", "pg.xid", "pg.lsn", "pg.seq", "pg.ts"};

	for (int i = 0; i < (int) lengthof(names); i++)
		if (strcmp(header->name, names[i]) == 0)
			return true;
	return false;
}

/* What an encoder has written. change: what it is of; NULL: no row. */
static void
append_encoded(TkTopicRoute *route, const TkRecord *record, const TkChange *change)
{
	TkSpan		key = record->key;
	TkSpan		value = record->value;
	size_t		bytes = key.len + value.len;
	bool		replaced = false;

	for (int i = 0; i < record->nheaders; i++)
		bytes += record->headers[i].value.len;
	if (tk_maybe_large(route, bytes))
	{
		size_t		headers = 0;

		for (int i = 0; i < record->nheaders; i++)
			headers += tk_header_size(strlen(record->headers[i].name), record->headers[i].value);
		replaced = tk_large_replaced(&route, change ? change->relation : NULL, change ? op_of(change) : 0, &key, &value,
									 headers, record->nheaders, &transaction, change ? change->lsn : transaction.commit_lsn);
		check_buffer(tk_append_buffer(), change ? change->relation : NULL);
	}
	tk_append(route, TK_PARTITION_BY_KEY, key, value);
	for (int i = 0; i < record->nheaders; i++)
		if (!replaced || stays(&record->headers[i]))
			tk_append_header(record->headers[i].name, 0, record->headers[i].value);
	transaction_records++;
}

/* Debezium's BEGIN and END of a transaction, on a topic of their own. */
static void
send_transaction_marker(bool end)
{
	TkBuffer   *buffer = tk_append_buffer();
	TkRecord	record;

	tk_encode_transaction(&encode_options, &transaction, end, collections, ncollections, buffer, &record);
	check_buffer(buffer, NULL);
	append_encoded(transaction_route, &record, NULL);
}

static void
note_collection(TkRelation *relation)
{
	for (int i = 0; i < ncollections; i++)
		if (collections[i] == relation)
			return;
	if (ncollections == collection_capacity)
	{
		collection_capacity = Max(16, 2 * collection_capacity);
		if (collections == NULL)
			collections = MemoryContextAlloc(tk_pipeline.context, collection_capacity * sizeof(TkRelation *));
		else
			collections = repalloc(collections, collection_capacity * sizeof(TkRelation *));
	}
	collections[ncollections++] = relation;
}

/* Owned publications select the operations; a user's may publish more than the pipeline sends. */
static bool
operation_wanted(const TkChange *change)
{
	int			wanted = change->relation->operations;

	switch (change->operation)
	{
		case TK_INSERT:
			return (wanted & TK_OP_INSERT) != 0;
		case TK_UPDATE:
			return (wanted & TK_OP_UPDATE) != 0;
		case TK_DELETE:
			return (wanted & TK_OP_DELETE) != 0;
		case TK_TRUNCATE:
			return (wanted & TK_OP_TRUNCATE) != 0;
	}
	return false;
}

/* Something of a table will be sent. */
static void
begin_event(TkRelation *relation)
{
	if (tk_pipeline.checkpoint.state != TK_CHECKPOINT_OPEN)
		open_checkpoint();
	if (!tk_pipeline.options->transaction_metadata)
		return;
	if (transaction.total_order == 0)
		send_transaction_marker(false);
	note_collection(relation);
}

/* The start of a text value, for people. */
static char *
beginning(const TkValue *value)
{
	if (value->kind != TK_VALUE_TEXT)
		return pstrdup("null");
	return psprintf("\"%s\"", pnstrdup(value->data, pg_encoding_mbcliplen(PG_UTF8, value->data, (int) value->len, 60)));
}

/* A row of an outbox: its record. */
static void
stream_outbox(const TkChange *change)
{
	const TkRelation *relation = change->relation;
	TkBuffer   *buffer = tk_append_buffer();
	char		topic[TK_TOPIC_MAX + 1];
	TkTopicRoute *route;
	TkRecord	record;
	const char *problem;

	if (change->operation != TK_INSERT)
		return;
	problem = tk_outbox_topic(change, topic);
	if (problem != NULL)
		tk_stop_sticky(TK_STATE_FAILED,
					   "Let kafka.set_table() take the option route back, and CALL kafka.resume(): its rows are sent as changes.",
					   "aggregatetype %s of outbox \"%s.%s\", id %s, at %X/%X, makes no topic: %s",
					   beginning(&change->new[relation->outbox.aggregatetype]), relation->schema, relation->table,
					   beginning(&change->new[relation->outbox.id]), LSN_FORMAT_ARGS((XLogRecPtr) change->lsn), problem);
	begin_event(change->relation);
	route = tk_outbox_route(relation->relid, topic);
	tk_outbox_encode(&encode_options, &transaction, change, buffer, &record);
	check_buffer(buffer, relation);
	append_encoded(route, &record, change);
	tk_append_done(encode_options.metadata_headers);
}

static void
stream_change(const TkChange *change)
{
	TkRelation *relation = change->relation;
	TkBuffer   *buffer = tk_append_buffer();
	TkRecord	records[TK_MAX_RECORDS];
	int			n;

	/* Without a route it is an outbox, or one of the extension's own tables. */
	if (relation->outbox.routed)
	{
		stream_outbox(change);
		return;
	}
	if (relation->route == NULL || !operation_wanted(change))
		return;
	begin_event(relation);
	n = encoder->encode(&encode_options, relation->plan, &transaction, change, buffer, records);
	check_buffer(buffer, relation);
	for (int i = 0; i < n; i++)
		append_encoded(relation->route, &records[i], change);
	tk_append_done(encode_options.metadata_headers);
}

/* Not ours, forged, or repeated: counted, and logged once a minute. */
static void
reject_message(void)
{
	TimestampTz now = GetCurrentTimestamp();

	pg_atomic_fetch_add_u64(&tk_pipeline.entry->rejected, 1);
	if (!TimestampDifferenceExceeds(rejection_logged_at, now, 60000))
		return;
	rejection_logged_at = now;
	ereport(LOG,
			(errmsg("pipeline \"%s\" ignored a message of transaction %u that kafka.produce() has not written",
					NameStr(tk_pipeline.entry->name), transaction.xid),
			 errdetail("Such messages so far: " UINT64_FORMAT ".", pg_atomic_read_u64(&tk_pipeline.entry->rejected))));
}

/* A copy in the buffer. */
static TkSpan
keep_bytes(TkBuffer *buffer, TkMessageBytes bytes)
{
	TkSpan		span = {buffer->len, bytes.len};

	if (bytes.data == NULL)
		return TK_NULL_SPAN;
	tk_buffer_append(buffer, bytes.data, bytes.len);
	return span;
}

/* What its headers take in a record. */
static size_t
produced_headers(const TkMessage *message, const TkProduced *produced)
{
	size_t		at = produced->headers_at;
	size_t		size = 0;

	for (int i = 0; i < produced->nheaders; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;
		TkSpan		span = TK_NULL_SPAN;

		tk_message_header(message->content, &at, &name, &value);
		if (value.data != NULL)
			span = (TkSpan)
		{
			0, value.len
		};
		size += tk_header_size(name.len, span);
	}
	return size;
}

static void
append_produced_headers(const TkMessage *message, const TkProduced *produced)
{
	TkBuffer   *buffer = tk_append_buffer();
	size_t		at = produced->headers_at;

	for (int i = 0; i < produced->nheaders; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;
		size_t		name_at = buffer->len;

		tk_message_header(message->content, &at, &name, &value);
		tk_buffer_append(buffer, name.data, name.len);
		tk_buffer_char(buffer, '\0');
		tk_append_header(NULL, name_at, keep_bytes(buffer, value));
	}
}

/* A record of kafka.produce(): its bytes go out as they are. */
static void
stream_message(const TkMessage *message, XLogRecPtr lsn)
{
	TkBuffer   *buffer = tk_append_buffer();
	TkProduced	produced;
	TkTopicRoute *route;
	TkSpan		key;
	TkSpan		value;
	int			partition = TK_PARTITION_BY_KEY;
	bool		replaced;
	char		topic[TK_TOPIC_MAX + 1];

	if (strcmp(message->prefix, TK_MESSAGE_PREFIX) != 0)
		return;
	if (!message->transactional ||
		!tk_produce_verify(message->content, message->content_len, tk_pipeline.definition->pipeline_id,
						   transaction.xid, last_message, &produced))
	{
		/* Genuine, but through another pipeline of this database: not a word. */
		if (!message->transactional ||
			!tk_message_parse(message->content, message->content_len, &produced) ||
			produced.pipeline_id == tk_pipeline.definition->pipeline_id)
			reject_message();
		return;
	}
	last_message = produced.number;
	snprintf(topic, sizeof(topic), "%.*s", (int) produced.topic.len, produced.topic.data);
	if (strcmp(topic, tk_pipeline.progress_topic) == 0)
	{
		/* produce() refuses that; our position must not be forged by a race with it. */
		reject_message();
		return;
	}
	if (tk_pipeline.checkpoint.state != TK_CHECKPOINT_OPEN)
		open_checkpoint();

	/* Room for its copy, with NULs behind the headers' names. */
	if (!tk_buffer_reserve(buffer, message->content_len + produced.nheaders))
		check_buffer(buffer, NULL);
	route = tk_find_route(topic);
	key = keep_bytes(buffer, produced.key);
	value = keep_bytes(buffer, produced.value);
	replaced = tk_maybe_large(route, message->content_len) &&
		tk_large_replaced(&route, NULL, 0, &key, &value, produced_headers(message, &produced), produced.nheaders,
						  &transaction, lsn);
	check_buffer(buffer, NULL);
	if (!replaced && produced.partition >= 0)
		partition = produced.partition;
	tk_append(route, partition, key, value);
	if (!replaced)
		append_produced_headers(message, &produced);
	transaction_records++;
	tk_append_done(encode_options.metadata_headers);
}

static void
begin_transaction(const TkMessage *message)
{
	memset(&transaction, 0, sizeof(transaction));
	transaction.xid = message->xid;
	transaction.commit_lsn = message->commit_lsn;
	transaction.previous_commit_lsn = last_commit_end;
	transaction.commit_us = message->commit_us;
	transaction.processing_us = GetCurrentTimestamp() +
		((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	transaction_records = 0;
	last_message = 0;
	ncollections = 0;
}

/* Only here does the checkpoint's position move: by whole transactions. */
static void
end_transaction(const TkMessage *message)
{
	TkBuffer   *buffer = tk_append_buffer();

	last_commit_end = message->end_lsn;
	if (transaction_records == 0)
		return;
	if (encode_options.metadata_headers)
	{
		TkSpan		value = {buffer->len, strlen("true")};

		tk_buffer_string(buffer, "true");
		check_buffer(buffer, NULL);
		tk_append_header("pg.last", 0, value);
	}
	if (transaction.total_order > 0 && tk_pipeline.options->transaction_metadata)
		send_transaction_marker(true);
	tk_pipeline.checkpoint.transactions++;
	tk_pipeline.checkpoint.end_lsn = message->end_lsn;
	tk_stats_transaction(&tk_pipeline.checkpoint, transaction.commit_us);
	tk_pipeline.boundary = true;
}

void
tk_stream_message(StringInfo bytes, XLogRecPtr lsn)
{
	TkMessage	message;

	tk_change_read(bytes, lsn, &message);
	switch (message.kind)
	{
		case TK_MESSAGE_BEGIN:
			begin_transaction(&message);
			break;
		case TK_MESSAGE_COMMIT:
			end_transaction(&message);
			break;
		case TK_MESSAGE_CHANGE:
			stream_change(&message.change);
			break;
		case TK_MESSAGE_TRUNCATE:
			for (int i = 0; i < message.nrelations; i++)
			{
				message.change.relation = message.relations[i];
				stream_change(&message.change);
			}
			break;
		case TK_MESSAGE_LOGICAL:
			stream_message(&message, lsn);
			break;
		case TK_MESSAGE_RELATION:
		case TK_MESSAGE_OTHER:
			break;
	}
}
