/*
 * encode_json.c
 *	  JSON pieces: strings, numbers, and column values from PostgreSQL's text.
 *
 * What these functions append is legal JSON in legal UTF-8, whatever bytes
 * come in (inline json aside, whose syntax PostgreSQL has checked): a value
 * stands bare only after its bytes have been looked at, everything else passes
 * through the escaping of strings, and that replaces bytes that are no UTF-8
 * (a SQL_ASCII database may hold any) by U+FFFD.
 *
 * The text arrives under settings that the worker pins: DateStyle ISO,
 * TimeZone UTC, IntervalStyle iso_8601, bytea_output hex, extra_float_digits 1,
 * lc_monetary C.
 */
#include "encode_value.h"

#include <stdlib.h>

/* Longest escape of one byte: \u001f */
#define ESCAPE_MAX	6

/* Room is reserved for so many input bytes at a time, so that a giant string doesn't ask for six times its size. */
#define CHUNK		((size_t) 16384)

#define EACH_BYTE(b)	(UINT64_C(0x0101010101010101) * (b))

enum
{
	PLAIN = 0,					/* stands for itself */
	ESCAPE,						/* control characters, quote, backslash */
	MULTIBYTE					/* not ASCII */
};

#define FIRST_CONTROL	0x00
#define LAST_CONTROL	0x1F
#define FIRST_MULTIBYTE	0x80
#define LAST_MULTIBYTE	0xFF

static const unsigned char byte_class[256] = {
	[FIRST_CONTROL...LAST_CONTROL] = ESCAPE,
	['"'] = ESCAPE,
	['\\'] = ESCAPE,
	[FIRST_MULTIBYTE...LAST_MULTIBYTE] = MULTIBYTE
};

static const char digit_pairs[] =
"00010203040506070809"
"10111213141516171819"
"20212223242526272829"
"30313233343536373839"
"40414243444546474849"
"50515253545556575859"
"60616263646566676869"
"70717273747576777879"
"80818283848586878889"
"90919293949596979899";

static const char upper_hex_digits[] = "0123456789ABCDEF";
static const char hex_digits[] = "0123456789abcdef";
static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Value of a hex digit + 1; 0 = not a hex digit */
static const unsigned char hex_value[256] = {
	['0'] = 1,['1'] = 2,['2'] = 3,['3'] = 4,['4'] = 5,['5'] = 6,['6'] = 7,['7'] = 8,['8'] = 9,['9'] = 10,
	['a'] = 11,['b'] = 12,['c'] = 13,['d'] = 14,['e'] = 15,['f'] = 16,
	['A'] = 11,['B'] = 12,['C'] = 13,['D'] = 14,['E'] = 15,['F'] = 16
};

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

void
tk_unsigned(TkBuffer *out, uint64_t n)
{
	char		digits[20];
	char	   *p = digits + sizeof(digits);
	unsigned	rest;

	/*
	 * Positions and times have 12 to 16 digits: few wide divisions, the others in 32 bits.
	 */
	while (n >= 10000)
	{
		rest = (unsigned) (n % 10000);
		n /= 10000;
		p -= 4;
		memcpy(p, digit_pairs + rest / 100 * 2, 2);
		memcpy(p + 2, digit_pairs + rest % 100 * 2, 2);
	}
	rest = (unsigned) n;
	if (rest >= 100)
	{
		p -= 2;
		memcpy(p, digit_pairs + rest % 100 * 2, 2);
		rest /= 100;
	}
	if (rest >= 10)
	{
		p -= 2;
		memcpy(p, digit_pairs + rest * 2, 2);
	}
	else
		*--p = (char) ('0' + rest);
	tk_buffer_append(out, p, (size_t) (digits + sizeof(digits) - p));
}

void
tk_decimal(TkBuffer *out, int64_t n)
{
	if (n < 0)
	{
		tk_buffer_char(out, '-');
		tk_unsigned(out, -(uint64_t) n);
	}
	else
		tk_unsigned(out, (uint64_t) n);
}

