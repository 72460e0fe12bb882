/*
 * kafka_rpc.h
 *	  Asks the transaction coordinator about transactions and ends them, over
 *	  connections of our own: what librdkafka has no call for.
 *
 * FindCoordinator v2, DescribeTransactions v0, EndTxn v2, ListTransactions v0
 * and Metadata v4, over TCP or TLS, with SASL PLAIN or SCRAM (SaslHandshake v1,
 * SaslAuthenticate v1).  Every broker from 3.0 to 4.4 has these versions, so
 * nobody asks for ApiVersions; an older broker closes the connection at
 * DescribeTransactions, and the message says what that can mean.  EndTxn is
 * never v5 or later: that would bump the epoch of a transaction that librdkafka
 * opened by the older protocol.
 *
 * The configuration is that of librdkafka's handles, with its names, aliases,
 * defaults and checks.  What this client can't do (OAUTHBEARER, GSSAPI, a
 * PKCS#12 key store, OpenSSL engines or providers, canonical bootstrap names)
 * is refused by tk_rpc_create with TK_CAUSE_CONFIGURATION; the caller then does
 * without.  Certificates and keys are read once, by tk_rpc_create.
 *
 * Results of the calls:
 *	  OK
 *	  RETRY		the wait is over, it was interrupted, or a broker or a
 *				certificate was not accepted (TK_CAUSE_AUTHENTICATION comes at once)
 *	  FENCED	INVALID_PRODUCER_EPOCH or PRODUCER_FENCED; code says which
 *	  FATAL		the coordinator refused; code is its error, cause where known.
 *				Or nonsense was answered: code RD_KAFKA_RESP_ERR__BAD_MSG
 *
 * A TkRpc is used by one thread at a time.  Connections are kept between calls
 * and made again when they break.  No wait is longer than the caller's, and
 * interrupted() is asked at least every 100 ms; a name is looked up by a thread
 * that is left behind if it hangs.
 */
#ifndef TK_KAFKA_RPC_H
#define TK_KAFKA_RPC_H

#include "kafka_client.h"

typedef struct TkRpc TkRpc;

typedef enum TkTransactionState
{
	TK_TRANSACTION_OTHER,		/* a state that this client doesn't know */
	TK_TRANSACTION_EMPTY,
	TK_TRANSACTION_ONGOING,
	TK_TRANSACTION_PREPARE_COMMIT,
	TK_TRANSACTION_PREPARE_ABORT,
	TK_TRANSACTION_COMPLETE_COMMIT,
	TK_TRANSACTION_COMPLETE_ABORT,
	TK_TRANSACTION_DEAD,
	TK_TRANSACTION_PREPARE_EPOCH_FENCE
} TkTransactionState;

typedef struct TkTransactionDescription
{
	bool		found;			/* false: the coordinator knows no such transactional id */
	TkTransactionState state;
	int32_t		timeout_ms;
	int64_t		start_ms;		/* since 1970, by the coordinator's clock, of the last transaction; -1: there was
								 * none */
	int64_t		producer_id;
	int16_t		epoch;
	int			partitions;		/* in the transaction; while it is being ended, those without a marker */
} TkTransactionDescription;

typedef struct TkListedTransaction
{
	char	   *transactional_id;	/* bytes as the broker sent them */
	TkTransactionState state;
	int64_t		producer_id;
	int32_t		coordinator;	/* broker id */
} TkListedTransaction;

typedef struct TkTransactionList
{
	int			n;
	TkListedTransaction *transactions;	/* by transactional_id, each once */
} TkTransactionList;

/* Kafka's own word for it. */
extern const char *tk_transaction_state_name(TkTransactionState state);

/* Talks to nobody yet. NULL on error. */
extern TkRpc *tk_rpc_create(const TkKafkaConf *conf, TkKafkaError *error);

extern TkKafkaStatus tk_rpc_describe(TkRpc *rpc, const char *transactional_id, const TkKafkaWait *wait,
									 TkTransactionDescription *description, TkKafkaError *error);

/*
 * Commits or aborts the transaction that this producer id and epoch have open.
 * COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR,
 * CONCURRENT_TRANSACTIONS and lost connections are tried again.  OK: the
 * coordinator has decided so, now or before; markers may still be on their way.
 *
 * After RETRY or BAD_MSG the outcome is not known, and the request may still be
 * on its way: the caller must not open another transaction with this producer id
 * and epoch.
 */
extern TkKafkaStatus tk_rpc_end(TkRpc *rpc, const char *transactional_id, int64_t producer_id, int16_t epoch,
								bool commit, const TkKafkaWait *wait, TkKafkaError *error);

/*
 * The transactional ids that begin with "prefix", of all coordinators.  Ids
 * that the broker doesn't let us see are missing without a word.  The list is
 * malloc'd: tk_transaction_list_free, also of an empty one.
 */
extern TkKafkaStatus tk_rpc_list(TkRpc *rpc, const char *prefix, const TkKafkaWait *wait,
								 TkTransactionList *list, TkKafkaError *error);
extern void tk_transaction_list_free(TkTransactionList *list);

extern void tk_rpc_destroy(TkRpc *rpc);

/* Does a name lookup hang that was left behind?  As tk_kafka_threads_left(): leave by _exit then. */
extern bool tk_rpc_threads_left(void);

#endif							/* TK_KAFKA_RPC_H */
