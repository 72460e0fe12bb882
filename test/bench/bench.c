/*
 * bench.c
 *	  The Kafka side of the benchmark: an independent consumer, and what
 *	  librdkafka alone can do, to compare the pipeline with.
 *
 *	create TOPIC, delete TOPIC
 *	read TOPIC FIRST LAST ARRIVALS
 *		read_committed, from the beginning, until every "id" from FIRST to LAST
 *		has come, then a quiet moment in which none may come twice.  ARRIVALS: a
 *		file for when each arrived, in the order of the ids, as text; "": none.
 *	produce TOPIC SAMPLE N TXN
 *		N records, TXN a transaction: the throughput ceiling
 *	commit TOPIC SAMPLE N PAUSE_MS
 *		N transactions of one record: begin to committed.  linger.ms is 0 here, and
 *		rd_kafka_poll waits for the delivery report.
 *
 * What is produced are copies of records of the topic SAMPLE, which a pipeline
 * wrote: so size and compressibility are the same, and nothing but sending is
 * measured.  (Headers are moved into the value.)
 *
 * The broker is $BROKER; $COMPRESSION is compression.type.  Each command prints
 * one JSON object.
 */
#define _GNU_SOURCE
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 60000
#define PATIENCE_S 120			/* without a record */
#define QUIET_S 1				/* after the last one */
#define SAMPLES 20000
#define BATCH 500
#define PRODUCERS 2				/* by turns: a transactional id is not ready for a while after a commit */
#define MAX_VALUE (1 << 20)

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "bench: %s: %s\n", what, why);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double
cpu(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void
set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	char		why[256];

	if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) != RD_KAFKA_CONF_OK)
		die(name, why);
}

static rd_kafka_t *
client(rd_kafka_type_t type, rd_kafka_conf_t *conf)
{
	char		why[512];
	rd_kafka_t *rk;

	set(conf, "bootstrap.servers", getenv("BROKER"));
	rk = rd_kafka_new(type, conf, why, sizeof(why));
	if (rk == NULL)
		die("client", why);
	return rk;
}

static void
check(rd_kafka_error_t *error, const char *what)
{
	if (error)
		die(what, rd_kafka_error_string(error));
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
print_percentiles(double *seconds, long n)
{
	if (n == 0)
		die("latency", "nothing was measured");
	qsort(seconds, n, sizeof(double), compare);
	printf("\"p50_ms\": %.3f, \"p95_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f",
		   seconds[n / 2] * 1e3, seconds[n * 95 / 100] * 1e3, seconds[n * 99 / 100] * 1e3, seconds[n - 1] * 1e3);
}

/*
 * Topics
 */

static void
admin(const char *what, const char *topic)
{
	rd_kafka_t *rk = client(RD_KAFKA_PRODUCER, rd_kafka_conf_new());
	rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
	bool		create = strcmp(what, "create") == 0;
	const rd_kafka_topic_result_t **results;
	rd_kafka_event_t *event;
	char		why[256];
	size_t		n;

	if (create)
	{
		rd_kafka_NewTopic_t *request = rd_kafka_NewTopic_new(topic, 1, 1, why, sizeof(why));

		rd_kafka_CreateTopics(rk, &request, 1, NULL, queue);
	}
	else
	{
		rd_kafka_DeleteTopic_t *request = rd_kafka_DeleteTopic_new(topic);

		rd_kafka_DeleteTopics(rk, &request, 1, NULL, queue);
	}
	event = rd_kafka_queue_poll(queue, TIMEOUT_MS);
	if (event == NULL || rd_kafka_event_error(event))
		die(what, event ? rd_kafka_event_error_string(event) : "timed out");
	if (create)
		results = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &n);
	else
		results = rd_kafka_DeleteTopics_result_topics(rd_kafka_event_DeleteTopics_result(event), &n);
	if (n != 1 || rd_kafka_topic_result_error(results[0]))
		die(what, n == 1 ? rd_kafka_topic_result_error_string(results[0]) : "no result");
	printf("{}\n");
}

/*
 * The consumer
 */

static rd_kafka_t *
consumer(const char *topic)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
	rd_kafka_t *rk;

	set(conf, "group.id", topic);
	set(conf, "enable.auto.commit", "false");
	set(conf, "isolation.level", "read_committed");
	set(conf, "fetch.wait.max.ms", "10");
	set(conf, "fetch.error.backoff.ms", "5");
	set(conf, "fetch.message.max.bytes", "8388608");
	rk = client(RD_KAFKA_CONSUMER, conf);
	rd_kafka_poll_set_consumer(rk);
	rd_kafka_topic_partition_list_add(list, topic, 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
	rd_kafka_assign(rk, list);
	rd_kafka_topic_partition_list_destroy(list);
	return rk;
}

/* The next record with a value, NULL if there is none for a moment. */
static rd_kafka_message_t *
next_record(rd_kafka_t *rk)
{
	rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 100);

	if (m && (m->err || m->payload == NULL || m->len >= MAX_VALUE))
	{
		rd_kafka_message_destroy(m);
		return NULL;
	}
	return m;
}

