/*
 * launcher.h
 *	  The static worker that keeps every wanted pipeline running.
 */
#ifndef TK_LAUNCHER_H
#define TK_LAUNCHER_H

/* _PG_init: registers the launcher. */
extern void tk_launcher_init(void);

#endif							/* TK_LAUNCHER_H */
