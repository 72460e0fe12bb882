/*
 * topics.c
 *	  The topics of a pipeline: which table has which, and that they exist.
 *
 * Names of tables are longer and freer than those of topics, so two tables may
 * come to the same topic.  Whoever defines a pipeline, renames a table or alters
 * a publication is told so at once (checks.c).  But a table can join a
 * publication without any of these: FOR ALL TABLES and FOR TABLES IN SCHEMA take
 * what is created, and event triggers can be switched off.  So the worker looks
 * again, each time that pgoutput describes a table, and stops rather than mix
 * two tables in one topic.
 *
 * It looks at the time of the change: a topic goes from one table to another
 * when the first was dropped, renamed, or left the publication before.
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "catalog/pg_publication.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "pg_compat.h"
#include "route.h"
#include "large.h"
#include "topics.h"
#include "wal_source.h"

/* How long a topic may take to be described or created. */
#define TOPIC_PATIENCE_US INT64CONST(30000000)

/* How long a start waits to be told the limits of topics, and of so many at a time. */
#define LIMITS_PATIENCE_US INT64CONST(5000000)
#define LIMITS_AT_A_TIME 200

static HTAB *routes;

/* The end of the WAL when all tables' topics were looked at; Invalid: they are just now, before anything is read */
static XLogRecPtr claimed_until = InvalidXLogRecPtr;
static bool started = false;	/* the topics of all tables are there, and their limits have been asked for */

