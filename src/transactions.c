/*
 * transactions.c
 *	  The operator's tools for Kafka transactions: the view
 *	  kafka.kafka_transactions, and kafka.end_transaction().
 *
 * A transactional id is "<prefix>.<pipeline>.<i>".  It belongs to a pipeline of
 * this database that has that name and that prefix (in its options, in use, or
 * in a row of a checkpoint).  One under a prefix of ours that belongs to no
 * pipeline is an orphan: its pipeline was dropped, and if that left a
 * transaction open, it holds read_committed consumers up until Kafka times it
 * out.
 *
 * The session asks by itself, with the options of the server and of the
 * pipeline's owner, as the worker would.  A cluster gets a few seconds in all;
 * interrupts are served between the client's calls, never inside.  Of several
 * clusters one that doesn't answer is a WARNING, so that it hides nothing of the
 * others; if none answers it is an ERROR, because no rows would mean that there
 * are no transactions.
 *
 * end_transaction() must not end what a live pipeline owns.  It describes the
 * transaction first, and looks at the pipelines after that, so a worker that
 * started before the description is seen, and one that starts later takes a new
 * epoch, by which Kafka refuses our request.  Only a pipeline's prepared
 * checkpoint may be committed, as recovery would do it (DESIGN §3 step 2):
 * anything else is not whole, or is sent again.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "catalog.h"
#include "checks.h"
#include "committable.h"
#include "kafka_rpc.h"
#include "pg_compat.h"
#include "route.h"
#include "wal_source.h"

PG_FUNCTION_INFO_V1(tk_transactions);
PG_FUNCTION_INFO_V1(tk_end_transaction);

/* All the time that one cluster has for the answers to one call of ours */
#define ASK_PATIENCE_MS 5000

/* Between two looks at a transaction whose markers are being written */
#define MARKERS_POLL_MS 20

/* A pipeline of this database, with what it has in Kafka. */
typedef struct Known
{
	TkDefinition *definition;
	TkState		state;
	List	   *prefixes;		/* char *: its transactional ids are <prefix>.<name>.<number> */
	List	   *ids;			/* char *: those that may be in use */
} Known;

/* Whom to ask, and as whom. */
typedef struct Cluster
{
	Oid			server;
	Oid			user;			/* whose user mapping */
	char	   *name;
	TimestampTz until;
	TkRpc	   *rpc;
	TkTransactionList list;
} Cluster;

/* ----------------------------------------------------------------
 * Whose is a transactional id?
 * ----------------------------------------------------------------
 */

/* Like list_append_unique, for strings. */
static List *
add_string(List *list, char *string)
{
	ListCell   *lc;

	foreach(lc, list)
	{
		if (strcmp((char *) lfirst(lc), string) == 0)
			return list;
	}
	return lappend(list, string);
}

/* The pipeline's name in "<prefix>.<name>.<number>"; NULL if it isn't of that form. */
static char *
name_in_id(const char *id, const char *prefix)
{
	size_t		len = strlen(prefix);
	const char *number = strrchr(id, '.');
	char	   *name;

	if (strncmp(id, prefix, len) != 0 || id[len] != '.' || number <= id + len)
		return NULL;
	if (number[1] == '\0' || strspn(number + 1, "0123456789") != strlen(number + 1))
		return NULL;
	name = pnstrdup(id + len + 1, number - (id + len + 1));
	return tk_topic_problem(name) == NULL ? name : NULL;
}

static bool
has_id(const Known *known, const char *id)
{
	ListCell   *lc;

	foreach(lc, known->prefixes)
	{
		char	   *name = name_in_id(id, (char *) lfirst(lc));

		if (name != NULL && strcmp(name, known->definition->name) == 0)
			return true;
	}
	return false;
}

/* The prefix of an id of the pipeline's. */
static char *
prefix_of(const char *id, const char *name)
{
	const char *number = strrchr(id, '.');
	size_t		len = strlen(name);

	if (number == NULL || (size_t) (number - id) <= len + 1 || number[-(int) len - 1] != '.' ||
		strncmp(number - len, name, len) != 0)
		return NULL;
	return pnstrdup(id, number - len - 1 - id);
}

