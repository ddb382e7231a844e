/* SPDX-License-Identifier: Apache-2.0 */
/* secret: finds a job's secret and derives keys and authentication codes from
 * it, by OpenSSL. */
#include "net/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"

enum {
    FILE_MIN = OARI_SECRET_BYTES,
    FILE_MAX = 1 << 16,
    PURPOSE_MAX = 32,
    NUMBER = 8 /* bytes of a number in what is hashed */
};

/* Versions of what is derived: other ones give other keys. */
static const char key_salt[] = "oarsong key 1";
static const char file_salt[] = "oarsong secret file 1";

/* ---- HKDF and HMAC ------------------------------------------------------- */

/* Keeps OpenSSL from tearing itself down at exit: threads of this library may
 * still use it then. Only the first initialisation in a process decides. */
static void keep_openssl(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

void oari_secret_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, keep_openssl);
}

int oari_openssl_starved(void)
{
    unsigned long error;
    int starved = 0;

    while ((error = ERR_get_error()) != 0)
        starved |= ERR_GET_REASON(error) == ERR_R_MALLOC_FAILURE;
    return starved;
}

/* Fails with OpenSSL's reason. If it gives none, it had no memory even for
 * that. */
static oar_status fail_openssl(const char *what)
{
    int silent = ERR_peek_error() == 0;

    if (oari_openssl_starved() || silent)
        return oari_fail(OAR_E_NOMEM, "OpenSSL has no memory to compute %s",
                         what);
    return oari_fail(OAR_E_INTERNAL, "OpenSSL cannot compute %s", what);
}

/* OpenSSL only reads the data, but its type asks for a writable pointer. */
static OSSL_PARAM param_of(const char *name, oari_secret_part part)
{
    union {
        const void *from;
        void *to;
    } data = { part.data };

    return OSSL_PARAM_construct_octet_string(name, data.to, part.bytes);
}

static OSSL_PARAM sha256_param(const char *name)
{
    static char sha256[] = "SHA256";

    return OSSL_PARAM_construct_utf8_string(name, sha256, 0);
}

oar_status oari_secret_hkdf(oari_secret_part key, oari_secret_part salt,
                            oari_secret_part info, unsigned char *out,
                            size_t out_bytes)
{
    OSSL_PARAM param[] = { sha256_param(OSSL_KDF_PARAM_DIGEST),
                           param_of(OSSL_KDF_PARAM_KEY, key),
                           param_of(OSSL_KDF_PARAM_SALT, salt),
                           param_of(OSSL_KDF_PARAM_INFO, info),
                           OSSL_PARAM_construct_end() };
    EVP_KDF_CTX *context;
    EVP_KDF *kdf;
    int done;

    oari_secret_prepare();
    kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    context = kdf != NULL ? EVP_KDF_CTX_new(kdf) : NULL;
    done =
        context != NULL && EVP_KDF_derive(context, out, out_bytes, param) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return done ? OAR_OK : fail_openssl("a key");
}

oar_status oari_secret_hmac(oari_secret_part key, const oari_secret_part *part,
                            int parts, unsigned char mac[OARI_MAC_BYTES])
{
    OSSL_PARAM param[] = { sha256_param(OSSL_MAC_PARAM_DIGEST),
                           OSSL_PARAM_construct_end() };
    EVP_MAC_CTX *context;
    EVP_MAC *hmac;
    size_t bytes = 0;
    int good;

    oari_secret_prepare();
    hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    context = hmac != NULL ? EVP_MAC_CTX_new(hmac) : NULL;
    good = context != NULL &&
           EVP_MAC_init(context, key.data, key.bytes, param) == 1;
    for (int i = 0; good && i < parts; i++)
        good = EVP_MAC_update(context, part[i].data, part[i].bytes) == 1;
    good = good && EVP_MAC_final(context, mac, &bytes, OARI_MAC_BYTES) == 1 &&
           bytes == OARI_MAC_BYTES;
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(hmac);
    return good ? OAR_OK : fail_openssl("an authentication code");
}

/* ---- keys and authentication codes --------------------------------------- */

static unsigned char *put_number(unsigned char *at, uint64_t n)
{
    for (int i = 0; i < NUMBER; i++, n >>= 8)
        *at++ = (unsigned char)n;
    return at;
}