/* True if some of the eight bytes is not PLAIN. */
static inline bool
word_needs_care(uint64_t w)
{
	uint64_t	quote = w ^ EACH_BYTE('"');
	uint64_t	backslash = w ^ EACH_BYTE('\\');

	/*
	 * Subtracting sets the top bit of a byte that was smaller.  A borrow may raise a false alarm in the byte
	 * above, but only next to a true one. Bytes with their own top bit set need care anyway, hence no masking.
	 */
	return (((w - EACH_BYTE(0x20)) |
			 (quote - EACH_BYTE(1)) |
			 (backslash - EACH_BYTE(1)) |
			 w) & EACH_BYTE(0x80)) != 0;
}

/* Length of the well-formed UTF-8 sequence at p, which is not ASCII; 0 if there is none. */
static size_t
utf8_length(const unsigned char *p, const unsigned char *end)
{
	size_t		left = (size_t) (end - p);
	unsigned char low = 0x80;
	unsigned char high = 0xBF;
	size_t		n;
	size_t		i;

	if (p[0] >= 0xC2 && p[0] <= 0xDF)
		n = 2;
	else if (p[0] >= 0xE0 && p[0] <= 0xEF)
		n = 3;
	else if (p[0] >= 0xF0 && p[0] <= 0xF4)
		n = 4;
	else
		return 0;
	if (left < n)
		return 0;

	/* No overlong forms, no surrogates, nothing above U+10FFFF. */
	if (p[0] == 0xE0)
		low = 0xA0;
	else if (p[0] == 0xED)
		high = 0x9F;
	else if (p[0] == 0xF0)
		low = 0x90;
	else if (p[0] == 0xF4)
		high = 0x8F;
	if (p[1] < low || p[1] > high)
		return 0;
	for (i = 2; i < n; i++)
	{
		if ((p[i] & 0xC0) != 0x80)
			return 0;
	}
	return n;
}

static inline char *
write_escape(char *w, unsigned char c, const char *digits)
{
	*w++ = '\\';
	switch (c)
	{
		case '"':
		case '\\':
			*w++ = (char) c;
			break;
		case '\b':
			*w++ = 'b';
			break;
		case '\f':
			*w++ = 'f';
			break;
		case '\n':
			*w++ = 'n';
			break;
		case '\r':
			*w++ = 'r';
			break;
		case '\t':
			*w++ = 't';
			break;
		default:
			memcpy(w, "u00", 3);
			w[3] = digits[c >> 4];
			w[4] = digits[c & 15];
			w += 5;
	}
	return w;
}

static char *
write_utf16(char *w, uint32_t unit)
{
	w[0] = '\\';
	w[1] = 'u';
	w[2] = upper_hex_digits[unit >> 12];
	w[3] = upper_hex_digits[unit >> 8 & 15];
	w[4] = upper_hex_digits[unit >> 4 & 15];
	w[5] = upper_hex_digits[unit & 15];
	return w + 6;
}

/* A character of four bytes as two surrogates */
static char *
write_surrogates(char *w, const unsigned char *p)
{
	uint32_t	c = (uint32_t) (p[0] & 7) << 18 | (uint32_t) (p[1] & 63) << 12 | (uint32_t) (p[2] & 63) << 6 | (p[3] & 63);

	c -= 0x10000;
	w = write_utf16(w, 0xD800 + (c >> 10));
	return write_utf16(w, 0xDC00 + (c & 0x3FF));
}

