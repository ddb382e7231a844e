/* SPDX-License-Identifier: Apache-2.0 */
/* web.h: the live page of `oarsong run --web`: a process beside the launcher
 * that reads the recorder files of the job (oarsong/live.h) and serves what
 * they say. The launcher and the ranks do nothing for it. */
#ifndef OARSONG_TOOL_WEB_H
#define OARSONG_TOOL_WEB_H

#include <stddef.h>

enum { WEB_TOKEN_ROOM = 65 };

/* ---- the process (web.c, web_serve.c, web_state.c) ----------------------- */

/* What the page shows, as text that the caller frees. NULL: it cannot be known.
 * path: "/live", "/metrics", "/autopsy" or "/autopsy.json". */
typedef struct web_state web_state;
web_state *web_state_make(int launcher, const char *endpoint, const char *run);
char *web_state_text(web_state *s, const char *path);
/* Looks at the job, and passes on to the other nodes what was seen. */
void web_state_look(web_state *s);
/* Says that the launcher has ended, after a last look. */
void web_state_end(web_state *s);
/* Returns whether anyone has asked within this time. */
int web_state_asked(web_state *s, double seconds);

/* Serves; returns the port, or 0 with a sentence in `why`. token: "" for none.
 */
int web_serve(const char *address, const char *token, web_state *s, char *why,
              size_t room);

extern const char web_page[];

#endif
