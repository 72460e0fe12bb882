/*
 * large.h
 *	  What is done with a record that is larger than Kafka takes.
 */
#ifndef TK_LARGE_H
#define TK_LARGE_H

#include "append.h"
#include "encode.h"

/* Needs the pool. */
extern void tk_large_init(const TkEncodeOptions *options);

/* Precomputes what the hot path asks; the topic's limit is known now, or will not be. */
extern void tk_large_note_limit(TkTopicRoute *route);

/*
 * Looks closer at a record of "easy" bytes or more, with all its headers but for
 * pg.last.  False: it may be sent.  True: it is too large, and another one is to
 * be sent in its place, to *route, with *value, without headers but those that
 * tell of the transaction.  Where the pipeline is to fail, it stops here.
 */
extern bool tk_large_replaced(TkTopicRoute **route, const TkRelation *relation, char op, TkSpan *key, TkSpan *value,
							  size_t headers, int nheaders, const TkTransaction *transaction, uint64 lsn);

/* Is a record of so many bytes (keys, value, headers' values) worth that look? */
static inline bool
tk_maybe_large(const TkTopicRoute *route, size_t bytes)
{
	return unlikely(bytes >= route->easy);
}

#endif							/* TK_LARGE_H */
