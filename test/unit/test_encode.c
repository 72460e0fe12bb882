/*
 * test_encode.c
 *	  What consumers get, byte by byte.
 *
 * Expected bytes are written out in full, and each produced text also passes
 * a strict JSON parser of the test's own, so that an expectation can't be
 * wrong in the same way as the encoder.
 */
#include "../../src/encode.h"
#include "unit.h"

#include <stdlib.h>

#define FUZZ_ROUNDS		100000
#define FUZZ_LENGTH		48

/*
 * A strict checker of JSON (RFC 8259) in UTF-8 (RFC 3629)
 */
typedef struct Json
{
	const unsigned char *p;
	const unsigned char *end;
	int			depth;
} Json;

static bool json_element(Json *j);

static void
json_space(Json *j)
{
	while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
		j->p++;
}

static bool
json_literal(Json *j, const char *word)
{
	size_t		n = strlen(word);

	if ((size_t) (j->end - j->p) < n || memcmp(j->p, word, n) != 0)
		return false;
	j->p += n;
	return true;
}

static bool
json_character(Json *j)
{
	unsigned	code;
	int			more;

	if (*j->p < 0x20)
		return false;
	if (*j->p < 0x80)
	{
		j->p++;
		return true;
	}
	if ((*j->p & 0xE0) == 0xC0)
		more = 1;
	else if ((*j->p & 0xF0) == 0xE0)
		more = 2;
	else if ((*j->p & 0xF8) == 0xF0)
		more = 3;
	else
		return false;
	if (j->end - j->p <= more)
		return false;
	code = *j->p++ & (0x3F >> more);
	for (int i = 0; i < more; i++)
	{
		if ((*j->p & 0xC0) != 0x80)
			return false;
		code = code << 6 | (*j->p++ & 0x3F);
	}
	if (code < (more == 1 ? 0x80u : more == 2 ? 0x800u : 0x10000u))
		return false;
	return code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

static bool
json_text(Json *j)
{
	if (!json_literal(j, "\""))
		return false;
	while (j->p < j->end && *j->p != '"')
	{
		if (*j->p == '\\')
		{
			j->p++;
			if (j->p == j->end)
				return false;
			if (*j->p == 'u')
			{
				j->p++;
				for (int i = 0; i < 4; i++, j->p++)
				{
					if (j->p == j->end || *j->p == '\0' || !strchr("0123456789abcdefABCDEF", *j->p))
						return false;
				}
			}
			else if (*j->p != '\0' && strchr("\"\\/bfnrt", *j->p))
				j->p++;
			else
				return false;
		}
		else if (!json_character(j))
			return false;
	}
	return json_literal(j, "\"");
}

static int
json_digits(Json *j)
{
	int			n = 0;

	for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
		n++;
	return n;
}

static bool
json_number(Json *j)
{
	(void) json_literal(j, "-");
	if (!json_literal(j, "0") && json_digits(j) == 0)
		return false;
	if (json_literal(j, ".") && json_digits(j) == 0)
		return false;
	if (json_literal(j, "e") || json_literal(j, "E"))
	{
		if (!json_literal(j, "+"))
			(void) json_literal(j, "-");
		if (json_digits(j) == 0)
			return false;
	}
	return true;
}

static bool
json_list(Json *j, const char *close, bool object)
{
	json_space(j);
	if (json_literal(j, close))
		return true;
	do
	{
		if (object)
		{
			json_space(j);
			if (!json_text(j))
				return false;
			json_space(j);
			if (!json_literal(j, ":"))
				return false;
		}
		if (!json_element(j))
			return false;
	} while (json_literal(j, ","));
	return json_literal(j, close);
}

static bool
json_element(Json *j)
{
	bool		ok;

	if (++j->depth > 100)
		return false;
	json_space(j);
	if (j->p == j->end)
		ok = false;
	else if (*j->p == '"')
		ok = json_text(j);
	else if (json_literal(j, "{"))
		ok = json_list(j, "}", true);
	else if (json_literal(j, "["))
		ok = json_list(j, "]", false);
	else if (json_literal(j, "null") || json_literal(j, "true") || json_literal(j, "false"))
		ok = true;
	else
		ok = json_number(j);
	json_space(j);
	j->depth--;
	return ok;
}

static bool
is_json(const char *text, size_t len)
{
	Json		j = {(const unsigned char *) text, (const unsigned char *) text + len, 0};

	return json_element(&j) && j.p == j.end;
}

static void
the_checker_itself_is_strict(void)
{
	static const char *const good[] = {
		"{}", "[]", " { \"a\" : [ 1 , -0.5e+3 , true , null ] } ", "\"\\u00e9\\n\"", "0", "\"\xC3\xA9\""
	};
	static const char *const bad[] = {
		"", "{", "[1,]", "{,}", "01", "1.", ".5", "+1", "NaN", "'a'", "\"\x01\"", "\"\\x\"", "\"\xA9\"",
		"\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xE2\x82\"", "1 2", "{\"a\":1,}", "{a:1}", "nul", "\"", "\"\\u12\""
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		CHECK(is_json(good[i], strlen(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(!is_json(bad[i], strlen(bad[i])));
}

/*
 * Single values
 */
static void
check_value(const TkType *type, const char *text, size_t len, int style, const char *expected, int line)
{
	TkBuffer	out = {0};
	TkValue		value = {TK_VALUE_TEXT, (uint32_t) len, NULL};
	char	   *exact = malloc(len + 1);

	/*
	 * A block of the exact size, so that the sanitizer sees a read past the value's end.
	 */
	value.data = memcpy(realloc(exact, len > 0 ? len : 1), text, len);
	tk_json_value(&out, type, &value, style);
	unit_check_bytes(out.data, out.len, expected, strlen(expected), __FILE__, line, text);
	unit_check(is_json(out.data, out.len), __FILE__, line, "is JSON");
	free((char *) value.data);
	tk_buffer_free(&out);
}

#define VALUE(k, text, expected) \
	check_value(&(TkType) {.kind = (k)}, (text), strlen(text), 0, (expected), __LINE__)
#define ARRAY(k, text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_ARRAY, .delimiter = ',', .element = &(TkType) {.kind = (k)}}, \
				(text), strlen(text), 0, (expected), __LINE__)
#define INLINE(text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_JSON}, (text), strlen(text), TK_STYLE_INLINE_JSON, (expected), __LINE__)
#define INLINE_ARRAY(text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_ARRAY, .delimiter = ',', .element = &(TkType) {.kind = TK_KIND_JSON}}, \
				(text), strlen(text), TK_STYLE_INLINE_JSON, (expected), __LINE__)
#define BOX_ARRAY(text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_ARRAY, .delimiter = ';', .element = &(TkType) {.kind = TK_KIND_TEXT}}, \
				(text), strlen(text), 0, (expected), __LINE__)
#define TYPED(type, text, expected) \
	check_value(&(type), (text), strlen(text), 0, (expected), __LINE__)

/* With a type modifier; -1: none */
#define DEBEZIUM(k, mod, text, expected) \
	check_value(&(TkType) {.kind = (k), .typmod = (mod)}, (text), strlen(text), TK_STYLE_DEBEZIUM, (expected), __LINE__)
#define DEBEZIUM_ARRAY(k, mod, text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_ARRAY, .delimiter = ',', .element = &(TkType) {.kind = (k), .typmod = (mod)}}, \
				(text), strlen(text), TK_STYLE_DEBEZIUM, (expected), __LINE__)

/* numeric(precision, scale) */
#define NUMERIC(precision, scale) (((precision) << 16 | (scale)) + 4)

#define STRING(text, expected) \
	check_value(&(TkType) {.kind = TK_KIND_TEXT}, (text), sizeof(text) - 1, 0, (expected), __LINE__)

static void
control_characters_quotes_and_backslashes_are_escaped(void)
{
	STRING("", "\"\"");
	STRING("plain", "\"plain\"");
	STRING("say \"hi\" \\ there", "\"say \\\"hi\\\" \\\\ there\"");
	STRING("\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\"");
	STRING("\0\x01\x0B\x1F \x7F", "\"\\u0000\\u0001\\u000b\\u001f \x7F\"");
	STRING("a/b", "\"a/b\"");
	STRING("0123456789abcde\n0123456789abcdef\"", "\"0123456789abcde\\n0123456789abcdef\\\"\"");
}

static void
each_character_is_escaped_at_each_place_of_a_word(void)
{
	TkBuffer	out = {0};
	int			bad = 0;

	for (int c = 0; c < 0x80; c++)
	{
		for (int at = 0; at < 17; at++)
		{
			char		text[17];
			char		expected[64];
			char		escape[8];

			memset(text, 'x', sizeof(text));
			text[at] = (char) c;
			switch (c)
			{
				case '"':
				case '\\':
					snprintf(escape, sizeof(escape), "\\%c", c);
					break;
				case '\b':
					strcpy(escape, "\\b");
					break;
				case '\f':
					strcpy(escape, "\\f");
					break;
				case '\n':
					strcpy(escape, "\\n");
					break;
				case '\r':
					strcpy(escape, "\\r");
					break;
				case '\t':
					strcpy(escape, "\\t");
					break;
				default:
					snprintf(escape, sizeof(escape), c < 0x20 ? "\\u%04x" : "%c", c);
			}
			snprintf(expected, sizeof(expected), "\"%.*s%s%.*s\"", at, "xxxxxxxxxxxxxxxxx",
					 escape, 16 - at, "xxxxxxxxxxxxxxxxx");
			out.len = 0;
			tk_json_string(&out, text, sizeof(text));
			if (out.len != strlen(expected) || memcmp(out.data, expected, out.len) != 0)
				bad++;
		}
	}
	CHECK_INT(bad, 0);
	tk_buffer_free(&out);
}

static void
utf8_stands_as_it_is_and_other_bytes_become_replacement_characters(void)
{
	STRING("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
	STRING("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF", "\"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\"");

	/* LATIN1 in SQL_ASCII */
	STRING("caf\xE9!", "\"caf\xEF\xBF\xBD!\"");

	/* Cut off */
	STRING("\xE2\x82", "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");

	/* Overlong */
	STRING("\xC0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");

	/* Surrogate */
	STRING("\xED\xA0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");

	/* > U+10FFFF */
	STRING("\xF4\x90\x80\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");

	/* A quote is never swallowed */
	STRING("\xE2\x82\"", "\"\xEF\xBF\xBD\xEF\xBF\xBD\\\"\"");
}

static void
a_long_string_is_whole_across_the_chunks_it_is_written_in(void)
{
	size_t		n = 100000;
	char	   *text = malloc(n);
	char	   *expected = malloc(n * 2 + 2);
	size_t		len = 0;
	size_t		expected_len = 0;
	TkBuffer	out = {0};

	/*
	 * €, 3 bytes, and a quote: each chunk ends elsewhere within a character.
	 */
	expected[expected_len++] = '"';
	while (len + 4 <= n)
	{
		memcpy(text + len, "\xE2\x82\xAC", 3);
		memcpy(expected + expected_len, "\xE2\x82\xAC", 3);
		len += 3;
		expected_len += 3;
		if (len % 7 == 0)
		{
			text[len++] = '"';
			expected[expected_len++] = '\\';
			expected[expected_len++] = '"';
		}
	}
	expected[expected_len++] = '"';
	tk_json_string(&out, text, len);
	CHECK(out.len == expected_len && memcmp(out.data, expected, expected_len) == 0);

	out.len = 0;
	memset(text, '\x01', n);
	tk_json_string(&out, text, n);
	CHECK_INT(out.len, n * 6 + 2);
	CHECK(is_json(out.data, out.len));
	tk_buffer_free(&out);
	free(text);
	free(expected);
}

static void
numbers_are_exact(void)
{
	TkType		numeric = {.kind = TK_KIND_NUMERIC};
	char		digits[1003];

	VALUE(TK_KIND_BOOL, "t", "true");
	VALUE(TK_KIND_BOOL, "f", "false");
	VALUE(TK_KIND_INTEGER, "0", "0");
	VALUE(TK_KIND_INTEGER, "-32768", "-32768");
	VALUE(TK_KIND_INTEGER, "9223372036854775807", "9223372036854775807");
	VALUE(TK_KIND_INTEGER, "-9223372036854775808", "-9223372036854775808");
	VALUE(TK_KIND_INTEGER, "4000000000", "4000000000");

	VALUE(TK_KIND_FLOAT, "0.1", "0.1");
	VALUE(TK_KIND_FLOAT, "-0", "-0");
	VALUE(TK_KIND_FLOAT, "1e+20", "1e+20");
	VALUE(TK_KIND_FLOAT, "1e-05", "1e-05");
	VALUE(TK_KIND_FLOAT, "1.7976931348623157e+308", "1.7976931348623157e+308");
	VALUE(TK_KIND_FLOAT, "5e-324", "5e-324");
	VALUE(TK_KIND_FLOAT, "NaN", "\"NaN\"");
	VALUE(TK_KIND_FLOAT, "Infinity", "\"Infinity\"");
	VALUE(TK_KIND_FLOAT, "-Infinity", "\"-Infinity\"");

	VALUE(TK_KIND_NUMERIC, "1.10", "\"1.10\"");
	VALUE(TK_KIND_NUMERIC, "NaN", "\"NaN\"");
	VALUE(TK_KIND_NUMERIC, "-Infinity", "\"-Infinity\"");
	digits[0] = '"';
	memset(digits + 1, '7', 1000);
	strcpy(digits + 1001, "\"");
	check_value(&numeric, digits + 1, 1000, false, digits, __LINE__);

	VALUE(TK_KIND_MONEY, "$1,000.00", "\"1000.00\"");
	VALUE(TK_KIND_MONEY, "-$92,233,720,368,547,758.08", "\"-92233720368547758.08\"");
	VALUE(TK_KIND_MONEY, "$0.05", "\"0.05\"");
}

static void
integers_are_written_as_printf_would(void)
{
	static const int64_t numbers[] = {
		0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 9999, 10000, 10001, 99999999, 100000001, 1000000000000, 1478260290123456,
		INT64_MAX, -1, -10, -99, -100, INT64_MIN
	};
	TkBuffer	out = {0};
	char		expected[24];

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
	{
		out.len = 0;
		tk_decimal(&out, numbers[i]);
		snprintf(expected, sizeof(expected), "%lld", (long long) numbers[i]);
		CHECK_BYTES(out.data, out.len, expected, strlen(expected));
	}
	out.len = 0;
	tk_unsigned(&out, UINT64_MAX);
	CHECK_BYTES(out.data, out.len, "18446744073709551615", 20);
	tk_buffer_free(&out);
}

static void
bytea_is_base64(void)
{
	VALUE(TK_KIND_BYTEA, "\\x", "\"\"");
	VALUE(TK_KIND_BYTEA, "\\x00", "\"AA==\"");
	VALUE(TK_KIND_BYTEA, "\\x00ff", "\"AP8=\"");
	VALUE(TK_KIND_BYTEA, "\\x00ff10", "\"AP8Q\"");
	VALUE(TK_KIND_BYTEA, "\\xfbefbe", "\"++++\"");
	VALUE(TK_KIND_BYTEA, "\\xFFFFFF", "\"////\"");
	VALUE(TK_KIND_BYTEA, "\\x666f6f626172", "\"Zm9vYmFy\"");
	VALUE(TK_KIND_BYTEA, "\\x666g", "\"\\\\x666g\"");
	VALUE(TK_KIND_BYTEA, "\\x123", "\"\\\\x123\"");
}

static void
dates_and_times_are_iso_8601(void)
{
	VALUE(TK_KIND_DATE, "2016-11-04", "\"2016-11-04\"");
	VALUE(TK_KIND_DATE, "infinity", "\"infinity\"");
	VALUE(TK_KIND_DATE, "-infinity", "\"-infinity\"");
	VALUE(TK_KIND_DATE, "0044-03-15 BC", "\"0044-03-15 BC\"");
	VALUE(TK_KIND_DATE, "5874897-12-31", "\"5874897-12-31\"");
	VALUE(TK_KIND_TIME, "13:51:30.123456", "\"13:51:30.123456\"");
	VALUE(TK_KIND_TIME, "24:00:00", "\"24:00:00\"");
	VALUE(TK_KIND_TIMETZ, "13:51:30.123456+02", "\"13:51:30.123456+02\"");
	VALUE(TK_KIND_INTERVAL, "P1Y2M3DT4H5M6.789S", "\"P1Y2M3DT4H5M6.789S\"");

	VALUE(TK_KIND_TIMESTAMP, "2016-11-04 11:51:30.123456", "\"2016-11-04T11:51:30.123456\"");
	VALUE(TK_KIND_TIMESTAMP, "2016-11-04 11:51:30", "\"2016-11-04T11:51:30\"");
	VALUE(TK_KIND_TIMESTAMP, "infinity", "\"infinity\"");
	VALUE(TK_KIND_TIMESTAMP, "0044-03-15 00:00:00 BC", "\"0044-03-15T00:00:00 BC\"");
	VALUE(TK_KIND_TIMESTAMP, "294276-12-31 23:59:59.999999", "\"294276-12-31T23:59:59.999999\"");

	VALUE(TK_KIND_TIMESTAMPTZ, "2016-11-04 11:51:30.123456+00", "\"2016-11-04T11:51:30.123456Z\"");
	VALUE(TK_KIND_TIMESTAMPTZ, "2016-11-04 11:51:30+00", "\"2016-11-04T11:51:30Z\"");
	VALUE(TK_KIND_TIMESTAMPTZ, "-infinity", "\"-infinity\"");
	VALUE(TK_KIND_TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", "\"0044-03-15T00:00:00Z BC\"");
	VALUE(TK_KIND_TIMESTAMPTZ, "2016-11-04 11:51:30+05:30", "\"2016-11-04T11:51:30+05:30\"");
	VALUE(TK_KIND_TIMESTAMPTZ, " BC", "\" BC\"");
	VALUE(TK_KIND_TIMESTAMPTZ, "+00 BC", "\"+00 BC\"");
}

static void
json_is_a_string_or_stands_inline_verbatim(void)
{
	VALUE(TK_KIND_JSON, "{\"a\": [1, \"x\\n\"]}", "\"{\\\"a\\\": [1, \\\"x\\\\n\\\"]}\"");
	VALUE(TK_KIND_JSON, "null", "\"null\"");
	INLINE("{\"a\": [1, \"x\\n\"]}", "{\"a\": [1, \"x\\n\"]}");
	INLINE("null", "null");
	INLINE("{\n\t\"a\" : \"\xC3\xA9\"\n}", "{\n\t\"a\" : \"\xC3\xA9\"\n}");
	INLINE("\"\xE9\"", "\"\xEF\xBF\xBD\"");
}

static void
arrays_become_nested_arrays(void)
{
	ARRAY(TK_KIND_INTEGER, "{}", "[]");
	ARRAY(TK_KIND_INTEGER, "{1,2,3}", "[1,2,3]");
	ARRAY(TK_KIND_INTEGER, "{{1,2},{3,NULL}}", "[[1,2],[3,null]]");
	ARRAY(TK_KIND_INTEGER, "[0:1]={1,2}", "[1,2]");
	ARRAY(TK_KIND_INTEGER, "[-1:0][2:3]={{1,2},{3,4}}", "[[1,2],[3,4]]");
	ARRAY(TK_KIND_INTEGER, "{{{{{{1}}}}}}", "[[[[[[1]]]]]]");
	ARRAY(TK_KIND_BOOL, "{t,f,NULL}", "[true,false,null]");
	ARRAY(TK_KIND_FLOAT, "{1.5,NaN}", "[1.5,\"NaN\"]");
	ARRAY(TK_KIND_NUMERIC, "{1.50,NaN}", "[\"1.50\",\"NaN\"]");
	ARRAY(TK_KIND_TEXT, "{a,\"b c\",\"\",\"NULL\",NULL,\"null\"}", "[\"a\",\"b c\",\"\",\"NULL\",null,\"null\"]");
	ARRAY(TK_KIND_TEXT, "{\"a\\\"b\",\"c\\\\d\",\"{x,y}\"}", "[\"a\\\"b\",\"c\\\\d\",\"{x,y}\"]");
	ARRAY(TK_KIND_TEXT, "{caf\xC3\xA9,\"\xE9 \"}", "[\"caf\xC3\xA9\",\"\xEF\xBF\xBD \"]");
	ARRAY(TK_KIND_BYTEA, "{\"\\\\x00ff\",NULL}", "[\"AP8=\",null]");
	ARRAY(TK_KIND_JSON, "{\"{\\\"a\\\": 1}\",2}", "[\"{\\\"a\\\": 1}\",\"2\"]");
	ARRAY(TK_KIND_TIMESTAMPTZ, "{\"2016-11-04 11:51:30+00\",infinity}", "[\"2016-11-04T11:51:30Z\",\"infinity\"]");
	ARRAY(TK_KIND_MONEY, "{\"$1,000.00\",$0.05}", "[\"1000.00\",\"0.05\"]");

	/* json[] of the plain envelope, and box[], whose delimiter is another */
	INLINE_ARRAY("{\"{\\\"a\\\": 1}\",2,\"null\",NULL}", "[{\"a\": 1},2,null,null]");
	BOX_ARRAY("{(1,1),(0,0);(2,2),(1,1)}", "[\"(1,1),(0,0)\",\"(2,2),(1,1)\"]");
}

static void
a_long_escaped_element_is_whole(void)
{
	TkType		element = {.kind = TK_KIND_TEXT};
	TkType		array = {.kind = TK_KIND_ARRAY,.typmod = -1,.delimiter = ',',.element = &element};
	size_t		n = 50000;
	char	   *text = malloc(2 * n + 8);
	TkValue		value = {TK_VALUE_TEXT, (uint32_t) (2 * n + 4), text};
	TkBuffer	out = {0};

	/* {"\"\"…"} → ["\"\"…"] */
	memcpy(text, "{\"", 2);
	for (size_t i = 0; i < n; i++)
		memcpy(text + 2 + 2 * i, "\\\"", 2);
	memcpy(text + 2 + 2 * n, "\"}", 2);
	tk_json_value(&out, &array, &value, 0);
	text[0] = '[';
	text[2 * n + 3] = ']';
	CHECK(out.len == value.len && memcmp(out.data, text, out.len) == 0);
	tk_buffer_free(&out);
	free(text);
}

static void
text_that_is_no_array_stays_text(void)
{
	ARRAY(TK_KIND_INTEGER, "", "\"\"");
	ARRAY(TK_KIND_INTEGER, "1 2 3", "\"1 2 3\"");
	ARRAY(TK_KIND_INTEGER, "{1,2", "\"{1,2\"");
	ARRAY(TK_KIND_INTEGER, "{1,}", "\"{1,}\"");
	ARRAY(TK_KIND_INTEGER, "{,1}", "\"{,1}\"");
	ARRAY(TK_KIND_INTEGER, "{1}}", "\"{1}}\"");
	ARRAY(TK_KIND_INTEGER, "{1}x", "\"{1}x\"");
	ARRAY(TK_KIND_INTEGER, "[0:1]", "\"[0:1]\"");
	ARRAY(TK_KIND_TEXT, "{\"a", "\"{\\\"a\"");
	ARRAY(TK_KIND_TEXT, "{\"a\\", "\"{\\\"a\\\\\"");
	ARRAY(TK_KIND_TEXT, "{\"a\"b}", "\"{\\\"a\\\"b}\"");
	ARRAY(TK_KIND_INTEGER, "{{{{{{{1}}}}}}}", "\"{{{{{{{1}}}}}}}\"");
}

/*
 * Random bytes
 */
static void
composites_become_objects(void)
{
	TkType		numbers = {.kind = TK_KIND_ARRAY,.delimiter = ',',.element = &(TkType) {.kind = TK_KIND_INTEGER}};
	TkAttribute point_parts[] = {{"x", {.kind = TK_KIND_FLOAT}}, {"label", {.kind = TK_KIND_TEXT}}};
	TkType		point = {.kind = TK_KIND_COMPOSITE,.nattributes = 2,.attributes = point_parts};
	TkType		points = {.kind = TK_KIND_ARRAY,.delimiter = ',',.element = &point};
	TkAttribute shape_parts[] = {{"a\"b", {.kind = TK_KIND_BYTEA}}, {"points", points}, {"n", numbers}, {"one", point}};
	TkType		shape = {.kind = TK_KIND_COMPOSITE,.nattributes = 4,.attributes = shape_parts};
	TkType		shapes = {.kind = TK_KIND_ARRAY,.delimiter = ',',.element = &shape};
	TkAttribute json_parts[] = {{"j", {.kind = TK_KIND_JSON}}};
	TkType		holder = {.kind = TK_KIND_COMPOSITE,.nattributes = 1,.attributes = json_parts};
	TkType		empty = {.kind = TK_KIND_COMPOSITE};

	TYPED(point, "(1.5,abc)", "{\"x\":1.5,\"label\":\"abc\"}");
	TYPED(point, "(,)", "{\"x\":null,\"label\":null}");
	TYPED(point, "(NaN,\"\")", "{\"x\":\"NaN\",\"label\":\"\"}");
	TYPED(point, "(-0,\"a \"\"b\"\", c\\\\d)\")", "{\"x\":-0,\"label\":\"a \\\"b\\\", c\\\\d)\"}");
	TYPED(empty, "()", "{}");
	TYPED(points, "{\"(1,a)\",NULL,\"(,\\\"x \\\"\\\"y\\\"\\\"\\\")\"}",
		  "[{\"x\":1,\"label\":\"a\"},null,{\"x\":null,\"label\":\"x \\\"y\\\"\"}]");
	TYPED(shape, "(\"\\\\x00ff\",\"{\"\"(1,\\\\\"\"p q\\\\\"\")\"\"}\",\"{1,NULL}\",\"(2,\"\"r,s\"\")\")",
		  "{\"a\\\"b\":\"AP8=\",\"points\":[{\"x\":1,\"label\":\"p q\"}],\"n\":[1,null],"
		  "\"one\":{\"x\":2,\"label\":\"r,s\"}}");
	TYPED(shapes, "{\"(,,\\\"{{1,2},{3,4}}\\\",)\"}",
		  "[{\"a\\\"b\":null,\"points\":null,\"n\":[[1,2],[3,4]],\"one\":null}]");
	TYPED(holder, "(\"{\"\"a\"\": 1}\")", "{\"j\":\"{\\\"a\\\": 1}\"}");
	check_value(&holder, "(\"{\"\"a\"\": 1}\")", strlen("(\"{\"\"a\"\": 1}\")"), TK_STYLE_INLINE_JSON,
				"{\"j\":{\"a\": 1}}", __LINE__);

	/* Another number of fields, or no record at all: the text is still true. */
	TYPED(point, "(1)", "\"(1)\"");
	TYPED(point, "(1,2,3)", "\"(1,2,3)\"");
	TYPED(point, "(1,\"2)", "\"(1,\\\"2)\"");
	TYPED(point, "", "\"\"");
	TYPED(point, "(", "\"(\"");
	TYPED(point, "(1,2)x", "\"(1,2)x\"");
	TYPED(empty, "(1)", "\"(1)\"");
}

static void
hstore_becomes_an_object(void)
{
	VALUE(TK_KIND_HSTORE, "", "{}");
	VALUE(TK_KIND_HSTORE, "\"a\"=>\"1\", \"b\"=>NULL, \"\"=>\"NULL\"", "{\"a\":\"1\",\"b\":null,\"\":\"NULL\"}");
	VALUE(TK_KIND_HSTORE, "\"q\\\"\\\\\"=>\"x, \\\"y\\\"=>\"", "{\"q\\\"\\\\\":\"x, \\\"y\\\"=>\"}");
	ARRAY(TK_KIND_HSTORE, "{\"\\\"a\\\"=>\\\"1\\\"\",NULL}", "[{\"a\":\"1\"},null]");
	VALUE(TK_KIND_HSTORE, "\"a\"=>\"1\",", "\"\\\"a\\\"=>\\\"1\\\",\"");
	VALUE(TK_KIND_HSTORE, "\"a\"=>", "\"\\\"a\\\"=>\"");
	VALUE(TK_KIND_HSTORE, "a", "\"a\"");

	DEBEZIUM(TK_KIND_HSTORE, -1, "", "\"{}\"");
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"a\"=>\"1\", \"b\"=>NULL", "\"{\\\"a\\\":\\\"1\\\",\\\"b\\\":null}\"");
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"a\"=>\"\x1F\"", "\"{\\\"a\\\":\\\"\\\\u001F\\\"}\"");
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"a\"=>\"\\\"\"", "\"{\\\"a\\\":\\\"\\\\\\\"\\\"}\"");

	/* HashMap's order: "a" to "p" have the hashes 97 to 112, so "p" (112 & 15 = 0) is first … */
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"a\"=>\"1\", \"p\"=>\"2\"", "\"{\\\"p\\\":\\\"2\\\",\\\"a\\\":\\\"1\\\"}\"");

	/* … "aa" has 3104, 0 in a table of 16, and of 32 … */
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"a\"=>\"1\", \"aa\"=>\"2\"", "\"{\\\"aa\\\":\\\"2\\\",\\\"a\\\":\\\"1\\\"}\"");

	/* … and the thirteenth key doubles the table, in which "p" (112 & 31 = 16) comes behind "m" (109 & 31 = 13). */
	DEBEZIUM(TK_KIND_HSTORE, -1,
			 "\"a\"=>\"\", \"b\"=>\"\", \"c\"=>\"\", \"d\"=>\"\", \"e\"=>\"\", \"f\"=>\"\", \"g\"=>\"\", \"h\"=>\"\", "
			 "\"i\"=>\"\", \"j\"=>\"\", \"k\"=>\"\", \"p\"=>\"\"",
			 "\"{\\\"p\\\":\\\"\\\",\\\"a\\\":\\\"\\\",\\\"b\\\":\\\"\\\",\\\"c\\\":\\\"\\\",\\\"d\\\":\\\"\\\","
			 "\\\"e\\\":\\\"\\\",\\\"f\\\":\\\"\\\",\\\"g\\\":\\\"\\\",\\\"h\\\":\\\"\\\",\\\"i\\\":\\\"\\\","
			 "\\\"j\\\":\\\"\\\",\\\"k\\\":\\\"\\\"}\"");
	DEBEZIUM(TK_KIND_HSTORE, -1,
			 "\"a\"=>\"\", \"b\"=>\"\", \"c\"=>\"\", \"d\"=>\"\", \"e\"=>\"\", \"f\"=>\"\", \"g\"=>\"\", \"h\"=>\"\", "
			 "\"i\"=>\"\", \"j\"=>\"\", \"k\"=>\"\", \"m\"=>\"\", \"p\"=>\"\"",
			 "\"{\\\"a\\\":\\\"\\\",\\\"b\\\":\\\"\\\",\\\"c\\\":\\\"\\\",\\\"d\\\":\\\"\\\","
			 "\\\"e\\\":\\\"\\\",\\\"f\\\":\\\"\\\",\\\"g\\\":\\\"\\\",\\\"h\\\":\\\"\\\",\\\"i\\\":\\\"\\\","
			 "\\\"j\\\":\\\"\\\",\\\"k\\\":\\\"\\\",\\\"m\\\":\\\"\\\",\\\"p\\\":\\\"\\\"}\"");

	/* "\xC3\xA9" is 233 (bucket 9), "i" 105 (9 too): as they came; U+1F600 is D83D DE00, bucket 2. */
	DEBEZIUM(TK_KIND_HSTORE, -1, "\"\xC3\xA9\"=>\"\", \"i\"=>\"\", \"\xF0\x9F\x98\x80\"=>\"\"",
			 "\"{\\\"\\uD83D\\uDE00\\\":\\\"\\\",\\\"\xC3\xA9\\\":\\\"\\\",\\\"i\\\":\\\"\\\"}\"");
}