static Known *
know(TkDefinition *d)
{
	Known	   *known = palloc0(sizeof(Known));
	char	   *prefix = tk_parse_pipeline_options(d->raw_options,
												   psprintf("pipeline \"%s\"", d->name))->transactional_id_prefix;
	ListCell   *lc;

	known->definition = d;
	tk_state_load(d, &known->state);

	/* Restored or cloned: the ids in its rows are another database's, and it has none yet. */
	if (!known->state.exists)
		return known;
	known->prefixes = list_make1(prefix ? prefix : tk_default_prefix());
	if (known->state.prefix != NULL)
	{
		known->prefixes = add_string(known->prefixes, known->state.prefix);
		for (int i = 0; i < known->state.pool_size; i++)
			known->ids = lappend(known->ids, psprintf("%s.%s.%d", known->state.prefix, d->name, i));
	}
	foreach(lc, tk_committable_transactional_ids(d->pipeline_id))
	{
		char	   *id = (char *) lfirst(lc);

		known->ids = add_string(known->ids, id);
		prefix = prefix_of(id, d->name);
		if (prefix != NULL)
			known->prefixes = add_string(known->prefixes, prefix);
	}
	return known;
}

/* All pipelines of this database, as they are now: a List of Known.  Needs SPI. */
static List *
load_known(void)
{
	static TkStatement statement = {
		"SELECT pipeline_id FROM kafka.pipeline ORDER BY name", 0, {0}, NULL
	};
	Privileged	saved;
	List	   *ids = NIL;
	List	   *result = NIL;
	uint64		n;
	ListCell   *lc;

	tk_begin_privileged(&saved);
	n = tk_execute(&statement, NULL, NULL, false);
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;

		ids = lappend_int(ids, DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1, &isnull)));
	}
	foreach(lc, ids)
	{
		TkDefinition *d = tk_definition_by_id(lfirst_int(lc));

		if (d != NULL)
			result = lappend(result, know(d));
	}
	tk_end_privileged(&saved);
	return result;
}

/* All prefixes that this database uses: a List of char *. */
static List *
our_prefixes(List *pipelines)
{
	List	   *prefixes = list_make1(tk_default_prefix());
	ListCell   *lc;

	foreach(lc, pipelines)
	{
		ListCell   *p;

		foreach(p, ((Known *) lfirst(lc))->prefixes)
		{
			prefixes = add_string(prefixes, (char *) lfirst(p));
		}
	}
	return prefixes;
}

/*
 * A prefix that somebody chose may be in use in another database of this
 * server too: its pipelines' ids are no orphans of ours.
 */
static bool
is_of_other_database(const char *name, const char *prefix)
{
	bool		found = false;

	if (tk_shared == NULL || strcmp(prefix, tk_default_prefix()) == 0)
		return false;
	LWLockAcquire(tk_shared->lock, LW_SHARED);
	for (int i = 0; i < tk_shared->nentries; i++)
	{
		TkPipelineEntry *entry = &tk_shared->entries[i];

		if (entry->in_use && !entry->gone && entry->database != MyDatabaseId && strcmp(NameStr(entry->name), name) == 0)
			found = true;
	}
	LWLockRelease(tk_shared->lock);
	return found;
}

/* The name of the pipeline that an orphan's id was made for; NULL: it isn't one. */
static char *
orphan_of(List *pipelines, const char *id)
{
	char	   *result = NULL;
	ListCell   *lc;

	foreach(lc, pipelines)
	{
		if (has_id((Known *) lfirst(lc), id))
			return NULL;
	}
	foreach(lc, our_prefixes(pipelines))
	{
		char	   *prefix = (char *) lfirst(lc);
		char	   *name = name_in_id(id, prefix);

		if (name == NULL)
			continue;
		if (is_of_other_database(name, prefix))
			return NULL;
		if (result == NULL)
			result = name;
	}
	return result;
}

