/*
 * append.h
 *	  Records on their way: encoded, and not yet given to librdkafka.
 */
#ifndef TK_APPEND_H
#define TK_APPEND_H

#include "encode.h"
#include "pipeline.h"

/* A topic, and its handles. */
typedef struct TkTopicRoute
{
	char		topic[TK_TOPIC_MAX + 1];	/* hash key */
	bool		exists;
	bool		reserved;		/* for what the pipeline itself writes: no table's */
	Oid			table;			/* the one that has it by its name; Invalid: none yet */
	Oid			outbox;			/* one whose records it gets; Invalid: none yet */
	bool		asked;			/* for its limit */
	size_t		max_batch;		/* its max.message.bytes; 0: not known */
	size_t		easy;			/* a record whose key and value are less is not too large */
	TkProducerTopic *handles[TK_PRODUCERS]; /* NULL: not made yet */
} TkTopicRoute;

extern void tk_append_init(void);

/* Where the bytes of the next record are to be written; the caller looks at "failed". */
extern TkBuffer *tk_append_buffer(void);

/* A record whose bytes are in that buffer.  It is the pipeline's next one, in order. */
extern void tk_append(TkTopicRoute *route, int32 partition, TkSpan key, TkSpan value);

/* A header of the last record.  name: static; or NULL, then it is in the buffer, with a NUL, at name_at. */
extern void tk_append_header(const char *name, size_t name_at, TkSpan value);

/*
 * To be called at the end of a record: gives what has gathered to librdkafka,
 * if it is worth it.  keep_last: all but the last record, which may get another
 * header.  While the checkpoint before is not acknowledged nothing may be sent:
 * it gathers, until there is so much of it that this waits.
 */
extern void tk_append_done(bool keep_last);

/* Gives librdkafka all that has gathered, if it may be sent now. */
extern void tk_append_all(void);

#endif							/* TK_APPEND_H */
