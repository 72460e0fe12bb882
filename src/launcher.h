/*
 * launcher.h
 *	  The static worker that keeps every wanted pipeline running.
 */
#ifndef TK_LAUNCHER_H
#define TK_LAUNCHER_H

/* _PG_init: registers the launcher. */
extern void tk_launcher_init(void);

/* For a background worker that has its SIGHUP handler by now: takes up a reload that came before.  Not in a transaction. */
extern void tk_catch_up_with_reload(void);

#endif							/* TK_LAUNCHER_H */