/* The last "id" of the value: of an envelope that is the row's, whatever stands before it. */
static long
find_id(const char *value)
{
	const char *found = NULL;

	for (const char *p = value; (p = strstr(p, "\"id\":")) != NULL;)
		found = p += 5;
	return found ? strtol(found, NULL, 10) : -1;
}

static void
read_topic(const char *topic, long first, long last, const char *arrivals)
{
	rd_kafka_t *rk = consumer(topic);
	long		wanted = last - first + 1;
	unsigned char *seen = calloc(wanted, 1);
	double	   *arrived_at = calloc(wanted, sizeof(double));
	char	   *text = malloc(MAX_VALUE);
	double		heard = now();
	double		last_at = 0;
	double		bytes = 0;
	long		got = 0;
	long		twice = 0;
	long		strange = 0;
	long		backward = 0;
	long		before = first - 1;
	long		records = 0;
	long		offsets = 0;

	while (now() - heard < (got < wanted ? PATIENCE_S : QUIET_S))
	{
		rd_kafka_message_t *m = next_record(rk);
		double		arrived = now();
		long		id;

		if (m == NULL)
			continue;
		heard = arrived;
		records++;
		offsets = m->offset + 1;
		memcpy(text, m->payload, m->len);
		text[m->len] = '\0';
		id = find_id(text);
		if (id > last || id < 0)
			strange++;
		else if (id >= first && seen[id - first]++)
			twice++;
		else if (id >= first)
		{
			got++;
			last_at = arrived;
			bytes += m->key_len + m->len;
			if (id < before)
				backward++;
			before = id;
			arrived_at[id - first] = arrived;
		}
		rd_kafka_message_destroy(m);
	}
	/* every transaction ends with a marker, which takes an offset and is no record */
	printf("{\"exact\": %s, \"got\": %ld, \"twice\": %ld, \"strange\": %ld, \"out_of_order\": %ld, \"last_at\": %.6f, "
		   "\"bytes\": %.1f, \"markers\": %ld",
		   got == wanted && twice + strange + backward == 0 ? "true" : "false", got, twice, strange, backward, last_at,
		   got ? bytes / got : 0, offsets - records);
	if (*arrivals)
	{
		FILE	   *file = fopen(arrivals, "w");

		if (file == NULL)
			die(arrivals, "can't be written");
		for (long i = 0; i < wanted; i++)
			fprintf(file, "%.6f\n", arrived_at[i]);
		fclose(file);
	}
	printf("}\n");
}

/*
 * Producers
 */

typedef struct Producer
{
	rd_kafka_t *rk;
	rd_kafka_topic_t *topic;
	long		unacknowledged;
	pthread_t	committer;
	bool		committing;
}			Producer;

static rd_kafka_message_t samples[SAMPLES];
static long nsamples = 0;

static void
load_samples(const char *topic)
{
	rd_kafka_t *rk = consumer(topic);
	double		heard = now();

	while (nsamples < SAMPLES && now() - heard < (nsamples ? QUIET_S : PATIENCE_S))
	{
		rd_kafka_message_t *m = next_record(rk);
		rd_kafka_message_t *s = &samples[nsamples];
		rd_kafka_headers_t *headers;
		const char *name;
		const void *value;
		size_t		len;
		char	   *end;

		if (m == NULL)
			continue;
		heard = now();
		s->key = memcpy(malloc(m->key_len + 1), m->key, m->key_len);
		s->key_len = m->key_len;
		s->payload = malloc(m->len + 4096);
		end = mempcpy(s->payload, m->payload, m->len);
		if (rd_kafka_message_headers(m, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR)
			for (size_t i = 0; rd_kafka_header_get_all(headers, i, &name, &value, &len) == 0; i++)
			{
				if ((size_t) (end - (char *) s->payload) + strlen(name) + len > m->len + 4096)
					die("sample", "its headers are too large");
				end = mempcpy(stpcpy(end, name), value, len);
			}
		s->len = end - (char *) s->payload;
		nsamples++;
		rd_kafka_message_destroy(m);
	}
	rd_kafka_consumer_close(rk);
	rd_kafka_destroy(rk);
	if (nsamples == 0)
		die("sample", "there is no record");
}

static void
on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	(void) rk;
	if (m->err)
		die("delivery", rd_kafka_err2str(m->err));
	((Producer *) opaque)->unacknowledged--;
}

/* The settings are those of the pipeline's producers, but for linger.ms perhaps. */
static void
open_producer(Producer * p, const char *topic, int number, const char *linger_ms)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	const char *compression = getenv("COMPRESSION");
	char		id[64];

	memset(p, 0, sizeof(*p));
	snprintf(id, sizeof(id), "bench-%d-%d", getpid(), number);
	set(conf, "transactional.id", id);
	set(conf, "linger.ms", linger_ms);
	set(conf, "queue.buffering.max.messages", "100000");
	set(conf, "queue.buffering.max.kbytes", "65536");
	if (compression && *compression)
		set(conf, "compression.type", compression);
	rd_kafka_conf_set_opaque(conf, p);
	rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
	p->rk = client(RD_KAFKA_PRODUCER, conf);
	p->topic = rd_kafka_topic_new(p->rk, topic, NULL);
	check(rd_kafka_init_transactions(p->rk, TIMEOUT_MS), "init_transactions");
}

