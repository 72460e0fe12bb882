/*
 * kafka_conf.c
 *	  librdkafka's properties: who may set which, and setting them.
 *
 * The list below is an allow-list and names every property of librdkafka
 * 2.0.2 to 2.16, so a name that is missing from it is UNKNOWN and refused,
 * whatever a newer library would do with it.  The classes follow from what a
 * property can reach: a file, a program, a library or another host of the
 * database server's network (SUPERUSER); something that must not be shown
 * (SECRET, only in user mappings, which PostgreSQL hides); what exactly-once
 * delivery rests on (RESERVED).  The rest is the server owner's.
 */
#include <stdio.h>
#include <string.h>

#include "kafka_internal.h"

/* Which handles a property is given to; librdkafka logs a warning when it is the wrong kind. */
enum
{
	FOR_BOTH,
	FOR_PRODUCER
};

typedef struct Property
{
	const char *name;
	TkPropertyClass class;
	int			user;
} Property;

#define SERVER(name)		{name, TK_PROPERTY_SERVER, FOR_BOTH}
#define PRODUCER(name)		{name, TK_PROPERTY_SERVER, FOR_PRODUCER}
#define SECRET(name)		{name, TK_PROPERTY_SECRET, FOR_BOTH}
#define SUPERUSER(name)		{name, TK_PROPERTY_SUPERUSER, FOR_BOTH}
#define RESERVED(name)		{name, TK_PROPERTY_RESERVED, FOR_BOTH}

