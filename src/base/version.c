/* SPDX-License-Identifier: Apache-2.0 */
/* version: the version of this library and how it was built. */
#include <oarsong/version.h>

#include <pthread.h>
#include <stdio.h>

#include "base/reduce/reduce.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char text[128];

static void make_text(void)
{
#if defined(__clang__)
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif

    snprintf(text, sizeof text, "%s, %s, %s, %s", OAR_VERSION_TEXT, compiler,
             OARSONG_BLAS_NAME, oari_reduce_isa());
}

int oar_version(void)
{
    return OAR_VERSION_CODE;
}

const char *oar_build_text(void)
{
    pthread_once(&once, make_text);
    return text;
}
