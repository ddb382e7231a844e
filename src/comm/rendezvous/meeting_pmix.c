/* SPDX-License-Identifier: Apache-2.0 */
/* meeting_pmix: ranks on several hosts that nobody has told an address or a
 * secret, but whose launcher speaks PMIx. Both are rank 0's words to the
 * others; who can read along there can join the job. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/rendezvous/meeting.h"
#include "comm/rendezvous/pmix.h"
#include "store/store_link.h"
#include "store/store_server.h"
#include "net/secret.h"
#include "net/sock.h"

static oar_status share_secret(int rank, int64_t timeout_ms,
                               oari_secret *secret)
{
    char word[OARI_SECRET_HEX] = "";
    oar_status status;

    if (rank == 0) {
        OARI_TRY(oari_secret_make(secret));
        oari_secret_text(secret, word);
    }
    status =
        oari_pmix_share(rank, "oarsong.secret", timeout_ms, word, sizeof word);
    if (status == OAR_OK)
        status = oari_secret_parse("the secret by PMIx", word, secret);
    explicit_bzero(word, sizeof word);
    return status;
}

oar_status oari_meeting_secret(int rank, int64_t timeout_ms)
{
    oari_secret secret;
    oar_status status;

    OARI_TRY(oari_secret_find(&secret));
    if (secret.known)
        return oari_secret_forget(&secret), OAR_OK;
    status = share_secret(rank, timeout_ms, &secret);
    if (status == OAR_OK)
        oari_secret_adopt(&secret);
    oari_secret_forget(&secret);
    return status;
}

/* A port of the system's choice. */
static oar_status serve(const char *toward, oari_meeting *meeting,
                        char address[OARI_SOCK_TEXT])
{
    OARI_TRY(oari_sock_local(toward, address));
    OARI_TRY(oar_store_serve(address, &meeting->server));
    snprintf(address, OARI_SOCK_TEXT, "%s",
             oar_store_server_address(meeting->server));
    return OAR_OK;
}

oar_status oari_meeting_pmix(const char *toward, int rank, int64_t timeout_ms,
                             oari_meeting *meeting)
{
    static _Atomic int times; /* all ranks come here equally often */
    char key[48], address[OARI_SOCK_TEXT] = "";

    if (!oari_pmix_here(rank))
        return oari_fail(OAR_E_UNAVAILABLE,
                         "rank %d cannot meet the others by PMIx: the launcher "
                         "does not speak it (Open MPI's mpirun and srun "
                         "--mpi=pmix do)",
                         rank);
    OARI_TRY(oari_meeting_secret(rank, timeout_ms));
    if (rank == 0)
        OARI_TRY(serve(toward, meeting, address));
    snprintf(key, sizeof key, "oarsong.store.%d", atomic_fetch_add(&times, 1));
    OARI_TRY(oari_pmix_share(rank, key, timeout_ms, address, sizeof address));
    meeting->counted = 1;
    return oar_store_create_tcp(address, timeout_ms, &meeting->store);
}
