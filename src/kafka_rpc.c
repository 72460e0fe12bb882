/*
 * kafka_rpc.c
 *	  Asks the transaction coordinator about transactions and ends them.
 *
 * Each call is one loop: find the coordinator, connect, ask, and on whatever
 * passes (a lost connection, a coordinator that moved or is loading) do it all
 * again, until the caller's wait is over.  Only what a retry doesn't change ends
 * it sooner: a refusal, nonsense, a certificate or password that is not accepted.
 *
 * EndTxn may be repeated because it names its transaction by producer id and
 * epoch and says what to do with it: the coordinator answers the repeat of a
 * commit that is done with success.  The version stays the same, as a repeat in
 * another one would mean another thing.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "kafka_connection.h"
#include "kafka_rpc.h"

#define CONNECTIONS_MAX		8	/* kept; the one used longest ago makes room */
#define COORDINATORS_MAX	64	/* remembered, in turn */
#define BACKOFF_MIN_MS		10
#define BACKOFF_MAX_MS		500
#define ID_MAX				INT16_MAX
#define LISTED_MAX			200000	/* a prefix that more ids have is none of ours */

#define SMALL_ANSWER		65536
#define LARGE_ANSWER		(8 * 1024 * 1024)

/* Errors of brokers that librdkafka 2.0.2 has no name for */
#define TRANSACTIONAL_ID_NOT_FOUND	105

static const TkApi metadata_api = {3, 4, false, "Metadata", LARGE_ANSWER};
static const TkApi find_coordinator_api = {10, 2, false, "FindCoordinator", SMALL_ANSWER};
static const TkApi end_txn_api = {26, 2, false, "EndTxn", SMALL_ANSWER};
static const TkApi describe_api = {65, 0, true, "DescribeTransactions", LARGE_ANSWER};
static const TkApi list_api = {66, 0, true, "ListTransactions", TK_BUFFER_MAX};

typedef struct Coordinator
{
	char	   *transactional_id;	/* NULL: a free place */
	TkServer	server;
} Coordinator;

struct TkRpc
{
	TkNet		net;
	TkConnection connections[CONNECTIONS_MAX];
	uint64_t	clock;
	int			next_server;	/* of the bootstrap servers */
	Coordinator coordinators[COORDINATORS_MAX];
	int			next_coordinator;
	TkBuffer	body;
};

/* One call of a caller's. */
typedef struct Call
{
	TkRpc	   *rpc;
	const char *what;			/* for messages */
	TkDeadline	deadline;
	int			backoff_ms;
	bool		hurried;		/* a broken connection was once replaced without a pause */
	bool		stale;			/* what broke now was a kept connection */
	TkClient	last;			/* the trouble of the try before this one */
	TkKafkaError *error;
	TkKafkaError unwanted;		/* the caller may want none */
} Call;

typedef enum Step
{
	STEP_DONE,
	STEP_AGAIN,					/* net.trouble says why */
	STEP_STOP					/* call->error is set */
} Step;

static const struct
{
	TkTransactionState state;
	const char *name;
}			states[] =

{
	{TK_TRANSACTION_EMPTY, "Empty"},
	{TK_TRANSACTION_ONGOING, "Ongoing"},
	{TK_TRANSACTION_PREPARE_COMMIT, "PrepareCommit"},
	{TK_TRANSACTION_PREPARE_ABORT, "PrepareAbort"},
	{TK_TRANSACTION_COMPLETE_COMMIT, "CompleteCommit"},
	{TK_TRANSACTION_COMPLETE_ABORT, "CompleteAbort"},
	{TK_TRANSACTION_DEAD, "Dead"},
	{TK_TRANSACTION_PREPARE_EPOCH_FENCE, "PrepareEpochFence"},
};

#define NSTATES ((int) (sizeof(states) / sizeof(states[0])))

const char *
tk_transaction_state_name(TkTransactionState state)
{
	int			i;

	for (i = 0; i < NSTATES; i++)
		if (states[i].state == state)
			return states[i].name;
	return "other";
}

static TkTransactionState
state_of(const char *name, size_t len)
{
	int			i;

	for (i = 0; name && i < NSTATES; i++)
		if (strlen(states[i].name) == len && memcmp(states[i].name, name, len) == 0)
			return states[i].state;
	return TK_TRANSACTION_OTHER;
}


