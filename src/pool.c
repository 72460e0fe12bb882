/*
 * pool.c
 *	  The pool of transactional ids: max_concurrent_checkpoints + 1 producers,
 *	  used in turn.  While one's transaction is on its way, the next one's is
 *	  filled; a second transaction on the same id right after a commit would
 *	  stall.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"

#include "pg_compat.h"
#include "pipeline.h"

/* Taking over an id may wait for a transaction that is just being ended. */
#define INIT_PATIENCE_US INT64CONST(60000000)

char *
tk_transactional_id(const char *prefix, int i)
{
	return psprintf("%s.%s.%d", prefix, tk_pipeline.definition->name, i);
}

/* Once a process: what kafka_rpc.c can't do costs a replay at the next start after a crash, no more. */
void
tk_no_redrive(const TkKafkaError *error)
{
	static bool logged = false;

	if (!logged)
		ereport(LOG,
				(errmsg("pipeline \"%s\" can't ask Kafka about its transactions: %s",
						NameStr(tk_pipeline.entry->name), error->message),
				 errdetail("What a crash interrupts between the two commits is sent again instead of being committed.")));
	logged = true;
}

/*
 * The server's properties, but with batches that every topic takes that is
 * known: librdkafka has one batch.size for all, and the broker refuses a batch
 * that is over the topic's max.message.bytes.
 */
static TkKafkaConf
producer_conf(void)
{
	TkKafkaConf conf = *tk_pipeline.conf;
	TkKafkaProperty *properties;

	if (tk_pipeline.entry->batch_limit == 0)
		return conf;
	properties = palloc((conf.nproperties + 1) * sizeof(TkKafkaProperty));
	memcpy(properties, conf.properties, conf.nproperties * sizeof(TkKafkaProperty));
	for (int i = 0; i < conf.nproperties; i++)
	{
		/* The user's are smaller? */
		if (strcmp(properties[i].name, "batch.size") != 0)
			continue;
		if (strtoll(properties[i].value, NULL, 10) <= tk_pipeline.entry->batch_limit)
			return conf;
		properties[i] = properties[--conf.nproperties];
		break;
	}
	properties[conf.nproperties].name = "batch.size";
	properties[conf.nproperties].value = psprintf(INT64_FORMAT, tk_pipeline.entry->batch_limit);
	conf.nproperties++;
	conf.properties = properties;
	return conf;
}

static void
create_producer(int i)
{
	TkPipeline *p = &tk_pipeline;
	TkKafkaConf conf = producer_conf();
	TkKafkaError error;
	char	   *id = tk_transactional_id(p->prefix, i);
	TkDescriber *describer;

	p->producers[i] = tk_producer_create(&conf, id, p->options->transaction_timeout, &error);
	if (p->producers[i] == NULL)
		tk_kafka_failed("creating a producer", &error);
	describer = tk_describer_create(p->conf, id, &error);
	if (describer != NULL)
		tk_producer_describe_by(p->producers[i], describer);
	else
		tk_no_redrive(&error);
	pfree(id);
	p->progress_topics[i] = tk_producer_topic(p->producers[i], p->progress_topic, &error);
	if (p->progress_topics[i] == NULL)
		tk_kafka_failed("opening the progress topic", &error);
}

void
tk_pool_create(void)
{
	tk_pipeline.pool_size = tk_pipeline.options->max_concurrent_checkpoints + 1;
	for (int i = 0; i < tk_pipeline.pool_size; i++)
		create_producer(i);
}

void
tk_pool_init(TkProducer *producer)
{
	int64		deadline = tk_now_us() + INIT_PATIENCE_US;
	char		doing[300];

	snprintf(doing, sizeof(doing), "taking over transactional id \"%s\"", tk_producer_transactional_id(producer));
	tk_await_init(producer, deadline, doing);
}

void
tk_pool_renew(int i)
{
	TkPipeline *p = &tk_pipeline;

	tk_stream_forget_producer(i);
	(void) tk_producer_destroy(p->producers[i], false, TK_EXIT_PATIENCE_MS);
	p->producers[i] = NULL;
	create_producer(i);
	tk_pool_init(p->producers[i]);
}

void
tk_begin_ahead(void)
{
	TkPipeline *p = &tk_pipeline;
	TkKafkaError error;

	if (p->begun)
		return;
	if (tk_producer_begin(p->producers[p->current], &error) != TK_KAFKA_OK)
		tk_kafka_failed("beginning a transaction", &error);
	p->begun = true;
}

void
tk_open_transaction(void)
{
	TkPipeline *p = &tk_pipeline;

	if (p->transaction_open)
		return;
	tk_begin_ahead();
	p->transaction_open = true;
	p->opened_us = tk_now_us();
}

void
tk_append_progress(int64 checkpoint_id, bool start)
{
	TkPipeline *p = &tk_pipeline;
	TkProgress	progress;
	char		value[1024];
	size_t		len;

	memset(&progress, 0, sizeof(progress));
	strlcpy(progress.uuid, p->state.uuid, sizeof(progress.uuid));
	progress.system_identifier = GetSystemIdentifier();
	progress.database = MyDatabaseId;
	progress.timeline = p->timeline;
	progress.instance = p->instance;
	progress.checkpoint = checkpoint_id;
	progress.end_lsn = p->checkpoint.end_lsn;
	strlcpy(progress.prefix, p->prefix, sizeof(progress.prefix));
	progress.pool_size = p->pool_size;
	progress.start = start;
	len = tk_progress_format(&progress, value, sizeof(value));

	if (len == 0)
		elog(ERROR, "the progress record of pipeline \"%s\" can't be written", p->definition->name);
	tk_append_record(p->producers[p->current], p->progress_topics[p->current], 0,
					 TK_PROGRESS_KEY, strlen(TK_PROGRESS_KEY), value, len, NULL, 0);
}
