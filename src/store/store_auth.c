/* SPDX-License-Identifier: Apache-2.0 */
/* store_auth: keys by role, and proofs over both challenges and both ids. */
#include "store/store_auth.h"

#include <openssl/crypto.h>
#include <string.h>
#include <sys/random.h>

#include "base/status.h"
#include "net/sock.h"

/* Roles, from one of which to the other a key is for. */
enum { CLIENT = 1, SERVER = 2 };

/* The name of the TLS key: there is only one. */
static const char identity[] = "oarsong store 1";

/* ---- trust --------------------------------------------------------------- */

oar_status oari_trust_make(const oari_secret *secret, oari_trust *trust)
{
    oari_trust made = { .known = secret->known };
    oar_status far;

    OARI_TRY(oari_protection_for(secret, 1, &made.near));
    far = oari_protection_for(secret, 0, &made.far);
    if (far != OAR_OK && far != OAR_E_AUTH)
        return far;
    made.not_far = far != OAR_OK;
    if (secret->known) {
        OARI_TRY(
            oari_secret_key(secret, "store", 0, CLIENT, SERVER, made.client));
        OARI_TRY(
            oari_secret_key(secret, "store", 0, SERVER, CLIENT, made.server));
        OARI_TRY(
            oari_secret_key(secret, "store tls", 0, CLIENT, SERVER, made.tls));
    }
    *trust = made;
    oari_trust_forget(&made);
    return OAR_OK;
}

void oari_trust_forget(oari_trust *trust)
{
    OPENSSL_cleanse(trust, sizeof *trust);
}

oar_status oari_trust_protection(const oari_trust *trust, int fd,
                                 oari_protection *wire)
{
    int here = oari_sock_is_loopback(fd);

    if (!here && !oari_sock_has_peer(fd)) /* the server is going away */
        return oari_fail(OAR_E_CLOSED, "the connection was reset");
    if (!here && trust->not_far)
        return oari_wire_fail_no_secret();
    *wire = here ? trust->near : trust->far;
    return OAR_OK;
}

static int find_key(void *arg, const char *name,
                    unsigned char key[OARI_SECRET_BYTES])
{
    const oari_trust *trust = arg;

    if (strcmp(name, identity) != 0)
        return 0;
    memcpy(key, trust->tls, OARI_SECRET_BYTES);
    return 1;
}

oar_status oari_trust_start_tls(const oari_trust *trust, int fd,
                                oari_stream *stream)
{
    return oari_stream_tls_client(stream, fd, identity, trust->tls);
}

oar_status oari_trust_accept_tls(oari_trust *trust, int fd, oari_stream *stream)
{
    return oari_stream_tls_server(stream, fd, find_key, trust);
}

/* ---- proofs -------------------------------------------------------------- */

static oar_status make_proof(const oari_auth *a, const unsigned char *key,
                             unsigned char proof[OARI_MAC_BYTES])
{
    unsigned char client[8], server[8]; /* little-endian */
    const void *part[] = { client, server, a->challenge[0], a->challenge[1] };
    const size_t bytes[] = { 8, 8, OARI_MAC_BYTES, OARI_MAC_BYTES };

    for (int i = 0; i < 8; i++) {
        client[i] = (unsigned char)(a->client >> 8 * i);
        server[i] = (unsigned char)(a->server >> 8 * i);
    }
    return oari_secret_mac(key, part, bytes, 4, proof);
}

/* Gives whether these bytes are the proof under that key. */
static oar_status check_proof(const oari_auth *a, const unsigned char *key,
                              oari_bytes proof, int *good)
{
    unsigned char wanted[OARI_MAC_BYTES];

    OARI_TRY(make_proof(a, key, wanted));
    *good = proof.bytes == sizeof wanted &&
            oari_secret_mac_equal(proof.data, wanted);
    return OAR_OK;
}

static oar_status make_challenge(unsigned char challenge[OARI_MAC_BYTES])
{
    if (getrandom(challenge, OARI_MAC_BYTES, 0) != OARI_MAC_BYTES)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    return OAR_OK;
}

static oar_status take_challenge(oari_bytes from,
                                 unsigned char challenge[OARI_MAC_BYTES])
{
    if (from.bytes != OARI_MAC_BYTES)
        return oari_fail(OAR_E_AUTH, "a challenge of %zu bytes, not %d",
                         from.bytes, OARI_MAC_BYTES);
    memcpy(challenge, from.data, OARI_MAC_BYTES);
    return OAR_OK;
}

/* ---- methods ------------------------------------------------------------- */