/*
 * Trying again
 */

static void
begin_call(Call *call, TkRpc *rpc, const char *what, const TkKafkaWait *wait, TkKafkaError *error)
{
	call->rpc = rpc;
	call->what = what;
	call->deadline = tk_deadline(wait);
	call->backoff_ms = 0;
	call->hurried = false;
	call->stale = false;
	call->last.trouble_code = 0;
	call->error = error ? error : &call->unwanted;
	tk_ok(call->error);
	rpc->net.trouble.trouble_code = 0;
}

static int
left_ms(const Call *call)
{
	int64_t		left = call->deadline.end_ms - tk_now_ms();

	return left > 0 ? (int) left : 0;
}

/* The last try may only have been cut short: then the one before it knows more. */
static bool
give_up(Call *call)
{
	TkClient   *trouble = &call->rpc->net.trouble;

	if (call->last.trouble_code != 0 &&
		(trouble->trouble_code == 0 || trouble->trouble_code == RD_KAFKA_RESP_ERR__TIMED_OUT))
		*trouble = call->last;
	tk_gave_up(trouble, &call->deadline, call->what, call->error);
	return false;
}

/*
 * After STEP_AGAIN.  False: the call ends, call->error is set.  Else some time
 * has passed, but for the first time that only a kept connection was broken, and
 * some is left: nothing is sent whose answer can't be waited for.
 */
static bool
try_again(Call *call)
{
	TkClient   *trouble = &call->rpc->net.trouble;
	int			code = trouble->trouble_code;
	int			pause_ms;

	if (code == RD_KAFKA_RESP_ERR__BAD_MSG || code == RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE)
	{
		tk_fail(call->error, TK_KAFKA_FATAL, tk_cause(code), code, "%s: %s", call->what, trouble->trouble);
		return false;
	}
	if (tk_is_over(&call->deadline) || tk_is_hopeless(trouble))
		return give_up(call);

	if (call->stale && !call->hurried)
		call->hurried = true;
	else
	{
		call->backoff_ms = call->backoff_ms == 0 ? BACKOFF_MIN_MS : call->backoff_ms * 2;
		if (call->backoff_ms > BACKOFF_MAX_MS)
			call->backoff_ms = BACKOFF_MAX_MS;
		for (pause_ms = call->backoff_ms; pause_ms > 0 && !tk_is_over(&call->deadline); pause_ms -= TK_SLICE_MS)
			poll(NULL, 0, tk_slice(&call->deadline, pause_ms < TK_SLICE_MS ? pause_ms : TK_SLICE_MS));
		if (tk_is_over(&call->deadline))
			return give_up(call);
	}
	call->stale = false;
	call->last = *trouble;
	trouble->trouble_code = 0;
	return true;
}

/* The coordinator's errors that pass by themselves. */
static bool
passes(int code)
{
	return code == RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS ||
		code == RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE ||
		code == RD_KAFKA_RESP_ERR_NOT_COORDINATOR ||
		code == RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS;
}

static bool
has_moved(int code)
{
	return code == RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE || code == RD_KAFKA_RESP_ERR_NOT_COORDINATOR;
}

/* A broker's error code that isn't 0. */
static Step
broker_error(Call *call, const TkConnection *c, const TkApi *api, int code, const char *acl)
{
	TkNet	   *net = &call->rpc->net;

	if (passes(code))
	{
		tk_trouble(net, NULL, code, "%s:%d: %s: %s", c->server.host, c->server.port, api->name,
				   rd_kafka_err2str(code));
		return STEP_AGAIN;
	}
	if (tk_cause(code) == TK_CAUSE_AUTHORIZATION)
		tk_fail(call->error, TK_KAFKA_FATAL, TK_CAUSE_AUTHORIZATION, code, "%s: %s: %s (needs the ACL %s)", call->what,
				api->name, rd_kafka_err2str(code), acl);
	else
		tk_fail(call->error, tk_is_fenced(code) ? TK_KAFKA_FENCED : TK_KAFKA_FATAL, tk_cause(code), code,
				"%s: %s: %s", call->what, api->name, rd_kafka_err2str(code));
	return STEP_STOP;
}


