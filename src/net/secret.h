/* SPDX-License-Identifier: Apache-2.0 */
/* net/secret.h: the secret that only the ranks of a job know, the keys that are
 * derived from it, and how a connection is protected.
 *
 * A secret is never sent and never used as a key itself: oari_secret_key makes
 * one key for each purpose, job or group, and direction. So an authentication
 * code is valid nowhere else, not even when it is sent back to its sender. Any
 * thread may call these functions.
 */
#ifndef OARI_NET_SECRET_H
#define OARI_NET_SECRET_H

#include <oarsong/status.h>

enum {
    OARI_SECRET_BYTES = 32,
    OARI_SECRET_HEX = 2 * OARI_SECRET_BYTES + 1, /* as text, zero byte too */
    OARI_MAC_BYTES = 32
};

typedef struct oari_secret {
    unsigned char bytes[OARI_SECRET_BYTES];
    int known;
} oari_secret;

/* Makes a random secret. */
oar_status oari_secret_make(oari_secret *secret);

/* Finds this process's secret: OARSONG_SECRET (64 hex digits, set by the
 * launcher), else the hash of the file OARSONG_SECRET_FILE (32 bytes to 64 KiB;
 * OAR_E_AUTH if it belongs to another user or others may read or write it),
 * else the adopted one, else none: known = 0. */
oar_status oari_secret_find(oari_secret *secret);

/* Gives the secret that a call has brought as hex digits, or that of this
 * process if text is NULL. */
oar_status oari_secret_given(const char *text, oari_secret *secret);

/* Makes a secret that came another way this process's secret, unless its
 * environment has one. */
void oari_secret_adopt(const oari_secret *secret);

/* Writes a secret in hex digits, as OARSONG_SECRET has it. */
void oari_secret_text(const oari_secret *secret, char text[OARI_SECRET_HEX]);

/* Reads a secret from hex digits; the text of OAR_E_ARG names `what`. */
oar_status oari_secret_parse(const char *what, const char *text,
                             oari_secret *secret);

/* Overwrites a secret. NULL is fine. */
void oari_secret_forget(oari_secret *secret);

/* Derives a key by HKDF-SHA256 for a purpose ("link", "store" ...; up to 32
 * bytes), a context (a job or group), and a direction (`caller` connects to
 * `answerer`). A difference in any of them gives another key. */
oar_status oari_secret_key(const oari_secret *secret, const char *purpose,
                           uint64_t context, int64_t caller, int64_t answerer,
                           unsigned char key[OARI_SECRET_BYTES]);

/* Computes an HMAC-SHA256 over parts. The length of each part (8 bytes,
 * little-endian) precedes it, so that bytes cannot move from one part to the
 * next. */
oar_status oari_secret_mac(const unsigned char key[OARI_SECRET_BYTES],
                           const void *const *part, const size_t *bytes,
                           int parts, unsigned char mac[OARI_MAC_BYTES]);

/* Returns whether two HMACs are equal, in a time that does not depend on where
 * they differ. */
int oari_secret_mac_equal(const unsigned char a[OARI_MAC_BYTES],
                          const unsigned char b[OARI_MAC_BYTES]);

typedef struct oari_secret_part {
    const void *data;
    size_t bytes;
} oari_secret_part;

/* Computes HKDF-SHA256 as RFC 5869 defines it. */
oar_status oari_secret_hkdf(oari_secret_part key, oari_secret_part salt,
                            oari_secret_part info, unsigned char *out,
                            size_t out_bytes);

/* Computes HMAC-SHA256 over the concatenated parts as RFC 2104 defines it. */
oar_status oari_secret_hmac(oari_secret_part key, const oari_secret_part *part,
                            int parts, unsigned char mac[OARI_MAC_BYTES]);

/* Initialises OpenSSL. Code that uses OpenSSL without these functions calls
 * this first; it may call it again. */
void oari_secret_prepare(void);

/* Returns whether OpenSSL failed in this thread for lack of memory, and clears
 * its errors. */
int oari_openssl_starved(void);

/* ---- how a connection is protected --------------------------------------- */

typedef enum oari_protection {
    OARI_PROTECTION_PLAIN, /* any process that knows the address connects */
    OARI_PROTECTION_AUTH,  /* both ends prove that they know the secret */
    OARI_PROTECTION_TLS    /* both do, and TLS encrypts and checks all bytes */
} oari_protection;

/* Gives how a connection is to be protected, by OARSONG_WIRE:
 *
 *   auto    with a secret: AUTH on loopback, TLS elsewhere
 *           without one: PLAIN on loopback, refused elsewhere
 *   plain   PLAIN
 *   auth    AUTH, tls: TLS; refused without a secret
 *
 * A refusal is OAR_E_AUTH with a sentence that says what to do. */
oar_status oari_protection_for(const oari_secret *secret, int loopback,
                               oari_protection *wire);

/* Fails with that sentence for "auto" without a secret between two hosts. */
oar_status oari_wire_fail_no_secret(void);

#endif
