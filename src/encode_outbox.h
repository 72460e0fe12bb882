/*
 * encode_outbox.h
 *	  Rows of an outbox table in Debezium's shape → records.  Pure C.
 */
#ifndef TK_ENCODE_OUTBOX_H
#define TK_ENCODE_OUTBOX_H

#include "encode.h"
#include "route.h"

#define TK_OUTBOX_PREFIX "outbox.event."

/* Columns that an outbox must have; the last one only for the header eventType. */
#define TK_OUTBOX_COLUMNS 5
extern const char *const tk_outbox_columns[TK_OUTBOX_COLUMNS];

/* Finds the columns and makes the relation an outbox. Returns NULL, or the first column that it doesn't have. */
extern const char *tk_outbox_describe(TkRelation *relation, bool event_type);

/* The topic of an INSERT. Returns NULL, or why there is none (static text). */
extern const char *tk_outbox_topic(const TkChange *change, char topic[TK_TOPIC_MAX + 1]);

/* The record of an INSERT, as TkEncoder.encode: one record, one event. */
extern void tk_outbox_encode(const TkEncodeOptions *options, TkTransaction *transaction, const TkChange *change,
							 TkBuffer *out, TkRecord *record);

#endif							/* TK_ENCODE_OUTBOX_H */
