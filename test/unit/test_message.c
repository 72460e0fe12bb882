/*
 * test_message.c
 *	  The logical message of kafka.produce(): what is written is read back, and
 *	  nothing else is taken for one, whatever anybody writes into the WAL.
 *
 * Bytes under test lie at the end of an allocation of just their size, so that
 * the address sanitizer sees a single byte read past them.  The random part
 * prints its seed, which is the program's argument if it has one.
 */
#include "../../src/message.h"

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "unit.h"

#define FUZZ_ROUNDS 200000

typedef struct Header
{
	const char *name;
	const char *value;			/* NULL = Kafka's null */
}			Header;

static TkMessageBytes
bytes(const char *data, size_t len)
{
	TkMessageBytes b = {data, (uint32_t) len};

	return b;
}

static TkMessageBytes
text(const char *s)
{
	return bytes(s, s ? strlen(s) : 0);
}

static TkProduced
some_message(void)
{
	TkProduced	m = {0};

	m.key_id = 7;
	m.pipeline_id = 3;
	m.xid = UINT64_C(0x0123456789abcdef);
	m.number = 42;
	m.topic = text("audit");
	m.partition = -1;
	m.key = text("k");
	m.value = text("{\"a\":1}");
	return m;
}

static void
write_message(TkBuffer *out, TkProduced *m, const Header * headers, int nheaders)
{
	tk_buffer_reset(out, 1024 * 1024);
	m->nheaders = nheaders;
	tk_message_format(out, m);
	for (int i = 0; i < nheaders; i++)
		tk_message_add_header(out, text(headers[i].name), text(headers[i].value));
}

/* Reads everything of a message, as stream.c does; what it sums up keeps the compiler from leaving that out. */
static unsigned
read_all(const char *data, const TkProduced *m)
{
	const TkMessageBytes parts[] = {m->topic, m->key, m->value};
	size_t		at = m->headers_at;
	unsigned	sum = 0;

	for (int i = 0; i < 3; i++)
		for (uint32_t j = 0; parts[i].data != NULL && j < parts[i].len; j++)
			sum += (unsigned char) parts[i].data[j];
	for (int i = 0; i < m->nheaders; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;

		tk_message_header(data, &at, &name, &value);
		for (uint32_t j = 0; j < name.len; j++)
			sum += (unsigned char) name.data[j];
		for (uint32_t j = 0; value.data != NULL && j < value.len; j++)
			sum += (unsigned char) value.data[j];
	}
	return sum;
}

/* Parses a copy that ends where its memory does, and reads all of it if it is a message. */
static bool
parses(const char *data, size_t len)
{
	char	   *copy = malloc(len ? len : 1);
	TkProduced	m;
	bool		is_one;
	static volatile unsigned sink;

	memcpy(copy, data, len);
	is_one = tk_message_parse(copy, len, &m);
	if (is_one)
		sink = sink + read_all(copy, &m);
	free(copy);
	return is_one;
}

static const Header two_headers[] = {{"trace", "1"}, {"trace", NULL}};

static void
what_is_written_is_read_back(void)
{
	static const char with_nuls[] = {0, 1, 0, (char) 0xff, 0};
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	TkProduced	read;

	m.key = bytes(with_nuls, sizeof(with_nuls));
	write_message(&out, &m, NULL, 0);
	CHECK(tk_message_parse(out.data, out.len, &read));
	CHECK_INT(read.key_id, 7);
	CHECK_INT(read.pipeline_id, 3);
	CHECK(read.xid == UINT64_C(0x0123456789abcdef));
	CHECK_INT(read.number, 42);
	CHECK_BYTES(read.topic.data, read.topic.len, "audit", 5);
	CHECK_INT(read.partition, -1);
	CHECK_BYTES(read.key.data, read.key.len, with_nuls, sizeof(with_nuls));
	CHECK_BYTES(read.value.data, read.value.len, "{\"a\":1}", 7);
	CHECK_INT(read.nheaders, 0);
	CHECK_INT(read.headers_at, out.len);

	m.key_id = UINT32_MAX;
	m.pipeline_id = INT32_MAX;
	m.xid = UINT64_MAX;
	m.number = UINT32_MAX;
	m.partition = INT32_MAX;
	write_message(&out, &m, NULL, 0);
	CHECK(tk_message_parse(out.data, out.len, &read));
	CHECK_INT(read.key_id, UINT32_MAX);
	CHECK_INT(read.pipeline_id, INT32_MAX);
	CHECK(read.xid == UINT64_MAX);
	CHECK_INT(read.number, UINT32_MAX);
	CHECK_INT(read.partition, INT32_MAX);
	tk_buffer_free(&out);
}

static void
null_and_empty_stay_apart(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	TkProduced	read;

	m.key = text(NULL);
	m.value = text("");
	write_message(&out, &m, NULL, 0);
	CHECK(tk_message_parse(out.data, out.len, &read));
	CHECK(read.key.data == NULL);
	CHECK(read.value.data != NULL);
	CHECK_INT(read.value.len, 0);

	m.key = text("");
	m.value = text(NULL);
	write_message(&out, &m, NULL, 0);
	CHECK(tk_message_parse(out.data, out.len, &read));
	CHECK(read.key.data != NULL);
	CHECK_INT(read.key.len, 0);
	CHECK(read.value.data == NULL);
	tk_buffer_free(&out);
}

