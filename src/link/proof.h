/* SPDX-License-Identifier: Apache-2.0 */
/* link/proof.h: what a rank shows for being one of the job, when ranks meet.
 */
#ifndef OARI_NATIVE_PROOF_H
#define OARI_NATIVE_PROOF_H

#include "net/secret.h"

/* The job's secret. known = 0: there is none, or OARSONG_WIRE=plain says that
 * it does not matter. */
oar_status native_secret(oari_secret *secret);

/* What a rank publishes in the store, and who it is. */
typedef struct native_note {
    const char *prefix; /* of its key */
    int rank;
    const void *data; /* all but the proof */
    size_t bytes;
} native_note;

/* The proof that belongs to a note; zeros without a secret. */
oar_status native_vouch(const oari_secret *secret, const native_note *note,
                        unsigned char proof[OARI_MAC_BYTES]);

/* Whether a note that says whether it `proves` anything is of this job:
 * OAR_E_AUTH, with a sentence, if not. */
oar_status native_believe(const oari_secret *secret, const native_note *note,
                          int proves,
                          const unsigned char proof[OARI_MAC_BYTES]);

#endif
