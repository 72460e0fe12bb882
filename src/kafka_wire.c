/*
 * kafka_wire.c
 *	  Kafka's wire format: big-endian numbers, strings, arrays.
 *
 * Writing goes to a TkBuffer, whose failure sticks.  Reading never looks
 * beyond the answer, whatever lengths and counts it claims: a claim that the
 * bytes left can't hold makes it bad, and everything read from then on is 0
 * or empty, so that loops end.
 */
#include "kafka_connection.h"

static void
put(TkBuffer *b, uint64_t value, int bytes)
{
	int			shift;

	for (shift = (bytes - 1) * 8; shift >= 0; shift -= 8)
		tk_buffer_char(b, (char) (value >> shift));
}

void
tk_put_i8(TkBuffer *b, int8_t value)
{
	put(b, (uint64_t) value, 1);
}

void
tk_put_i16(TkBuffer *b, int16_t value)
{
	put(b, (uint64_t) value, 2);
}

void
tk_put_i32(TkBuffer *b, int32_t value)
{
	put(b, (uint64_t) value, 4);
}

void
tk_put_i64(TkBuffer *b, int64_t value)
{
	put(b, (uint64_t) value, 8);
}

void
tk_put_uvarint(TkBuffer *b, uint32_t value)
{
	for (; value >= 0x80; value >>= 7)
		tk_buffer_char(b, (char) (value | 0x80));
	tk_buffer_char(b, (char) value);
}

/* At most INT16_MAX bytes, which the caller has seen to. */
void
tk_put_string(TkBuffer *b, const char *value)
{
	tk_put_i16(b, (int16_t) strlen(value));
	tk_buffer_string(b, value);
}

void
tk_put_compact_string(TkBuffer *b, const char *value)
{
	tk_put_uvarint(b, (uint32_t) strlen(value) + 1);
	tk_buffer_string(b, value);
}

const char *
tk_get_bytes(TkAnswer *a, size_t len)
{
	const char *bytes = (const char *) a->at;

	if (a->bad || (size_t) (a->end - a->at) < len)
	{
		a->bad = true;
		return NULL;
	}
	a->at += len;
	return bytes;
}

static uint64_t
get(TkAnswer *a, int bytes)
{
	const unsigned char *at = (const unsigned char *) tk_get_bytes(a, (size_t) bytes);
	uint64_t	value = 0;
	int			i;

	if (at)
		for (i = 0; i < bytes; i++)
			value = value << 8 | at[i];
	return value;
}

int8_t
tk_get_i8(TkAnswer *a)
{
	return (int8_t) get(a, 1);
}

int16_t
tk_get_i16(TkAnswer *a)
{
	return (int16_t) get(a, 2);
}

int32_t
tk_get_i32(TkAnswer *a)
{
	return (int32_t) get(a, 4);
}

int64_t
tk_get_i64(TkAnswer *a)
{
	return (int64_t) get(a, 8);
}

uint32_t
tk_get_uvarint(TkAnswer *a)
{
	uint64_t	value = 0;
	int			shift;

	for (shift = 0; shift < 35; shift += 7)
	{
		uint64_t	byte = get(a, 1);

		value |= (byte & 0x7f) << shift;
		if (byte < 0x80)
		{
			if (value > UINT32_MAX)
				break;
			return (uint32_t) value;
		}
	}
	a->bad = true;
	return 0;
}

static const char *
get_text(TkAnswer *a, size_t n, size_t *len)
{
	const char *text = tk_get_bytes(a, n);

	*len = text ? n : 0;
	return text;
}

const char *
tk_get_string(TkAnswer *a, size_t *len)
{
	int16_t		n = tk_get_i16(a);

	*len = 0;
	if (n < 0)
	{
		if (n < -1)
			a->bad = true;
		return NULL;
	}
	return get_text(a, (size_t) n, len);
}

const char *
tk_get_compact_string(TkAnswer *a, size_t *len)
{
	uint32_t	n = tk_get_uvarint(a);

	*len = 0;
	if (n == 0)
		return NULL;
	return get_text(a, n - 1, len);
}

/* An array's number of elements, each of at least element_min bytes. */
static int
count(TkAnswer *a, int64_t n, size_t element_min)
{
	if (a->bad || n < 0 || (uint64_t) n > (uint64_t) (a->end - a->at) / element_min)
	{
		a->bad = true;
		return 0;
	}
	return (int) n;
}

int
tk_get_count(TkAnswer *a, size_t element_min)
{
	return count(a, tk_get_i32(a), element_min);
}

int
tk_get_compact_count(TkAnswer *a, size_t element_min)
{
	return count(a, (int64_t) tk_get_uvarint(a) - 1, element_min);
}

void
tk_skip_tags(TkAnswer *a)
{
	uint32_t	n = tk_get_uvarint(a);

	while (n-- > 0 && !a->bad)
	{
		tk_get_uvarint(a);
		tk_get_bytes(a, tk_get_uvarint(a));
	}
}

/* The versions are fixed, so nothing may follow what they consist of. */
bool
tk_answer_is_whole(const TkAnswer *a)
{
	return !a->bad && a->at == a->end;
}
