/* SPDX-License-Identifier: Apache-2.0 */
/* window.h: memory that the ranks of one host have in common: one copy of it a
 * host.
 *
 * Nothing in a window is sent by itself. What a rank writes, the ranks of its
 * host see, ordered by the collectives between them; the ranks of another host
 * have another copy. So a value that every rank of a host needs is there once,
 * and what differs between hosts is exchanged by one rank of each.
 *
 * A window does not need its group once it is made, and outlives ranks that
 * die: what they wrote stays, as long as one process holds the window. Nothing
 * has a name in a file system, so nothing is left behind, however the processes
 * end. A child made by fork does not have the memory: touching it there is a
 * fault.
 */
#ifndef OARSONG_WINDOW_H
#define OARSONG_WINDOW_H

#include <oarsong/group.h>

OAR_BEGIN_DECLS

typedef struct oar_window oar_window;

typedef struct oar_window_opts {
    size_t size;
    int64_t timeout_ms; /* of each step among the ranks; 0: the group's, below
                           0: none */
    const char *label;  /* shown in errors and records; NULL: "window_create" */
} oar_window_opts;
OAR_OPTS_INIT(oar_window_opts);

/* Gives memory that the ranks of the host share: zeroed, on pages of its own,
 * writable. A page takes memory when it is first touched, on the NUMA node of
 * the rank that touches it. bytes may be 0. opts may be NULL.
 *
 * A collective: all ranks of the group call it, with the same bytes, in the
 * same order among the group's collectives, and it blocks. Where all ranks live
 * on, either all get the window or none does, and the group goes on:
 *   OAR_E_MISMATCH     ranks give different bytes;
 *   OAR_E_NOMEM, OAR_E_SYSTEM, ...  a rank could not make or map it: that
 *                      rank's status on all ranks, with the rank named;
 *   OAR_E_UNSUPPORTED  a group of several ranks whose backend shares no memory
 *                      ("tcp", plugins);
 *   OAR_E_STATE        this thread has a batch open on the group.
 * If a rank dies, is stopped or aborts on the way, the group ends as in any
 * collective. A group of one has memory of its own, over any backend. Ranks as
 * threads (oar_sim_run) have mappings of their own, as processes do. */
#define oar_window_create(group, bytes, opts, window) \
    oar_window_create_at(OAR_HERE, group, bytes, opts, window)
OAR_API oar_status oar_window_create_at(const char *file, int line,
                                        oar_group *group, size_t bytes,
                                        const oar_window_opts *opts,
                                        oar_window **window);

/* Gives such memory to this process alone, for others to import, or to send
 * arrays that lie in it without a copy (rpc.h). Needs no group and no other
 * rank. */
OAR_API oar_status oar_window_alloc(size_t bytes, oar_window **window);

/* Adds a reference; returns window. NULL is fine. Any thread. */
OAR_API oar_window *oar_window_retain(oar_window *window);
/* Drops a reference. The last one of a process unmaps its memory, which goes
 * when no process has it any more. NULL is fine. Any thread; it never waits for
 * other ranks. */
OAR_API void oar_window_release(oar_window *window);

/* The memory, at an address of this process's own; NULL for NULL. */
OAR_API void *oar_window_data(const oar_window *window);
/* As asked for when it was made; 0 for NULL. */
OAR_API size_t oar_window_bytes(const oar_window *window);
/* How many ranks of the group got this copy, this one included; and whether
 * that rank of the group did. 0 for NULL, and of an imported window. */
OAR_API int oar_window_ranks(const oar_window *window);
OAR_API int oar_window_has(const oar_window *window, int rank);

/* Sets whether the pages that lie wholly in first .. first+bytes may be written
 * through this window; at first all may. The last page counts as wholly inside
 * if the range reaches the end of the window. A store to a page that may not be
 * written is a fault of the program (SIGSEGV). The windows of other ranks are
 * not affected. OAR_E_ARG if the range is not inside, OAR_E_STATE to make
 * writable what was imported to read. Any thread. */
OAR_API oar_status oar_window_protect(oar_window *window, size_t first,
                                      size_t bytes, int writable);

/* ---- other processes ----------------------------------------------------- */

enum { OAR_WINDOW_TOKEN_BYTES = 96 };

/* Writes a text by which another process of this host and this user can import
 * the window, for as long as this process holds it. The text cannot be guessed.
 * It may go to the other process in any way: an argument, a store, a pipe. Any
 * thread, as often as wanted; no rank needs to do anything. */
OAR_API oar_status oar_window_export(const oar_window *window,
                                     char token[OAR_WINDOW_TOKEN_BYTES]);

/* Maps the window of a token: the same memory, to read only unless writable.
 * The importer need not be a rank, and holds the memory as a rank does.
 * OAR_E_ARG for a text that is no token; OAR_E_NOT_FOUND if this host has no
 * such window: it was released, its process has ended, or it is on another host
 * or in another PID namespace; OAR_E_SYSTEM if the kernel refuses access to
 * that process (another user; a process that is not dumpable). */
OAR_API oar_status oar_window_import(const char *token, int writable,
                                     oar_window **window);

OAR_END_DECLS

#endif
