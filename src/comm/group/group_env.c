/* SPDX-License-Identifier: Apache-2.0 */
/* group_env: groups whose ranks know only where to meet. */
#include "base/status.h"
#include "comm/group/group.h"
#include "comm/rendezvous/bootstrap.h"
#include "store/store_client.h"

/* Destroys what there is of a rendezvous that could not be held. */
static oar_status fail_bootstrap(oari_bootstrap *bootstrap, oar_status status)
{
    oar_error why = *oar_last_error();

    if (bootstrap->door != NULL)
        oar_store_clear(bootstrap->door);
    oar_store_destroy(bootstrap->door);
    oar_store_destroy(bootstrap->store);
    oar_store_server_destroy(bootstrap->server);
    return status == why.status ? oari_fail_with(&why) : status;
}

/* Makes the group, and ends the rendezvous in either case. The server lives as
 * long as a group holds its store: this one, or one made of it. */
static oar_status make_group_at(oari_bootstrap *bootstrap, int rank, int size,
                                const oar_group_opts *opts, oar_group **group)
{
    oar_group *made = NULL;
    oari_bootstrap_group party;
    oar_status status;
    oar_error why;

    oari_store_take_server(bootstrap->store, bootstrap->server);
    status = oar_group_create(bootstrap->store, rank, size, opts, &made);
    if (status == OAR_E_TIMEOUT)
        status = oari_bootstrap_explain(bootstrap);
    why = *oar_last_error();
    if (made != NULL)
        party =
            (oari_bootstrap_group){ made->name, rank, size, made->timeout_ms };
    oari_bootstrap_leave(bootstrap, made != NULL ? &party : NULL);
    if (status != OAR_OK)
        return oari_fail_with(&why);
    *group = made;
    return OAR_OK;
}

oar_status oar_group_from_env(const oar_group_opts *opts, oar_group **group)
{
    oari_bootstrap bootstrap = { 0 };
    oar_group_opts full;
    oar_status status;
    int rank = 0, size = 1;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "group_from_env with nowhere to put it");
    OARI_TRY(oari_launcher_rank(&rank, &size));
    if (size == 1)
        return oar_group_create(NULL, 0, 1, opts, group);
    OARI_TRY(oari_group_settings(opts, &full));
    status = oari_launcher_bootstrap(rank, size, full.name, full.timeout_ms,
                                     &bootstrap);
    if (status != OAR_OK)
        return fail_bootstrap(&bootstrap, status);
    return make_group_at(&bootstrap, rank, size, opts, group);
}

oar_status oar_group_create_tcp(const char *address, int rank, int size,
                                const oar_group_opts *opts, oar_group **group)
{
    oari_bootstrap bootstrap = { 0 };
    oar_group_opts full;
    oar_status status;

    if (address == NULL || group == NULL)
        return oari_fail(OAR_E_ARG, "group_create_tcp without %s",
                         address == NULL ? "an address" : "a place for it");
    OARI_TRY(oari_group_check_world(rank, size));
    if (size == 1)
        return oar_group_create(NULL, 0, 1, opts, group);
    OARI_TRY(oari_group_settings(opts, &full));
    bootstrap.secret = full.secret;
    status = oari_bootstrap_tcp(address, rank, full.name, full.timeout_ms,
                                &bootstrap);
    if (status != OAR_OK)
        return fail_bootstrap(&bootstrap, status);
    return make_group_at(&bootstrap, rank, size, opts, group);
}
