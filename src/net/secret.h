/* SPDX-License-Identifier: Apache-2.0 */
/* net/secret.h: what the ranks of a job know and nobody else does, the keys
 * that are derived from it, and what a connection has to be.
 *
 * A secret is never sent and never used as a key itself: oari_secret_key makes
 * one key for each purpose, job or group, and direction, so that what is proved
 * with one is worth nothing anywhere else, nor sent back to whoever proved it.
 * Any thread.
 */
#ifndef OARI_NET_SECRET_H
#define OARI_NET_SECRET_H

#include <oarsong/status.h>

enum {
    OARI_SECRET_BYTES = 32,
    OARI_SECRET_HEX = 2 * OARI_SECRET_BYTES + 1, /* as text, zero byte too */
    OARI_PROOF_BYTES = 32
};

typedef struct oari_secret {
    unsigned char bytes[OARI_SECRET_BYTES];
    int known;
} oari_secret;

/* A random one. */
oar_status oari_secret_make(oari_secret *secret);

/* The one in this process's environment: OARSONG_SECRET (64 hex digits, set by
 * the launcher), else what OARSONG_SECRET_FILE holds (32 bytes to 64 KiB,
 * hashed; OAR_E_AUTH if it is another user's or others may touch it), else the
 * one that was adopted, else none: known = 0. */
oar_status oari_secret_find(oari_secret *secret);

/* The job's secret came another way: this process's from now on, unless its
 * environment has one. */
void oari_secret_adopt(const oari_secret *secret);

/* As OARSONG_SECRET has it, and back (OAR_E_ARG names `what`). */
void oari_secret_text(const oari_secret *secret, char text[OARI_SECRET_HEX]);
oar_status oari_secret_parse(const char *what, const char *text,
                             oari_secret *secret);

/* Overwrites it. NULL is fine. */
void oari_secret_forget(oari_secret *secret);

/* HKDF-SHA256: the key for a purpose ("link", "store" ...; up to 32 bytes), a
 * context (a job or group), and a direction: `caller` calls `answerer`. Another
 * in any of these is another key. */
oar_status oari_secret_key(const oari_secret *secret, const char *purpose,
                           uint64_t context, int64_t caller, int64_t answerer,
                           unsigned char key[OARI_SECRET_BYTES]);

/* HMAC-SHA256 over parts, each with its length (8 bytes, little-endian) before
 * it: bytes cannot move from one part to its neighbour. */
oar_status oari_secret_prove(const unsigned char key[OARI_SECRET_BYTES],
                             const void *const *part, const size_t *bytes,
                             int parts, unsigned char proof[OARI_PROOF_BYTES]);

/* Whether they are equal, in a time that does not tell where they differ. */
int oari_secret_same(const unsigned char a[OARI_PROOF_BYTES],
                     const unsigned char b[OARI_PROOF_BYTES]);

/* The two above are made of these, which are as RFC 5869 and RFC 2104 have
 * them. */
typedef struct oari_secret_part {
    const void *data;
    size_t bytes;
} oari_secret_part;
oar_status oari_secret_hkdf(oari_secret_part key, oari_secret_part salt,
                            oari_secret_part info, unsigned char *out,
                            size_t out_bytes);
oar_status oari_secret_hmac(oari_secret_part key, const oari_secret_part *part,
                            int parts, unsigned char mac[OARI_PROOF_BYTES]);

/* Makes OpenSSL ready, in the way we need it, before it is first used. Whoever
 * uses it without these functions calls this first; as often as it likes. */
void oari_secret_prepare(void);

/* OpenSSL has failed in this thread: whether for want of memory, as far as its
 * errors say, which are forgotten. */
int oari_openssl_starved(void);

/* ---- what a connection has to be ----------------------------------------- */

typedef enum oari_wire {
    OARI_WIRE_PLAIN, /* whoever knows the address */
    OARI_WIRE_AUTH,  /* both ends prove that they know the secret */
    OARI_WIRE_TLS    /* that, and all is encrypted and checked */
} oari_wire;

/* What a connection has to be, by OARSONG_WIRE:
 *
 *   auto    with a secret: AUTH on loopback, TLS elsewhere
 *           without one: PLAIN on loopback, refused elsewhere
 *   plain   PLAIN
 *   auth    AUTH, tls: TLS; refused without a secret
 *
 * Refused is OAR_E_AUTH with a sentence that says what to do. */
oar_status oari_wire_for(const oari_secret *secret, int loopback,
                         oari_wire *wire);

/* That sentence, for whoever has asked before: of auto, across hosts. */
oar_status oari_wire_refuse(void);

#endif
