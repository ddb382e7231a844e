/* SPDX-License-Identifier: Apache-2.0 */
#include "support/last_error.h"

#include <stdio.h>
#include <string.h>

int last_error_has(const char *text)
{
    return strstr(oar_last_error_text(), text) != NULL;
}

int fails_with(oar_status got, oar_status wanted, const char *text)
{
    if (got == wanted && oar_last_error()->status == wanted &&
        last_error_has(text))
        return 1;
    fprintf(stderr,
            "expected %s that says \"%s\"\n     got %s, last error %s: %s\n",
            oar_status_name(wanted), text, oar_status_name(got),
            oar_status_name(oar_last_error()->status), oar_last_error_text());
    return 0;
}