static const Property properties[] = {
	/* where the brokers are, and how to talk to them */
	SERVER("bootstrap.servers"),
	SERVER("metadata.broker.list"),
	SERVER("client.id"),
	SERVER("client.rack"),
	SERVER("client.dns.lookup"),
	SERVER("security.protocol"),
	SERVER("message.max.bytes"),
	SERVER("message.copy.max.bytes"),
	SERVER("receive.message.max.bytes"),
	SERVER("metadata.max.age.ms"),
	SERVER("metadata.recovery.strategy"),
	SERVER("metadata.recovery.rebootstrap.trigger.ms"),
	SERVER("topic.metadata.refresh.interval.ms"),
	SERVER("topic.metadata.refresh.fast.interval.ms"),
	SERVER("topic.metadata.refresh.fast.cnt"),
	SERVER("topic.metadata.refresh.sparse"),
	SERVER("topic.metadata.propagation.max.ms"),
	SERVER("socket.timeout.ms"),
	SERVER("socket.blocking.max.ms"),
	SERVER("socket.send.buffer.bytes"),
	SERVER("socket.receive.buffer.bytes"),
	SERVER("socket.keepalive.enable"),
	SERVER("socket.nagle.disable"),
	SERVER("socket.max.fails"),
	SERVER("socket.connection.setup.timeout.ms"),
	SERVER("connections.max.idle.ms"),
	SERVER("broker.address.ttl"),
	SERVER("broker.address.family"),
	SERVER("reconnect.backoff.jitter.ms"),
	SERVER("reconnect.backoff.ms"),
	SERVER("reconnect.backoff.max.ms"),
	SERVER("log.connection.close"),
	SERVER("api.version.request.timeout.ms"),
	SERVER("enable.metrics.push"),

	/* batching */
	PRODUCER("queue.buffering.max.messages"),
	PRODUCER("queue.buffering.max.kbytes"),
	PRODUCER("queue.buffering.max.ms"),
	PRODUCER("linger.ms"),
	PRODUCER("compression.codec"),
	PRODUCER("compression.type"),
	PRODUCER("compression.level"),
	PRODUCER("batch.num.messages"),
	PRODUCER("batch.size"),
	PRODUCER("sticky.partitioning.linger.ms"),
	PRODUCER("request.timeout.ms"),

	/* TLS: texts that are public, and policy */
	SERVER("ssl.cipher.suites"),
	SERVER("ssl.curves.list"),
	SERVER("ssl.sigalgs.list"),
	SERVER("ssl.certificate.pem"),
	SERVER("ssl.ca.pem"),
	SERVER("https.ca.pem"),
	SERVER("enable.ssl.certificate.verification"),
	SERVER("ssl.endpoint.identification.algorithm"),

	/* SASL: what names no file, program or host */
	SERVER("sasl.mechanism"),
	SERVER("sasl.mechanisms"),
	SERVER("sasl.oauthbearer.method"),
	SERVER("sasl.oauthbearer.scope"),
	SERVER("sasl.oauthbearer.extensions"),
	SERVER("sasl.oauthbearer.grant.type"),
	SERVER("sasl.oauthbearer.assertion.algorithm"),
	SERVER("sasl.oauthbearer.assertion.claim.aud"),
	SERVER("sasl.oauthbearer.assertion.claim.exp.seconds"),
	SERVER("sasl.oauthbearer.assertion.claim.iss"),
	SERVER("sasl.oauthbearer.assertion.claim.jti.include"),
	SERVER("sasl.oauthbearer.assertion.claim.nbf.seconds"),
	SERVER("sasl.oauthbearer.assertion.claim.sub"),
	SERVER("sasl.oauthbearer.sub.claim.name"),

	SECRET("sasl.username"),
	SECRET("sasl.password"),
	SECRET("sasl.oauthbearer.client.id"),
	SECRET("sasl.oauthbearer.client.secret"),
	SECRET("sasl.oauthbearer.client.credentials.client.id"),
	SECRET("sasl.oauthbearer.client.credentials.client.secret"),
	SECRET("sasl.oauthbearer.assertion.private.key.passphrase"),
	SECRET("sasl.oauthbearer.assertion.private.key.pem"),
	SECRET("ssl.key.password"),
	SECRET("ssl.key.pem"),
	SECRET("ssl.keystore.password"),

	/* files and libraries */
	SUPERUSER("ssl.key.location"),
	SUPERUSER("ssl.certificate.location"),
	SUPERUSER("ssl.ca.location"),
	SUPERUSER("ssl.ca.certificate.stores"),
	SUPERUSER("ssl.crl.location"),
	SUPERUSER("ssl.keystore.location"),
	SUPERUSER("ssl.providers"),
	SUPERUSER("ssl.engine.location"),
	SUPERUSER("ssl.engine.id"),
	SUPERUSER("https.ca.location"),
	SUPERUSER("sasl.oauthbearer.assertion.private.key.file"),
	SUPERUSER("sasl.oauthbearer.assertion.file"),
	SUPERUSER("sasl.oauthbearer.assertion.jwt.template.file"),
	/* a shell command, and the values that are put into it */
	SUPERUSER("sasl.kerberos.kinit.cmd"),
	SUPERUSER("sasl.kerberos.keytab"),
	SUPERUSER("sasl.kerberos.principal"),
	SUPERUSER("sasl.kerberos.service.name"),
	SUPERUSER("sasl.kerberos.min.time.before.relogin"),
	/* HTTP requests from the database server to wherever they say */
	SUPERUSER("sasl.oauthbearer.token.endpoint.url"),
	SUPERUSER("sasl.oauthbearer.config"),
	SUPERUSER("sasl.oauthbearer.metadata.authentication.type"),
	SUPERUSER("enable.sasl.oauthbearer.unsecure.jwt"),
	/* can fill the server's log */
	SUPERUSER("debug"),

	/* exactly once, in order */
	RESERVED("transactional.id"),
	RESERVED("retry.backoff.ms"),	/* a repeated EndTxn must not come sooner than pipeline.c thinks */
	RESERVED("retry.backoff.max.ms"),
	RESERVED("transaction.timeout.ms"),
	RESERVED("enable.idempotence"),
	RESERVED("enable.gapless.guarantee"),
	RESERVED("acks"),
	RESERVED("request.required.acks"),
	RESERVED("max.in.flight"),
	RESERVED("max.in.flight.requests.per.connection"),
	RESERVED("retries"),
	RESERVED("message.send.max.retries"),
	RESERVED("message.timeout.ms"),
	RESERVED("delivery.timeout.ms"),
	RESERVED("queuing.strategy"),
	RESERVED("queue.buffering.backpressure.threshold"),
	RESERVED("partitioner"),
	RESERVED("partitioner_cb"),
	RESERVED("msg_order_cmp"),
	RESERVED("produce.offset.report"),
	RESERVED("delivery.report.only.error"),
	RESERVED("allow.auto.create.topics"),
	RESERVED("topic.blacklist"),

	/* how the library lives in the worker: callbacks, logs, signals, foreign code */
	RESERVED("builtin.features"),
	RESERVED("client.software.name"),
	RESERVED("client.software.version"),
	RESERVED("metadata.request.timeout.ms"),
	RESERVED("enable.sparse.connections"),
	RESERVED("api.version.request"),
	RESERVED("api.version.fallback.ms"),
	RESERVED("broker.version.fallback"),
	RESERVED("statistics.interval.ms"),
	RESERVED("enabled_events"),
	RESERVED("enable_sasl_queue"),
	RESERVED("error_cb"),
	RESERVED("throttle_cb"),
	RESERVED("stats_cb"),
	RESERVED("log_cb"),
	RESERVED("log_level"),
	RESERVED("log.queue"),
	RESERVED("log.thread.name"),
	RESERVED("enable.random.seed"),
	RESERVED("background_event_cb"),
	RESERVED("socket_cb"),
	RESERVED("connect_cb"),
	RESERVED("closesocket_cb"),
	RESERVED("open_cb"),
	RESERVED("resolve_cb"),
	RESERVED("opaque"),
	RESERVED("default_topic_conf"),
	RESERVED("internal.termination.signal"),
	RESERVED("dr_cb"),
	RESERVED("dr_msg_cb"),
	RESERVED("ssl_key"),
	RESERVED("ssl_certificate"),
	RESERVED("ssl_ca"),
	RESERVED("ssl_engine_callback_data"),
	RESERVED("ssl.certificate.verify_cb"),
	RESERVED("oauthbearer_token_refresh_cb"),
	RESERVED("plugin.library.paths"),
	RESERVED("interceptors"),
	RESERVED("test.mock.num.brokers"),
	RESERVED("test.mock.broker.rtt"),
	RESERVED("ut_handle_ProduceResponse"),

	/* consumers: the only one is the reader of the progress topic */
	RESERVED("group.id"),
	RESERVED("group.instance.id"),
	RESERVED("group.protocol"),
	RESERVED("group.protocol.type"),
	RESERVED("group.remote.assignor"),
	RESERVED("partition.assignment.strategy"),
	RESERVED("session.timeout.ms"),
	RESERVED("heartbeat.interval.ms"),
	RESERVED("coordinator.query.interval.ms"),
	RESERVED("max.poll.interval.ms"),
	RESERVED("max.poll.records"),
	RESERVED("share.acknowledgement.mode"),
	RESERVED("enable.auto.commit"),
	RESERVED("auto.commit.enable"),
	RESERVED("auto.commit.interval.ms"),
	RESERVED("enable.auto.offset.store"),
	RESERVED("auto.offset.reset"),
	RESERVED("offset.store.method"),
	RESERVED("offset.store.path"),
	RESERVED("offset.store.sync.interval.ms"),
	RESERVED("offset_commit_cb"),
	RESERVED("rebalance_cb"),
	RESERVED("consume_cb"),
	RESERVED("consume.callback.max.messages"),
	RESERVED("queued.min.messages"),
	RESERVED("queued.max.messages.kbytes"),
	RESERVED("fetch.wait.max.ms"),
	RESERVED("fetch.queue.backoff.ms"),
	RESERVED("fetch.message.max.bytes"),
	RESERVED("max.partition.fetch.bytes"),
	RESERVED("fetch.max.bytes"),
	RESERVED("fetch.min.bytes"),
	RESERVED("fetch.error.backoff.ms"),
	RESERVED("isolation.level"),
	RESERVED("enable.partition.eof"),
	RESERVED("check.crcs"),
};

