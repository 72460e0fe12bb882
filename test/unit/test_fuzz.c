/*
 * test_fuzz.c
 *	  A million random and nearly right inputs for each reader of what users
 *	  write: produce()'s message in the WAL, headers, names of topics and
 *	  properties.
 *
 * Under the sanitizers, with every input at the end of an allocation of just
 * its size.  Beside that nothing breaks it is tested what must hold of any
 * input.  Usage: test_fuzz [seed [rounds]]; the seed is printed.
 */
#include "../../src/header_json.h"
#include "../../src/kafka_client.h"
#include "../../src/route.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "unit.h"

static long rounds = 1000000;

/* From 0 to n - 1, small ones often */
static uint32_t
upto(uint32_t n)
{
	uint32_t	limit = random_u32() % 4 ? 1 + random_u32() % n : n;

	return random_u32() % limit;
}

/* A copy with nothing behind it. */
static char *
exact_copy(const TkBuffer *b)
{
	char	   *copy = malloc(b->len ? b->len : 1);

	if (b->len > 0)
		memcpy(copy, b->data, b->len);
	return copy;
}

static void
random_bytes(TkBuffer *b, size_t len)
{
	while (len-- > 0)
		tk_buffer_char(b, (char) random_u32());
}

/* A few bytes changed, taken out, put in twice; or the end cut off. */
static void
mutate(TkBuffer *b)
{
	for (int n = upto(6); n > 0 && b->len > 0; n--)
	{
		size_t		at = random_u32() % b->len;
		size_t		some = 1 + upto(8);

		if (some > b->len - at)
			some = b->len - at;
		switch (random_u32() % 6)
		{
			case 0:
				b->data[at] ^= (char) (1 << random_u32() % 8);
				break;
			case 1:
				b->data[at] = (char) (random_u32() % 3 == 0 ? 0xff : random_u32() % 16);
				break;
			case 2:
				memset(b->data + at, random_u32() % 2 ? 0xff : 0, some);
				break;
			case 3:
				memmove(b->data + at, b->data + at + some, b->len - at - some);
				b->len -= some;
				break;
			case 4:
				if (tk_buffer_reserve(b, some))
				{
					memmove(b->data + at + some, b->data + at, b->len - at);
					b->len += some;
				}
				break;
			case 5:
				if (random_u32() % 4 == 0)
					b->len = at;
				break;
		}
	}
}

static TkMessageBytes
random_part(const TkBuffer *source, bool may_be_null)
{
	TkMessageBytes b = {source->data, 0};

	if (may_be_null && random_u32() % 4 == 0)
		b.data = NULL;
	else
		b.len = upto(60);
	return b;
}

static void
random_message(TkBuffer *out, const TkBuffer *source)
{
	TkProduced	m = {0};

	m.key_id = upto(UINT32_MAX);
	m.pipeline_id = (int32_t) upto(5);
	m.xid = (uint64_t) random_u32() << 32 | random_u32();
	m.number = upto(100);
	m.topic = random_part(source, false);
	m.partition = (int32_t) upto(10) - 1;
	m.key = random_part(source, true);
	m.value = random_part(source, true);
	m.nheaders = (int) upto(6);
	tk_message_format(out, &m);
	for (int i = 0; i < m.nheaders; i++)
		tk_message_add_header(out, random_part(source, false), random_part(source, true));
}

/* What was read, written again. */
static void
write_again(TkBuffer *out, const char *bytes, const TkProduced *m)
{
	size_t		at = m->headers_at;

	tk_message_format(out, m);
	for (int i = 0; i < m->nheaders; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;

		tk_message_header(bytes, &at, &name, &value);
		tk_message_add_header(out, name, value);
	}
}

/* A message can be written in one way only: else somebody's bytes could mean what another's signature covers. */
static void
what_is_read_as_a_message_is_written_so(void)
{
	TkBuffer	source = {0};
	TkBuffer	in = {0};
	TkBuffer	out = {0};
	long		read = 0;
	long		wrong = 0;

	random_bytes(&source, 64);
	for (long round = 0; round < rounds; round++)
	{
		TkProduced	m;
		char	   *copy;

		in.len = out.len = 0;
		if (random_u32() % 8 == 0)
		{
			tk_buffer_char(&in, TK_MESSAGE_VERSION);
			random_bytes(&in, upto(200));
		}
		else
		{
			random_message(&in, &source);
			mutate(&in);
		}
		copy = exact_copy(&in);
		if (tk_message_parse(copy, in.len, &m))
		{
			read++;
			write_again(&out, copy, &m);
			memset(copy + TK_MAC_AT, 0, TK_MAC_SIZE);	/* which is not written */
			wrong += out.len != in.len || memcmp(out.data, copy, in.len) != 0;
		}
		free(copy);
	}
	CHECK_INT(wrong, 0);
	CHECK(read > rounds / 100);
	CHECK(read < rounds);
	tk_buffer_free(&source);
	tk_buffer_free(&in);
	tk_buffer_free(&out);
}

