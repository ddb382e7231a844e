/* SPDX-License-Identifier: Apache-2.0 */
/* base/call_site.h: the line of the user's program that called this thread into
 * the library.
 *
 * A public function that takes a file and a line and starts collectives sets
 * them for its duration. The collectives that the library itself posts in that
 * time pass no file (the library is compiled with OAR_HERE as NULL, 0) and are
 * recorded with that line. */
#ifndef OARI_BASE_CALL_SITE_H
#define OARI_BASE_CALL_SITE_H

typedef struct oari_call_site {
    const char *file; /* NULL: none */
    int line;
} oari_call_site;

/* Sets the thread's call site until the calling block ends. A NULL file changes
 * nothing. */
#define OARI_CALLED_FROM(file, line)                       \
    __attribute__((cleanup(oari_call_site_leave), unused)) \
    oari_call_site oari_outer = oari_call_site_enter(file, line)

/* Sets the thread's call site and returns the one before. */
oari_call_site oari_call_site_enter(const char *file, int line);

/* Restores the call site that oari_call_site_enter returned. */
void oari_call_site_leave(const oari_call_site *outer);

/* Returns the file and line given, if there is a file; else the thread's call
 * site, or "?". The file is a copy that is never freed. */
oari_call_site oari_call_site_of(const char *file, int line);

#endif
