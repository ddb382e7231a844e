/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong info: what works here, and why the rest does not. */
#include "tool.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

static void print_machine(void)
{
    struct utsname name;

    if (uname(&name) == 0)
        printf("machine    %s, %s %s, %ld cores\n", name.machine, name.sysname,
               name.release, sysconf(_SC_NPROCESSORS_ONLN));
}

static void print_backends(void)
{
    for (int i = 0; oar_backend_name(i) != NULL; i++) {
        oar_backend_caps caps = oar_backend_caps_init();
        const char *name = oar_backend_name(i);
        if (oar_backend_available(name, &caps) == OAR_OK)
            printf("%-10s %-8s works: %s\n", i == 0 ? "backends" : "", name,
                   caps.note != NULL ? caps.note : "");
        else
            printf("%-10s %-8s does not: %s\n", i == 0 ? "backends" : "", name,
                   oar_last_error_text());
    }
}

int tool_info(int argc, char **argv)
{
    if (argc > 1) {
        printf("oarsong info\n\nPrints the version, the machine, and which "
               "backends work here.\n");
        return strcmp(argv[1], "--help") == 0 ? TOOL_OK : TOOL_USAGE;
    }
    printf("oarsong    %s (headers %s)\n", oar_build_text(), OAR_VERSION_TEXT);
    print_machine();
    print_backends();
    return TOOL_OK;
}
