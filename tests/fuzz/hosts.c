/* SPDX-License-Identifier: Apache-2.0 */
/* SLURM's lists of hosts, mpirun's hostfiles, and what launchers on several
 * nodes write to each other. */
#include "fuzz.h"

#include "base/alloc.h"
#include "launch/hostfile.h"
#include "launch/node_server.h"
#include "net/hostlist.h"

static void read_list(const char *text, size_t bytes)
{
    char host[OARI_HOST_ROOM];

    if (oari_hostlist_first(text, bytes, host) == OAR_OK)
        FUZZ_CHECK(*host != 0 && strlen(host) < sizeof host &&
                   strpbrk(host, "[], \n") == NULL);
}

static void read_file(const char *text, size_t bytes)
{
    launch_host *hosts = NULL;
    int count = 0;

    if (launch_hostfile_read(text, bytes, &hosts, &count) != OAR_OK)
        return;
    FUZZ_CHECK(count >= 0 && count <= LAUNCH_HOSTS_MAX);
    for (int i = 0; i < count; i++) {
        FUZZ_CHECK(hosts[i].name[0] != 0);
        FUZZ_CHECK(strnlen(hosts[i].name, LAUNCH_HOST_ROOM) < LAUNCH_HOST_ROOM);
        FUZZ_CHECK(hosts[i].slots >= 0 && hosts[i].slots <= LAUNCH_SLOTS_MAX);
        for (int j = 0; j < i; j++)
            FUZZ_CHECK(strcmp(hosts[i].name, hosts[j].name) != 0);
    }
    oari_free(hosts);
}

/* What was read is written so that it reads the same. */
static void read_note(const char *text)
{
    char first[AGENT_TEXT_ROOM], second[AGENT_TEXT_ROOM];
    agent_record note, again;

    if (!agent_record_read(text, &note))
        return;
    FUZZ_CHECK(strnlen(note.host, sizeof note.host) < sizeof note.host);
    agent_record_write(&note, first);
    FUZZ_CHECK(agent_record_read(first, &again));
    agent_record_write(&again, second);
    FUZZ_CHECK(strcmp(first, second) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes);
    char *exact = malloc(bytes > 0 ? bytes : 1);

    FUZZ_CHECK(exact != NULL);
    if (bytes > 0)
        memcpy(exact, data, bytes);
    read_list(exact, bytes);
    read_file(exact, bytes);
    read_note(text);
    free(exact);
    free(text);
    return 0;
}
