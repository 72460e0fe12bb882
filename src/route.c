/*
 * route.c
 *	  Table → topic.
 *
 * Replacing characters loses some, so two tables may meet in one topic.  That
 * is found where pipelines are defined: whoever stores a topic compares it
 * with those of the other tables.  Here only one name is looked at.
 */
#include "route.h"

#include <string.h>

static bool
is_legal(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '.' || c == '_' || c == '-';
}

/*
 * Bytes of the character at s, as its first byte announces them and only as
 * far as continuation bytes follow: names from a SQL_ASCII database may be
 * anything, and each stray byte should count as a character of its own.
 */
static size_t
character_length(const char *s)
{
	unsigned char first = (unsigned char) *s;
	size_t		announced = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
	size_t		n = 1;

	while (n < announced && ((unsigned char) s[n] & 0xC0) == 0x80)
		n++;
	return n;
}

/* Appends the legal form of "part" at *len; false if it doesn't fit. */
static bool
append_part(char topic[TK_TOPIC_MAX + 1], size_t *len, const char *part)
{
	while (*part != '\0')
	{
		if (*len >= TK_TOPIC_MAX)
			return false;
		topic[(*len)++] = is_legal((unsigned char) *part) ? *part : '_';
		part += character_length(part);
	}
	topic[*len] = '\0';
	return true;
}

const char *
tk_topic_problem(const char *topic)
{
	const char *c;

	if (topic[0] == '\0')
		return "the name is empty";
	if (strcmp(topic, ".") == 0 || strcmp(topic, "..") == 0)
		return "Kafka reserves the names \".\" and \"..\"";
	for (c = topic; *c != '\0'; c++)
	{
		if (!is_legal((unsigned char) *c))
			return "the name may contain only letters, digits, \".\", \"_\" and \"-\"";
	}
	if (c - topic > TK_TOPIC_MAX)
		return "the name is longer than 249 characters";
	return NULL;
}

const char *
tk_route_topic(const char *pipeline, const char *schema, const char *table,
			   const char *given, char topic[TK_TOPIC_MAX + 1])
{
	size_t		len = 0;
	const char *problem;

	topic[0] = '\0';
	if (given != NULL)
	{
		problem = tk_topic_problem(given);
		if (problem == NULL)
			strcpy(topic, given);
		return problem;
	}

	if (!append_part(topic, &len, pipeline) ||
		!append_part(topic, &len, ".") ||
		!append_part(topic, &len, schema) ||
		!append_part(topic, &len, ".") ||
		!append_part(topic, &len, table))
	{
		topic[0] = '\0';
		return "the name is longer than 249 characters";
	}
	return tk_topic_problem(topic);
}
