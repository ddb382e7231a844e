/* SPDX-License-Identifier: Apache-2.0 */
/* comm/api/post.h: the one funnel that all calls go through. */
#ifndef OARI_COMM_API_POST_H
#define OARI_COMM_API_POST_H

#include "comm/comm.h"

/* Gives the call its number, and runs or queues it. work == NULL: returns when
 * it is done (on device memory: ordered on its stream), or adds it to the
 * thread's batch. Borrows what the call points to for the time of the call. */
oar_status oari_post(oar_group *group, const oari_call *call, oar_work **work);
/* Posts several calls that are under way at once, as one. */
oar_status oari_post_many(oar_group *group, int count, const oari_call *call,
                          oar_work **work);
/* Posts works that are linked by next, which it takes: with a handle for all of
 * them, or until all are done. */
oar_status oari_post_list(oar_group *group, int count, oar_work *first,
                          oar_work **work);

/* Returns whether this thread has a batch open: then calls are added to it. */
int oari_batching(const oar_group *group);
/* Adds a call to the thread's batch. */
oar_status oari_batch_add(oar_group *group, const oari_call *call);
/* Frees what a batch that was never ended has collected. */
void oari_batch_drop(oar_group *group);

/* Checks a call's memory, and makes a work of it that is about to begin, or to
 * be prepared. */
oar_status oari_work_make_checked(oar_group *group, const oari_call *call,
                                  oar_work **made);
/* Gives a work to the engine, which holds it until it is done. */
void oari_work_hand_over(oar_work *work, uint64_t state);
/* Frees works that are linked by next and were never posted. */
void oari_drop_parts(oar_work *first);
/* Returns the status of an operation that is done; a failure is also the last
 * error. */
oar_status oari_work_result(const oar_work *work);
/* Makes the failure of one message the last error, and returns its status. */
oar_status oari_message_failed(const oar_work *work);

/* Chooses the engine for an operation on device memory, and checks that its
 * memory is on the device that its spans say (gpu_check.c). */
oar_status oari_gpu_check(oar_group *group, oari_call *call);

#endif
