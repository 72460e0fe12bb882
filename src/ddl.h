/*
 * ddl.h
 *	  DDL around pipelines.
 */
#ifndef TK_DDL_H
#define TK_DDL_H

#include "postgres.h"

/* _PG_init: the object-access hook. */
extern void tk_ddl_init(void);

/* The publication goes with the extension. */
extern void tk_publication_belongs_to_extension(const char *publication);

/*
 * A scout: the slots of this database that are named as ours, and those of
 * them that no definition claims, dropped.  The list must be older than the
 * snapshot in which the definitions (a List of pipeline ids) were read.
 */
extern List *tk_list_own_slots(void);
extern void tk_drop_orphaned_slots(List *slots, List *defined);

#endif							/* TK_DDL_H */