/*
 * Connections
 */

/* An open connection to the server; NULL: there is trouble. */
static TkConnection *
connection_to(Call *call, const TkServer *server, int limit_ms)
{
	TkRpc	   *rpc = call->rpc;
	TkConnection *oldest = NULL;
	int			i;

	for (i = 0; i < CONNECTIONS_MAX; i++)
	{
		TkConnection *c = &rpc->connections[i];

		if (c->fd >= 0 && c->server.port == server->port && strcmp(c->server.host, server->host) == 0 &&
			tk_connection_usable(c))
		{
			c->used = ++rpc->clock;
			return c;
		}
		if (c->fd < 0)
			c->used = 0;
		if (oldest == NULL || c->used < oldest->used)
			oldest = c;
	}
	if (!tk_connection_open(&rpc->net, oldest, server, &call->deadline, limit_ms))
		return NULL;
	oldest->used = ++rpc->clock;
	return oldest;
}

/* A connection to any broker: the bootstrap servers in turn, from the one that worked last. */
static TkConnection *
any_connection(Call *call)
{
	TkRpc	   *rpc = call->rpc;
	int			i;

	for (i = 0; i < rpc->net.nservers; i++)
	{
		int			left = left_ms(call);
		TkConnection *c;

		/* A server that is dead silently must not take the time of the next. */
		c = connection_to(call, &rpc->net.servers[rpc->next_server], i + 1 < rpc->net.nservers ? left / 2 : left);
		if (c)
			return c;
		rpc->next_server = (rpc->next_server + 1) % rpc->net.nservers;
		if (tk_is_hopeless(&rpc->net.trouble) || tk_is_over(&call->deadline))
			break;
	}
	return NULL;
}

/*
 * Sends rpc->body and waits for the answer; false: there is trouble.  A broker
 * closes the connection when it doesn't know the request at all.
 */
static bool
request(Call *call, TkConnection *c, const TkApi *api, TkAnswer *answer)
{
	TkRpc	   *rpc = call->rpc;
	TkNet	   *net = &rpc->net;
	bool		was_proven = c->proven;
	int			left = left_ms(call);

	if (tk_connection_request(net, c, api, &rpc->body, &call->deadline, left < net->request_ms ? left : net->request_ms,
							  answer))
	{
		c->proven = true;
		return true;
	}
	if (net->trouble.trouble_code == RD_KAFKA_RESP_ERR__TRANSPORT)
	{
		size_t		len = strlen(net->trouble.trouble);

		call->stale = was_proven;
		snprintf(net->trouble.trouble + len, sizeof(net->trouble.trouble) - len, ", at %s%s", api->name,
				 api == &describe_api || api == &list_api ? " (brokers before 3.0 don't know it)" : "");
	}
	return false;
}

/* Answers are taken whole or not at all. */
static bool
whole(Call *call, TkConnection *c, const TkApi *api, const TkAnswer *answer)
{
	if (tk_answer_is_whole(answer))
	{
		/* Whatever was wrong with a connection is not what stops us. */
		call->rpc->net.trouble.trouble_code = 0;
		return true;
	}
	return tk_bad_answer(&call->rpc->net, c, api, "nonsense");
}

/* Copies an address that a broker named; false if it can't be one. */
static bool
read_server(TkServer *server, const char *host, size_t len, int32_t port)
{
	size_t		i;

	if (host == NULL || len == 0 || len > TK_HOST_MAX || port < 1 || port > 65535)
		return false;
	for (i = 0; i < len; i++)
		if (host[i] <= ' ' || host[i] > '~')
			return false;
	memcpy(server->host, host, len);
	server->host[len] = '\0';
	server->port = port;
	return true;
}


/*
 * Coordinators
 */

static Coordinator *
known_coordinator(TkRpc *rpc, const char *id)
{
	int			i;

	for (i = 0; i < COORDINATORS_MAX; i++)
		if (rpc->coordinators[i].transactional_id && strcmp(rpc->coordinators[i].transactional_id, id) == 0)
			return &rpc->coordinators[i];
	return NULL;
}

static void
forget_coordinator(TkRpc *rpc, const char *id)
{
	Coordinator *known = known_coordinator(rpc, id);

	if (known)
	{
		free(known->transactional_id);
		known->transactional_id = NULL;
	}
}

