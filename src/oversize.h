/*
 * oversize.h
 *	  Records that are larger than Kafka takes: how large one is there, and what
 *	  is told of it in its place.  Pure C.
 */
#ifndef TK_OVERSIZE_H
#define TK_OVERSIZE_H

#include "encode.h"

typedef struct TkRecordSize
{
	size_t		bytes;			/* of key, value and headers */
	size_t		client;			/* as librdkafka holds it against message.max.bytes */
	size_t		batch;			/* of a batch with only this record, not compressed: what the topic's
								 * max.message.bytes limits */
} TkRecordSize;

/* A header's part of "headers" below. */
extern size_t tk_header_size(size_t name_len, TkSpan value);

/* headers: the sum of their tk_header_size() */
extern TkRecordSize tk_record_size(TkSpan key, TkSpan value, size_t headers, int nheaders);

typedef struct TkDeadLetter
{
	const char *pipeline;
	const char *topic;			/* where the record belonged */
	const char *schema;			/* NULL: it is of no table */
	const char *table;
	char		op;				/* 'c' | 'u' | 'd' | 't'; 0: of no table */
	const char *key;			/* NULL: it has none */
	size_t		key_len;
	const TkTransaction *transaction;
	uint64_t	lsn;			/* of the change */
	size_t		size;
	size_t		limit;
	const char *limit_name;
} TkDeadLetter;

/* Appends the value of the record that is sent instead; the caller looks at out->failed. */
extern TkSpan tk_encode_dead_letter(const TkDeadLetter *letter, TkBuffer *out);

/* So much of the key is repeated in it. */
#define TK_DEAD_LETTER_KEY_MAX 1000

#endif							/* TK_OVERSIZE_H */
