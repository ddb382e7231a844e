/* SPDX-License-Identifier: Apache-2.0 */
/* Autopsies of made-up recorder files: many ranks, several hosts, and damaged
 * bytes. */
#include "support/ranks.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <oarsong/autopsy.h>

#include "base/status.h"
#include "autopsy/autopsy.h"
#include "record/recorder_file_read.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { BYTES = 3 * OARI_FILE_UNIT, SECOND = 1000000000 };

/* ---- made-up recorder files ---------------------------------------------- */

static oari_recorder_file *made; /* its head and first two rings */

static void make_head(int rank, int ranks, const char *host, char state)
{
    oari_recorder_head *h = &made->head;

    memset(made, 0, BYTES);
    memcpy(h->magic, oari_recorder_file_magic, sizeof h->magic);
    h->version = OARI_FILE_VERSION;
    h->rings = OARI_FILE_RINGS;
    h->rank = rank;
    h->world = ranks;
    atomic_store(&h->owner, 1000 + rank);
    atomic_store(&h->used, 1);
    snprintf(h->host, sizeof h->host, "%s", host);
    snprintf(h->boot, sizeof h->boot, "boot of %s", host);
    h->seen_ns = 100 * (int64_t)SECOND;
    h->seen_state = state;
}

static void make_ring(int rank, int ranks)
{
    oari_ring *r = &made->ring[0];

    memcpy(r->magic, oari_ring_magic, sizeof r->magic);
    r->version = OARI_FILE_VERSION;
    r->rank = rank;
    r->ranks = ranks;
    r->pid = 1000 + rank;
    r->base_ns = SECOND;
    r->base_ticks = SECOND;
    r->ticks_per_second = 1e9;
    snprintf(r->group, sizeof r->group, "world");
    snprintf(r->backend, sizeof r->backend, "native");
    snprintf(r->site[1].text, sizeof r->site[1].text, "train.c:88");
    snprintf(r->site[1].label, sizeof r->site[1].label, "loss");
    atomic_store(&r->sites, 2);
    atomic_store(&r->serial, 1);
    atomic_store(&r->state, OARI_RING_OPEN);
}

/* An operation posted at a second of the host's clock. */
static void add_op(uint64_t sequence, oar_coll kind, int root, int second,
                   oar_record_state state)
{
    oari_record_slot *s = &made->ring[0].slot[sequence % OAR_RECORDS];

    atomic_store(&s->sequence, sequence);
    atomic_store(&s->posted, (uint64_t)second * SECOND);
    atomic_store(&s->done, (uint64_t)second * SECOND + SECOND / 2);
    atomic_store(&s->count, 11);
    atomic_store(&s->what, (uint64_t)kind | (uint64_t)OAR_F32 << 16 |
                               (uint64_t)(root + 1) << 32);
    atomic_store(&s->extra, kind < OAR_COLL_SEND ? 0 : 5);
    atomic_store(&s->site, 1);
    atomic_store(&s->state, state == OAR_RECORD_POSTED ? OARI_AWAITED : state);
}

static int put_recorder_file(void)
{
    int fd = memfd_create("box", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, made, BYTES, 0), BYTES);
    return fd;
}

static int set_up(void **state)
{
    made = aligned_alloc(_Alignof(oari_recorder_file), BYTES);
    return made == NULL;
}

static int tear_down(void **state)
{
    free(made);
    return 0;
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("no \"%s\" in\n%s", part, text);
}

/* ---- what is said -------------------------------------------------------- */

/* Ranks 0 .. n-1 wait in #5 since second 60, `late` has done #4. */
static oar_autopsy *large_job(int n, int late)
{
    int *fd = calloc((size_t)n, sizeof *fd);
    oar_autopsy *a = NULL;

    for (int r = 0; r < n; r++) {
        make_head(r, n, r < n / 2 ? "one" : "two",
                  r == late ? OARI_PROCESS_RUNS : OARI_PROCESS_SLEEPS);
        make_ring(r, n);
        add_op(4, OAR_COLL_BARRIER, -1, 50, OAR_RECORD_DONE);
        if (r != late)
            add_op(5, OAR_COLL_ALL_REDUCE, -1, 60, OAR_RECORD_POSTED);
        fd[r] = put_recorder_file();
    }
    OK(oar_autopsy_from_fds(fd, n, &a));
    for (int r = 0; r < n; r++)
        close(fd[r]);
    free(fd);
    return a;
}

