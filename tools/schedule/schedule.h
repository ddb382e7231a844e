/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: the options of `oarsong schedule`. */
#ifndef OARSONG_TOOLS_SCHEDULE_H
#define OARSONG_TOOLS_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include <oarsong/oarsong.h>

/* Numbers for each stage, as they were given: "1" or "1,2,1". */
typedef struct schedule_costs {
    const char *forward, *inputs, *weights, *held, *half,
        *message; /* or NULL */
    double hop;
} schedule_costs;

typedef struct schedule_options {
    const char *what;                   /* a kind or a file; NULL: not given */
    size_t ranks, micro, chunks, bytes; /* 0: not given */
    int ahead, all, forward_only;
    oar_picture picture;
    schedule_costs cost;
} schedule_options;

/* Reads the words after the subcommand; `best` takes no kind. Returns 0, with a
 * sentence, if they are wrong. */
int schedule_read_options(const char *subcommand, int argc, char **argv,
                          schedule_options *options);

/* Prints what the options are. */
void schedule_explain_options(void);

/* The costs of so many stages, which must be freed in any case. */
typedef struct schedule_numbers {
    double *time[3];
    uint64_t *bytes[3];
    oar_schedule_cost cost;
} schedule_numbers;

/* Returns 0, with a sentence, if the numbers are none or not enough. */
int schedule_read_costs(const schedule_costs *costs, int stages,
                        schedule_numbers *numbers);
void schedule_free_costs(schedule_numbers *numbers);

#endif
