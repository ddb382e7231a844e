/* SPDX-License-Identifier: Apache-2.0 */
/* run_options.h: the options of `oarsong run`. */
#ifndef OARSONG_RUN_OPTIONS_H
#define OARSONG_RUN_OPTIONS_H

#include <stdio.h>

#include <oarsong/launch.h>

enum { RUN_ENV_MAX = 256 };

typedef struct run_options {
    oar_launch_opts launch;
    int ranks; /* 0: not said */
    int help, standalone, no_tag;
    const char *master_addr;
    int master_port;
    int node_rank;
    const char *web; /* where the live page is; "": as usual; NULL: none */
    char endpoint[300];
    const char *env[RUN_ENV_MAX + 1];
    int envs;
} run_options;

/* Reads options up to the program. Returns its index in argv (argc: there is
 * none), or 0 when something is wrong, which has been printed. */
int run_options_read(int argc, char **argv, run_options *options);

void run_options_print(FILE *to);

#endif
