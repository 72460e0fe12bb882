/*
 * topics.h
 *	  The topics of a pipeline: which table has which, and that they exist.
 */
#ifndef TK_TOPICS_H
#define TK_TOPICS_H

#include "append.h"
#include "pipeline.h"

extern void tk_topics_init(void);

/* What set_table says of a table; NULL: nothing. */
extern const TkTableEntry *tk_table_entry(Oid relid);

/* The route of a topic that anybody may write to; the topic exists, or is created. */
extern TkTopicRoute *tk_find_route(const char *topic);

/*
 * The route of a table, by its names in UTF-8.  Stops the pipeline if another
 * table's rows go to that topic, unless set_table gave it to both.  Called in
 * decoding, it goes by the catalog as of the change.
 */
extern TkTopicRoute *tk_table_route(Oid relid, const char *schema, const char *table);

/* The route of an outbox table's records with this topic. */
extern TkTopicRoute *tk_outbox_route(Oid relid, const char *topic);

/* Makes sure that a topic is there that no table may have. */
extern TkTopicRoute *tk_reserved_route(const char *topic);

#endif							/* TK_TOPICS_H */
