/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_agree: what ranks must have in common before UCC meets itself: its
 * version, which its own exchange does not check, and what rank 0 wants of
 * bf16. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"

enum { LINGER_MS = 50 };

/* What a rank shows. */
typedef struct hello {
    char version[28];
    char host[64];
    int32_t takes_bf16;
    int32_t chosen; /* UCX's transports are the user's choice */
} hello;

static int wants_bf16(void)
{
    const char *text = getenv("OARSONG_UCC_BF16");

    return text != NULL &&
           (strcmp(text, "1") == 0 || strcmp(text, "on") == 0 ||
            strcmp(text, "yes") == 0 || strcmp(text, "true") == 0);
}

static oar_status check(const hello *mine, hello *row, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        row[r].version[sizeof row[r].version - 1] = 0;
        if (strcmp(row[r].version, mine->version) != 0)
            return oar_backend_fail(OAR_E_MISMATCH,
                                    "rank %d has UCC %s, this rank %s", r,
                                    row[r].version, mine->version);
    }
    return OAR_OK;
}

/* Shared memory needs no farewell; what UCX takes on one host by itself. */
static int has_connections(const hello *row, int ranks)
{
    int found = row[0].chosen;

    for (int r = 1; r < ranks; r++)
        found |= row[r].chosen ||
                 memcmp(row[r].host, row[0].host, sizeof row[0].host) != 0;
    return found;
}

oar_status oari_ucc_agree(oari_ucc_opening *o)
{
    hello mine = { .takes_bf16 = wants_bf16(),
                   .chosen = getenv("UCX_TLS") != NULL };
    int ranks = o->meeting.ranks;
    hello *row = oari_alloc((size_t)ranks, sizeof *row);
    oar_status status;

    if (row == NULL)
        return OAR_E_NOMEM;
    snprintf(mine.version, sizeof mine.version, "%s", ucc_get_version_string());
    gethostname(mine.host, sizeof mine.host - 1);
    status = oari_ucc_meeting_exchange(&o->meeting, &mine, row, sizeof mine);
    if (status == OAR_OK)
        status = check(&mine, row, ranks);
    o->takes_bf16 = row[0].takes_bf16;
    o->meeting.linger_ms = has_connections(row, ranks) ? LINGER_MS : 0;
    oari_free(row);
    return status;
}
