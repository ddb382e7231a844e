/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank did last, read by itself, by its peers, and from a file after
 * its death; while it is being written, and when it is damaged. */
#include "support/ranks.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/p2p.h>
#include <oarsong/recorder.h>

#include "base/clock.h"
#include "record/recorder.h"
#include "support/leak_check.h"
#include "support/last_error.h"

static oar_group *make_group(const char *name)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;

    o.name = name;
    if (oar_group_create(NULL, 0, 1, &o, &g) != OAR_OK)
        fail_msg("no group: %s", oar_last_error_text());
    return g;
}

static oar_record read_own(const oar_group *g, int index)
{
    oar_record r = oar_record_init();

    if (oar_recorder_read(g, oar_group_rank(g), index, &r) != OAR_OK)
        fail_msg("no record %d: %s", index, oar_last_error_text());
    return r;
}

static void assert_site(const oar_record *r, int line)
{
    char site[64];

    snprintf(site, sizeof site, "recorder_test.c:%d", line);
    assert_string_equal(r->site, site);
}

/* ---- one's own ----------------------------------------------------------- */

static void what_was_called_is_recorded_newest_first(void **state)
{
    oar_group *g = make_group(NULL);
    int64_t before = oari_now_ns();
    double x[3] = { 0 };
    oar_span s = oar_span_of(x, 3, OAR_F64);
    int line = __LINE__ + 1;
    oar_barrier(g, NULL, NULL);
    oar_broadcast(g, s, 0, OAR_OPTS(oar_call_opts, .label = "weights"), NULL);
    oar_all_reduce(g, s, OAR_MAX, OAR_OPTS(oar_call_opts, .label = "g"), NULL);

    for (int i = 0; i < 3; i++) {
        oar_record r = read_own(g, i);
        assert_int_equal(r.size, sizeof r);
        assert_int_equal(r.sequence, 3 - i);
        assert_int_equal(r.state, OAR_RECORD_DONE);
        assert_site(&r, line + 2 - i);
        assert_true(r.posted_ns >= before - 10000000);
        assert_true(r.done_ns >= r.posted_ns);
        assert_true(r.done_ns <= oari_now_ns() + 10000000);
        assert_int_equal(r.kind, i == 0   ? OAR_COLL_ALL_REDUCE
                                 : i == 1 ? OAR_COLL_BROADCAST
                                          : OAR_COLL_BARRIER);
        assert_int_equal(r.count, i == 2 ? 0 : 3);
        assert_int_equal(r.root, i == 1 ? 0 : -1);
        assert_string_equal(r.label, i == 0 ? "g" : i == 1 ? "weights" : "");
        if (i < 2)
            assert_int_equal(r.dtype, OAR_F64);
        if (i == 0)
            assert_int_equal(r.op, OAR_REDUCE_OP_MAX);
    }
    oar_group_destroy(g);
}

static void messages_are_recorded_with_their_peer(void **state)
{
    oar_group *g = make_group(NULL);
    oar_work *work;
    char x[17], y[17];

    assert_int_equal(oar_recv(g, oar_span_of(x, 17, OAR_U8), 0, 5, NULL, &work),
                     OAR_OK);
    assert_int_equal(oar_send(g, oar_span_of(y, 17, OAR_U8), 0, 5, NULL, NULL),
                     OAR_OK);
    assert_int_equal(oar_work_wait(work), OAR_OK);
    assert_int_equal(read_own(g, 0).kind, OAR_COLL_SEND);
    assert_int_equal(read_own(g, 0).root, 0);
    assert_int_equal(read_own(g, 1).kind, OAR_COLL_RECV);
    assert_int_equal(read_own(g, 1).count, 17);
    oar_work_release(work);
    oar_group_destroy(g);
}

