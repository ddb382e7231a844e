/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies: at every step of every plan, while the ranks find each other,
 * and in other ways than by a signal. The survivors are told, in time, who it
 * was; they end in good order, and nothing is left behind. */
#include "support/crew.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "store/store_local.h"
#include "support/deed.h"

enum {
    NOTICED_MS = 2000,  /* a death, at the latest */
    TIMEOUT_MS = 30000, /* of the groups: not what ends these operations */
    MEETING_MS = 250,   /* of the groups that are never complete */
    KILLED = 128 + SIGKILL
};

static void die(void *arg)
{
    raise(SIGKILL);
}

/* ---- at every step of every plan ----------------------------------------- */

typedef struct plot {
    const deed *deed;
    int victim, step; /* -1: nobody dies, the steps are counted */
    int steps[CREW_MAX];
} plot;

static int check_record(crew *c, int rank, const oar_group *g, int victim)
{
    oar_error record = { .size = sizeof record };
    char name[16];

    snprintf(name, sizeof name, "rank %d ", victim);
    CREW_CHECK(c, rank, oar_group_fault(g, &record) == OAR_E_PEER);
    CREW_CHECK(c, rank, record.peer == victim);
    CREW_CHECK(c, rank, record.rank != victim);
    CREW_CHECK(c, rank, strstr(record.text, name) != NULL);
    CREW_CHECK(c, rank, strcmp(record.text, oar_last_error_text()) == 0);
    return 0;
}

/* If the victim had done its part, an operation is whole, and the next one that
 * waits for all ranks fails. */
static int survive(crew *c, int rank, oar_group *g, deed_hands *h, int victim)
{
    oar_status status = OAR_OK;

    for (int i = 0; status == OAR_OK && i < 2; i++) {
        int64_t start = oari_now_ns();
        deed_fill(h);
        status = deed_run(h, g, 0);
        CREW_CHECK(c, rank, crew_in_time(start, NOTICED_MS));
        CREW_CHECK(c, rank, status != OAR_OK || deed_right(h));
    }
    if (status == OAR_OK)
        status = oar_barrier(g, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_PEER);
    return check_record(c, rank, g, victim);
}

static int run_plot(crew *c, int rank, void *arg)
{
    plot *p = arg;
    oar_group_opts o = deed_opts(p->deed, TIMEOUT_MS);
    deed_hands h;
    oar_group *g;
    int failed = 0;

    CREW_CHECK(c, rank, deed_take(&h, p->deed, rank, c->ranks) == OAR_OK);
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    deed_watch(rank == p->victim ? p->step : -1, die, NULL);
    if (p->victim >= 0 && rank != p->victim)
        failed = survive(c, rank, g, &h, p->victim);
    else {
        CREW_CHECK(c, rank, deed_run(&h, g, 0) == OAR_OK);
        CREW_CHECK(c, rank, deed_right(&h));
        p->steps[rank] = deed_steps();
    }
    oar_group_destroy(g);
    deed_drop(&h);
    return failed;
}

static void count_steps(plot *p, int ranks)
{
    crew c;

    p->victim = p->step = -1;
    crew_start(&c, ranks, run_plot, p, "%s, %d ranks", p->deed->name, ranks);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
}

static void kill_at(plot *p, int ranks, int victim, int step)
{
    crew c;

    p->victim = victim;
    p->step = step;
    crew_start(&c, ranks, run_plot, p, "%s, %d ranks, rank %d dies at step %d",
               p->deed->name, ranks, victim, step);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, r == victim ? KILLED : 0);
    crew_end(&c);
}

static int kill_everywhere(int ranks)
{
    plot *p = crew_page(sizeof *p);
    int scenarios = 0;

    for (const deed *d = deed_list; d->name != NULL; d++) {
        p->deed = d;
        count_steps(p, ranks);
        for (int victim = 0; victim < ranks; victim++)
            for (int step = 0; step < p->steps[victim]; step++, scenarios++)
                kill_at(p, ranks, victim, step);
    }
    crew_drop_page(p, sizeof *p);
    return scenarios;
}

static void a_death_at_any_step_is_told_to_the_other_of_two(void **state)
{
    print_message("%d deaths\n", kill_everywhere(2));
}

static void a_death_at_any_step_is_told_to_the_others_of_three(void **state)
{
    print_message("%d deaths\n", kill_everywhere(3));
}

