/* SPDX-License-Identifier: Apache-2.0 */
/* call_site: where a thread was called from, and copies of file names.
 *
 * A name is copied once, and never goes: there are few in a program. They lie
 * in a table of fixed size, so that nothing is allocated; when it is full,
 * further names are "?". A place of the table is claimed and written once, and
 * then read by anyone. There is no lock that a fork could leave taken: two
 * threads that bring one name at once may keep it twice. */
#include "base/call_site.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { NAMES = 1024, NAME_BYTES = 256 };
enum { FREE = 0, CLAIMED = 1, SET = 2 };

static _Thread_local oari_call_site current;

static char name_text[NAMES][NAME_BYTES];
static _Atomic int name_state[NAMES];

oari_call_site oari_call_site_enter(const char *file, int line)
{
    oari_call_site outer = current;

    if (file != NULL)
        current = (oari_call_site){ file, line };
    return outer;
}

void oari_call_site_leave(const oari_call_site *outer)
{
    current = *outer;
}

/* Names longer than a place keep their end, which tells more. */
static const char *shorten(const char *name, size_t *length)
{
    size_t all = strlen(name);

    *length = all < NAME_BYTES ? all : NAME_BYTES - 1;
    return name + (all - *length);
}

static unsigned hash_of(const char *name, size_t length)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 1099511628211u;
    return (unsigned)(hash >> 32) % NAMES;
}

__attribute__((noinline)) static const char *keep_name(const char *given)
{
    size_t length;
    const char *name = shorten(given, &length);
    unsigned at = hash_of(name, length);

    for (int n = 0; n < NAMES; n++, at = (at + 1) % NAMES) {
        int state = atomic_load_explicit(&name_state[at], memory_order_acquire);

        if (state == SET && strcmp(name_text[at], name) == 0)
            return name_text[at];
        if (state == FREE &&
            atomic_compare_exchange_strong(&name_state[at], &state, CLAIMED)) {
            memcpy(name_text[at], name, length);
            atomic_store_explicit(&name_state[at], SET, memory_order_release);
            return name_text[at];
        }
    }
    return "?";
}

/* Most calls come from the file of the one before, by the same pointer; whose
 * memory may hold another name by now. */
static const char *keep_recent(const char *given)
{
    static _Thread_local const char *last_given, *last_kept;

    if (given != last_given || strcmp(given, last_kept) != 0) {
        last_kept = keep_name(given);
        last_given = given;
    }
    return last_kept;
}

oari_call_site oari_call_site_of(const char *file, int line)
{
    oari_call_site site = { file, line };

    if (file == NULL && current.file != NULL)
        site = current;
    site.file = site.file != NULL ? keep_recent(site.file) : "?";
    return site;
}