static void
remember_coordinator(TkRpc *rpc, const char *id, const TkServer *server)
{
	Coordinator *place = &rpc->coordinators[rpc->next_coordinator];

	rpc->next_coordinator = (rpc->next_coordinator + 1) % COORDINATORS_MAX;
	free(place->transactional_id);
	place->transactional_id = strdup(id);	/* NULL: then it isn't remembered */
	place->server = *server;
}

static Step
ask_for_coordinator(Call *call, const char *id, TkServer *server)
{
	TkRpc	   *rpc = call->rpc;
	TkConnection *c = any_connection(call);
	TkAnswer	answer;
	const char *host;
	size_t		len;
	int			code;
	int32_t		port;

	if (c == NULL)
		return STEP_AGAIN;
	tk_buffer_reset(&rpc->body, SMALL_ANSWER);
	tk_put_string(&rpc->body, id);
	tk_put_i8(&rpc->body, 1);	/* a transactional id */
	if (!request(call, c, &find_coordinator_api, &answer))
	{
		rpc->next_server = (rpc->next_server + 1) % rpc->net.nservers;
		return STEP_AGAIN;
	}
	(void) tk_get_i32(&answer); /* throttle time */
	code = tk_get_i16(&answer);
	(void) tk_get_string(&answer, &len);	/* the error's message */
	(void) tk_get_i32(&answer); /* broker id */
	host = tk_get_string(&answer, &len);
	port = tk_get_i32(&answer);
	if (!whole(call, c, &find_coordinator_api, &answer))
		return STEP_AGAIN;
	if (code != 0)
	{
		/* Perhaps another broker knows more. */
		rpc->next_server = (rpc->next_server + 1) % rpc->net.nservers;
		return broker_error(call, c, &find_coordinator_api, code, "Describe on the transactional id");
	}
	if (!read_server(server, host, len, port))
	{
		tk_bad_answer(&rpc->net, c, &find_coordinator_api, "an impossible address");
		return STEP_AGAIN;
	}
	remember_coordinator(rpc, id, server);
	return STEP_DONE;
}

static Step
coordinator_connection(Call *call, const char *id, TkConnection **c)
{
	Coordinator *known = known_coordinator(call->rpc, id);
	TkServer	server;

	if (known)
		server = known->server;
	else
	{
		Step		step = ask_for_coordinator(call, id, &server);

		if (step != STEP_DONE)
			return step;
	}
	*c = connection_to(call, &server, left_ms(call));
	if (*c == NULL)
	{
		forget_coordinator(call->rpc, id);
		return STEP_AGAIN;
	}
	return STEP_DONE;
}

/* The request goes by way of rpc->body, which finding the coordinator uses too. */
static Step
ask_coordinator(Call *call, const char *id, const TkApi *api, const TkBuffer *body, TkConnection **c,
				TkAnswer *answer)
{
	Step		step = coordinator_connection(call, id, c);

	if (step != STEP_DONE)
		return step;
	tk_buffer_reset(&call->rpc->body, SMALL_ANSWER);
	tk_buffer_append(&call->rpc->body, body->data, body->len);
	if (!request(call, *c, api, answer))
	{
		/* It may be gone for good. */
		forget_coordinator(call->rpc, id);
		return STEP_AGAIN;
	}
	return STEP_DONE;
}

static bool
id_is_possible(const char *id, const char *what, TkKafkaError *error)
{
	if (strlen(id) <= ID_MAX)
		return true;
	tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG,
			"%s: it is longer than %d bytes", what, ID_MAX);
	return false;
}


/*
 * DescribeTransactions
 */

