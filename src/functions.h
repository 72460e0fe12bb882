/*
 * functions.h
 *	  Requests to a pipeline's worker, shared by functions.c and definition.c.
 *	  All need SPI.
 */
#ifndef TK_FUNCTIONS_H
#define TK_FUNCTIONS_H

#include "postgres.h"

#include "catalog.h"
#include "registry.h"

/* Executes a utility or DML command; in a privileged section. */
extern void tk_utility(const char *command);

/*
 * Changes a definition's flags; returns its new generation.  set: an
 * assignment list, constant text.  In a privileged section.
 */
extern int64 tk_update_definition(int32 pipeline_id, const char *set, bool dropping_too);

/* Are the pipeline's state and reason this role's business? */
extern bool tk_may_see(Oid owner);

/* Publishes what was just committed. */
extern TkPipelineEntry *tk_request(const TkDefinition *d, int64 generation, bool wanted, bool gone);

/* Waits for the slot, then a while for Kafka: ERROR for a sticky state, WARNING if Kafka isn't reached. */
extern void tk_await_start(TkPipelineEntry *entry, const TkDefinition *d);

/* definition.c */
extern void tk_drop_publications(int32 pipeline_id);
extern TkDefinition *tk_adopt_definition(const TkDefinition *d);

#endif							/* TK_FUNCTIONS_H */
