/*
 * failpoint.c
 *	  Fail-points: see failpoint.h.
 *
 * In a normal build only the (empty) list of kafka.failpoints() remains.
 */
#include "postgres.h"

#include <signal.h>
#include <unistd.h>

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"

#include "failpoint.h"
#include "pg_compat.h"

PG_FUNCTION_INFO_V1(tk_failpoints);

#ifdef TK_FAILPOINTS

typedef enum FailAction
{
	FAIL_NOT,
	FAIL_ERROR,
	FAIL_EXIT,
	FAIL_KILL,
	FAIL_WAIT
} FailAction;

static const char *const names[] = {
#define TK_FAILPOINT_NAME(symbol, name) name,
	TK_FAILPOINT_LIST(TK_FAILPOINT_NAME)
#undef TK_FAILPOINT_NAME
};

static const char *const actions[] = {"", "error", "exit", "kill", "wait"};

static char *failpoints_setting = NULL;

/* How often this process has come by. */
static int64 visits[TK_FP_COUNT];

/*
 * Reads "name:action" or "name:action@n", which is about the n-th visit only;
 * FAIL_NOT if the setting is not about this point.
 */
static FailAction
action_of(TkFailpoint point, const char *setting, int64 *visit)
{
	size_t		len = strlen(names[point]);

	*visit = 0;
	if (setting == NULL || strncmp(setting, names[point], len) != 0 || setting[len] != ':')
		return FAIL_NOT;
	setting += len + 1;
	for (int i = FAIL_ERROR; i <= FAIL_WAIT; i++)
	{
		len = strlen(actions[i]);
		if (strncmp(setting, actions[i], len) != 0)
			continue;
		if (setting[len] == '\0')
			return (FailAction) i;
		if (setting[len] == '@' && setting[len + 1] != '\0' &&
			strspn(setting + len + 1, "0123456789") == strlen(setting + len + 1))
		{
			*visit = strtoll(setting + len + 1, NULL, 10);
			return (FailAction) i;
		}
	}
	return FAIL_NOT;
}

/* What to do on the visit that is counted already. */
static FailAction
action_now(TkFailpoint point)
{
	int64		visit;
	FailAction	action = action_of(point, failpoints_setting, &visit);

	return visit == 0 || visit == visits[point] ? action : FAIL_NOT;
}

static bool
check_setting(char **value, void **extra, GucSource source)
{
	int64		visit;

	if (**value == '\0')
		return true;
	for (int i = 0; i < TK_FP_COUNT; i++)
		if (action_of((TkFailpoint) i, *value, &visit) != FAIL_NOT)
			return true;
	GUC_check_errdetail("It must be \"name:action\" with a name of kafka.failpoints() and the action error, exit, kill or wait; \"name:action@n\" acts on a process's n-th visit only.");
	return false;
}

void
tk_failpoint(TkFailpoint point)
{
	visits[point]++;
	switch (action_now(point))
	{
		case FAIL_NOT:
			return;
		case FAIL_ERROR:
			ereport(ERROR,
					(errcode(ERRCODE_FDW_ERROR),
					 errmsg("fail-point \"%s\"", names[point])));
			break;
		case FAIL_EXIT:
			ereport(FATAL,
					(errcode(ERRCODE_ADMIN_SHUTDOWN),
					 errmsg("fail-point \"%s\" ends the process", names[point])));
			break;
		case FAIL_KILL:
			ereport(LOG, (errmsg("fail-point \"%s\" crashes the server", names[point])));
			kill(MyProcPid, SIGKILL);
			break;
		case FAIL_WAIT:
			ereport(LOG, (errmsg("fail-point \"%s\" waits", names[point])));
			while (action_now(point) == FAIL_WAIT)
			{
				(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 100, PG_WAIT_EXTENSION);
				ResetLatch(MyLatch);
				CHECK_FOR_INTERRUPTS();
				if (ConfigReloadPending)
				{
					ConfigReloadPending = false;
					ProcessConfigFile(PGC_SIGHUP);
				}
			}
			break;
	}
}
#endif							/* TK_FAILPOINTS */

/* Defines the setting; called by _PG_init. */
void
tk_failpoint_init(void)
{
#ifdef TK_FAILPOINTS
	DefineCustomStringVariable("transactional_kafka.failpoints",
							   "Where a worker is made to fail, as \"name:action\" (test builds only).",
							   NULL, &failpoints_setting, "", PGC_SUSET, GUC_NOT_IN_SAMPLE,
							   check_setting, NULL, NULL);
#endif
}

/* SQL: kafka.failpoints() → setof text; empty unless built with FAILPOINTS=1. */
Datum
tk_failpoints(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tk_begin_set(fcinfo);
#ifdef TK_FAILPOINTS
	for (int i = 0; i < TK_FP_COUNT; i++)
	{
		Datum		value = CStringGetTextDatum(names[i]);
		bool		isnull = false;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
	}
#else
	(void) rsinfo;
#endif
	return (Datum) 0;
}