/* ----------------------------------------------------------------
 * Asking Kafka
 * ----------------------------------------------------------------
 */

static bool
interrupted(void)
{
	return InterruptPending;
}

static int
left_ms(const Cluster *c)
{
	return (int) TimestampDifferenceMilliseconds(GetCurrentTimestamp(), c->until);
}

static TkKafkaWait
patience(const Cluster *c)
{
	TkKafkaWait wait = {left_ms(c), interrupted};

	return wait;
}

/* After each call: interrupts are served here.  True: it gave up for one that did not end us, so make it again. */
static bool
once_more(const Cluster *c, TkKafkaStatus status, const TkKafkaError *error)
{
	CHECK_FOR_INTERRUPTS();
	return status == TK_KAFKA_RETRY && error->cause == TK_CAUSE_INTERRUPTED && left_ms(c) > 0;
}

static TkKafkaStatus
describe(Cluster *c, const char *id, TkTransactionDescription *found, TkKafkaError *error)
{
	TkKafkaStatus status;

	do
	{
		TkKafkaWait wait = patience(c);

		status = tk_rpc_describe(c->rpc, id, &wait, found, error);
	} while (once_more(c, status, error));
	return status;
}

static TkKafkaStatus
list_all(Cluster *c, const char *prefix, TkKafkaError *error)
{
	TkKafkaStatus status;

	do
	{
		TkKafkaWait wait = patience(c);

		tk_transaction_list_free(&c->list);
		status = tk_rpc_list(c->rpc, prefix, &wait, &c->list, error);
	} while (once_more(c, status, error));
	return status;
}

/* The same producer id, epoch and decision each time, so it may be made again as well. */
static TkKafkaStatus
end(Cluster *c, const char *id, const TkTransactionDescription *found, bool commit, TkKafkaError *error)
{
	TkKafkaStatus status;

	do
	{
		TkKafkaWait wait = patience(c);

		status = tk_rpc_end(c->rpc, id, found->producer_id, found->epoch, commit, &wait, error);
	} while (once_more(c, status, error));
	return status;
}

/* on_proc_exit: the C library's exit handlers must not run beside a name lookup that hangs. */
static void
leave_lookups_behind(int code, Datum arg)
{
	if (tk_rpc_threads_left())
		_exit(code);
}

/* Whoever opens a cluster closes it on every path. */
static bool
open_cluster(Cluster *c, TkKafkaError *error)
{
	static bool registered = false;
	TkDefinition d = {.server = c->server,.owner = c->user};
	TkKafkaConf *conf = tk_server_conf(&d);

	memset(error, 0, sizeof(*error));
	if (conf == NULL)
	{
		error->status = TK_KAFKA_FATAL;
		strlcpy(error->message, "the server was dropped", sizeof(error->message));
		return false;
	}
	if (!registered)
		on_proc_exit(leave_lookups_behind, 0);
	registered = true;
	c->until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ASK_PATIENCE_MS);
	c->rpc = tk_rpc_create(conf, error);
	pgstat_report_wait_start(PG_WAIT_EXTENSION);
	return c->rpc != NULL;
}

static void
close_cluster(Cluster *c)
{
	pgstat_report_wait_end();
	tk_transaction_list_free(&c->list);
	if (c->rpc != NULL)
		tk_rpc_destroy(c->rpc);
	c->rpc = NULL;
}

static const char *
failure_hint(const TkKafkaError *error)
{
	switch (error->cause)
	{
		case TK_CAUSE_CONFIGURATION:
			return "Kafka's own tool for such a cluster is kafka-transactions.sh.";
		case TK_CAUSE_AUTHORIZATION:
			return "Grant it in Kafka's ACLs.";
		case TK_CAUSE_AUTHENTICATION:
			return "Check the options of the server and of the user mapping.";
		default:
			return "Check that the brokers in bootstrap.servers run and can be reached from this server.";
	}
}