void
tk_topics_init(void)
{
	HASHCTL		control = {0};

	control.keysize = TK_TOPIC_MAX + 1;
	control.entrysize = sizeof(TkTopicRoute);
	control.hcxt = tk_pipeline.context;
	routes = hash_create("transactional_kafka topics", 64, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

const TkTableEntry *
tk_table_entry(Oid relid)
{
	ListCell   *lc;

	foreach(lc, tk_pipeline.tables)
	{
		TkTableEntry *entry = (TkTableEntry *) lfirst(lc);

		if (entry->relid == relid)
			return entry;
	}
	return NULL;
}

void
tk_ensure_topic(const char *topic, const TkTopicSpec *spec)
{
	TkProducer *producer = tk_pipeline.producers[tk_pipeline.current];	/* the other one may be at work */
	int64		deadline = tk_now_us() + TOPIC_PATIENCE_US;
	TkKafkaError error;
	int			partitions = 0;
	char		doing[TK_TOPIC_MAX + 32];

	snprintf(doing, sizeof(doing), "looking for topic \"%s\"", topic);
	while (tk_kafka_again(tk_topic_describe(producer, topic, &tk_kafka_slice, &partitions, &error),
						  &error, deadline, doing))
		 /* again */ ;
	if (partitions > 0)
		return;
	if (!tk_pipeline.options->create_topics)
		tk_stop_sticky(TK_STATE_FAILED,
					   "Create the topic, or set the option create_topics to true; then CALL kafka.resume().",
					   "topic \"%s\" does not exist and create_topics is false", topic);

	snprintf(doing, sizeof(doing), "creating topic \"%s\"", topic);
	while (tk_kafka_again(tk_topic_create(producer, topic, spec, &tk_kafka_slice, &error), &error, deadline, doing))
		 /* again */ ;
	ereport(LOG, (errmsg("pipeline \"%s\" created topic \"%s\"", NameStr(tk_pipeline.entry->name), topic)));
}

/* Of a topic that may not exist yet. */
static TkTopicRoute *
route_entry(const char *topic)
{
	char		key[TK_TOPIC_MAX + 1] = {0};
	TkTopicRoute *route;
	bool		found;

	strlcpy(key, topic, sizeof(key));
	route = hash_search(routes, key, HASH_ENTER, &found);
	if (!found)
		memset((char *) route + sizeof(key), 0, sizeof(TkTopicRoute) - sizeof(key));
	return route;
}

/*
 * Asks for the topics' max.message.bytes; where that is not to be had, the
 * broker's refusal will tell.
 */
static void
ask_limits(TkTopicRoute **asked, int n)
{
	TkProducer *producer = tk_pipeline.producers[tk_pipeline.current];
	int64		deadline = tk_now_us() + LIMITS_PATIENCE_US;
	const char *topics[LIMITS_AT_A_TIME];
	size_t		limits[LIMITS_AT_A_TIME];
	TkKafkaStatus status;
	TkKafkaError error;

	for (int i = 0; i < n; i++)
		topics[i] = asked[i]->topic;
	while ((status = tk_topic_limits(producer, topics, n, &tk_kafka_slice, limits, &error)) == TK_KAFKA_RETRY &&
		   tk_now_us() < deadline)
		(void) tk_kafka_again(status, &error, PG_INT64_MAX, "reading the limits of topics");
	tk_wait_end();
	if (status == TK_KAFKA_OK)
		(void) tk_kafka_again(status, &error, PG_INT64_MAX, "reading the limits of topics");
	else
		ereport(LOG,
				(errmsg("pipeline \"%s\" can't ask for the limits of its topics: %s",
						NameStr(tk_pipeline.entry->name), error.message),
				 errdetail("A record that is larger than one takes is found out by sending it.")));
	for (int i = 0; i < n; i++)
	{
		static bool said = false;

		asked[i]->asked = true;
		asked[i]->max_batch = limits[i];	/* 0: not known */
		tk_large_note_limit(asked[i]);
		if (status != TK_KAFKA_OK || limits[i] > 0 || said)
			continue;
		said = true;
		ereport(LOG,
				(errmsg("pipeline \"%s\" may not ask for the max.message.bytes of topic \"%s\", and perhaps others",
						NameStr(tk_pipeline.entry->name), asked[i]->topic),
				 errdetail("A record that is larger is found out by sending it."),
				 errhint("Grant the ACL DescribeConfigs on the topic.")));
	}
}

/* Batches of the producers' size would be too large for that topic; true: now that is known. */
static bool
batches_too_large(const TkTopicRoute *route)
{
	TkPipelineEntry *entry = tk_pipeline.entry;

	if (route->max_batch == 0 || route->max_batch >= tk_producer_batch_size(tk_pipeline.producers[tk_pipeline.current]))
		return false;
	if (entry->batch_limit == 0 || (int64) route->max_batch < entry->batch_limit)
		entry->batch_limit = (int64) route->max_batch;
	return true;
}

/* At the start: of all topics that exist, before the first transaction is begun. */
static void
ask_all_limits(void)
{
	HASH_SEQ_STATUS status;
	TkTopicRoute *route;
	TkTopicRoute *asked[LIMITS_AT_A_TIME];
	int			n = 0;
	bool		renew = false;

	hash_seq_init(&status, routes);
	while ((route = hash_seq_search(&status)) != NULL)
	{
		if (!route->exists || route->asked)
			continue;
		asked[n++] = route;
		if (n == LIMITS_AT_A_TIME)
		{
			ask_limits(asked, n);
			n = 0;
		}
	}
	if (n > 0)
		ask_limits(asked, n);

	hash_seq_init(&status, routes);
	while ((route = hash_seq_search(&status)) != NULL)
		renew |= batches_too_large(route);
	if (renew)
	{
		for (int i = 0; i < tk_pipeline.pool_size; i++)
			tk_pool_renew(i);
	}
	started = true;
}

static void
ensure_route(TkTopicRoute *route)
{
	TkTopicSpec spec = {0};

	if (route->exists)
		return;
	spec.partitions = tk_pipeline.options->topic_partitions;
	spec.replication_factor = tk_pipeline.options->topic_replication_factor;
	spec.nconfigs = tk_pipeline.options->ntopic_configs;
	spec.configs = tk_pipeline.options->topic_configs;
	tk_ensure_topic(route->topic, &spec);
	route->exists = true;
	if (!started)
		return;
	ask_limits(&route, 1);

	/* A transaction may be open, and records on their way: a start knows it then.  Nothing has failed. */
	if (batches_too_large(route))
	{
		ereport(LOG,
				(errmsg("pipeline \"%s\" starts anew with smaller batches: topic \"%s\" takes no more than %zu bytes",
						NameStr(tk_pipeline.entry->name), route->topic, route->max_batch)));
		tk_stopping = true;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("batches are larger than topic \"%s\" takes", route->topic)));
	}
}

TkTopicRoute *
tk_find_route(const char *topic)
{
	TkTopicRoute *route = route_entry(topic);

	ensure_route(route);
	return route;
}

TkTopicRoute *
tk_reserved_route(const char *topic)
{
	TkTopicRoute *route = tk_find_route(topic);

	route->reserved = true;
	return route;
}