/* Those that do not wait, and follow each other, as one. */
static void probes_are_recorded(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record first, r;
    int found = 1;

    assert_int_equal(oar_probe_wait(g, 0, 5, 1, NULL), OAR_E_TIMEOUT);
    r = read_own(g, 0);
    assert_int_equal(r.kind, OAR_COLL_PROBE);
    assert_int_equal(r.root, 0);
    assert_int_equal(r.tag, 5);
    assert_int_equal(r.state, OAR_RECORD_DONE);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(oar_probe(g, 0, 5, &found, NULL), OAR_OK);
        assert_int_equal(found, 0);
        if (i == 0)
            first = read_own(g, 0);
    }
    r = read_own(g, 0);
    assert_int_equal(r.sequence, first.sequence);
    assert_int_equal(r.posted_ns, first.posted_ns);
    assert_true(r.done_ns >= first.done_ns);
    assert_int_equal(r.sequence, read_own(g, 1).sequence + 1);
    assert_int_equal(oar_probe(g, 0, 6, &found, NULL), OAR_OK);
    assert_int_equal(read_own(g, 0).sequence, first.sequence + 1);
    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    assert_int_equal(oar_probe(g, 0, 6, &found, NULL), OAR_OK);
    assert_int_equal(read_own(g, 0).sequence, first.sequence + 3);
    assert_int_equal(read_own(g, 1).number, 1);
    oar_group_destroy(g);
}

static void an_operation_is_posted_then_done_or_failed(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record r;
    oar_work *work;
    char x;

    assert_int_equal(oar_recv(g, oar_span_of(&x, 1, OAR_U8), 0, 5, NULL, &work),
                     OAR_OK);
    r = read_own(g, 0);
    assert_int_equal(r.state, OAR_RECORD_POSTED);
    assert_int_equal(r.done_ns, 0);
    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    assert_int_equal(read_own(g, 0).state, OAR_RECORD_DONE);
    assert_int_equal(read_own(g, 1).state, OAR_RECORD_POSTED);
    assert_int_equal(oar_group_abort(g, "enough"), OAR_OK);
    assert_int_equal(oar_work_wait(work), OAR_E_ABORTED);
    assert_int_equal(read_own(g, 1).state, OAR_RECORD_FAILED);
    assert_true(read_own(g, 1).done_ns != 0);
    oar_work_release(work);
    oar_group_destroy(g);
}

static void the_oldest_make_room_for_the_newest(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record r = oar_record_init();

    for (int i = 1; i <= OAR_RECORDS + 100; i++) {
        assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
        assert_int_equal(read_own(g, 0).sequence, i);
        assert_int_equal(oar_recorder_read(g, 0, i, &r), OAR_E_NOT_FOUND);
    }
    for (int i = 0; i < OAR_RECORDS; i++)
        assert_int_equal(read_own(g, i).sequence, OAR_RECORDS + 100 - i);
    assert_fails_with(oar_recorder_read(g, 0, OAR_RECORDS, &r), OAR_E_NOT_FOUND,
                      "record 512");
    oar_group_destroy(g);
}

static void what_cannot_be_read_is_refused(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record r = oar_record_init(), sizeless = { 0 };

    r.count = 77;
    assert_fails_with(oar_recorder_read(g, 0, 0, &r), OAR_E_NOT_FOUND,
                      "record 0");
    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    assert_fails_with(oar_recorder_read(NULL, 0, 0, &r), OAR_E_ARG, "group");
    assert_fails_with(oar_recorder_read(g, 1, 0, &r), OAR_E_RANK, "rank 1");
    assert_fails_with(oar_recorder_read(g, -1, 0, &r), OAR_E_RANK, "rank -1");
    assert_fails_with(oar_recorder_read(g, 0, -1, &r), OAR_E_NOT_FOUND, "-1");
    assert_fails_with(oar_recorder_read(g, 0, 1, &r), OAR_E_NOT_FOUND,
                      "record 1");
    assert_fails_with(oar_recorder_read(g, 0, 0, NULL), OAR_E_ARG, "NULL");
    assert_fails_with(oar_recorder_read(g, 0, 0, &sizeless), OAR_E_ARG, "size");
    assert_int_equal(r.count, 77);
    oar_group_destroy(g);
}

