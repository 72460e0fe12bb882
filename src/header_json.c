/*
 * header_json.c
 *	  JSON object → headers, in its own order and with repeated names, which
 *	  jsonb knows nothing of.
 *
 * What comes here has passed PostgreSQL's json type; it is read as if it had
 * not.  Nothing recurses: what is nested deeper than an array is refused.
 */
#include "header_json.h"

typedef struct Reader
{
	const char *at;
	const char *end;
	TkBuffer   *scratch;
	TkHeadersResult result;
} Reader;

static bool
fail(Reader *r, TkHeadersResult result)
{
	if (r->result == TK_HEADERS_OK)
		r->result = result;
	return false;
}

/* The next character that is no white space; '\0' at the end. */
static char
peek(Reader *r)
{
	while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
		r->at++;
	return r->at < r->end ? *r->at : '\0';
}

static bool
skip(Reader *r, char c)
{
	if (r->at == r->end || peek(r) != c || c == '\0')
		return false;
	r->at++;
	return true;
}

static bool
hex4(Reader *r, uint32_t *code)
{
	*code = 0;
	for (int i = 0; i < 4; i++)
	{
		char		c = r->at < r->end ? *r->at++ : '\0';

		if (c >= '0' && c <= '9')
			*code = *code << 4 | (uint32_t) (c - '0');
		else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
			*code = *code << 4 | (uint32_t) ((c | 0x20) - 'a' + 10);
		else
			return fail(r, TK_HEADERS_BAD_JSON);
	}
	return true;
}

static void
put_utf8(TkBuffer *out, uint32_t code)
{
	if (code < 0x80)
		tk_buffer_char(out, (char) code);
	else if (code < 0x800)
	{
		tk_buffer_char(out, (char) (0xc0 | code >> 6));
		tk_buffer_char(out, (char) (0x80 | (code & 0x3f)));
	}
	else if (code < 0x10000)
	{
		tk_buffer_char(out, (char) (0xe0 | code >> 12));
		tk_buffer_char(out, (char) (0x80 | (code >> 6 & 0x3f)));
		tk_buffer_char(out, (char) (0x80 | (code & 0x3f)));
	}
	else
	{
		tk_buffer_char(out, (char) (0xf0 | code >> 18));
		tk_buffer_char(out, (char) (0x80 | (code >> 12 & 0x3f)));
		tk_buffer_char(out, (char) (0x80 | (code >> 6 & 0x3f)));
		tk_buffer_char(out, (char) (0x80 | (code & 0x3f)));
	}
}

/* Behind "\u": one or, of a surrogate pair, two groups of digits. */
static bool
read_unicode(Reader *r)
{
	uint32_t	code;
	uint32_t	low;

	if (!hex4(r, &code))
		return false;
	if (code == 0 || (code >= 0xdc00 && code <= 0xdfff))
		return fail(r, TK_HEADERS_BAD_CHARACTER);
	if (code >= 0xd800 && code <= 0xdbff)
	{
		if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
			return fail(r, TK_HEADERS_BAD_CHARACTER);
		r->at += 2;
		if (!hex4(r, &low))
			return false;
		if (low < 0xdc00 || low > 0xdfff)
			return fail(r, TK_HEADERS_BAD_CHARACTER);
		code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
	}
	put_utf8(r->scratch, code);
	return true;
}

/* A string, its opening quote included, unescaped behind what "scratch" holds. */
static bool
read_string(Reader *r)
{
	static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";

	if (!skip(r, '"'))
		return fail(r, TK_HEADERS_BAD_JSON);
	while (r->at < r->end)
	{
		char		c = *r->at++;
		bool		known = false;

		if (c == '"')
			return true;
		if ((unsigned char) c < ' ')
			break;
		if (c != '\\')
		{
			tk_buffer_char(r->scratch, c);
			continue;
		}
		if (r->at == r->end)
			break;
		c = *r->at++;
		if (c == 'u')
		{
			if (!read_unicode(r))
				return false;
			continue;
		}
		for (int i = 0; escapes[i] != '\0' && !known; i += 2)
		{
			known = escapes[i] == c;
			if (known)
				tk_buffer_char(r->scratch, escapes[i + 1]);
		}
		if (!known)
			break;
	}
	return fail(r, TK_HEADERS_BAD_JSON);
}

