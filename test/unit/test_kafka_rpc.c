/*
 * test_kafka_rpc.c
 *	  The client of the transaction coordinator, against a real broker, a real
 *	  broker with TLS and SASL, and false brokers that say what they like.
 *
 * Environment: BROKER (host:port), BROKER_PID (as for test_kafka_broker).  The
 * broker with TLS and SASL is made by test/kafka/secure, which test/check puts
 * where it is looked for; SECURE_BROKER can name the directory of one that
 * runs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>

#include "../../src/kafka_connection.h"
#include "../../src/kafka_producer.h"
#include "../../src/kafka_rpc.h"
#include "broker.h"

#define SAYS(text)	CHECK_STR(strstr(error.message, (text)) ? (text) : error.message, (text))

/* Pairs of name and value, up to NULL. */
static TkRpc *
create(TkKafkaError *error, const char *server,...)
{
	TkKafkaProperty properties[24];
	TkKafkaConf conf = {1, properties};
	va_list		args;
	const char *property;
	TkRpc	   *rpc;

	properties[0].name = "bootstrap.servers";
	properties[0].value = server;
	va_start(args, server);
	while ((property = va_arg(args, const char *)) != NULL)
	{
		properties[conf.nproperties].name = property;
		properties[conf.nproperties++].value = va_arg(args, const char *);
	}
	va_end(args);
	rpc = tk_rpc_create(&conf, error);
	return rpc;
}

static TkRpc *
client(const char *server)
{
	TkKafkaError error;
	TkRpc	   *rpc = create(&error, server, NULL);

	if (!CHECK(rpc != NULL))
	{
		printf("\t%s\n", error.message);
		exit(1);
	}
	return rpc;
}


/*
 * Real transactions
 */

static TkProducer *
producer_at(const char *server, const char *id)
{
	TkKafkaProperty properties[] = {{"bootstrap.servers", server}};
	TkKafkaConf conf = {1, properties};
	TkKafkaError error;
	TkProducer *p = tk_producer_create(&conf, id, 60000, &error);

	if (!CHECK(p != NULL))
		exit(1);
	OK(tk_producer_init(p, &patient, &error));
	return p;
}

/* An open transaction of one record in each of two partitions; its producer lives. */
static TkProducer *
open_at(const char *server, const char *id, const char *topic, const char *value)
{
	TkProducer *p = producer_at(server, id);
	TkTopicSpec spec = {2, 1, 0, NULL};
	TkKafkaError error;
	int			partition;

	OK(tk_topic_create(p, topic, &spec, &patient, &error));
	OK(tk_producer_begin(p, &error));
	for (partition = 0; partition < 2; partition++)
		OK(tk_producer_send(p, tk_producer_topic(p, topic, &error), partition, NULL, 0, value, strlen(value), NULL, 0,
							&error));
	OK(tk_producer_flush(p, &patient, &error));
	return p;
}

/* The same of a producer that died. */
static void
leave_open(const char *id, const char *topic, const char *value)
{
	TkProducer *p = open_at(broker, id, topic, value);

	CHECK(tk_producer_destroy(p, false, 5000));
	CHECK(!tk_kafka_threads_left());
}

/* What a read_committed consumer sees of partition 0: the values, with commas. */
static const char *
committed(const char *topic)
{
	static char text[4096];
	char		why[300];
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	rd_kafka_t *k;
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
	double		end = now() + 20;
	bool		done = false;

	rd_kafka_conf_set(c, "bootstrap.servers", broker, why, sizeof(why));
	rd_kafka_conf_set(c, "group.id", "test", why, sizeof(why));
	rd_kafka_conf_set(c, "isolation.level", "read_committed", why, sizeof(why));
	rd_kafka_conf_set(c, "enable.partition.eof", "true", why, sizeof(why));
	k = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof(why));
	rd_kafka_topic_partition_list_add(list, topic, 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
	rd_kafka_assign(k, list);
	rd_kafka_topic_partition_list_destroy(list);
	text[0] = '\0';
	while (!done && now() < end)
	{
		rd_kafka_message_t *m = rd_kafka_consumer_poll(k, 100);

		if (m == NULL)
			continue;
		if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
			done = true;
		else if (m->err == 0)
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%.*s", text[0] ? "," : "",
					 (int) m->len, (char *) m->payload);
		rd_kafka_message_destroy(m);
	}
	rd_kafka_destroy(k);
	return done ? text : "timed out";
}

/* The state once it is this one, or what it is after 10 s. */
static TkTransactionDescription
described(TkRpc *rpc, const char *id, TkTransactionState expected)
{
	double		end = now() + 10;
	TkTransactionDescription d;
	TkKafkaError error;

	while (OK(tk_rpc_describe(rpc, id, &patient, &d, &error)) && d.state != expected && now() < end)
		poll(NULL, 0, 10);
	CHECK_STR(tk_transaction_state_name(d.state), tk_transaction_state_name(expected));
	return d;
}

static void
an_unknown_id_is_not_found(void)
{
	TkRpc	   *rpc = client(broker);
	TkTransactionDescription d;
	TkKafkaError error;

	OK(tk_rpc_describe(rpc, name("rpc-unknown"), &patient, &d, &error));
	CHECK(!d.found);
	CHECK_STR(error.message, "");

	/* nothing to end: INVALID_PRODUCER_ID_MAPPING */
	CHECK_INT(tk_rpc_end(rpc, name("rpc-unknown"), 1, 0, true, &patient, &error), TK_KAFKA_FATAL);
	CHECK_INT(error.code, 49);
	SAYS(name("rpc-unknown"));
	tk_rpc_destroy(rpc);
}

static void
a_dead_producers_transaction_is_described_and_committed(void)
{
	const char *topic = name("rpc-commit");
	const char *id = name("rpc-tx-commit");
	TkRpc	   *rpc = client(broker);
	TkTransactionDescription d;
	TkTransactionDescription after;
	TkKafkaError error;
	int64_t		before_ms = (int64_t) time(NULL) * 1000;

	leave_open(id, topic, "one");
	OK(tk_rpc_describe(rpc, id, &patient, &d, &error));
	CHECK(d.found);
	CHECK_STR(tk_transaction_state_name(d.state), "Ongoing");
	CHECK_INT(d.timeout_ms, 60000);
	CHECK_INT(d.partitions, 2);
	CHECK(d.producer_id >= 0);
	CHECK(d.epoch >= 0);
	CHECK(d.start_ms >= before_ms && d.start_ms <= (int64_t) (time(NULL) + 1) * 1000);
	CHECK_STR(committed(topic), "");

	/* neither an older epoch nor another producer id ends it */
	CHECK_INT(tk_rpc_end(rpc, id, d.producer_id, (int16_t) (d.epoch - 1), true, &patient, &error), TK_KAFKA_FENCED);
	CHECK(error.code == 47 || error.code == 90);
	CHECK_INT(tk_rpc_end(rpc, id, d.producer_id + 1000, d.epoch, true, &patient, &error), TK_KAFKA_FATAL);
	CHECK_INT(error.code, 49);
	described(rpc, id, TK_TRANSACTION_ONGOING);

	OK(tk_rpc_end(rpc, id, d.producer_id, d.epoch, true, &patient, &error));
	after = described(rpc, id, TK_TRANSACTION_COMPLETE_COMMIT);
	CHECK_INT(after.producer_id, d.producer_id);
	CHECK_INT(after.epoch, d.epoch);
	CHECK_INT(after.partitions, 0);
	CHECK_STR(committed(topic), "one");

	/* the repeat is no error; changing one's mind is */
	OK(tk_rpc_end(rpc, id, d.producer_id, d.epoch, true, &patient, &error));
	CHECK_INT(tk_rpc_end(rpc, id, d.producer_id, d.epoch, false, &patient, &error), TK_KAFKA_FATAL);
	CHECK_INT(error.code, 48);
	CHECK_STR(committed(topic), "one");
	tk_rpc_destroy(rpc);
}