static oar_status check_no_proof(oari_bytes challenge, oari_bytes proof)
{
    if (challenge.bytes != 0 || proof.bytes != 0)
        return oari_fail(OAR_E_AUTH, "a proof that was not asked for");
    return OAR_OK;
}

/* Fails with what a server tells a client that uses another method. */
static oar_status fail_method(uint32_t ours, uint32_t theirs)
{
    if (theirs == OARI_AUTH_NONE)
        return oari_fail(OAR_E_AUTH,
                         "this store belongs to a job with a secret, and the "
                         "caller has none: start it with `oarsong run` as the "
                         "others, or set the same OARSONG_SECRET_FILE (and "
                         "not OARSONG_WIRE=plain)");
    if (ours == OARI_AUTH_NONE)
        return oari_fail(OAR_E_AUTH,
                         "this store has no secret (or OARSONG_WIRE=plain), "
                         "and the caller has one: set the same "
                         "OARSONG_SECRET_FILE and OARSONG_WIRE for all, or "
                         "start all with one `oarsong run`");
    return oari_fail(OAR_E_AUTH,
                     "the caller wants to prove itself by method %u, which is "
                     "not known here",
                     theirs);
}

static uint32_t method_of(oari_protection wire)
{
    return wire == OARI_PROTECTION_PLAIN ? OARI_AUTH_NONE : OARI_AUTH_HMAC;
}

/* ---- the handshake ------------------------------------------------------- */

oar_status oari_auth_open(oari_auth *auth, oari_protection wire,
                          oari_wire_message *hello)
{
    memset(auth, 0, sizeof *auth);
    hello->method = auth->method = method_of(wire);
    auth->client = hello->id;
    if (auth->method == OARI_AUTH_NONE)
        return OAR_OK;
    OARI_TRY(make_challenge(auth->challenge[0]));
    hello->expected = (oari_bytes){ auth->challenge[0], OARI_MAC_BYTES };
    return OAR_OK;
}

oar_status oari_auth_welcome(oari_auth *auth, const oari_trust *trust,
                             oari_protection wire,
                             const oari_wire_message *hello,
                             oari_wire_message *welcome)
{
    memset(auth, 0, sizeof *auth);
    welcome->method = auth->method = method_of(wire);
    auth->client = hello->id;
    auth->server = welcome->id;
    if (hello->method != auth->method)
        return fail_method(auth->method, hello->method);
    if (auth->method == OARI_AUTH_NONE)
        return check_no_proof(hello->expected, hello->value);
    OARI_TRY(check_no_proof((oari_bytes){ NULL, 0 }, hello->value));
    OARI_TRY(take_challenge(hello->expected, auth->challenge[0]));
    OARI_TRY(make_challenge(auth->challenge[1]));
    OARI_TRY(make_proof(auth, trust->server, auth->proof));
    welcome->expected = (oari_bytes){ auth->challenge[1], OARI_MAC_BYTES };
    welcome->value = (oari_bytes){ auth->proof, OARI_MAC_BYTES };
    return OAR_OK;
}

oar_status oari_auth_answer(oari_auth *auth, const oari_trust *trust,
                            const oari_wire_message *welcome,
                            oari_wire_message *proof)
{
    int good = 0;

    auth->server = welcome->id;
    if (welcome->method != auth->method)
        return oari_fail(OAR_E_AUTH,
                         "the store proves itself by method %u, not %u",
                         welcome->method, auth->method);
    if (auth->method == OARI_AUTH_NONE)
        return check_no_proof(welcome->expected, welcome->value);
    OARI_TRY(take_challenge(welcome->expected, auth->challenge[1]));
    OARI_TRY(check_proof(auth, trust->server, welcome->value, &good));
    if (!good)
        return oari_fail(OAR_E_AUTH,
                         "the store does not know this job's secret: it is "
                         "another job's, or the secrets differ "
                         "(OARSONG_SECRET_FILE)");
    OARI_TRY(make_proof(auth, trust->client, auth->proof));
    proof->value = (oari_bytes){ auth->proof, OARI_MAC_BYTES };
    return OAR_OK;
}

oar_status oari_auth_check(oari_auth *auth, const oari_trust *trust,
                           const oari_wire_message *proof)
{
    int good = 0;

    if (auth->method == OARI_AUTH_NONE)
        return check_no_proof((oari_bytes){ NULL, 0 }, proof->value);
    OARI_TRY(check_proof(auth, trust->client, proof->value, &good));
    if (!good)
        return oari_fail(OAR_E_AUTH,
                         "the caller does not know this job's secret");
    return OAR_OK;
}