static void
report_failure(int elevel, const Cluster *c, const TkKafkaError *error)
{
	int			code = ERRCODE_FDW_ERROR;

	if (error->status == TK_KAFKA_RETRY)
		code = ERRCODE_CONNECTION_FAILURE;
	if (error->cause == TK_CAUSE_AUTHORIZATION)
		code = ERRCODE_INSUFFICIENT_PRIVILEGE;
	if (error->cause == TK_CAUSE_CONFIGURATION)
		code = ERRCODE_FEATURE_NOT_SUPPORTED;
	ereport(elevel,
			(errcode(code),
			 errmsg("could not ask server \"%s\" about its transactions: %s", c->name, error->message),
			 elevel < ERROR ? errdetail("The other servers were asked.") : 0,
			 errhint("%s", failure_hint(error))));
}

static List *
add_cluster(List *clusters, Oid server, Oid user, const char *name)
{
	Cluster    *c;
	ListCell   *lc;

	foreach(lc, clusters)
	{
		c = (Cluster *) lfirst(lc);
		if (c->server == server && c->user == user)
			return clusters;
	}
	c = palloc0(sizeof(Cluster));
	c->server = server;
	c->user = user;
	c->name = pstrdup(name);
	return lappend(clusters, c);
}

/* The cluster of a pipeline, asked as its owner. */
static List *
add_cluster_of(List *clusters, const Known *known)
{
	ForeignServer *server = GetForeignServerExtended(known->definition->server, FSV_MISSING_OK);

	return add_cluster(clusters, known->definition->server, known->definition->owner,
					   server ? server->servername : known->definition->server_name);
}

/* Those that no pipeline uses (any more) are asked as the caller.  Needs SPI. */
static List *
add_unused_clusters(List *clusters)
{
	static TkStatement statement = {
		"SELECT s.oid, s.srvname FROM pg_catalog.pg_foreign_server s, pg_catalog.pg_foreign_data_wrapper w "
		"WHERE w.oid = s.srvfdw AND w.fdwname = 'transactional_kafka' ORDER BY 2", 0, {0}, NULL
	};
	Oid			caller = GetUserId();
	List	   *used = clusters;
	List	   *result = list_copy(clusters);
	Privileged	saved;
	uint64		n;

	tk_begin_privileged(&saved);
	n = tk_execute(&statement, NULL, NULL, false);
	for (uint64 row = 0; row < n; row++)
	{
		bool		isnull;
		Oid			server = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1, &isnull));
		bool		is_used = false;
		ListCell   *lc;

		foreach(lc, used)
		{
			if (((Cluster *) lfirst(lc))->server == server)
				is_used = true;
		}
		if (!is_used && tk_server_usage(server, caller) == ACLCHECK_OK)
			result = add_cluster(result, server, caller, SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 2));
	}
	tk_end_privileged(&saved);
	return result;
}

/* ----------------------------------------------------------------
 * kafka.kafka_transactions
 * ----------------------------------------------------------------
 */

/* Memory of a set-returning call's rows. */
typedef struct Listing
{
	ReturnSetInfo *rsinfo;
	List	   *pipelines;		/* of Known: all */
	List	   *mine;			/* those that the caller may see */
	bool		orphans;		/* the caller may see those */
	List	   *seen;			/* of char *: orphans, per server */
} Listing;

/* Is a transaction open, or not wholly ended yet? */
static bool
is_open(const TkTransactionDescription *found)
{
	return found->found && (found->state == TK_TRANSACTION_ONGOING || found->state == TK_TRANSACTION_PREPARE_COMMIT ||
							found->state == TK_TRANSACTION_PREPARE_ABORT ||
							found->state == TK_TRANSACTION_PREPARE_EPOCH_FENCE);
}