static void
an_abort_is_an_abort(void)
{
	const char *topic = name("rpc-abort");
	const char *id = name("rpc-tx-abort");
	TkRpc	   *rpc = client(broker);
	TkTransactionDescription d;
	TkKafkaError error;

	leave_open(id, topic, "lost");
	d = described(rpc, id, TK_TRANSACTION_ONGOING);
	OK(tk_rpc_end(rpc, id, d.producer_id, d.epoch, false, &patient, &error));
	described(rpc, id, TK_TRANSACTION_COMPLETE_ABORT);
	CHECK_STR(committed(topic), "");
	CHECK_INT(tk_rpc_end(rpc, id, d.producer_id, d.epoch, true, &patient, &error), TK_KAFKA_FATAL);
	CHECK_INT(error.code, 48);
	tk_rpc_destroy(rpc);
}

static void
a_fenced_transaction_can_not_be_ended(void)
{
	const char *topic = name("rpc-fence");
	const char *id = name("rpc-tx-fence");
	TkRpc	   *rpc = client(broker);
	TkTransactionDescription d;
	TkTransactionDescription after;
	TkProducer *p;
	TkKafkaError error;

	leave_open(id, topic, "old");
	d = described(rpc, id, TK_TRANSACTION_ONGOING);
	p = open_at(broker, id, topic, "new");
	CHECK_INT(tk_rpc_end(rpc, id, d.producer_id, d.epoch, true, &patient, &error), TK_KAFKA_FENCED);
	CHECK(error.code == 47 || error.code == 90);

	/* and it did nothing to the one that took its place */
	after = described(rpc, id, TK_TRANSACTION_ONGOING);
	CHECK_INT(after.producer_id, d.producer_id);
	CHECK(after.epoch > d.epoch);
	CHECK(after.start_ms >= d.start_ms);
	OK(tk_producer_commit(p, &patient, &error));
	described(rpc, id, TK_TRANSACTION_COMPLETE_COMMIT);
	CHECK_STR(committed(topic), "new");
	CHECK(tk_producer_destroy(p, false, 5000));
	tk_rpc_destroy(rpc);
}

static void
the_ids_of_a_prefix_are_listed(void)
{
	TkRpc	   *rpc = client(broker);
	TkTransactionList list;
	TkKafkaError error;
	char		prefix[100];
	char		id[120];

	snprintf(prefix, sizeof(prefix), "%s.", name("rpc-list"));
	OK(tk_rpc_list(rpc, prefix, &patient, &list, &error));
	CHECK_INT(list.n, 0);
	tk_transaction_list_free(&list);

	snprintf(id, sizeof(id), "%s1", prefix);
	leave_open(id, name("rpc-list"), "a");
	snprintf(id, sizeof(id), "%s0", prefix);
	leave_open(id, name("rpc-list"), "b");
	leave_open(name("rpc-lisp"), name("rpc-list"), "c");
	{
		TkTransactionDescription d = described(rpc, id, TK_TRANSACTION_ONGOING);

		OK(tk_rpc_end(rpc, id, d.producer_id, d.epoch, false, &patient, &error));
		described(rpc, id, TK_TRANSACTION_COMPLETE_ABORT);

		OK(tk_rpc_list(rpc, prefix, &patient, &list, &error));
		if (CHECK_INT(list.n, 2))
		{
			CHECK_STR(list.transactions[0].transactional_id, id);
			CHECK_STR(tk_transaction_state_name(list.transactions[0].state), "CompleteAbort");
			CHECK_INT(list.transactions[0].producer_id, d.producer_id);
			CHECK_INT(list.transactions[0].coordinator, 1);
			CHECK_STR(tk_transaction_state_name(list.transactions[1].state), "Ongoing");
		}
		tk_transaction_list_free(&list);
	}
	OK(tk_rpc_list(rpc, "", &patient, &list, &error));
	CHECK(list.n >= 3);
	tk_transaction_list_free(&list);

	/* nobody's records wait behind them */
	{
		TkTransactionDescription d;

		snprintf(id, sizeof(id), "%s1", prefix);
		d = described(rpc, id, TK_TRANSACTION_ONGOING);
		OK(tk_rpc_end(rpc, id, d.producer_id, d.epoch, false, &patient, &error));
		d = described(rpc, name("rpc-lisp"), TK_TRANSACTION_ONGOING);
		OK(tk_rpc_end(rpc, name("rpc-lisp"), d.producer_id, d.epoch, false, &patient, &error));
	}
	tk_rpc_destroy(rpc);
}

/* A signal takes effect a moment after kill(). */
static bool
is_stopped(pid_t process)
{
	char		path[64];
	char		state = ' ';
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int) process);
	file = fopen(path, "r");
	if (file == NULL || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		state = 'T';
	if (file != NULL)
		fclose(file);
	return state == 'T';
}

static void
a_broker_that_hangs_holds_nobody_up(void)
{
	pid_t		pid = getenv("BROKER_PID") ? (pid_t) atoi(getenv("BROKER_PID")) : 0;
	TkKafkaWait wait = {700, NULL};
	TkKafkaWait stop = {10000, always};
	TkRpc	   *rpc;
	TkTransactionDescription d;
	TkKafkaError error;
	double		start;

	if (!CHECK(pid != 0))
		return;
	rpc = client(broker);
	OK(tk_rpc_describe(rpc, "x", &patient, &d, &error));
	kill(pid, SIGSTOP);
	while (!is_stopped(pid))
		usleep(1000);
	start = now();
	CHECK_INT(tk_rpc_describe(rpc, "x", &wait, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_TIMED_OUT);
	CHECK(now() - start < 5);

	/* now over a new connection, which the system accepts but the broker doesn't serve */
	CHECK_INT(tk_rpc_describe(rpc, "x", &wait, &d, &error), TK_KAFKA_RETRY);
	start = now();
	CHECK_INT(tk_rpc_describe(rpc, "x", &stop, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_INTERRUPTED);
	CHECK(now() - start < 5);
	kill(pid, SIGCONT);
	OK(tk_rpc_describe(rpc, "x", &patient, &d, &error));
	CHECK(!d.found);
	tk_rpc_destroy(rpc);
}


/*
 * TLS and SASL
 */

static char secure_dir[300];

static const char *
in_secure_dir(const char *file)
{
	static char paths[8][400];
	static int	next;

	next = (next + 1) % 8;
	snprintf(paths[next], sizeof(paths[next]), "%s/%s", secure_dir, file);
	return paths[next];
}

static const char *
secure_address(const char *listener, char *address, size_t size)
{
	FILE	   *file = fopen(in_secure_dir("addresses"), "r");
	char		line[200];

	address[0] = '\0';
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, listener, strlen(listener)) == 0 && line[strlen(listener)] == ' ')
			snprintf(address, size, "%.*s", (int) strcspn(line + strlen(listener) + 1, "\n"),
					 line + strlen(listener) + 1);
	if (file)
		fclose(file);
	CHECK(address[0] != '\0');
	return address;
}

/* A text file, as a property's value. */
static char *
text_of(const char *path)
{
	FILE	   *file = fopen(path, "r");
	char	   *text = calloc(1, 20000);

	CHECK(file && fread(text, 1, 19999, file) > 0);
	if (file)
		fclose(file);
	return text;
}

static void
works(TkRpc *rpc, const TkKafkaError *created)
{
	TkTransactionDescription d;
	TkKafkaError error;
	int			i;

	if (!CHECK(rpc != NULL))
	{
		printf("\t%s\n", created->message);
		return;
	}
	for (i = 0; i < 2; i++)
	{
		OK(tk_rpc_describe(rpc, "nobody", &patient, &d, &error));
		CHECK(!d.found);
	}
	tk_rpc_destroy(rpc);
}