static int widest_table_line(const char *text)
{
    int widest = 0;

    text = strchr(text, '\n'); /* the first line is a sentence */
    while (text != NULL && *text != 0) {
        int n = (int)strcspn(++text, "\n");

        if (n > widest)
            widest = n;
        text = strchr(text, '\n');
    }
    return widest;
}

static int count_lines(const char *text)
{
    int lines = 0;

    for (; *text != 0; text++)
        lines += *text == '\n';
    return lines;
}

static void ranks_that_are_alike_share_a_line(void **state)
{
    for (int n = 9; n <= 209; n += 50) {
        oar_autopsy *a = large_job(n, n / 2 + 1);
        char *text = NULL, part[64];

        OK(oar_autopsy_text(a, &text));
        snprintf(part, sizeof part, "rank %d (host two, pid %d) has not called",
                 n / 2 + 1, 1000 + n / 2 + 1);
        assert_int_equal(strncmp(text, part, strlen(part)), 0);
        assert_has(text, "#5 at train.c:88 \"loss\"");
        assert_has(text, " waited 40.0 s for ");
        assert_true(widest_table_line(text) <= 120);
        assert_true(count_lines(text) < 12);
        oar_free(text);
        oar_autopsy_destroy(a);
    }
}

static void every_rank_of_a_small_job_has_its_own(void **state)
{
    oar_autopsy *a = large_job(8, 3);
    char *text = NULL;

    OK(oar_autopsy_text(a, &text));
    for (int r = 0; r < 8; r++) {
        char pid[32];

        snprintf(pid, sizeof pid, "%s:%d\n", r < 4 ? "one" : "two", 1000 + r);
        assert_has(text, pid);
    }
    oar_free(text);
    oar_autopsy_destroy(a);
}

/* Messages are counted by each rank for itself; collectives are not. */
static void messages_do_not_disturb_the_count_of_collectives(void **state)
{
    oar_autopsy *a = NULL;
    oar_stall stall = oar_stall_init();
    int fd[3];

    for (int r = 0; r < 3; r++) {
        make_head(r, 3, "one", OARI_PROCESS_SLEEPS);
        make_ring(r, 3);
        for (int i = 1; i <= r; i++)
            add_op((uint64_t)i, OAR_COLL_SEND, 0, 10, OAR_RECORD_DONE);
        add_op((uint64_t)r + 1, OAR_COLL_ALL_REDUCE, -1, 20, OAR_RECORD_POSTED);
        atomic_store(&made->ring[0].slot[r + 1].extra, (uint64_t)r);
        fd[r] = put_recorder_file();
    }
    OK(oar_autopsy_from_fds(fd, 3, &a));
    assert_int_equal(oar_autopsy_stall(a, 0, &stall), 0); /* all have come */
    oar_autopsy_destroy(a);
    for (int r = 0; r < 3; r++)
        close(fd[r]);
}

/* A thread's message was counted after another thread's collective. */
static void a_message_that_was_counted_late_is_put_right(void **state)
{
    oar_autopsy *a = NULL;
    oar_stall stall = oar_stall_init();
    int fd[2];

    for (int r = 0; r < 2; r++) {
        make_head(r, 2, "one", OARI_PROCESS_SLEEPS);
        make_ring(r, 2);
        add_op(1, OAR_COLL_BARRIER, -1, 10, OAR_RECORD_DONE);
        if (r == 0)
            add_op(2, OAR_COLL_SEND, 1, 11, OAR_RECORD_DONE);
        add_op(3 - (uint64_t)r, OAR_COLL_BARRIER, -1, 20, OAR_RECORD_POSTED);
        fd[r] = put_recorder_file(); /* rank 0 says that it is at number 3 */
    }
    OK(oar_autopsy_from_fds(fd, 2, &a));
    assert_int_equal(oar_autopsy_stall(a, 0, &stall), 0);
    oar_autopsy_destroy(a);
    close(fd[0]);
    close(fd[1]);
}