static void
put_row(Listing *l, const Cluster *c, const char *pipeline, const char *id, const TkTransactionDescription *found,
		bool orphan)
{
#define TRANSACTION_COLUMNS 10
	Datum		values[TRANSACTION_COLUMNS] = {0};
	bool		nulls[TRANSACTION_COLUMNS] = {0};
	Interval   *timeout = palloc0(sizeof(Interval));
	int			n = 0;

	timeout->time = (TimeOffset) found->timeout_ms * 1000;
	values[n++] = CStringGetTextDatum(pipeline);
	values[n++] = CStringGetTextDatum(c->name);
	values[n++] = CStringGetTextDatum(id);

	/* What the coordinator doesn't know has none of these. */
	for (int i = n; i < TRANSACTION_COLUMNS - 1; i++)
		nulls[i] = !found->found;
	values[n++] = CStringGetTextDatum(tk_transaction_state_name(found->state));
	values[n++] = Int64GetDatum(found->producer_id);
	values[n++] = Int32GetDatum(found->epoch);
	/* A coordinator goes on telling when the last transaction started after it has ended. */
	nulls[n] = !is_open(found) || found->start_ms < 0;
	values[n++] = TimestampTzGetDatum(found->start_ms * 1000 -
									  (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	values[n++] = IntervalPGetDatum(timeout);
	values[n++] = Int32GetDatum(found->partitions);
	values[n++] = BoolGetDatum(orphan);
	Assert(n == TRANSACTION_COLUMNS);
	tuplestore_putvalues(l->rsinfo->setResult, l->rsinfo->setDesc, values, nulls);
}

/* Describes the ids of the pipelines that this cluster and user have. */
static bool
list_pipelines(Listing *l, Cluster *c, TkKafkaError *error)
{
	TkTransactionDescription found;
	ListCell   *lc;

	foreach(lc, l->mine)
	{
		Known	   *known = (Known *) lfirst(lc);
		ListCell   *i;

		if (known->definition->server != c->server || known->definition->owner != c->user)
			continue;
		foreach(i, known->ids)
		{
			if (describe(c, (char *) lfirst(i), &found, error) != TK_KAFKA_OK)
				return false;
			put_row(l, c, known->definition->name, (char *) lfirst(i), &found, false);
		}
	}
	return true;
}

static bool
list_orphans(Listing *l, Cluster *c, TkKafkaError *error)
{
	TkTransactionDescription found;
	ListCell   *lc;

	foreach(lc, our_prefixes(l->pipelines))
	{
		if (list_all(c, psprintf("%s.", (char *) lfirst(lc)), error) != TK_KAFKA_OK)
			return false;
		for (int i = 0; i < c->list.n; i++)
		{
			const char *id = c->list.transactions[i].transactional_id;
			char	   *pipeline = orphan_of(l->pipelines, id);
			int			before = list_length(l->seen);

			if (pipeline == NULL)
				continue;
			l->seen = add_string(l->seen, psprintf("%u %s", c->server, id));
			if (list_length(l->seen) == before)
				continue;
			if (describe(c, id, &found, error) != TK_KAFKA_OK)
				return false;
			put_row(l, c, pipeline, id, &found, true);
		}
	}
	return true;
}

static bool
list_all_of(Listing *l, Cluster *c, TkKafkaError *error)
{
	return open_cluster(c, error) && list_pipelines(l, c, error) && (!l->orphans || list_orphans(l, c, error));
}

static bool
list_cluster(Listing *l, Cluster *c, TkKafkaError *error)
{
	bool		done;

	PG_TRY();
	{
		done = list_all_of(l, c, error);
	}
	PG_CATCH();
	{
		close_cluster(c);
		PG_RE_THROW();
	}
	PG_END_TRY();
	close_cluster(c);
	return done;
}

/* SQL: kafka.transactions() → setof record: what the caller may see */
Datum
tk_transactions(PG_FUNCTION_ARGS)
{
	Listing		l = {0};
	List	   *clusters = NIL;
	ListCell   *lc;
	bool		answered = false;
	TkKafkaError error;

	tk_begin_set(fcinfo);
	l.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	SPI_connect();
	l.pipelines = load_known();
	l.orphans = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	foreach(lc, l.pipelines)
	{
		Known	   *known = (Known *) lfirst(lc);

		if (!l.orphans && !has_privs_of_role(GetUserId(), known->definition->owner))
			continue;
		l.mine = lappend(l.mine, known);
		if (known->state.exists)
			clusters = add_cluster_of(clusters, known);
	}
	if (l.orphans)
		clusters = add_unused_clusters(clusters);

	foreach(lc, clusters)
	{
		Cluster    *c = (Cluster *) lfirst(lc);

		if (list_cluster(&l, c, &error))
			answered = true;
		else
			report_failure(answered || lnext(clusters, lc) != NULL ? WARNING : ERROR, c, &error);
	}
	SPI_finish();
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * kafka.end_transaction()
 * ----------------------------------------------------------------
 */

/* What is to be ended, and what has become of it. */
typedef struct Target
{
	const char *id;
	bool		commit;
	Known	   *known;			/* NULL: an orphan */
	TkTransactionState state;	/* after it was ended; OTHER: it was not */
	const char *last;			/* state of the last cluster that knew it, when it was asked */
} Target;

/* The state in which a worker has the pipeline, or may have it any moment; NULL: none has. */
static const char *
live_state(const Known *known)
{
	Oid			catalog = tk_catalog_oid();
	const char *result = NULL;
	TkPipelineEntry *entry;

	/* What is committed here but not told the registry yet: it starts soon. */
	if (known->definition->enabled && !known->definition->dropping && known->state.sticky_state == NULL)
		result = "starting";
	LWLockAcquire(tk_shared->lock, LW_SHARED);
	entry = tk_registry_find(MyDatabaseId, catalog, known->definition->pipeline_id);
	if (entry != NULL && (entry->pid != 0 || entry->launched_at != 0 ||
						  (entry->wanted && !tk_state_is_sticky(entry->state))))
		result = tk_state_name(entry->state);
	LWLockRelease(tk_shared->lock);
	return result;
}

static void
check_not_live(const Known *known, const char *id)
{
	const char *name = known->definition->name;
	const char *live = live_state(known);
	TkPipelineStateKind sticky = known->state.sticky_state ? tk_state_find(known->state.sticky_state) : TK_STATE_STOPPED;

	if (live != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("transactional id \"%s\" is in use by pipeline \"%s\"", id, name),
				 errdetail("The pipeline's state is \"%s\": its worker ends this transaction itself.", live),
				 errhint("If it can't, CALL kafka.pause('%s') first.", name)));
	if (sticky == TK_STATE_FENCED || sticky == TK_STATE_DIVERGED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pipeline \"%s\" is %s: transactional id \"%s\" may be another instance's", name,
						known->state.sticky_state, id),
				 errdetail("%s", known->state.sticky_reason ? known->state.sticky_reason : ""),
				 errhint("CALL kafka.accept_position() takes the pipeline over, kafka.drop_pipeline() gives it up.")));
}

