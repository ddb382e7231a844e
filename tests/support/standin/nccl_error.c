/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_error.c: NCCL's version and error texts. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin/nccl.h"

enum { VERSION = 22707 };

STANDIN_API int ncclGetVersion(int *version);
STANDIN_API const char *ncclGetErrorString(int code);
STANDIN_API const char *ncclGetLastError(nccl_comm *comm);

static char last_error[512];
static pthread_mutex_t word_lock = PTHREAD_MUTEX_INITIALIZER;

int nccl_fail(int code, const char *format, ...)
{
    va_list list;
    pthread_mutex_lock(&word_lock);
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    pthread_mutex_unlock(&word_lock);
    return code;
}

const char *ncclGetLastError(nccl_comm *comm)
{
    static _Thread_local char copy[512];
    (void)comm; /* the real one does not look at it either */
    pthread_mutex_lock(&word_lock);
    memcpy(copy, last_error, sizeof copy);
    pthread_mutex_unlock(&word_lock);
    return copy;
}

const char *ncclGetErrorString(int code)
{
    static const char *const text[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress"
    };
    return code >= 0 && code <= NCCL_IN_PROGRESS ? text[code]
                                                 : "unknown result code";
}

int ncclGetVersion(int *version)
{
    *version = VERSION;
    return NCCL_OK;
}

int nccl_must_fail(const char *function, int *code)
{
    const char *setting = getenv("STANDIN_NCCL_FAIL");
    size_t length = strlen(function);
    if (!setting || strncmp(setting, function, length) != 0 ||
        setting[length] != ':')
        return 0;
    *code =
        nccl_fail(atoi(setting + length + 1), "%s was told to fail", function);
    return 1;
}
