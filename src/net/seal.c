/* SPDX-License-Identifier: Apache-2.0 */
/* seal: AES-256-GCM by OpenSSL, the number as its nonce. */
#include "net/seal.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/status.h"
#include "net/secret.h"

enum { NONCE = 12 };

static void make_nonce(uint64_t number, unsigned char nonce[NONCE])
{
    memset(nonce, 0, NONCE);
    for (int i = 0; i < 8; i++)
        nonce[i] = (unsigned char)(number >> 8 * i);
}

/* A context that is ready for data; NULL: there is none. */
static EVP_CIPHER_CTX *begin(const unsigned char *key, uint64_t number,
                             int sealing)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    unsigned char nonce[NONCE];

    make_nonce(number, nonce);
    if (c != NULL &&
        EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce, sealing) == 1)
        return c;
    EVP_CIPHER_CTX_free(c);
    return NULL;
}

static int run(EVP_CIPHER_CTX *c, unsigned char *data, size_t bytes)
{
    int done;

    return bytes <= INT_MAX &&
           EVP_CipherUpdate(c, data, &done, data, (int)bytes) == 1;
}

/* A stream cipher: nothing is left to be written at its end. */
static int end(EVP_CIPHER_CTX *c)
{
    unsigned char none[16];
    int done;

    return EVP_CipherFinal_ex(c, none, &done) == 1;
}

static oar_status finish(EVP_CIPHER_CTX *c)
{
    EVP_CIPHER_CTX_free(c);
    ERR_clear_error();
    return OAR_OK;
}

/* Only data that does not fit its tag is somebody else's. What could not begin,
 * and has no reason, had no memory even for that. */
static oar_status fail(EVP_CIPHER_CTX *c, int sealing)
{
    int begun = c != NULL, silent = ERR_peek_error() == 0;
    int starved = oari_openssl_starved() || (!begun && silent);

    EVP_CIPHER_CTX_free(c);
    if (starved)
        return oari_fail(OAR_E_NOMEM, "OpenSSL has no memory to seal by");
    if (sealing || !begun)
        return oari_fail(OAR_E_UNAVAILABLE, "OpenSSL has no AES-GCM here");
    return oari_fail(OAR_E_AUTH, "a record that nobody sealed so");
}

oar_status oari_seal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                     unsigned char *data, size_t bytes,
                     unsigned char tag[OARI_SEAL_TAG])
{
    EVP_CIPHER_CTX *c = begin(key, number, 1);
    int sealed =
        c != NULL && run(c, data, bytes) && end(c) &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, OARI_SEAL_TAG, tag) == 1;

    return sealed ? finish(c) : fail(c, 1);
}

oar_status oari_unseal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                       unsigned char *data, size_t bytes,
                       const unsigned char tag[OARI_SEAL_TAG])
{
    EVP_CIPHER_CTX *c = begin(key, number, 0);
    unsigned char expected[OARI_SEAL_TAG];
    int whole;

    memcpy(expected, tag, sizeof expected);
    whole = c != NULL &&
            EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, OARI_SEAL_TAG,
                                expected) == 1 &&
            run(c, data, bytes) && end(c);
    return whole ? finish(c) : fail(c, 0);
}