/* Inline: the three ways of escaping become three functions. */
static inline void
append_text(TkBuffer *out, const char *text, size_t len, TkEscape escape)
{
	const unsigned char *p = (const unsigned char *) text;
	const unsigned char *end = p + len;
	const char *digits = escape == TK_ESCAPE_JSON ? hex_digits : upper_hex_digits;

	while (p < end)
	{
		size_t		chunk = (size_t) (end - p) < CHUNK ? (size_t) (end - p) : CHUNK;
		const unsigned char *stop = p + chunk;
		char	   *w;

		/*
		 * The last character of the chunk may end behind it, by three bytes at most, and become two escapes.
		 */
		if (!tk_buffer_reserve(out, chunk * ESCAPE_MAX + ESCAPE_MAX))
			return;
		w = out->data + out->len;
		while (p < stop)
		{
			while (stop - p >= 8)
			{
				uint64_t	word;

				memcpy(&word, p, 8);
				if (word_needs_care(word))
					break;
				memcpy(w, &word, 8);
				w += 8;
				p += 8;
			}
			while (p < stop && byte_class[*p] == PLAIN)
				*w++ = (char) *p++;
			while (p < stop && byte_class[*p] == MULTIBYTE)
			{
				size_t		n = utf8_length(p, end);

				if (n == 0)
				{
					memcpy(w, "\xEF\xBF\xBD", 3);	/* U+FFFD */
					w += 3;
					p++;
				}
				else if (n == 4 && escape == TK_ESCAPE_JACKSON_UTF8)
				{
					w = write_surrogates(w, p);
					p += n;
				}
				else
				{
					memcpy(w, p, n);
					w += n;
					p += n;
				}
			}
			while (p < stop && byte_class[*p] == ESCAPE)
			{
				if (escape != TK_ESCAPE_NONE)
					w = write_escape(w, *p++, digits);
				else
					*w++ = (char) *p++;
			}
		}
		out->len = (size_t) (w - out->data);
	}
}

static void
append_readable(TkBuffer *out, const char *text, size_t len)
{
	append_text(out, text, len, TK_ESCAPE_JSON);
}

static void
append_jackson(TkBuffer *out, const char *text, size_t len)
{
	append_text(out, text, len, TK_ESCAPE_JACKSON_UTF8);
}

void
tk_append_text(TkBuffer *out, const char *text, size_t len, TkEscape escape)
{
	if (escape == TK_ESCAPE_JSON)
		append_readable(out, text, len);
	else if (escape == TK_ESCAPE_JACKSON_UTF8)
		append_jackson(out, text, len);
	else
		append_text(out, text, len, escape);
}

void
tk_json_string(TkBuffer *out, const char *text, size_t len)
{
	tk_buffer_char(out, '"');
	append_readable(out, text, len);
	tk_buffer_char(out, '"');
}

void
tk_json_text(TkBuffer *out, const char *text, size_t len, int style)
{
	TkEscape	escape = TK_ESCAPE_JSON;

	if ((style & TK_STYLE_INNER) != 0)
		escape = TK_ESCAPE_JACKSON;
	else if ((style & TK_STYLE_DEBEZIUM) != 0)
		escape = TK_ESCAPE_JACKSON_UTF8;
	tk_buffer_char(out, '"');
	tk_append_text(out, text, len, escape);
	tk_buffer_char(out, '"');
}

/* JSON's grammar of a number */
bool
tk_is_json_number(const char *p, size_t len)
{
	const char *end = p + len;

	if (p < end && *p == '-')
		p++;
	if (p == end || !is_digit(*p))
		return false;
	if (*p++ == '0' && p < end && is_digit(*p))
		return false;
	while (p < end && is_digit(*p))
		p++;
	if (p < end && *p == '.')
	{
		p++;
		if (p == end || !is_digit(*p))
			return false;
		while (p < end && is_digit(*p))
			p++;
	}
	if (p < end && (*p == 'e' || *p == 'E'))
	{
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		if (p == end || !is_digit(*p))
			return false;
		while (p < end && is_digit(*p))
			p++;
	}
	return p == end;
}

/* A number stands as it is; NaN and the infinities, which JSON doesn't know, are strings. */
static void
append_number(TkBuffer *out, const char *text, size_t len)
{
	if (tk_is_json_number(text, len))
		tk_buffer_append(out, text, len);
	else
		tk_json_string(out, text, len);
}

