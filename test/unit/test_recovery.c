/*
 * test_recovery.c
 *	  The table of DESIGN §3, row by row: what a start concludes from the
 *	  progress record.  Each row at its edge, before and after settling.
 */
#include "../../src/recovery.h"
#include "unit.h"

#define UUID	"0123abcd-89ef-4abc-8def-0123456789ab"
#define OTHER_UUID	"0123abcd-89ef-4abc-8def-0123456789ac"

#define BEFORE	false			/* step 1: before any transactional id is touched */
#define SETTLED true			/* step 4: nobody else can write any more */

/* The timelines that this server (on 5) was on before; 3 is not among them. */
static const struct TkFork forks[] = {
	{1, UINT64_C(0x1000)},
	{2, UINT64_C(0x2000)},
	{4, UINT64_C(0x300004000)}
};

/* A server on timeline 5 that knows checkpoints up to 42; 41 is known to be committed, 42 is prepared. */
static TkRemembered
server(void)
{
	TkRemembered mine;

	memset(&mine, 0, sizeof(mine));
	strcpy(mine.uuid, UUID);
	mine.system_identifier = UINT64_C(7123456789012345678);
	mine.database = 16384;
	mine.started = true;
	mine.instances[0] = 111;
	mine.instances[1] = 222;
	mine.newest = 42;
	mine.committed = 41;
	mine.timeline = 5;
	mine.nforks = 3;
	mine.forks = forks;
	return mine;
}

/* What it wrote to Kafka with checkpoint 41. */
static TkProgress
record(void)
{
	TkProgress	p;

	memset(&p, 0, sizeof(p));
	strcpy(p.uuid, UUID);
	p.system_identifier = UINT64_C(7123456789012345678);
	p.database = 16384;
	p.timeline = 5;
	p.instance = 222;
	p.checkpoint = 41;
	p.end_lsn = UINT64_C(0x300005000);
	strcpy(p.prefix, "pg.7123456789012345678.16384");
	p.pool_size = 2;
	return p;
}

/* The verdict; a verdict that stops the pipeline has a reason, the others have none. */
static TkVerdict
verdict(const TkProgress *p, const TkRemembered *mine, bool settled, char *reason, size_t size)
{
	TkVerdict	result;

	memset(reason, 'x', size);
	result = tk_judge(p, mine, settled, reason, size);
	CHECK(memchr(reason, '\0', size) != NULL);
	CHECK_INT(reason[0] != '\0', result == TK_VERDICT_DIVERGED || result == TK_VERDICT_FENCED);
	return result;
}

/* Both times the same; returns it, its reason in the caller's buffer. */
static TkVerdict
always(const TkProgress *p, const TkRemembered *mine, char *reason, size_t size)
{
	TkVerdict	before = verdict(p, mine, BEFORE, reason, size);
	TkVerdict	settled = verdict(p, mine, SETTLED, reason, size);

	CHECK_INT(before, settled);
	return settled;
}

static void
a_record_that_agrees_lets_the_pipeline_go_on(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);

	/* the prepared checkpoint has reached Kafka */
	p.checkpoint = 42;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);

	/* a start record is a record as any other */
	p.start = true;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);

	/* the first start record: no checkpoint yet, nothing remembered */
	p.checkpoint = 0;
	mine.newest = mine.committed = 0;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);
}

static void
another_pipelines_record_diverges(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	strcpy(p.uuid, OTHER_UUID);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, UUID) != NULL);
	CHECK(strstr(reason, OTHER_UUID) != NULL);

	/* whatever else it says */
	p.timeline = 1;
	p.end_lsn = 1;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	p.timeline = 5;
	p.instance = 999;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

static void
another_system_or_database_diverges(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.system_identifier++;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "7123456789012345678") != NULL);
	CHECK(strstr(reason, "7123456789012345679") != NULL);

	p = record();
	p.database++;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "16385") != NULL);

	/* a promotion doesn't change them: no adopting either */
	p.timeline = 1;
	p.end_lsn = 1;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

static void
either_of_the_two_instances_is_ours(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.instance = 111;			/* a crash between "decided" and the start record */
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);
	p.instance = 222;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);
}

static void
a_third_instance_fences(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.instance = 333;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);
	CHECK(strstr(reason, "checkpoint 41") != NULL);
	CHECK(strstr(reason, "3/5000") != NULL);

	/* even one that is further than we know: that one lives, so nothing is lost */
	p.checkpoint = 43;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);

	/* and one that is behind */
	p.checkpoint = 40;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);

	/* 0 stands for "none": it is nobody's number */
	p.instance = 0;
	mine.instances[0] = 0;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);
}