static void
debezium_numbers(void)
{
	/* Java's Double.toString() */
	DEBEZIUM(TK_KIND_FLOAT, -1, "0", "0.0");
	DEBEZIUM(TK_KIND_FLOAT, -1, "-0", "-0.0");
	DEBEZIUM(TK_KIND_FLOAT, -1, "1", "1.0");
	DEBEZIUM(TK_KIND_FLOAT, -1, "-100", "-100.0");
	DEBEZIUM(TK_KIND_FLOAT, -1, "0.1", "0.1");
	DEBEZIUM(TK_KIND_FLOAT, -1, "0.001", "0.001");
	DEBEZIUM(TK_KIND_FLOAT, -1, "0.0001", "1.0E-4");
	DEBEZIUM(TK_KIND_FLOAT, -1, "0.00012345", "1.2345E-4");
	DEBEZIUM(TK_KIND_FLOAT, -1, "9999999", "9999999.0");
	DEBEZIUM(TK_KIND_FLOAT, -1, "9999999.5", "9999999.5");
	DEBEZIUM(TK_KIND_FLOAT, -1, "10000000", "1.0E7");
	DEBEZIUM(TK_KIND_FLOAT, -1, "12345678.9", "1.23456789E7");
	DEBEZIUM(TK_KIND_FLOAT, -1, "1e+20", "1.0E20");
	DEBEZIUM(TK_KIND_FLOAT, -1, "1.5e-07", "1.5E-7");
	DEBEZIUM(TK_KIND_FLOAT, -1, "1.7976931348623157e+308", "1.7976931348623157E308");
	DEBEZIUM(TK_KIND_FLOAT, -1, "5e-324", "4.9E-324");
	DEBEZIUM(TK_KIND_FLOAT, -1, "1e-323", "9.9E-324");
	DEBEZIUM(TK_KIND_FLOAT, -1, "0.30000000000000004", "0.30000000000000004");
	DEBEZIUM(TK_KIND_FLOAT, -1, "NaN", "\"NaN\"");
	DEBEZIUM(TK_KIND_FLOAT, -1, "-Infinity", "\"-Infinity\"");
	DEBEZIUM(TK_KIND_REAL, -1, "1.1", "1.1");
	DEBEZIUM(TK_KIND_REAL, -1, "3.4028235e+38", "3.4028235E38");
	DEBEZIUM(TK_KIND_REAL, -1, "1e-45", "1.4E-45");
	DEBEZIUM(TK_KIND_REAL, -1, "1e-05", "1.0E-5");

	/* numeric(p,s): the unscaled value, big-endian two's complement */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "0.00", "\"AA==\"");	/* 00 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "1.27", "\"fw==\"");	/* 7F */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "1.28", "\"AIA=\"");	/* 00 80 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "-1.28", "\"gA==\"");	/* 80 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "-1.29", "\"/38=\"");	/* FF 7F */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "-0.01", "\"/w==\"");	/* FF */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "1234.50", "\"AeI6\"");	/* 01 E2 3A = 123450 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(20, 0), "18446744073709551616", "\"AQAAAAAAAAAA\"");	/* 2^64 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(20, 0), "-9223372036854775808", "\"gAAAAAAAAAA=\"");	/* -2^63 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(20, 0), "-9223372036854775809", "\"/3//////////\"");
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(6, 2), "NaN", "null");

	/* numeric(3,-2), since 15: pgjdbc's scale is 2046, of 12300 = 12300 × 10^2046 × 10^-2046 */
	DEBEZIUM(TK_KIND_NUMERIC, NUMERIC(3, 2046), "0", "\"AA==\"");

	/* Without a scale it is the value's, without zeros at the end. */
	DEBEZIUM(TK_KIND_NUMERIC, -1, "0.10", "{\"scale\":1,\"value\":\"AQ==\"}");
	DEBEZIUM(TK_KIND_NUMERIC, -1, "0.000", "{\"scale\":0,\"value\":\"AA==\"}");
	DEBEZIUM(TK_KIND_NUMERIC, -1, "100", "{\"scale\":0,\"value\":\"ZA==\"}");
	DEBEZIUM(TK_KIND_NUMERIC, -1, "-123.4500", "{\"scale\":2,\"value\":\"z8c=\"}"); /* CF C7 = -12345 */
	DEBEZIUM(TK_KIND_NUMERIC, -1, "Infinity", "null");
	DEBEZIUM_ARRAY(TK_KIND_NUMERIC, NUMERIC(6, 2), "{1.27,NULL}", "[\"fw==\",null]");

	DEBEZIUM(TK_KIND_MONEY, -1, "$1,000.00", "\"AYag\"");	/* 01 86 A0 = 100000 */
	DEBEZIUM(TK_KIND_MONEY, -1, "-$0.01", "\"/w==\"");
	DEBEZIUM(TK_KIND_MONEY, -1, "-$92,233,720,368,547,758.08", "\"gAAAAAAAAAA=\"");

	DEBEZIUM(TK_KIND_INTEGER, -1, "-2147483648", "-2147483648");
	DEBEZIUM(TK_KIND_OID, -1, "4000000000", "4000000000");
	DEBEZIUM(TK_KIND_BOOL, -1, "t", "true");
}