/* '-$1,000.00' → "-1000.00" */
static void
append_money(TkBuffer *out, const char *text, size_t len)
{
	size_t		i;

	tk_buffer_char(out, '"');
	for (i = 0; i < len; i++)
	{
		if (is_digit(text[i]) || text[i] == '.' || text[i] == '-')
			tk_buffer_char(out, text[i]);
	}
	tk_buffer_char(out, '"');
}

void
tk_append_base64(TkBuffer *out, const unsigned char *bytes, size_t len)
{
	char	   *w;

	if (!tk_buffer_reserve(out, (len + 2) / 3 * 4 + 2))
		return;
	w = out->data + out->len;
	*w++ = '"';
	for (; len > 0; bytes += 3)
	{
		size_t		n = len < 3 ? len : 3;
		uint32_t	bits = (uint32_t) bytes[0] << 16 | (n > 1 ? (uint32_t) bytes[1] << 8 : 0) | (n > 2 ? bytes[2] : 0);

		w[0] = base64_digits[bits >> 18];
		w[1] = base64_digits[bits >> 12 & 63];
		w[2] = n > 1 ? base64_digits[bits >> 6 & 63] : '=';
		w[3] = n > 2 ? base64_digits[bits & 63] : '=';
		w += 4;
		len -= n;
	}
	*w++ = '"';
	out->len = (size_t) (w - out->data);
}

bool
tk_append_hex(TkBuffer *out, const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *) text;
	size_t		left = len / 2;
	char	   *w;

	if (len % 2 != 0)
		return false;
	if (!tk_buffer_reserve(out, (left + 2) / 3 * 4 + 2))
		return true;
	w = out->data + out->len;
	*w++ = '"';
	while (left > 0)
	{
		unsigned	n = left < 3 ? (unsigned) left : 3;
		uint32_t	bits = 0;
		unsigned	i;

		for (i = 0; i < n * 2; i++)
		{
			unsigned char v = hex_value[p[i]];

			/* Nothing is committed to "out" yet. */
			if (v == 0)
				return false;
			bits |= (uint32_t) (v - 1) << (20 - 4 * i);
		}
		w[0] = base64_digits[bits >> 18];
		w[1] = base64_digits[bits >> 12 & 63];
		w[2] = n > 1 ? base64_digits[bits >> 6 & 63] : '=';
		w[3] = n > 2 ? base64_digits[bits & 63] : '=';
		w += 4;
		p += n * 2;
		left -= n;
	}
	*w++ = '"';
	out->len = (size_t) (w - out->data);
	return true;
}

/* '\x00ff' → "AP8="; what bytea_output = hex doesn't write stays as it is. */
static void
append_bytea(TkBuffer *out, const char *text, size_t len)
{
	if (len < 2 || text[0] != '\\' || text[1] != 'x' || !tk_append_hex(out, text + 2, len - 2))
		tk_json_string(out, text, len);
}

/*
 * '2016-11-04 11:51:30.5+00' → "2016-11-04T11:51:30.5Z".  The blank before
 * the time becomes T, the zero offset ("utc") becomes Z, and an era stays
 * behind: "0044-03-15T00:00:00Z BC".  'infinity' has none of them.
 */
