/* SPDX-License-Identifier: Apache-2.0 */
/* top.h: `oarsong top`: how a job is shown as text. */
#ifndef OARSONG_TOOL_TOP_H
#define OARSONG_TOOL_TOP_H

#include <stdio.h>

#include <oarsong/live.h>

typedef struct top_screen {
    int rows, columns;
    int ansi; /* colours may be used */
} top_screen;

/* Prints what the last look has found. */
void top_print(const oar_live *live, const top_screen *screen, FILE *to);

#endif
