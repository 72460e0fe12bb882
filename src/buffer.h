/*
 * buffer.h
 *	  A growing byte buffer on malloc, for code that must not know the server.
 *
 * One buffer is reused for every record, so in the steady state nothing is
 * allocated.  Running out of memory never aborts: it sets "failed", further
 * appends do nothing, and the caller looks once, at the end.
 */
#ifndef TK_BUFFER_H
#define TK_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct TkBuffer
{
	char	   *data;
	size_t		len;
	size_t		cap;
	bool		failed;			/* out of memory, or over TK_BUFFER_MAX */
} TkBuffer;

/* Kafka's sizes are 32 bit; PostgreSQL's values end at 1 GB, and JSON escapes can multiply them. */
#define TK_BUFFER_MAX	((size_t) 0x7fffffff)

extern bool tk_buffer_grow(TkBuffer *b, size_t more);
extern void tk_buffer_free(TkBuffer *b);

/* Empties the buffer and keeps its memory, unless a rare giant made it larger than "keep" bytes. */
extern void tk_buffer_reset(TkBuffer *b, size_t keep);

/* True if at least "more" bytes can be written at data + len. */
static inline bool
tk_buffer_reserve(TkBuffer *b, size_t more)
{
	return b->cap - b->len >= more || tk_buffer_grow(b, more);
}

static inline void
tk_buffer_append(TkBuffer *b, const char *bytes, size_t len)
{
	if (tk_buffer_reserve(b, len))
	{
		memcpy(b->data + b->len, bytes, len);
		b->len += len;
	}
}

static inline void
tk_buffer_char(TkBuffer *b, char c)
{
	if (tk_buffer_reserve(b, 1))
		b->data[b->len++] = c;
}

static inline void
tk_buffer_string(TkBuffer *b, const char *s)
{
	tk_buffer_append(b, s, strlen(s));
}

#endif							/* TK_BUFFER_H */