/* As a server does all day. */
static void a_rank_that_receives_from_any_source_is_not_stuck(void **state)
{
    oar_autopsy *a = NULL;
    char *text = NULL;
    int fd;

    make_head(0, 1, "one", OARI_PROCESS_SLEEPS);
    make_ring(0, 2);
    made->head.world = 2;
    add_op(1, OAR_COLL_RECV, -1, 2, OAR_RECORD_POSTED);
    fd = put_recorder_file();
    OK(oar_autopsy_from_fds(&fd, 1, &a));
    assert_int_equal(oar_autopsy_stall(a, 0, NULL), 0);
    assert_int_equal(oar_autopsy_wrong(a), 0);
    OK(oar_autopsy_text(a, &text));
    assert_has(text, "recv #1 from any rank, tag 5, at train.c:88");
    oar_free(text);
    oar_autopsy_destroy(a);
    close(fd);
}

static void the_oldest_record_left_shows_what_was_dropped(void **state)
{
    oar_autopsy *a = NULL;
    json_t *json, *member;
    char *text = NULL;
    int fd;

    make_head(0, 1, "one", OARI_PROCESS_RUNS);
    make_ring(0, 1);
    for (int i = 0; i < OAR_RECORDS; i++)
        add_op(1000 + (uint64_t)i, OAR_COLL_BARRIER, -1, 20, OAR_RECORD_DONE);
    fd = put_recorder_file();
    OK(oar_autopsy_from_fds(&fd, 1, &a));
    OK(oar_autopsy_json_last(a, 7, &text));
    json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    member = json_array_get(
        json_object_get(json_array_get(json_object_get(json, "groups"), 0),
                        "members"),
        0);
    assert_int_equal(
        json_integer_value(json_object_get(member, "last_dropped_sequence")),
        999);
    assert_int_equal(json_array_size(json_object_get(member, "records")), 7);
    json_decref(json);
    oar_free(text);
    oar_autopsy_destroy(a);
    close(fd);
}

static void recorder_files_of_an_earlier_epoch_are_not_mixed_in(void **state)
{
    oar_autopsy *a = NULL;
    char *text = NULL;
    int fd[2];

    for (int r = 0; r < 2; r++) {
        make_head(r, 2, "one", OARI_PROCESS_SLEEPS);
        make_ring(r, 2);
        made->head.epoch = made->ring[0].epoch = r == 0 ? 3 : 2;
        add_op(1, OAR_COLL_BARRIER, -1, 10, OAR_RECORD_POSTED);
        fd[r] = put_recorder_file();
    }
    OK(oar_autopsy_from_fds(fd, 2, &a));
    OK(oar_autopsy_text(a, &text));
    assert_has(text,
               "rank 1 is unknown: its recorder file is of epoch 2, not 3");
    assert_has(text, ", epoch 3: barrier #1");
    oar_free(text);
    oar_autopsy_destroy(a);
    close(fd[0]);
    close(fd[1]);
}

/* Rank 0 is in group a waiting for 1, which is in group b waiting for 0. */
static void a_circle_through_two_groups_is_found(void **state)
{
    oar_autopsy *a = NULL;
    char *text = NULL;
    int fd[2];

    for (int r = 0; r < 2; r++) {
        oari_ring *ring = &made->ring[0];

        make_head(r, 2, "one", OARI_PROCESS_SLEEPS);
        make_ring(r, 2);
        snprintf(ring->group, sizeof ring->group, r == 0 ? "a" : "b");
        add_op(1, OAR_COLL_BARRIER, -1, 10, OAR_RECORD_POSTED);
        fd[r] = put_recorder_file();
    }
    OK(oar_autopsy_from_fds(fd, 2, &a));
    OK(oar_autopsy_text(a, &text));
    assert_int_equal(strncmp(text, "deadlock", 8), 0);
    oar_free(text);
    oar_autopsy_destroy(a);
    close(fd[0]);
    close(fd[1]);
}

/* ---- whose fault it is --------------------------------------------------- */

static void break_ring(oar_status status, int rank, int peer, const char *text)
{
    oari_ring_fault *f = &made->ring[0].fault;

    f->status = (int32_t)status;
    f->rank = rank;
    f->peer = peer;
    snprintf(f->text, sizeof f->text, "%s", text);
    atomic_store(&f->ready, 1);
}

