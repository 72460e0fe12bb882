/*
 * test_kafka_conf.c
 *	  Who may set which property of librdkafka. Needs no broker.
 */
#include <stdlib.h>

#include <librdkafka/rdkafka.h>

#include "../../src/kafka_client.h"
#include "../../src/kafka_producer.h"
#include "unit.h"

static void
every_property_of_the_installed_library_is_classified(void)
{
	/* what rd_kafka_conf_dump prints: all but callbacks and hidden ones */
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_topic_conf_t *topic_conf = rd_kafka_topic_conf_new();
	size_t		n;
	size_t		i;
	const char **dump = rd_kafka_conf_dump(conf, &n);

	for (i = 0; i < n; i += 2)
		if (!CHECK(tk_kafka_property_class(dump[i]) != TK_PROPERTY_UNKNOWN))
			printf("\tproperty: %s\n", dump[i]);
	CHECK(n > 100);
	rd_kafka_conf_dump_free(dump, n);
	dump = rd_kafka_topic_conf_dump(topic_conf, &n);
	for (i = 0; i < n; i += 2)
		if (!CHECK(tk_kafka_property_class(dump[i]) != TK_PROPERTY_UNKNOWN))
			printf("\tproperty: %s\n", dump[i]);
	rd_kafka_conf_dump_free(dump, n);
	rd_kafka_conf_destroy(conf);
	rd_kafka_topic_conf_destroy(topic_conf);
}

static void
classes_follow_what_a_property_can_reach(void)
{
	CHECK_INT(tk_kafka_property_class("bootstrap.servers"), TK_PROPERTY_SERVER);
	CHECK_INT(tk_kafka_property_class("compression.type"), TK_PROPERTY_SERVER);
	CHECK_INT(tk_kafka_property_class("ssl.ca.pem"), TK_PROPERTY_SERVER);
	CHECK_INT(tk_kafka_property_class("sasl.username"), TK_PROPERTY_SECRET);
	CHECK_INT(tk_kafka_property_class("sasl.password"), TK_PROPERTY_SECRET);
	CHECK_INT(tk_kafka_property_class("ssl.key.pem"), TK_PROPERTY_SECRET);
	CHECK_INT(tk_kafka_property_class("ssl.key.location"), TK_PROPERTY_SUPERUSER);
	CHECK_INT(tk_kafka_property_class("ssl.ca.location"), TK_PROPERTY_SUPERUSER);
	CHECK_INT(tk_kafka_property_class("sasl.kerberos.kinit.cmd"), TK_PROPERTY_SUPERUSER);
	CHECK_INT(tk_kafka_property_class("sasl.kerberos.principal"), TK_PROPERTY_SUPERUSER);
	CHECK_INT(tk_kafka_property_class("sasl.oauthbearer.token.endpoint.url"), TK_PROPERTY_SUPERUSER);
	CHECK_INT(tk_kafka_property_class("plugin.library.paths"), TK_PROPERTY_RESERVED);
	CHECK_INT(tk_kafka_property_class("transactional.id"), TK_PROPERTY_RESERVED);
	CHECK_INT(tk_kafka_property_class("acks"), TK_PROPERTY_RESERVED);
	CHECK_INT(tk_kafka_property_class("delivery.timeout.ms"), TK_PROPERTY_RESERVED);
	CHECK_INT(tk_kafka_property_class("isolation.level"), TK_PROPERTY_RESERVED);
	CHECK_INT(tk_kafka_property_class("Bootstrap.Servers"), TK_PROPERTY_UNKNOWN);
	CHECK_INT(tk_kafka_property_class("no.such.property"), TK_PROPERTY_UNKNOWN);
	CHECK_INT(tk_kafka_property_class(""), TK_PROPERTY_UNKNOWN);
}

