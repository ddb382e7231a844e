/* SPDX-License-Identifier: Apache-2.0 */
/* comm/api/check.h: what every public call checks before anybody else sees it.
 * A bad argument ends here: no peer has heard of the call. */
#ifndef OARI_COMM_API_CHECK_H
#define OARI_COMM_API_CHECK_H

#include "comm/exec/call.h"
#include "comm/comm.h"

/* Begins a call: the site, and what its options say. */
oar_status oari_call_begin(oari_call *call, oar_coll kind, const char *file,
                           int line, const oar_group *group,
                           const oar_call_opts *opts);

oar_status oari_check_span(const char *what, const oar_span *span);
oar_status oari_check_rank(const char *what, const oar_group *group, int rank);

/* Messages: whether the group's backend has them, and this bit (OAR_CAN_; 0:
 * none); whether there is such a tag; and where a receive or a probe looks. */
oar_status oari_check_can(const oar_group *group, uint32_t bit,
                          const char *what);
oar_status oari_check_tag(const char *what, int64_t tag, int any);
oar_status oari_check_source(const char *what, const oar_group *group, int peer,
                             int64_t tag);

/* The operator, and what this rank's contribution is multiplied with: call->op,
 * call->out.dtype and call->weight are set. */
oar_status oari_check_op(oari_call *call, const oar_call_opts *opts);

/* OAR_E_DTYPE unless both are of one dtype. */
oar_status oari_check_same(const char *what, const oar_span *a,
                           const oar_span *b);

/* OAR_E_ARG if the two overlap, unless `part` begins at element `at` of row. */
oar_status oari_check_apart(const char *what, const oar_span *row, size_t at,
                            const oar_span *part);

/* Parts: the sum of counts (SIZE_MAX if it is too large), or the elements
 * before part `rank`. counts == NULL: `ranks` parts of `each`. */
size_t oari_parts_total(const size_t *counts, int ranks, size_t each);
size_t oari_parts_before(const size_t *counts, int rank, size_t each);
uint64_t oari_parts_hash(const size_t *counts, int ranks);

#endif
