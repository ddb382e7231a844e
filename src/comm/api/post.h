/* SPDX-License-Identifier: Apache-2.0 */
/* comm/api/post.h: the one funnel that all calls go through. */
#ifndef OARI_COMM_API_POST_H
#define OARI_COMM_API_POST_H

#include "comm/comm.h"

/* Gives the call its number and runs or queues it. Borrows what it points to
 * for the call. */
oar_status oari_post(oar_group *group, const oari_call *call, oar_work **work);
/* Several calls that are under way at once, as one. */
oar_status oari_post_many(oar_group *group, int count, const oari_call *call,
                          oar_work **work);

/* Whether this thread has a batch open; then calls are added to it. */
int oari_batching(const oar_group *group);
oar_status oari_batch_add(oar_group *group, const oari_call *call);
void oari_batch_drop(oar_group *group);

/* Posts works that are linked by next: with a handle for all of them, or until
 * all are done. Takes them over. */
oar_status oari_post_list(oar_group *group, int count, oar_work *first,
                          oar_work **work);
/* One that is about to begin, or to be prepared, with its memory checked. */
oar_status oari_work_make_checked(oar_group *group, const oari_call *call,
                                  oar_work **made);
/* Frees works that are linked by next and were never posted. */
void oari_drop_parts(oar_work *first);
/* Gives a work to the engine, which holds it until it is done. */
void oari_work_hand_over(oar_work *work, uint64_t state);
/* The status of an operation that is done, with its record as the last error.
 */
oar_status oari_work_result(const oar_work *work);
/* The failure of one message, in words. Returns its status. */
oar_status oari_message_failed(const oar_work *work);

/* Which engine does an operation on device memory, and whether its memory is
 * what it says. (gpu_check.c) */
oar_status oari_gpu_check(oar_group *group, oari_call *call);

#endif