#define BITS	8191
#define DIGITS	2466			/* of 2 ^ BITS */

/* 2^8191 in decimal by doubling; its bytes are 00 80 and 1022 zeros. */
static void
debezium_numbers_of_any_length(void)
{
	TkType		type = {.kind = TK_KIND_NUMERIC,.typmod = NUMERIC(1000, 0)};
	char		digits[DIGITS] = {0};
	size_t		n = 1;
	TkType		bytea = {.kind = TK_KIND_BYTEA};
	TkBuffer	out = {0};
	TkBuffer	expected = {0};
	TkValue		value = {TK_VALUE_TEXT, 0, digits};
	TkValue		hex = {TK_VALUE_TEXT, 0, NULL};
	char		text[6 + 2 * 1023] = "\\x0080";

	digits[DIGITS - 1] = '1';
	for (int bit = 0; bit < BITS; bit++)
	{
		int			carry = 0;

		for (size_t i = 0; i < n; i++)
		{
			char	   *digit = &digits[DIGITS - 1 - i];
			int			doubled = *digit - '0';

			doubled = 2 * doubled + carry;
			*digit = "0123456789"[doubled % 10];
			carry = doubled / 10;
		}
		if (carry > 0)
			digits[DIGITS - 1 - n++] = '1';
	}
	CHECK_INT(n, DIGITS);

	/* bytea's own way to base64 is the check. */
	memset(text + 6, '0', sizeof(text) - 6);
	hex.data = text;
	hex.len = sizeof(text);
	tk_json_value(&expected, &bytea, &hex, 0);
	value.len = DIGITS;
	tk_json_value(&out, &type, &value, TK_STYLE_DEBEZIUM);
	CHECK_BYTES(out.data, out.len, expected.data, expected.len);
	tk_buffer_free(&out);
	tk_buffer_free(&expected);
}