/* ----------------------------------------------------------------
 * Tables
 * ----------------------------------------------------------------
 */

static void
table_topic(Oid relid, const char *schema, const char *table, char topic[TK_TOPIC_MAX + 1])
{
	const TkTableEntry *entry = tk_table_entry(relid);
	const char *problem = tk_route_topic(tk_pipeline.definition->name, schema, table,
										 entry ? entry->settings.topic : NULL, topic);

	if (problem != NULL)
		tk_stop_sticky(TK_STATE_FAILED, "Give the table a topic with kafka.set_table(), then CALL kafka.resume().",
					   "topic of table \"%s.%s\": %s", schema, table, problem);
	if (strcmp(topic, tk_pipeline.progress_topic) == 0)
		tk_stop_sticky(TK_STATE_FAILED, "Give the table another topic with kafka.set_table(), then CALL kafka.resume().",
					   "topic of table \"%s.%s\": \"%s\" is the progress topic", schema, table, topic);
}

/* A table of the user's publication, as far as that says so of one table. */
static bool
is_member(Oid publication, Oid relid)
{
	return list_member_oid(GetRelationPublications(relid), publication) ||
		list_member_oid(tk_schema_publications(get_rel_namespace(relid)), publication);
}

/* Is it there, and published by its own name? */
static bool
is_published(Oid relid)
{
	const TkDefinition *d = tk_pipeline.definition;
	Publication *publication;
	ListCell   *lc;
	bool		partition = get_rel_relispartition(relid);

	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		return false;
	if (d->publication == NULL)
		return true;
	publication = GetPublication(d->publication_oid);
	if (publication->alltables)
		return !(partition && publication->pubviaroot);
	if (is_member(publication->oid, relid))
		return true;
	if (partition && !publication->pubviaroot)
	{
		foreach(lc, get_partition_ancestors(relid))
			if (is_member(publication->oid, lfirst_oid(lc)))
			return true;
	}
	return false;
}

/* Do rows of that table go to the topic by its name? */
static bool
has_default_topic(Oid relid, const char *topic)
{
	char	   *table = get_rel_name(relid);
	char	   *schema = table != NULL ? get_namespace_name(get_rel_namespace(relid)) : NULL;
	char		its[TK_TOPIC_MAX + 1];

	if (schema == NULL)
		return false;
	table_topic(relid, tk_to_utf8(schema), tk_to_utf8(table), its);
	return strcmp(its, topic) == 0;
}

static char *
table_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid));
}

/* Another table whose rows go to the topic by right; Invalid: none. */
static Oid
rival_of(Oid relid, const TkTopicRoute *route, bool given)
{
	ListCell   *lc;

	if (OidIsValid(route->table) && route->table != relid && is_published(route->table) &&
		has_default_topic(route->table, route->topic))
		return route->table;
	if (given)
		return InvalidOid;
	if (OidIsValid(route->outbox) && route->outbox != relid && is_published(route->outbox))
		return route->outbox;

	/*
	 * What kafka.set_table() says now is compared with the names of now, when it is said and when we start.  The
	 * past had other names; only a table that was made since can come by unseen.
	 */
	if (claimed_until != InvalidXLogRecPtr && tk_wal_position() <= claimed_until)
		return InvalidOid;
	foreach(lc, tk_pipeline.tables)
	{
		TkTableEntry *entry = (TkTableEntry *) lfirst(lc);

		if (entry->relid != relid && entry->settings.topic != NULL &&
			strcmp(entry->settings.topic, route->topic) == 0 && is_published(entry->relid))
			return entry->relid;
	}
	return InvalidOid;
}

/* From now on the topic is that table's. */
static void
claim(TkTopicRoute *route, Oid relid, const char *schema, const char *table)
{
	const TkTableEntry *entry = tk_table_entry(relid);
	bool		given = entry != NULL && entry->settings.topic != NULL;
	Oid			rival;

	if (route->reserved)
		tk_stop_sticky(TK_STATE_FAILED, "Give the table another topic with kafka.set_table(), then CALL kafka.resume().",
					   "topic of table \"%s.%s\": \"%s\" is for what the pipeline itself writes",
					   schema, table, route->topic);
	rival = rival_of(relid, route, given);
	if (OidIsValid(rival))
		tk_stop_sticky(TK_STATE_FAILED,
					   "Give one of them a topic of its own with kafka.set_table(), then CALL kafka.resume().",
					   "tables %s and \"%s.%s\" would share the topic \"%s\"", table_name(rival), schema, table,
					   route->topic);
	if (!given)
		route->table = relid;
}

