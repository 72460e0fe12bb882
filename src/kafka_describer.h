/*
 * kafka_describer.h
 *	  Asks the coordinator about a transaction while its records are being
 *	  acknowledged: a thread with connections of its own.
 */
#ifndef TK_KAFKA_DESCRIBER_H
#define TK_KAFKA_DESCRIBER_H

#include "kafka_rpc.h"

typedef struct TkDescriber TkDescriber;

/* Talks to nobody yet. NULL on error: TK_CAUSE_CONFIGURATION if kafka_rpc.c can't be configured so. */
extern TkDescriber *tk_describer_create(const TkKafkaConf *conf, const char *transactional_id, TkKafkaError *error);

/* Asks; a question that was not answered yet is forgotten.  From any thread; never waits for the network. */
extern void tk_describer_ask(TkDescriber *d);

/*
 * The answer to the last question, waited for at most timeout_ms.  False: there
 * is none, and error says why.
 */
extern bool tk_describer_answer(TkDescriber *d, int timeout_ms, TkTransactionDescription *description,
								TkKafkaError *error);

/* Waits at most timeout_ms; false: the thread is left behind. */
extern bool tk_describer_destroy(TkDescriber *d, int timeout_ms);

#endif							/* TK_KAFKA_DESCRIBER_H */
