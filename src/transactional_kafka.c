/*
 * transactional_kafka.c
 *	  Loading the library.
 *
 * Merely LOADed (or pulled in by a function call) it registers nothing: shared
 * memory and the launcher exist only if it is in shared_preload_libraries, and
 * each function says so when it needs them.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "ddl.h"
#include "failpoint.h"
#include "launcher.h"
#include "registry.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/* pg_upgrade's servers must neither decode nor write. */
	if (IsBinaryUpgrade || !process_shared_preload_libraries_in_progress)
		return;

	tk_registry_init();
	tk_failpoint_init();
	tk_launcher_init();
	tk_ddl_init();
	EmitWarningsOnPlaceholders("transactional_kafka");
}
