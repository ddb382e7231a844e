/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h: the subcommands of `oarsong`. Each returns the exit code. */
#ifndef OARSONG_TOOL_H
#define OARSONG_TOOL_H

#include <stddef.h>

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

int tool_run(int argc, char **argv);
int tool_bench(int argc, char **argv);
int tool_conform(int argc, char **argv);
int tool_info(int argc, char **argv);

/* Prints "oarsong WHAT: " and the library's last error. Returns TOOL_FAILED. */
int tool_failed(const char *what);

/* A whole number with an optional K, M or G. Returns 0 if it is none. */
int tool_number(const char *text, size_t low, size_t high, size_t *value);

#endif
