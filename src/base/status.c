/* SPDX-License-Identifier: Apache-2.0 */
/* status: names and texts of the status codes, and each thread's last error.
 * The record is thread-local, so no function here takes a lock. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local oar_error last_error = { .size = sizeof(oar_error),
                                              .rank = -1,
                                              .peer = -1 };

const char *oar_status_name(oar_status status)
{
    switch (status) {
#define X(name, value, text) \
    case name: return #name;
        OAR_STATUS_LIST(X)
#undef X
    }
    return "OAR_E_UNKNOWN";
}

const char *oar_status_text(oar_status status)
{
    switch (status) {
#define X(name, value, text) \
    case name: return text;
        OAR_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const oar_error *oar_last_error(void)
{
    return &last_error;
}

const char *oar_last_error_text(void)
{
    return last_error.text;
}

static void clear_error(oar_error *record, oar_status status)
{
    memset(record, 0, sizeof *record);
    record->size = sizeof *record;
    record->status = status;
    record->rank = -1;
    record->peer = -1;
}

void oar_clear_error(void)
{
    clear_error(&last_error, OAR_OK);
}

/* The arguments may point into the record (an error that repeats the previous
 * one), so the text is made before the record is cleared. */
static void write_error(oar_error *record, oar_status status,
                        const char *format, va_list args)
{
    char text[sizeof record->text];

    vsnprintf(text, sizeof text, format, args);
    clear_error(record, status);
    memcpy(record->text, text, strlen(text) + 1);
}

void oari_error_set(oar_error *record, oar_status status, const char *format,
                    ...)
{
    va_list args;

    va_start(args, format);
    write_error(record, status, format, args);
    va_end(args);
}

oar_status oari_fail(oar_status status, const char *format, ...)
{
    int saved = errno, by_system = status == OAR_E_SYSTEM && saved != 0;
    oar_error *e = &last_error;
    size_t used;
    va_list args;

    if (by_system && saved == ENOMEM)
        status = OAR_E_NOMEM;
    va_start(args, format);
    write_error(e, status, format, args);
    va_end(args);
    if (by_system) {
        e->sys_errno = saved;
        used = strlen(e->text);
        snprintf(e->text + used, sizeof e->text - used, ": %s",
                 strerror(saved));
    }
    return status;
}

oar_status oari_about(int peer, oar_status status)
{
    last_error.peer = peer;
    return status;
}

oar_status oari_fail_with(const oar_error *record)
{
    last_error = *record;
    return record->status;
}

/* No options struct is larger: a larger size was never set. */
enum { MOST_BYTES = 4096 };

void oar_opts_init(void *opts, size_t size)
{
    if (opts == NULL || size < sizeof size)
        return;
    memset(opts, 0, size);
    memcpy(opts, &size, sizeof size);
}

static int is_size(size_t given)
{
    return given >= sizeof given && given % sizeof given == 0 &&
           given <= MOST_BYTES;
}

oar_status oari_opts_read(void *into, size_t size, const void *from)
{
    size_t given;

    memset(into, 0, size);
    if (from == NULL)
        return OAR_OK;
    memcpy(&given, from, sizeof given);
    if (!is_size(given))
        return oari_fail(OAR_E_ARG,
                         "options of size %zu: make them with OAR_OPTS or "
                         "with the ..._init function",
                         given);
    for (size_t i = size; i < given; i++)
        if (((const unsigned char *)from)[i] != 0)
            return oari_fail(OAR_E_ARG,
                             "options of size %zu set byte %zu, but this "
                             "library knows only %zu bytes of them",
                             given, i, size);
    memcpy(into, from, given < size ? given : size);
    return OAR_OK;
}

oar_status oari_struct_give(void *into, const void *from, size_t size,
                            const char *what)
{
    size_t room = 0;

    if (into == NULL)
        return oari_fail(OAR_E_ARG, "%s is NULL", what);
    memcpy(&room, into, sizeof room);
    if (!is_size(room))
        return oari_fail(OAR_E_ARG, "%s of size %zu: set its size first", what,
                         room);
    memcpy(into, from, room < size ? room : size);
    memcpy(into, &room, sizeof room);
    return OAR_OK;
}
