/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/missed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group.h"

/* For the others to give up, too: one that only did not come in time may do so
 * a little later than this rank, and one that leaves may be seen to have left
 * before it has said why. */
enum { WORD_MS = 400, MOMENT_MS = 50 };

/* Which time the group is made is counted by oari_settings_agree. */
static oar_status key_of(oar_store *store, const char *name, int rank,
                         char *prefix, size_t bytes)
{
    int64_t times;

    snprintf(prefix, bytes, "%s/agree/%d", name, rank);
    OARI_TRY(oar_store_add(store, prefix, 0, &times));
    snprintf(prefix, bytes, "%s/missed/%" PRId64, name, times);
    return OAR_OK;
}

static oar_status leave_word(oar_store *store, const char *prefix, int rank,
                             const oar_error *mine)
{
    char key[OARI_NAME_MAX + 48], word[sizeof mine->text + 32];

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    snprintf(word, sizeof word, "%d %d %s", mine->peer, (int)mine->status,
             mine->text);
    return oar_store_set(store, key, word, strlen(word));
}

/* What a rank said; 0 if it has said nothing, or nothing that makes sense. */
static int read_word(oar_store *store, const char *prefix, int rank,
                     int64_t wait_ms, oar_error *said)
{
    char key[OARI_NAME_MAX + 48];
    int peer, status, used = 0;
    size_t bytes;
    void *word;

    snprintf(key, sizeof key, "%s/%d", prefix, rank);
    if (oar_store_get(store, key, wait_ms, &word, &bytes) != OAR_OK)
        return 0;
    if (sscanf(word, "%d %d %n", &peer, &status, &used) != 2 || used == 0 ||
        (status != OAR_E_PEER && status != OAR_E_TIMEOUT)) {
        oar_free(word);
        return 0;
    }
    oari_error_set(said, (oar_status)status, "%s", (char *)word + used);
    said->peer = peer;
    oar_free(word);
    return 1;
}

static void follow(oar_store *store, const char *prefix, int ranks,
                   oar_error *said)
{
    int64_t deadline = oari_deadline(WORD_MS);
    oar_error next = *said;

    for (int hops = 0; hops < ranks; hops++) {
        if (next.peer < 0 || next.peer >= ranks)
            return;
        if (!read_word(store, prefix, next.peer,
                       oari_deadline_left_ms(deadline), &next)) {
            *said = next;
            return;
        }
    }
}

void oari_missed(oar_store *store, const char *name, int rank, int ranks)
{
    oar_error said = *oar_last_error();
    char prefix[OARI_NAME_MAX + 32];

    if (store == NULL || said.peer < 0 ||
        (said.status != OAR_E_PEER && said.status != OAR_E_TIMEOUT))
        return;
    if (key_of(store, name, rank, prefix, sizeof prefix) == OAR_OK &&
        leave_word(store, prefix, rank, &said) == OAR_OK)
        follow(store, prefix, ranks, &said);
    oari_fail_with(&said);
}

int oari_missed_word(oar_store *store, const char *name, int rank, int ranks,
                     int of, oar_error *said)
{
    char prefix[OARI_NAME_MAX + 32];

    if (store == NULL ||
        key_of(store, name, rank, prefix, sizeof prefix) != OAR_OK ||
        !read_word(store, prefix, of, MOMENT_MS, said))
        return 0;
    follow(store, prefix, ranks, said);
    return 1;
}