static void
debezium_dates_and_times(void)
{
	DEBEZIUM(TK_KIND_DATE, -1, "1970-01-01", "0");
	DEBEZIUM(TK_KIND_DATE, -1, "2016-11-04", "17109");
	DEBEZIUM(TK_KIND_DATE, -1, "1969-12-31", "-1");
	DEBEZIUM(TK_KIND_DATE, -1, "2000-02-29", "11016");
	DEBEZIUM(TK_KIND_DATE, -1, "5874897-12-31", "2145042905");
	DEBEZIUM(TK_KIND_DATE, -1, "4714-11-24 BC", "-2440588");	/* Julian day 0 */
	DEBEZIUM(TK_KIND_DATE, -1, "0001-12-31 BC", "-719163");
	DEBEZIUM(TK_KIND_DATE, -1, "infinity", "2146033979");
	DEBEZIUM(TK_KIND_DATE, -1, "-infinity", "-2147472691");

	DEBEZIUM(TK_KIND_TIME, -1, "13:51:30.123456", "49890123456");
	DEBEZIUM(TK_KIND_TIME, 6, "00:00:00", "0");
	DEBEZIUM(TK_KIND_TIME, 4, "00:00:00.1", "100000");
	DEBEZIUM(TK_KIND_TIME, 3, "13:51:30.123", "49890123");
	DEBEZIUM(TK_KIND_TIME, 0, "23:59:59", "86399000");
	DEBEZIUM(TK_KIND_TIME, -1, "24:00:00", "86400000000");

	DEBEZIUM(TK_KIND_TIMETZ, -1, "13:51:30.123456+02:30", "\"11:21:30.123456Z\"");
	DEBEZIUM(TK_KIND_TIMETZ, -1, "13:51:00+00", "\"13:51:00Z\"");
	DEBEZIUM(TK_KIND_TIMETZ, -1, "23:30:00.5-05", "\"04:30:00.5Z\"");
	DEBEZIUM(TK_KIND_TIMETZ, -1, "00:00:00+15:59:59", "\"08:00:01Z\"");
	DEBEZIUM(TK_KIND_TIMETZ, -1, "24:00:00+00", "\"24:00:00Z\"");
	DEBEZIUM(TK_KIND_TIMETZ, -1, "24:00:00-15:59", "\"15:59:00Z\"");

	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "1970-01-01 00:00:00", "0");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "2016-11-04 13:51:30.123456", "1478267490123456");
	DEBEZIUM(TK_KIND_TIMESTAMP, 3, "2016-11-04 13:51:30.123", "1478267490123");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "1969-12-31 23:59:59.999999", "-1");
	DEBEZIUM(TK_KIND_TIMESTAMP, 3, "1969-12-31 23:59:59.999", "-1");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "4714-11-24 00:00:00 BC", "-210866803200000000");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "infinity", "9223372036854775807");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "-infinity", "-9223372036854775808");
	DEBEZIUM(TK_KIND_TIMESTAMP, 0, "infinity", "9223372036825200000");
	DEBEZIUM(TK_KIND_TIMESTAMP, 3, "-infinity", "-9223372036832400000");

	/* The last of 64 bits, and beyond */
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "294247-01-10 04:00:54.775807", "9223372036854775807");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "294276-12-31 23:59:59", "9223372036854775807");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "294276-12-31 23:59:59.999999", "-9223372036853775810");
	DEBEZIUM(TK_KIND_TIMESTAMP, 3, "294276-12-31 23:59:59.999", "9224318015999999");

	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "2016-11-04 11:51:30.123456+00", "\"2016-11-04T11:51:30.123456Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "2016-11-04 11:51:30.5+00", "\"2016-11-04T11:51:30.500000Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "2016-11-04 11:51:30+00", "\"2016-11-04T11:51:30.000000Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, 3, "2016-11-04 11:51:30.5+00", "\"2016-11-04T11:51:30.500Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, 0, "2016-11-04 11:51:30+00", "\"2016-11-04T11:51:30Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "0044-03-15 10:00:00+00 BC", "\"-0043-03-15T10:00:00.000000Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "0001-01-01 00:00:00+00 BC", "\"0000-01-01T00:00:00.000000Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "294276-12-31 23:59:59.999999+00", "\"+294276-12-31T23:59:59.999999Z\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "infinity", "\"infinity\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "-infinity", "\"-infinity\"");

	/* Around the change of calendars, which PostgreSQL doesn't make */
	DEBEZIUM_ARRAY(TK_KIND_DATE, -1, "{1582-10-04,1582-10-05,1582-10-14,1582-10-15}", "[-141438,-141437,-141428,-141427]");
	DEBEZIUM_ARRAY(TK_KIND_TIMESTAMP, -1, "{\"1582-10-04 00:00:00\",\"1582-10-10 00:00:00\",\"1582-10-15 00:00:00\"}",
				   "[-12220243200000000,-12219724800000000,-12219292800000000]");

	/* A month has 30.4375 days: 2629800 s. */
	DEBEZIUM(TK_KIND_INTERVAL, -1, "PT0S", "0");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P1M", "2629800000000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P1Y2M-3DT4H5M6.789S", "36572706789000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "PT-0.5S", "-500000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P-1Y-2MT-1H-2M-3S", "-36820923000000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "PT1M", "60000000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P100000Y", "3155760000000000000");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P178000000Y", "9223372036854775807");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "infinity", "null");

	/* No such text is written; it must not be lost. */
	DEBEZIUM(TK_KIND_DATE, -1, "yesterday", "\"yesterday\"");
	DEBEZIUM(TK_KIND_TIMESTAMP, -1, "2016-11-04", "\"2016-11-04\"");
	DEBEZIUM(TK_KIND_TIMESTAMPTZ, -1, "2016-11-04 11:51:30+05:30", "\"2016-11-04T11:51:30+05:30\"");
	DEBEZIUM(TK_KIND_INTERVAL, -1, "P1X", "\"P1X\"");
	DEBEZIUM(TK_KIND_TIME, -1, "", "\"\"");
}

static void
debezium_other_scalars(void)
{
	TkType		text_array = {.kind = TK_KIND_ARRAY,.delimiter = ',',.element = &(TkType) {.kind = TK_KIND_TEXT}};

	DEBEZIUM(TK_KIND_BIT, 1, "1", "true");
	DEBEZIUM(TK_KIND_BIT, 1, "0", "false");
	DEBEZIUM(TK_KIND_BIT, 8, "00000101", "\"BQ==\"");
	DEBEZIUM(TK_KIND_BIT, 8, "00000000", "\"\"");
	DEBEZIUM(TK_KIND_BIT, 16, "0000000100000010", "\"AgE=\"");	/* 02 01 */
	DEBEZIUM(TK_KIND_BIT, 9, "100000000", "\"AAE=\"");	/* 00 01 */
	DEBEZIUM(TK_KIND_VARBIT, 1, "1", "true");
	DEBEZIUM(TK_KIND_VARBIT, 1, "", "null");
	DEBEZIUM(TK_KIND_VARBIT, -1, "", "\"\"");
	DEBEZIUM(TK_KIND_VARBIT, -1, "101", "\"BQ==\"");
	DEBEZIUM_ARRAY(TK_KIND_BIT, 1, "{1,0}", "null");

	DEBEZIUM(TK_KIND_POINT, -1, "(1,-0.5)",
			 "{\"x\":1.0,\"y\":-0.5,\"wkb\":\"AQEAAAAAAAAAAADwPwAAAAAAAOC/\",\"srid\":null}");
	DEBEZIUM(TK_KIND_POINT, -1, "(1", "\"(1\"");

	/* PostGIS: POINT(1 2), without and with SRID 4326, little- and big-endian */
	DEBEZIUM(TK_KIND_GEOMETRY, -1, "0101000000000000000000F03F0000000000000040",
			 "{\"wkb\":\"AQEAAAAAAAAAAADwPwAAAAAAAABA\",\"srid\":null,\"extensions\":null}");
	DEBEZIUM(TK_KIND_GEOGRAPHY, -1, "0101000020E6100000000000000000F03F0000000000000040",
			 "{\"wkb\":\"AQEAACDmEAAAAAAAAAAA8D8AAAAAAAAAQA==\",\"srid\":4326}");
	DEBEZIUM(TK_KIND_GEOMETRY, -1, "0020000001000010E63FF00000000000004000000000000000",
			 "{\"wkb\":\"ACAAAAEAABDmP/AAAAAAAABAAAAAAAAAAA==\",\"srid\":4326,\"extensions\":null}");
	DEBEZIUM(TK_KIND_GEOMETRY, -1, "0101000000000000000000F03X0000000000000040",
			 "\"0101000000000000000000F03X0000000000000040\"");
	DEBEZIUM(TK_KIND_GEOMETRY, -1, "0101", "\"0101\"");

	/* As the real one wrote them */
	DEBEZIUM(TK_KIND_BOX, -1, "(1,2),(0,0)",
			 "{\"wkb\":\"AQMAAAABAAAABQAAAAAAAAAAAPA/AAAAAAAAAEAAAAAAAADwPwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
			 "AAAAAAAAAEAAAAAAAADwPwAAAAAAAABA\",\"srid\":null,\"extensions\":{\"type\":\"box\"}}");
	DEBEZIUM(TK_KIND_LINE, -1, "{1,2,3}", "{\"a\":1.0,\"b\":2.0,\"c\":3.0}");
	DEBEZIUM(TK_KIND_LSEG, -1, "[(1,2),(0,0)]",
			 "{\"wkb\":\"AQIAAAACAAAAAAAAAAAA8D8AAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA=\",\"srid\":null,"
			 "\"extensions\":{\"type\":\"lseg\"}}");
	DEBEZIUM(TK_KIND_PATH, -1, "[(1,2),(0,0)]",
			 "{\"wkb\":\"AQIAAAACAAAAAAAAAAAA8D8AAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA=\",\"srid\":null,"
			 "\"extensions\":{\"type\":\"path\",\"closed\":\"false\"}}");
	DEBEZIUM(TK_KIND_PATH, -1, "((1,2),(0,0))",
			 "{\"wkb\":\"AQIAAAACAAAAAAAAAAAA8D8AAAAAAAAAQAAAAAAAAAAAAAAAAAAAAAA=\",\"srid\":null,"
			 "\"extensions\":{\"type\":\"path\",\"closed\":\"true\"}}");
	DEBEZIUM(TK_KIND_POLYGON, -1, "((1,2),(0,0))",
			 "{\"wkb\":\"AQMAAAABAAAAAwAAAAAAAAAAAPA/AAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA8D8AAAAAAAAAQA==\","
			 "\"srid\":null,\"extensions\":{\"type\":\"polygon\"}}");
	DEBEZIUM(TK_KIND_CIRCLE, -1, "<(1,2),3>",
			 "{\"center\":{\"x\":1.0,\"y\":2.0,\"wkb\":\"AQEAAAAAAAAAAADwPwAAAAAAAABA\",\"srid\":null},\"radius\":3.0}");

	/* A ring of one point is not closed, one that ends where it begins is already. */
	DEBEZIUM(TK_KIND_POLYGON, -1, "((1,2))",
			 "{\"wkb\":\"AQMAAAABAAAAAQAAAAAAAAAAAPA/AAAAAAAAAEA=\",\"srid\":null,\"extensions\":{\"type\":\"polygon\"}}");
	DEBEZIUM(TK_KIND_POLYGON, -1, "((1,2),(1,2))",
			 "{\"wkb\":\"AQMAAAABAAAAAgAAAAAAAAAAAPA/AAAAAAAAAEAAAAAAAADwPwAAAAAAAABA\",\"srid\":null,"
			 "\"extensions\":{\"type\":\"polygon\"}}");
	DEBEZIUM(TK_KIND_BOX, -1, "(1,2),(0,0),3", "\"(1,2),(0,0),3\"");
	DEBEZIUM(TK_KIND_LSEG, -1, "[]", "\"[]\"");
	DEBEZIUM(TK_KIND_CIRCLE, -1, "", "\"\"");

	/* pgvector */
	DEBEZIUM(TK_KIND_VECTOR, -1, "[1,-2.5,1e+10]", "[1.0,-2.5,1.0E10]");
	DEBEZIUM(TK_KIND_HALFVEC, -1, "[0.1]", "[0.1]");
	DEBEZIUM(TK_KIND_VECTOR, -1, "[]", "[]");
	DEBEZIUM(TK_KIND_VECTOR, -1, "[1,x]", "\"[1,x]\"");
	DEBEZIUM(TK_KIND_VECTOR, -1, "[", "\"[\"");
	DEBEZIUM(TK_KIND_VECTOR, -1, "", "\"\"");

	/* As Java's Jackson writes strings */
	DEBEZIUM(TK_KIND_TEXT, -1, "a\"\x1F\n", "\"a\\\"\\u001F\\n\"");
	DEBEZIUM(TK_KIND_TEXT, -1, "\xC3\xA9 \xEF\xBF\xBF", "\"\xC3\xA9 \xEF\xBF\xBF\"");
	DEBEZIUM(TK_KIND_TEXT, -1, "\xF0\x90\x80\x80 \xF0\x9F\x90\x98 \xF4\x8F\xBF\xBF",
			 "\"\\uD800\\uDC00 \\uD83D\\uDC18 \\uDBFF\\uDFFF\"");
	DEBEZIUM_ARRAY(TK_KIND_TEXT, -1, "{\xF0\x9F\x90\x98}", "[\"\\uD83D\\uDC18\"]");
	DEBEZIUM(TK_KIND_BYTEA, -1, "\\x00ff", "\"AP8=\"");
	DEBEZIUM(TK_KIND_JSON, -1, "{\"a\": null}", "\"{\\\"a\\\": null}\"");

	DEBEZIUM_ARRAY(TK_KIND_INTEGER, -1, "{1,NULL,3}", "[1,null,3]");
	DEBEZIUM_ARRAY(TK_KIND_DATE, -1, "{1970-01-02,infinity,-infinity}", "[1,-622191234,-625821272]");
	DEBEZIUM_ARRAY(TK_KIND_NUMERIC, -1, "{1,NaN}", "null");
	DEBEZIUM_ARRAY(TK_KIND_NUMERIC, NUMERIC(6, 2), "{-Infinity,NULL}", "null");
	DEBEZIUM_ARRAY(TK_KIND_TIME, -1, "{13:51:30.123456}", "[49890123000]");
	DEBEZIUM_ARRAY(TK_KIND_TIME, 3, "{13:51:30.123}", "[49890123]");
	DEBEZIUM_ARRAY(TK_KIND_TIMESTAMP, -1, "{\"1970-01-01 00:00:01\"}", "[1000000]");

	/* One dimension only */
	DEBEZIUM_ARRAY(TK_KIND_INTEGER, -1, "{{1,2},{3,4}}", "[null,null]");
	DEBEZIUM_ARRAY(TK_KIND_TEXT, -1, "{{a,\"}\"},{\"\\\"{\",b}}", "[null,null]");
	DEBEZIUM_ARRAY(TK_KIND_INTEGER, -1, "[0:0][1:1]={{1}}", "[null]");
	check_value(&text_array, "{{a}", strlen("{{a}"), TK_STYLE_DEBEZIUM, "\"{{a}\"", __LINE__);
}

