/* SPDX-License-Identifier: Apache-2.0 */
/* support/netns.h: network namespaces by ip(8). */
#ifndef TESTS_SUPPORT_NETNS_H
#define TESTS_SUPPORT_NETNS_H

#include <oarsong/export.h>

/* Runs `ip ...`; 1 when it worked. */
int netns_ip(const char *format, ...) OAR_PRINTF(1, 2);

#endif