static void
random_space(TkBuffer *json)
{
	while (random_u32() % 6 == 0)
		tk_buffer_char(json, " \t\n\r"[random_u32() % 4]);
}

/* A random text as a JSON string, each character written in one of its ways; and the text itself. */
static void
random_string(TkBuffer *json, TkBuffer *text)
{
	static const struct
	{
		const char *text;
		const char *json[3];
	}			characters[] = {
		{"a", {"a", "\\u0061", "a"}}, {"\"", {"\\\"", "\\u0022", "\\\""}}, {"\\", {"\\\\", "\\u005c", "\\u005C"}},
		{"/", {"/", "\\/", "\\u002f"}}, {"\n", {"\\n", "\\u000a", "\\n"}}, {"\x01", {"\\u0001", "\\u0001", "\\u0001"}},
		{"{", {"{", "{", "\\u007b"}}, {"]", {"]", "]", "\\u005d"}}, {",", {",", ",", "\\u002c"}},
		{"\xc3\xa9", {"\xc3\xa9", "\\u00e9", "\\u00E9"}}, {"\xe2\x82\xac", {"\xe2\x82\xac", "\\u20ac", "\\u20AC"}},
		{"\xf0\x9f\x98\x80", {"\xf0\x9f\x98\x80", "\\ud83d\\ude00", "\\uD83D\\uDE00"}}
	};

	tk_buffer_char(json, '"');
	for (int n = upto(8); n > 0; n--)
	{
		size_t		i = random_u32() % (sizeof(characters) / sizeof(characters[0]));

		tk_buffer_string(json, characters[i].json[random_u32() % 3]);
		tk_buffer_string(text, characters[i].text);
	}
	tk_buffer_char(json, '"');
}

/* Appends a random scalar to "json", and the header that it makes to "headers". */
static void
random_scalar(TkBuffer *json, TkMessageBytes name, TkBuffer *headers)
{
	static const char *const words[] = {"true", "false", "0", "-1.50", "1e5", "12345678901234567890.5E-7"};
	TkBuffer	text = {0};
	TkMessageBytes value = {"", 0};

	random_space(json);
	switch (random_u32() % 3)
	{
		case 0:
			tk_buffer_string(json, "null");
			value.data = NULL;
			break;
		case 1:
			value.data = words[random_u32() % (sizeof(words) / sizeof(words[0]))];
			value.len = (uint32_t) strlen(value.data);
			tk_buffer_string(json, value.data);
			break;
		default:
			random_string(json, &text);
			if (text.len > 0)
				value.data = text.data;
			value.len = (uint32_t) text.len;
	}
	random_space(json);
	tk_message_add_header(headers, name, value);
	tk_buffer_free(&text);
}

static int
random_headers(TkBuffer *json, TkBuffer *headers)
{
	int			members = upto(5);
	int			n = 0;

	random_space(json);
	tk_buffer_char(json, '{');
	random_space(json);
	for (int i = 0; i < members; i++)
	{
		TkBuffer	text = {0};
		TkMessageBytes name = {"", 0};
		int			elements = random_u32() % 3 ? -1 : (int) upto(4);

		if (i > 0)
			tk_buffer_char(json, ',');
		random_space(json);
		random_string(json, &text);
		if (text.len > 0)
			name.data = text.data;
		name.len = (uint32_t) text.len;
		random_space(json);
		tk_buffer_char(json, ':');
		random_space(json);
		if (elements < 0)
		{
			random_scalar(json, name, headers);
			n++;
		}
		else
		{
			tk_buffer_char(json, '[');
			random_space(json);
			for (int j = 0; j < elements; j++)
			{
				if (j > 0)
					tk_buffer_char(json, ',');
				random_scalar(json, name, headers);
				n++;
			}
			tk_buffer_char(json, ']');
			random_space(json);
		}
		tk_buffer_free(&text);
	}
	tk_buffer_char(json, '}');
	random_space(json);
	return n;
}

