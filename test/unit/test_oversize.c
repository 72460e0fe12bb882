/*
 * test_oversize.c
 *	  What a record takes in Kafka's format, and what is told of one that is too
 *	  large.
 */
#include "../../src/oversize.h"
#include "unit.h"

#include <stdlib.h>

static const TkTransaction transaction = {.xid = 7,.commit_lsn = 200,.commit_us = 1500000000000001};

static TkSpan
of(size_t len)
{
	TkSpan		span = {0, len};

	return span;
}

/* Record batch: 61 bytes, and in it attributes, timestamp, offset (3), lengths as zigzag varints, bytes */
static void
a_batch_is_counted_to_the_byte(void)
{
	/* length 1 + 3 + null key 1 + null value 1 + no headers 1 */
	CHECK_INT(tk_record_size(TK_NULL_SPAN, TK_NULL_SPAN, 0, 0).batch, 61 + 1 + 6);
	CHECK_INT(tk_record_size(of(0), of(0), 0, 0).batch, 61 + 1 + 6);

	/* a length of 63 takes a byte, one of 64 two; the record's own length likewise */
	CHECK_INT(tk_record_size(TK_NULL_SPAN, of(57), 0, 0).batch, 61 + 1 + 63);
	CHECK_INT(tk_record_size(TK_NULL_SPAN, of(58), 0, 0).batch, 61 + 2 + 64);
	CHECK_INT(tk_record_size(of(64), of(63), 0, 0).batch, 61 + 2 + 3 + 66 + 64 + 1);

	/* 8192 is the first length of three bytes, 1048576 that of four */
	CHECK_INT(tk_record_size(TK_NULL_SPAN, of(8191), 0, 0).batch, 61 + 3 + 3 + 1 + 2 + 8191 + 1);
	CHECK_INT(tk_record_size(TK_NULL_SPAN, of(8192), 0, 0).batch, 61 + 3 + 3 + 1 + 3 + 8192 + 1);
	CHECK_INT(tk_record_size(TK_NULL_SPAN, of(1048576), 0, 0).batch, 61 + 4 + 3 + 1 + 4 + 1048576 + 1);
}

static void
headers_count_with_their_names(void)
{
	size_t		headers = tk_header_size(3, of(5)) + tk_header_size(2, TK_NULL_SPAN);
	TkRecordSize size;

	CHECK_INT(tk_header_size(3, of(5)), 1 + 3 + 1 + 5);
	CHECK_INT(tk_header_size(2, TK_NULL_SPAN), 1 + 2 + 1);
	size = tk_record_size(of(1), of(2), headers, 2);
	CHECK_INT(size.bytes, 3 + 14);
	CHECK_INT(size.client, 36 + 3 + 14);
	CHECK_INT(size.batch, 61 + 1 + 3 + 2 + 3 + 1 + 14);
}

static TkDeadLetter
letter(void)
{
	TkDeadLetter letter = {0};

	letter.pipeline = "shop";
	letter.topic = "shop.public.docs";
	letter.schema = "public";
	letter.table = "do\"cs";
	letter.op = 'u';
	letter.key = "{\"id\":1}";
	letter.key_len = 8;
	letter.transaction = &transaction;
	letter.lsn = 100;
	letter.size = 2000000;
	letter.limit = 1000000;
	letter.limit_name = "message.max.bytes";
	return letter;
}

static void
check_letter(const TkDeadLetter *letter, const char *expected, const char *file, int line)
{
	TkBuffer	out = {0};
	TkSpan		span;

	tk_buffer_string(&out, "before");
	span = tk_encode_dead_letter(letter, &out);
	unit_check(!out.failed && span.at == 6, file, line, "it is behind what was there");
	unit_check_bytes(out.data + span.at, span.len, expected, strlen(expected), file, line, "value");
	tk_buffer_free(&out);
}

