/* SPDX-License-Identifier: Apache-2.0 */
/* rank_words.h: what a rank of a running job does, in words, for `oarsong top`
 * and the live page. */
#ifndef OARSONG_TOOL_RANK_WORDS_H
#define OARSONG_TOOL_RANK_WORDS_H

#include <oarsong/live.h>

/* Writes "computing", "all_reduce #12 at train.c:88", "dead" and so on. */
void rank_doing(const oar_live_rank *r, char *text, size_t room);
/* Writes "rank 3" or "ranks 1, 2 and 5 more", "" if it waits for none. */
void rank_waits_for(const oar_live_rank *r, char *text, size_t room);
/* Returns "running", "dead" and so on. */
const char *rank_state(oar_live_state state);

#endif