oar_status oari_secret_key(const oari_secret *secret, const char *purpose,
                           uint64_t context, int64_t caller, int64_t answerer,
                           unsigned char key[OARI_SECRET_BYTES])
{
    unsigned char info[PURPOSE_MAX + 1 + 3 * NUMBER], *at = info;
    size_t bytes = strlen(purpose);

    if (!secret->known || bytes > PURPOSE_MAX)
        return oari_fail(OAR_E_INTERNAL, "no key for \"%s\" from %s secret",
                         purpose, secret->known ? "this" : "no");
    memcpy(at, purpose, bytes + 1);
    at = put_number(at + bytes + 1, context);
    at = put_number(at, (uint64_t)caller);
    at = put_number(at, (uint64_t)answerer);
    return oari_secret_hkdf(
        (oari_secret_part){ secret->bytes, OARI_SECRET_BYTES },
        (oari_secret_part){ key_salt, strlen(key_salt) },
        (oari_secret_part){ info, (size_t)(at - info) }, key,
        OARI_SECRET_BYTES);
}

enum { PARTS_MAX = 16 };

oar_status oari_secret_mac(const unsigned char key[OARI_SECRET_BYTES],
                           const void *const *part, const size_t *bytes,
                           int parts, unsigned char mac[OARI_MAC_BYTES])
{
    oari_secret_part hashed[2 * PARTS_MAX] = { { NULL, 0 } };
    unsigned char length[PARTS_MAX][NUMBER];

    if (parts > PARTS_MAX)
        return oari_fail(OAR_E_INTERNAL, "an HMAC of %d parts", parts);
    for (int i = 0; i < parts; i++) {
        put_number(length[i], bytes[i]);
        hashed[2 * i] = (oari_secret_part){ length[i], NUMBER };
        hashed[2 * i + 1] = (oari_secret_part){ part[i], bytes[i] };
    }
    return oari_secret_hmac((oari_secret_part){ key, OARI_SECRET_BYTES },
                            hashed, 2 * parts, mac);
}

int oari_secret_mac_equal(const unsigned char a[OARI_MAC_BYTES],
                          const unsigned char b[OARI_MAC_BYTES])
{
    return CRYPTO_memcmp(a, b, OARI_MAC_BYTES) == 0;
}

/* ---- finding the secret -------------------------------------------------- */

oar_status oari_secret_make(oari_secret *secret)
{
    if (getrandom(secret->bytes, sizeof secret->bytes, 0) !=
        (ssize_t)sizeof secret->bytes)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    secret->known = 1;
    return OAR_OK;
}

void oari_secret_forget(oari_secret *secret)
{
    if (secret != NULL)
        OPENSSL_cleanse(secret, sizeof *secret);
}

void oari_secret_text(const oari_secret *secret, char text[OARI_SECRET_HEX])
{
    static const char digit[] = "0123456789abcdef";

    for (int i = 0; i < OARI_SECRET_BYTES; i++) {
        *text++ = digit[secret->bytes[i] >> 4];
        *text++ = digit[secret->bytes[i] & 15];
    }
    *text = 0;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

oar_status oari_secret_parse(const char *what, const char *text,
                             oari_secret *secret)
{
    oari_secret made = { .known = 1 };
    int good = strlen(text) == OARI_SECRET_HEX - 1;

    for (int i = 0; good && i < OARI_SECRET_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        if (good)
            made.bytes[i] = (unsigned char)(high << 4 | low);
    }
    if (!good)
        return oari_fail(OAR_E_ARG, "%s should be %d hex digits", what,
                         OARI_SECRET_HEX - 1);
    *secret = made;
    oari_secret_forget(&made);
    return OAR_OK;
}

/* A user who can read the file can join the job, and one who can write it can
 * let others join: nobody but its owner may do either. */
static oar_status check_file(int fd, const char *path)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return oari_fail(OAR_E_SYSTEM, "look at OARSONG_SECRET_FILE %s", path);
    if (!S_ISREG(info.st_mode))
        return oari_fail(OAR_E_ARG, "OARSONG_SECRET_FILE %s is not a file",
                         path);
    if ((info.st_uid != geteuid() && info.st_uid != 0) ||
        (info.st_mode & 077) != 0)
        return oari_fail(OAR_E_AUTH,
                         "OARSONG_SECRET_FILE %s is open to others than its "
                         "owner, or belongs to another user: chmod 600 it",
                         path);
    if (info.st_size < FILE_MIN || info.st_size > FILE_MAX)
        return oari_fail(OAR_E_ARG,
                         "OARSONG_SECRET_FILE %s has %lld bytes: it should "
                         "have %d to %d",
                         path, (long long)info.st_size, FILE_MIN, FILE_MAX);
    return OAR_OK;
}

