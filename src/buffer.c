/*
 * buffer.c
 *	  A growing byte buffer on malloc.
 *
 * A failure sticks: it closes the buffer by setting cap to len, so that every
 * later append meets tk_buffer_grow, which refuses.  What was written before
 * stays readable, therefore code that patches an earlier byte is safe as long
 * as it wrote that byte.
 */
#include "buffer.h"

#include <stdlib.h>

#define SMALLEST	((size_t) 1024)

bool
tk_buffer_grow(TkBuffer *b, size_t more)
{
	size_t		cap;
	char	   *data = NULL;

	if (b->failed)
		return false;

	if (more <= TK_BUFFER_MAX && b->len <= TK_BUFFER_MAX - more)
	{
		/* Doubling keeps the copying linear; the last step is exact. */
		cap = b->cap < SMALLEST ? SMALLEST : b->cap;
		while (cap < b->len + more)
			cap = cap > TK_BUFFER_MAX / 2 ? TK_BUFFER_MAX : cap * 2;
		data = realloc(b->data, cap);
	}
	if (data == NULL)
	{
		b->failed = true;
		b->cap = b->len;
		return false;
	}
	b->data = data;
	b->cap = cap;
	return true;
}

void
tk_buffer_free(TkBuffer *b)
{
	free(b->data);
	memset(b, 0, sizeof(*b));
}

void
tk_buffer_reset(TkBuffer *b, size_t keep)
{
	/* After a failure cap no longer tells how much memory there is. */
	if (b->failed || b->cap > keep)
		tk_buffer_free(b);
	b->len = 0;
}