static void
check_orphan(List *pipelines, const Target *t)
{
	ListCell   *lc;

	if (orphan_of(pipelines, t->id) == NULL)
	{
		foreach(lc, our_prefixes(pipelines))
		{
			char	   *name = name_in_id(t->id, (char *) lfirst(lc));

			if (name != NULL && is_of_other_database(name, (char *) lfirst(lc)))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_IN_USE),
						 errmsg("transactional id \"%s\" may be in use by pipeline \"%s\" of another database", t->id, name),
						 errhint("Give each pipeline a transactional_id_prefix of its own.")));
		}
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("transactional id \"%s\" is not one of this database's pipelines", t->id),
				 errdetail("Those are \"<prefix>.<pipeline>.<number>\"; the default prefix is \"%s\".", tk_default_prefix()),
				 errhint("See the view kafka.kafka_transactions.")));
	}
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to end the transaction of transactional id \"%s\"", t->id),
				 errdetail("No pipeline has it any more, so it has no owner.")));
	if (t->commit)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the transaction of transactional id \"%s\" can't be committed", t->id),
				 errdetail("No pipeline has it any more, so nobody knows whether it is whole."),
				 errhint("Abort it: SELECT kafka.end_transaction(%s, false).", quote_literal_cstr(t->id))));
}