static void
is_refused(TkRpc *rpc, const char *reason)
{
	TkTransactionDescription d;
	TkKafkaError error;
	double		start = now();

	if (!CHECK(rpc != NULL))
		return;
	CHECK_INT(tk_rpc_describe(rpc, "nobody", &patient, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_AUTHENTICATION);
	SAYS(reason);
	CHECK(strstr(error.message, "secret") == NULL);
	CHECK(now() - start < 10);
	tk_rpc_destroy(rpc);
}

static void
tls_and_sasl_are_spoken(void)
{
	char		ca[400];
	char		tls[100];
	char		sasl[100];
	char		both[100];
	char		numeric[100];
	char		expired[100];
	char	   *ca_text = text_of(in_secure_dir("ca.pem"));
	char	   *cert_text = text_of(in_secure_dir("client.pem"));
	char	   *key_text = text_of(in_secure_dir("client.key"));
	TkKafkaError error;
	TkRpc	   *rpc;
	TkTransactionDescription d;
	TkProducer *p;
	static const char *const mechanisms[] = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};
	size_t		i;

	snprintf(ca, sizeof(ca), "%s", in_secure_dir("ca.pem"));
	secure_address("SSL", tls, sizeof(tls));
	secure_address("SASL_PLAINTEXT", sasl, sizeof(sasl));
	secure_address("SASL_SSL", both, sizeof(both));
	snprintf(numeric, sizeof(numeric), "127.0.0.1%s", strchr(both, ':'));

	for (i = 0; i < 3; i++)
	{
		const char *password = i == 0 ? "plain-secret" : "scram-secret";

		works(create(&error, sasl, "security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", mechanisms[i],
					 "sasl.username", "shop", "sasl.password", password, NULL), &error);
		works(create(&error, both, "security.protocol", "sasl_ssl", "sasl.mechanisms", mechanisms[i],
					 "sasl.username", "shop", "sasl.password", password, "ssl.ca.location", ca, NULL), &error);
		is_refused(create(&error, both, "security.protocol", "sasl_ssl", "sasl.mechanisms", mechanisms[i],
						  "sasl.username", "shop", "sasl.password", "wrong-secret", "ssl.ca.location", ca, NULL),
				   mechanisms[i]);
	}

	/* certificates: of files, of texts; a client's; none */
	works(create(&error, tls, "security.protocol", "ssl", "ssl.ca.location", ca,
				 "ssl.certificate.location", in_secure_dir("client.pem"), "ssl.key.location", in_secure_dir("client.key"),
				 "ssl.key.password", "key-secret", NULL), &error);
	works(create(&error, tls, "security.protocol", "ssl", "ssl.ca.pem", ca_text, "ssl.certificate.pem", cert_text,
				 "ssl.key.pem", key_text, "ssl.key.password", "key-secret", NULL), &error);
	is_refused(create(&error, tls, "security.protocol", "ssl", "ssl.ca.location", ca, NULL),
			   "the broker wants a client certificate, and none is set");
	is_refused(create(&error, tls, "security.protocol", "ssl", "ssl.ca.location", ca,
					  "ssl.certificate.location", in_secure_dir("expired-client.pem"), "ssl.key.location",
					  in_secure_dir("expired-client.key"), "ssl.key.password", "key-secret", NULL),
			   "the client certificate (ssl.certificate.pem) has expired");

	/* whom we don't trust, or who isn't who we meant */
#define LOGIN "security.protocol", "sasl_ssl", "sasl.mechanism", "SCRAM-SHA-256", "sasl.username", "shop", \
		"sasl.password", "scram-secret"
	is_refused(create(&error, both, LOGIN, "ssl.ca.location", in_secure_dir("other-ca.pem"), NULL), "certificate of");
	is_refused(create(&error, both, LOGIN, NULL), "certificate of");
	is_refused(create(&error, secure_address("EXPIRED", expired, sizeof(expired)), LOGIN, "ssl.ca.location", ca, NULL),
			   "certificate has expired");
	is_refused(create(&error, numeric, LOGIN, "ssl.ca.location", ca, NULL), "IP address mismatch");
	works(create(&error, numeric, LOGIN, "ssl.ca.location", ca, "ssl.endpoint.identification.algorithm", "none", NULL),
		  &error);
	works(create(&error, numeric, LOGIN, "enable.ssl.certificate.verification", "false", NULL), &error);

	/* the wrong protocol: an error, whatever each side makes of it */
	rpc = create(&error, tls, NULL);
	{
		TkKafkaWait wait = {500, NULL};

		CHECK(tk_rpc_describe(rpc, "nobody", &wait, &d, &error) != TK_KAFKA_OK);
	}
	tk_rpc_destroy(rpc);

	/* and a commit over all of it */
	{
		char		plaintext[100];

		p = open_at(secure_address("PLAINTEXT", plaintext, sizeof(plaintext)), name("rpc-secure"), name("secure"),
					"one");
	}
	CHECK(tk_producer_destroy(p, false, 5000));
	rpc = create(&error, both, LOGIN, "ssl.ca.location", ca, NULL);
	d = described(rpc, name("rpc-secure"), TK_TRANSACTION_ONGOING);
	OK(tk_rpc_end(rpc, name("rpc-secure"), d.producer_id, d.epoch, true, &patient, &error));
	described(rpc, name("rpc-secure"), TK_TRANSACTION_COMPLETE_COMMIT);
	{
		TkTransactionList list;

		OK(tk_rpc_list(rpc, name("rpc-secure"), &patient, &list, &error));
		CHECK_INT(list.n, 1);
		tk_transaction_list_free(&list);
	}
	tk_rpc_destroy(rpc);

	/* what can't be read is named when it is configured */
	CHECK(create(&error, tls, "security.protocol", "ssl", "ssl.ca.location", "/no/such/file", NULL) == NULL);
	CHECK_INT(error.cause, TK_CAUSE_CONFIGURATION);
	SAYS("ssl.ca.location");
	CHECK(create(&error, tls, "security.protocol", "ssl", "ssl.ca.pem", "no PEM", NULL) == NULL);
	SAYS("ssl.ca.pem");
	CHECK(create(&error, tls, "security.protocol", "ssl", "ssl.certificate.pem", cert_text, "ssl.key.pem", key_text,
				 "ssl.key.password", "wrong-secret", NULL) == NULL);
	SAYS("ssl.key.pem");
	CHECK(strstr(error.message, "secret") == NULL);
	CHECK(create(&error, tls, "security.protocol", "ssl", "ssl.certificate.pem", cert_text, "ssl.key.location",
				 in_secure_dir("client.key"), NULL) == NULL);
	SAYS("ssl.key.location");
	free(ca_text);
	free(cert_text);
	free(key_text);
}

static void
with_a_secure_broker(void)
{
	const char *tools = "../tree/test/kafka";
	char		command[800];

	if (getenv("SECURE_BROKER"))
	{
		snprintf(secure_dir, sizeof(secure_dir), "%s", getenv("SECURE_BROKER"));
		tls_and_sasl_are_spoken();
		return;
	}
	snprintf(secure_dir, sizeof(secure_dir), "%s/secure-broker", getenv("TMPDIR") ? getenv("TMPDIR") : ".");
	snprintf(command, sizeof(command), "%s/secure %s", tools, secure_dir);
	if (CHECK_INT(system(command), 0))
		tls_and_sasl_are_spoken();
	snprintf(command, sizeof(command), "%s/broker stop %s", tools, secure_dir);
	CHECK_INT(system(command), 0);
}


/*
 * Configurations
 */