TkTopicRoute *
tk_table_route(Oid relid, const char *schema, const char *table)
{
	char		topic[TK_TOPIC_MAX + 1];
	TkTopicRoute *route;

	table_topic(relid, schema, table, topic);
	route = route_entry(topic);
	claim(route, relid, schema, table);
	ensure_route(route);
	return route;
}

TkTopicRoute *
tk_outbox_route(Oid relid, const char *topic)
{
	TkTopicRoute *route = route_entry(topic);
	Oid			rival;

	if (route->outbox == relid)
		return route;
	if (route->reserved || strcmp(topic, tk_pipeline.progress_topic) == 0)
		tk_stop_sticky(TK_STATE_FAILED,
					   "Let kafka.set_table() take the option route back, and CALL kafka.resume(): its rows are sent as changes.",
					   "outbox %s: the topic \"%s\" is for what the pipeline itself writes", table_name(relid), topic);

	/* Several outboxes may share it: they say so themselves. */
	rival = rival_of(relid, route, true);
	if (OidIsValid(rival))
		tk_stop_sticky(TK_STATE_FAILED,
					   "Give the table another topic with kafka.set_table(), then CALL kafka.resume().",
					   "table %s and outbox %s would share the topic \"%s\"", table_name(rival), table_name(relid), topic);
	ensure_route(route);
	route->outbox = relid;
	return route;
}

void
tk_stream_ensure_topics(void)
{
	List	   *tables;
	List	   *theirs = NIL;
	ListCell   *lc;

	/* All claims before the first topic is made. */
	tk_transaction_begin();
	MemoryContextSwitchTo(tk_pipeline.context);
	tables = tk_published_tables(tk_pipeline.definition);
	foreach(lc, tables)
	{
		TkTableName *table = (TkTableName *) lfirst(lc);
		const TkTableEntry *entry = tk_table_entry(table->relid);
		char		topic[TK_TOPIC_MAX + 1];
		TkTopicRoute *route;

		if (entry != NULL && entry->outbox)
			continue;
		table_topic(table->relid, table->schema, table->table, topic);
		route = route_entry(topic);
		claim(route, table->relid, table->schema, table->table);
		theirs = lappend(theirs, route);
	}
	claimed_until = tk_flush_position(NULL);
	tk_transaction_commit();
	MemoryContextSwitchTo(tk_pipeline.context);

	foreach(lc, theirs)
		ensure_route((TkTopicRoute *) lfirst(lc));
	ask_all_limits();
	list_free(theirs);
	list_free_deep(tables);
}

/* ----------------------------------------------------------------
 * While it runs
 * ----------------------------------------------------------------
 */

/* False: nobody answers, so there is nothing to say. */
static bool
stop_if_missing(const char *topic)
{
	int			partitions = 0;
	TkKafkaError error;

	CHECK_FOR_INTERRUPTS();
	if (tk_stop_wanted() ||
		tk_topic_describe(tk_pipeline.producers[tk_pipeline.current], topic, &tk_kafka_slice, &partitions, &error) != TK_KAFKA_OK)
		return false;
	if (partitions == 0)
		tk_stop_sticky(TK_STATE_FAILED, "Create the topic, then CALL kafka.resume().",
					   "topic \"%s\" was deleted", topic);
	return true;
}

void
tk_stream_find_missing_topic(void)
{
	HASH_SEQ_STATUS status;
	TkTopicRoute *route;
	List	   *topics = NIL;
	ListCell   *lc;

	hash_seq_init(&status, routes);
	while ((route = hash_seq_search(&status)) != NULL)
		if (route->exists)
			topics = lappend(topics, route->topic);
	if (stop_if_missing(tk_pipeline.progress_topic))
	{
		foreach(lc, topics)
		{
			if (!stop_if_missing((const char *) lfirst(lc)))
				break;
		}
	}
	list_free(topics);
}

void
tk_stream_forget_producer(int index)
{
	HASH_SEQ_STATUS status;
	TkTopicRoute *route;

	hash_seq_init(&status, routes);
	while ((route = hash_seq_search(&status)) != NULL)
		route->handles[index] = NULL;
}
