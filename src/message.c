/*
 * message.c
 *	  Writing and reading produce()'s logical message.
 *
 * Every role can write messages with our prefix, so reading trusts nothing:
 * each length is checked against what is left before it is used, and all of
 * the message, headers too, is walked once before any of it counts.
 */
#include "message.h"

typedef struct Cursor
{
	const char *bytes;
	size_t		len;
	size_t		at;
	bool		bad;
} Cursor;

static void
put(TkBuffer *out, uint64_t n, int bytes)
{
	while (bytes-- > 0)
		tk_buffer_char(out, (char) (n >> (8 * bytes)));
}

static uint64_t
get(Cursor *c, int bytes)
{
	uint64_t	n = 0;

	if (c->len - c->at < (size_t) bytes)
	{
		c->bad = true;
		return 0;
	}
	while (bytes-- > 0)
		n = n << 8 | (unsigned char) c->bytes[c->at++];
	return n;
}

static void
put_bytes(TkBuffer *out, TkMessageBytes b)
{
	if (b.data == NULL)
	{
		put(out, UINT32_MAX, 4);
		return;
	}
	put(out, b.len, 4);
	tk_buffer_append(out, b.data, b.len);
}

static TkMessageBytes
take(Cursor *c, uint32_t len)
{
	TkMessageBytes b = {NULL, 0};

	if (c->bad || c->len - c->at < len)
	{
		c->bad = true;
		return b;
	}
	b.data = c->bytes + c->at;
	b.len = len;
	c->at += len;
	return b;
}

static TkMessageBytes
get_bytes(Cursor *c)
{
	uint32_t	len = (uint32_t) get(c, 4);
	TkMessageBytes null = {NULL, 0};

	return len == UINT32_MAX ? null : take(c, len);
}

static TkMessageBytes
get_name(Cursor *c)
{
	return take(c, (uint32_t) get(c, 2));
}

void
tk_message_format(TkBuffer *out, const TkProduced *m)
{
	put(out, TK_MESSAGE_VERSION, 1);
	put(out, m->key_id, 4);
	put(out, (uint32_t) m->pipeline_id, 4);
	put(out, m->xid, 8);
	put(out, m->number, 4);
	for (int i = 0; i < TK_MAC_SIZE; i++)
		tk_buffer_char(out, '\0');
	put(out, m->topic.len, 2);
	tk_buffer_append(out, m->topic.data, m->topic.len);
	put(out, (uint32_t) m->partition, 4);
	put_bytes(out, m->key);
	put_bytes(out, m->value);
	put(out, (uint64_t) m->nheaders, 2);
}

void
tk_message_add_header(TkBuffer *out, TkMessageBytes name, TkMessageBytes value)
{
	put(out, name.len, 2);
	tk_buffer_append(out, name.data, name.len);
	put_bytes(out, value);
}

bool
tk_message_parse(const char *bytes, size_t len, TkProduced *m)
{
	Cursor		c = {bytes, len, 0, false};

	if (get(&c, 1) != TK_MESSAGE_VERSION)
		return false;
	m->key_id = (uint32_t) get(&c, 4);
	m->pipeline_id = (int32_t) get(&c, 4);
	m->xid = get(&c, 8);
	m->number = (uint32_t) get(&c, 4);
	(void) take(&c, TK_MAC_SIZE);
	m->topic = get_name(&c);
	m->partition = (int32_t) get(&c, 4);
	m->key = get_bytes(&c);
	m->value = get_bytes(&c);
	m->nheaders = (int) get(&c, 2);
	if (c.bad || m->nheaders > TK_MESSAGE_HEADERS_MAX)
		return false;
	m->headers_at = c.at;
	for (int i = 0; i < m->nheaders; i++)
	{
		(void) get_name(&c);
		(void) get_bytes(&c);
	}
	return !c.bad && c.at == len;
}

void
tk_message_header(const char *bytes, size_t *at, TkMessageBytes *name, TkMessageBytes *value)
{
	/* tk_message_parse has seen that it is all there. */
	Cursor		c = {bytes, SIZE_MAX, *at, false};

	*name = get_name(&c);
	*value = get_bytes(&c);
	*at = c.at;
}