/* As a program compiled against an older header would ask. */
static void a_shorter_record_gets_what_fits(void **state)
{
    oar_group *g = make_group(NULL);
    struct {
        size_t size;
        uint64_t sequence;
        uint64_t behind;
    } small = { offsetof(oar_record, posted_ns), 0, 77 };
    oar_record whole;

    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    memset(&whole, 0, sizeof whole);
    memcpy(&whole, &small, sizeof small);
    assert_int_equal(oar_recorder_read(g, 0, 0, &whole), OAR_OK);
    assert_int_equal(whole.size, offsetof(oar_record, posted_ns));
    assert_int_equal(whole.sequence, 1);
    assert_int_equal(whole.posted_ns, 77);
    oar_group_destroy(g);
}

/* ---- sites and labels ---------------------------------------------------- */

static void one_line_with_two_labels_is_two_sites(void **state)
{
    static const char *const label[] = { "first", "second", NULL };
    oar_group *g = make_group(NULL);
    oar_call_opts o = oar_call_opts_init();

    for (int i = 0; i < 9; i++) {
        o.label = label[i % 3];
        assert_int_equal(oar_barrier(g, &o, NULL), OAR_OK);
    }
    for (int i = 0; i < 9; i++)
        assert_string_equal(read_own(g, 8 - i).label,
                            i % 3 == 2 ? "" : label[i % 3]);
    assert_string_equal(read_own(g, 0).site, read_own(g, 1).site);
    oar_group_destroy(g);
}

/* A binding's strings are gone when the call returns; the next ones may lie at
 * the same address. */
static void file_names_and_labels_may_be_temporary(void **state)
{
    char file[32], label[32], wanted[32];
    oar_group *g = make_group(NULL);
    oar_call_opts o = oar_call_opts_init();
    oar_work *work[3];

    o.label = label;
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof file, "script%d.py", i);
        snprintf(label, sizeof label, "step %d", i);
        assert_int_equal(oar_barrier_at(file, 7, g, &o, &work[i]), OAR_OK);
    }
    memset(file, 'x', sizeof file);
    memset(label, 'x', sizeof label);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(oar_work_wait(work[i]), OAR_OK);
        oar_work_release(work[i]);
        snprintf(wanted, sizeof wanted, "script%d.py:7", i);
        assert_string_equal(read_own(g, 2 - i).site, wanted);
        snprintf(wanted, sizeof wanted, "step %d", i);
        assert_string_equal(read_own(g, 2 - i).label, wanted);
    }
    oar_group_destroy(g);
}

/* Labels that are made on the way leave room for the lines of the program. */
static void many_labels_leave_the_lines_known(void **state)
{
    char label[32];
    oar_group *g = make_group(NULL);
    oar_call_opts o = oar_call_opts_init();

    o.label = label;
    for (int i = 0; i < 2000; i++) {
        snprintf(label, sizeof label, "step %d", i);
        assert_int_equal(oar_barrier_at("a.py", 7, g, &o, NULL), OAR_OK);
    }
    assert_string_equal(read_own(g, 0).site, "a.py:7");
    assert_int_equal(oar_barrier_at("b.py", 8, g, NULL, NULL), OAR_OK);
    assert_string_equal(read_own(g, 0).site, "b.py:8");
    oar_group_destroy(g);
}

static void long_names_are_cut_and_folders_left_out(void **state)
{
    char file[300], label[200];
    oar_group *g = make_group(NULL);
    oar_call_opts o = oar_call_opts_init();
    oar_record r;

    memset(file, 'f', sizeof file);
    memcpy(file, "/a/folder/", 10);
    file[sizeof file - 1] = 0;
    memset(label, 'l', sizeof label);
    label[sizeof label - 1] = 0;
    o.label = label;
    assert_int_equal(oar_barrier_at(file, 12, g, &o, NULL), OAR_OK);
    r = read_own(g, 0);
    assert_int_equal(strspn(r.site, "f"), strlen(r.site));
    assert_true(strlen(r.site) > 60);
    assert_int_equal(strspn(r.label, "l"), strlen(r.label));
    assert_true(strlen(r.label) > 30);
    assert_int_equal(oar_barrier_at(NULL, 3, g, NULL, NULL), OAR_OK);
    assert_string_equal(read_own(g, 0).site, "?:3");
    oar_group_destroy(g);
}