/* How rank 2 kept three others waiting, which have all ended with code 1. */
typedef struct fault_row {
    const char *name;
    oar_status status;
    char life;
    const char *note; /* how it ended; NULL: it has not */
    int left;         /* it has destroyed its group */
    const char *says; /* of it */
} fault_row;

static const fault_row fault_rows[] = {
    { "computes", OAR_E_TIMEOUT, OARI_PROCESS_RUNS, NULL, 0,
      "has not called all_reduce #5 at train.c:88 \"loss\"; it is running" },
    { "sleeps", OAR_E_TIMEOUT, OARI_PROCESS_SLEEPS, NULL, 0,
      "has not called all_reduce #5 at train.c:88 \"loss\"; it is sleeping" },
    { "is stopped", OAR_E_TIMEOUT, OARI_PROCESS_STOPPED, NULL, 0,
      "is stopped before all_reduce #5" },
    { "was ended afterwards", OAR_E_TIMEOUT, OARI_PROCESS_DEAD,
      "killed by SIGTERM", 0, "had not called all_reduce #5" },
    { "exits with 0", OAR_E_PEER, OARI_PROCESS_EXITED, "exit code 0", 0,
      "ended with exit code 0 before all_reduce #5" },
    { "leaves", OAR_E_PEER, OARI_PROCESS_SLEEPS, NULL, 1,
      "left the group before all_reduce #5" },
    { "leaves and exits", OAR_E_PEER, OARI_PROCESS_EXITED, "exit code 0", 1,
      "ended with exit code 0 before all_reduce #5" },
    { "exits with 1, too", OAR_E_PEER, OARI_PROCESS_DEAD, "exit code 1", 0,
      "ended with exit code 1 before all_reduce #5" },
    { "crashes", OAR_E_PEER, OARI_PROCESS_DEAD, "killed by SIGSEGV", 0,
      "was killed by SIGSEGV before all_reduce #5" },
};

static oar_autopsy *open_autopsy(const int fd[4], const char *note)
{
    oar_autopsy *a = NULL;

    OK(oar_autopsy_from_fds(fd, 4, &a));
    for (int r = 0; r < 4; r++) {
        if (fd[r] >= 0 && (r != 2 || note != NULL))
            OK(oar_autopsy_note(a, r, r == 2 ? note : "exit code 1"));
        if (fd[r] >= 0)
            close(fd[r]);
    }
    return a;
}

static void assert_first_line(oar_autopsy *a, const char *name, int culprit,
                              const char *begins)
{
    char *text = NULL;

    OK(oar_autopsy_text(a, &text));
    if (strncmp(text, begins, strlen(begins)) != 0)
        fail_msg("%s: not \"%s\":\n%s", name, begins, text);
    if (oari_autopsy_culprit(a) != culprit)
        fail_msg("%s: rank %d is to blame, not %d", name,
                 oari_autopsy_culprit(a), culprit);
    oar_free(text);
    oar_autopsy_destroy(a);
}

static void make_fault_row(const fault_row *row, int rank)
{
    make_head(rank, 4, "one", rank == 2 ? row->life : OARI_PROCESS_DEAD);
    make_ring(rank, 4);
    add_op(4, OAR_COLL_BARRIER, -1, 50, OAR_RECORD_DONE);
    if (rank == 2) {
        if (row->left)
            atomic_store(&made->ring[0].state, OARI_RING_ENDED);
        return;
    }
    add_op(5, OAR_COLL_ALL_REDUCE, -1, 60, OAR_RECORD_FAILED);
    break_ring(row->status, 1, 2, "rank 2 is what the fault says");
}

/* And on another node, where rank 2 has no recorder file, what the fault
 * says. */
static void the_first_line_names_the_rank_that_the_fault_names(void **state)
{
    for (size_t i = 0; i < sizeof fault_rows / sizeof *fault_rows; i++) {
        const fault_row *row = &fault_rows[i];
        char begins[256];
        int fd[4];

        for (int far = 0; far < 2; far++) {
            for (int r = 0; r < 4; r++) {
                fd[r] = -1;
                if (far && r == 2)
                    continue;
                make_fault_row(row, r);
                fd[r] = put_recorder_file();
            }
            snprintf(
                begins, sizeof begins,
                far ? "group \"world\" broke: rank 2 is what the fault says"
                    : "rank 2 (host one, pid 1002) %s",
                row->says);
            assert_first_line(open_autopsy(fd, row->note), row->name, 2,
                              begins);
        }
    }
}