static void
any_bytes_become_json(unsigned seed)
{
	static const char syntax[] = "{}()\",\\[]=>:NUL0123456789.-+eEPTS xtf";
	static const TkKind kinds[] = {
		TK_KIND_TEXT, TK_KIND_BOOL, TK_KIND_INTEGER, TK_KIND_FLOAT, TK_KIND_NUMERIC, TK_KIND_MONEY,
		TK_KIND_BYTEA, TK_KIND_JSON, TK_KIND_DATE, TK_KIND_TIME, TK_KIND_TIMETZ, TK_KIND_TIMESTAMP,
		TK_KIND_TIMESTAMPTZ, TK_KIND_INTERVAL, TK_KIND_REAL, TK_KIND_BIT, TK_KIND_VARBIT, TK_KIND_POINT, TK_KIND_HSTORE,
		TK_KIND_GEOMETRY, TK_KIND_VECTOR, TK_KIND_BOX, TK_KIND_PATH, TK_KIND_POLYGON, TK_KIND_LINE, TK_KIND_CIRCLE
	};
	static const char first[] = "{(\"P";
	TkBuffer	out = {0};
	int			bad = 0;

	random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
	for (int round = 0; round < FUZZ_ROUNDS; round++)
	{
		size_t		len = random_u32() % FUZZ_LENGTH;
		char	   *text = malloc(len > 0 ? len : 1);
		TkType		element = {.kind = kinds[random_u32() % (sizeof(kinds) / sizeof(kinds[0]))]};
		TkType		array = {.kind = TK_KIND_ARRAY,.typmod = -1,.delimiter = ',',.element = &element};
		TkAttribute parts[2] = {{"a", element}, {"b", array}};
		TkType		composite = {.kind = TK_KIND_COMPOSITE,.nattributes = random_u32() % 3,.attributes = parts};
		int			style = random_u32() % 2 == 0 ? 0 : TK_STYLE_DEBEZIUM;
		TkValue		value = {TK_VALUE_TEXT, (uint32_t) len, text};
		bool		wild = random_u32() % 2 == 0;

		/*
		 * Half of them of any bytes, half of the bytes that mean something in an array.
		 */
		for (size_t i = 0; i < len; i++)
			text[i] = (char) (wild ? random_u32() : (unsigned char) syntax[random_u32() % (sizeof(syntax) - 1)]);
		if (len > 0 && random_u32() % 2 == 0)
			text[0] = first[random_u32() % (sizeof(first) - 1)];
		element.typmod = (int) (random_u32() % 8) - 1;

		out.len = 0;
		tk_json_string(&out, text, len);
		bad += !is_json(out.data, out.len);
		out.len = 0;
		tk_json_value(&out, &element, &value, style);
		bad += !is_json(out.data, out.len);
		out.len = 0;
		tk_json_value(&out, &array, &value, style);
		bad += !is_json(out.data, out.len);
		out.len = 0;
		tk_json_value(&out, &composite, &value, 0);
		bad += !is_json(out.data, out.len);
		free(text);
	}
	CHECK_INT(bad, 0);
	tk_buffer_free(&out);
}

/* array_out's rules of quoting, the other way: what goes in comes out as an array of those strings. */
static void
any_array_of_strings_comes_back(unsigned seed)
{
	TkType		element = {.kind = TK_KIND_TEXT};
	TkType		array = {.kind = TK_KIND_ARRAY,.typmod = -1,.delimiter = ',',.element = &element};
	TkBuffer	in = {0};
	TkBuffer	out = {0};
	TkBuffer	expected = {0};
	int			bad = 0;

	random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 3;
	for (int round = 0; round < FUZZ_ROUNDS; round++)
	{
		int			n = 1 + (int) (random_u32() % 4);
		TkValue		value = {TK_VALUE_TEXT, 0, NULL};

		in.len = expected.len = out.len = 0;
		tk_buffer_char(&in, '{');
		tk_buffer_char(&expected, '[');
		for (int i = 0; i < n; i++)
		{
			char		text[16];
			size_t		len = random_u32() % sizeof(text);

			if (i > 0)
			{
				tk_buffer_char(&in, ',');
				tk_buffer_char(&expected, ',');
			}
			tk_buffer_char(&in, '"');
			for (size_t c = 0; c < len; c++)
			{
				text[c] = (char) random_u32();
				if (text[c] == '"' || text[c] == '\\')
					tk_buffer_char(&in, '\\');
				tk_buffer_char(&in, text[c]);
			}
			tk_buffer_char(&in, '"');
			tk_json_string(&expected, text, len);
		}
		tk_buffer_char(&in, '}');
		tk_buffer_char(&expected, ']');

		value.data = in.data;
		value.len = (uint32_t) in.len;
		tk_json_value(&out, &array, &value, 0);
		bad += out.len != expected.len || memcmp(out.data, expected.data, out.len) != 0;
	}
	CHECK_INT(bad, 0);
	tk_buffer_free(&in);
	tk_buffer_free(&out);
	tk_buffer_free(&expected);
}

/*
 * Records.  The table: (id int primary key, q int not null, d text, j jsonb)
 */
static TkColumn columns[] = {
	{.name = "id",.type = {.kind = TK_KIND_INTEGER},.identity = true,.not_null = true},
	{.name = "q",.type = {.kind = TK_KIND_INTEGER},.not_null = true},
	{.name = "d",.type = {.kind = TK_KIND_TEXT}},
	{.name = "j",.type = {.kind = TK_KIND_JSON}}
};
static const int first_column[] = {0};
static TkRelation orders;
static TkEncodeOptions options;
static TkTransaction transaction;
static TkBuffer out;
static TkRecord records[TK_MAX_RECORDS];

#define T(s) {TK_VALUE_TEXT, sizeof(s) - 1, (s)}
#define NIL {TK_VALUE_NULL, 0, NULL}
#define SAME {TK_VALUE_UNCHANGED, 0, NULL}

static const TkRelation the_orders = {
	.relid = 16384,
	.schema = "public",
	.table = "orders",
	.replica_identity = 'd',
	.ncolumns = 4,
	.columns = columns,
	.nkeys = 1,
	.keys = first_column,
	.topic = "shop.public.orders"
};
static const TkEncodeOptions the_options = {
	.pipeline = "shop",
	.database = "db",
	.version = "1.0",
	.tombstones = true
};
static const TkTransaction the_transaction = {
	.xid = 731,
	.commit_lsn = 300,
	.previous_commit_lsn = 100,
	.commit_us = INT64_C(1478260290123456),
	.processing_us = INT64_C(1478260290987654)
};

static void
start(void)
{
	orders = the_orders;
	options = the_options;
	transaction = the_transaction;
}

static int
encode(const TkEncoder *encoder, TkOperation operation, char old_kind, const TkValue *old, const TkValue *new)
{
	TkChange	change = {
		.operation = operation,
		.relation = &orders,
		.old_kind = old_kind,
		.old = old,
		.new = new,
		.lsn = 200
	};
	void	   *plan = encoder->plan(&options, &orders);
	int			n;

	out.len = 0;
	memset(records, 0xEE, sizeof(records));
	n = encoder->encode(&options, plan, &transaction, &change, &out, records);
	encoder->free_plan(plan);
	if (out.failed)
		printf("out of memory\n");
	return n;
}

static void
check_span(TkSpan span, const char *expected, bool json, const char *file, int line, const char *what)
{
	if (tk_span_is_null(span))
		unit_check_bytes(NULL, 0, expected, expected ? strlen(expected) : 0, file, line, what);
	else
	{
		unit_check_bytes(out.data + span.at, span.len, expected, expected ? strlen(expected) : 0, file, line, what);
		if (json)
			unit_check(is_json(out.data + span.at, span.len), file, line, what);
	}
}

#define KEY(i, expected) check_span(records[i].key, (expected), true, __FILE__, __LINE__, "key")
#define CONTENT(i, expected) check_span(records[i].value, (expected), true, __FILE__, __LINE__, "value")

/* Headers as one text, "name=value name=value" */
static void
check_headers(const TkRecord *record, const char *expected, int line)
{
	char		text[1000] = "";
	size_t		len = 0;

	for (int i = 0; i < record->nheaders; i++)
	{
		const TkHeader *h = &record->headers[i];

		len += (size_t) snprintf(text + len, sizeof(text) - len, "%s%s=%.*s", i > 0 ? " " : "", h->name,
								 (int) h->value.len, out.data + h->value.at);
	}
	unit_check_str(text, expected, __FILE__, line, "headers");
}

#define HEADERS(i, expected) check_headers(&records[i], (expected), __LINE__)

/* What lies between the row images and the operation, and behind it, for the transaction of start() */
#define SOURCE \
	"\"source\":{\"version\":\"1.0\",\"connector\":\"postgresql\",\"name\":\"shop\",\"ts_ms\":1478260290123," \
	"\"snapshot\":\"false\",\"db\":\"db\",\"sequence\":\"[\\\"100\\\",\\\"200\\\"]\"," \
	"\"ts_us\":1478260290123456,\"ts_ns\":1478260290123456000,\"schema\":\"public\",\"table\":\"orders\"," \
	"\"txId\":731,\"lsn\":200,\"xmin\":null,\"origin\":null,\"origin_lsn\":null}"
#define TIMES \
	"\"ts_ms\":1478260290987,\"ts_us\":1478260290987654,\"ts_ns\":1478260290987654000}"
#define EVENT(before, after, op) \
	"{\"before\":" before ",\"after\":" after "," SOURCE ",\"transaction\":null,\"op\":\"" op "\"," TIMES

static const TkValue row1[] = {T("1"), T("5"), T("x\"y"), T("{\"a\": 1}")};
static const TkValue row1_q6[] = {T("1"), T("6"), NIL, NIL};
static const TkValue row2[] = {T("2"), T("5"), NIL, T("null")};
static const TkValue key1[] = {T("1"), NIL, NIL, NIL};

static void
envelopes_are_found_by_name(void)
{
	CHECK(tk_encoder_find("debezium") == &tk_encoder_debezium);
	CHECK(tk_encoder_find("plain") == &tk_encoder_plain);
	CHECK(tk_encoder_find("Plain") == NULL);
	CHECK(tk_encoder_find("") == NULL);
	CHECK(!tk_encoder_debezium.metadata_headers);
	CHECK(tk_encoder_plain.metadata_headers);
}

static void
debezium_insert_update_delete(void)
{
	start();
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, row1), 1);
	KEY(0, "{\"id\":1}");
	CONTENT(0, EVENT("null", "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}", "c"));
	HEADERS(0, "");

	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 0, NULL, row1_q6), 1);
	KEY(0, "{\"id\":1}");
	CONTENT(0, EVENT("null", "{\"id\":1,\"q\":6,\"d\":null,\"j\":null}", "u"));

	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'K', key1, NULL), 2);
	KEY(0, "{\"id\":1}");
	CONTENT(0, EVENT("{\"id\":1}", "null", "d"));
	KEY(1, "{\"id\":1}");
	CONTENT(1, NULL);
	CHECK_INT(transaction.sequence, 4);
	CHECK_INT(transaction.total_order, 3);
	CHECK_INT(orders.order, 3);

	options.tombstones = false;
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'K', key1, NULL), 1);
	CONTENT(0, EVENT("{\"id\":1}", "null", "d"));
}

static void
debezium_full_identity_gives_the_whole_old_row(void)
{
	static const TkValue from_null[] = {T("1"), NIL, T("x"), NIL};
	static const TkValue to_42[] = {T("1"), T("42"), T("x"), NIL};

	start();
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', from_null, to_42), 1);
	CONTENT(0, EVENT("{\"id\":1,\"q\":null,\"d\":\"x\",\"j\":null}",
					 "{\"id\":1,\"q\":42,\"d\":\"x\",\"j\":null}", "u"));

	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'O', to_42, NULL), 2);
	KEY(0, "{\"id\":1}");
	CONTENT(0, EVENT("{\"id\":1,\"q\":42,\"d\":\"x\",\"j\":null}", "null", "d"));
}

static void
debezium_key_change_is_a_delete_and_a_create(void)
{
	static const TkValue no_id[] = {NIL, T("5"), NIL, NIL};

	start();
	options.metadata_headers = true;
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'K', key1, row2), 3);
	KEY(0, "{\"id\":1}");
	CONTENT(0, EVENT("{\"id\":1}", "null", "d"));
	HEADERS(0, "pg.op=d pg.xid=731 pg.lsn=300 pg.seq=1 pg.ts=1478260290123456 __debezium.newkey={\"id\":2}");
	KEY(1, "{\"id\":1}");
	CONTENT(1, NULL);
	HEADERS(1, "pg.op=d pg.xid=731 pg.lsn=300 pg.seq=2 pg.ts=1478260290123456 __debezium.newkey={\"id\":2}");
	KEY(2, "{\"id\":2}");
	CONTENT(2, EVENT("null", "{\"id\":2,\"q\":5,\"d\":null,\"j\":\"null\"}", "c"));
	HEADERS(2, "pg.op=c pg.xid=731 pg.lsn=300 pg.seq=3 pg.ts=1478260290123456 __debezium.oldkey={\"id\":1}");
	CHECK_INT(transaction.total_order, 2);

	options.metadata_headers = false;
	options.tombstones = false;
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', row1, row2), 2);
	KEY(0, "{\"id\":1}");
	HEADERS(0, "__debezium.newkey={\"id\":2}");
	KEY(1, "{\"id\":2}");
	HEADERS(1, "__debezium.oldkey={\"id\":1}");

	/* A key column of a FULL identity may be null. */
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', no_id, row1), 2);
	KEY(0, "{\"id\":null}");
	KEY(1, "{\"id\":1}");

	/* An old tuple alone is no key change. */
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', row1, row1_q6), 1);
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'K', key1, row1), 1);
	CONTENT(0, EVENT("{\"id\":1}", "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}", "u"));
}

static void
debezium_truncate_has_no_key(void)
{
	start();
	CHECK_INT(encode(&tk_encoder_debezium, TK_TRUNCATE, 0, NULL, NULL), 1);
	KEY(0, NULL);
	CONTENT(0, EVENT("null", "null", "t"));
}