static void more_sites_than_there_is_room_for_are_unknown(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record r;
    char site[32];

    for (int i = 1; i <= 300; i++) {
        assert_int_equal(oar_barrier_at("many.c", i, g, NULL, NULL), OAR_OK);
        snprintf(site, sizeof site, "many.c:%d", i);
        r = read_own(g, 0);
        assert_string_equal(r.site, i < 256 ? site : "?");
    }
    assert_int_equal(oar_barrier_at("many.c", 7, g, NULL, NULL), OAR_OK);
    r = read_own(g, 0);
    assert_string_equal(r.site, "many.c:7");
    oar_group_destroy(g);
}

/* ---- peers --------------------------------------------------------------- */

static const char *const own_label[] = { "zero", "one", "two" };

/* A peer may be ahead by now: its first operation is looked for. */
static oar_status read_peers(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    float x = 1;
    oar_record r = oar_record_init();

    CHECK_OK(oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM,
                            OAR_OPTS(oar_call_opts, .label = own_label[rank]),
                            NULL));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    for (int p = 0; p < oar_group_size(g); p++) {
        int index = 0;
        do
            CHECK_OK(oar_recorder_read(g, p, index++, &r));
        while (r.sequence > 1);
        CHECK(r.kind == OAR_COLL_ALL_REDUCE && r.count == 1);
        CHECK(r.state == OAR_RECORD_DONE);
        CHECK(strcmp(r.label, own_label[p]) == 0);
        CHECK(strncmp(r.site, "recorder_test.c:", 16) == 0);
    }
    CHECK(fails_with(oar_recorder_read(g, 3, 0, &r), OAR_E_RANK, "rank 3"));
    return oar_barrier(g, NULL, NULL);
}

static void a_peers_records_are_read_from_here(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, read_peers, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 3, NULL, read_peers, NULL), OAR_OK);
}

static oar_status read_hidden(oar_group *g, void *arg)
{
    oar_record r = oar_record_init();
    int other = 1 - oar_group_rank(g);

    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_recorder_read(g, oar_group_rank(g), 0, &r));
    CHECK(fails_with(oar_recorder_read(g, other, 0, &r), OAR_E_UNAVAILABLE,
                     "cannot be seen"));
    return OAR_OK;
}

static void over_a_plugin_only_ones_own_are_seen(void **state)
{
    const char *plugin = getenv("OARSONG_TEST_PLUGIN");

    if (plugin == NULL)
        skip();
    assert_int_equal(ranks_run(plugin, 2, NULL, read_hidden, NULL), OAR_OK);
}

/* ---- files --------------------------------------------------------------- */

static char folder[FOLDER_PATH], path[FOLDER_PATH + 32];

static int make_folder(void **state)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/rank-0.oarrec", folder);
    setenv("OARSONG_RECORDER_DIR", folder, 1);
    return 0;
}

static int drop_folder(void **state)
{
    unsetenv("OARSONG_RECORDER_DIR");
    folder_remove(folder);
    return 0;
}

static void a_file_outlives_its_group(void **state)
{
    oar_group *g = make_group(NULL);
    oar_record r = oar_record_init();
    struct stat info;

    assert_int_equal(oar_barrier_at("src/x.c", 9, g, NULL, NULL), OAR_OK);
    assert_int_equal(oar_recorder_read_file(path, 0, &r), OAR_OK);
    assert_string_equal(r.site, "x.c:9");
    oar_group_destroy(g);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    memset(&r, 0, sizeof r);
    r.size = sizeof r;
    assert_int_equal(oar_recorder_read_file(path, 0, &r), OAR_OK);
    assert_int_equal(r.kind, OAR_COLL_BARRIER);
    assert_int_equal(r.state, OAR_RECORD_DONE);
    assert_fails_with(oar_recorder_read_file(path, 1, &r), OAR_E_NOT_FOUND,
                      "record 1");
}

