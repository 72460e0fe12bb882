/*
 * test_route.c
 *	  Which topic a table gets, and which it can't have.
 */
#include "../../src/route.h"
#include "unit.h"

static void
a_topic_is_named_after_pipeline_schema_and_table(void)
{
	char		topic[TK_TOPIC_MAX + 1];

	CHECK(tk_route_topic("shop", "public", "orders", NULL, topic) == NULL);
	CHECK_STR(topic, "shop.public.orders");
	CHECK(tk_route_topic("Shop-1", "a_b", "C.d", NULL, topic) == NULL);
	CHECK_STR(topic, "Shop-1.a_b.C.d");
}

static void
characters_that_kafka_refuses_become_underscores(void)
{
	char		topic[TK_TOPIC_MAX + 1];

	CHECK(tk_route_topic("shop", "my schema", "or\"ders$", NULL, topic) == NULL);
	CHECK_STR(topic, "shop.my_schema.or_ders_");

	/* One underscore a character, not a byte: é, €, 😀 */
	CHECK(tk_route_topic("shop", "caf\xC3\xA9", "\xE2\x82\xAC\xF0\x9F\x98\x80x", NULL, topic) == NULL);
	CHECK_STR(topic, "shop.caf_.__x");

	/*
	 * Bytes that are no UTF-8 count one by one, and nothing is read past the end.
	 */
	CHECK(tk_route_topic("shop", "a\xA9\xA9", "b\xE2", NULL, topic) == NULL);
	CHECK_STR(topic, "shop.a__.b_");
	CHECK(tk_route_topic("shop", "a\xE2z", "\xF0\x9Fy", NULL, topic) == NULL);
	CHECK_STR(topic, "shop.a_z._y");
}

static void
a_given_topic_must_be_legal_as_it_stands(void)
{
	char		topic[TK_TOPIC_MAX + 1];

	CHECK(tk_route_topic("shop", "public", "orders", "orders", topic) == NULL);
	CHECK_STR(topic, "orders");
	CHECK_STR(tk_route_topic("shop", "public", "orders", "my orders", topic),
			  "the name may contain only letters, digits, \".\", \"_\" and \"-\"");
	CHECK_STR(topic, "");
	CHECK_STR(tk_route_topic("shop", "public", "orders", "", topic), "the name is empty");
	CHECK_STR(tk_topic_problem("."), "Kafka reserves the names \".\" and \"..\"");
	CHECK_STR(tk_topic_problem(".."), "Kafka reserves the names \".\" and \"..\"");
	CHECK(tk_topic_problem("...") == NULL);
	CHECK(tk_topic_problem("caf\xC3\xA9") != NULL);
	CHECK(tk_topic_problem("a/b") != NULL);
	CHECK(tk_topic_problem("a\n") != NULL);
}

static void
a_topic_has_at_most_249_characters(void)
{
	char		topic[TK_TOPIC_MAX + 1];
	char		table[300];
	char		given[300];
	size_t		prefix = strlen("shop.public.");

	memset(table, 't', sizeof(table));
	table[TK_TOPIC_MAX - prefix] = '\0';
	CHECK(tk_route_topic("shop", "public", table, NULL, topic) == NULL);
	CHECK_INT(strlen(topic), TK_TOPIC_MAX);

	table[TK_TOPIC_MAX - prefix] = 't';
	table[TK_TOPIC_MAX - prefix + 1] = '\0';
	CHECK_STR(tk_route_topic("shop", "public", table, NULL, topic), "the name is longer than 249 characters");
	CHECK_STR(topic, "");

	memset(given, 'g', sizeof(given));
	given[TK_TOPIC_MAX] = '\0';
	CHECK(tk_route_topic("shop", "public", "t", given, topic) == NULL);
	CHECK_STR(topic, given);
	given[TK_TOPIC_MAX] = 'g';
	given[TK_TOPIC_MAX + 1] = '\0';
	CHECK_STR(tk_route_topic("shop", "public", "t", given, topic), "the name is longer than 249 characters");
}

int
main(void)
{
	a_topic_is_named_after_pipeline_schema_and_table();
	characters_that_kafka_refuses_become_underscores();
	a_given_topic_must_be_legal_as_it_stands();
	a_topic_has_at_most_249_characters();
	return unit_done();
}
