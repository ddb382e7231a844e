/* SPDX-License-Identifier: Apache-2.0 */
/* store_auth: nobody has to prove anything yet, and nobody may pretend to. */
#include "comm/store_auth.h"

#include <string.h>

#include "base/status.h"

static oar_status check_none(uint32_t method, oari_bytes challenge,
                             oari_bytes proof)
{
    if (method != OARI_AUTH_NONE)
        return oari_fail(OAR_E_AUTH,
                         "the store's other end wants to prove itself by "
                         "method %u, which is not known here",
                         method);
    if (challenge.bytes != 0 || proof.bytes != 0)
        return oari_fail(OAR_E_AUTH, "a proof that nobody asked for");
    return OAR_OK;
}

oar_status oari_auth_open(oari_auth *auth, oari_wire_message *hello)
{
    memset(auth, 0, sizeof *auth);
    hello->method = auth->method;
    return OAR_OK;
}

oar_status oari_auth_welcome(oari_auth *auth, const oari_wire_message *hello,
                             oari_wire_message *welcome)
{
    memset(auth, 0, sizeof *auth);
    OARI_TRY(check_none(hello->method, hello->expected, hello->value));
    welcome->method = auth->method;
    return OAR_OK;
}

oar_status oari_auth_answer(oari_auth *auth, const oari_wire_message *welcome,
                            oari_wire_message *proof)
{
    OARI_TRY(check_none(welcome->method, welcome->expected, welcome->value));
    proof->value = (oari_bytes){ auth->proof, 0 };
    return OAR_OK;
}

oar_status oari_auth_check(oari_auth *auth, const oari_wire_message *proof)
{
    return check_none(auth->method, (oari_bytes){ NULL, 0 }, proof->value);
}