static oar_status hash_file(int fd, const char *path, oari_secret *secret)
{
    unsigned char *content = oari_alloc(FILE_MAX, 1);
    oari_secret_part part = { content, 0 };
    oar_status status;
    ssize_t got = 1;

    if (content == NULL)
        return OAR_E_NOMEM;
    while (got != 0 && part.bytes < FILE_MAX) {
        got = read(fd, content + part.bytes, FILE_MAX - part.bytes);
        if (got < 0 && errno != EINTR)
            break;
        part.bytes += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        status = oari_fail(OAR_E_SYSTEM, "read OARSONG_SECRET_FILE %s", path);
    else if (part.bytes < FILE_MIN)
        status =
            oari_fail(OAR_E_ARG, "OARSONG_SECRET_FILE %s became shorter", path);
    else
        status =
            oari_secret_hmac((oari_secret_part){ file_salt, strlen(file_salt) },
                             &part, 1, secret->bytes);
    OPENSSL_cleanse(content, FILE_MAX);
    oari_free(content);
    secret->known = status == OAR_OK;
    return status;
}

static oar_status read_secret(const char *path, oari_secret *secret)
{
    oari_secret made = { .known = 0 };
    oar_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return oari_fail(OAR_E_SYSTEM, "open OARSONG_SECRET_FILE %s", path);
    status = check_file(fd, path);
    if (status == OAR_OK)
        status = hash_file(fd, path, &made);
    close(fd);
    if (status == OAR_OK)
        *secret = made;
    oari_secret_forget(&made);
    return status;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static oari_secret adopted; /* under the lock */

void oari_secret_adopt(const oari_secret *secret)
{
    pthread_mutex_lock(&lock);
    adopted = *secret;
    pthread_mutex_unlock(&lock);
}

oar_status oari_secret_find(oari_secret *secret)
{
    const char *text = oari_env_text("OARSONG_SECRET");
    const char *path = oari_env_text("OARSONG_SECRET_FILE");

    if (text != NULL)
        return oari_secret_parse("OARSONG_SECRET", text, secret);
    if (path != NULL)
        return read_secret(path, secret);
    pthread_mutex_lock(&lock);
    *secret = adopted;
    pthread_mutex_unlock(&lock);
    return OAR_OK;
}

oar_status oari_secret_given(const char *text, oari_secret *secret)
{
    return text != NULL ? oari_secret_parse("the secret", text, secret)
                        : oari_secret_find(secret);
}

/* ---- how a connection is protected --------------------------------------- */

typedef enum wanted { AUTO, PLAIN, AUTH, TLS, WANTED } wanted;

static const char *const names[WANTED] = { "auto", "plain", "auth", "tls" };

oar_status oari_wire_fail_no_secret(void)
{
    return oari_fail(OAR_E_AUTH,
                     "no connection to another host without a secret of the "
                     "job: start it with `oarsong run`, or by a launcher that "
                     "brings one (Open MPI's mpirun, srun --mpi=pmix), or set "
                     "OARSONG_SECRET_FILE to a file with the same content on "
                     "all hosts, or, on a network where everybody may join "
                     "and read, OARSONG_WIRE=plain");
}

oar_status oari_protection_for(const oari_secret *secret, int loopback,
                               oari_protection *wire)
{
    static const oari_protection fixed[WANTED] = {
        [PLAIN] = OARI_PROTECTION_PLAIN,
        [AUTH] = OARI_PROTECTION_AUTH,
        [TLS] = OARI_PROTECTION_TLS
    };
    const char *text = oari_env_text("OARSONG_WIRE");
    wanted w = AUTO;

    while (text != NULL && w < WANTED && strcmp(text, names[w]) != 0)
        w++;
    if (w == WANTED)
        return oari_fail(OAR_E_ARG,
                         "OARSONG_WIRE is \"%.40s\", but should be auto, "
                         "plain, auth or tls",
                         text);
    if (w == PLAIN || (w == AUTO && !secret->known && loopback))
        *wire = OARI_PROTECTION_PLAIN;
    else if (!secret->known)
        return w == AUTO ? oari_wire_fail_no_secret()
                         : oari_fail(OAR_E_AUTH,
                                     "OARSONG_WIRE=%s needs a secret of the "
                                     "job: start it with `oarsong run` or set "
                                     "OARSONG_SECRET_FILE",
                                     names[w]);
    else if (w == AUTO)
        *wire = loopback ? OARI_PROTECTION_AUTH : OARI_PROTECTION_TLS;
    else
        *wire = fixed[w];
    return OAR_OK;
}
