/* SPDX-License-Identifier: Apache-2.0 */
/* seal: OpenSSL's AES-256-GCM with the number as its nonce. */
#include "net/seal.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <string.h>

#include "base/status.h"
#include "net/secret.h"

enum { NONCE = 12 };

/* Returns a context that is ready for data, or NULL. */
static EVP_CIPHER_CTX *begin_cipher(const unsigned char *key, uint64_t number,
                                    int sealing)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    unsigned char nonce[NONCE] = { 0 };

    for (int i = 0; i < 8; i++)
        nonce[i] = (unsigned char)(number >> 8 * i);
    if (c != NULL &&
        EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce, sealing) == 1)
        return c;
    EVP_CIPHER_CTX_free(c);
    return NULL;
}

static int run_cipher(EVP_CIPHER_CTX *c, unsigned char *data, size_t bytes)
{
    unsigned char none[16]; /* GCM has nothing left to write at its end */
    int done;

    return bytes <= INT_MAX &&
           EVP_CipherUpdate(c, data, &done, data, (int)bytes) == 1 &&
           EVP_CipherFinal_ex(c, none, &done) == 1;
}

/* Frees the context and says why it failed unless it is done. Only data that
 * does not match its tag is OAR_E_AUTH. A context that could not be made for no
 * stated reason had no memory even for the reason. */
static oar_status end_cipher(EVP_CIPHER_CTX *c, int sealing, int done)
{
    int begun = c != NULL, silent = ERR_peek_error() == 0;
    int starved = oari_openssl_starved() || (!begun && silent);

    EVP_CIPHER_CTX_free(c);
    if (done)
        return OAR_OK;
    if (starved)
        return oari_fail(OAR_E_NOMEM, "OpenSSL has no memory to seal a record");
    if (sealing || !begun)
        return oari_fail(OAR_E_UNAVAILABLE, "OpenSSL has no AES-GCM here");
    return oari_fail(OAR_E_AUTH, "a record that was not sealed with this key");
}

oar_status oari_seal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                     unsigned char *data, size_t bytes,
                     unsigned char tag[OARI_SEAL_TAG])
{
    EVP_CIPHER_CTX *c = begin_cipher(key, number, 1);
    int sealed =
        c != NULL && run_cipher(c, data, bytes) &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, OARI_SEAL_TAG, tag) == 1;

    return end_cipher(c, 1, sealed);
}

oar_status oari_unseal(const unsigned char key[OARI_SEAL_KEY], uint64_t number,
                       unsigned char *data, size_t bytes,
                       const unsigned char tag[OARI_SEAL_TAG])
{
    EVP_CIPHER_CTX *c = begin_cipher(key, number, 0);
    unsigned char expected[OARI_SEAL_TAG];
    int whole;

    memcpy(expected, tag, sizeof expected);
    whole = c != NULL &&
            EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, OARI_SEAL_TAG,
                                expected) == 1 &&
            run_cipher(c, data, bytes);
    return end_cipher(c, 0, whole);
}