static void an_abort_is_reported_with_its_reason(void **state)
{
    for (int far = 0; far < 2; far++) {
        int fd[4];

        for (int r = 0; r < 4; r++) {
            make_fault_row(&fault_rows[0], r);
            break_ring(OAR_E_ABORTED, 2, -1, "rank 2 aborted: loss is NaN");
            fd[r] = far && r == 2 ? -1 : put_recorder_file();
        }
        assert_first_line(
            open_autopsy(fd, "exit code 1"), "abort", 2,
            far ? "group \"world\" broke: rank 2 aborted: loss is NaN"
                : "rank 2 (host one, pid 1002) aborted group "
                  "\"world\" after barrier #4 at train.c:88 "
                  "\"loss\": loss is NaN");
    }
}

/* Rank 1 left group "world" because its group "part" with rank 2 had broken. */
static void make_part(int rank)
{
    oari_ring *ring = &made->ring[0];

    ring->rank = rank - 1;
    ring->ranks = 2;
    ring->member[0] = 1;
    ring->member[1] = 2;
    atomic_store(&ring->members, 2);
    snprintf(ring->group, sizeof ring->group, "part");
}

static void a_fault_because_of_another_names_the_cause_of_that(void **state)
{
    int fd[4];

    for (int r = 0; r < 4; r++) {
        make_fault_row(&fault_rows[0], r);
        if (r == 1 || r == 2)
            make_part(r);
        if (r != 2)
            break_ring(OAR_E_PEER, 0, 1, "rank 1 is gone");
        fd[r] = put_recorder_file();
    }
    assert_first_line(open_autopsy(fd, "killed by SIGBUS"), "two groups", 2,
                      "rank 2 (host one, pid 1002) was killed by SIGBUS");
}

/* The second ring: a group that the ranks went on in when rank 2 had died,
 * until rank 0 did. */
static void make_next(int rank)
{
    oari_ring *ring = &made->ring[0];

    make_ring(rank - (rank > 2), 3);
    ring->pid = 1000 + rank;
    ring->member[1] = 1;
    ring->member[2] = 3;
    atomic_store(&ring->members, 3);
    snprintf(ring->group, sizeof ring->group, "next");
    add_op(1, OAR_COLL_BARRIER, -1, 70, OAR_RECORD_DONE);
    if (rank != 0) {
        add_op(2, OAR_COLL_BARRIER, -1, 71, OAR_RECORD_FAILED);
        break_ring(OAR_E_PEER, 1, 0, "rank 0 has died");
    }
    memcpy(&made->ring[1], ring, sizeof *ring);
    memset(ring, 0, sizeof *ring);
}

static void a_fault_that_ranks_went_on_from_is_not_the_cause(void **state)
{
    int fd[4];

    for (int r = 0; r < 4; r++) {
        make_head(r, 4, "one", OARI_PROCESS_DEAD);
        if (r != 2)
            make_next(r);
        make_ring(r, 4);
        add_op(4, OAR_COLL_BARRIER, -1, 50, OAR_RECORD_DONE);
        if (r != 2) {
            add_op(5, OAR_COLL_BARRIER, -1, 60, OAR_RECORD_FAILED);
            break_ring(OAR_E_PEER, 1, 2, "rank 2 has died");
            atomic_store(&made->head.used, 2);
        }
        fd[r] = put_recorder_file();
    }
    assert_first_line(
        open_autopsy(fd, "killed by SIGSEGV"), "shrunk", 0,
        "rank 0 (host one, pid 1000) ended with exit code 1 before "
        "barrier #2");
}

/* ---- what is refused ----------------------------------------------------- */

