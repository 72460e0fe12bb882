/*
 * encode.c
 *	  make bench: what it costs to encode a record, by both envelopes.
 *
 * Rows of the benchmark's table (5 columns) and of one with 10, whose values
 * are there as pgoutput delivers them.  Prints a line of JSON:
 * nanoseconds of CPU a record, by format and columns.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../src/encode.h"

#define ROUNDS 2000000
#define FLUSH (64 * 1024)		/* as append.c does */

static const struct
{
	const char *name;
	TkKind		kind;
	uint32_t	oid;
	const char *value;
}			columns[] = {
	{"id", TK_KIND_INTEGER, 20, "1234567"},
	{"aid", TK_KIND_INTEGER, 23, "84017"},
	{"delta", TK_KIND_INTEGER, 23, "-42"},
	{"note", TK_KIND_TEXT, 25, "c4ca4238a0b923820dcc509a6f75849babcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcd"},
	{"ts", TK_KIND_TIMESTAMPTZ, 1184, "2026-11-30 19:51:01.306768+00"},
	{"paid", TK_KIND_BOOL, 16, "t"},
	{"rate", TK_KIND_FLOAT, 701, "0.3333333333333333"},
	{"total", TK_KIND_NUMERIC, 1700, "1234.50"},
	{"day", TK_KIND_DATE, 1082, "2026-11-30"},
	{"state", TK_KIND_TEXT, 1043, "delivered"}
};

#define MOST ((int) (sizeof(columns) / sizeof(columns[0])))

static double
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double) t.tv_sec * 1e9 + (double) t.tv_nsec;
}

static double
encode(const TkEncoder *encoder, int ncolumns)
{
	static const int keys[] = {0};
	static TkBuffer out;
	TkEncodeOptions options = {.pipeline = "bulk",.database = "postgres",.version = "1.0"};
	TkColumn	described[MOST];
	TkValue		values[MOST];
	TkRelation	relation = {
		.relid = 16384,.schema = "public",.table = "bulk",.replica_identity = 'd',.ncolumns = ncolumns,
		.columns = described,.nkeys = 1,.keys = keys,.topic = "bulk.public.bulk"
	};
	TkTransaction transaction = {
		.xid = 734,.commit_lsn = 22780664,.previous_commit_lsn = 22780000,.commit_us = 1796068261307021,
		.processing_us = 1796068261308112
	};
	TkChange	change = {.operation = TK_INSERT,.relation = &relation,.new = values,.lsn = 22780600};
	TkRecord	records[TK_MAX_RECORDS];
	void	   *plan;
	double		begun;

	memset(described, 0, sizeof(described));
	for (int i = 0; i < ncolumns; i++)
	{
		described[i].name = columns[i].name;
		described[i].type.kind = columns[i].kind;
		described[i].type.oid = columns[i].oid;
		described[i].type.typmod = -1;
		described[i].identity = i == 0;
		values[i].kind = TK_VALUE_TEXT;
		values[i].len = (uint32_t) strlen(columns[i].value);
		values[i].data = columns[i].value;
	}
	plan = encoder->plan(&options, &relation);
	begun = now_ns();
	for (int i = 0; i < ROUNDS; i++)
	{
		encoder->encode(&options, plan, &transaction, &change, &out, records);
		if (out.len >= FLUSH)
			tk_buffer_reset(&out, FLUSH * 2);
	}
	begun = now_ns() - begun;
	encoder->free_plan(plan);
	return begun / ROUNDS;
}

int
main(void)
{
	static const TkEncoder *const encoders[] = {&tk_encoder_plain, &tk_encoder_debezium};

	printf("{");
	for (int i = 0; i < 2; i++)
	{
		(void) encode(encoders[i], 5);	/* caches, and the buffer */
		printf("%s\"%s\": {\"5\": %.0f, \"10\": %.0f}", i ? ", " : "", encoders[i]->name, encode(encoders[i], 5),
			   encode(encoders[i], MOST));
	}
	printf("}\n");
	return 0;
}
