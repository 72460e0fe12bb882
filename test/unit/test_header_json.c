/*
 * test_header_json.c
 *	  JSON objects to headers: order, repeated names, text; and what is none.
 *
 * Bytes under test lie at the end of an allocation of just their size.
 */
#include "../../src/header_json.h"

#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

/* The headers of "json" as "name=value;…", null as "name;"; or the result's number, "@" and the name at fault. */
static const char *
read_bytes(const char *json, size_t len)
{
	static TkBuffer seen;
	TkBuffer	out = {0};
	TkBuffer	scratch = {0};
	TkMessageBytes culprit;
	TkHeadersResult result;
	char	   *copy = malloc(len ? len : 1);
	size_t		at = 0;
	int			n;

	memcpy(copy, json, len);
	result = tk_headers_read(copy, len, &out, &n, &scratch, &culprit);
	free(copy);
	tk_buffer_reset(&seen, TK_BUFFER_MAX);
	if (result != TK_HEADERS_OK)
	{
		tk_buffer_char(&seen, (char) ('0' + result));
		tk_buffer_char(&seen, '@');
		if (culprit.data != NULL)
			tk_buffer_append(&seen, culprit.data, culprit.len);
	}
	for (int i = 0; result == TK_HEADERS_OK && i < n; i++)
	{
		TkMessageBytes name;
		TkMessageBytes value;

		tk_message_header(out.data, &at, &name, &value);
		tk_buffer_append(&seen, name.data, name.len);
		if (value.data != NULL)
		{
			tk_buffer_char(&seen, '=');
			tk_buffer_append(&seen, value.data, value.len);
		}
		tk_buffer_char(&seen, ';');
	}
	if (result == TK_HEADERS_OK)
		CHECK_INT(at, out.len);
	tk_buffer_char(&seen, '\0');
	tk_buffer_free(&out);
	tk_buffer_free(&scratch);
	return seen.data;
}

static const char *
read_json(const char *json)
{
	return read_bytes(json, strlen(json));
}

static const char *
fault(TkHeadersResult result, const char *name)
{
	static char text[100];

	snprintf(text, sizeof(text), "%d@%s", (int) result, name);
	return text;
}

static void
order_and_repeated_names_are_kept(void)
{
	CHECK_STR(read_json("{}"), "");
	CHECK_STR(read_json("{\"bb\": \"1\", \"a\": \"2\", \"bb\": \"3\"}"), "bb=1;a=2;bb=3;");
	CHECK_STR(read_json("{\"a\": [\"1\", null, 2], \"b\": [], \"c\": [true]}"), "a=1;a;a=2;c=true;");
	CHECK_STR(read_json("{\"\": \"\", \"n\": null}"), "=;n;");
	CHECK_STR(read_json(" \t\r\n{ \"a\"\n:\t[ 1 , 2 ] , \"b\" : false } "), "a=1;a=2;b=false;");
}

static void
scalars_are_text_as_they_are_written(void)
{
	CHECK_STR(read_json("{\"a\":1.50,\"b\":-0,\"c\":1E+9,\"d\":true,\"e\":false}"), "a=1.50;b=-0;c=1E+9;d=true;e=false;");
	CHECK_STR(read_json("{\"a\":123456789012345678901234567890.000000000000000000001}"),
			  "a=123456789012345678901234567890.000000000000000000001;");
}

static void
escapes_are_the_characters_they_stand_for(void)
{
	CHECK_STR(read_json("{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"}"),
			  "\"\\/\b\f\n\r\t=A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80;");
	CHECK_STR(read_json("{\"\xc3\xa9\":\"\xe2\x82\xac\"}"), "\xc3\xa9=\xe2\x82\xac;");
	CHECK_STR(read_json("{\"\\u007f\\u0080\\u07ff\\u0800\\uffff\":\"\\ud800\\udc00\\udbff\\udfff\"}"),
			  "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf=\xf0\x90\x80\x80\xf4\x8f\xbf\xbf;");
}

