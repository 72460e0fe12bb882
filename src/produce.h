/*
 * produce.h
 *	  produce()'s messages: who may write them, and whether one is genuine.
 */
#ifndef TK_PRODUCE_H
#define TK_PRODUCE_H

#include "postgres.h"

#include "message.h"
#include "registry.h"

/*
 * The worker, in a transaction with SPI: reads the keys that messages may be
 * signed with, and lets sessions know the newest.
 */
extern void tk_produce_load_keys(MemoryContext context, TkPipelineEntry *entry);

/*
 * The worker, now and then, outside of a transaction and between WAL records:
 * takes the end of older keys on, and deletes those that no pipeline needs.
 */
extern void tk_produce_settle_keys(TkPipelineEntry *entry);

/*
 * Is this a message that kafka.produce() wrote for this pipeline, in the
 * transaction "xid" and after the one numbered "last"?  Fills *message.  No
 * catalog access: may be called while decoding.
 */
extern bool tk_produce_verify(const char *bytes, size_t len, int32 pipeline_id, TransactionId xid, int64 last,
							  TkProduced *message);

#endif							/* TK_PRODUCE_H */