static void
debezium_source_at_the_edges(void)
{
	start();
	transaction.previous_commit_lsn = 0;
	transaction.commit_us = 0;
	transaction.processing_us = -1;
	options.database = "d\"b";
	CHECK_INT(encode(&tk_encoder_debezium, TK_TRUNCATE, 0, NULL, NULL), 1);
	CONTENT(0, "{\"before\":null,\"after\":null,\"source\":{\"version\":\"1.0\",\"connector\":\"postgresql\","
			"\"name\":\"shop\",\"ts_ms\":0,\"snapshot\":\"false\",\"db\":\"d\\\"b\","
			"\"sequence\":\"[null,\\\"200\\\"]\",\"ts_us\":0,\"ts_ns\":0,\"schema\":\"public\","
			"\"table\":\"orders\",\"txId\":731,\"lsn\":200,\"xmin\":null,\"origin\":null,\"origin_lsn\":null},"
			"\"transaction\":null,\"op\":\"t\",\"ts_ms\":-1,\"ts_us\":-1,\"ts_ns\":-1000}");
}

static void
debezium_times_round_down_to_milliseconds(void)
{
	static const struct
	{
		int64_t		us;
		const char *expected;
	}			times[] =
	{
		{999, "\"ts_ms\":0,\"ts_us\":999,\"ts_ns\":999000}"},
		{1000, "\"ts_ms\":1,\"ts_us\":1000,\"ts_ns\":1000000}"},
		{-1000, "\"ts_ms\":-1,\"ts_us\":-1000,\"ts_ns\":-1000000}"},
		{-1001, "\"ts_ms\":-2,\"ts_us\":-1001,\"ts_ns\":-1001000}"},
		{INT64_C(9223372036854775807), "\"ts_ms\":9223372036854775,\"ts_us\":9223372036854775807,"
		"\"ts_ns\":9223372036854775807000}"}
	};

	start();
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
	{
		size_t		len = strlen(times[i].expected);

		transaction.processing_us = times[i].us;
		CHECK_INT(encode(&tk_encoder_debezium, TK_TRUNCATE, 0, NULL, NULL), 1);
		CHECK_BYTES(out.data + records[0].value.at + records[0].value.len - len, len, times[i].expected, len);
	}
}

static void
debezium_unchanged_toast_is_said_so_or_taken_from_the_old_row(void)
{
	static const TkValue toasted[] = {T("1"), T("2"), SAME, SAME};
	static const TkValue old_full[] = {T("1"), T("1"), T("long"), NIL};

	start();
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 0, NULL, toasted), 1);
	CONTENT(0, EVENT("null", "{\"id\":1,\"q\":2,\"d\":\"__debezium_unavailable_value\","
					 "\"j\":\"__debezium_unavailable_value\"}", "u"));
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', old_full, toasted), 1);
	CONTENT(0, EVENT("{\"id\":1,\"q\":1,\"d\":\"long\",\"j\":null}",
					 "{\"id\":1,\"q\":2,\"d\":\"long\",\"j\":null}", "u"));

	/* Null in an old tuple of kind K means "not logged", never null. */
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'K', key1, toasted), 1);
	CONTENT(0, EVENT("{\"id\":1}", "{\"id\":1,\"q\":2,\"d\":\"__debezium_unavailable_value\","
					 "\"j\":\"__debezium_unavailable_value\"}", "u"));
}

static void
debezium_transaction_metadata(void)
{
	TkRelation	other = {0};
	TkRelation *collections[2];
	TkRecord	record;

	start();
	options.transaction_metadata = true;

	/* Counts of an earlier transaction don't go on. */
	orders.order_in = 99;
	orders.order = 7;
	other.schema = "a\"b";
	other.table = "it\\ems";
	other.order_in = 300;
	other.order = 2;
	transaction.total_order = 2;
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'K', key1, NULL), 2);
	CONTENT(0, "{\"before\":{\"id\":1},\"after\":null," SOURCE
			",\"transaction\":{\"id\":\"731:300\",\"total_order\":3,\"data_collection_order\":1},\"op\":\"d\"," TIMES);

	/* A changed key is two events. */
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'K', key1, row2), 3);
	CONTENT(0, "{\"before\":{\"id\":1},\"after\":null," SOURCE
			",\"transaction\":{\"id\":\"731:300\",\"total_order\":4,\"data_collection_order\":2},\"op\":\"d\"," TIMES);
	CONTENT(2, "{\"before\":null,\"after\":{\"id\":2,\"q\":5,\"d\":null,\"j\":\"null\"}," SOURCE
			",\"transaction\":{\"id\":\"731:300\",\"total_order\":5,\"data_collection_order\":3},\"op\":\"c\"," TIMES);

	collections[0] = &orders;
	collections[1] = &other;
	out.len = 0;
	tk_encode_transaction(&options, &transaction, false, NULL, 0, &out, &record);
	records[0] = record;
	KEY(0, "{\"id\":\"731:300\"}");
	CONTENT(0, "{\"status\":\"BEGIN\",\"id\":\"731:300\",\"event_count\":null,\"data_collections\":null,"
			"\"ts_ms\":1478260290123}");
	HEADERS(0, "");

	tk_encode_transaction(&options, &transaction, true, collections, 2, &out, &record);
	records[0] = record;
	KEY(0, "{\"id\":\"731:300\"}");
	CONTENT(0, "{\"status\":\"END\",\"id\":\"731:300\",\"event_count\":5,\"data_collections\":["
			"{\"data_collection\":\"public.orders\",\"event_count\":3},"
			"{\"data_collection\":\"a\\\"b.it\\\\ems\",\"event_count\":2}],\"ts_ms\":1478260290123}");
	tk_encode_transaction(&options, &transaction, true, NULL, 0, &out, &record);
	records[0] = record;
	CONTENT(0, "{\"status\":\"END\",\"id\":\"731:300\",\"event_count\":5,\"data_collections\":[],"
			"\"ts_ms\":1478260290123}");
}

static void
debezium_without_a_key(void)
{
	start();
	orders.nkeys = 0;
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, row1), 1);
	KEY(0, NULL);
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'O', row1, row2), 1);
	KEY(0, NULL);
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'O', row1, NULL), 1);
	KEY(0, NULL);
}

static void
plain_insert_update_delete(void)
{
	start();
	options.metadata_headers = true;
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row1), 1);
	KEY(0, "{\"id\":1}");
	CONTENT(0, "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":{\"a\": 1}}");
	HEADERS(0, "pg.op=c pg.xid=731 pg.lsn=300 pg.seq=1 pg.ts=1478260290123456");

	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 0, NULL, row1_q6), 1);
	KEY(0, "{\"id\":1}");
	CONTENT(0, "{\"id\":1,\"q\":6,\"d\":null,\"j\":null}");
	HEADERS(0, "pg.op=u pg.xid=731 pg.lsn=300 pg.seq=2 pg.ts=1478260290123456");

	CHECK_INT(encode(&tk_encoder_plain, TK_DELETE, 'K', key1, NULL), 1);
	KEY(0, "{\"id\":1}");
	CONTENT(0, NULL);
	HEADERS(0, "pg.op=d pg.xid=731 pg.lsn=300 pg.seq=3 pg.ts=1478260290123456");
	CHECK_INT(transaction.total_order, 3);

	options.metadata_headers = false;
	options.json = TK_JSON_STRING;
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row1), 1);
	CONTENT(0, "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}");
	HEADERS(0, "");
	options.json = TK_JSON_INLINE;
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, row1), 1);
	CONTENT(0, EVENT("null", "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":{\"a\": 1}}", "c"));
}

static void
plain_key_change_is_a_tombstone_and_the_row(void)
{
	start();
	options.metadata_headers = true;
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'K', key1, row2), 2);
	KEY(0, "{\"id\":1}");
	CONTENT(0, NULL);
	HEADERS(0, "pg.op=d pg.xid=731 pg.lsn=300 pg.seq=1 pg.ts=1478260290123456");
	KEY(1, "{\"id\":2}");
	CONTENT(1, "{\"id\":2,\"q\":5,\"d\":null,\"j\":null}");
	HEADERS(1, "pg.op=c pg.xid=731 pg.lsn=300 pg.seq=2 pg.ts=1478260290123456 pg.json_null=[\"j\"]");
}

static void
plain_records_without_key_and_value_say_what_they_are(void)
{
	start();
	CHECK_INT(encode(&tk_encoder_plain, TK_TRUNCATE, 0, NULL, NULL), 1);
	KEY(0, NULL);
	CONTENT(0, NULL);
	HEADERS(0, "pg.op=t");
	options.metadata_headers = true;
	CHECK_INT(encode(&tk_encoder_plain, TK_TRUNCATE, 0, NULL, NULL), 1);
	HEADERS(0, "pg.op=t pg.xid=731 pg.lsn=300 pg.seq=2 pg.ts=1478260290123456");

	options.metadata_headers = false;
	orders.nkeys = 0;
	CHECK_INT(encode(&tk_encoder_plain, TK_DELETE, 'O', row1, NULL), 1);
	KEY(0, NULL);
	CONTENT(0, NULL);
	HEADERS(0, "pg.op=d");
}

static void
plain_unchanged_toast_is_left_out_and_named(void)
{
	static const TkValue toasted[] = {T("1"), T("2"), SAME, SAME};
	static const TkValue only_j[] = {T("1"), T("2"), NIL, SAME};
	static const TkValue old_full[] = {T("1"), T("1"), T("long"), T("[1]")};

	start();
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 0, NULL, toasted), 1);
	CONTENT(0, "{\"id\":1,\"q\":2}");
	HEADERS(0, "pg.unavailable=[\"d\",\"j\"]");
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 0, NULL, only_j), 1);
	CONTENT(0, "{\"id\":1,\"q\":2,\"d\":null}");
	HEADERS(0, "pg.unavailable=[\"j\"]");
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'O', old_full, toasted), 1);
	CONTENT(0, "{\"id\":1,\"q\":2,\"d\":\"long\",\"j\":[1]}");
	HEADERS(0, "");

	options.metadata_headers = true;
	transaction.sequence = 0;
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'K', key1, only_j), 1);
	HEADERS(0, "pg.op=u pg.xid=731 pg.lsn=300 pg.seq=1 pg.ts=1478260290123456 pg.unavailable=[\"j\"]");
}

/* What is the same in the schema of every envelope */
#define SOURCE_SCHEMA \
	"{\"type\":\"struct\",\"fields\":[{\"type\":\"string\",\"optional\":false,\"field\":\"version\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"connector\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"name\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"ts_ms\"}," \
	"{\"type\":\"string\",\"optional\":true,\"name\":\"io.debezium.data.Enum\",\"version\":1," \
	"\"parameters\":{\"allowed\":\"true,first,first_in_data_collection,last_in_data_collection,last,false,incremental\"}," \
	"\"default\":\"false\",\"field\":\"snapshot\"},{\"type\":\"string\",\"optional\":false,\"field\":\"db\"}," \
	"{\"type\":\"string\",\"optional\":true,\"field\":\"sequence\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_us\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ns\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"schema\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"table\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"txId\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"lsn\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"xmin\"}," \
	"{\"type\":\"string\",\"optional\":true,\"field\":\"origin\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"origin_lsn\"}],\"optional\":false," \
	"\"name\":\"io.debezium.connector.postgresql.Source\",\"version\":1,\"field\":\"source\"}"
#define ENVELOPE_SCHEMA(before, after) \
	"{\"schema\":{\"type\":\"struct\",\"fields\":[{\"type\":\"struct\",\"fields\":[" before "]," \
	"\"optional\":true,\"name\":\"shop.public.orders.Value\",\"field\":\"before\"}," \
	"{\"type\":\"struct\",\"fields\":[" after "]," \
	"\"optional\":true,\"name\":\"shop.public.orders.Value\",\"field\":\"after\"}," SOURCE_SCHEMA "," \
	"{\"type\":\"struct\",\"fields\":[{\"type\":\"string\",\"optional\":false,\"field\":\"id\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"total_order\"}," \
	"{\"type\":\"int64\",\"optional\":false,\"field\":\"data_collection_order\"}],\"optional\":true," \
	"\"name\":\"event.block\",\"version\":1,\"field\":\"transaction\"}," \
	"{\"type\":\"string\",\"optional\":false,\"field\":\"op\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ms\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_us\"}," \
	"{\"type\":\"int64\",\"optional\":true,\"field\":\"ts_ns\"}],\"optional\":false," \
	"\"name\":\"shop.public.orders.Envelope\",\"version\":2},\"payload\":"
#define FIELD(type, optional, rest, name) \
	"{\"type\":\"" type "\",\"optional\":" optional rest ",\"field\":\"" name "\"}"
#define NAMED(name) ",\"name\":\"" name "\",\"version\":1"
#define KEY_SCHEMA \
	"{\"schema\":{\"type\":\"struct\",\"fields\":[" FIELD("int32", "false", "", "id") "],\"optional\":false," \
	"\"name\":\"shop.public.orders.Key\"},\"payload\":"