/* ERROR if the caller may not end it, by all that this server knows; needs no Kafka, and is asked twice.  Returns all pipelines. */
static List *
check_target(Target *t)
{
	List	   *pipelines = load_known();
	ListCell   *lc;

	t->known = NULL;
	foreach(lc, pipelines)
	{
		Known	   *known = (Known *) lfirst(lc);

		if (!has_id(known, t->id))
			continue;
		if (!has_privs_of_role(GetUserId(), known->definition->owner))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("must be owner of pipeline \"%s\"", known->definition->name)));
		check_not_live(known, t->id);
		if (t->known == NULL)
			t->known = known;
	}
	if (t->known == NULL)
		check_orphan(pipelines, t);
	return pipelines;
}

/* The pipeline's prepared row, if it is of this transactional id. */
static bool
prepared_row(const Target *t, TkPrepared *row)
{
	Privileged	saved;
	bool		any;

	tk_begin_privileged(&saved);
	any = tk_committable_prepared(t->known->definition->pipeline_id, row);
	tk_end_privileged(&saved);
	return any && strcmp(row->transaction.transactional_id, t->id) == 0;
}

static void
check_commit(const Target *t, const TkTransactionDescription *found)
{
	TkPrepared	row;
	const char *problem = NULL;

	if (!prepared_row(t, &row))
		problem = "It is not that of a prepared checkpoint, so it may not be whole.";
	else if (row.timeline != tk_current_timeline())
		problem = "Its checkpoint was prepared on another timeline.";
	else if (!row.transaction.described)
		problem = "Kafka had not said which transaction the prepared checkpoint is.";
	else if (row.transaction.producer_id != found->producer_id || row.transaction.epoch != found->epoch ||
			 row.transaction.start_ms != found->start_ms)
		problem = "The prepared checkpoint was another transaction of this transactional id.";
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the transaction of transactional id \"%s\" can't be committed", t->id),
				 errdetail("%s What it holds is sent again when the pipeline goes on.", problem),
				 errhint("CALL kafka.resume('%s'), or abort it: SELECT kafka.end_transaction(%s, false).",
						 t->known->definition->name, quote_literal_cstr(t->id))));
}

/* What a slot can't give again must not be thrown away: Kafka may have the only copy. */
static void
check_abort(const Target *t)
{
	TkPrepared	row;
	XLogRecPtr	confirmed;

	if (!prepared_row(t, &row) ||
		tk_slot_state(tk_slot_name(MyDatabaseId, t->known->definition->pipeline_id), &confirmed) == TK_SLOT_GOOD)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the transaction of transactional id \"%s\" may hold the only copy of checkpoint " INT64_FORMAT,
					t->id, row.checkpoint_id),
			 errdetail("The replication slot of pipeline \"%s\" is lost, so it could not be sent again.",
					   t->known->definition->name),
			 errhint("Commit it: SELECT kafka.end_transaction(%s, true).", quote_literal_cstr(t->id))));
}

/* Until the markers are written consumers see nothing of the decision. */
static TkTransactionState
await_markers(Cluster *c, const char *id, TkTransactionState decided)
{
	TkTransactionDescription now;
	TkKafkaError ignored;

	while (left_ms(c) > 0)
	{
		if (describe(c, id, &now, &ignored) != TK_KAFKA_OK || !now.found)
			break;
		if (now.state != TK_TRANSACTION_PREPARE_COMMIT && now.state != TK_TRANSACTION_PREPARE_ABORT)
			return now.state;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, MARKERS_POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return decided;
}

static void
end_failed(const Cluster *c, const Target *t, const TkKafkaError *error)
{
	if (error->status == TK_KAFKA_FENCED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("transactional id \"%s\" was taken over by another producer meanwhile", t->id),
				 errdetail("%s", error->message)));
	ereport(ERROR,
			(errcode(error->status == TK_KAFKA_RETRY ? ERRCODE_CONNECTION_FAILURE : ERRCODE_FDW_ERROR),
			 errmsg("server \"%s\" did not end the transaction: %s", c->name, error->message),
			 error->status == TK_KAFKA_RETRY ?
			 errdetail("It is not known whether it will.") : 0,
			 errhint("See the view kafka.kafka_transactions.")));
}

