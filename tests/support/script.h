/* SPDX-License-Identifier: Apache-2.0 */
/* support/script.h: what a rank does, as a line of text.
 *
 *     "barrier; all_reduce 17 f32 max async; broadcast 5 @2 label=x"
 *
 * A call is its name (as oar_coll_name says it, with _v or _bytes behind it),
 * then in any order: the count (of one rank's part), a dtype, an operator, @
 * and the root or the peer, and
 *
 *     async       posted; waited for at the end of the script
 *     apart       out of place
 *     prepared    prepared, then started and waited for
 *     canonical   with that option
 *     sync        a synchronous send
 *     batch       collected; the batch ends before the first call without it
 *     other       on the other group
 *     monitored   a barrier: the monitored one
 *     label=TEXT  tag=N  weight=N  scale=N  key=N
 *     wide=R      _v: rank R's part is one element longer
 *     within=MS   a timeout of its own
 */
#ifndef TESTS_SUPPORT_SCRIPT_H
#define TESTS_SUPPORT_SCRIPT_H

#include <oarsong/backend.h>
#include <oarsong/p2p.h>

enum { SCRIPT_ACTS = 32 };

typedef struct script_call {
    oar_coll kind;
    int parts, object;
    size_t count;
    oar_dtype dtype;
    oar_reduce_op op;
    int root, wide;
    int64_t tag, within_ms;
    uint64_t key;
    double weight;
    int async, apart, prepared, canonical, synchronous, batch, other;
    int monitored;
    char label[24];
} script_call;

/* Returns the number of calls, or -1 for a text that is no script, which it
 * prints. */
int script_parse(const char *text, script_call list[SCRIPT_ACTS]);

/* The rank that runs a script. */
typedef struct script_runner {
    oar_group *group, *other;
    const char
        *file; /* of the call sites that it passes; line 10 * (index + 1) */
    unsigned char *in, *out; /* room for all parts of everything */
} script_runner;

/* Runs the calls up to the first that fails, and sets *why to its last error.
 * The list must outlive the groups. */
oar_status script_run(const script_runner *who, const script_call *list,
                      int acts, oar_error *why);

#endif
