/*
 * encode_value.h
 *	  What the files that write column values share.
 *
 * For encode_*.c only; the world outside sees encode.h.  Texts are UTF-8, "len"
 * bytes, not NUL-terminated; nothing is kept.
 */
#ifndef TK_ENCODE_VALUE_H
#define TK_ENCODE_VALUE_H

#include "encode.h"

/* Styles that only these files know */
#define TK_STYLE_ELEMENT	4	/* Debezium's: in an array */
#define TK_STYLE_INNER		8	/* a string of JSON that is itself a string's text, as Debezium makes it */

/* How text becomes the inside of a JSON string */
typedef enum TkEscape
{
	TK_ESCAPE_NONE,				/* not at all: it is JSON */
	TK_ESCAPE_JSON,				/* as PostgreSQL does: \u001f */
	TK_ESCAPE_JACKSON,			/* as Java's Jackson does when it writes text: \u001F */
	TK_ESCAPE_JACKSON_UTF8		/* … when it writes bytes: beyond U+FFFF two surrogates, \uD83D\uDC18 */
} TkEscape;

/* What is no UTF-8 is replaced. */
extern void tk_append_text(TkBuffer *out, const char *text, size_t len, TkEscape escape);

/* A string of the style: keys must have the bytes that Java's would have, they decide the partition. */
extern void tk_json_text(TkBuffer *out, const char *text, size_t len, int style);

/* Base64 between quotes */
extern void tk_append_base64(TkBuffer *out, const unsigned char *bytes, size_t len);

/* The bytes that hex digits stand for, likewise.  False, with nothing written, for other text. */
extern bool tk_append_hex(TkBuffer *out, const char *text, size_t len);

/* JSON's grammar of a number */
extern bool tk_is_json_number(const char *p, size_t len);

/* Nested texts as JSON.  False if the text isn't of the type's form; "out" then holds a part. */
extern bool tk_append_array(TkBuffer *out, const TkType *type, const char *text, size_t len, int style);
extern bool tk_append_composite(TkBuffer *out, const TkType *type, const char *text, size_t len, int style);
extern bool tk_append_hstore(TkBuffer *out, const TkType *type, const char *text, size_t len, int style);

/*
 * A value as Debezium writes it.  False, with nothing written, where that is
 * what readable scalars are too.
 */
extern bool tk_debezium_value(TkBuffer *out, const TkType *type, const char *text, size_t len, int style);

/* False for columns that Debezium leaves out, because it has no converter for their type. */
extern bool tk_debezium_has(const TkType *type);

/* Debezium's value for one that is not in the WAL; with "style" 0 the one of readable scalars. */
extern void tk_append_unavailable(TkBuffer *out, const TkType *type, int style);

#endif							/* TK_ENCODE_VALUE_H */