static bool
read_description(TkAnswer *a, const char *id, int *code, TkTransactionDescription *d)
{
	const char *name;
	size_t		len;
	int			topics;

	(void) tk_get_i32(a);		/* throttle time */
	if (tk_get_compact_count(a, 1) != 1)
		return false;
	*code = tk_get_i16(a);
	name = tk_get_compact_string(a, &len);
	if (name == NULL || len != strlen(id) || memcmp(name, id, len) != 0)
		return false;
	name = tk_get_compact_string(a, &len);
	d->state = state_of(name, len);
	d->timeout_ms = tk_get_i32(a);
	d->start_ms = tk_get_i64(a);
	d->producer_id = tk_get_i64(a);
	d->epoch = tk_get_i16(a);
	d->partitions = 0;
	for (topics = tk_get_compact_count(a, 3); topics > 0 && !a->bad; topics--)
	{
		int			n;

		if (tk_get_compact_string(a, &len) == NULL)
			return false;
		n = tk_get_compact_count(a, 4);
		tk_get_bytes(a, (size_t) n * 4);
		d->partitions += n;
		tk_skip_tags(a);
	}
	tk_skip_tags(a);
	tk_skip_tags(a);
	return true;
}

static Step
describe_once(Call *call, const char *id, const TkBuffer *body, TkTransactionDescription *d)
{
	TkConnection *c;
	TkAnswer	answer;
	int			code = 0;
	Step		step = ask_coordinator(call, id, &describe_api, body, &c, &answer);

	if (step != STEP_DONE)
		return step;
	if (!read_description(&answer, id, &code, d))
		answer.bad = true;
	if (!whole(call, c, &describe_api, &answer))
		return STEP_AGAIN;
	d->found = code == 0;
	if (code == 0 || code == TRANSACTIONAL_ID_NOT_FOUND)
		return STEP_DONE;
	if (has_moved(code))
		forget_coordinator(call->rpc, id);
	return broker_error(call, c, &describe_api, code, "Describe on the transactional id");
}

TkKafkaStatus
tk_rpc_describe(TkRpc *rpc, const char *id, const TkKafkaWait *wait, TkTransactionDescription *d, TkKafkaError *error)
{
	Call		call;
	TkBuffer	body;
	char		what[300];
	Step		step;

	snprintf(what, sizeof(what), "describing transactional id \"%s\"", id);
	if (!id_is_possible(id, what, error))
		return TK_KAFKA_FATAL;
	memset(&body, 0, sizeof(body));
	tk_put_uvarint(&body, 2);	/* one */
	tk_put_compact_string(&body, id);
	tk_put_uvarint(&body, 0);

	begin_call(&call, rpc, what, wait, error);
	do
	{
		memset(d, 0, sizeof(*d));
		d->start_ms = -1;
		step = describe_once(&call, id, &body, d);
	} while (step == STEP_AGAIN && try_again(&call));
	tk_buffer_free(&body);
	return call.error->status;
}


/*
 * EndTxn
 */

static Step
end_once(Call *call, const char *id, const TkBuffer *body)
{
	TkConnection *c;
	TkAnswer	answer;
	int			code;
	Step		step = ask_coordinator(call, id, &end_txn_api, body, &c, &answer);

	if (step != STEP_DONE)
		return step;
	(void) tk_get_i32(&answer); /* throttle time */
	code = tk_get_i16(&answer);
	if (!whole(call, c, &end_txn_api, &answer))
		return STEP_AGAIN;
	if (code == 0)
		return STEP_DONE;
	if (has_moved(code))
		forget_coordinator(call->rpc, id);
	return broker_error(call, c, &end_txn_api, code, "Write on the transactional id");
}

TkKafkaStatus
tk_rpc_end(TkRpc *rpc, const char *id, int64_t producer_id, int16_t epoch, bool commit, const TkKafkaWait *wait,
		   TkKafkaError *error)
{
	Call		call;
	TkBuffer	body;
	char		what[300];
	Step		step;

	snprintf(what, sizeof(what), "%s the transaction of transactional id \"%s\"",
			 commit ? "committing" : "aborting", id);
	if (!id_is_possible(id, what, error))
		return TK_KAFKA_FATAL;
	memset(&body, 0, sizeof(body));
	tk_put_string(&body, id);
	tk_put_i64(&body, producer_id);
	tk_put_i16(&body, epoch);
	tk_put_i8(&body, commit);

	begin_call(&call, rpc, what, wait, error);
	do
		step = end_once(&call, id, &body);
	while (step == STEP_AGAIN && try_again(&call));
	tk_buffer_free(&body);
	return call.error->status;
}


/*
 * ListTransactions: each broker knows those it coordinates
 */

typedef struct Broker
{
	int32_t		id;
	TkServer	server;
} Broker;