/* ---- while the ranks find each other ------------------------------------- */

/* Whatever the library does to meet its peers comes through here: changes in
 * the store, and these four calls. Each has a moment before and one after. */
static int moments, die_at = -1;

static void pass_moment(void)
{
    if (moments++ == die_at)
        die(NULL);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int result;

    pass_moment();
    result = (int)syscall(SYS_connect, fd, address, length);
    pass_moment();
    return result;
}

int accept4(int fd, struct sockaddr *restrict address,
            socklen_t *restrict length, int flags)
{
    int result;

    pass_moment();
    result = (int)syscall(SYS_accept4, fd, address, length, flags);
    pass_moment();
    return result;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t result;

    pass_moment();
    result = syscall(SYS_sendmsg, fd, message, flags);
    pass_moment();
    return result;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t result;

    pass_moment();
    result = syscall(SYS_recvmsg, fd, message, flags);
    pass_moment();
    return result;
}

static oari_local_store_ops mortal_ops;
static const oari_local_store_ops *file_ops;

static oar_status mortal_update(void *self, const char *key,
                                oari_change_fn change, void *arg)
{
    oar_status status;

    pass_moment();
    status = file_ops->update(self, key, change, arg);
    pass_moment();
    return status;
}

static oar_status mortal_join(const crew *c, int rank, int64_t timeout_ms,
                              oar_group **group)
{
    oar_group_opts o = oar_group_opts_init();
    char path[160];
    oar_store *store;
    oari_local_store *shelf;
    oar_status status;

    snprintf(path, sizeof path, "%s/store", c->folder);
    if ((status = oar_store_create_file(path, &store)) != OAR_OK)
        return status;
    shelf = store->self;
    file_ops = shelf->ops;
    mortal_ops = *file_ops;
    mortal_ops.update = mortal_update;
    shelf->ops = &mortal_ops;
    o.backend = "shm";
    o.timeout_ms = timeout_ms;
    status = oar_group_create(store, rank, c->ranks, &o, group);
    oar_store_destroy(store);
    return status;
}

typedef struct tryst {
    int victim, moment; /* -1: nobody dies, the moments are counted */
    int moments[CREW_MAX];
    int named[CREW_MAX];
    int met[CREW_MAX]; /* nobody has died */
} tryst;

/* The group may be there before the victim dies: then it dies in the group. */
static oar_status meet_or_not(crew *c, int rank, int64_t timeout_ms,
                              oar_group **g)
{
    oar_status status = mortal_join(c, rank, timeout_ms, g);

    return status == OAR_OK ? oar_barrier(*g, NULL, NULL) : status;
}

static int run_tryst(crew *c, int rank, void *arg)
{
    tryst *t = arg;
    oar_group *g = NULL;
    int64_t start = oari_now_ns();
    oar_status status;
    char name[16];

    die_at = rank == t->victim ? t->moment : -1;
    status = meet_or_not(
        c, rank, t->victim < 0 ? TIMEOUT_MS : crew_busy_ms(MEETING_MS), &g);
    t->moments[rank] = moments;
    if (t->victim < 0)
        CREW_CHECK(c, rank, status == OAR_OK);
    else if (status != OAR_OK) {
        CREW_CHECK(c, rank, status == OAR_E_TIMEOUT || status == OAR_E_PEER);
        CREW_CHECK(c, rank, crew_in_time(start, MEETING_MS + NOTICED_MS));
        snprintf(name, sizeof name, "rank %d ", t->victim);
        t->named[rank] = strstr(oar_last_error_text(), name) != NULL;
    }
    t->met[rank] = status == OAR_OK;
    oar_group_destroy(g);
    return 0;
}

/* How often a rank has to look again is not the same every time: the last
 * moment that was counted may not come. Then all have met. */
static int nobody_died(const tryst *t, int ranks)
{
    int met = 0;

    for (int r = 0; r < ranks; r++)
        met += t->met[r];
    return met == ranks;
}

/* Of three ranks, one may have heard of the victim's death only through the
 * other, which left because of it. Returns whether the victim died. */
