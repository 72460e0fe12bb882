/*
 * route.h
 *	  Table → topic.  Pure C.
 */
#ifndef TK_ROUTE_H
#define TK_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

/* Kafka's limit on the name of a topic (org.apache.kafka.common.internals.Topic) */
#define TK_TOPIC_MAX 249

/*
 * Writes the topic of a table, "<pipeline>.<schema>.<table>" with every
 * character outside [a-zA-Z0-9._-] replaced by '_' (a multibyte character
 * by one '_'), or "given", the table's own option, which must be a legal
 * topic name as it stands.  Returns NULL, or why there is no such topic
 * (a static text that completes "topic of table … : ").
 */
extern const char *tk_route_topic(const char *pipeline, const char *schema, const char *table,
								  const char *given, char topic[TK_TOPIC_MAX + 1]);

/* NULL, or why this is no legal name of a topic (static text). */
extern const char *tk_topic_problem(const char *topic);

#endif							/* TK_ROUTE_H */
