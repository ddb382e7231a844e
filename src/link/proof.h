/* SPDX-License-Identifier: Apache-2.0 */
/* link/proof.h: how a rank's entry in the store shows that it belongs to the
 * job. */
#ifndef OARI_NATIVE_PROOF_H
#define OARI_NATIVE_PROOF_H

#include "net/secret.h"

/* Gives the job's secret. known = 0: there is none, or OARSONG_WIRE=plain says
 * that it is not used. */
oar_status native_secret(oari_secret *secret);

/* What a rank publishes in the store. */
typedef struct native_note {
    const char *prefix; /* of its key */
    int rank;
    const void *data; /* all but the code */
    size_t bytes;
} native_note;

/* Makes the code of an entry; zeros without a secret. */
oar_status native_vouch(const oari_secret *secret, const native_note *entry,
                        unsigned char mac[OARI_MAC_BYTES]);

/* Checks that an entry belongs to this job; `proves`: it says that it has a code.
 * OAR_E_AUTH, with a sentence, if it does not. */
oar_status native_believe(const oari_secret *secret, const native_note *entry,
                          int proves, const unsigned char mac[OARI_MAC_BYTES]);

#endif
