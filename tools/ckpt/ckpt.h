/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: what the subcommands of `oarsong ckpt` share. */
#ifndef OARSONG_CKPT_H
#define OARSONG_CKPT_H

#include <stdint.h>
#include <stdio.h>

#include <oarsong/oarsong.h>

typedef struct ckpt_options {
    const char *path[2]; /* what is not an option; NULL: not given */
    int json, dry_run, gpt2, trim;
    size_t keep, keep_every, step, ranks, heads, file_bytes; /* 0: not given */
    const char *section, *format, *dtype_name;
    int has_dtype;
    oar_dtype dtype;
} ckpt_options;

/* The subcommands. Each returns the exit code. */
int ckpt_ls(const ckpt_options *options);
int ckpt_show(const ckpt_options *options);
int ckpt_verify(const ckpt_options *options);
int ckpt_diff(const ckpt_options *options);
int ckpt_prune(const ckpt_options *options);
int ckpt_export(const ckpt_options *options);
int ckpt_import(const ckpt_options *options);
int ckpt_reshard(const ckpt_options *options);

/* ---- texts --------------------------------------------------------------- */

/* "1.5 GiB". */
const char *ckpt_size_text(uint64_t bytes, char text[24]);
/* "2026-11-17 08:00:12", in the time zone of the user. */
const char *ckpt_time_text(int64_t unix_s, char text[24]);
/* "[3, 4]". */
const char *ckpt_shape_text(oar_shape shape, char text[200]);
/* Prints a text in quotes, escaped for JSON. */
void ckpt_print_quoted(const char *text);
/* Prints the members of a generation that are not its tensors: "step":... */
void ckpt_print_json(const oar_generation *generation);

/* ---- numbers ------------------------------------------------------------- */

/* Called with `count` elements of a tensor as doubles, the first of which is
 * number `first`. */
typedef void ckpt_numbers_fn(void *arg, int64_t first, int64_t count,
                             const double *number);

/* Goes through the elements of a contiguous tensor, some at a time. */
oar_status ckpt_read_numbers(oar_tensor *tensor, ckpt_numbers_fn *fn,
                             void *arg);

#endif