static void
a_checkpoint_that_this_server_has_no_row_for_diverges(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.checkpoint = 43;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "43") != NULL);
	CHECK(strstr(reason, "42") != NULL);
	CHECK(strstr(reason, "3/5000") != NULL);

	/* none at all */
	p.checkpoint = 1;
	mine.newest = mine.committed = 0;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

static void
a_record_up_to_the_fork_point_is_adopted(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.timeline = 4;
	p.end_lsn = UINT64_C(0x300004000);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_ADOPT);

	/* an older ancestor, nothing of it known but what the rows say */
	mine.committed = 0;
	p.timeline = 1;
	p.end_lsn = UINT64_C(0x1000);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_ADOPT);

	/* the old primary's instance and newest row may not have reached the standby */
	p.instance = 333;
	p.checkpoint = 50;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_ADOPT);
}

static void
a_record_beyond_the_fork_point_diverges(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.timeline = 4;
	p.end_lsn = UINT64_C(0x300004001);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);

	/* both positions are named */
	CHECK(strstr(reason, "3/4001") != NULL);
	CHECK(strstr(reason, "3/4000") != NULL);
	CHECK(strstr(reason, "timeline 4") != NULL);

	/* each ancestor has its own fork point */
	p.timeline = 1;
	p.end_lsn = UINT64_C(0x1001);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "0/1001") != NULL);
	CHECK(strstr(reason, "0/1000") != NULL);
}

static void
a_timeline_that_is_no_ancestor_diverges(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.end_lsn = 1;
	p.timeline = 3;				/* a sibling: 4 came from 2 */
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "timeline 3") != NULL);
	CHECK(strstr(reason, "timeline 5") != NULL);
	p.timeline = 6;				/* a child: somebody else was promoted */
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);

	mine.timeline = 1;			/* never promoted */
	mine.nforks = 0;
	mine.forks = NULL;
	p.timeline = 2;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

static void
absence_means_something_only_once_settled_and_once_started(void)
{
	TkRemembered mine = server();
	char		reason[512];

	CHECK_INT(verdict(NULL, &mine, BEFORE, reason, sizeof(reason)), TK_VERDICT_GO);
	CHECK_INT(verdict(NULL, &mine, SETTLED, reason, sizeof(reason)), TK_VERDICT_DIVERGED);

	mine.started = false;
	CHECK_INT(verdict(NULL, &mine, BEFORE, reason, sizeof(reason)), TK_VERDICT_GO);
	CHECK_INT(verdict(NULL, &mine, SETTLED, reason, sizeof(reason)), TK_VERDICT_GO);
}

static void
a_record_older_than_what_was_committed_diverges_once_settled(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.checkpoint = 40;
	CHECK_INT(verdict(&p, &mine, BEFORE, reason, sizeof(reason)), TK_VERDICT_GO);
	CHECK_INT(verdict(&p, &mine, SETTLED, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "41") != NULL);
	CHECK(strstr(reason, "40") != NULL);

	/* the prepared one may be missing: it is produced again */
	p.checkpoint = 41;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_GO);

	/* "its end is confirmed" counts as committed */
	mine.committed = 42;
	CHECK_INT(verdict(&p, &mine, BEFORE, reason, sizeof(reason)), TK_VERDICT_GO);
	CHECK_INT(verdict(&p, &mine, SETTLED, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

/* Else a promoted server with a synchronized slot would go on behind what Kafka has lost. */
static void
a_promoted_server_does_not_adopt_what_is_older_than_it_knows_committed(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	p.timeline = 4;
	p.end_lsn = UINT64_C(0x300003000);
	p.checkpoint = 41;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_ADOPT);
	p.checkpoint = 40;
	CHECK_INT(verdict(&p, &mine, BEFORE, reason, sizeof(reason)), TK_VERDICT_ADOPT);
	CHECK_INT(verdict(&p, &mine, SETTLED, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, "41") != NULL);
	CHECK(strstr(reason, "40") != NULL);
}

/* The rows are asked in the table's order. */
static void
the_first_row_that_holds_decides(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		reason[512];

	/* a foreign uuid rather than a foreign instance */
	strcpy(p.uuid, OTHER_UUID);
	p.instance = 333;
	p.checkpoint = 99;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
	CHECK(strstr(reason, OTHER_UUID) != NULL);

	/* a foreign instance rather than a checkpoint beyond ours or a lost one */
	strcpy(p.uuid, UUID);
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);
	p.checkpoint = 1;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_FENCED);

	/* another timeline rather than a foreign instance */
	p.timeline = 3;
	CHECK_INT(always(&p, &mine, reason, sizeof(reason)), TK_VERDICT_DIVERGED);
}

