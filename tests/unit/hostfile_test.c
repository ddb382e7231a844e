/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts: mpirun's files, SLURM's brackets. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "launch/hostfile.h"
#include "net/hostlist.h"
#include "support/leak_check.h"
#include "support/last_error.h"

/* ---- hostfiles ----------------------------------------------------------- */

static oar_status read_text(const char *text, launch_host **hosts, int *count)
{
    return launch_hostfile_read(text, strlen(text), hosts, count);
}

static void expect(const char *text, const char *wanted)
{
    launch_host *hosts = NULL;
    char said[256] = "";
    size_t used = 0;
    int count = 0;

    OK(read_text(text, &hosts, &count));
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(said + used, sizeof said - used, "%s*%d ",
                                 hosts[i].name, hosts[i].slots);
    oari_free(hosts);
    assert_string_equal(said, wanted);
}

static void hosts_and_slots_are_read(void **state)
{
    expect("one", "one*1 ");
    expect("one\ntwo\n", "one*1 two*1 ");
    expect("one slots=4\n\n# nothing\n  two\tslots=2 max_slots=9 # two\r\n",
           "one*4 two*2 ");
    expect("one:3\n", "one*3 ");
    expect("fe80::1 slots=2", "fe80::1*2 ");
}

static void a_host_that_comes_again_has_the_sum(void **state)
{
    expect("one slots=2\ntwo\nONE slots=3", "one*5 two*1 ");
}

static void what_is_no_hostfile_is_refused(void **state)
{
    static const char *const bad[] = {
        "one slots=0",
        "one slots=-1",
        "one slots=x",
        "one slots=",
        "one slots=99999",
        "one:0",
        "one:",
        ":4",
        "one two",
        "one slots=1 z",
        "one\001",
        "one slots=1025",
        "one slots=700\none slots=700",
    };
    launch_host *hosts = NULL;
    int count = 77;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (read_text(bad[i], &hosts, &count) != OAR_E_DATA)
            fail_msg("\"%s\" was taken", bad[i]);
    assert_fails_with(read_text("a\nb\nc slots=q", &hosts, &count), OAR_E_DATA,
                      "line 3");
    assert_fails_with(read_text("", &hosts, &count), OAR_E_DATA, "no host");
    assert_fails_with(read_text("# a\n\n", &hosts, &count), OAR_E_DATA,
                      "no host");
    assert_null(hosts);
    assert_int_equal(count, 77);
}

/* No byte behind the last is looked at: that would be a fault here. */
static void only_the_bytes_that_are_there_are_read(void **state)
{
    static const char text[] = "one slots=4\ntwo:2 # x\n";
    launch_host *hosts;
    int count;

    for (size_t bytes = 0; bytes < sizeof text; bytes++) {
        char *copy = malloc(bytes + (bytes == 0));
        assert_non_null(copy);
        memcpy(copy, text, bytes);
        hosts = NULL;
        if (launch_hostfile_read(copy, bytes, &hosts, &count) == OAR_OK)
            oari_free(hosts);
        free(copy);
    }
}

static void a_hostfile_has_its_limits(void **state)
{
    char name[LAUNCH_HOST_ROOM + 1];
    char *large = calloc(1, LAUNCH_HOSTFILE_MAX + 1);
    launch_host *hosts = NULL;
    int count;

    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(read_text(name, &hosts, &count), OAR_E_DATA);
    memset(large, '\n', LAUNCH_HOSTFILE_MAX + 1);
    assert_fails_with(
        launch_hostfile_read(large, LAUNCH_HOSTFILE_MAX + 1, &hosts, &count),
        OAR_E_DATA, "bytes");
    for (int i = 0, at = 0; i <= LAUNCH_HOSTS_MAX; i++)
        at += snprintf(large + at, 16, "h%d\n", i);
    assert_fails_with(read_text(large, &hosts, &count), OAR_E_DATA, "hosts");
    free(large);
}

static void slots_are_those_of_this_host(void **state)
{
    char path[FOLDER_PATH + 16], folder[FOLDER_PATH], self[128];
    int slots = 0;
    FILE *file;

    folder_make(folder);
    snprintf(path, sizeof path, "%s/hosts", folder);
    file = fopen(path, "w");
    gethostname(self, sizeof self);
    fprintf(file, "localhost slots=2\n127.0.0.1:3\n%s\n", self);
    fclose(file);
    OK(launch_hostfile_slots(path, &slots));
    assert_int_equal(slots, 6);
    file = fopen(path, "a");
    fprintf(file, "elsewhere.example slots=4\n");
    fclose(file);
    assert_fails_with(launch_hostfile_slots(path, &slots), OAR_E_UNSUPPORTED,
                      "elsewhere.example");
    assert_non_null(strstr(oar_last_error_text(), "--rdzv-endpoint"));
    folder_remove(folder);
    assert_fails_with(launch_hostfile_slots(path, &slots), OAR_E_SYSTEM, path);
}

/* ---- SLURM's ------------------------------------------------------------- */

static void first(const char *list, const char *wanted)
{
    char host[OARI_HOST_ROOM];

    OK(oari_hostlist_first(list, strlen(list), host));
    assert_string_equal(host, wanted);
}

static void the_first_host_of_a_list_is_found(void **state)
{
    first("one", "one");
    first("one,two", "one");
    first("node[1-3,7]", "node1");
    first("node[007-013]", "node007");
    first("node[9]", "node9");
    first("rack[2-3]node[05,06],login", "rack2node05");
    first("gpu-a[3,1].example", "gpu-a3.example");
}

static void what_is_no_list_is_refused(void **state)
{
    static const char *const bad[] = { "",      ",a",     "node[",   "node[]",
                                       "a[1",   "a[-3]",  "a[1-3",   "a]",
                                       "a b",   "a[1;2]", "a[1][x]", "a\n",
                                       "a[1,2", "[",      "a[[1]]" };
    char host[OARI_HOST_ROOM] = "as it was", many[400];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (oari_hostlist_first(bad[i], strlen(bad[i]), host) != OAR_E_DATA)
            fail_msg("\"%s\" was taken", bad[i]);
    memset(many, 'x', sizeof many);
    assert_int_equal(oari_hostlist_first(many, sizeof many, host), OAR_E_DATA);
    memset(many, '7', sizeof many);
    many[0] = '[';
    assert_int_equal(oari_hostlist_first(many, sizeof many, host), OAR_E_DATA);
    assert_string_equal(host, "as it was");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_and_slots_are_read),
        cmocka_unit_test(a_host_that_comes_again_has_the_sum),
        cmocka_unit_test(what_is_no_hostfile_is_refused),
        cmocka_unit_test(only_the_bytes_that_are_there_are_read),
        cmocka_unit_test(a_hostfile_has_its_limits),
        cmocka_unit_test(slots_are_those_of_this_host),
        cmocka_unit_test(the_first_host_of_a_list_is_found),
        cmocka_unit_test(what_is_no_list_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