static Step
ask_for_brokers(Call *call, Broker **brokers, int *nbrokers)
{
	TkRpc	   *rpc = call->rpc;
	TkConnection *c = any_connection(call);
	TkAnswer	answer;
	size_t		len;
	int			n;
	int			i;
	bool		possible = true;

	if (c == NULL)
		return STEP_AGAIN;
	tk_buffer_reset(&rpc->body, SMALL_ANSWER);
	tk_put_i32(&rpc->body, 0);	/* no topics */
	tk_put_i8(&rpc->body, 0);	/* make none */
	if (!request(call, c, &metadata_api, &answer))
	{
		rpc->next_server = (rpc->next_server + 1) % rpc->net.nservers;
		return STEP_AGAIN;
	}
	(void) tk_get_i32(&answer); /* throttle time */
	n = tk_get_count(&answer, 12);
	/* A broker takes more memory here than in the answer: a cluster of so many isn't one. */
	*brokers = n > 0 && n <= 10000 ? calloc((size_t) n, sizeof(Broker)) : NULL;
	for (i = 0; i < n && *brokers && !answer.bad; i++)
	{
		const char *host;
		int32_t		port;

		(*brokers)[i].id = tk_get_i32(&answer);
		host = tk_get_string(&answer, &len);
		port = tk_get_i32(&answer);
		possible = possible && read_server(&(*brokers)[i].server, host, len, port);
		(void) tk_get_string(&answer, &len);	/* rack */
	}
	(void) tk_get_string(&answer, &len);	/* cluster id */
	(void) tk_get_i32(&answer); /* controller */
	if (tk_get_count(&answer, 1) != 0 || *brokers == NULL)
		answer.bad = true;
	if (!whole(call, c, &metadata_api, &answer))
		return STEP_AGAIN;
	if (!possible)
	{
		tk_bad_answer(&rpc->net, c, &metadata_api, "an impossible address");
		return STEP_AGAIN;
	}
	*nbrokers = n;
	return STEP_DONE;
}

static bool
add_listed(TkTransactionList *list, int *room, const char *id, size_t len, TkTransactionState state,
		   int64_t producer_id, int32_t coordinator)
{
	TkListedTransaction *added;

	if (list->n == *room)
	{
		int			more = *room == 0 ? 64 : *room * 2;
		TkListedTransaction *grown = realloc(list->transactions, (size_t) more * sizeof(TkListedTransaction));

		if (grown == NULL)
			return false;
		list->transactions = grown;
		*room = more;
	}
	added = &list->transactions[list->n];
	added->transactional_id = malloc(len + 1);
	if (added->transactional_id == NULL)
		return false;
	memcpy(added->transactional_id, id, len);
	added->transactional_id[len] = '\0';
	added->state = state;
	added->producer_id = producer_id;
	added->coordinator = coordinator;
	list->n++;
	return true;
}