static void
schemas_wrap_key_and_value(void)
{
	TkRecord	record;

	start();
	options.schemas = true;
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, row1), 1);
	KEY(0, KEY_SCHEMA "{\"id\":1}}");

	/* Of an old tuple that isn't whole, what isn't logged can't be required. */
	CONTENT(0, ENVELOPE_SCHEMA(FIELD("int32", "false", "", "id") "," FIELD("int32", "true", "", "q") ","
							   FIELD("string", "true", "", "d") ","
							   FIELD("string", "true", NAMED("io.debezium.data.Json"), "j"),
							   FIELD("int32", "false", "", "id") "," FIELD("int32", "false", "", "q") ","
							   FIELD("string", "true", "", "d") ","
							   FIELD("string", "true", NAMED("io.debezium.data.Json"), "j"))
			EVENT("null", "{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}", "c") "}");

	orders.replica_identity = 'f';
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'O', row1, NULL), 2);
	KEY(0, KEY_SCHEMA "{\"id\":1}}");
	CONTENT(0, ENVELOPE_SCHEMA(FIELD("int32", "false", "", "id") "," FIELD("int32", "false", "", "q") ","
							   FIELD("string", "true", "", "d") ","
							   FIELD("string", "true", NAMED("io.debezium.data.Json"), "j"),
							   FIELD("int32", "false", "", "id") "," FIELD("int32", "false", "", "q") ","
							   FIELD("string", "true", "", "d") ","
							   FIELD("string", "true", NAMED("io.debezium.data.Json"), "j"))
			EVENT("{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}", "null", "d") "}");
	KEY(1, KEY_SCHEMA "{\"id\":1}}");
	CONTENT(1, NULL);

	/* No key, nothing to wrap */
	orders.nkeys = 0;
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'O', row1, NULL), 1);
	KEY(0, NULL);

	/* plain: what an UPDATE may leave out can't be required. */
	start();
	options.schemas = true;
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row1), 1);
	KEY(0, KEY_SCHEMA "{\"id\":1}}");
	CONTENT(0, "{\"schema\":{\"type\":\"struct\",\"fields\":[" FIELD("int32", "false", "", "id") ","
			FIELD("int32", "true", "", "q") "," FIELD("string", "true", "", "d") ","
			FIELD("string", "true", NAMED("io.debezium.data.Json"), "j") "],\"optional\":false,"
			"\"name\":\"shop.public.orders.Value\"},\"payload\":"
			"{\"id\":1,\"q\":5,\"d\":\"x\\\"y\",\"j\":\"{\\\"a\\\": 1}\"}}");
	CHECK_INT(encode(&tk_encoder_plain, TK_DELETE, 'K', key1, NULL), 1);
	KEY(0, KEY_SCHEMA "{\"id\":1}}");
	CONTENT(0, NULL);

	out.len = 0;
	tk_encode_transaction(&options, &transaction, false, NULL, 0, &out, &record);
	records[0] = record;
	KEY(0, "{\"schema\":{\"type\":\"struct\",\"fields\":[" FIELD("string", "false", "", "id") "],\"optional\":false,"
		"\"name\":\"io.debezium.connector.common.TransactionMetadataKey\",\"version\":1},"
		"\"payload\":{\"id\":\"731:300\"}}");
	CONTENT(0, "{\"schema\":{\"type\":\"struct\",\"fields\":[" FIELD("string", "false", "", "status") ","
			FIELD("string", "false", "", "id") "," FIELD("int64", "true", "", "event_count") ","
			"{\"type\":\"array\",\"items\":{\"type\":\"struct\",\"fields\":["
			FIELD("string", "false", "", "data_collection") "," FIELD("int64", "false", "", "event_count") "],"
			"\"optional\":true,\"name\":\"event.collection\",\"version\":1},\"optional\":true,"
			"\"field\":\"data_collections\"}," FIELD("int64", "false", "", "ts_ms") "],\"optional\":false,"
			"\"name\":\"io.debezium.connector.common.TransactionMetadataValue\",\"version\":1},"
			"\"payload\":{\"status\":\"BEGIN\",\"id\":\"731:300\",\"event_count\":null,\"data_collections\":null,"
			"\"ts_ms\":1478260290123}}");
}

/* The schema of one nullable column "c": plain's, between the key's and what follows. */
static void
check_schema(TkType type, TkScalars scalars, const char *expected, int line)
{
	TkColumn	columns[] = {{.name = "c",.type = type}};
	static const TkValue row[] = {NIL};
	static const char before[] = "{\"schema\":{\"type\":\"struct\",\"fields\":[";
	const char *end;

	start();
	options.schemas = true;
	options.scalars = scalars;
	orders.columns = columns;
	orders.ncolumns = 1;
	orders.nkeys = 0;
	encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row);
	tk_buffer_char(&out, '\0');
	end = strstr(out.data, "],\"optional\":false,\"name\":\"shop.public.orders.Value\"}");
	unit_check_bytes(end != NULL ? out.data + sizeof(before) - 1 : NULL,
					 end != NULL ? (size_t) (end - out.data) - (sizeof(before) - 1) : 0,
					 expected, strlen(expected), __FILE__, line, "schema");
}

#define SCHEMA(k, mod, scalars, expected) \
	check_schema((TkType) {.kind = (k), .typmod = (mod), .labels = "sad,o\"k"}, scalars, (expected), __LINE__)
#define SCHEMAS(k, mod, readable, debezium) \
	SCHEMA(k, mod, TK_SCALARS_READABLE, readable); \
	SCHEMA(k, mod, TK_SCALARS_DEBEZIUM, debezium)
#define SAME_SCHEMA(k, expected) SCHEMAS(k, -1, expected, expected)
#define ARRAY_SCHEMA(k, mod, scalars, expected) \
	check_schema((TkType) {.kind = TK_KIND_ARRAY, .element = &(TkType) {.kind = (k), .typmod = (mod), .labels = "a,b"}}, \
				 scalars, (expected), __LINE__)
#define C(type, rest) FIELD(type, "true", rest, "c")
#define ITEMS(schema) "{\"type\":\"array\",\"items\":" schema ",\"optional\":true,\"field\":\"c\"}"
#define DECIMAL "org.apache.kafka.connect.data.Decimal"

#define GEOMETRY_SCHEMA \
	"{\"type\":\"struct\",\"fields\":[" FIELD("bytes", "false", "", "wkb") "," FIELD("int32", "true", "", "srid") "," \
	"{\"type\":\"map\",\"keys\":{\"type\":\"string\",\"optional\":false}," \
	"\"values\":{\"type\":\"string\",\"optional\":false},\"optional\":true,\"field\":\"extensions\"}]," \
	"\"optional\":true,\"name\":\"io.debezium.data.geometry.Geometry\",\"version\":2,\"doc\":\"Geometry\",\"field\":\"c\"}"

static void
each_type_has_its_schema(void)
{
	TkAttribute parts[] = {{"x", {.kind = TK_KIND_SMALLINT}}, {"y", {.kind = TK_KIND_UUID}}};
	TkType		composite = {.kind = TK_KIND_COMPOSITE,.nattributes = 2,.attributes = parts};

	SAME_SCHEMA(TK_KIND_BOOL, C("boolean", ""));
	SAME_SCHEMA(TK_KIND_SMALLINT, C("int16", ""));
	SAME_SCHEMA(TK_KIND_INTEGER, C("int32", ""));
	SAME_SCHEMA(TK_KIND_BIGINT, C("int64", ""));
	SAME_SCHEMA(TK_KIND_OID, C("int64", ""));
	SAME_SCHEMA(TK_KIND_REAL, C("float", ""));
	SAME_SCHEMA(TK_KIND_FLOAT, C("double", ""));
	SAME_SCHEMA(TK_KIND_TEXT, C("string", ""));
	SAME_SCHEMA(TK_KIND_NAME, C("string", ""));
	SAME_SCHEMA(TK_KIND_BYTEA, C("bytes", ""));
	SAME_SCHEMA(TK_KIND_JSON, C("string", NAMED("io.debezium.data.Json")));
	SAME_SCHEMA(TK_KIND_UUID, C("string", NAMED("io.debezium.data.Uuid")));
	SAME_SCHEMA(TK_KIND_XML, C("string", NAMED("io.debezium.data.Xml")));
	SAME_SCHEMA(TK_KIND_TSVECTOR, C("string", NAMED("io.debezium.data.Tsvector")));
	SAME_SCHEMA(TK_KIND_LTREE, C("string", NAMED("io.debezium.data.Ltree")));
	SAME_SCHEMA(TK_KIND_ENUM, C("string", NAMED("io.debezium.data.Enum") ",\"parameters\":{\"allowed\":\"sad,o\\\"k\"}"));
	SAME_SCHEMA(TK_KIND_TIMESTAMPTZ, C("string", NAMED("io.debezium.time.ZonedTimestamp")));
	SCHEMAS(TK_KIND_NUMERIC, NUMERIC(6, 2), C("string", ""),
			C("bytes", NAMED(DECIMAL) ",\"parameters\":{\"scale\":\"2\",\"connect.decimal.precision\":\"6\"}"));
	SCHEMAS(TK_KIND_NUMERIC, -1, C("string", ""),
			"{\"type\":\"struct\",\"fields\":[" FIELD("int32", "false", "", "scale") "," FIELD("bytes", "false", "", "value")
			"],\"optional\":true" NAMED("io.debezium.data.VariableScaleDecimal")
			",\"doc\":\"Variable scaled decimal\",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_MONEY, -1, C("string", ""), C("bytes", NAMED(DECIMAL) ",\"parameters\":{\"scale\":\"2\"}"));
	SCHEMAS(TK_KIND_DATE, -1, C("string", ""), C("int32", NAMED("io.debezium.time.Date")));
	SCHEMAS(TK_KIND_TIME, -1, C("string", ""), C("int64", NAMED("io.debezium.time.MicroTime")));
	SCHEMAS(TK_KIND_TIME, 3, C("string", ""), C("int32", NAMED("io.debezium.time.Time")));
	SCHEMAS(TK_KIND_TIMETZ, -1, C("string", ""), C("string", NAMED("io.debezium.time.ZonedTime")));
	SCHEMAS(TK_KIND_TIMESTAMP, 4, C("string", ""), C("int64", NAMED("io.debezium.time.MicroTimestamp")));
	SCHEMAS(TK_KIND_TIMESTAMP, 0, C("string", ""), C("int64", NAMED("io.debezium.time.Timestamp")));
	SCHEMAS(TK_KIND_INTERVAL, -1, C("string", ""), C("int64", NAMED("io.debezium.time.MicroDuration")));
	SCHEMAS(TK_KIND_BIT, 1, C("string", ""), C("boolean", ""));
	SCHEMAS(TK_KIND_BIT, 8, C("string", ""), C("bytes", NAMED("io.debezium.data.Bits") ",\"parameters\":{\"length\":\"8\"}"));
	SCHEMAS(TK_KIND_VARBIT, -1, C("string", ""),
			C("bytes", NAMED("io.debezium.data.Bits") ",\"parameters\":{\"length\":\"2147483647\"}"));
	SCHEMAS(TK_KIND_POINT, -1, C("string", ""),
			"{\"type\":\"struct\",\"fields\":[" FIELD("double", "false", "", "x") "," FIELD("double", "false", "", "y") ","
			FIELD("bytes", "true", "", "wkb") "," FIELD("int32", "true", "", "srid")
			"],\"optional\":true" NAMED("io.debezium.data.geometry.Point")
			",\"doc\":\"Geometry (POINT)\",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_GEOMETRY, -1, C("string", ""), GEOMETRY_SCHEMA);
	SCHEMAS(TK_KIND_BOX, -1, C("string", ""), GEOMETRY_SCHEMA);
	SCHEMAS(TK_KIND_LSEG, -1, C("string", ""), GEOMETRY_SCHEMA);
	SCHEMAS(TK_KIND_PATH, -1, C("string", ""), GEOMETRY_SCHEMA);
	SCHEMAS(TK_KIND_POLYGON, -1, C("string", ""), GEOMETRY_SCHEMA);
	SCHEMAS(TK_KIND_LINE, -1, C("string", ""),
			"{\"type\":\"struct\",\"fields\":[" FIELD("double", "false", "", "a") "," FIELD("double", "false", "", "b") ","
			FIELD("double", "false", "", "c") "],\"optional\":true" NAMED("io.debezium.data.geometry.Line")
			",\"doc\":\"Geometry (LINE)\",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_CIRCLE, -1, C("string", ""),
			"{\"type\":\"struct\",\"fields\":[{\"type\":\"struct\",\"fields\":[" FIELD("double", "false", "", "x") ","
			FIELD("double", "false", "", "y") "," FIELD("bytes", "true", "", "wkb") "," FIELD("int32", "true", "", "srid")
			"],\"optional\":false" NAMED("io.debezium.data.geometry.Point") ",\"doc\":\"Geometry (POINT)\","
			"\"field\":\"center\"}," FIELD("double", "false", "", "radius") "],\"optional\":true"
			NAMED("io.debezium.data.geometry.Circle") ",\"doc\":\"Geometry (CIRCLE)\",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_GEOGRAPHY, -1, C("string", ""),
			"{\"type\":\"struct\",\"fields\":[" FIELD("bytes", "false", "", "wkb") "," FIELD("int32", "true", "", "srid")
			"],\"optional\":true" NAMED("io.debezium.data.geometry.Geography") ",\"doc\":\"Geography\",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_VECTOR, -1, C("string", ""), "{\"type\":\"array\",\"items\":{\"type\":\"double\",\"optional\":false},"
			"\"optional\":true" NAMED("io.debezium.data.DoubleVector") ",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_HALFVEC, -1, C("string", ""), "{\"type\":\"array\",\"items\":{\"type\":\"float\",\"optional\":false},"
			"\"optional\":true" NAMED("io.debezium.data.FloatVector") ",\"field\":\"c\"}");
	SCHEMAS(TK_KIND_HSTORE, -1, "{\"type\":\"map\",\"keys\":{\"type\":\"string\",\"optional\":false},"
			"\"values\":{\"type\":\"string\",\"optional\":true},\"optional\":true,\"field\":\"c\"}",
			C("string", NAMED("io.debezium.data.Json")));

	/* What Debezium has no converter for it leaves out. */
	SCHEMAS(TK_KIND_OTHER, -1, C("string", ""), "");
	check_schema(composite, TK_SCALARS_READABLE,
				 "{\"type\":\"struct\",\"fields\":[" FIELD("int16", "true", "", "x") ","
				 FIELD("string", "true", NAMED("io.debezium.data.Uuid"), "y") "],\"optional\":true,\"field\":\"c\"}",
				 __LINE__);
	check_schema(composite, TK_SCALARS_DEBEZIUM, "",
				 __LINE__);

	ARRAY_SCHEMA(TK_KIND_INTEGER, -1, TK_SCALARS_READABLE, ITEMS("{\"type\":\"int32\",\"optional\":true}"));
	ARRAY_SCHEMA(TK_KIND_INTEGER, -1, TK_SCALARS_DEBEZIUM, ITEMS("{\"type\":\"int32\",\"optional\":true}"));
	ARRAY_SCHEMA(TK_KIND_TIMESTAMP, 3, TK_SCALARS_DEBEZIUM,
				 ITEMS("{\"type\":\"int64\",\"optional\":true" NAMED("io.debezium.time.Timestamp") "}"));
	ARRAY_SCHEMA(TK_KIND_ENUM, -1, TK_SCALARS_DEBEZIUM,
				 ITEMS("{\"type\":\"string\",\"optional\":false" NAMED("io.debezium.data.Enum")
					   ",\"parameters\":{\"allowed\":\"a,b\"}}"));
	ARRAY_SCHEMA(TK_KIND_BIT, 1, TK_SCALARS_DEBEZIUM, C("boolean", ""));
	ARRAY_SCHEMA(TK_KIND_MONEY, -1, TK_SCALARS_DEBEZIUM, "");
	ARRAY_SCHEMA(TK_KIND_INTERVAL, -1, TK_SCALARS_DEBEZIUM, "");
	ARRAY_SCHEMA(TK_KIND_COMPOSITE, -1, TK_SCALARS_DEBEZIUM, "");
	ARRAY_SCHEMA(TK_KIND_OTHER, -1, TK_SCALARS_READABLE, ITEMS("{\"type\":\"string\",\"optional\":true}"));
}

/* One column whose value an UPDATE left in TOAST */
static void
check_unavailable(TkType type, const char *expected, int line)
{
	TkColumn	columns[] = {{.name = "c",.type = type}};
	static const TkValue row[] = {SAME};
	char		after[256];

	start();
	options.scalars = TK_SCALARS_DEBEZIUM;
	orders.columns = columns;
	orders.ncolumns = 1;
	orders.nkeys = 0;
	encode(&tk_encoder_debezium, TK_UPDATE, 0, NULL, row);
	snprintf(after, sizeof(after), "{\"before\":null,\"after\":%s,", expected);
	unit_check_bytes(out.data, strlen(after), after, strlen(after), __FILE__, line, "unavailable");
}

#define UNAVAILABLE(k, expected) \
	check_unavailable((TkType) {.kind = (k)}, (expected), __LINE__)
#define UNAVAILABLE_ARRAY(k, expected) \
	check_unavailable((TkType) {.kind = TK_KIND_ARRAY, .element = &(TkType) {.kind = (k)}}, (expected), __LINE__)
#define PLACEHOLDER "__debezium_unavailable_value"
#define CODES \
	"[95,95,100,101,98,101,122,105,117,109,95,117,110,97,118,97,105,108,97,98,108,101,95,118,97,108,117,101]"

static void
debezium_has_placeholders_of_each_type(void)
{
	UNAVAILABLE(TK_KIND_TEXT, "{\"c\":\"" PLACEHOLDER "\"}");
	UNAVAILABLE(TK_KIND_JSON, "{\"c\":\"" PLACEHOLDER "\"}");
	UNAVAILABLE(TK_KIND_BYTEA, "{\"c\":\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"}");
	UNAVAILABLE(TK_KIND_HSTORE, "{\"c\":\"{\\\"" PLACEHOLDER "\\\":\\\"" PLACEHOLDER "\\\"}\"}");
	UNAVAILABLE_ARRAY(TK_KIND_TEXT, "{\"c\":[\"" PLACEHOLDER "\"]}");
	UNAVAILABLE_ARRAY(TK_KIND_JSON, "{\"c\":[\"" PLACEHOLDER "\"]}");
	UNAVAILABLE_ARRAY(TK_KIND_BYTEA, "{\"c\":[\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"]}");
	UNAVAILABLE_ARRAY(TK_KIND_UUID, "{\"c\":[\"b68a35a7-17ad-35b3-af2a-ae46edb4545a\"]}");
	UNAVAILABLE_ARRAY(TK_KIND_INTEGER, "{\"c\":" CODES "}");
	UNAVAILABLE_ARRAY(TK_KIND_BIGINT, "{\"c\":" CODES "}");
	UNAVAILABLE_ARRAY(TK_KIND_DATE, "{\"c\":" CODES "}");

	/* Debezium has none and writes null: here it is said. */
	UNAVAILABLE_ARRAY(TK_KIND_FLOAT, "{\"c\":\"" PLACEHOLDER "\"}");
	UNAVAILABLE(TK_KIND_NUMERIC, "{\"c\":\"" PLACEHOLDER "\"}");

	/* Not in the record at all */
	UNAVAILABLE(TK_KIND_COMPOSITE, "{}");
	UNAVAILABLE_ARRAY(TK_KIND_MONEY, "{}");
}

static void
inline_json_null_is_told_from_sql_null(void)
{
	static const TkValue both[] = {T("1"), T("5"), T("null"), T(" \n null\t")};
	static const TkValue nearly[] = {T("1"), T("5"), NIL, T("[null]")};
	static const TkValue toasted[] = {T("1"), T("5"), NIL, SAME};

	start();
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, both), 1);
	CONTENT(0, "{\"id\":1,\"q\":5,\"d\":\"null\",\"j\": \n null\t}");
	HEADERS(0, "pg.json_null=[\"j\"]");
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, nearly), 1);
	HEADERS(0, "");
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row1_q6), 1);
	HEADERS(0, "");

	/* What the old tuple had is what the new one has. */
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'O', both, toasted), 1);
	HEADERS(0, "pg.json_null=[\"j\"]");

	options.json = TK_JSON_INLINE;
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, both), 1);
	HEADERS(0, "pg.json_null=[\"j\"]");
	CHECK_INT(encode(&tk_encoder_debezium, TK_UPDATE, 'K', key1, row2), 3);
	HEADERS(2, "__debezium.oldkey={\"id\":1} pg.json_null=[\"j\"]");

	/* As a string it is "null" anyway. */
	options.json = TK_JSON_STRING;
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, both), 1);
	HEADERS(0, "");
}