static void
the_nearest_name_is_offered(void)
{
	char		giant[300];

	CHECK_STR(tk_kafka_property_closest("bootstrap.server"), "bootstrap.servers");
	CHECK_STR(tk_kafka_property_closest("compresion.type"), "compression.type");
	CHECK_STR(tk_kafka_property_closest("sasl.pasword"), "sasl.password");
	CHECK_STR(tk_kafka_property_closest("linger_ms"), "linger.ms");
	CHECK_STR(tk_kafka_property_closest("transactional.idd"), NULL);
	CHECK_STR(tk_kafka_property_closest("colour"), NULL);
	CHECK_STR(tk_kafka_property_closest(""), NULL);
	memset(giant, 'x', sizeof(giant) - 1);
	giant[sizeof(giant) - 1] = '\0';
	CHECK_STR(tk_kafka_property_closest(giant), NULL);
}

static void
librdkafka_judges_values(void)
{
	char		why[300] = "";

	CHECK(tk_kafka_property_check("linger.ms", "5", why, sizeof(why)));
	CHECK(tk_kafka_property_check("compression.type", "lz4", why, sizeof(why)));
	CHECK(!tk_kafka_property_check("compression.type", "lz5", why, sizeof(why)));
	CHECK(strstr(why, "lz5") != NULL);
	CHECK(!tk_kafka_property_check("linger.ms", "900001", why, sizeof(why)));
	CHECK(strstr(why, "linger.ms") != NULL);
	CHECK(!tk_kafka_property_check("socket.nagle.disable", "maybe", why, sizeof(why)));
	CHECK(!tk_kafka_property_check("no.such.property", "1", why, sizeof(why)));
	CHECK(!tk_kafka_property_check("plugin.library.paths", "/no/such/library", why, sizeof(why)));
	CHECK(strstr(why, "set by the extension") != NULL);
}

/* librdkafka puts some of them on its threads' stacks, or into buffers that it takes for large enough. */
static void
a_value_has_a_longest_length(void)
{
	static const struct
	{
		const char *name;
		size_t		max;
	}			cases[] = {{"sasl.username", 16384}, {"sasl.password", 16384}, {"client.id", 16384},
	{"ssl.key.password", 1023}, {"ssl.ca.pem", 1024 * 1024}, {"ssl.key.pem", 1024 * 1024}};
	char	   *value = malloc(1024 * 1024 + 2);
	char		why[300];
	size_t		i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		size_t		max = cases[i].max;

		CHECK_INT(tk_kafka_property_max(cases[i].name), max);
		memset(value, 'x', max + 1);
		value[max + 1] = '\0';
		CHECK(!tk_kafka_property_check(cases[i].name, value, why, sizeof(why)));
		CHECK(strstr(why, cases[i].name) != NULL);
		CHECK(strstr(why, "is longer than") != NULL);
		value[max] = '\0';
		CHECK(tk_kafka_property_check(cases[i].name, value, why, sizeof(why)));
	}
	free(value);
}

static void
a_handle_refuses_what_is_not_the_users(void)
{
	static const TkKafkaProperty stolen[] = {{"bootstrap.servers", "127.0.0.1:1"}, {"acks", "1"}};
	static const TkKafkaProperty unknown[] = {{"no.such.property", "1"}};
	static const TkKafkaProperty conflict[] = {{"socket.timeout.ms", "300000"}};
	TkKafkaConf conf = {2, stolen};
	TkKafkaError error;

	CHECK(tk_producer_create(&conf, "t", 60000, &error) == NULL);
	CHECK_INT(error.status, TK_KAFKA_FATAL);
	CHECK_INT(error.cause, TK_CAUSE_CONFIGURATION);
	CHECK_STR(error.message, "property \"acks\" is set by the extension");

	conf.nproperties = 1;
	conf.properties = unknown;
	CHECK(tk_producer_create(&conf, "t", 60000, &error) == NULL);
	CHECK_STR(error.message, "property \"no.such.property\" is unknown");

	/* what only the finished configuration shows */
	conf.properties = conflict;
	CHECK(tk_producer_create(&conf, "t", 60000, &error) == NULL);
	CHECK_INT(error.cause, TK_CAUSE_CONFIGURATION);
	CHECK(strstr(error.message, "socket.timeout.ms") != NULL);
}

int
main(void)
{
	every_property_of_the_installed_library_is_classified();
	classes_follow_what_a_property_can_reach();
	the_nearest_name_is_offered();
	librdkafka_judges_values();
	a_value_has_a_longest_length();
	a_handle_refuses_what_is_not_the_users();
	return unit_done();
}