static void
what_this_client_can_not_do_is_said(void)
{
	static const char *const refused[][5] = {
		{"security.protocol", "sasl_ssl", NULL, NULL, "GSSAPI"},	/* librdkafka's default */
		{"security.protocol", "sasl_plaintext", "sasl.mechanism", "GSSAPI", "GSSAPI"},
		{"security.protocol", "sasl_plaintext", "sasl.mechanism", "OAUTHBEARER", "OAUTHBEARER"},
		{"security.protocol", "sasl_plaintext", "sasl.mechanism", "PLAIN", "sasl.username"},
		{"security.protocol", "ssl", "ssl.keystore.location", "/k.p12", "ssl.keystore.location"},
		{"security.protocol", "ssl", "ssl.engine.location", "/e.so", "ssl.engine.location"},
		{"security.protocol", "ssl", "ssl.providers", "legacy", "ssl.providers"},
		{"security.protocol", "tls", NULL, NULL, "security.protocol"},
		{"socket.timeout.ms", "soon", NULL, NULL, "socket.timeout.ms"},
		{"transactional.id", "x", NULL, NULL, "transactional.id"},
		{"no.such", "x", NULL, NULL, "no.such"},
	};
	TkKafkaError error;
	TkRpc	   *rpc;
	size_t		i;

	for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
	{
		rpc = create(&error, "localhost", refused[i][0], refused[i][1], refused[i][2], refused[i][3], NULL);
		if (!CHECK(rpc == NULL))
		{
			tk_rpc_destroy(rpc);
			continue;
		}
		CHECK_INT(error.status, TK_KAFKA_FATAL);
		CHECK_INT(error.cause, TK_CAUSE_CONFIGURATION);
		SAYS(refused[i][4]);
	}

	/* what isn't in force doesn't matter */
	rpc = create(&error, "localhost", "sasl.mechanism", "OAUTHBEARER", "ssl.keystore.location", "/k.p12", NULL);
	CHECK(rpc != NULL);
	tk_rpc_destroy(rpc);

	CHECK(create(&error, ",", NULL) == NULL);
	SAYS("bootstrap.servers");
	CHECK(create(&error, "SSL://localhost:9092", NULL) == NULL);
	SAYS("bootstrap.servers");
	CHECK(create(&error, "localhost:0", NULL) == NULL);
	CHECK(create(&error, "localhost:70000", NULL) == NULL);
}

static void
servers_are_read_as_librdkafka_reads_them(void)
{
	static const struct
	{
		const char *entry;
		const char *host;
		int			port;
	}			cases[] =
	{
		{"kafka", "kafka", 9092},
		{"kafka:1234", "kafka", 1234},
		{" kafka:1234 ", "kafka", 1234},
		{"plaintext://kafka:1234/path", "kafka", 1234},
		{"::1", "::1", 9092},
		{"[::1]:1234", "::1", 1234},
		{"[::1]", "::1", 9092},
		{":1234", "localhost", 1234},
	};
	size_t		i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		TkKafkaProperty properties[] = {{"metadata.broker.list", NULL}};
		TkKafkaConf conf = {1, properties};
		TkKafkaError error;
		char		list[200];
		TkNet		net;

		snprintf(list, sizeof(list), "%s,bad:port,other:1", cases[i].entry);
		properties[0].value = list;
		memset(&net, 0, sizeof(net));
		if (CHECK(tk_net_configure(&net, &conf, &error)) && CHECK_INT(net.nservers, 2))
		{
			CHECK_STR(net.servers[0].host, cases[i].host);
			CHECK_INT(net.servers[0].port, cases[i].port);
			CHECK_STR(net.servers[1].host, "other");
			CHECK_STR(net.client_id, "transactional_kafka");
		}
		tk_net_free(&net);
	}
}


/*
 * A false broker: a thread that answers by the book, but for what "fault" says.
 */

typedef enum Fault
{
	NO_FAULT,
	SILENT,						/* accepts, reads, never answers */
	SHORT_FRAME,				/* a frame of only "amount" bytes */
	CUT,						/* announces all, sends "amount" bytes, closes */
	FLIPPED,					/* byte "amount" of the body is changed by "mask" */
	LONGER,						/* "amount" more bytes at the end */
	HUGE,						/* announces "amount" bytes */
	CLOSE,						/* closes at the request */
	WRONG_CORRELATION
} Fault;

typedef struct FalseBroker
{
	int			listener;
	char		address[40];
	int			port;
	pthread_t	thread;
	pthread_mutex_t mutex;		/* for all that follows */
	bool		stop;
	int			coordinator;	/* the port of it */
	int			second;			/* the port of the cluster's other broker, 0: there is none */
	int			faulty;			/* the API whose answers have the fault */
	Fault		fault;
	int			faults_left;	/* then none; -1: always */
	size_t		amount;
	int			mask;
	int			code;			/* error code of codes_of's answers */
	int			code_of;
	int			codes_left;
	int			connections;
	int			requests[100];
	size_t		answer_len[100];	/* of the last answer, from its length on */
	const char *scram;			/* the server's first message; %s is the client's nonce */
	const char *scram_final;
	const char *says;			/* text beside the error of SaslAuthenticate */
	int64_t		lifetime_ms;
	char		heard[600];		/* the last SaslAuthenticate's bytes */
	size_t		heard_len;
} FalseBroker;

static bool
read_fully(FalseBroker *b, int fd, char *data, size_t len)
{
	while (len > 0)
	{
		struct pollfd p = {fd, POLLIN, 0};
		bool		stop;
		ssize_t		n;

		pthread_mutex_lock(&b->mutex);
		stop = b->stop;
		pthread_mutex_unlock(&b->mutex);
		if (stop)
			return false;
		if (poll(&p, 1, 10) <= 0)
			continue;
		n = recv(fd, data, len, 0);
		if (n <= 0)
			return false;
		data += n;
		len -= (size_t) n;
	}
	return true;
}

static void
put_compact(TkBuffer *out, const char *text, size_t len)
{
	tk_put_uvarint(out, (uint32_t) len + 1);
	tk_buffer_append(out, text, len);
}

/* The right answer to the request in "in", without its length. */
static void
answer_by_the_book(FalseBroker *b, int key, TkAnswer *in, TkBuffer *out)
{
	int			code = b->code_of == key && b->codes_left != 0 ? b->code : 0;
	const char *text;
	size_t		len;

	if (b->code_of == key && b->codes_left > 0)
		b->codes_left--;
	switch (key)
	{
		case 3:
			tk_put_i32(out, 0);
			tk_put_i32(out, b->second ? 2 : 1);
			tk_put_i32(out, 1);
			tk_put_string(out, "127.0.0.1");
			tk_put_i32(out, b->port);
			tk_put_i16(out, -1);
			if (b->second)
			{
				tk_put_i32(out, 2);
				tk_put_string(out, "127.0.0.1");
				tk_put_i32(out, b->second);
				tk_put_string(out, "rack");
			}
			tk_put_string(out, "cluster");
			tk_put_i32(out, 1);
			tk_put_i32(out, 0);
			break;
		case 10:
			tk_put_i32(out, 0);
			tk_put_i16(out, (int16_t) code);
			tk_put_i16(out, -1);
			tk_put_i32(out, 1);
			tk_put_string(out, "127.0.0.1");
			tk_put_i32(out, b->coordinator);
			break;
		case 17:
			tk_put_i16(out, (int16_t) code);
			tk_put_i32(out, 2);
			tk_put_string(out, "SCRAM-SHA-256");
			tk_put_string(out, "OTHER\nTHING");
			break;
		case 26:
			tk_put_i32(out, 0);
			tk_put_i16(out, (int16_t) code);
			break;
		case 36:
			{
				char		first[300] = "";
				char		nonce[100] = "";
				int32_t		size = tk_get_i32(in);
				const char *bytes = tk_get_bytes(in, (size_t) size);

				b->heard_len = bytes && (size_t) size < sizeof(b->heard) ? (size_t) size : 0;
				memcpy(b->heard, bytes, b->heard_len);
				if (b->scram && b->heard_len > 3 && memcmp(b->heard, "n,,", 3) == 0)
				{
					const char *r = memmem(b->heard, b->heard_len, ",r=", 3);

					snprintf(nonce, sizeof(nonce), "%.*s", (int) (b->heard + b->heard_len - r - 3), r + 3);
					snprintf(first, sizeof(first), b->scram, nonce);
				}
				else if (b->scram)
					snprintf(first, sizeof(first), "%s", b->scram_final);
				tk_put_i16(out, (int16_t) code);
				if (code != 0 && b->says)
					tk_put_string(out, b->says);
				else
					tk_put_i16(out, -1);
				tk_put_i32(out, (int32_t) strlen(first));
				tk_buffer_string(out, first);
				tk_put_i64(out, b->lifetime_ms);
				break;
			}
		case 65:
			(void) tk_get_compact_count(in, 1);
			text = tk_get_compact_string(in, &len);
			tk_put_uvarint(out, 0);
			tk_put_i32(out, 0);
			tk_put_uvarint(out, 2);
			tk_put_i16(out, (int16_t) code);
			put_compact(out, text, len);
			tk_put_compact_string(out, "Ongoing");
			tk_put_i32(out, 60000);
			tk_put_i64(out, 1700000000000);
			tk_put_i64(out, 7);
			tk_put_i16(out, 3);
			tk_put_uvarint(out, 3);
			tk_put_compact_string(out, "topic");
			tk_put_uvarint(out, 3);
			tk_put_i32(out, 0);
			tk_put_i32(out, 1);
			tk_put_uvarint(out, 0);
			tk_put_compact_string(out, "t2");
			tk_put_uvarint(out, 2);
			tk_put_i32(out, 5);
			tk_put_uvarint(out, 0);
			tk_put_uvarint(out, 1); /* a tag that nobody knows */
			tk_put_uvarint(out, 9);
			put_compact(out, "?", 1);
			out->data[out->len - 2] = 1;	/* a tag's size is not size + 1 */
			tk_put_uvarint(out, 0);
			break;
		case 66:
			tk_put_uvarint(out, 0);
			tk_put_i32(out, 0);
			tk_put_i16(out, (int16_t) code);
			tk_put_uvarint(out, 1);
			tk_put_uvarint(out, 5);
			tk_put_compact_string(out, "p.1");
			tk_put_i64(out, 7);
			tk_put_compact_string(out, "Ongoing");
			tk_put_uvarint(out, 0);
			put_compact(out, "p.\0x", 4);
			tk_put_i64(out, 8);
			tk_put_compact_string(out, "Empty");
			tk_put_uvarint(out, 0);
			tk_put_compact_string(out, "p.1");	/* twice */
			tk_put_i64(out, 7);
			tk_put_compact_string(out, "Ongoing");
			tk_put_uvarint(out, 0);
			tk_put_compact_string(out, "p.0");
			tk_put_i64(out, 9);
			tk_put_compact_string(out, "SomethingNew");
			tk_put_uvarint(out, 0);
			tk_put_uvarint(out, 0);
			break;
	}
}