static void what_cannot_be_is_refused(void **state)
{
    oar_autopsy *a = NULL;
    oar_stall small = { .size = 8 };
    char *text = NULL, empty[FOLDER_PATH];
    int none = -1, fd = 0;

    folder_make(empty);
    assert_fails_with(oar_autopsy_open(empty, &a), OAR_E_NOT_FOUND, ".oarrec");
    folder_remove(empty);
    assert_fails_with(oar_autopsy_open("/no/such/folder", &a), OAR_E_SYSTEM,
                      "/no/such/folder");
    assert_fails_with(oar_autopsy_open(NULL, &a), OAR_E_ARG, "folder");
    assert_fails_with(oar_autopsy_from_fds(&none, 0, &a), OAR_E_ARG,
                      "0 recorder files");
    assert_fails_with(oar_autopsy_from_fds(NULL, 1, &a), OAR_E_ARG,
                      "recorder files");
    assert_fails_with(oari_recorder_file_make(-1, &fd), OAR_E_ARG, "rank -1");
    assert_fails_with(oari_recorder_file_make(0, NULL), OAR_E_ARG, "rank 0");
    OK(oar_autopsy_from_fds(&none, 1, &a));
    assert_fails_with(oar_autopsy_note(a, 1, "x"), OAR_E_RANK, "rank 1");
    assert_fails_with(oar_autopsy_note(a, 0, NULL), OAR_E_ARG, "text");
    assert_fails_with(oar_autopsy_text(a, NULL), OAR_E_ARG, "place");
    assert_fails_with(oar_autopsy_text(NULL, &text), OAR_E_ARG, "autopsy");
    assert_fails_with(oar_autopsy_save(a, NULL), OAR_E_ARG, "folder");
    assert_int_equal(oar_autopsy_stall(a, 0, &small), 0);
    assert_int_equal(oar_autopsy_stall(NULL, 0, NULL), 0);
    oar_autopsy_destroy(a);
    oar_autopsy_destroy(NULL);
}

/* ---- bytes that are not what they say ------------------------------------ */

static void make_good(void)
{
    make_head(0, 2, "one", OARI_PROCESS_SLEEPS);
    make_ring(0, 2);
    for (int i = 1; i < 5; i++)
        add_op((uint64_t)i, OAR_COLL_BARRIER, -1, 10 + i, OAR_RECORD_DONE);
    add_op(5, OAR_COLL_SEND, 1, 20, OAR_RECORD_POSTED);
    atomic_store(&made->ring[0].fault.ready, 1);
    made->ring[0].fault.status = OAR_E_PEER;
    made->ring[0].fault.peer = 1;
    snprintf(made->ring[0].fault.text, 32, "somebody died");
}

/* Whatever is in it: an answer, and one that can be read. */
static void expect_answer(int fd)
{
    oar_autopsy *a = NULL;
    char *text = NULL, *json = NULL;
    json_t *parsed;

    OK(oar_autopsy_from_fds(&fd, 1, &a));
    OK(oar_autopsy_text(a, &text));
    OK(oar_autopsy_json(a, &json));
    parsed = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(parsed);
    json_decref(parsed);
    for (const char *c = text; *c != 0; c++)
        assert_true(*c == '\n' || (unsigned char)*c >= ' ');
    oar_autopsy_stall(a, 0, NULL);
    oar_free(text);
    oar_free(json);
    oar_autopsy_destroy(a);
}

static void flip_bits(int fd, size_t from, size_t bytes)
{
    for (size_t at = from; at < from + bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            unsigned char byte = ((unsigned char *)made)[at];

            byte ^= (unsigned char)(1u << bit);
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            expect_answer(fd);
            byte ^= (unsigned char)(1u << bit);
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        }
}

static void no_bit_of_a_head_brings_it_down(void **state)
{
    size_t ring = offsetof(oari_recorder_file, ring);
    int fd;

    make_good();
    fd = put_recorder_file();
    flip_bits(fd, 0, sizeof(oari_recorder_head));
    flip_bits(fd, ring, offsetof(oari_ring, member) + 8);
    flip_bits(fd, ring + offsetof(oari_ring, fault), 48);
    flip_bits(fd,
              ring + offsetof(oari_ring, slot) + 5 * sizeof(oari_record_slot),
              sizeof(oari_record_slot));
    close(fd);
}

static void it_may_end_anywhere(void **state)
{
    static const int end[] = { BYTES - 1,
                               BYTES - 40000,
                               OARI_FILE_UNIT + 1,
                               OARI_FILE_UNIT,
                               OARI_FILE_UNIT - 1,
                               300,
                               7,
                               0 };
    int fd;

    make_good();
    fd = put_recorder_file();
    for (size_t i = 0; i < sizeof end / sizeof *end; i++) {
        assert_int_equal(ftruncate(fd, end[i]), 0);
        expect_answer(fd);
    }
    close(fd);
}