/* False: the cluster could not be asked.  t->state stays OTHER if the id has no transaction open there. */
static bool
end_if_open(Cluster *c, Target *t, TkKafkaError *error)
{
	TkTransactionDescription found;

	if (!open_cluster(c, error) || describe(c, t->id, &found, error) != TK_KAFKA_OK)
		return false;
	if (found.found)
		t->last = tk_transaction_state_name(found.state);
	if (!found.found || found.state != TK_TRANSACTION_ONGOING)
		return true;

	/* Who owned it when it was described is seen now; who comes later has another epoch. */
	(void) check_target(t);
	if (t->known != NULL && t->commit)
		check_commit(t, &found);
	else if (t->known != NULL)
		check_abort(t);
	if (end(c, t->id, &found, t->commit, error) != TK_KAFKA_OK)
		end_failed(c, t, error);
	t->state = await_markers(c, t->id, t->commit ? TK_TRANSACTION_PREPARE_COMMIT : TK_TRANSACTION_PREPARE_ABORT);
	return true;
}

static bool
end_in_cluster(Cluster *c, Target *t, TkKafkaError *error)
{
	bool		answered;

	PG_TRY();
	{
		answered = end_if_open(c, t, error);
	}
	PG_CATCH();
	{
		close_cluster(c);
		PG_RE_THROW();
	}
	PG_END_TRY();
	close_cluster(c);
	return answered;
}

/*
 * SQL: kafka.end_transaction(transactional_id text, commit boolean) → text
 *
 * Returns the coordinator's state: CompleteAbort or CompleteCommit, once
 * consumers can go on, or Prepare… if the markers take longer.  An orphan is
 * ended wherever it is open.
 */
Datum
tk_end_transaction(PG_FUNCTION_ARGS)
{
	Target		t = {0};
	List	   *pipelines;
	List	   *clusters = NIL;
	ListCell   *lc;
	TkKafkaError error;

	tk_check_server_ready("end_transaction()");
	PreventCommandIfReadOnly("end_transaction()");
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("transactional_id and commit must not be null")));
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("end_transaction() cannot run in a transaction of this isolation level"),
				 errdetail("It must see what other sessions do to the pipelines meanwhile."),
				 errhint("Use READ COMMITTED.")));
	t.id = text_to_cstring(PG_GETARG_TEXT_PP(0));
	t.commit = PG_GETARG_BOOL(1);
	SPI_connect();
	tk_await_scout();
	pipelines = check_target(&t);
	if (t.known != NULL)
		clusters = add_cluster_of(NIL, t.known);
	else
	{
		foreach(lc, pipelines)
		{
			if (((Known *) lfirst(lc))->state.exists)
				clusters = add_cluster_of(clusters, (Known *) lfirst(lc));
		}
		clusters = add_unused_clusters(clusters);
	}

	foreach(lc, clusters)
	{
		Cluster    *c = (Cluster *) lfirst(lc);

		if (!end_in_cluster(c, &t, &error))
			report_failure(t.state != TK_TRANSACTION_OTHER || lnext(clusters, lc) != NULL ? WARNING : ERROR, c, &error);
	}
	if (t.state == TK_TRANSACTION_OTHER)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("transactional id \"%s\" has no open transaction", t.id),
				 t.last ? errdetail("Its coordinator says: %s.", t.last) :
				 errdetail("Kafka does not know this transactional id.")));
	SPI_finish();
	PG_RETURN_TEXT_P(cstring_to_text(tk_transaction_state_name(t.state)));
}
