/*
 * sim_kafka.c
 *	  The simulated Kafka: transaction coordinators, partitions with offsets,
 *	  markers and a last stable offset, a network that loses, delays and repeats,
 *	  librdkafka's handles.
 *
 * The rules are those of FACTS §2 and of Kafka itself, for the requests that
 * librdkafka sends: consecutive transactions of a producer share their epoch,
 * AddPartitionsToTxn opens a transaction, InitProducerId and the timeout abort it
 * under a higher epoch, a leader asks the coordinator before the first record of
 * a transaction.
 */
#include "sim_world.h"

static void step(const char *where);

/* ----------------------------------------------------------------
 * Events: a heap, by time and then in the order they were made
 * ----------------------------------------------------------------
 */

static inline bool
earlier_event(const Event *a, const Event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static bool
is_on_its_way(const Event *event)
{
	return event->kind == EVENT_REQUEST || event->kind == EVENT_MARKER;
}

static void
schedule(Event event)
{
	int			at = sim.nevents++;

	if (sim.nevents >= EVENTS_MAX)
		violated("more than %d events at once", EVENTS_MAX);
	event.order = sim.order++;
	if (is_on_its_way(&event))
		sim.on_their_way++;
	while (at > 0 && earlier_event(&event, &sim.events[(at - 1) / 2]))
	{
		sim.events[at] = sim.events[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	sim.events[at] = event;
}

static Event
next_event(void)
{
	Event		first = sim.events[0];
	Event		last = sim.events[--sim.nevents];
	int			at = 0;

	for (;;)
	{
		int			child = 2 * at + 1;

		if (child >= sim.nevents)
			break;
		if (child + 1 < sim.nevents && earlier_event(&sim.events[child + 1], &sim.events[child]))
			child++;
		if (!earlier_event(&sim.events[child], &last))
			break;
		sim.events[at] = sim.events[child];
		at = child;
	}
	sim.events[at] = last;
	if (is_on_its_way(&first))
		sim.on_their_way--;
	return first;
}

static void
schedule_request(EventKind kind, const Request *request, int64_t at)
{
	Event		event = {0};

	event.kind = kind;
	event.at = at;
	event.request = *request;
	schedule(event);
}

/* ----------------------------------------------------------------
 * What a read_committed consumer sees, and what Kafka has decided
 * ----------------------------------------------------------------
 */

/* The next source record of the partition, from "record" on, that must be sent; nrecords: there is none. */
static int
next_expected(int partition, int record)
{
	while (record < sim.nrecords &&
		   (sim.record_partition[record] != partition ||
			sim.source[sim.record_source[record]].nrecords == 0 ||
			sim.source[sim.record_source[record]].end_lsn <= sim.origin))
		record++;
	return record;
}

/* The first source transaction, from "number" on, that has records and must be sent. */
static int
next_undecided(int number)
{
	while (number < sim.nsource &&
		   (sim.source[number].nrecords == 0 || sim.source[number].end_lsn <= sim.origin))
		number++;
	return number;
}

/* The slot is made and noted: from here on everything must be sent. */
static void
set_origin(uint64_t lsn)
{
	sim.origin = lsn;
	sim.undecided = next_undecided(0);
	for (int i = 0; i < DATA_PARTITIONS; i++)
		sim.partitions[i].next = next_expected(i, 0);
}

static int
last_stable_offset(const Partition *partition)
{
	int			offset = partition->end;

	for (int i = 0; i < sim.next_pid; i++)
		if (partition->producers[i].open_from >= 0 && partition->producers[i].open_from < offset)
			offset = partition->producers[i].open_from;
	return offset;
}

/* The consumer reads on: each record exactly once, in the order of the commits. */
static void
read_on(int number)
{
	Partition  *partition = &sim.partitions[number];
	int			stable = last_stable_offset(partition);

	for (; partition->seen < stable; partition->seen++)
	{
		const LogEntry *entry = &partition->log[partition->seen];

		if (entry->state != ENTRY_COMMITTED)
			continue;
		if (entry->payload < 0)
		{
			partition->progress = -1 - entry->payload;
			continue;
		}
		if (entry->payload != partition->next)
			violated("consumer of partition %d: at offset %d it sees record %d of transaction %d, %s",
					 number, partition->seen, entry->payload, sim.record_source[entry->payload],
					 entry->payload < partition->next ? "a second time" :
					 "before others that were committed earlier");
		partition->next = next_expected(number, partition->next + 1);
	}
}

/* The coordinator has decided to commit: whole source transactions, and the next ones. */
static void
check_decided(const KafkaTransaction *transaction)
{
	int			first;
	int			last;
	int			expected = 0;

	if (transaction->nrecords == 0)
		return;
	first = sim.record_source[transaction->first];
	last = sim.record_source[transaction->last];
	for (int i = first; i <= last; i++)
		expected += sim.source[i].nrecords;
	if (transaction->nrecords != expected ||
		transaction->first != sim.source[first].first_record ||
		transaction->last != sim.source[last].first_record + sim.source[last].nrecords - 1)
		violated("Kafka commits a part of what was committed together: %d records of %d..%d",
				 transaction->nrecords, transaction->first, transaction->last);
	if (first != sim.undecided)
		violated("Kafka commits transaction %d, but the next one is %d", first, sim.undecided);
	sim.undecided = next_undecided(last + 1);
}

/* Is everything up to there in Kafka, for good? */
static void
check_kafka_has(uint64_t lsn, const char *what)
{
	if (sim.catalog.slot_created && sim.undecided < sim.committed && sim.source[sim.undecided].end_lsn <= lsn)
		violated("%s: %" PRIu64 ", but transaction %d (%" PRIu64 ") is not in Kafka",
				 what, lsn, sim.undecided, sim.source[sim.undecided].end_lsn);
}

/* kafka.wait_for() returns: a consumer must see all up to there, in every partition. */
static void
check_visible(uint64_t lsn)
{
	for (int i = 0; i < DATA_PARTITIONS; i++)
	{
		int			next = sim.partitions[i].next;

		if (next < sim.nrecords && sim.record_source[next] < sim.committed &&
			sim.source[sim.record_source[next]].end_lsn <= lsn)
			violated("all up to %" PRIu64 " is said to be visible, but record %d of transaction %d (%" PRIu64 ") is not",
					 lsn, next, sim.record_source[next], sim.source[sim.record_source[next]].end_lsn);
	}
}

/* ----------------------------------------------------------------
 * Partitions
 * ----------------------------------------------------------------
 */

static void
append_to_log(Partition *partition, LogEntry entry)
{
	if (partition->end == LOG_MAX)
		violated("a partition has %d entries: the worker does the same again and again", LOG_MAX);
	partition->log[partition->end++] = entry;
}

static int
leader_produce(const Request *r)
{
	Partition  *partition = &sim.partitions[r->partition];
	Coordinator *c = &sim.coordinators[r->transactional_id];
	LogEntry	entry = {r->payload, (short) c->transaction, (short) r->pid, ENTRY_OPEN};
	int			known = partition->producers[r->pid].epoch;
	int			sequence = r->epoch > known ? -1 : partition->producers[r->pid].sequence;

	if (r->epoch < known)
		return INVALID_PRODUCER_EPOCH;
	if (r->sequence <= sequence)
		return 0;				/* has it already */
	if (partition->producers[r->pid].open_from < 0 &&
		(c->pid != r->pid || c->epoch != r->epoch || c->state != TK_TRANSACTION_ONGOING ||
		 (c->partitions & 1u << r->partition) == 0))
		return INVALID_TXN_STATE;
	if (r->sequence != sequence + 1)
		return OUT_OF_ORDER_SEQUENCE_NUMBER;

	partition->producers[r->pid].epoch = r->epoch;
	partition->producers[r->pid].sequence = r->sequence;
	if (partition->producers[r->pid].open_from < 0)
		partition->producers[r->pid].open_from = partition->end;
	TRACE("partition %d offset %d: payload %d, transaction %d", r->partition, partition->end, r->payload,
		  c->transaction);
	append_to_log(partition, entry);
	if (r->payload >= 0)
	{
		KafkaTransaction *t = &sim.transactions[c->transaction];

		if (t->nrecords == 0 || r->payload < t->first)
			t->first = r->payload;
		if (t->nrecords == 0 || r->payload > t->last)
			t->last = r->payload;
		t->nrecords++;
	}
	return 0;
}

static void
write_marker(int number, int64_t pid, int epoch, bool commit)
{
	Partition  *partition = &sim.partitions[number];
	LogEntry	marker = {0, 0, (short) pid, ENTRY_MARKER};
	int			from = partition->producers[pid].open_from;

	for (int i = from; from >= 0 && i < partition->end; i++)
		if (partition->log[i].pid == pid && partition->log[i].state == ENTRY_OPEN)
			partition->log[i].state = commit ? ENTRY_COMMITTED : ENTRY_ABORTED;
	append_to_log(partition, marker);
	partition->producers[pid].open_from = -1;
	if (epoch > partition->producers[pid].epoch)
	{
		partition->producers[pid].epoch = epoch;
		partition->producers[pid].sequence = -1;
	}
	read_on(number);
}

/* ----------------------------------------------------------------
 * The coordinators
 * ----------------------------------------------------------------
 */

static int64_t
marker_delay(void)
{
	return sim.calm || !chance(sim.slow) ? between(50, 2 * MS) : between(2 * MS, 3 * SECOND);
}

/* PrepareCommit or PrepareAbort; the markers follow. */
static void
coordinator_finish(int id, bool commit, AbortCause cause)
{
	Coordinator *c = &sim.coordinators[id];
	Event		event = {0};

	TRACE("id %d: transaction %d %s (%d), producer %d epoch %d", id, c->transaction, commit ? "commits" : "aborts",
		  (int) cause, (int) c->pid, c->epoch);
	c->state = commit ? TK_TRANSACTION_PREPARE_COMMIT : TK_TRANSACTION_PREPARE_ABORT;
	sim.transactions[c->transaction].cause = cause;
	if (commit)
		check_decided(&sim.transactions[c->transaction]);
	event.kind = EVENT_MARKER;
	event.commit = commit;
	event.number = c->transaction;
	event.request.transactional_id = id;
	event.request.pid = c->pid;
	event.request.epoch = c->epoch;
	for (int i = 0; i < PARTITIONS; i++)
		if (c->partitions & 1u << i)
		{
			event.at = sim.now + marker_delay();
			event.request.partition = i;
			schedule(event);
		}
}

static void
marker_written(const Event *event)
{
	Coordinator *c = &sim.coordinators[event->request.transactional_id];

	if (sim.now < sim.outage_until)
	{
		Event		later = *event;

		later.at = sim.outage_until + marker_delay();
		schedule(later);
		return;
	}
	write_marker(event->request.partition, event->request.pid, event->request.epoch, event->commit);
	c->partitions &= ~(1u << event->request.partition);
	if (c->partitions == 0)
		c->state = event->commit ? TK_TRANSACTION_COMPLETE_COMMIT : TK_TRANSACTION_COMPLETE_ABORT;
}

static bool
is_ending(const Coordinator *c)
{
	return c->state == TK_TRANSACTION_PREPARE_COMMIT || c->state == TK_TRANSACTION_PREPARE_ABORT;
}

static int
coordinator_init(int id, AbortCause cause, int64_t *pid, int *epoch)
{
	Coordinator *c = &sim.coordinators[id];

	if (!c->exists)
	{
		if (sim.next_pid == PRODUCERS)
			violated("more than %d producer ids", PRODUCERS);
		memset(c, 0, sizeof(*c));
		c->exists = true;
		c->pid = sim.next_pid++;
		for (int i = 0; i < PARTITIONS; i++)
		{
			sim.partitions[i].producers[c->pid].epoch = -1;
			sim.partitions[i].producers[c->pid].sequence = -1;
			sim.partitions[i].producers[c->pid].open_from = -1;
		}
		c->epoch = -1;
		c->state = TK_TRANSACTION_EMPTY;
	}
	if (is_ending(c))
		return CONCURRENT_TRANSACTIONS;
	c->epoch++;
	if (c->state == TK_TRANSACTION_ONGOING)
	{
		HAPPENED(ABORT_BY_INIT);
		coordinator_finish(id, false, cause);
		return CONCURRENT_TRANSACTIONS;
	}
	c->state = TK_TRANSACTION_EMPTY;
	*pid = c->pid;
	*epoch = c->epoch;
	return 0;
}

static int
coordinator_refuses(const Coordinator *c, int64_t pid, int epoch)
{
	if (!c->exists || c->pid != pid)
		return INVALID_PRODUCER_ID_MAPPING;
	return c->epoch != epoch ? PRODUCER_FENCED : 0;
}

static int
coordinator_add(int id, int64_t pid, int epoch, int partition)
{
	Coordinator *c = &sim.coordinators[id];
	int			error = coordinator_refuses(c, pid, epoch);

	if (error != 0)
		return error;
	if (is_ending(c))
		return CONCURRENT_TRANSACTIONS;
	if (c->state != TK_TRANSACTION_ONGOING)
	{
		if (sim.ntransactions == TRANSACTIONS)
			violated("%d Kafka transactions: the worker does the same again and again", TRANSACTIONS);
		c->state = TK_TRANSACTION_ONGOING;
		c->start_ms = sim.now / 1000;
		c->partitions = 0;
		c->transaction = sim.ntransactions++;
		TRACE("id %d: transaction %d begins, producer %d epoch %d", id, c->transaction, (int) pid, epoch);
		if (sim.transaction_timeout != NEVER)
		{
			Event		event = {0};

			event.kind = EVENT_TIMEOUT;
			event.at = sim.now + sim.transaction_timeout + between(0, sim.transaction_timeout / 4);
			event.number = c->transaction;
			event.request.transactional_id = id;
			schedule(event);
		}
	}
	c->partitions |= 1u << partition;
	return 0;
}

static int
coordinator_end(int id, int64_t pid, int epoch, bool commit)
{
	Coordinator *c = &sim.coordinators[id];
	int			error = coordinator_refuses(c, pid, epoch);

	if (error != 0)
		return error;
	switch (c->state)
	{
		case TK_TRANSACTION_ONGOING:
			coordinator_finish(id, commit, ABORTED_BY_OWNER);
			return 0;
		case TK_TRANSACTION_PREPARE_COMMIT:
			return commit ? CONCURRENT_TRANSACTIONS : INVALID_TXN_STATE;
		case TK_TRANSACTION_PREPARE_ABORT:
			return commit ? INVALID_TXN_STATE : CONCURRENT_TRANSACTIONS;
		case TK_TRANSACTION_COMPLETE_COMMIT:
			HAPPENED(IDEMPOTENT_END);
			return commit ? 0 : INVALID_TXN_STATE;
		case TK_TRANSACTION_COMPLETE_ABORT:
			return commit ? INVALID_TXN_STATE : 0;
		default:
			return INVALID_TXN_STATE;
	}
}

static void
coordinator_timeout(const Event *event)
{
	Coordinator *c = &sim.coordinators[event->request.transactional_id];

	if (c->state != TK_TRANSACTION_ONGOING || c->transaction != event->number)
		return;
	HAPPENED(TIMEOUT);
	c->epoch++;
	coordinator_finish(event->request.transactional_id, false, ABORTED_BY_TIMEOUT);
}

static TkTransactionDescription
coordinator_describe(int id)
{
	const Coordinator *c = &sim.coordinators[id];
	TkTransactionDescription description = {0};

	description.found = c->exists;
	description.state = c->state;
	description.start_ms = c->start_ms;
	description.producer_id = c->pid;
	description.epoch = (int16_t) c->epoch;
	return description;
}

/* ----------------------------------------------------------------
 * The network
 * ----------------------------------------------------------------
 */

static int64_t
latency(void)
{
	return sim.calm || !chance(sim.slow) ? between(100, 1500) : between(5 * MS, 150 * MS);
}

/* When something comes that nobody waits for any more. */
static int64_t
late(void)
{
	switch (between(0, 3))
	{
		case 0:
			return between(1 * MS, 50 * MS);
		case 1:
			return between(50 * MS, 300 * MS);
		case 2:
			return between(300 * MS, 3 * SECOND);
		default:
			return between(3 * SECOND, 20 * SECOND);
	}
}

/* librdkafka's retry.backoff.ms, ± 20 % */
static int64_t
backoff(void)
{
	return between(80 * MS, 120 * MS);
}

/*
 * The connection breaks: the request is lost, or arrives when nobody waits for
 * it; after the backoff it is sent again, over another connection.
 */
static void
send_request(const Request *request)
{
	int64_t		arrival;

	if (!sim.calm && chance(sim.breaks))
	{
		Request		orphan = *request;

		orphan.client = -1;
		if (chance(600))
			schedule_request(EVENT_REQUEST, &orphan, sim.now + late());
		schedule_request(EVENT_RESEND, request, sim.now + between(1 * MS, 30 * MS) + backoff());
		return;
	}
	arrival = sim.now + latency();
	if (request->api == API_PRODUCE)
	{
		/* One connection: what was sent first arrives first. */
		int64_t    *last = &sim.clients[request->client].last_arrival[request->partition];

		if (arrival <= *last)
			arrival = *last + 1;
		*last = arrival;
	}
	schedule_request(EVENT_REQUEST, request, arrival);
}

/* The client that waits for the answer, or has died: NULL. */
static Client *
waiting_client(const Request *r)
{
	Client	   *client;

	if (r->client < 0)
		return NULL;
	client = &sim.clients[r->client];
	return client->in_use && client->generation == r->generation && client->serial == r->serial ? client : NULL;
}

static void
note_late(const Request *r, bool opened)
{
	if (waiting_client(r) != NULL)
		return;
	if (r->api == API_END)
	{
		HAPPENED(LATE_END);
		if (r->error == PRODUCER_FENCED)
			HAPPENED(LATE_END_FENCED);
	}
	if (r->api == API_ADD && r->error == 0 && opened)
		HAPPENED(LATE_ADD);
	if (r->api == API_PRODUCE && r->error != 0)
		HAPPENED(LATE_PRODUCE_REFUSED);
}

static void
request_arrives(Request *r)
{
	int			transactions = sim.ntransactions;
	Client	   *client = waiting_client(r);

	if (sim.now < sim.outage_until)
	{
		if (client != NULL)
			schedule_request(EVENT_RESEND, r, sim.now + between(1 * MS, 30 * MS) + backoff());
		return;
	}
	switch (r->api)
	{
		case API_INIT:
			r->error = coordinator_init(r->transactional_id,
										client != NULL ? ABORTED_BY_INIT : ABORTED_BY_STRANGER, &r->pid, &r->epoch);
			break;
		case API_ADD:
			r->error = coordinator_add(r->transactional_id, r->pid, r->epoch, r->partition);
			break;
		case API_PRODUCE:
			r->error = leader_produce(r);
			break;
		case API_END:
			r->error = coordinator_end(r->transactional_id, r->pid, r->epoch, r->commit);
			break;
		case API_DESCRIBE:
			r->description = coordinator_describe(r->transactional_id);
			break;
	}
	if (r->error != 0)
		TRACE("request %d of id %d, epoch %d: error %d", (int) r->api, r->transactional_id, r->epoch, r->error);
	note_late(r, sim.ntransactions > transactions);
	if (client != NULL)
		schedule_request(EVENT_ANSWER, r, sim.now + latency());
}

/* ----------------------------------------------------------------
 * librdkafka's handles, as kafka_producer.c uses them
 * ----------------------------------------------------------------
 */

static Request
request_of(Client *client, Api api)
{
	Request		r = {0};

	r.api = api;
	r.client = (int) (client - sim.clients);
	r.generation = client->generation;
	r.serial = client->serial;
	r.transactional_id = client->transactional_id;
	r.pid = client->pid;
	r.epoch = client->epoch;
	return r;
}

static Client *
client_create(int id)
{
	Client	   *client = sim.clients;

	while (client->in_use)
		if (++client == sim.clients + CLIENTS)
			violated("more than %d handles", CLIENTS);
	memset(client, 0, sizeof(*client));
	client->in_use = true;
	client->generation = ++sim.generation;
	client->transactional_id = id;
	return client;
}

static void
client_init(Client *client)
{
	Request		r = request_of(client, API_INIT);

	send_request(&r);
}

static void
client_begin(Client *client)
{
	client->serial++;
	client->open = true;
	client->ending = client->ended = false;
	client->noutgoing = client->unacknowledged = 0;
	client->asked = client->answered = false;
	client->delivery_failure = 0;
	for (int i = 0; i < PARTITIONS; i++)
		client->partitions[i] = NOT_ADDED;
}

static void
transmit(Client *client, int outgoing)
{
	Request		r = request_of(client, API_PRODUCE);

	r.outgoing = outgoing;
	r.partition = client->outgoing[outgoing].partition;
	r.sequence = client->outgoing[outgoing].sequence;
	r.payload = client->outgoing[outgoing].payload;
	send_request(&r);
}

static void
client_send(Client *client, int partition, int payload)
{
	int			n = client->noutgoing;

	if (n == RECORDS_MAX + 8)
		violated("a Kafka transaction of more records than the source has");
	if (!sim.calm && between(0, 9999) < sim.failures)
	{
		HAPPENED(DELIVERY_FAILURE);
		client->delivery_failure = DELIVERY_FAILED;
		return;
	}
	client->noutgoing++;
	client->unacknowledged++;
	client->outgoing[n].partition = partition;
	client->outgoing[n].payload = payload;
	client->outgoing[n].sequence = client->next_sequence[partition]++;
	client->outgoing[n].acknowledged = false;
	if (client->partitions[partition] == ADDED)
		transmit(client, n);
	else if (client->partitions[partition] == NOT_ADDED)
	{
		Request		r = request_of(client, API_ADD);

		client->partitions[partition] = ADDING;
		r.partition = partition;
		send_request(&r);
	}
}

/* EndTxn; without partitions none is sent. */
static void
client_end(Client *client, bool commit)
{
	Request		r = request_of(client, API_END);
	bool		any = false;

	client->ending = true;
	for (int i = 0; i < PARTITIONS; i++)
		any = any || client->partitions[i] != NOT_ADDED;
	r.commit = commit;
	if (any)
		send_request(&r);
	else
		client->ended = true;
}

/* What is on its way stays on its way. */
static void
client_destroy(Client *client, bool abort_open)
{
	if (abort_open && client->open && client->failure == 0)
		client_end(client, false);
	client->in_use = false;
}

static void
acknowledge(Client *client, const Request *r)
{
	if (client->outgoing[r->outgoing].acknowledged)
		return;
	client->outgoing[r->outgoing].acknowledged = true;
	client->unacknowledged--;
	if (!client->asked)
	{
		/* kafka_describer.c: one question, which may stay without an answer */
		client->asked = true;
		if (sim.calm || !chance(sim.breaks))
		{
			Request		question = request_of(client, API_DESCRIBE);

			schedule_request(EVENT_REQUEST, &question, sim.now + latency());
		}
	}
}

static void
answer_arrives(const Request *r)
{
	Client	   *client = waiting_client(r);

	if (client == NULL)
		return;
	if (sim.now < sim.outage_until)
	{
		schedule_request(EVENT_RESEND, r, sim.now + backoff());
		return;
	}
	sim.wakeup = true;
	if (r->error == CONCURRENT_TRANSACTIONS || r->error == OUT_OF_ORDER_SEQUENCE_NUMBER)
	{
		schedule_request(EVENT_RESEND, r, sim.now + (r->api == API_ADD ? 20 * MS : backoff()));
		return;
	}
	if (r->error != 0)
	{
		client->failure = r->error;
		return;
	}
	switch (r->api)
	{
		case API_INIT:
			if (!client->initialized)
			{
				client->initialized = true;
				client->pid = r->pid;
				client->epoch = r->epoch;
			}
			break;
		case API_ADD:
			if (client->partitions[r->partition] != ADDING)
				break;
			client->partitions[r->partition] = ADDED;
			for (int i = 0; i < client->noutgoing; i++)
				if (client->outgoing[i].partition == r->partition)
					transmit(client, i);
			break;
		case API_PRODUCE:
			acknowledge(client, r);
			break;
		case API_END:
			client->ended = true;
			client->open = false;
			break;
		case API_DESCRIBE:
			client->answered = true;
			client->description = r->description;
			break;
	}
}

static void
resend(const Request *r)
{
	Client	   *client = waiting_client(r);
	Request		again = *r;

	if (client == NULL || client->failure != 0)
		return;
	if ((r->api == API_INIT && client->initialized) ||
		(r->api == API_ADD && client->partitions[r->partition] == ADDED) ||
		(r->api == API_PRODUCE && client->outgoing[r->outgoing].acknowledged) ||
		(r->api == API_END && client->ended) || r->api == API_DESCRIBE)
		return;
	again.error = 0;
	send_request(&again);
}

/* ----------------------------------------------------------------
 * Faults
 * ----------------------------------------------------------------
 */

/* One that is known to Kafka, if there is any */
static int
any_id(void)
{
	int			id = (int) between(0, IDS - 1);

	for (int i = 0; i < IDS && !sim.coordinators[id].exists; i++)
		id = (id + 1) % IDS;
	return id;
}

static void
fault(int number)
{
	int			id = any_id();
	Coordinator *c = &sim.coordinators[id];
	int64_t		pid;
	int			epoch;

	if (sim.calm)
		return;
	switch ((Fault) number)
	{
		case FAULT_OUTAGE:
			HAPPENED(OUTAGE);
			sim.outage_until = sim.now + late();
			TRACE("outage until %.3f", (double) sim.outage_until / 1000);
			break;
		case FAULT_FOREIGN_INIT:
			if (!c->exists)
				break;
			HAPPENED(FOREIGN_INIT);
			TRACE("somebody takes id %d", id);
			(void) coordinator_init(id, ABORTED_BY_STRANGER, &pid, &epoch);
			break;
		case FAULT_EXPIRED_ID:
			if (!c->exists || c->state == TK_TRANSACTION_ONGOING || is_ending(c))
				break;
			HAPPENED(EXPIRED_ID);
			c->exists = false;
			break;
		case FAULT_STOP:
			sim.stop_wanted = true;
			sim.wakeup = true;
			break;
		case FAULT_DIE:
			sim.die_pending = true;
			sim.wakeup = true;
			break;
		case FAULT_WANTED:
			if (sim.committed > 0)
				sim.wanted_lsn = sim.source[sim.committed - 1].end_lsn;
			sim.wakeup = true;
			break;
		case FAULT_VISIBLE_WANTED:
			sim.visible_wanted = sim.source[sim.nsource - 1].end_lsn;
			break;
		case FAULTS:
			break;
	}
}

static void
happen(Event *event)
{
	switch (event->kind)
	{
		case EVENT_REQUEST:
			request_arrives(&event->request);
			break;
		case EVENT_ANSWER:
			answer_arrives(&event->request);
			break;
		case EVENT_RESEND:
			resend(&event->request);
			break;
		case EVENT_MARKER:
			marker_written(event);
			break;
		case EVENT_TIMEOUT:
			coordinator_timeout(event);
			break;
		case EVENT_SOURCE:
			sim.committed = event->number + 1;
			sim.wakeup = true;
			if (!sim.standby)
			{
				sim.replicated = sim.committed;
				break;
			}
			if (chance(100) && sim.now > sim.standby_stalls_until)
				sim.standby_stalls_until = sim.now + between(0, 300 * MS);
			event->kind = EVENT_REPLICATED;
			event->at = sim.now + between(0, 3 * MS);
			if (event->at < sim.standby_stalls_until)
				event->at = sim.standby_stalls_until;
			schedule(*event);
			break;
		case EVENT_REPLICATED:
			if (event->number >= sim.replicated)
				sim.replicated = event->number + 1;
			break;
		case EVENT_FAULT:
			fault(event->number);
			break;
		case EVENT_CALM:
			TRACE("calm");
			sim.calm = true;
			if (!sim.crash_is_planned)
				sim.crash_at = 0;
			break;
	}
}

/* The clock runs until something wakes the worker up, or to "until". */
static void
run_clock(int64_t until, bool wake)
{
	sim.wakeup = false;
	while (sim.nevents > 0 && sim.events[0].at <= until && !(wake && sim.wakeup))
	{
		Event		event = next_event();

		if (event.at > sim.now)
			sim.now = event.at;
		happen(&event);
		step("wait");
	}
	if (!(wake && sim.wakeup) && sim.now < until)
		sim.now = until;
}