static void random_bytes_are_survived(void **state)
{
    uint64_t random = 1;

    for (int round = 0; round < 60; round++) {
        unsigned char *bytes = (unsigned char *)made;
        int fd;

        make_good();
        for (size_t i = round % 2 ? 24 : 0; i < BYTES; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            if (i < OARI_FILE_UNIT || i > OARI_FILE_UNIT + 40 || round % 3 == 0)
                bytes[i] = random >> 62 == 0 || round % 5 == 0
                               ? (unsigned char)(random >> 33)
                               : bytes[i];
        }
        fd = put_recorder_file();
        expect_answer(fd);
        close(fd);
    }
}

/* As a fuzzer calls it: at any address. */
static void the_parser_takes_bytes_at_any_address(void **state)
{
    unsigned char *bytes = malloc(BYTES + 1);
    oari_recorder_copy image = { 0 };

    make_good();
    memcpy(bytes + 1, made, BYTES);
    OK(oari_recorder_file_read(bytes + 1, BYTES, &image));
    assert_int_equal(image.rings, 1);
    assert_int_equal(image.damaged, 0);
    assert_non_null(oari_recorder_copy_ring(&image, 0));
    oari_recorder_copy_clear(&image);
    assert_fails_with(oari_recorder_file_read(bytes, BYTES, &image), OAR_E_DATA,
                      "recorder file");
    bytes[1 + 8] ^= 1; /* the version */
    assert_fails_with(oari_recorder_file_read(bytes + 1, BYTES, &image),
                      OAR_E_DATA, "version");
    free(bytes);
}

static void texts_are_printed_as_texts(void **state)
{
    static const struct {
        const char *in, *out;
    } list[] = {
        { "plain", "plain" },
        { "gr\xc3\xb6\xc3\x9f"
          "e",
          "gr\xc3\xb6\xc3\x9f"
          "e" },
        { "cut \xc3", "cut ?" },
        { "esc \x1b[31m", "esc ?[31m" },
        { "\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80" },
        { "\xed\xa0\x80", "???" },      /* a surrogate */
        { "\xc0\xaf", "??" },           /* too long a form */
        { "\xf4\x90\x80\x80", "????" }, /* past the last */
        { "\xc2\x85", "??" },           /* a control character */
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char text[32];

        snprintf(text, sizeof text, "%s", list[i].in);
        oari_text_mend(text, sizeof text);
        assert_string_equal(text, list[i].out);
    }
}

/* ---- memory -------------------------------------------------------------- */

static oar_status whole_autopsy(void *arg)
{
    oar_autopsy *a = NULL;
    char *text = NULL;
    oar_status status;

    OARI_TRY(oar_autopsy_from_fds(arg, 1, &a));
    status = oar_autopsy_text(a, &text);
    oar_free(text);
    oar_autopsy_destroy(a);
    return status;
}

static void it_copes_without_memory(void **state)
{
    int fd;

    make_good();
    fd = put_recorder_file();
    fail_each_allocation(whole_autopsy, &fd);
    close(fd);
}

#define MADE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MADE(ranks_that_are_alike_share_a_line),
        MADE(every_rank_of_a_small_job_has_its_own),
        MADE(messages_do_not_disturb_the_count_of_collectives),
        MADE(a_message_that_was_counted_late_is_put_right),
        MADE(a_rank_that_receives_from_any_source_is_not_stuck),
        MADE(the_oldest_record_left_shows_what_was_dropped),
        MADE(recorder_files_of_an_earlier_epoch_are_not_mixed_in),
        MADE(a_circle_through_two_groups_is_found),
        MADE(the_first_line_names_the_rank_that_the_fault_names),
        MADE(an_abort_is_reported_with_its_reason),
        MADE(a_fault_because_of_another_names_the_cause_of_that),
        MADE(a_fault_that_ranks_went_on_from_is_not_the_cause),
        MADE(what_cannot_be_is_refused),
        MADE(no_bit_of_a_head_brings_it_down),
        MADE(it_may_end_anywhere),
        MADE(random_bytes_are_survived),
        MADE(the_parser_takes_bytes_at_any_address),
        MADE(texts_are_printed_as_texts),
        MADE(it_copes_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