static void
a_letter_says_what_was_left_out(void)
{
	TkDeadLetter l = letter();

	check_letter(&l,
				 "{\"error\":\"record too large\",\"pipeline\":\"shop\",\"topic\":\"shop.public.docs\",\"schema\":\"public\","
				 "\"table\":\"do\\\"cs\",\"op\":\"u\",\"key\":\"{\\\"id\\\":1}\",\"key_size\":8,\"size\":2000000,"
				 "\"limit\":1000000,\"limit_name\":\"message.max.bytes\",\"xid\":7,\"lsn\":100,\"commit_lsn\":200,"
				 "\"commit_ts_us\":1500000000000001}", __FILE__, __LINE__);
	l.schema = l.table = NULL;
	l.op = 0;
	l.key = NULL;
	l.key_len = 0;
	check_letter(&l,
				 "{\"error\":\"record too large\",\"pipeline\":\"shop\",\"topic\":\"shop.public.docs\",\"schema\":null,"
				 "\"table\":null,\"op\":null,\"key\":null,\"key_size\":0,\"size\":2000000,"
				 "\"limit\":1000000,\"limit_name\":\"message.max.bytes\",\"xid\":7,\"lsn\":100,\"commit_lsn\":200,"
				 "\"commit_ts_us\":1500000000000001}", __FILE__, __LINE__);
}

/* The value of "key" in the letter, as JSON text */
static void
check_key(const char *key, size_t len, const char *expected, const char *file, int line)
{
	TkDeadLetter l = letter();
	TkBuffer	out = {0};
	char	   *copy = malloc(len + 1); /* to the byte: the sanitizer sees who reads beyond */
	char	   *start;
	char	   *end;

	memcpy(copy, key, len);
	l.key = copy;
	l.key_len = len;
	(void) tk_encode_dead_letter(&l, &out);
	tk_buffer_char(&out, '\0');
	start = strstr(out.data, "\"key\":") + 6;
	end = strstr(out.data, ",\"key_size\":");
	unit_check_bytes(start, (size_t) (end - start), expected, strlen(expected), file, line, "key");
	free(copy);
	tk_buffer_free(&out);
}

#define CHECK_KEY(key, expected) check_key(key, sizeof(key) - 1, expected, __FILE__, __LINE__)

static void
only_text_is_told_as_text(void)
{
	char		longest[3 * TK_DEAD_LETTER_KEY_MAX];
	char		expected[3 * TK_DEAD_LETTER_KEY_MAX];
	size_t		i;

	CHECK_KEY("", "\"\"");
	CHECK_KEY("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\x98", "\"caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\x98\"");
	CHECK_KEY("a\nb", "\"a\\nb\"");

	/* cut off, overlong, surrogates, beyond Unicode, stray */
	CHECK_KEY("caf\xC3", "null");
	CHECK_KEY("\xE2\x82", "null");
	CHECK_KEY("\xF0\x9F\x90", "null");
	CHECK_KEY("\xC0\x80", "null");
	CHECK_KEY("\xE0\x80\x80", "null");
	CHECK_KEY("\xF0\x80\x80\x80", "null");
	CHECK_KEY("\xED\xA0\x80", "null");
	CHECK_KEY("\xF4\x90\x80\x80", "null");
	CHECK_KEY("\x80", "null");
	CHECK_KEY("\xFF\x00", "null");
	CHECK_KEY("a\xC3(", "null");

	/* a long one is cut between two characters */
	for (i = 0; i < sizeof(longest); i += 3)
		memcpy(longest + i, "\xE2\x82\xAC", 3);
	expected[0] = '"';
	memcpy(expected + 1, longest, 999);
	strcpy(expected + 1 + 999, "\"");
	check_key(longest, sizeof(longest), expected, __FILE__, __LINE__);
	longest[sizeof(longest) - 1] = 'x';
	check_key(longest, sizeof(longest), "null", __FILE__, __LINE__);
}

static void
without_memory_nothing_is_written(void)
{
	TkDeadLetter l = letter();
	TkBuffer	out = {0};

	out.failed = true;
	(void) tk_encode_dead_letter(&l, &out);
	CHECK(out.failed && out.len == 0);
	tk_buffer_free(&out);
}

int
main(void)
{
	a_batch_is_counted_to_the_byte();
	headers_count_with_their_names();
	a_letter_says_what_was_left_out();
	only_text_is_told_as_text();
	without_memory_nothing_is_written();
	return unit_done();
}
