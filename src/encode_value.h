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

/* UTF-8 text.  "escape": as the inside of a JSON string; otherwise only what is no UTF-8 is replaced. */
extern void tk_append_text(TkBuffer *out, const char *text, size_t len, bool escape);

/* Base64 between quotes */
extern void tk_append_base64(TkBuffer *out, const unsigned char *bytes, size_t len);

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
extern bool tk_debezium_value(TkBuffer *out, const TkType *type, const char *text, size_t len);

/* False for columns that Debezium leaves out, because it has no converter for their type. */
extern bool tk_debezium_has(const TkType *type);

/* Debezium's value for one that is not in the WAL; with "style" 0 the one of readable scalars. */
extern void tk_append_unavailable(TkBuffer *out, const TkType *type, int style);

#endif							/* TK_ENCODE_VALUE_H */