static void
names_are_verbatim_and_keys_in_the_order_of_their_index(void)
{
	static TkColumn odd[] = {
		{.name = "a",.type = {.kind = TK_KIND_INTEGER},.identity = true},
		{.name = "A",.type = {.kind = TK_KIND_TEXT},.identity = true},
		{.name = "q\"uo.te\xC3\xA9",.type = {.kind = TK_KIND_TEXT}}
	};
	static const int keys[] = {1, 0};
	static const TkValue row[] = {T("1"), T("k"), T("v")};
	static const TkValue toasted_key[] = {T("1"), SAME, T("w")};
	static const TkValue old_key[] = {T("1"), T("k"), NIL};
	static const TkValue first_changed[] = {T("2"), SAME, T("w")};

	start();
	orders.columns = odd;
	orders.ncolumns = 3;
	orders.nkeys = 2;
	orders.keys = keys;
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, row), 1);
	KEY(0, "{\"A\":\"k\",\"a\":1}");
	CONTENT(0, "{\"a\":1,\"A\":\"k\",\"q\\\"uo.te\xC3\xA9\":\"v\"}");

	/*
	 * A key column in TOAST, left alone: from the old tuple, or said to be unavailable.
	 */
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'K', old_key, toasted_key), 1);
	KEY(0, "{\"A\":\"k\",\"a\":1}");
	CONTENT(0, "{\"a\":1,\"A\":\"k\",\"q\\\"uo.te\xC3\xA9\":\"w\"}");
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 0, NULL, toasted_key), 1);
	KEY(0, "{\"A\":\"__debezium_unavailable_value\",\"a\":1}");
	HEADERS(0, "pg.unavailable=[\"A\"]");
	CHECK_INT(encode(&tk_encoder_plain, TK_UPDATE, 'K', old_key, first_changed), 2);
	KEY(0, "{\"A\":\"k\",\"a\":1}");
	KEY(1, "{\"A\":\"k\",\"a\":2}");

	/* A key column outside of the logged identity is left out, not null. */
	odd[1].identity = false;
	CHECK_INT(encode(&tk_encoder_plain, TK_DELETE, 'K', old_key, NULL), 1);
	KEY(0, "{\"a\":1}");
	odd[0].identity = false;
	CHECK_INT(encode(&tk_encoder_debezium, TK_DELETE, 'K', old_key, NULL), 1);
	KEY(0, NULL);
	CONTENT(0, EVENT("{}", "null", "d"));
}

static void
a_table_without_columns_has_empty_rows(void)
{
	static const TkValue none[1] = {NIL};

	start();
	orders.ncolumns = 0;
	orders.nkeys = 0;
	CHECK_INT(encode(&tk_encoder_debezium, TK_INSERT, 0, NULL, none), 1);
	KEY(0, NULL);
	CONTENT(0, EVENT("null", "{}", "c"));
	CHECK_INT(encode(&tk_encoder_plain, TK_INSERT, 0, NULL, none), 1);
	CONTENT(0, "{}");
}

static void
a_buffer_over_its_limit_fails_and_recovers(void)
{
	TkBuffer	b = {0};

	tk_buffer_string(&b, "abc");
	CHECK(!tk_buffer_reserve(&b, TK_BUFFER_MAX));
	CHECK(b.failed);
	CHECK_BYTES(b.data, b.len, "abc", 3);
	tk_buffer_char(&b, 'd');
	tk_buffer_append(&b, "efg", 3);
	CHECK_INT(b.len, 3);

	tk_buffer_reset(&b, 1 << 20);
	CHECK(!b.failed && b.len == 0);
	tk_buffer_string(&b, "xyz");
	CHECK_BYTES(b.data, b.len, "xyz", 3);

	/* Memory is kept from record to record, but not that of a giant. */
	CHECK(tk_buffer_reserve(&b, 5000));
	tk_buffer_reset(&b, 1 << 20);
	CHECK(b.cap >= 5000);
	tk_buffer_reset(&b, 4096);
	CHECK_INT(b.cap, 0);
	tk_buffer_free(&b);
}

/* The caller looks once, at the end: until then each step must bear a buffer that takes nothing more. */
static void
a_failed_buffer_is_borne_to_the_end(void)
{
	static const TkEncoder *const encoders[] = {&tk_encoder_debezium, &tk_encoder_plain};
	TkRelation *collections[1] = {&orders};
	TkType		bytea = {.kind = TK_KIND_BYTEA};
	TkValue		byte = T("\\x00");
	TkBuffer	failed = {.failed = true};
	TkRecord	record;

	start();
	options.metadata_headers = true;
	options.transaction_metadata = true;
	for (int i = 0; i < 2; i++)
	{
		TkChange	change = {
			.operation = TK_UPDATE,
			.relation = &orders,
			.old_kind = 'O',
			.old = row1,
			.new = row2,
			.lsn = 200
		};
		void	   *plan = encoders[i]->plan(&options, &orders);

		CHECK(encoders[i]->encode(&options, plan, &transaction, &change, &failed, records) > 0);
		encoders[i]->free_plan(plan);
	}
	tk_encode_transaction(&options, &transaction, true, collections, 1, &failed, &record);
	tk_json_value(&failed, &bytea, &byte, 0);
	CHECK(failed.failed && failed.len == 0 && failed.data == NULL);
}

int
main(int argc, char **argv)
{
	unsigned	seed = argc > 1 ? (unsigned) strtoul(argv[1], NULL, 10) : 1;

	printf("seed %u\n", seed);
	the_checker_itself_is_strict();
	control_characters_quotes_and_backslashes_are_escaped();
	each_character_is_escaped_at_each_place_of_a_word();
	utf8_stands_as_it_is_and_other_bytes_become_replacement_characters();
	a_long_string_is_whole_across_the_chunks_it_is_written_in();
	numbers_are_exact();
	integers_are_written_as_printf_would();
	bytea_is_base64();
	dates_and_times_are_iso_8601();
	json_is_a_string_or_stands_inline_verbatim();
	arrays_become_nested_arrays();
	a_long_escaped_element_is_whole();
	composites_become_objects();
	hstore_becomes_an_object();
	debezium_numbers();
	debezium_numbers_of_any_length();
	debezium_dates_and_times();
	debezium_other_scalars();
	text_that_is_no_array_stays_text();
	any_bytes_become_json(seed);
	any_array_of_strings_comes_back(seed);

	envelopes_are_found_by_name();
	debezium_insert_update_delete();
	debezium_full_identity_gives_the_whole_old_row();
	debezium_key_change_is_a_delete_and_a_create();
	debezium_truncate_has_no_key();
	debezium_source_at_the_edges();
	debezium_times_round_down_to_milliseconds();
	debezium_unchanged_toast_is_said_so_or_taken_from_the_old_row();
	debezium_transaction_metadata();
	debezium_without_a_key();
	plain_insert_update_delete();
	plain_key_change_is_a_tombstone_and_the_row();
	plain_records_without_key_and_value_say_what_they_are();
	plain_unchanged_toast_is_left_out_and_named();
	schemas_wrap_key_and_value();
	each_type_has_its_schema();
	debezium_has_placeholders_of_each_type();
	inline_json_null_is_told_from_sql_null();
	names_are_verbatim_and_keys_in_the_order_of_their_index();
	a_table_without_columns_has_empty_rows();
	a_buffer_over_its_limit_fails_and_recovers();
	a_failed_buffer_is_borne_to_the_end();
	tk_buffer_free(&out);
	return unit_done();
}