static void
append_timestamp(TkBuffer *out, const char *text, size_t len, bool utc)
{
	const char *blank = len > 0 ? memchr(text, ' ', len) : NULL;
	size_t		date;
	size_t		era = 0;
	size_t		offset = 0;

	if (blank == NULL)
	{
		tk_json_string(out, text, len);
		return;
	}
	date = (size_t) (blank - text);
	if (len >= 3 && memcmp(text + len - 3, " BC", 3) == 0)
		era = 3;
	if (utc && len - era >= 3 && memcmp(text + len - era - 3, "+00", 3) == 0)
		offset = 3;
	if (date + 1 > len - era - offset)
	{
		tk_json_string(out, text, len);
		return;
	}

	tk_buffer_char(out, '"');
	tk_append_text(out, text, date, TK_ESCAPE_JSON);
	tk_buffer_char(out, 'T');
	tk_append_text(out, blank + 1, len - date - 1 - era - offset, TK_ESCAPE_JSON);
	if (offset > 0)
		tk_buffer_char(out, 'Z');
	if (era > 0)
		tk_buffer_append(out, " BC", 3);
	tk_buffer_char(out, '"');
}

/* What nested() has written, or, if the text has an unknown shape, the text: that is still true. */
static void
append_nested(bool (*nested) (TkBuffer *, const TkType *, const char *, size_t, int),
			  TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	size_t		start = out->len;

	if (!nested(out, type, text, len, style))
	{
		out->len = start;
		tk_json_text(out, text, len, style);
	}
}

void
tk_json_value(TkBuffer *out, const TkType *type, const TkValue *value, int style)
{
	const char *text = value->data;
	size_t		len = value->len;

	if (value->kind == TK_VALUE_NULL)
	{
		tk_buffer_append(out, "null", 4);
		return;
	}
	if ((style & TK_STYLE_DEBEZIUM) != 0 && tk_debezium_value(out, type, text, len, style))
		return;

	switch (type->kind)
	{
		case TK_KIND_BOOL:
			if (len == 1 && text[0] == 't')
				tk_buffer_append(out, "true", 4);
			else
				tk_buffer_append(out, "false", 5);
			break;
		case TK_KIND_SMALLINT:
		case TK_KIND_INTEGER:
		case TK_KIND_BIGINT:
		case TK_KIND_OID:
		case TK_KIND_REAL:
		case TK_KIND_FLOAT:
			append_number(out, text, len);
			break;
		case TK_KIND_MONEY:
			append_money(out, text, len);
			break;
		case TK_KIND_BYTEA:
			append_bytea(out, text, len);
			break;
		case TK_KIND_JSON:
			if ((style & TK_STYLE_INLINE_JSON) != 0)
				tk_append_text(out, text, len, TK_ESCAPE_NONE);
			else
				tk_json_text(out, text, len, style);
			break;
		case TK_KIND_TIMESTAMP:
			append_timestamp(out, text, len, false);
			break;
		case TK_KIND_TIMESTAMPTZ:
			append_timestamp(out, text, len, true);
			break;
		case TK_KIND_HSTORE:
			append_nested(tk_append_hstore, out, type, text, len, style);
			break;
		case TK_KIND_ARRAY:
			append_nested(tk_append_array, out, type, text, len, style);
			break;
		case TK_KIND_COMPOSITE:
			append_nested(tk_append_composite, out, type, text, len, style);
			break;
		case TK_KIND_TEXT:
		case TK_KIND_OTHER:
		case TK_KIND_NAME:
		case TK_KIND_UUID:
		case TK_KIND_XML:
		case TK_KIND_TSVECTOR:
		case TK_KIND_LTREE:
		case TK_KIND_ENUM:
		case TK_KIND_NUMERIC:
		case TK_KIND_DATE:
		case TK_KIND_TIME:
		case TK_KIND_TIMETZ:
		case TK_KIND_INTERVAL:
		case TK_KIND_BIT:
		case TK_KIND_VARBIT:
		case TK_KIND_POINT:
		case TK_KIND_BOX:
		case TK_KIND_LSEG:
		case TK_KIND_PATH:
		case TK_KIND_POLYGON:
		case TK_KIND_LINE:
		case TK_KIND_CIRCLE:
		case TK_KIND_GEOMETRY:
		case TK_KIND_GEOGRAPHY:
		case TK_KIND_VECTOR:
		case TK_KIND_HALFVEC:
			tk_json_text(out, text, len, style);
			break;
	}
}