static void a_file_survives_the_kill_of_its_writer(void **state)
{
    oar_record r = oar_record_init();
    pid_t pid = fork();
    int how;

    if (pid == 0) {
        oar_group *g = make_group(NULL);
        oar_work *work;
        char x;
        for (int i = 0; i < 600; i++)
            oar_barrier(g, NULL, NULL);
        oar_recv(g, oar_span_of(&x, 1, OAR_U8), 0, 5,
                 OAR_OPTS(oar_call_opts, .label = "never came"), &work);
        raise(SIGKILL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(oar_recorder_read_file(path, 0, &r), OAR_OK);
    assert_int_equal(r.sequence, 601);
    assert_int_equal(r.state, OAR_RECORD_POSTED);
    assert_int_equal(r.done_ns, 0);
    assert_string_equal(r.label, "never came");
    assert_int_equal(oar_recorder_read_file(path, 1, &r), OAR_OK);
    assert_int_equal(r.state, OAR_RECORD_DONE);
    assert_int_equal(oar_recorder_read_file(path, OAR_RECORDS - 1, &r), OAR_OK);
    assert_int_equal(r.sequence, 601 - OAR_RECORDS + 1);
}

static oar_status meet_once(oar_group *g, void *arg)
{
    return oar_barrier(g, NULL, NULL);
}

static void every_rank_has_a_file_of_its_own(void **state)
{
    oar_record r = oar_record_init();

    assert_int_equal(ranks_run("shm", 3, NULL, meet_once, NULL), OAR_OK);
    assert_int_equal(folder_entries(folder), 3);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/rank-%d.oarrec", folder, i);
        assert_int_equal(oar_recorder_read_file(path, 0, &r), OAR_OK);
        assert_int_equal(r.kind, OAR_COLL_BARRIER);
    }
}

static void a_group_may_have_a_slash_in_its_name(void **state)
{
    oar_group *g = make_group("data/parallel");

    assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    assert_int_equal(folder_entries(folder), 1);
    oar_group_destroy(g);
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    leak_check before = leak_check_begin();
    oar_group *g = NULL;

    setenv("OARSONG_RECORDER_DIR", "/proc/no/where", 1);
    assert_fails_with(oar_group_create(NULL, 0, 1, NULL, &g), OAR_E_SYSTEM,
                      "/proc/no/where");
    assert_null(g);
    leak_check_end(&before);
}

/* ---- files that are not what they say ------------------------------------ */

/* A good file's bytes: its head and first ring. */
static unsigned char *good_bytes(size_t *bytes)
{
    oar_group *g = make_group(NULL);
    unsigned char *data;
    FILE *file;

    for (int i = 0; i < 5; i++)
        assert_int_equal(oar_barrier(g, NULL, NULL), OAR_OK);
    oar_group_destroy(g);
    *bytes = 2 * OARI_FILE_UNIT;
    data = malloc(*bytes);
    file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    assert_int_equal(ftell(file), OARI_FILE_BYTES);
    fclose(file);
    return data;
}

static oar_status read_bytes(const void *data, size_t bytes, oar_record *r)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
    return oar_recorder_read_file(path, 0, r);
}

static void a_file_of_another_kind_is_refused(void **state)
{
    oar_record r = oar_record_init();
    size_t bytes;
    unsigned char *data = good_bytes(&bytes);

    assert_int_equal(read_bytes(data, bytes, &r), OAR_OK);
    assert_fails_with(read_bytes(data, bytes - 1, &r), OAR_E_NOT_FOUND,
                      "record 0");
    assert_fails_with(read_bytes(data, OARI_FILE_UNIT - 1, &r), OAR_E_DATA,
                      "not a recorder");
    assert_fails_with(read_bytes(data, 0, &r), OAR_E_DATA, "not a recorder");
    data[0] ^= 1;
    assert_fails_with(read_bytes(data, bytes, &r), OAR_E_DATA, "recorder");
    data[0] ^= 1;
    data[8] ^= 1; /* the version */
    assert_fails_with(read_bytes(data, bytes, &r), OAR_E_DATA, "version");
    assert_fails_with(oar_recorder_read_file("/no/such/file", 0, &r),
                      OAR_E_SYSTEM, "/no/such/file");
    assert_fails_with(oar_recorder_read_file(NULL, 0, &r), OAR_E_ARG, "path");
    assert_int_not_equal(oar_recorder_read_file("/dev/null", 0, &r), OAR_OK);
    assert_int_not_equal(oar_recorder_read_file(folder, 0, &r), OAR_OK);
    free(data);
}

