/* SPDX-License-Identifier: Apache-2.0 */
/* link/rendezvous.h: waiting for other ranks while a group is made. */
#ifndef OARI_LINK_RENDEZVOUS_H
#define OARI_LINK_RENDEZVOUS_H

#include <oarsong/store.h>

/* The key under which a rank puts what the others wait for. */
typedef void (*oari_rank_key_fn)(const void *arg, int rank, char *key,
                                 size_t bytes);

/* One of these lasts for all waits of one kind. */
typedef struct oari_rendezvous {
    oar_store *store;
    const char *group; /* NULL: not known yet */
    int rank, ranks;
    int64_t timeout_ms;   /* for the text */
    oari_rank_key_fn key; /* NULL: only the first missing rank is named */
    const void *arg;
    int64_t start_ns; /* 0: it has not waited for any rank */
    int said;         /* how often it has logged that it waits */
} oari_rendezvous;

/* Waits until rank `peer` has put the key there and gives its value (oari_free
 * it). Logs a warning that names the missing ranks after a second, and again
 * after 30. OAR_E_TIMEOUT at the deadline; OAR_E_PEER as soon as `oarsong run`
 * has said that the rank has ended. Both name the rank. */
oar_status oari_rendezvous_get(oari_rendezvous *r, const char *key, int peer,
                               int64_t deadline_ns, void **value,
                               size_t *bytes);

/* Writes into the store that this process is that rank of that group.
 * OAR_E_RANK if another living process of this host has signed as the same
 * rank. */
oar_status oari_rendezvous_sign(oar_store *store, const char *group, int rank);

/* Gives the key under which `oarsong run` puts how a rank ended: a decimal exit
 * code. */
enum { OARI_ENDED_KEY = 40 };
void oari_ended_key(int rank, char key[OARI_ENDED_KEY]);

#endif