static bool
read_word(Reader *r, const char *word)
{
	size_t		len = strlen(word);

	if ((size_t) (r->end - r->at) < len || memcmp(r->at, word, len) != 0)
		return fail(r, TK_HEADERS_BAD_JSON);
	r->at += len;
	tk_buffer_append(r->scratch, word, len);
	return true;
}

/* A number stays as it is written: 1.50 is not 1.5. */
static bool
read_number(Reader *r)
{
	bool		digits = false;

	for (; r->at < r->end; r->at++)
	{
		char		c = *r->at;

		if (c >= '0' && c <= '9')
			digits = true;
		else if (c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E')
			break;
		tk_buffer_char(r->scratch, c);
	}
	return digits || fail(r, TK_HEADERS_BAD_JSON);
}

/* A scalar's text behind what "scratch" holds. */
static bool
read_scalar(Reader *r, bool *null)
{
	*null = false;
	switch (peek(r))
	{
		case '"':
			return read_string(r);
		case 't':
			return read_word(r, "true");
		case 'f':
			return read_word(r, "false");
		case 'n':
			*null = true;
			return read_word(r, "null");
		case '{':
		case '[':
			return fail(r, TK_HEADERS_NO_SCALAR);
		default:
			return read_number(r);
	}
}

/* "scratch" holds the name; the value is read behind it and goes again. */
static bool
read_header(Reader *r, TkBuffer *out, int *n)
{
	size_t		name_len = r->scratch->len;
	bool		null;
	TkMessageBytes name;
	TkMessageBytes value;

	if (!read_scalar(r, &null))
		return false;
	if (name_len > UINT16_MAX || *n == TK_MESSAGE_HEADERS_MAX)
		return fail(r, TK_HEADERS_TOO_MANY);
	(*n)++;
	if (r->scratch->failed)
		return true;			/* the caller looks */

	/* Without a byte of text there may be no buffer yet; NULL would be Kafka's null. */
	name.data = r->scratch->data ? r->scratch->data : "";
	name.len = (uint32_t) name_len;
	value.data = null ? NULL : name.data + name_len;
	value.len = null ? 0 : (uint32_t) (r->scratch->len - name_len);
	tk_message_add_header(out, name, value);
	r->scratch->len = name_len;
	return true;
}

static bool
read_member(Reader *r, TkBuffer *out, int *n, TkMessageBytes *name)
{
	r->scratch->len = 0;
	name->data = NULL;
	if (!read_string(r) || !skip(r, ':'))
		return fail(r, TK_HEADERS_BAD_JSON);
	name->len = (uint32_t) r->scratch->len;
	name->data = "";			/* there is one; where it lies is known at the end */
	if (!skip(r, '['))
		return read_header(r, out, n);
	if (skip(r, ']'))
		return true;
	do
	{
		if (!read_header(r, out, n))
			return false;
	} while (skip(r, ','));
	return skip(r, ']') || fail(r, TK_HEADERS_BAD_JSON);
}

TkHeadersResult
tk_headers_read(const char *json, size_t len, TkBuffer *out, int *n, TkBuffer *scratch, TkMessageBytes *name)
{
	Reader		r = {json, json + len, scratch, TK_HEADERS_OK};

	*n = 0;
	name->data = NULL;
	name->len = 0;
	tk_buffer_reset(scratch, TK_BUFFER_MAX);
	if (!skip(&r, '{'))
		return TK_HEADERS_NO_OBJECT;
	if (!skip(&r, '}'))
	{
		do
		{
			if (!read_member(&r, out, n, name))
				break;
		} while (skip(&r, ','));
		if (r.result == TK_HEADERS_OK && !skip(&r, '}'))
			(void) fail(&r, TK_HEADERS_BAD_JSON);
	}
	if (r.result == TK_HEADERS_OK && (peek(&r) != '\0' || r.at != r.end))
		(void) fail(&r, TK_HEADERS_BAD_JSON);
	if (name->data != NULL && scratch->data != NULL)
		name->data = scratch->data;
	return r.result;
}