static int ends(const char *text, size_t room)
{
    return memchr(text, 0, room) != NULL;
}

static void no_bytes_of_a_file_are_trusted(void **state)
{
    size_t bytes, head = 512, ring = OARI_FILE_UNIT;
    unsigned char *data = good_bytes(&bytes), *bad = malloc(bytes);
    uint64_t random = 1;

    for (int round = 0; round < 200; round++) {
        oar_record r = oar_record_init();
        oar_status status;
        memcpy(bad, data, bytes);
        /* any bytes of the heads behind magic and version, and of the rest */
        for (size_t i = 16; i < bytes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            if (i < head || (i > ring + 16 && i < ring + head)
                    ? random >> 60 == 0
                    : i > ring + head && round % 3 == 0)
                bad[i] = (unsigned char)(random >> 33);
        }
        status = read_bytes(bad, bytes, &r);
        assert_true(status == OAR_OK || status == OAR_E_NOT_FOUND);
        assert_true(ends(r.site, sizeof r.site));
        assert_true(ends(r.label, sizeof r.label));
        oar_coll_name(r.kind);
        oar_dtype_name(r.dtype);
    }
    free(data);
    free(bad);
}

/* ---- written and read at once -------------------------------------------- */

enum { READS = 200000, PATIENCE_MS = 20000, LINES = 100 };

typedef struct recording_thread {
    oari_recorder *recorder;
    _Atomic int enough;
    uint64_t last;
} recording_thread;

static oari_operation call_of(uint64_t sequence)
{
    static const char *const label[] = { "even", "odd" };

    return (oari_operation){ .kind = (oar_coll)(sequence % 9),
                             .op = (oar_reduce_op_kind)(sequence % 7),
                             .dtype = (oar_dtype)(sequence % 11),
                             .count = sequence * 3,
                             .root = (int)(sequence % 1000),
                             .label = label[sequence & 1],
                             .file = "writer.c",
                             .line = (int)(sequence % LINES) };
}

static void *write_records(void *arg)
{
    recording_thread *w = arg;

    do {
        oari_operation call = call_of(++w->last);
        oari_recorder_post(w->recorder, w->last, &call, OARI_POSTED);
        if (w->last % 3 != 0)
            oari_recorder_done(w->recorder, w->last, OAR_RECORD_DONE);
    } while (w->last < OAR_RECORDS || !atomic_load(&w->enough));
    return NULL;
}

static char site_of_line[LINES][24];

/* Every field must be the one of that sequence number. */
static int is_whole(const oar_record *r)
{
    oari_operation call = call_of(r->sequence);
    int done = r->state == OAR_RECORD_DONE;

    return r->count == call.count && r->kind == call.kind && r->op == call.op &&
           r->dtype == call.dtype && r->root == call.root &&
           strcmp(r->label, call.label) == 0 &&
           strcmp(r->site, site_of_line[call.line]) == 0 && r->posted_ns != 0 &&
           (done || r->state == OAR_RECORD_POSTED) &&
           (done ? r->sequence % 3 != 0 && r->done_ns >= r->posted_ns
                 : r->done_ns == 0);
}

static void a_reader_never_sees_half_a_record(void **state)
{
    recording_thread w = { NULL, 0, 0 };
    int64_t deadline = oari_deadline(PATIENCE_MS);
    oar_record r = oar_record_init();
    const void *base;
    pthread_t thread;
    int found = 0;

    for (int i = 0; i < LINES; i++)
        snprintf(site_of_line[i], sizeof site_of_line[i], "writer.c:%d", i);
    assert_int_equal(
        oari_recorder_make(
            &(oari_ring_owner){ .group = "torn", .rank = 0, .ranks = 1 },
            &w.recorder),
        OAR_OK);
    base = oari_recorder_base(w.recorder);
    assert_int_equal(pthread_create(&thread, NULL, write_records, &w), 0);
    for (int i = 0; found < READS && oari_now_ns() < deadline; i++)
        if (oari_recorder_newest(base, i % 8 == 0 ? i % OAR_RECORDS : i % 3,
                                 &r) == OAR_OK) {
            assert_true(is_whole(&r));
            found++;
        }
    atomic_store(&w.enough, 1);
    pthread_join(thread, NULL);
    assert_true(found > READS / 100); /* on a busy machine not all of them */
    for (int i = 0; i < OAR_RECORDS; i++) {
        assert_int_equal(oari_recorder_newest(base, i, &r), OAR_OK);
        assert_int_equal(r.sequence, w.last - (uint64_t)i);
        assert_true(is_whole(&r));
    }
    oari_recorder_destroy(w.recorder);
}

