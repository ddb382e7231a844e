/* SPDX-License-Identifier: Apache-2.0 */
/* base/call_site.h: the line of the user's program that this thread was called
 * from.
 *
 * A public call that takes a file and a line and starts collectives on the way
 * says so for its own duration; the collectives that the library itself posts
 * meanwhile pass no file (the library is compiled with OAR_HERE as NULL, 0),
 * and are recorded with that line. */
#ifndef OARI_BASE_CALL_SITE_H
#define OARI_BASE_CALL_SITE_H

typedef struct oari_call_site {
    const char *file; /* NULL: none */
    int line;
} oari_call_site;

/* Until the calling block ends, its thread was called from there. A NULL file
 * changes nothing. */
#define OARI_CALLED_FROM(file, line)                       \
    __attribute__((cleanup(oari_call_site_leave), unused)) \
    oari_call_site oari_outer = oari_call_site_enter(file, line)

/* What OARI_CALLED_FROM does: returns the site before, and puts it back. */
oari_call_site oari_call_site_enter(const char *file, int line);
void oari_call_site_leave(const oari_call_site *outer);

/* The file and line given, if there is a file; else where the thread was called
 * from, or "?". The file is a copy that stays. */
oari_call_site oari_call_site_of(const char *file, int line);

#endif