/* One request of a connection; false: close it. */
static bool
serve(FalseBroker *b, int fd)
{
	char		request[4096];
	char		word[4];
	uint32_t	size;
	uint32_t	announced;
	TkAnswer	in;
	TkBuffer	out;
	size_t		len;
	size_t		send_len;
	int			key;
	int			correlation;
	bool		keep = true;
	Fault		fault;

	if (!read_fully(b, fd, word, 4))
		return false;
	memcpy(&size, word, 4);
	size = ntohl(size);
	if (size > sizeof(request) || !read_fully(b, fd, request, size))
		return false;
	in.at = (unsigned char *) request;
	in.end = in.at + size;
	in.bad = false;
	key = tk_get_i16(&in);
	(void) tk_get_i16(&in);
	correlation = tk_get_i32(&in);
	(void) tk_get_string(&in, &len);
	if (key == 65 || key == 66)
		tk_skip_tags(&in);
	if (in.bad || key < 0 || key >= 100)
		return false;

	pthread_mutex_lock(&b->mutex);
	b->requests[key]++;
	fault = b->faulty == key && b->faults_left != 0 ? b->fault : NO_FAULT;
	if (fault != NO_FAULT && b->faults_left > 0)
		b->faults_left--;
	memset(&out, 0, sizeof(out));
	tk_put_i32(&out, 0);
	tk_put_i32(&out, fault == WRONG_CORRELATION ? correlation + 1 : correlation);
	answer_by_the_book(b, key, &in, &out);
	b->answer_len[key] = out.len - 4;
	if (fault == LONGER)
		for (len = 0; len < b->amount; len++)
			tk_buffer_char(&out, '\0');
	announced = (uint32_t) (out.len - 4);
	send_len = out.len;
	if (fault == FLIPPED && b->amount + 4 < out.len)
		out.data[b->amount + 4] = (char) (out.data[b->amount + 4] ^ b->mask);
	if (fault == SHORT_FRAME)
	{
		announced = (uint32_t) b->amount;
		send_len = b->amount + 4;
	}
	else if (fault == CUT)
	{
		send_len = b->amount;
		keep = false;
	}
	else if (fault == HUGE)
		announced = (uint32_t) b->amount;
	else if (fault == CLOSE)
	{
		send_len = 0;
		keep = false;
	}
	else if (fault == SILENT)
		send_len = 0;
	pthread_mutex_unlock(&b->mutex);

	announced = htonl(announced);
	memcpy(out.data, &announced, 4);
	if (send_len > 0)
		(void) !send(fd, out.data, send_len, MSG_NOSIGNAL);
	tk_buffer_free(&out);
	return keep;
}

typedef struct Served
{
	FalseBroker *broker;
	int			fd;
} Served;

static void *
serve_connection(void *arg)
{
	Served		served = *(Served *) arg;

	free(arg);
	while (serve(served.broker, served.fd))
		;
	close(served.fd);
	return NULL;
}

static void *
accept_connections(void *arg)
{
	FalseBroker *b = arg;
	pthread_t	threads[4000];
	int			n = 0;

	for (;;)
	{
		struct pollfd p = {b->listener, POLLIN, 0};
		Served	   *served;
		bool		stop;

		pthread_mutex_lock(&b->mutex);
		stop = b->stop;
		pthread_mutex_unlock(&b->mutex);
		if (stop || n == 4000)
			break;
		if (poll(&p, 1, 10) <= 0)
			continue;
		served = malloc(sizeof(Served));
		served->broker = b;
		served->fd = accept(b->listener, NULL, NULL);
		pthread_mutex_lock(&b->mutex);
		b->connections++;
		pthread_mutex_unlock(&b->mutex);
		if (pthread_create(&threads[n], NULL, serve_connection, served) == 0)
			n++;
	}
	while (n > 0)
		pthread_join(threads[--n], NULL);
	return NULL;
}

static void
start_false_broker(FalseBroker *b)
{
	struct sockaddr_in address;
	socklen_t	size = sizeof(address);

	memset(b, 0, sizeof(*b));
	b->faulty = b->code_of = -1;
	b->listener = socket(AF_INET, SOCK_STREAM, 0);
	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK_INT(bind(b->listener, (struct sockaddr *) &address, sizeof(address)), 0);
	CHECK_INT(listen(b->listener, 100), 0);
	getsockname(b->listener, (struct sockaddr *) &address, &size);
	b->port = b->coordinator = ntohs(address.sin_port);
	snprintf(b->address, sizeof(b->address), "127.0.0.1:%d", b->port);
	pthread_mutex_init(&b->mutex, NULL);
	pthread_create(&b->thread, NULL, accept_connections, b);
}

static void
stop_false_broker(FalseBroker *b)
{
	pthread_mutex_lock(&b->mutex);
	b->stop = true;
	pthread_mutex_unlock(&b->mutex);
	pthread_join(b->thread, NULL);
	close(b->listener);
	pthread_mutex_destroy(&b->mutex);
}

static void
set_fault(FalseBroker *b, int key, Fault fault, size_t amount, int mask, int times)
{
	pthread_mutex_lock(&b->mutex);
	b->faulty = key;
	b->fault = fault;
	b->amount = amount;
	b->mask = mask;
	b->faults_left = times;
	pthread_mutex_unlock(&b->mutex);
}

static void
set_code(FalseBroker *b, int key, int code, int times)
{
	pthread_mutex_lock(&b->mutex);
	b->code_of = key;
	b->code = code;
	b->codes_left = times;
	pthread_mutex_unlock(&b->mutex);
}

static int
requests_of(FalseBroker *b, int key)
{
	int			n;

	pthread_mutex_lock(&b->mutex);
	n = b->requests[key];
	pthread_mutex_unlock(&b->mutex);
	return n;
}

static size_t
answer_len(FalseBroker *b, int key)
{
	size_t		n;

	pthread_mutex_lock(&b->mutex);
	n = b->answer_len[key];
	pthread_mutex_unlock(&b->mutex);
	return n;
}

static const int apis[] = {3, 10, 17, 26, 36, 65, 66};