static void
what_is_no_character_is_refused(void)
{
	CHECK_STR(read_json("{\"a\":\"\\u0000\"}"), fault(TK_HEADERS_BAD_CHARACTER, "a"));
	CHECK_STR(read_json("{\"a\":\"\\ud83d\"}"), fault(TK_HEADERS_BAD_CHARACTER, "a"));
	CHECK_STR(read_json("{\"a\":\"\\ud83d\\n\"}"), fault(TK_HEADERS_BAD_CHARACTER, "a"));
	CHECK_STR(read_json("{\"a\":\"\\ud83d\\u0041\"}"), fault(TK_HEADERS_BAD_CHARACTER, "a"));
	CHECK_STR(read_json("{\"a\":\"\\ude00\"}"), fault(TK_HEADERS_BAD_CHARACTER, "a"));
	CHECK_STR(read_json("{\"x\":1,\"\\u0000\":\"1\"}"), fault(TK_HEADERS_BAD_CHARACTER, ""));
}

static void
only_scalars_and_arrays_of_them_are_values(void)
{
	static const char *const others[] = {"[]", "\"a\"", "1", "null", "true", "", " "};

	CHECK_STR(read_json("{\"ok\":1,\"a\":{}}"), fault(TK_HEADERS_NO_SCALAR, "a"));
	CHECK_STR(read_json("{\"ab\":[1,[2]]}"), fault(TK_HEADERS_NO_SCALAR, "ab"));
	CHECK_STR(read_json("{\"ab\":[{}]}"), fault(TK_HEADERS_NO_SCALAR, "ab"));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK_STR(read_json(others[i]), fault(TK_HEADERS_NO_OBJECT, ""));
}

static void
what_is_no_json_is_refused(void)
{
	static const char *const broken[] = {
		"{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{\"a\":[", "{\"a\":[1", "{\"a\":[1,",
		"{\"a\":[1,]}", "{\"a\":[1}", "{\"a\" 1}", "{a:1}", "{1:1}", "{\"a\":1}x", "{\"a\":1}{", "{\"a\":x}", "{\"a\":tru}",
		"{\"a\":truex}", "{\"a\":nul", "{\"a\":-}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\", "{\"a\":\"\\u12\"}",
		"{\"a\":\"\\u12g4\"}", "{\"a\":\"\\u", "{\"a\":\"\\ud83d\\u12\"}", "{,}", "{\"a\":,}", "{\"a\":1 \"b\":2}"
	};

	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
		if (!CHECK_INT(read_json(broken[i])[0], '0' + TK_HEADERS_BAD_JSON))
			printf("\tin: %s\n", broken[i]);
	CHECK_INT(read_bytes("{\"a\":1}\0", 8)[0], '0' + TK_HEADERS_BAD_JSON);
	CHECK_INT(read_bytes("{\"a\":\"\0\"}", 9)[0], '0' + TK_HEADERS_BAD_JSON);
}

static void
there_are_limits(void)
{
	TkBuffer	json = {0};

	tk_buffer_string(&json, "{\"a\":[0");
	for (int i = 1; i < TK_MESSAGE_HEADERS_MAX; i++)
		tk_buffer_string(&json, ",0");
	tk_buffer_string(&json, "]}");
	CHECK_INT(strlen(read_bytes(json.data, json.len)), 4 * TK_MESSAGE_HEADERS_MAX);
	json.len -= 2;
	tk_buffer_string(&json, ",0]}");
	CHECK_STR(read_bytes(json.data, json.len), fault(TK_HEADERS_TOO_MANY, "a"));

	json.len = 0;
	tk_buffer_string(&json, "{\"");
	for (int i = 0; i < UINT16_MAX; i++)
		tk_buffer_char(&json, 'x');
	tk_buffer_string(&json, "\":0}");
	CHECK_INT(strlen(read_bytes(json.data, json.len)), UINT16_MAX + 3);
	json.len -= 4;
	tk_buffer_string(&json, "x\":0}");
	CHECK_INT(read_bytes(json.data, json.len)[0], '0' + TK_HEADERS_TOO_MANY);
	tk_buffer_free(&json);
}

int
main(void)
{
	order_and_repeated_names_are_kept();
	scalars_are_text_as_they_are_written();
	escapes_are_the_characters_they_stand_for();
	what_is_no_character_is_refused();
	only_scalars_and_arrays_of_them_are_values();
	what_is_no_json_is_refused();
	there_are_limits();
	return unit_done();
}
