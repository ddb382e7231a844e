/* SPDX-License-Identifier: Apache-2.0 */
/* fault: which of the faults that ranks found at one time is the group's. */
#include <string.h>

#include "link/link.h"

int oari_fault_sure(const oari_fault *fault)
{
    return fault->evidence != OARI_EVIDENCE_TIMEOUT;
}

int oari_fault_before(const oari_fault *a, const oari_fault *b)
{
    if (oari_fault_sure(a) != oari_fault_sure(b))
        return oari_fault_sure(a);
    if (a->error.sequence != b->error.sequence)
        return a->error.sequence < b->error.sequence;
    if (a->error.rank != b->error.rank)
        return a->error.rank < b->error.rank;
    return strcmp(a->error.text, b->error.text) < 0;
}
