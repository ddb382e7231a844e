/* SPDX-License-Identifier: Apache-2.0 */
/* net/seal.h: a short record that only the holder of a key can read or make
 * (AES-256-GCM). It is sent where there is no time for a TLS handshake. */
#ifndef OARI_NET_SEAL_H
#define OARI_NET_SEAL_H

#include <oarsong/status.h>

enum { OARI_SEAL_KEY = 32, OARI_SEAL_TAG = 16 };

/* Encrypts data in place and gives its tag. No number may be used twice with
 * one key. */
oar_status oari_seal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                     unsigned char *data, size_t bytes,
                     unsigned char tag[OARI_SEAL_TAG]);

/* Decrypts data in place. OAR_E_AUTH: the data was not sealed with this key and
 * number, or was changed; it is undefined then. */
oar_status oari_unseal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                       unsigned char *data, size_t bytes,
                       const unsigned char tag[OARI_SEAL_TAG]);

#endif