static int die_in_tryst(tryst *t, int ranks, int victim, int moment)
{
    int named = 0, ended = 0, died;
    crew c;

    memset(t->named, 0, sizeof t->named);
    memset(t->met, 0, sizeof t->met);
    t->victim = victim;
    t->moment = moment;
    crew_start(&c, ranks, run_tryst, t,
               "meeting of %d, rank %d dies at moment %d", ranks, victim,
               moment);
    for (int r = 0; r < ranks; r++)
        if (r != victim)
            crew_expect(&c, r, 0);
        else
            ended = crew_wait(&c, r, CREW_PATIENCE_MS);
    died = ended == KILLED;
    if (!died && !nobody_died(t, ranks))
        crew_give_up(&c, "the victim ended with %d", ended);
    for (int r = 0; r < ranks; r++)
        named += t->named[r];
    if (died && named == 0)
        crew_give_up(&c, "nobody named rank %d", victim);
    crew_end(&c);
    return died;
}

static void count_moments(tryst *t, int ranks)
{
    crew c;

    t->victim = t->moment = -1;
    crew_start(&c, ranks, run_tryst, t, "meeting of %d", ranks);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
}

enum { UNREACHED = 3 }; /* moments of a rank, at most */

/* Each row waits for a timeout: so every third moment, others for each rank;
 * all of them with OARSONG_TEST_ALL=1. */
static void a_death_in_the_meeting_of_ranks_is_told_in_time(void **state)
{
    tryst *t = crew_page(sizeof *t);
    int deaths = 0, step = getenv("OARSONG_TEST_ALL") != NULL ? 1 : 3;

    for (int ranks = 2; ranks <= 3; ranks++) {
        count_moments(t, ranks);
        for (int victim = 0; victim < ranks; victim++) {
            int counted = t->moments[victim], tried = 0, died = 0;
            for (int m = (ranks + victim) % step; m < counted; m += step) {
                died += die_in_tryst(t, ranks, victim, m);
                tried++;
            }
            assert_in_range(tried - died, 0, UNREACHED);
            deaths += died;
        }
    }
    print_message("%d deaths\n", deaths);
    crew_drop_page(t, sizeof *t);
}

/* ---- other ends ---------------------------------------------------------- */

static void crash(void *arg)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void leave_early(void *arg)
{
    exit(0);
}

typedef struct ending {
    const char *name;
    void (*end)(void *arg);
    int code;
} ending;

static const ending endings[] = {
    { "a crash", crash, 128 + SIGSEGV },
    { "an exit without destroy", leave_early, 0 },
};

typedef struct quit {
    const ending *ending;
    const deed *deed;
    int victim, step;
} quit;

static int run_quit(crew *c, int rank, void *arg)
{
    quit *q = arg;
    oar_group_opts o = deed_opts(q->deed, TIMEOUT_MS);
    deed_hands h;
    oar_group *g;
    int failed;

    CREW_CHECK(c, rank, deed_take(&h, q->deed, rank, c->ranks) == OAR_OK);
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    if (rank == q->victim)
        deed_watch(q->step, q->ending->end, NULL);
    failed = survive(c, rank, g, &h, q->victim);
    oar_group_destroy(g);
    deed_drop(&h);
    return failed;
}

static void quit_at(const quit *q, int ranks)
{
    quit copy = *q;
    crew c;

    crew_start(&c, ranks, run_quit, &copy, "%s, %d ranks, %s of rank %d at %d",
               q->deed->name, ranks, q->ending->name, q->victim, q->step);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, r == q->victim ? q->ending->code : 0);
    crew_end(&c);
}

static void a_crash_or_an_exit_without_destroy_is_a_death(void **state)
{
    for (int e = 0; e < 2; e++)
        for (const deed *d = deed_list; d->name != NULL; d++)
            for (int victim = 0; victim < 2; victim++)
                quit_at(&(quit){ &endings[e], d, victim, 1 }, 2 + victim);
}

/* ---- messages ------------------------------------------------------------ */

/* A receive whose sender dies after half of the message; a send whose receiver
 * dies; a message that was whole before its sender died arrives. */