static void
headers_keep_their_order_names_repeat_and_a_value_can_be_null(void)
{
	static const Header headers[] = {{"b", "1"}, {"a", ""}, {"b", NULL}, {"", "x"}, {"b", "2"}};
	const int	n = sizeof(headers) / sizeof(headers[0]);
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	TkProduced	read;
	size_t		at;

	write_message(&out, &m, headers, n);
	CHECK(tk_message_parse(out.data, out.len, &read));
	CHECK_INT(read.nheaders, n);
	at = read.headers_at;
	for (int i = 0; i < n; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;

		tk_message_header(out.data, &at, &name, &value);
		CHECK_BYTES(name.data, name.len, headers[i].name, strlen(headers[i].name));
		CHECK_BYTES(value.data, value.len, headers[i].value, headers[i].value ? strlen(headers[i].value) : 0);
	}
	CHECK_INT(at, out.len);
	tk_buffer_free(&out);
}

static void
as_many_headers_as_allowed_and_no_more(void)
{
	static Header headers[TK_MESSAGE_HEADERS_MAX + 1];
	TkBuffer	out = {0};
	TkProduced	m = some_message();

	for (int i = 0; i <= TK_MESSAGE_HEADERS_MAX; i++)
		headers[i] = (Header)
	{
		"h", "v"
	};
	write_message(&out, &m, headers, TK_MESSAGE_HEADERS_MAX);
	CHECK(parses(out.data, out.len));
	write_message(&out, &m, headers, TK_MESSAGE_HEADERS_MAX + 1);
	CHECK(!parses(out.data, out.len));
	tk_buffer_free(&out);
}

static void
the_mac_has_its_place(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	const char	zeros[TK_MAC_SIZE] = {0};

	write_message(&out, &m, NULL, 0);
	CHECK_INT(out.data[0], TK_MESSAGE_VERSION);
	CHECK(out.len > TK_MAC_AT + TK_MAC_SIZE);
	CHECK_BYTES(out.data + TK_MAC_AT, TK_MAC_SIZE, zeros, TK_MAC_SIZE);
	/* … directly before the topic's length and name */
	CHECK_BYTES(out.data + TK_MAC_AT + TK_MAC_SIZE, 7, "\0\005audit", 7);
	tk_buffer_free(&out);
}

static void
a_cut_message_is_none(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	int			taken = 0;

	write_message(&out, &m, two_headers, 2);
	CHECK(parses(out.data, out.len));
	for (size_t len = 0; len < out.len; len++)
		taken += parses(out.data, len);
	CHECK_INT(taken, 0);
	tk_buffer_free(&out);
}

static void
a_message_with_something_behind_it_is_none(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();

	write_message(&out, &m, two_headers, 2);
	tk_buffer_char(&out, '\0');
	CHECK(!parses(out.data, out.len));
	write_message(&out, &m, NULL, 0);
	tk_buffer_append(&out, out.data, out.len);
	CHECK(!parses(out.data, out.len));
	tk_buffer_free(&out);
}

static void
another_version_is_none(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();

	write_message(&out, &m, NULL, 0);
	for (int version = 0; version < 256; version++)
	{
		out.data[0] = (char) version;
		CHECK_INT(parses(out.data, out.len), version == TK_MESSAGE_VERSION);
	}
	tk_buffer_free(&out);
}

/* Each length field, at its place, with values that overflow what is added to them. */
static void
a_length_beyond_the_message_is_refused(void)
{
	static const uint32_t lengths[] = {0x7fffffff, 0x80000000, 0xfffffffe, 0x10000, 0xffff, 1000};
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	const size_t topic_at = TK_MAC_AT + TK_MAC_SIZE;
	const size_t key_at = topic_at + 2 + 5 + 4;
	const size_t value_at = key_at + 4 + 1;
	const size_t headers_at = value_at + 4 + 7;
	const size_t header_value_at = headers_at + 2 + 2 + 5;
	const size_t places[] = {key_at, value_at, header_value_at};

	for (size_t place = 0; place < sizeof(places) / sizeof(places[0]); place++)
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		{
			write_message(&out, &m, two_headers, 1);
			for (int byte = 0; byte < 4; byte++)
				out.data[places[place] + byte] = (char) (lengths[i] >> (24 - 8 * byte));
			CHECK(!parses(out.data, out.len));
		}

	write_message(&out, &m, two_headers, 1);
	memset(out.data + topic_at, 0xff, 2);
	CHECK(!parses(out.data, out.len));
	write_message(&out, &m, two_headers, 1);
	memset(out.data + headers_at, 0xff, 2);
	CHECK(!parses(out.data, out.len));
	write_message(&out, &m, two_headers, 1);
	out.data[headers_at + 1] = 2;	/* says two, has one */
	CHECK(!parses(out.data, out.len));
	tk_buffer_free(&out);
}

