/*
 * allowed.h
 *	  allowed_topics: which topics a role may produce() to, an option of its user
 *	  mapping for the server.
 */
#ifndef TK_ALLOWED_H
#define TK_ALLOWED_H

#include "postgres.h"

#include "nodes/nodes.h"

#define TK_ALLOWED_TOPICS "allowed_topics"

/* ERROR unless it is a list of names of topics, or a regular expression. */
extern void tk_check_allowed_topics(const char *value);

/* ERROR unless the current user may produce to this topic through the server. */
extern void tk_check_topic_allowed(const char *topic, Oid server);

/*
 * A utility statement, before it runs: ERROR if it would set, change or remove
 * the option, and the current user does not own the server.
 */
extern void tk_guard_allowed_topics(Node *stmt);

#endif							/* TK_ALLOWED_H */