/* Two threads post 1 and 2; the one with 1 is slower. */
static void the_newest_is_the_one_with_the_highest_number(void **state)
{
    oari_recorder *recorder;
    oar_record r = oar_record_init();
    static const uint64_t order[] = { 2, 1, 3, 6, 5, 4 };

    assert_int_equal(
        oari_recorder_make(
            &(oari_ring_owner){ .group = "order", .rank = 0, .ranks = 1 },
            &recorder),
        OAR_OK);
    for (int i = 0; i < 6; i++) {
        oari_operation call = call_of(order[i]);
        oari_recorder_post(recorder, order[i], &call, OARI_POSTED);
    }
    for (int i = 0; i < 6; i++) {
        assert_int_equal(
            oari_recorder_newest(oari_recorder_base(recorder), i, &r), OAR_OK);
        assert_int_equal(r.sequence, 6 - i);
    }
    oari_recorder_destroy(recorder);
}

static void *post_barriers(void *group)
{
    for (int i = 0; i < 100; i++)
        if (oar_barrier(group, NULL, NULL) != OAR_OK)
            return group;
    return NULL;
}

static void threads_that_post_at_once_are_all_recorded(void **state)
{
    enum { THREADS = 3 };
    oar_group *g = make_group(NULL);
    pthread_t thread[THREADS];
    void *failed;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, post_barriers, g), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    for (int i = 0; i < THREADS * 100; i++) {
        assert_int_equal(read_own(g, i).sequence, THREADS * 100 - i);
        assert_int_equal(read_own(g, i).state, OAR_RECORD_DONE);
    }
    oar_group_destroy(g);
}

#define WITH_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, make_folder, drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_called_is_recorded_newest_first),
        cmocka_unit_test(messages_are_recorded_with_their_peer),
        cmocka_unit_test(probes_are_recorded),
        cmocka_unit_test(an_operation_is_posted_then_done_or_failed),
        cmocka_unit_test(the_oldest_make_room_for_the_newest),
        cmocka_unit_test(what_cannot_be_read_is_refused),
        cmocka_unit_test(a_shorter_record_gets_what_fits),
        cmocka_unit_test(one_line_with_two_labels_is_two_sites),
        cmocka_unit_test(file_names_and_labels_may_be_temporary),
        cmocka_unit_test(many_labels_leave_the_lines_known),
        cmocka_unit_test(long_names_are_cut_and_folders_left_out),
        cmocka_unit_test(more_sites_than_there_is_room_for_are_unknown),
        cmocka_unit_test(a_peers_records_are_read_from_here),
        cmocka_unit_test(over_a_plugin_only_ones_own_are_seen),
        WITH_FOLDER(a_file_outlives_its_group),
        WITH_FOLDER(a_file_survives_the_kill_of_its_writer),
        WITH_FOLDER(every_rank_has_a_file_of_its_own),
        WITH_FOLDER(a_group_may_have_a_slash_in_its_name),
        WITH_FOLDER(a_folder_that_is_not_there_is_named),
        WITH_FOLDER(a_file_of_another_kind_is_refused),
        WITH_FOLDER(no_bytes_of_a_file_are_trusted),
        cmocka_unit_test(a_reader_never_sees_half_a_record),
        cmocka_unit_test(the_newest_is_the_one_with_the_highest_number),
        cmocka_unit_test(threads_that_post_at_once_are_all_recorded),
    };

    unsetenv("OARSONG_RECORDER_DIR");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
