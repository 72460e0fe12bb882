/*
 * message.h
 *	  The logical message that kafka.produce() writes into the WAL.  Pure C.
 *
 * Layout, big-endian:
 *	  version u8 = 1, key id u32, pipeline i32, xid u64, number u32, mac 32 bytes,
 *	  topic u16 + bytes, partition i32, key i32 + bytes (-1 = null), value likewise,
 *	  headers u16, each: name u16 + bytes, value i32 + bytes (-1 = null)
 * The mac is over everything but itself.
 */
#ifndef TK_MESSAGE_H
#define TK_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

#define TK_MESSAGE_PREFIX	"transactional_kafka"
#define TK_MESSAGE_VERSION	1
#define TK_MAC_AT			21
#define TK_MAC_SIZE			32
#define TK_MESSAGE_HEADERS_MAX 1000

typedef struct TkMessageBytes
{
	const char *data;			/* NULL = Kafka's null */
	uint32_t	len;
} TkMessageBytes;

typedef struct TkProduced
{
	uint32_t	key_id;			/* of the HMAC key */
	int32_t		pipeline_id;
	uint64_t	xid;			/* 64-bit id of the top-level transaction */
	uint32_t	number;			/* counts up within the transaction; gaps are fine */
	TkMessageBytes topic;
	int32_t		partition;		/* -1: by key */
	TkMessageBytes key;
	TkMessageBytes value;
	int			nheaders;
	size_t		headers_at;		/* for tk_message_header */
} TkProduced;

/* Appends the message with a mac of zeros; its headers follow by tk_message_add_header. */
extern void tk_message_format(TkBuffer *out, const TkProduced *message);
extern void tk_message_add_header(TkBuffer *out, TkMessageBytes name, TkMessageBytes value);

/* Points into "bytes". False: it isn't one, or it is cut or has something behind it. */
extern bool tk_message_parse(const char *bytes, size_t len, TkProduced *message);

/* Reads the header at *at and moves *at behind it; only as often as nheaders says. */
extern void tk_message_header(const char *bytes, size_t *at, TkMessageBytes *name, TkMessageBytes *value);

#endif							/* TK_MESSAGE_H */
