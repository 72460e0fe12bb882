/*
 * header_json.h
 *	  The headers of a record, written as a JSON object.  Pure C.
 */
#ifndef TK_HEADER_JSON_H
#define TK_HEADER_JSON_H

#include "message.h"

typedef enum TkHeadersResult
{
	TK_HEADERS_OK,
	TK_HEADERS_NO_OBJECT,		/* another JSON value */
	TK_HEADERS_NO_SCALAR,		/* the named one is an object, or an array with something else than scalars */
	TK_HEADERS_TOO_MANY,		/* or one with too long a name */
	TK_HEADERS_BAD_CHARACTER,	/* in the named one, or its name: \u0000, or half of a surrogate pair */
	TK_HEADERS_BAD_JSON
} TkHeadersResult;

/*
 * Appends the headers of a JSON object (UTF-8) to "out", as
 * tk_message_add_header does, in the object's order: scalars as their text,
 * null as Kafka's null; an array repeats its name.  *n: how many.  "scratch"
 * is emptied and holds unescaped text; either buffer may have failed
 * afterwards.  *name: of the header at fault, in "scratch"; NULL: none.
 */
extern TkHeadersResult tk_headers_read(const char *json, size_t len, TkBuffer *out, int *n, TkBuffer *scratch,
									   TkMessageBytes *name);

#endif							/* TK_HEADER_JSON_H */
