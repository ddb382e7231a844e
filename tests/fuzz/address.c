/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as text, and patterns of interface names. No names are resolved:
 * only a host of digits, dots and colons goes to the resolver. */
#include "fuzz.h"

#include "net/sock_address.h"

static int is_numeric(const char *text)
{
    return text[strspn(text, "0123456789.:[]%")] == 0 && *text != '%';
}

static void resolve(const char *text)
{
    struct addrinfo *found;
    char back[OARI_SOCK_TEXT];

    if (!is_numeric(text) || oari_sock_resolve(text, &found) != OAR_OK)
        return;
    for (struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        FUZZ_CHECK(oari_sock_text(at->ai_addr, at->ai_addrlen, back) == OAR_OK);
        oari_sock_loopback(at->ai_addr);
    }
    freeaddrinfo(found);
    oari_sock_names_loopback(text);
}

/* The other way: whatever the kernel might give. */
static void write_text(const uint8_t *data, size_t bytes)
{
    struct sockaddr_storage raw;
    char text[OARI_SOCK_TEXT];

    fuzz_take(&data, &bytes, &raw, sizeof raw);
    oari_sock_loopback((struct sockaddr *)&raw);
    if (oari_sock_text((struct sockaddr *)&raw, sizeof raw, text) == OAR_OK)
        FUZZ_CHECK(strlen(text) < sizeof text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes), *name = strchr(text, '\n');

    resolve(text);
    if (name != NULL) {
        *name++ = 0;
        oari_sock_allows(text, name);
    } else
        oari_sock_allows(text, "eth0");
    write_text(data, bytes);
    free(text);
    return 0;
}