/* A flipped bit may make another message (the mac is not checked here), but nothing is read that isn't there. */
static void
a_flipped_bit_is_harmless(void)
{
	TkBuffer	out = {0};
	TkProduced	m = some_message();
	int			same = 0;

	write_message(&out, &m, two_headers, 2);
	for (size_t bit = 0; bit < 8 * out.len; bit++)
	{
		out.data[bit / 8] ^= (char) (1 << bit % 8);
		(void) parses(out.data, out.len);
		out.data[bit / 8] ^= (char) (1 << bit % 8);
		same += parses(out.data, out.len);
	}
	CHECK_INT(same, 8 * out.len);
	tk_buffer_free(&out);
}

static void
random_bytes_are_harmless(void)
{
	char		data[200];
	TkBuffer	out = {0};
	TkProduced	m = some_message();

	for (int round = 0; round < FUZZ_ROUNDS; round++)
	{
		size_t		len = random_u32() % (sizeof(data) + 1);

		for (size_t i = 0; i < len; i++)
			data[i] = (char) random_u32();
		if (len > 0)
			data[0] = TK_MESSAGE_VERSION;	/* else nothing else is looked at */
		(void) parses(data, len);
	}

	/* Near to a genuine one: a few bytes changed, the length cut or not. */
	for (int round = 0; round < FUZZ_ROUNDS; round++)
	{
		size_t		len;

		write_message(&out, &m, two_headers, 2);
		for (int n = 1 + random_u32() % 4; n > 0; n--)
			out.data[1 + random_u32() % (out.len - 1)] = (char) (random_u32() % 3 == 0 ? 0xff : random_u32() % 16);
		len = random_u32() % 4 ? out.len : random_u32() % out.len;
		(void) parses(out.data, len);
	}
	CHECK(!out.failed);
	tk_buffer_free(&out);
}

/* Random messages, of all that the format can say, come back the same. */
static void
random_messages_are_read_back(void)
{
	TkBuffer	out = {0};
	char		data[300];
	int			wrong = 0;

	for (int round = 0; round < 2000; round++)
	{
		TkProduced	m = {0};
		TkProduced	read;
		TkMessageBytes names[5];
		TkMessageBytes values[5];
		size_t		at;

		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = (char) random_u32();
		m.key_id = random_u32();
		m.pipeline_id = (int32_t) random_u32();
		m.xid = (uint64_t) random_u32() << 32 | random_u32();
		m.number = random_u32();
		m.topic = bytes(data, 1 + random_u32() % 249);
		m.partition = (int32_t) random_u32();
		m.key = bytes(random_u32() % 3 ? data + random_u32() % 100 : NULL, random_u32() % 200);
		m.value = bytes(random_u32() % 3 ? data + random_u32() % 100 : NULL, random_u32() % 200);
		m.nheaders = (int) (random_u32() % 6);
		tk_buffer_reset(&out, 1024 * 1024);
		tk_message_format(&out, &m);
		for (int i = 0; i < m.nheaders; i++)
		{
			names[i] = bytes(data + random_u32() % 100, random_u32() % 200);
			values[i] = bytes(random_u32() % 3 ? data + random_u32() % 100 : NULL, random_u32() % 200);
			tk_message_add_header(&out, names[i], values[i]);
		}

#define SAME(a, b) \
	((b).data == NULL ? (a).data == NULL : \
	 (a).data != NULL && (a).len == (b).len && memcmp((a).data, (b).data, (b).len) == 0)

		if (!tk_message_parse(out.data, out.len, &read) ||
			read.key_id != m.key_id || read.pipeline_id != m.pipeline_id || read.xid != m.xid ||
			read.number != m.number || read.partition != m.partition || read.nheaders != m.nheaders ||
			!SAME(read.topic, m.topic) || !SAME(read.key, m.key) || !SAME(read.value, m.value))
		{
			wrong++;
			continue;
		}
		at = read.headers_at;
		for (int i = 0; i < m.nheaders; i++)
		{
			TkMessageBytes name;
			TkMessageBytes value;

			tk_message_header(out.data, &at, &name, &value);
			wrong += !SAME(name, names[i]) || !SAME(value, values[i]);
		}
		wrong += at != out.len;
	}
	CHECK_INT(wrong, 0);
	tk_buffer_free(&out);
}

int
main(int argc, char **argv)
{
	random_state = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t) time(NULL) * UINT64_C(2654435761);
	random_state |= random_state == 0;
	printf("seed %llu\n", (unsigned long long) random_state);

	what_is_written_is_read_back();
	null_and_empty_stay_apart();
	headers_keep_their_order_names_repeat_and_a_value_can_be_null();
	as_many_headers_as_allowed_and_no_more();
	the_mac_has_its_place();
	a_cut_message_is_none();
	a_message_with_something_behind_it_is_none();
	another_version_is_none();
	a_length_beyond_the_message_is_refused();
	a_flipped_bit_is_harmless();
	random_bytes_are_harmless();
	random_messages_are_read_back();
	return unit_done();
}