/* Copies of "n" samples, from number "from" on; a full queue is waited for. */
static void
send_batch(Producer * p, long from, int n)
{
	rd_kafka_message_t batch[BATCH];

	for (int i = 0; i < n; i++)
	{
		batch[i] = samples[(from + i) % nsamples];
		batch[i].partition = 0;
	}
	p->unacknowledged += n;
	while (rd_kafka_produce_batch(p->topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY | RD_KAFKA_MSG_F_PARTITION,
								  batch, n) < n)
	{
		int			left = 0;

		for (int i = 0; i < n; i++)
		{
			if (batch[i].err == RD_KAFKA_RESP_ERR__QUEUE_FULL)
				batch[left++] = batch[i];
			else if (batch[i].err)
				die("produce_batch", rd_kafka_err2str(batch[i].err));
		}
		n = left;
		rd_kafka_poll(p->rk, 5);
	}
	rd_kafka_poll(p->rk, 0);
}

static void *
commit(void *arg)
{
	Producer   *p = arg;

	while (p->unacknowledged > 0)
		rd_kafka_flush(p->rk, 1000);
	check(rd_kafka_commit_transaction(p->rk, TIMEOUT_MS), "commit_transaction");
	return NULL;
}

static void
await_commit(Producer * p)
{
	if (p->committing)
		pthread_join(p->committer, NULL);
	p->committing = false;
}

/* One transaction is filled while the one before commits. */
static void
produce(const char *topic, long n, long transaction)
{
	Producer	producers[PRODUCERS];
	double		begun;
	double		cpu_before;

	for (int i = 0; i < PRODUCERS; i++)
		open_producer(&producers[i], topic, i, "5");
	begun = now();
	cpu_before = cpu();
	for (long sent = 0, round = 0; sent < n; round++)
	{
		Producer   *p = &producers[round % PRODUCERS];
		long		end = sent + transaction < n ? sent + transaction : n;

		await_commit(p);
		check(rd_kafka_begin_transaction(p->rk), "begin_transaction");
		while (sent < end)
		{
			int			size = end - sent < BATCH ? end - sent : BATCH;

			send_batch(p, sent, size);
			sent += size;
		}
		for (int i = 0; i < PRODUCERS; i++)
			await_commit(&producers[i]);
		p->committing = pthread_create(&p->committer, NULL, commit, p) == 0;
		if (!p->committing)
			die("pthread_create", "failed");
	}
	for (int i = 0; i < PRODUCERS; i++)
		await_commit(&producers[i]);
	printf("{\"seconds\": %.3f, \"cpu_s\": %.2f}\n", now() - begun, cpu() - cpu_before);
}

static void
commit_one_by_one(const char *topic, long n, double pause_ms)
{
	Producer	p;
	double	   *seconds = malloc(sizeof(double) * n);
	double		cpu_before;

	open_producer(&p, topic, 0, "0");
	cpu_before = cpu();
	for (long i = 0; i < n; i++)
	{
		double		begun = now();

		check(rd_kafka_begin_transaction(p.rk), "begin_transaction");
		send_batch(&p, i, 1);
		while (p.unacknowledged > 0)
			rd_kafka_poll(p.rk, 100);
		check(rd_kafka_commit_transaction(p.rk, TIMEOUT_MS), "commit_transaction");
		seconds[i] = now() - begun;
		usleep(pause_ms * 1000);
	}
	printf("{\"cpu_ms\": %.3f, ", (cpu() - cpu_before) / n * 1e3);
	print_percentiles(seconds, n);
	printf("}\n");
}

int
main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (getenv("BROKER") == NULL)
		die("BROKER", "is not set");
	if (argc == 3 && (strcmp(what, "create") == 0 || strcmp(what, "delete") == 0))
		admin(what, argv[2]);
	else if (argc == 6 && strcmp(what, "read") == 0)
		read_topic(argv[2], atol(argv[3]), atol(argv[4]), argv[5]);
	else if (argc == 6 && strcmp(what, "produce") == 0)
	{
		load_samples(argv[3]);
		produce(argv[2], atol(argv[4]), atol(argv[5]));
	}
	else if (argc == 6 && strcmp(what, "commit") == 0)
	{
		load_samples(argv[3]);
		commit_one_by_one(argv[2], atol(argv[4]), atof(argv[5]));
	}
	else
		die("usage", "create|delete TOPIC, read TOPIC FIRST LAST ARRIVALS, produce TOPIC SAMPLE N TXN, "
			"commit TOPIC SAMPLE N PAUSE_MS");
	fflush(stdout);
	_exit(0);					/* destroying the clients tidily would only take time */
}