static void
headers_are_read_as_they_were_meant(void)
{
	TkBuffer	json = {0};
	TkBuffer	meant = {0};
	TkBuffer	out = {0};
	TkBuffer	scratch = {0};
	long		wrong = 0;
	long		refused = 0;

	for (long round = 0; round < rounds; round++)
	{
		TkMessageBytes culprit;
		TkHeadersResult result;
		int			wanted;
		int			n;
		char	   *copy;
		bool		broken = random_u32() % 2;

		json.len = meant.len = out.len = 0;
		wanted = random_headers(&json, &meant);
		if (broken)
			mutate(&json);
		copy = exact_copy(&json);
		result = tk_headers_read(copy, json.len, &out, &n, &scratch, &culprit);
		free(copy);
		if (!broken)
			wrong += result != TK_HEADERS_OK || n != wanted || out.len != meant.len ||
				(out.len > 0 && memcmp(out.data, meant.data, out.len) != 0);
		else
			refused += result != TK_HEADERS_OK;
		for (size_t i = 0; culprit.data != NULL && i < culprit.len; i++)
			wrong += culprit.data[i] == '\0' && result == TK_HEADERS_OK;	/* it can be read */
	}
	CHECK_INT(wrong, 0);
	CHECK(refused > rounds / 10);
	tk_buffer_free(&json);
	tk_buffer_free(&meant);
	tk_buffer_free(&out);
	tk_buffer_free(&scratch);
}

/* A C string of printable characters, and some others. */
static char *
random_name(size_t most)
{
	static const char alphabet[] = "abcxyzABZ019._-. _,\"'\\/\t\xc3\xa9\xe2\x82\xac\xff";
	size_t		len = upto((uint32_t) most);
	char	   *name = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		name[i] = alphabet[random_u32() % (sizeof(alphabet) - 1)];
	name[len] = '\0';
	return name;
}

static void
a_topic_that_is_made_is_a_legal_one(void)
{
	long		wrong = 0;
	long		made = 0;

	for (long round = 0; round < rounds; round++)
	{
		char	   *names[4];
		char		topic[TK_TOPIC_MAX + 1];

		for (int i = 0; i < 4; i++)
			names[i] = random_name(i == 3 ? 260 : 100);
		if (tk_topic_problem(names[0]) == NULL &&
			tk_route_topic(names[0], names[1], names[2], random_u32() % 4 ? NULL : names[3], topic) == NULL)
		{
			made++;
			wrong += tk_topic_problem(topic) != NULL || strlen(topic) > TK_TOPIC_MAX;
		}
		for (int i = 0; i < 4; i++)
			free(names[i]);
	}
	CHECK_INT(wrong, 0);
	CHECK(made > 0);
}

/* A property's name, perhaps with a mistake in it, or any other. */
static char *
random_property(void)
{
	static const char *const known[] = {
		"bootstrap.servers", "sasl.password", "ssl.ca.location", "plugin.library.paths", "linger.ms", "transactional.id",
		"compression.type", "ssl.key.pem", "sasl.oauthbearer.client.secret", "message.max.bytes", "client.id"
	};
	TkBuffer	b = {0};

	if (random_u32() % 3 == 0)
		return random_name(80);
	tk_buffer_string(&b, known[random_u32() % (sizeof(known) / sizeof(known[0]))]);
	mutate(&b);
	for (size_t i = 0; i < b.len; i++)
		if (b.data[i] == '\0')
			b.data[i] = '.';
	tk_buffer_char(&b, '\0');
	return b.data;
}

static void
a_suggested_property_is_one_that_may_be_set(void)
{
	long		wrong = 0;
	long		suggested = 0;

	for (long round = 0; round < rounds / 50; round++)
	{
		char	   *name = random_property();
		TkPropertyClass class = tk_kafka_property_class(name);
		const char *closest = tk_kafka_property_closest(name);
		char		why[100];

		if (closest != NULL)
		{
			TkPropertyClass suggestion = tk_kafka_property_class(closest);

			suggested++;
			wrong += suggestion == TK_PROPERTY_UNKNOWN || suggestion == TK_PROPERTY_RESERVED;
		}

		/* A superuser's may load a library at once. */
		if (class == TK_PROPERTY_SERVER || class == TK_PROPERTY_SECRET)
		{
			char	   *value = random_name(60);

			memset(why, 0, sizeof(why));
			if (!tk_kafka_property_check(name, value, why, sizeof(why)))
				wrong += why[0] == '\0' || (class == TK_PROPERTY_SECRET && strlen(value) > 3 && strstr(why, value) != NULL);
			free(value);
		}
		free(name);
	}
	CHECK_INT(wrong, 0);
	CHECK(suggested > 0);
}

int
main(int argc, char **argv)
{
	random_state = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t) time(NULL) * UINT64_C(2654435761) + 1;
	if (random_state == 0)
		random_state = 1;
	if (argc > 2)
		rounds = strtol(argv[2], NULL, 10);
	printf("seed %llu\n", (unsigned long long) random_state);
	what_is_read_as_a_message_is_written_so();
	headers_are_read_as_they_were_meant();
	a_topic_that_is_made_is_a_legal_one();
	a_suggested_property_is_one_that_may_be_set();
	return unit_done();
}
