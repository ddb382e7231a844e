/* SPDX-License-Identifier: Apache-2.0 */
/* link/auth.h: how a rank's entry in the store shows that it belongs to the
 * job. */
#ifndef OARI_NATIVE_PROOF_H
#define OARI_NATIVE_PROOF_H

#include "net/secret.h"

/* Gives the group's secret: the one given as hex digits, or the job's if that
 * is NULL. known = 0: there is none, or OARSONG_WIRE=plain says that it is not
 * used. */
oar_status oari_entry_secret(const char *given, oari_secret *secret);

/* What a rank publishes in the store. */
typedef struct oari_signed_entry {
    const char *prefix; /* of its key */
    int rank;
    const void *data; /* all but the code */
    size_t bytes;
} oari_signed_entry;

/* Makes the code of an entry; zeros without a secret. */
oar_status oari_entry_sign(const oari_secret *secret,
                           const oari_signed_entry *entry,
                           unsigned char mac[OARI_MAC_BYTES]);

/* Checks that an entry belongs to this job; `proves`: it says that it has a
 * code. OAR_E_AUTH, with a sentence, if it does not. */
oar_status oari_entry_check(const oari_secret *secret,
                            const oari_signed_entry *entry, int proves,
                            const unsigned char mac[OARI_MAC_BYTES]);

#endif
