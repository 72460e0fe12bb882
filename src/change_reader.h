/*
 * change_reader.h
 *	  pgoutput's messages → TkChange, on the server's side of change.h.
 */
#ifndef TK_CHANGE_READER_H
#define TK_CHANGE_READER_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "lib/stringinfo.h"

#include "change.h"

/* What kafka.set_table says of a table; found by relid. */
typedef struct TkTableSettings
{
	char	   *topic;			/* NULL: the default name */
	int			nkeys;			/* 0: the default key */
	char	  **keys;			/* column names, UTF-8 */
} TkTableSettings;

typedef enum TkMessageKind
{
	TK_MESSAGE_BEGIN,
	TK_MESSAGE_COMMIT,
	TK_MESSAGE_CHANGE,
	TK_MESSAGE_TRUNCATE,
	TK_MESSAGE_LOGICAL,			/* pg_logical_emit_message */
	TK_MESSAGE_RELATION,		/* a table's shape; kept by the reader */
	TK_MESSAGE_OTHER
} TkMessageKind;

typedef struct TkMessage
{
	TkMessageKind kind;

	/* BEGIN, COMMIT */
	TransactionId xid;			/* BEGIN */
	XLogRecPtr	commit_lsn;
	XLogRecPtr	end_lsn;		/* COMMIT: end of the commit record */
	int64		commit_us;		/* since the Unix epoch */

	/* CHANGE */
	TkChange	change;

	/* TRUNCATE */
	int			nrelations;
	TkRelation **relations;

	/* LOGICAL */
	bool		transactional;
	const char *prefix;
	const char *content;
	int			content_len;
} TkMessage;

/*
 * Hooks into the pipeline.  settings: may return NULL.  described: the reader
 * has built "relation", for the first time (old NULL) or anew.  dropped: it is
 * about to be freed.
 */
typedef struct TkChangeHooks
{
	const TkTableSettings *(*settings) (Oid relid);
	void		(*described) (TkRelation *relation, TkRelation *old);
	void		(*dropped) (TkRelation *relation);
} TkChangeHooks;

extern void tk_change_reader_init(MemoryContext context, const TkChangeHooks *hooks);

/*
 * Reads one message; what it returns is valid until the next call.  ERROR for
 * a message that makes no sense.  Runs in decoding's transaction: a Relation
 * message looks the table up in the catalog as it was then.
 */
extern void tk_change_read(StringInfo message, XLogRecPtr lsn, TkMessage *out);

#endif							/* TK_CHANGE_READER_H */