static void
a_reason_fits_any_buffer(void)
{
	TkRemembered mine = server();
	TkProgress	p = record();
	char		small[8];

	p.checkpoint = 99;
	CHECK_INT(verdict(&p, &mine, BEFORE, small, sizeof(small)), TK_VERDICT_DIVERGED);
	CHECK_INT(strlen(small), sizeof(small) - 1);
	p.timeline = 4;
	CHECK_INT(verdict(&p, &mine, BEFORE, small, sizeof(small)), TK_VERDICT_DIVERGED);
	CHECK_INT(verdict(NULL, &mine, SETTLED, small, sizeof(small)), TK_VERDICT_DIVERGED);
}

/* What the row says of its transaction, and the same transaction, still open */
static const TkVote vote = {true, 4711, 3, INT64_C(1764500000123)};

static TkTransactionDescription
its_transaction(TkTransactionState state)
{
	TkTransactionDescription now = {0};

	now.found = true;
	now.state = state;
	now.timeout_ms = 60000;
	now.start_ms = INT64_C(1764500000123);
	now.producer_id = 4711;
	now.epoch = 3;
	return now;
}

static TkRedrive
redrive(const TkVote *of, TkTransactionDescription now, char *reason, size_t size)
{
	TkRedrive	result = tk_redrive(of, 5, 5, &now, reason, size);

	/* a reason where there is nothing to do, and only there */
	CHECK_INT(reason[0] != '\0', result == TK_REDRIVE_NOTHING);
	return result;
}

static void
only_the_rows_own_open_transaction_is_redriven(void)
{
	TkTransactionDescription now = its_transaction(TK_TRANSACTION_ONGOING);
	char		reason[256];

	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_COMMIT);

	now.producer_id++;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
	CHECK(strstr(reason, "4712") != NULL && strstr(reason, "4711") != NULL);

	/* the timeout and InitProducerId take a higher epoch */
	now = its_transaction(TK_TRANSACTION_ONGOING);
	now.epoch++;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
	now.epoch -= 2;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);

	/* librdkafka's next transaction has the same producer and epoch */
	now = its_transaction(TK_TRANSACTION_ONGOING);
	now.start_ms++;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
	CHECK(strstr(reason, "another transaction") != NULL);
	now.start_ms -= 2;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
}

static void
what_is_being_decided_is_waited_for(void)
{
	TkTransactionDescription now = its_transaction(TK_TRANSACTION_PREPARE_COMMIT);
	char		reason[256];

	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_WAIT);
	now.state = TK_TRANSACTION_PREPARE_ABORT;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_WAIT);

	/* an abort under a higher epoch: nothing of the row can come of it */
	now.epoch++;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
}

static void
what_has_ended_is_left_alone(void)
{
	static const TkTransactionState ended[] = {
		TK_TRANSACTION_OTHER, TK_TRANSACTION_EMPTY, TK_TRANSACTION_COMPLETE_COMMIT, TK_TRANSACTION_COMPLETE_ABORT,
		TK_TRANSACTION_DEAD, TK_TRANSACTION_PREPARE_EPOCH_FENCE
	};
	char		reason[256];

	for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]); i++)
	{
		CHECK_INT(redrive(&vote, its_transaction(ended[i]), reason, sizeof(reason)), TK_REDRIVE_NOTHING);
		CHECK(strstr(reason, tk_transaction_state_name(ended[i])) != NULL);
	}
}

static void
a_row_without_a_vote_or_of_another_timeline_is_not_redriven(void)
{
	TkTransactionDescription now = its_transaction(TK_TRANSACTION_ONGOING);
	TkVote		none = vote;
	char		reason[256];

	none.known = false;
	CHECK_INT(redrive(&none, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);

	CHECK_INT(tk_redrive(&vote, 4, 5, &now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
	CHECK(strstr(reason, "timeline 4") != NULL);

	/* nothing is read of what was not found */
	now.found = false;
	CHECK_INT(redrive(&vote, now, reason, sizeof(reason)), TK_REDRIVE_NOTHING);
}

int
main(void)
{
	a_record_that_agrees_lets_the_pipeline_go_on();
	another_pipelines_record_diverges();
	another_system_or_database_diverges();
	either_of_the_two_instances_is_ours();
	a_third_instance_fences();
	a_checkpoint_that_this_server_has_no_row_for_diverges();
	a_record_up_to_the_fork_point_is_adopted();
	a_record_beyond_the_fork_point_diverges();
	a_timeline_that_is_no_ancestor_diverges();
	absence_means_something_only_once_settled_and_once_started();
	a_record_older_than_what_was_committed_diverges_once_settled();
	a_promoted_server_does_not_adopt_what_is_older_than_it_knows_committed();
	the_first_row_that_holds_decides();
	a_reason_fits_any_buffer();
	only_the_rows_own_open_transaction_is_redriven();
	what_is_being_decided_is_waited_for();
	what_has_ended_is_left_alone();
	a_row_without_a_vote_or_of_another_timeline_is_not_redriven();
	return unit_done();
}