#define NPROPERTIES ((int) (sizeof(properties) / sizeof(properties[0])))

static const Property *
find_property(const char *name)
{
	int			i;

	for (i = 0; i < NPROPERTIES; i++)
		if (strcmp(properties[i].name, name) == 0)
			return &properties[i];
	return NULL;
}

TkPropertyClass
tk_kafka_property_class(const char *name)
{
	const Property *property = find_property(name);

	return property ? property->class : TK_PROPERTY_UNKNOWN;
}

bool
tk_property_for_consumer(const char *name)
{
	const Property *property = find_property(name);

	return property == NULL || property->user == FOR_BOTH;
}

bool
tk_property_is_secret(const char *name)
{
	return tk_kafka_property_class(name) == TK_PROPERTY_SECRET;
}

/*
 * librdkafka copies names and passwords to the stacks of its threads, and a
 * key's password into a buffer of OpenSSL's of 1024 bytes whose end it doesn't
 * look at (2.0.2): what is longer could end the process, and with it the server.
 */
#define VALUE_MAX_LEN		(16 * 1024)
#define PEM_MAX_LEN			(1024 * 1024)
#define KEY_PASSWORD_MAX_LEN 1023

size_t
tk_kafka_property_max(const char *name)
{
	size_t		len = strlen(name);

	if (strcmp(name, "ssl.key.password") == 0)
		return KEY_PASSWORD_MAX_LEN;
	return len > 4 && strcmp(name + len - 4, ".pem") == 0 ? PEM_MAX_LEN : VALUE_MAX_LEN;
}