#define NAPIS 7

/* A call of a new client's that meets this API on its way. */
static TkKafkaStatus
call_that_uses(FalseBroker *b, int key, int timeout_ms, TkKafkaError *error)
{
	TkKafkaWait wait = {timeout_ms, NULL};
	TkTransactionDescription d;
	TkTransactionList list;
	TkKafkaStatus status;
	TkRpc	   *rpc;

	if (key == 17 || key == 36)
		rpc = create(error, b->address, "security.protocol", "sasl_plaintext", "sasl.mechanism", "PLAIN",
					 "sasl.username", "shop", "sasl.password", "plain-secret", NULL);
	else
		rpc = client(b->address);
	if (key == 3 || key == 66)
	{
		status = tk_rpc_list(rpc, "p.", &wait, &list, error);
		tk_transaction_list_free(&list);
	}
	else if (key == 26)
		status = tk_rpc_end(rpc, "id", 7, 3, true, &wait, error);
	else
		status = tk_rpc_describe(rpc, "id", &wait, &d, error);
	tk_rpc_destroy(rpc);
	return status;
}

static void
the_false_broker_is_right_without_faults(void)
{
	FalseBroker b;
	TkRpc	   *rpc;
	TkTransactionDescription d;
	TkTransactionList list;
	TkKafkaError error;
	int			i;

	start_false_broker(&b);
	for (i = 0; i < NAPIS; i++)
		CHECK(is_ok(call_that_uses(&b, apis[i], 5000, &error), &error));

	rpc = client(b.address);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK(d.found);
	CHECK_INT(d.state, TK_TRANSACTION_ONGOING);
	CHECK_INT(d.timeout_ms, 60000);
	CHECK_INT(d.start_ms, 1700000000000);
	CHECK_INT(d.producer_id, 7);
	CHECK_INT(d.epoch, 3);
	CHECK_INT(d.partitions, 3);
	OK(tk_rpc_list(rpc, "p.", &patient, &list, &error));
	if (CHECK_INT(list.n, 2))
	{
		CHECK_STR(list.transactions[0].transactional_id, "p.0");
		CHECK_INT(list.transactions[0].state, TK_TRANSACTION_OTHER);
		CHECK_STR(list.transactions[1].transactional_id, "p.1");
		CHECK_INT(list.transactions[1].producer_id, 7);
	}
	tk_transaction_list_free(&list);

	/* an answer about something else */
	set_code(&b, 65, 105, 1);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK(!d.found);
	tk_rpc_destroy(rpc);
	stop_false_broker(&b);
}

static void
cut_answers_are_not_taken(void)
{
	FalseBroker b;
	TkKafkaError error;
	int			i;

	start_false_broker(&b);
	for (i = 0; i < NAPIS; i++)
	{
		size_t		whole;
		size_t		n;

		set_fault(&b, -1, NO_FAULT, 0, 0, 0);
		CHECK(is_ok(call_that_uses(&b, apis[i], 5000, &error), &error));
		whole = answer_len(&b, apis[i]);
		for (n = 0; n < whole; n++)
		{
			set_fault(&b, apis[i], SHORT_FRAME, n, 0, -1);
			if (!CHECK_INT(call_that_uses(&b, apis[i], 5000, &error), TK_KAFKA_FATAL) ||
				!CHECK_INT(error.code, RD_KAFKA_RESP_ERR__BAD_MSG))
				printf("\tAPI %d, %d bytes of %d: %s\n", apis[i], (int) n, (int) whole, error.message);
		}

		/* an end in the middle is no answer: asked again */
		for (n = 0; n < whole + 4; n += 3)
		{
			int			asked = requests_of(&b, apis[i]);

			set_fault(&b, apis[i], CUT, n, 0, 1);
			CHECK(is_ok(call_that_uses(&b, apis[i], 20000, &error), &error));
			CHECK_INT(requests_of(&b, apis[i]) - asked, 2);
		}
		for (n = 1; n < 4; n++)
		{
			set_fault(&b, apis[i], LONGER, n, 0, -1);
			CHECK_INT(call_that_uses(&b, apis[i], 5000, &error), TK_KAFKA_FATAL);
		}
		set_fault(&b, apis[i], WRONG_CORRELATION, 0, 0, -1);
		CHECK_INT(call_that_uses(&b, apis[i], 5000, &error), TK_KAFKA_FATAL);
		SAYS("another request");
	}
	stop_false_broker(&b);
}

