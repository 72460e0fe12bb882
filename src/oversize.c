/*
 * oversize.c
 *	  Records that are larger than Kafka takes: see oversize.h.
 *
 * There are two limits, and each counts in its own way.  librdkafka compares
 * message.max.bytes with key, value and headers and the most that the fields
 * around them can take.  The broker compares the topic's max.message.bytes with
 * the record batch as it comes: its header and all its records, compressed or
 * not.  A record that is too large for others to be with it is alone in its
 * batch, so that is what is computed here; compression is left out, because
 * what it saves is known only afterwards.
 */
#include "oversize.h"

/* Record batch: base offset to the number of records */
#define BATCH_HEADER 61

/* What librdkafka takes for each record's own fields: five varints of 32 bits, one of 64, and a byte */
#define CLIENT_OVERHEAD 36

/* A record's attributes; its timestamp and offset less those of the batch, which are the same */
#define FIXED_FIELDS 3

/* Of a length as a zigzag varint; null is -1 and takes one byte. */
static size_t
varint_size(size_t length)
{
	size_t		n = 1;

	for (length *= 2; length >= 0x80; length >>= 7)
		n++;
	return n;
}

static size_t
field_size(TkSpan span)
{
	return tk_span_is_null(span) ? 1 : varint_size(span.len) + span.len;
}

size_t
tk_header_size(size_t name_len, TkSpan value)
{
	return varint_size(name_len) + name_len + field_size(value);
}

TkRecordSize
tk_record_size(TkSpan key, TkSpan value, size_t headers, int nheaders)
{
	TkRecordSize size;
	size_t		record = FIXED_FIELDS + field_size(key) + field_size(value) + varint_size((size_t) nheaders) + headers;

	size.bytes = key.len + value.len + headers;
	size.client = CLIENT_OVERHEAD + size.bytes;
	size.batch = BATCH_HEADER + varint_size(record) + record;
	return size;
}

/* Well-formed UTF-8 (RFC 3629) without control characters that JSON would have to escape at length? */
static bool
is_text(const char *s, size_t len)
{
	size_t		i = 0;

	while (i < len)
	{
		unsigned char c = (unsigned char) s[i];
		size_t		more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 4;
		unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
		unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;

		if (more == 4 || more >= len - i)
			return false;
		for (i++; more > 0; more--, i++)
		{
			if ((unsigned char) s[i] < low || (unsigned char) s[i] > high)
				return false;
			low = 0x80;
			high = 0xBF;
		}
	}
	return true;
}

static void
append_name(TkBuffer *out, const char *name)
{
	if (out->data[out->len - 1] != '{')
		tk_buffer_char(out, ',');
	tk_json_string(out, name, strlen(name));
	tk_buffer_char(out, ':');
}

static void
append_text(TkBuffer *out, const char *name, const char *text, size_t len)
{
	if (out->failed)
		return;
	append_name(out, name);
	if (text == NULL || !is_text(text, len))
		tk_buffer_string(out, "null");
	else
		tk_json_string(out, text, len);
}

static void
append_string(TkBuffer *out, const char *name, const char *text)
{
	append_text(out, name, text, text == NULL ? 0 : strlen(text));
}

static void
append_number(TkBuffer *out, const char *name, uint64_t n)
{
	if (out->failed)
		return;
	append_name(out, name);
	tk_unsigned(out, n);
}

TkSpan
tk_encode_dead_letter(const TkDeadLetter *letter, TkBuffer *out)
{
	TkSpan		span = {out->len, 0};
	const char *key = letter->key;
	size_t		key_len = letter->key_len;

	/* Half of a character more or less: a cut-off key is text where the whole one is. */
	if (key != NULL && key_len > TK_DEAD_LETTER_KEY_MAX && is_text(key, key_len))
	{
		key_len = TK_DEAD_LETTER_KEY_MAX;
		while (((unsigned char) key[key_len] & 0xC0) == 0x80)
			key_len--;
	}

	tk_buffer_char(out, '{');
	append_string(out, "error", "record too large");
	append_string(out, "pipeline", letter->pipeline);
	append_string(out, "topic", letter->topic);
	append_string(out, "schema", letter->schema);
	append_string(out, "table", letter->table);
	append_text(out, "op", letter->op == 0 ? NULL : &letter->op, 1);
	append_text(out, "key", key, key_len);
	append_number(out, "key_size", letter->key_len);
	append_number(out, "size", letter->size);
	append_number(out, "limit", letter->limit);
	append_string(out, "limit_name", letter->limit_name);
	append_number(out, "xid", letter->transaction->xid);
	append_number(out, "lsn", letter->lsn);
	append_number(out, "commit_lsn", letter->transaction->commit_lsn);
	append_number(out, "commit_ts_us", (uint64_t) letter->transaction->commit_us);
	tk_buffer_char(out, '}');
	span.len = out->len - span.at;
	return span;
}
