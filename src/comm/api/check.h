/* SPDX-License-Identifier: Apache-2.0 */
/* comm/api/check.h: what every public call checks first. A call with a bad
 * argument ends here: no peer has heard of it. */
#ifndef OARI_COMM_API_CHECK_H
#define OARI_COMM_API_CHECK_H

#include "comm/exec/call.h"
#include "comm/comm.h"

/* Fills in a call: its kind, its site, and what its options say. */
oar_status oari_call_begin(oari_call *call, oar_coll kind, const char *file,
                           int line, const oar_group *group,
                           const oar_call_opts *opts);

/* Fails because the call is none for a loose group. */
oar_status oari_fail_loose(const oar_group *group, const char *call);

/* Fails unless the span has a dtype, a device and memory. */
oar_status oari_check_span(const char *what, const oar_span *span);
/* Fails unless the group has such a rank. */
oar_status oari_check_rank(const char *what, const oar_group *group, int rank);

/* Fails unless the group's backend has messages, and this ability (OAR_CAN_; 0:
 * none), which `what` names. */
oar_status oari_check_can(const oar_group *group, uint32_t bit,
                          const char *what);
/* Fails unless there is such a tag; any: OAR_ANY_TAG is one. */
oar_status oari_check_tag(const char *what, int64_t tag, int any);
/* Fails unless a receive or a probe can look for such messages. */
oar_status oari_check_source(const char *what, const oar_group *group, int peer,
                             int64_t tag);

/* Checks the operator, and sets what this rank's contribution is multiplied
 * with. call->op, call->in.dtype and call->weight are set. */
oar_status oari_check_op(oari_call *call, const oar_call_opts *opts);

/* Fails with OAR_E_DTYPE unless both are of one dtype. */
oar_status oari_check_same(const char *what, const oar_span *a,
                           const oar_span *b);

/* Fails with OAR_E_ARG if the two overlap, unless `part` begins at element `at`
 * of row. */
oar_status oari_check_apart(const char *what, const oar_span *row, size_t at,
                            const oar_span *part);

/* Returns the sum of counts, or SIZE_MAX if it is too large. counts == NULL:
 * `ranks` parts of `each`. */
size_t oari_parts_total(const size_t *counts, int ranks, size_t each);
/* Returns a hash of counts that all ranks are to agree on. */
uint64_t oari_parts_hash(const size_t *counts, int ranks);

#endif