static void
announced_sizes_are_not_believed(void)
{
	static const size_t sizes[] = {0x7fffffff, 0x80000000, 0xffffffff, 64 * 1024 * 1024, 3, 0};
	FalseBroker b;
	TkKafkaError error;
	size_t		i;
	int			j;

	start_false_broker(&b);
	for (j = 0; j < NAPIS; j++)
		for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		{
			set_fault(&b, apis[j], HUGE, sizes[i], 0, -1);
			CHECK_INT(call_that_uses(&b, apis[j], 5000, &error), TK_KAFKA_FATAL);
			CHECK_INT(error.code, RD_KAFKA_RESP_ERR__BAD_MSG);
		}

	/* allowed, but it never comes */
	set_fault(&b, 66, HUGE, 20 * 1024 * 1024, 0, -1);
	CHECK_INT(call_that_uses(&b, 66, 300, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_TIMED_OUT);
	stop_false_broker(&b);
}

/* Whatever comes: no crash, no over-read (the sanitizers look), and an end within the bound. */
static void
changed_answers_do_no_harm(void)
{
	static const int masks[] = {0xff, 0x80, 0x01};
	FalseBroker b;
	TkKafkaError error;
	int			errors = 0;
	int			calls = 0;
	int			i;
	size_t		n;

	start_false_broker(&b);
	for (i = 0; i < NAPIS; i++)
	{
		size_t		whole;

		set_fault(&b, -1, NO_FAULT, 0, 0, 0);
		CHECK(is_ok(call_that_uses(&b, apis[i], 5000, &error), &error));
		whole = answer_len(&b, apis[i]);
		for (n = 0; n < whole; n++)
		{
			int			mask = masks[n % 3];
			double		start = now();

			set_fault(&b, apis[i], FLIPPED, n, mask, -1);
			errors += call_that_uses(&b, apis[i], 40, &error) != TK_KAFKA_OK;
			calls++;
			CHECK(now() - start < 5);
		}
	}
	printf("%d of %d changed answers were refused\n", errors, calls);
	CHECK(errors > calls / 4);
	stop_false_broker(&b);
}

static void
a_broker_that_never_answers_holds_nobody_up(void)
{
	FalseBroker b;
	TkKafkaError error;
	TkKafkaWait stop = {20000, always};
	TkTransactionDescription d;
	TkRpc	   *rpc;
	double		start;
	int			i;

	start_false_broker(&b);
	for (i = 0; i < NAPIS; i++)
	{
		set_fault(&b, apis[i], SILENT, 0, 0, -1);
		start = now();
		CHECK_INT(call_that_uses(&b, apis[i], 200, &error), TK_KAFKA_RETRY);
		CHECK_INT(error.cause, TK_CAUSE_TIMED_OUT);
		CHECK(now() - start < 5);
	}
	rpc = client(b.address);
	start = now();
	CHECK_INT(tk_rpc_describe(rpc, "id", &stop, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_INTERRUPTED);
	CHECK(now() - start < 5);
	tk_rpc_destroy(rpc);

	/* not even TLS */
	set_fault(&b, -1, NO_FAULT, 0, 0, 0);
	rpc = create(&error, b.address, "security.protocol", "ssl", NULL);
	{
		TkKafkaWait wait = {300, NULL};

		start = now();
		CHECK(tk_rpc_describe(rpc, "id", &wait, &d, &error) == TK_KAFKA_RETRY);
		CHECK(now() - start < 5);
	}
	tk_rpc_destroy(rpc);
	stop_false_broker(&b);
}

static void
what_passes_is_tried_again(void)
{
	static const int passing[] = {14, 15, 16, 51};
	static const int final[] = {47, 90, 48, 49, 53, 67, -1};
	FalseBroker b;
	TkKafkaError error;
	TkTransactionDescription d;
	TkRpc	   *rpc;
	size_t		i;
	int			connections;

	start_false_broker(&b);
	rpc = client(b.address);
	for (i = 0; i < 4; i++)
	{
		int			asked = requests_of(&b, 26);
		int			looked_up = requests_of(&b, 10);

		set_code(&b, 26, passing[i], 3);
		OK(tk_rpc_end(rpc, "id", 7, 3, true, &patient, &error));
		CHECK_INT(requests_of(&b, 26) - asked, 4);
		/* the coordinator is looked up again when it has moved, or is not known yet */
		CHECK_INT(requests_of(&b, 10) - looked_up, passing[i] == 15 || passing[i] == 16 ? 3 : i == 0);

		set_code(&b, 65, passing[i], 2);
		OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
		CHECK(d.found);
		set_code(&b, 10, passing[i], 2);
		OK(tk_rpc_describe(rpc, name("another"), &patient, &d, &error));
	}
	for (i = 0; i < sizeof(final) / sizeof(final[0]); i++)
	{
		int			asked = requests_of(&b, 26);

		set_code(&b, 26, final[i], -1);
		CHECK_INT(tk_rpc_end(rpc, "id", 7, 3, true, &patient, &error),
				  final[i] == 47 || final[i] == 90 ? TK_KAFKA_FENCED : TK_KAFKA_FATAL);
		CHECK_INT(error.code, final[i]);
		CHECK_INT(error.cause, final[i] == 53 ? TK_CAUSE_AUTHORIZATION : TK_CAUSE_OTHER);
		CHECK_INT(requests_of(&b, 26) - asked, 1);
	}
	set_code(&b, 10, 53, -1);
	CHECK_INT(tk_rpc_describe(rpc, "new", &patient, &d, &error), TK_KAFKA_FATAL);
	CHECK_INT(error.cause, TK_CAUSE_AUTHORIZATION);
	SAYS("Describe");
	set_code(&b, -1, 0, 0);

	/* an answer that is lost: the same request over a new connection, and a kept one is not trusted */
	for (i = 0; i < 2; i++)
	{
		int			asked = requests_of(&b, 26);

		set_fault(&b, 26, CLOSE, 0, 0, 1 + (int) i);
		OK(tk_rpc_end(rpc, "id", 7, 3, true, &patient, &error));
		CHECK_INT(requests_of(&b, 26) - asked, 2 + (int) i);
	}
	connections = b.connections;
	for (i = 0; i < 10; i++)
		OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK_INT(b.connections - connections, 0);
	tk_rpc_destroy(rpc);

	/* one that closes at what it doesn't know */
	set_fault(&b, 65, CLOSE, 0, 0, -1);
	CHECK_INT(call_that_uses(&b, 65, 300, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_UNREACHABLE);
	SAYS("before 3.0");
	CHECK(requests_of(&b, 65) < 1000);

	/* and what does not pass in time */
	set_code(&b, 26, 51, -1);
	CHECK_INT(call_that_uses(&b, 26, 300, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.code, 51);
	stop_false_broker(&b);
}

static void
set_coordinator(FalseBroker *b, int port)
{
	pthread_mutex_lock(&b->mutex);
	b->coordinator = port;
	pthread_mutex_unlock(&b->mutex);
}

static void
a_coordinator_that_moved_is_followed(void)
{
	FalseBroker first;
	FalseBroker second;
	TkTransactionDescription d;
	TkTransactionList list;
	TkKafkaError error;
	TkRpc	   *rpc;

	start_false_broker(&first);
	start_false_broker(&second);
	set_coordinator(&first, second.port);
	rpc = client(first.address);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK_INT(requests_of(&first, 10), 1);
	CHECK_INT(requests_of(&first, 65), 0);
	CHECK_INT(requests_of(&second, 65), 2);

	/* every broker is asked for what it coordinates */
	first.second = second.port;
	OK(tk_rpc_list(rpc, "p.", &patient, &list, &error));
	CHECK_INT(list.n, 2);
	CHECK_INT(requests_of(&first, 66), 1);
	CHECK_INT(requests_of(&second, 66), 1);
	tk_transaction_list_free(&list);

	/* the second says that it isn't any more */
	set_coordinator(&first, first.port);
	set_code(&second, 65, 16, -1);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK(d.found);
	CHECK_INT(requests_of(&second, 65), 3);
	CHECK_INT(requests_of(&first, 65), 1);

	/* it is again, and dies */
	set_coordinator(&first, second.port);
	set_code(&second, -1, 0, 0);
	set_code(&first, 65, 16, 1);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK_INT(requests_of(&second, 65), 4);
	stop_false_broker(&second);
	set_coordinator(&first, first.port);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK_INT(requests_of(&first, 65), 3);
	tk_rpc_destroy(rpc);
	stop_false_broker(&first);
}

static void
unreachable_servers_are_named_and_passed_over(void)
{
	FalseBroker b;
	TkKafkaError error;
	TkKafkaWait wait = {500, NULL};
	TkTransactionDescription d;
	TkRpc	   *rpc;
	char		servers[100];

	rpc = client("127.0.0.1:1");
	CHECK_INT(tk_rpc_describe(rpc, "id", &wait, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_UNREACHABLE);
	SAYS("127.0.0.1:1: Connection refused");
	tk_rpc_destroy(rpc);

	start_false_broker(&b);
	snprintf(servers, sizeof(servers), "127.0.0.1:1,%s", b.address);
	rpc = client(servers);
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	tk_rpc_destroy(rpc);
	rpc = create(&error, b.address, "broker.address.family", "v6", NULL);
	CHECK_INT(tk_rpc_describe(rpc, "id", &wait, &d, &error), TK_KAFKA_RETRY);
	CHECK_INT(error.cause, TK_CAUSE_UNREACHABLE);
	tk_rpc_destroy(rpc);
	stop_false_broker(&b);
}

/*
 * getaddrinfo() that hangs for names that say so, until it is let go.
 */
static pthread_mutex_t hang_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_over = PTHREAD_COND_INITIALIZER;
static bool let_go;
static int	hangs;

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	static int	(*real) (const char *, const char *, const struct addrinfo *, struct addrinfo **);

	if (real == NULL)
		*(void **) &real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (node && strncmp(node, "hang", 4) == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0)
	{
		pthread_mutex_lock(&hang_mutex);
		hangs++;
		while (!let_go)
			pthread_cond_wait(&hang_over, &hang_mutex);
		hangs--;
		pthread_mutex_unlock(&hang_mutex);
		node = "127.0.0.1";
	}
	return real(node, service, hints, result);
}

static void
a_lookup_that_hangs_is_left_behind(void)
{
	FalseBroker b;
	TkKafkaWait wait = {150, NULL};
	TkTransactionDescription d;
	TkKafkaError error;
	TkRpc	   *rpcs[12];
	char		server[40];
	double		start;
	int			i;

	start_false_broker(&b);
	CHECK(!tk_rpc_threads_left());
	for (i = 0; i < 12; i++)
	{
		snprintf(server, sizeof(server), "hang%d:%d", i, b.port);
		rpcs[i] = client(server);
		start = now();
		CHECK_INT(tk_rpc_describe(rpcs[i], "id", &wait, &d, &error), TK_KAFKA_RETRY);
		CHECK_INT(error.cause, TK_CAUSE_UNREACHABLE);
		SAYS("host name \"hang");
		CHECK(now() - start < 5);
	}
	/* the same name again: the same thread; and never more than a few */
	CHECK_INT(tk_rpc_describe(rpcs[0], "id", &wait, &d, &error), TK_KAFKA_RETRY);
	CHECK(tk_rpc_threads_left());
	pthread_mutex_lock(&hang_mutex);
	CHECK_INT(hangs, 8);
	pthread_mutex_unlock(&hang_mutex);
	tk_rpc_destroy(rpcs[1]);	/* while it hangs */

	pthread_mutex_lock(&hang_mutex);
	let_go = true;
	pthread_cond_broadcast(&hang_over);
	pthread_mutex_unlock(&hang_mutex);
	OK(tk_rpc_describe(rpcs[0], "id", &patient, &d, &error));
	CHECK(d.found);
	OK(tk_rpc_describe(rpcs[11], "id", &patient, &d, &error));
	for (i = 0; i < 12; i++)
		if (i != 1)
			tk_rpc_destroy(rpcs[i]);
	for (i = 0; i < 500 && tk_rpc_threads_left(); i++)
		poll(NULL, 0, 10);
	CHECK(!tk_rpc_threads_left());
	stop_false_broker(&b);
}


/*
 * SASL with somebody who isn't the broker
 */

static TkRpc *
login(FalseBroker *b, const char *mechanism, const char *user)
{
	TkKafkaError error;

	return create(&error, b->address, "security.protocol", "sasl_plaintext", "sasl.mechanism", mechanism,
				  "sasl.username", user, "sasl.password", "scram-secret", NULL);
}

static void
a_false_brokers_scram_is_not_believed(void)
{
	static const struct
	{
		const char *first;
		const char *final;
		const char *reason;
	}			cases[] =
	{
		{"r=%.0sother,s=c2FsdA==,i=4096", "", "nonce"},
		{"r=%s,s=c2FsdA==,i=4096", "", "nonce"},	/* nothing of its own */
		{"r=%sx,s=c2FsdA==,i=4095", "", "4096"},
		{"r=%sx,s=c2FsdA==,i=0", "", "4096"},
		{"r=%sx,s=c2FsdA==,i=1000001", "", "iteration"},
		{"r=%sx,s=c2FsdA==,i=99999999999", "", "iteration"},
		{"r=%sx,s=c2FsdA==,i=-4096", "", "iteration"},
		{"r=%sx,s=c2FsdA==,i=", "", "iteration"},
		{"r=%sx,s=c2FsdA==", "", "iteration"},
		{"r=%sx,s=c2F*dA==,i=4096", "", "salt"},
		{"r=%sx,s=,i=4096", "", "salt"},
		{"r=%sx,s====,i=4096", "", "salt"},
		{"r=%sx", "", "salt"},
		{"m=ext,r=%sx,s=c2FsdA==,i=4096", "", "nonce"},
		{"", "", "nonce"},
		{"r=%sx,s=c2FsdA==,i=4096", "", "prove"},
		{"r=%sx,s=c2FsdA==,i=4096", "e=other-error", "prove"},
		{"r=%sx,s=c2FsdA==,i=4096", "v=", "signature"},
		{"r=%sx,s=c2FsdA==,i=4096", "v=AAAA", "signature"},
		{"r=%sx,s=c2FsdA==,i=4096,x=y", "v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "signature"},
	};
	FalseBroker b;
	size_t		i;

	start_false_broker(&b);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		pthread_mutex_lock(&b.mutex);
		b.scram = cases[i].first;
		b.scram_final = cases[i].final;
		pthread_mutex_unlock(&b.mutex);
		is_refused(login(&b, "SCRAM-SHA-256", "shop"), cases[i].reason);
		/* who can't begin right learns nothing */
		if (i < 15)
			CHECK(memmem(b.heard, b.heard_len, "p=", 2) == NULL);
	}
	CHECK_INT(requests_of(&b, 10), 0);

	/* what we say */
	b.scram = "";
	is_refused(login(&b, "SCRAM-SHA-256", "a=b,c"), "nonce");
	CHECK(b.heard_len == 49 && memcmp(b.heard, "n,,n=a=3Db=2Cc,r=", 17) == 0);
	stop_false_broker(&b);
}

static void
what_a_broker_says_is_quoted_with_care(void)
{
	FalseBroker b;
	TkKafkaError error;
	TkRpc	   *rpc;
	TkTransactionDescription d;
	int			connections;

	start_false_broker(&b);
	set_code(&b, 36, 58, -1);
	b.says = "No such\nuser \xc3\xa4";
	is_refused(login(&b, "PLAIN", "shop"), "No such?user ??");
	CHECK_BYTES(b.heard, b.heard_len, "\0shop\0scram-secret", 18);
	b.says = "you said scram-secret";
	is_refused(login(&b, "PLAIN", "shop"), "refused");
	b.says = NULL;
	is_refused(login(&b, "PLAIN", "shop"), "PLAIN");
	set_code(&b, 17, 33, -1);
	is_refused(login(&b, "PLAIN", "shop"), "\"SCRAM-SHA-256 OTHER?THING\"");
	set_code(&b, -1, 0, 0);

	/* a session that ends soon: another connection for what comes after it */
	b.lifetime_ms = 1;
	rpc = login(&b, "PLAIN", "shop");
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	poll(NULL, 0, 5);
	connections = b.connections;
	OK(tk_rpc_describe(rpc, "id", &patient, &d, &error));
	CHECK_INT(b.connections - connections, 1);
	tk_rpc_destroy(rpc);
	stop_false_broker(&b);
}

static void
numbers_are_read_with_their_bounds(void)
{
	static const struct
	{
		const char *bytes;
		size_t		len;
		bool		bad;
		uint32_t	value;
	}			cases[] =
	{
		{"\x00", 1, false, 0},
		{"\x7f", 1, false, 127},
		{"\x80\x01", 2, false, 128},
		{"\xff\xff\xff\xff\x0f", 5, false, 0xffffffff},
		{"\xff\xff\xff\xff\x1f", 5, true, 0},
		{"\xff\xff\xff\xff\xff\x01", 6, true, 0},
		{"\x80\x80\x80\x80\x80", 5, true, 0},
		{"\x80", 1, true, 0},
		{"", 0, true, 0},
	};
	size_t		i;
	TkBuffer	b;

	memset(&b, 0, sizeof(b));
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		TkAnswer	a = {(const unsigned char *) cases[i].bytes, NULL, false};

		a.end = a.at + cases[i].len;
		CHECK_INT(tk_get_uvarint(&a), cases[i].value);
		CHECK_INT(a.bad, cases[i].bad);
		CHECK_INT(tk_answer_is_whole(&a), !cases[i].bad);
		if (cases[i].bad)
			continue;
		tk_buffer_reset(&b, 100);
		tk_put_uvarint(&b, cases[i].value);
		CHECK_BYTES(b.data, b.len, cases[i].bytes, cases[i].len);
	}
	tk_buffer_free(&b);
}

int
main(int argc, char **argv)
{
	struct sigaction action;
	int			level;
	char		line[600];

	setvbuf(stdout, NULL, _IOLBF, 0);
	/* a SIGPIPE would end us */
	memset(&action, 0, sizeof(action));
	action.sa_handler = SIG_DFL;
	sigaction(SIGPIPE, &action, NULL);
	snprintf(run, sizeof(run), "%ld-%d", (long) time(NULL), (int) getpid());

	numbers_are_read_with_their_bounds();
	what_this_client_can_not_do_is_said();
	servers_are_read_as_librdkafka_reads_them();
	the_false_broker_is_right_without_faults();
	cut_answers_are_not_taken();
	announced_sizes_are_not_believed();
	changed_answers_do_no_harm();
	a_broker_that_never_answers_holds_nobody_up();
	what_passes_is_tried_again();
	a_coordinator_that_moved_is_followed();
	unreachable_servers_are_named_and_passed_over();
	a_lookup_that_hangs_is_left_behind();
	a_false_brokers_scram_is_not_believed();
	what_a_broker_says_is_quoted_with_care();

	broker = getenv("BROKER");
	if (broker == NULL)
	{
		fprintf(stderr, "BROKER is not set\n");
		return 2;
	}
	an_unknown_id_is_not_found();
	a_dead_producers_transaction_is_described_and_committed();
	an_abort_is_an_abort();
	a_fenced_transaction_can_not_be_ended();
	the_ids_of_a_prefix_are_listed();
	a_broker_that_hangs_holds_nobody_up();
	with_a_secure_broker();
	while (tk_kafka_next_log(&level, line, sizeof(line)))
		printf("log %d: %s\n", level, line);
	return unit_done();
}