static int run_message(crew *c, int rank, void *arg)
{
    enum { LONG = 100000 };
    crew_flag *sent = arg;
    static float x[LONG];
    oar_span s = oar_span_of(x, 3, OAR_F32);
    oar_span l = oar_span_of(x, LONG, OAR_F32);
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;
    oar_work *work = NULL;

    o.timeout_ms = TIMEOUT_MS;
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    if (rank == 1) {
        x[2] = 7;
        CREW_CHECK(c, rank, oar_send(g, s, 0, 1, NULL, NULL) == OAR_OK);
        CREW_CHECK(c, rank, oar_send(g, l, 0, 2, NULL, &work) == OAR_OK);
        crew_raise(sent);
        CREW_CHECK(c, rank, crew_await(sent, 2, CREW_PATIENCE_MS));
        die(NULL);
    }
    CREW_CHECK(c, rank, crew_await(sent, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank, oar_recv(g, s, 1, 1, NULL, NULL) == OAR_OK);
    CREW_CHECK(c, rank, x[2] == 7);
    crew_raise(sent);
    CREW_CHECK(c, rank, oar_recv(g, l, 1, 3, NULL, &work) == OAR_OK);
    CREW_CHECK(c, rank, oar_work_wait(work) == OAR_E_PEER);
    oar_work_release(work);
    CREW_CHECK(c, rank, oar_send(g, l, 1, 4, NULL, NULL) == OAR_E_PEER);
    if (check_record(c, rank, g, 1) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_message_of_the_dead_arrives_or_fails(void **state)
{
    crew_flag *sent = crew_page(sizeof *sent);
    crew c;

    crew_start(&c, 2, run_message, sent, "messages of the dead");
    crew_expect(&c, 0, 0);
    crew_expect(&c, 1, KILLED);
    crew_end(&c);
    crew_drop_page(sent, sizeof *sent);
}

/* ---- operations in a row ------------------------------------------------- */

/* ---- probes -------------------------------------------------------------- */

/* Rank 0 asks for a message that never comes, after one that did. */
typedef struct question {
    const char *backend;
    int source, polls, leaves; /* they poll, and the others leave */
    crew_flag asked;
} question;

static oar_status ask(oar_group *g, const question *q)
{
    int64_t start = oari_now_ns();
    oar_status status = OAR_OK;
    int found = 0;

    if (!q->polls)
        return oar_probe_wait(g, q->source, 5, 0, NULL);
    while (status == OAR_OK && !found && crew_ms_since(start) < TIMEOUT_MS)
        status = oar_probe(g, q->source, 5, &found, NULL);
    return status;
}

static int run_question(crew *c, int rank, void *arg)
{
    question *q = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_span none = oar_span_of(NULL, 0, OAR_F32);
    oar_message m = oar_message_init();
    oar_error record = { .size = sizeof record };
    int64_t start;
    oar_group *g;

    o.backend = q->backend;
    o.timeout_ms = TIMEOUT_MS;
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    if (rank != 0) {
        CREW_CHECK(c, rank, oar_send(g, none, 0, 4, NULL, NULL) == OAR_OK);
        CREW_CHECK(c, rank, crew_await(&q->asked, 1, CREW_PATIENCE_MS));
        if (!q->leaves)
            die(NULL);
        oar_group_destroy(g);
        return 0;
    }
    CREW_CHECK(c, 0, oar_probe_wait(g, 1, 5, 1, &m) == OAR_E_TIMEOUT);
    CREW_CHECK(c, 0, oar_probe_wait(g, q->source, 4, 0, &m) == OAR_OK);
    crew_raise(&q->asked);
    start = oari_now_ns();
    CREW_CHECK(c, 0, ask(g, q) == OAR_E_PEER);
    CREW_CHECK(c, 0, crew_ms_since(start) < NOTICED_MS);
    CREW_CHECK(c, 0, oar_group_fault(g, &record) == OAR_E_PEER);
    CREW_CHECK(c, 0, q->source < 0 || record.peer == q->source);
    CREW_CHECK(c, 0, strcmp(record.operation, "probe") == 0);
    CREW_CHECK(c, 0, strncmp(record.site, "kill_test.c:", 12) == 0);
    oar_group_destroy(g);
    return 0;
}

static void a_probe_does_not_wait_for_ranks_that_are_gone(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };

    for (int row = 0; row < 3 * 2 * 2 * 2; row++) {
        question *q = crew_page(sizeof *q);
        crew c;

        q->backend = backend[row % 3];
        q->source = row / 3 % 2 == 0 ? 1 : OAR_ANY_SOURCE;
        q->polls = row / 6 % 2;
        q->leaves = row / 12 % 2;
        crew_start(&c, 3, run_question, q, "%s of rank %d over %s, which %s",
                   q->polls ? "polls" : "a probe", q->source, q->backend,
                   q->leaves ? "leaves" : "dies");
        for (int r = 0; r < 3; r++)
            crew_expect(&c, r, r == 0 || q->leaves ? 0 : KILLED);
        crew_end(&c);
        crew_drop_page(q, sizeof *q);
    }
}

enum { ROW = 5 };

static void count_failed(void *arg, oar_status status)
{
    if (status == OAR_E_PEER)
        crew_raise(arg);
}

/* Nobody waits for them: the engine's thread has to notice. */
static int run_row(crew *c, int rank, void *arg)
{
    static crew_flag failed;
    static float x[ROW];
    oar_work *work[ROW + 1];
    oar_group *g;

    CREW_CHECK(c, rank, crew_join(c, rank, NULL, &g) == OAR_OK);
    if (rank == 1) {
        CREW_CHECK(c, rank, crew_await(arg, 1, CREW_PATIENCE_MS));
        die(NULL);
    }
    for (int i = 0; i < ROW; i++)
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, oar_span_of(&x[i], 1, OAR_F32), OAR_SUM,
                                  NULL, &work[i]) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_recv(g, oar_span_of(x, 0, OAR_F32), 1, 1, NULL,
                        &work[ROW]) == OAR_OK);
    for (int i = 0; i <= ROW; i++)
        CREW_CHECK(c, rank,
                   oar_work_then(work[i], count_failed, &failed) == OAR_OK);
    crew_raise(arg);
    CREW_CHECK(c, rank, crew_await(&failed, ROW + 1, NOTICED_MS));
    for (int i = 0; i <= ROW; i++)
        oar_work_release(work[i]);
    if (check_record(c, rank, g, 1) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_death_ends_a_row_of_operations_nobody_waits_for(void **state)
{
    crew_flag *posted = crew_page(sizeof *posted);
    crew c;

    crew_start(&c, 2, run_row, posted, "a row of operations");
    crew_expect(&c, 0, 0);
    crew_expect(&c, 1, KILLED);
    crew_end(&c);
    crew_drop_page(posted, sizeof *posted);
}

/* ---- the rank that serves the store -------------------------------------- */

/* Rank 0 serves the store and goes before its operation number `after`. */
typedef struct host {
    const char *backend;
    int64_t timeout_ms;
    int after, leaves; /* it destroys its group and exits, rather than dies */
    char address[64];
    crew_flag serves, joined;
} host;

static oar_status join_host(crew *c, int rank, host *h, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    oar_store_server *server = NULL;
    oar_store *store;
    oar_status status;

    if (rank == 0) {
        if ((status = oar_store_serve("127.0.0.1:0", &server)) != OAR_OK)
            return status;
        snprintf(h->address, sizeof h->address, "%s",
                 oar_store_server_address(server));
        crew_raise(&h->serves);
    }
    if (!crew_await(&h->serves, 1, CREW_PATIENCE_MS))
        return OAR_E_TIMEOUT;
    if (rank > 1 && strcmp(h->backend, "native") == 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.backend = h->backend;
    o.timeout_ms = h->timeout_ms;
    status = oar_store_create_tcp(h->address, h->timeout_ms, &store);
    if (status == OAR_OK)
        status = oar_group_create(store, rank, c->ranks, &o, g);
    if (status == OAR_OK)
        oar_store_destroy(store);
    return status;
}

static int lose_host(crew *c, int rank, void *arg)
{
    host *h = arg;
    oar_status status = OAR_OK;
    float x = 1;
    oar_group *g;
    int64_t start = 0;

    CREW_CHECK(c, rank, join_host(c, rank, h, &g) == OAR_OK);
    crew_raise(&h->joined);
    CREW_CHECK(c, rank,
               crew_await(&h->joined, (uint32_t)c->ranks, CREW_PATIENCE_MS));
    /* what rank 0 has done its part of may be the one that fails elsewhere */
    for (int i = 0; i < h->after + (rank != 0) && status == OAR_OK; i++) {
        start = oari_now_ns();
        status =
            oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL);
    }
    if (rank == 0) {
        CREW_CHECK(c, rank, status == OAR_OK);
        if (!h->leaves)
            die(NULL);
        oar_group_destroy(g);
        _exit(0); /* and the server with it */
    }
    CREW_CHECK(c, rank, status == OAR_E_PEER);
    CREW_CHECK(c, rank, crew_ms_since(start) < NOTICED_MS);
    if (check_record(c, rank, g, 0) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_death_of_the_rank_that_serves_the_store_is_told(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };
    static const int64_t timeout_ms[] = { TIMEOUT_MS, -1 };

    for (int row = 0; row < 3 * 2 * 2 * 4; row++) {
        host *h = crew_page(sizeof *h);
        crew c;

        h->backend = backend[row % 3];
        h->timeout_ms = timeout_ms[row / 3 % 2];
        h->leaves = row / 6 % 2;
        h->after = row / 12;
        crew_start(&c, 4, lose_host, h,
                   "rank 0 %s with the store after %d operations, %s, %s",
                   h->leaves ? "leaves" : "dies", h->after, h->backend,
                   h->timeout_ms < 0 ? "no timeout" : "a timeout");
        for (int r = 0; r < 4; r++)
            crew_expect(&c, r, r == 0 && !h->leaves ? KILLED : 0);
        crew_end(&c);
        crew_drop_page(h, sizeof *h);
    }
}

/* ---- groups of ranks of a group ------------------------------------------ */

/* Rank 1 goes when the others are about to make a group with it, or before. */
typedef struct loss {
    const char *backend;
    int before, leaves;
    crew_flag called, gone;
} loss;

static int lose_member(crew *c, int rank, void *arg)
{
    static const int member[] = { 0, 1, 2 };
    loss *l = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_span none = oar_span_of(NULL, 0, OAR_F32);
    oar_group *g, *part = NULL;
    oar_work *posted;
    int64_t start;

    o.backend = l->backend;
    o.timeout_ms = TIMEOUT_MS;
    if (rank == 2 && strcmp(l->backend, "native") == 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1) {
        CREW_CHECK(c, rank,
                   l->before || crew_await(&l->called, 2, CREW_PATIENCE_MS));
        if (!l->leaves)
            die(NULL);
        oar_group_destroy(g);
        return 0;
    }
    /* something is under way meanwhile */
    CREW_CHECK(c, rank,
               oar_recv(g, none, 2 - rank, 1, NULL, &posted) == OAR_OK);
    crew_raise(&l->called);
    CREW_CHECK(c, rank,
               !l->before || crew_await(&l->gone, 1, CREW_PATIENCE_MS));
    start = oari_now_ns();
    CREW_CHECK(c, rank, oar_group_subset(g, 3, member, &part) == OAR_E_PEER);
    CREW_CHECK(c, rank, crew_ms_since(start) < TIMEOUT_MS / 3);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1 ") != NULL);
    CREW_CHECK(c, rank, part == NULL);
    /* the group itself goes on */
    CREW_CHECK(c, rank, oar_send(g, none, 2 - rank, 1, NULL, NULL) == OAR_OK);
    CREW_CHECK(c, rank, oar_work_wait(posted) == OAR_OK);
    oar_work_release(posted);
    oar_group_destroy(g);
    return 0;
}

static void a_dead_member_does_not_keep_a_subset_waiting(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };

    for (int row = 0; row < 3 * 2 + 1; row++) {
        loss *l = crew_page(sizeof *l);
        crew c;

        l->backend = backend[row % 3];
        l->before = row / 3 % 2;
        l->leaves = row / 6;
        crew_start(&c, 3, lose_member, l, "rank 1 %s %s a subset, %s",
                   l->leaves ? "leaves" : "dies", l->before ? "before" : "in",
                   l->backend);
        crew_expect(&c, 1, l->leaves ? 0 : KILLED);
        crew_raise(&l->gone);
        crew_expect(&c, 0, 0);
        crew_expect(&c, 2, 0);
        crew_end(&c);
        crew_drop_page(l, sizeof *l);
    }
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_at_any_step_is_told_to_the_other_of_two),
        cmocka_unit_test(a_death_at_any_step_is_told_to_the_others_of_three),
        cmocka_unit_test(a_death_in_the_meeting_of_ranks_is_told_in_time),
        cmocka_unit_test(a_crash_or_an_exit_without_destroy_is_a_death),
        cmocka_unit_test(a_message_of_the_dead_arrives_or_fails),
        cmocka_unit_test(a_probe_does_not_wait_for_ranks_that_are_gone),
        cmocka_unit_test(a_death_ends_a_row_of_operations_nobody_waits_for),
        cmocka_unit_test(a_death_of_the_rank_that_serves_the_store_is_told),
        cmocka_unit_test(a_dead_member_does_not_keep_a_subset_waiting),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
