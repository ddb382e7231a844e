/* SPDX-License-Identifier: Apache-2.0 */
#include "support/real_rank.h"

#include <string.h>

#include "support/last_error.h"

enum { EAGER_BYTES = 64 << 10 };

void real_rank_init(real_rank *r, const oari_secret *theirs,
                    const char *address)
{
    memset(r, 0, sizeof *r);
    OK(oar_store_create_memory(&r->store));
    OK(oari_match_create(0, 2, EAGER_BYTES, &r->match));
    fake_rank_publish(r->store, REAL_RANK_PREFIX, 1, 2, theirs, address);
    tcp_init(&r->mesh);
}

oar_status real_rank_open(real_rank *r, int timeout_ms)
{
    oari_open with = { .env = { .size = sizeof with.env,
                                .rank = 0,
                                .ranks = 2,
                                .name = "g",
                                .timeout_ms = timeout_ms,
                                .store = r->store },
                       .eager_bytes = EAGER_BYTES };
    char host[OARI_HOST_NAME_BYTES];
    tcp_setup setup = { .with = &with,
                        .prefix = REAL_RANK_PREFIX,
                        .host = host,
                        .match = r->match };

    OK(oari_host_name(host));
    return tcp_open(&r->mesh, &setup);
}

void real_rank_abort(real_rank *r)
{
    tcp_abort(&r->mesh, OAR_E_ABORTED);
    tcp_progress(&r->mesh);
    oari_match_abort(r->match, OAR_E_ABORTED);
}

void real_rank_free(real_rank *r)
{
    tcp_close(&r->mesh);
    oari_match_destroy(r->match);
    oar_store_destroy(r->store);
}
