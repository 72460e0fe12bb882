/*
 * test_progress.c
 *	  The text of the progress record: what is written is read back, and
 *	  nothing else is.
 */
#include <stdlib.h>

#include "../../src/kafka_progress.h"
#include "unit.h"

static TkProgress
sample(void)
{
	TkProgress	p;

	memset(&p, 0, sizeof(p));
	strcpy(p.uuid, "0123abcd-89ef-4abc-8def-0123456789ab");
	p.system_identifier = UINT64_C(7123456789012345678);
	p.database = 16384;
	p.timeline = 3;
	p.instance = UINT64_C(18446744073709551615);
	p.checkpoint = 42;
	p.end_lsn = UINT64_C(0x1016B3748);
	strcpy(p.prefix, "pg.7123456789012345678.16384");
	p.pool_size = 2;
	p.start = false;
	return p;
}

static const char *const sample_text =
"{\"version\":1,\"uuid\":\"0123abcd-89ef-4abc-8def-0123456789ab\","
"\"system_identifier\":\"7123456789012345678\",\"database\":16384,\"timeline\":3,"
"\"instance\":\"18446744073709551615\",\"checkpoint\":42,\"end_lsn\":\"1/16B3748\","
"\"prefix\":\"pg.7123456789012345678.16384\",\"pool_size\":2,\"start\":false}";

static bool
parses(const char *text, char *why, size_t size)
{
	TkProgress	p;

	/* exactly as long as it is, so that valgrind sees a read past its end */
	size_t		len = strlen(text);
	char	   *copy = malloc(len > 0 ? len : 1);
	bool		ok;

	memcpy(copy, text, len);
	ok = tk_progress_parse(copy, len, &p, why, size);
	free(copy);
	return ok;
}

static void
the_text_is_fixed(void)
{
	TkProgress	p = sample();
	char		text[1024];
	size_t		len = tk_progress_format(&p, text, sizeof(text));

	CHECK_BYTES(text, len, sample_text, strlen(sample_text));
}

static void
check_round_trip(const TkProgress *p)
{
	TkProgress	q;
	char		text[1024];
	char		why[200] = "";
	size_t		len = tk_progress_format(p, text, sizeof(text));

	CHECK(len > 0);
	if (!CHECK(tk_progress_parse(text, len, &q, why, sizeof(why))))
		printf("\t%s\n", why);
	CHECK_STR(q.uuid, p->uuid);
	CHECK(q.system_identifier == p->system_identifier);
	CHECK(q.database == p->database);
	CHECK(q.timeline == p->timeline);
	CHECK(q.instance == p->instance);
	CHECK(q.checkpoint == p->checkpoint);
	CHECK(q.end_lsn == p->end_lsn);
	CHECK_STR(q.prefix, p->prefix);
	CHECK_INT(q.pool_size, p->pool_size);
	CHECK(q.start == p->start);
}

static void
what_is_written_is_read_back(void)
{
	TkProgress	p = sample();

	check_round_trip(&p);
	p.start = true;
	p.end_lsn = 0;
	p.checkpoint = 0;
	p.instance = 0;
	check_round_trip(&p);

	/* the largest record fits the promised 1024 bytes */
	p.system_identifier = UINT64_MAX;
	p.database = UINT32_MAX;
	p.timeline = UINT32_MAX;
	p.checkpoint = INT64_MAX;
	p.end_lsn = UINT64_MAX;
	p.pool_size = TK_POOL_MAX;
	memset(p.prefix, '-', TK_PREFIX_MAX);
	p.prefix[TK_PREFIX_MAX] = '\0';
	check_round_trip(&p);
}

static void
a_prefix_that_kafka_would_refuse_is_not_written(void)
{
	TkProgress	p = sample();
	char		text[1024];

	strcpy(p.prefix, "a\"b");
	CHECK_INT(tk_progress_format(&p, text, sizeof(text)), 0);
	strcpy(p.prefix, "");
	CHECK_INT(tk_progress_format(&p, text, sizeof(text)), 0);
}

static void
a_cut_record_is_refused_at_every_byte(void)
{
	char		text[1024];
	char		why[200];
	size_t		i;

	for (i = 0; i < strlen(sample_text); i++)
	{
		memcpy(text, sample_text, i);
		text[i] = '\0';
		CHECK(!parses(text, why, sizeof(why)));
	}
	snprintf(text, sizeof(text), "%s ", sample_text);
	CHECK(!parses(text, why, sizeof(why)));
}

/* Replaces the first "from" in the sample. */
static bool
edited_is_refused(const char *from, const char *to)
{
	char		text[2048];
	char		why[200] = "";
	const char *at = strstr(sample_text, from);

	snprintf(text, sizeof(text), "%.*s%s%s", (int) (at - sample_text), sample_text, to, at + strlen(from));
	return !parses(text, why, sizeof(why)) && why[0] != '\0';
}

static void
an_edited_record_is_refused(void)
{
	char		why[200];

	CHECK(edited_is_refused("\"version\":1", "\"version\":01"));
	CHECK(edited_is_refused("\"database\":16384", "\"database\": 16384"));
	CHECK(edited_is_refused("16384", "4294967296"));
	CHECK(edited_is_refused("16384", "-1"));
	CHECK(edited_is_refused("16384", "016384"));
	CHECK(edited_is_refused("18446744073709551615", "18446744073709551616"));
	CHECK(edited_is_refused("\"pool_size\":2", "\"pool_size\":1001"));
	CHECK(edited_is_refused("\"checkpoint\":42", "\"checkpoint\":9223372036854775808"));
	CHECK(edited_is_refused("1/16B3748", "1/16b3748"));
	CHECK(edited_is_refused("1/16B3748", "1/016B3748"));
	CHECK(edited_is_refused("1/16B3748", "1/116B37480"));
	CHECK(edited_is_refused("1/16B3748", "1-16B3748"));
	CHECK(edited_is_refused("0123abcd-", "0123ABCD-"));
	CHECK(edited_is_refused("0123abcd-", "0123abcd0"));
	CHECK(edited_is_refused("\"pg.7123", "\"pg 7123"));
	CHECK(edited_is_refused("\"pg.7123456789012345678.16384\"", "\"\""));
	CHECK(edited_is_refused("false", "null"));
	CHECK(edited_is_refused("\"timeline\"", "\"time_line\""));

	CHECK(!parses("", why, sizeof(why)));
	CHECK(!parses("{}", why, sizeof(why)));
	CHECK(!parses("{\"version\":2,\"uuid\":\"x\"}", why, sizeof(why)));
	CHECK_STR(why, "the progress record has format version 2, this build knows 1");
}

int
main(void)
{
	the_text_is_fixed();
	what_is_written_is_read_back();
	a_prefix_that_kafka_would_refuse_is_not_written();
	a_cut_record_is_refused_at_every_byte();
	an_edited_record_is_refused();
	return unit_done();
}
