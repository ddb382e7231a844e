/* SPDX-License-Identifier: Apache-2.0 */
/* call_site: the line from which a thread was called, and copies of file names.
 *
 * A name is copied once and kept for good: a program has few. The table has a
 * fixed size, so that nothing is allocated; when it is full, further names are
 * "?". A thread claims an entry and writes it once; then any thread may read
 * it. There is no lock that a fork could leave taken: two threads that bring
 * the same name at once may keep it twice. */
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

__attribute__((noinline)) static const char *keep_name(const char *given)
{
    size_t all = strlen(given);
    size_t length = all < NAME_BYTES ? all : NAME_BYTES - 1;
    const char *name = given + (all - length); /* the end tells more */
    uint64_t hash = 14695981039346656037u;     /* FNV-1a */
    unsigned at;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 1099511628211u;
    at = (unsigned)(hash >> 32) % NAMES;
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

oari_call_site oari_call_site_of(const char *file, int line)
{
    static _Thread_local const char *last_given, *last_kept;
    oari_call_site site = { file, line };

    if (file == NULL && current.file != NULL)
        site = current;
    if (site.file == NULL)
        return (oari_call_site){ "?", site.line };
    /* Most calls come from the same file as the call before, by the same
     * pointer; but its memory may hold another name now. */
    if (site.file != last_given || strcmp(site.file, last_kept) != 0) {
        last_kept = keep_name(site.file);
        last_given = site.file;
    }
    site.file = last_kept;
    return site;
}
