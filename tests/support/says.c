/* SPDX-License-Identifier: Apache-2.0 */
#include "support/says.h"

#include <stdio.h>
#include <string.h>

int says(oar_status got, oar_status wanted, const char *text)
{
    if (got == wanted && oar_last_error()->status == wanted &&
        strstr(oar_last_error_text(), text) != NULL)
        return 1;
    fprintf(stderr,
            "expected %s that says \"%s\"\n     got %s, last error %s: %s\n",
            oar_status_name(wanted), text, oar_status_name(got),
            oar_status_name(oar_last_error()->status), oar_last_error_text());
    return 0;
}
