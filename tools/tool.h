/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h: the subcommands of `oarsong`. Each returns the exit code. */
#ifndef OARSONG_TOOL_H
#define OARSONG_TOOL_H

#include <stddef.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

int tool_run(int argc, char **argv);
int tool_autopsy(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_ckpt(int argc, char **argv);
int tool_conform(int argc, char **argv);
int tool_info(int argc, char **argv);
int tool_report(int argc, char **argv);
int tool_schedule(int argc, char **argv);
int tool_top(int argc, char **argv);
int tool_trace(int argc, char **argv);

/* Prints "oarsong WHAT: " and the library's last error. Returns TOOL_FAILED. */
int tool_failed(const char *what);

/* Prints "oarsong WHAT: ", the sentence, and where there is more. Returns 0. */
int tool_refuse(const char *what, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same about an option: there is none of that name (known < 0), its value
 * is missing (NULL), or it cannot be that. */
int tool_bad_option(const char *what, const char *name, const char *value,
                    int known);

/* A whole number with an optional K, M or G. Returns 0 if it is none. */
int tool_number(const char *text, size_t low, size_t high, size_t *value);

/* Which ranks are to take each other for neighbours on one host. "3+1": three
 * on the first, one on the second, and *ranks becomes the sum; "2": *ranks
 * dealt in turn over two. host has room for `most` ranks. Returns 0 if the text
 * is neither. */
int tool_hosts(const char *text, int most, int *ranks, int *host);

/* Whether the ranks of this backend have to be started by mpirun, and whether
 * this process is one that was. */
int tool_wants_mpirun(const char *backend);
int tool_under_mpirun(const char *backend);

/* Starts this program so many times by the launcher of the backend's MPI, with
 * these arguments (a subcommand first, NULL last). Returns the exit code. */
int tool_mpirun(const char *backend, int ranks, char *const *args);

/* Starts the process that serves the live page of a job, and prints where that
 * is. address: ADDR:PORT or PORT, "" for any port of this host. endpoint: where
 * the nodes of the job meet, NULL for one node; run: the name of the job there,
 * or NULL. Returns 0 after complaining. */
int tool_web_start(const char *address, const char *endpoint, const char *run);

#endif