static Step
list_broker(Call *call, const Broker *broker, const char *prefix, TkTransactionList *list, int *room)
{
	TkRpc	   *rpc = call->rpc;
	TkConnection *c = connection_to(call, &broker->server, left_ms(call));
	size_t		prefix_len = strlen(prefix);
	TkAnswer	answer;
	size_t		len;
	int			code;
	int			n;

	if (c == NULL)
		return STEP_AGAIN;
	tk_buffer_reset(&rpc->body, SMALL_ANSWER);
	tk_put_uvarint(&rpc->body, 1);	/* any state */
	tk_put_uvarint(&rpc->body, 1);	/* any producer id */
	tk_put_uvarint(&rpc->body, 0);
	if (!request(call, c, &list_api, &answer))
		return STEP_AGAIN;
	(void) tk_get_i32(&answer); /* throttle time */
	code = tk_get_i16(&answer);
	for (n = tk_get_compact_count(&answer, 1); n > 0 && !answer.bad; n--)
		(void) tk_get_compact_string(&answer, &len);
	for (n = tk_get_compact_count(&answer, 11); n > 0 && !answer.bad; n--)
	{
		size_t		id_len;
		const char *id = tk_get_compact_string(&answer, &id_len);
		int64_t		producer_id = tk_get_i64(&answer);
		const char *state = tk_get_compact_string(&answer, &len);

		tk_skip_tags(&answer);
		/* An id with a zero byte is somebody else's, and no C string. */
		if (answer.bad || id == NULL || id_len < prefix_len || memcmp(id, prefix, prefix_len) != 0 ||
			memchr(id, '\0', id_len) != NULL)
			continue;
		if (list->n == LISTED_MAX)
		{
			tk_fail(call->error, TK_KAFKA_FATAL, TK_CAUSE_OTHER, 0,
					"%s: more than %d transactional ids begin with \"%s\"", call->what, LISTED_MAX, prefix);
			return STEP_STOP;
		}
		if (!add_listed(list, room, id, id_len, state_of(state, len), producer_id, broker->id))
		{
			tk_trouble(&rpc->net, c, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
			return STEP_AGAIN;
		}
	}
	tk_skip_tags(&answer);
	if (!whole(call, c, &list_api, &answer))
		return STEP_AGAIN;
	return code == 0 ? STEP_DONE : broker_error(call, c, &list_api, code, "Describe on the transactional ids");
}

static int
compare_listed(const void *a, const void *b)
{
	return strcmp(((const TkListedTransaction *) a)->transactional_id,
				  ((const TkListedTransaction *) b)->transactional_id);
}

/* An id that moved from one broker to another meanwhile was listed twice. */
static void
sort_list(TkTransactionList *list)
{
	int			i;
	int			kept = 0;

	if (list->n > 1)
		qsort(list->transactions, (size_t) list->n, sizeof(TkListedTransaction), compare_listed);
	for (i = 0; i < list->n; i++)
	{
		if (kept > 0 && compare_listed(&list->transactions[kept - 1], &list->transactions[i]) == 0)
			free(list->transactions[i].transactional_id);
		else
			list->transactions[kept++] = list->transactions[i];
	}
	list->n = kept;
}

void
tk_transaction_list_free(TkTransactionList *list)
{
	int			i;

	for (i = 0; i < list->n; i++)
		free(list->transactions[i].transactional_id);
	free(list->transactions);
	list->transactions = NULL;
	list->n = 0;
}

static Step
list_once(Call *call, const char *prefix, TkTransactionList *list)
{
	Broker	   *brokers = NULL;
	int			nbrokers = 0;
	int			room = 0;
	Step		step;
	int			i;

	step = ask_for_brokers(call, &brokers, &nbrokers);
	for (i = 0; i < nbrokers && step == STEP_DONE; i++)
		step = list_broker(call, &brokers[i], prefix, list, &room);
	free(brokers);
	if (step == STEP_DONE)
		sort_list(list);
	else
		tk_transaction_list_free(list);
	return step;
}

/* A broker that fails makes it begin anew: its transactions have another coordinator then. */
TkKafkaStatus
tk_rpc_list(TkRpc *rpc, const char *prefix, const TkKafkaWait *wait, TkTransactionList *list, TkKafkaError *error)
{
	Call		call;
	Step		step;

	memset(list, 0, sizeof(*list));
	begin_call(&call, rpc, "listing transactions", wait, error);
	do
		step = list_once(&call, prefix, list);
	while (step == STEP_AGAIN && try_again(&call));
	return call.error->status;
}


TkRpc *
tk_rpc_create(const TkKafkaConf *conf, TkKafkaError *error)
{
	TkRpc	   *rpc = calloc(1, sizeof(TkRpc));
	int			i;

	if (rpc == NULL)
	{
		tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
		return NULL;
	}
	for (i = 0; i < CONNECTIONS_MAX; i++)
		rpc->connections[i].fd = -1;
	if (!tk_net_configure(&rpc->net, conf, error))
	{
		tk_rpc_destroy(rpc);
		return NULL;
	}
	tk_ok(error);
	return rpc;
}

void
tk_rpc_destroy(TkRpc *rpc)
{
	int			i;

	for (i = 0; i < CONNECTIONS_MAX; i++)
		tk_connection_close(&rpc->connections[i]);
	for (i = 0; i < COORDINATORS_MAX; i++)
		free(rpc->coordinators[i].transactional_id);
	tk_buffer_free(&rpc->body);
	tk_net_free(&rpc->net);
	free(rpc);
}