#define NAME_MAX_LEN 64

/* Levenshtein's distance of two names, both at most NAME_MAX_LEN long. */
static int
edit_distance(const char *a, const char *b)
{
	int			row[NAME_MAX_LEN + 1];
	int			blen = (int) strlen(b);
	int			i,
				j;

	for (j = 0; j <= blen; j++)
		row[j] = j;
	for (i = 1; a[i - 1] != '\0'; i++)
	{
		int			diagonal = row[0];

		row[0] = i;
		for (j = 1; j <= blen; j++)
		{
			int			best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[blen];
}

const char *
tk_kafka_property_closest(const char *name)
{
	const char *closest = NULL;
	size_t		len = strlen(name);
	int			limit = len < 9 ? 2 : (int) len / 3;
	int			i;

	if (len == 0 || len > NAME_MAX_LEN)
		return NULL;
	for (i = 0; i < NPROPERTIES; i++)
	{
		int			distance;

		if (properties[i].class == TK_PROPERTY_RESERVED || strlen(properties[i].name) > NAME_MAX_LEN)
			continue;
		distance = edit_distance(name, properties[i].name);
		if (distance <= limit)
		{
			limit = distance - 1;
			closest = properties[i].name;
		}
	}
	return closest;
}

bool
tk_kafka_property_check(const char *name, const char *value, char *why, size_t size)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	TkKafkaError error;
	bool		ok;

	/* librdkafka would load the library at once. */
	if (tk_kafka_property_class(name) == TK_PROPERTY_RESERVED)
	{
		snprintf(why, size, "property \"%s\" is set by the extension", name);
		rd_kafka_conf_destroy(conf);
		return false;
	}
	ok = tk_conf_set(conf, name, value, &error);
	if (!ok)
		snprintf(why, size, "%s", error.message);
	rd_kafka_conf_destroy(conf);
	return ok;
}

/*
 * Sets a property.  librdkafka's message can quote the value, so a secret
 * gets a message of ours.
 */
bool
tk_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, TkKafkaError *error)
{
	char		why[400] = "";

	if (strlen(value) > tk_kafka_property_max(name))
	{
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
				"the value of property \"%s\" is longer than %zu bytes", name, tk_kafka_property_max(name));
		return false;
	}
	if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) == RD_KAFKA_CONF_OK)
		return true;
	if (tk_property_is_secret(name))
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
				"librdkafka refuses the value of property \"%s\"", name);
	else if (strstr(why, name) != NULL)
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG, "%s", why);
	else						/* it speaks of an alias */
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
				"property \"%s\": %s", name, why);
	return false;
}

bool
tk_conf_set_int(rd_kafka_conf_t *conf, const char *name, int value, TkKafkaError *error)
{
	char		text[16];

	snprintf(text, sizeof(text), "%d", value);
	return tk_conf_set(conf, name, text, error);
}

bool
tk_conf_has(const TkKafkaConf *user, const char *name)
{
	int			i;

	for (i = 0; i < user->nproperties; i++)
		if (strcmp(user->properties[i].name, name) == 0)
			return true;
	return false;
}

bool
tk_conf_defaults(rd_kafka_conf_t *conf, const TkDefault *defaults, int n, const TkKafkaConf *user,
				 TkKafkaError *error)
{
	int			i;

	for (i = 0; i < n; i++)
	{
		if (tk_conf_has(user, defaults[i].name) || (defaults[i].unless && tk_conf_has(user, defaults[i].unless)))
			continue;
		if (!tk_conf_set(conf, defaults[i].name, defaults[i].value, error))
			return false;
	}
	return true;
}

/*
 * The user's properties.  The validator refused what is not theirs when they
 * were stored, but a row can be older than the list above: look again.
 */
bool
tk_conf_user(rd_kafka_conf_t *conf, const TkKafkaConf *user, rd_kafka_type_t type, TkKafkaError *error)
{
	int			i;

	for (i = 0; i < user->nproperties; i++)
	{
		const char *name = user->properties[i].name;
		TkPropertyClass class = tk_kafka_property_class(name);

		if (class == TK_PROPERTY_UNKNOWN || class == TK_PROPERTY_RESERVED)
		{
			tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
					"property \"%s\" %s", name,
					class == TK_PROPERTY_UNKNOWN ? "is unknown" : "is set by the extension");
			return false;
		}
		if (type == RD_KAFKA_CONSUMER && !tk_property_for_consumer(name))
			continue;
		if (!tk_conf_set(conf, name, user->properties[i].value, error))
			return false;
	}
	return true;
}
