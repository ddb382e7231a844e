/* SPDX-License-Identifier: Apache-2.0 */
/* proof: entries in the store that are authenticated. The code of an entry
 * depends on the secret, its key in the store and its rank, so that a process
 * that can write to the store, but does not know the secret, can neither make
 * an entry nor move one. */
#include "link/auth.h"

#include <string.h>

#include "base/status.h"

oar_status oari_entry_secret(const char *given, oari_secret *secret)
{
    oari_protection near;

    OARI_TRY(oari_secret_given(given, secret));
    OARI_TRY(oari_protection_for(secret, 1, &near));
    if (near != OARI_PROTECTION_PLAIN)
        return OAR_OK;
    oari_secret_forget(secret);
    secret->known = 0;
    return OAR_OK;
}

oar_status oari_entry_sign(const oari_secret *secret,
                           const oari_signed_entry *entry,
                           unsigned char mac[OARI_MAC_BYTES])
{
    const void *part[] = { entry->prefix, entry->data };
    size_t bytes[] = { strlen(entry->prefix), entry->bytes };
    unsigned char key[OARI_SECRET_BYTES];

    memset(mac, 0, OARI_MAC_BYTES);
    if (!secret->known)
        return OAR_OK;
    OARI_TRY(oari_secret_key(secret, "note", 0, entry->rank, -1, key));
    return oari_secret_mac(key, part, bytes, 2, mac);
}

oar_status oari_entry_check(const oari_secret *secret,
                            const oari_signed_entry *entry, int proves,
                            const unsigned char mac[OARI_MAC_BYTES])
{
    unsigned char expected[OARI_MAC_BYTES];

    if ((proves != 0) != secret->known)
        return oari_fail(OAR_E_AUTH,
                         "rank %d has %s, this rank has %s: start all by one "
                         "`oarsong run`, or with the same OARSONG_SECRET_FILE "
                         "and OARSONG_WIRE",
                         entry->rank, proves ? "a job secret" : "no job secret",
                         secret->known ? "one" : "none");
    OARI_TRY(oari_entry_sign(secret, entry, expected));
    if (!oari_secret_mac_equal(expected, mac))
        return oari_fail(OAR_E_AUTH,
                         "rank %d has another job secret than this rank",
                         entry->rank);
    return OAR_OK;
}
