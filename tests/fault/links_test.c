/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two hosts (network namespaces) that are cut, half open, slow or
 * lossy. Under delay and loss everything comes out right. When nothing gets
 * through any more, every rank is told, in time, that the other side cannot be
 * reached, all ranks of a side the same; and nobody hangs.
 *
 *   links_test                 each mishap once
 *   links_test all             in every phase and size; also OARSONG_TEST_ALL=1
 *   links_test NUMBER...       these rows
 * OARSONG_TEST_SEED is the seed (1). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/scenario.h"
#include "support/town.h"

enum {
    LEASE_MS = 1000,
    /* Beyond that a cut is told once what was sent has been repeated in vain,
     * which the kernel does at intervals that grow with how slowly it had been
     * answered; on a machine with more ranks than cores, after 2 s and more. */
    LIMIT_MS = LEASE_MS + 4000,
    TIMEOUT_MS = 20000, /* of the others: not what ends an operation */
    DESTROYED_MS = 1000,
    ROUNDS = 2, /* of everything, on a bad wire */
    TURNS = 3   /* operations before the wire is cut */
};

/* ---- the table ----------------------------------------------------------- */

typedef enum mishap_how {
    CUT_HERE,      /* one end goes down */
    CUT_THERE,     /* the other end */
    LOSE_WAY,      /* one host has no route any more */
    SWALLOW,       /* nothing gets through, and nobody says so */
    SWALLOW_OTHER, /* the same one way only: half open */
    UNPLUG,        /* the interfaces vanish */
    SLOW,
    SLOWER,
    LOSSY,
    LOSSIER,
    MISHAPS
} mishap_how;

static const struct {
    const char *name;
    int relay;
    int delay_us, lost_ppm; /* of a wire that works */
} mishaps[MISHAPS] = {
    [CUT_HERE] = { "a cut on the first host", 0, 0, 0 },
    [CUT_THERE] = { "a cut on the second host", 0, 0, 0 },
    [LOSE_WAY] = { "a host without a route", 0, 0, 0 },
    [SWALLOW] = { "a wire that swallows everything", 1, 0, 0 },
    [SWALLOW_OTHER] = { "a wire that swallows one way", 1, 0, 0 },
    [UNPLUG] = { "a wire that is unplugged", 1, 0, 0 },
    [SLOW] = { "1 ms each way", 1, 1000, 0 },
    [SLOWER] = { "20 ms each way", 1, 20000, 0 },
    [LOSSY] = { "one packet of a hundred lost", 1, 100, 10000 },
    [LOSSIER] = { "one packet of twenty lost", 1, 1000, 50000 },
};

static int ends_the_group(mishap_how how)
{
    return how <= UNPLUG;
}

typedef enum moment { WORKING, PASSING, IDLE, FIRST, MOMENTS } moment;

static const char *const moment_names[MOMENTS] = {
    [WORKING] = "inside collectives",
    [PASSING] = "inside messages",
    [IDLE] = "between operations",
    [FIRST] = "before the first connection",
};

static const int sizes[] = { 2, 5, 4 };
enum { SIZES = 3, ROWS = MISHAPS * MOMENTS * SIZES };

typedef struct scene {
    int number, ranks, here; /* ranks on the first host */
    mishap_how how;
    moment when;
    deed deed;
    town town;
    uint64_t seed;
    crew_flag turns, go, told, healed;
    _Atomic int64_t struck_ns;
    oar_error record[CREW_MAX];
} scene;

static uint64_t seed = 1;

static void make_scene(scene *s, int number)
{
    uint64_t draw = seed * 1000 + (uint64_t)number;

    memset(s, 0, sizeof *s);
    s->number = number;
    s->how = (mishap_how)(number / SIZES / MOMENTS);
    s->when = (moment)(number / SIZES % MOMENTS);
    s->ranks = sizes[number % SIZES];
    s->here = (s->ranks + 1) / 2;
    s->seed = crew_random(&draw);
    s->deed.name = "link";
    s->deed.kind = s->when == PASSING ? OAR_COLL_SEND
                                      : scenario_kinds[crew_random(&draw) % 9];
    s->deed.count = s->deed.kind == OAR_COLL_BARRIER ? 0
                    : crew_random(&draw) % 2         ? 60013
                                                     : 11;
    s->deed.memory = (deed_memory)(crew_random(&draw) % 3);
}

/* Rows in which nobody is told anything are run for one moment only. */
static int is_a_row(int number)
{
    mishap_how how = (mishap_how)(number / SIZES / MOMENTS);

    return ends_the_group(how) || number / SIZES % MOMENTS == WORKING;
}

/* ---- ranks --------------------------------------------------------------- */

static int host_of(const scene *s, int rank)
{
    return rank >= s->here;
}

static int join(crew *c, int rank, scene *s, oar_group **g)
{
    oar_group_opts o = deed_opts(&s->deed, TIMEOUT_MS);

    o.backend = "native";
    if (ends_the_group(s->how)) /* too short for a wire that loses packets */
        setenv("OARSONG_TCP_LEASE_MS", "1000", 1);
    setenv("OARSONG_SECRET",
           "6f6172736f6e6720666f7220746573747320616e64206e6f7468696e67206f66",
           1);
    CREW_CHECK(c, rank, town_move(&s->town, host_of(s, rank)));
    CREW_CHECK(c, rank, crew_join(c, rank, &o, g) == OAR_OK);
    return 0;
}

/* Everything there is, on a wire that is bad but works. */
static int do_everything(crew *c, int rank, oar_group *g, scene *s)
{
    for (int i = 0; i < 2 * SCENARIO_KINDS * ROUNDS; i++) {
        deed d = { .name = "everything",
                   .kind = scenario_kinds[i / 2 % SCENARIO_KINDS],
                   .count = i % 2 ? 9001 : 3,
                   .last_root = i % 3 == 0 };
        deed_hands h;
        if (d.kind == OAR_COLL_BARRIER)
            d.count = 0;
        CREW_CHECK(c, rank, deed_take(&h, &d, rank, c->ranks) == OAR_OK);
        CREW_CHECK(c, rank, deed_run(&h, g, 0) == OAR_OK);
        CREW_CHECK(c, rank, deed_right(&h));
        deed_drop(&h);
    }
    return 0;
}

static int endure(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    CREW_CHECK(c, rank, do_everything(c, rank, g, s) == 0);
    oar_group_destroy(g);
    return 0;
}

/* Operations until one fails. */
static int work_on(crew *c, int rank, scene *s, oar_group *g, deed_hands *h)
{
    oar_status status = OAR_OK;
    int in_time;

    while (status == OAR_OK) {
        deed_fill(h);
        status = deed_run(h, g, 0);
        CREW_CHECK(c, rank, status != OAR_OK || deed_right(h));
        if (status == OAR_OK && h->deed->kind != OAR_COLL_BARRIER)
            status = oar_barrier(g, NULL, NULL);
        if (rank == 0 && status == OAR_OK)
            crew_raise(&s->turns);
    }
    CREW_CHECK(c, rank, s->struck_ns != 0);
    in_time = crew_in_time(s->struck_ns, LIMIT_MS);
    if (!in_time)
        fprintf(stderr, "[%s] rank %d was told after %lld ms: %s\n", c->what,
                rank, (long long)crew_ms_since(s->struck_ns),
                oar_last_error_text());
    CREW_CHECK(c, rank, in_time);
    s->record[rank].size = sizeof s->record[rank];
    CREW_CHECK(c, rank, oar_group_fault(g, &s->record[rank]) == status);
    return 0;
}

/* The wire works again, and nothing comes of it. */
static int come_to_an_end(crew *c, int rank, scene *s, oar_group *g,
                          deed_hands *h)
{
    oar_status status = s->record[rank].status;
    int64_t start;

    for (size_t i = 0; i < h->out_count; i++)
        h->out[i] = 7;
    crew_raise(&s->told);
    CREW_CHECK(c, rank, crew_await(&s->healed, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == status);
    CREW_CHECK(c, rank,
               strcmp(oar_last_error_text(), s->record[rank].text) == 0);
    start = oari_now_ns();
    oar_group_destroy(g);
    CREW_CHECK(c, rank, crew_in_time(start, DESTROYED_MS));
    for (size_t i = 0; i < h->out_count; i++)
        CREW_CHECK(c, rank, h->out[i] == 7);
    return 0;
}

static int be_cut_off(crew *c, int rank, void *arg)
{
    scene *s = arg;
    int descriptors = crew_descriptors();
    deed_hands h;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    CREW_CHECK(c, rank, deed_take(&h, &s->deed, rank, c->ranks) == OAR_OK);
    if (s->when == IDLE)
        CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    if (s->when == IDLE || s->when == FIRST) {
        crew_raise(&s->turns);
        CREW_CHECK(c, rank, crew_await(&s->go, 1, CREW_PATIENCE_MS));
    }
    CREW_CHECK(c, rank, work_on(c, rank, s, g, &h) == 0);
    CREW_CHECK(c, rank, come_to_an_end(c, rank, s, g, &h) == 0);
    deed_drop(&h);
    CREW_CHECK(c, rank, h.shared || crew_descriptors() == descriptors);
    return 0;
}

/* ---- the wire ------------------------------------------------------------ */

static int strike(scene *s)
{
    town *t = &s->town;

    atomic_store(&s->struck_ns, oari_now_ns());
    switch (s->how) {
    case CUT_HERE: return town_link(t, 0, 0);
    case CUT_THERE: return town_link(t, 1, 0);
    case LOSE_WAY: return town_lose_way(t, 1);
    case SWALLOW: return atomic_store(&t->wire->swallows, 3), 1;
    case SWALLOW_OTHER:
        return atomic_store(&t->wire->swallows, 1 + (int)(s->seed % 2)), 1;
    default: return town_unplug(t), 1;
    }
}

static void heal(scene *s)
{
    for (int host = 0; s->how <= CUT_THERE && host < 2; host++)
        town_link(&s->town, host, 1);
    if (s->town.wire != NULL)
        atomic_store(&s->town.wire->swallows, 0);
    crew_raise(&s->healed);
}

/* ---- what must have been seen -------------------------------------------- */

static void check_side(crew *c, const scene *s, int rank, int *first)
{
    const oar_error *e = &s->record[rank], *one;
    int side = host_of(s, rank);

    if (first[side] < 0)
        first[side] = rank;
    one = &s->record[first[side]];
    if (e->status != OAR_E_PEER)
        crew_give_up(c, "rank %d got %s: %s", rank, oar_status_name(e->status),
                     e->text);
    if (e->peer < 0 || host_of(s, e->peer) == host_of(s, e->rank))
        crew_give_up(c, "rank %d heard from rank %d of rank %d: %s", rank,
                     e->rank, e->peer, e->text);
    if (e->rank != one->rank || e->peer != one->peer ||
        strcmp(e->site, one->site) != 0 || strcmp(e->text, one->text) != 0)
        crew_give_up(c, "rank %d has \"%s\" of rank %d, rank %d \"%s\" of %d",
                     rank, e->text, e->rank, first[side], one->text, one->rank);
}

/* ---- rows ---------------------------------------------------------------- */

/* The relay must have done what it is there for, or the row shows nothing. */
static void await_ranks(crew *c, scene *s)
{
    const town_wire *w = s->town.wire;

    for (int r = 0; r < s->ranks; r++)
        crew_expect(c, r, 0);
    if (w != NULL && (w->passed == 0 || (w->lost_ppm != 0 && w->lost == 0)))
        crew_give_up(c, "the relay passed %d packets and lost %d",
                     (int)w->passed, (int)w->lost);
    town_unplug(&s->town);
}

/* A rank that has ended without having been told has failed. */
static void await_told(crew *c, scene *s)
{
    int64_t deadline = oari_deadline(CREW_PATIENCE_MS);
    int code;

    while (!crew_await(&s->told, (uint32_t)s->ranks, 20)) {
        for (int r = 0; r < s->ranks; r++)
            if ((code = crew_wait(c, r, 0)) != CREW_LATE)
                crew_give_up(c, "rank %d ended with %d", r, code);
        if (oari_now_ns() > deadline)
            crew_give_up(c, "%d of %d ranks were told", (int)s->told, s->ranks);
    }
}

static void cut(crew *c, scene *s)
{
    int quiet = s->when == IDLE || s->when == FIRST, first[2] = { -1, -1 };
    struct timespec pause = { 0, (long)(s->seed % 20000000) };

    if (!crew_await(&s->turns, quiet ? (uint32_t)s->ranks : TURNS,
                    CREW_PATIENCE_MS))
        crew_give_up(c, "the ranks do not work");
    nanosleep(&pause, NULL); /* anywhere in an operation */
    if (!strike(s))
        crew_give_up(c, "the wire cannot be cut");
    crew_raise(&s->go);
    await_told(c, s);
    heal(s);
    await_ranks(c, s);
    for (int r = 0; r < s->ranks; r++)
        check_side(c, s, r, first);
}

static scene *on_stage; /* NULL: none */

/* Also after a failure. */
static int clear_stage(void **state)
{
    if (on_stage != NULL) {
        town_raze(&on_stage->town);
        crew_drop_page(on_stage, sizeof *on_stage);
    }
    on_stage = NULL;
    return 0;
}

static void run_row(int number)
{
    scene *s = on_stage = crew_page(sizeof *s);
    const char *why;
    crew c;

    make_scene(s, number);
    why = town_build(&s->town, mishaps[s->how].relay);
    if (why != NULL) {
        print_message("skipped: %s\n", why);
        skip();
    }
    if (s->town.wire != NULL) {
        s->town.wire->seed = s->seed;
        atomic_store(&s->town.wire->delay_us, mishaps[s->how].delay_us);
        atomic_store(&s->town.wire->lost_ppm, mishaps[s->how].lost_ppm);
    }
    crew_start(&c, s->ranks, ends_the_group(s->how) ? be_cut_off : endure, s,
               "link %d (%s, %s, %d ranks), seed %llu", number,
               mishaps[s->how].name, moment_names[s->when], s->ranks,
               (unsigned long long)seed);
    if (ends_the_group(s->how))
        cut(&c, s);
    else
        await_ranks(&c, s);
    crew_end(&c);
    clear_stage(NULL);
}

/* ---- the tests ----------------------------------------------------------- */

static int wanted[ROWS], wanted_count;

static void run_rows(int failing)
{
    int64_t start = oari_now_ns();
    int run = 0;

    for (int i = 0; i < wanted_count; i++)
        if (ends_the_group((mishap_how)(wanted[i] / SIZES / MOMENTS)) ==
            failing) {
            run_row(wanted[i]);
            run++;
        }
    print_message("%d links, seed %llu, %lld ms\n", run,
                  (unsigned long long)seed, (long long)crew_ms_since(start));
}

static void everything_is_right_over_slow_and_lossy_links(void **state)
{
    run_rows(0);
}

static void each_side_of_a_cut_names_the_other(void **state)
{
    run_rows(1);
}

/* In the short form each mishap once, moment and size by the seed. */
static void choose_rows(int argc, char **argv)
{
    const char *given = getenv("OARSONG_TEST_SEED");
    const char *all = getenv("OARSONG_TEST_ALL");
    int everything = (all != NULL && strcmp(all, "1") == 0) ||
                     (argc == 2 && strcmp(argv[1], "all") == 0);

    if (given != NULL)
        seed = strtoull(given, NULL, 10);
    if (argc > 1 && !everything)
        for (int i = 1; i < argc && i < ROWS; i++)
            wanted[wanted_count++] = atoi(argv[i]) % ROWS;
    else if (everything)
        for (int i = 0; i < ROWS; i++) {
            if (is_a_row(i))
                wanted[wanted_count++] = i;
        }
    else
        for (int m = 0; m < MISHAPS; m++)
            wanted[wanted_count++] =
                (m * MOMENTS + (ends_the_group((mishap_how)m)
                                    ? (int)(m + seed) % MOMENTS
                                    : WORKING)) *
                    SIZES +
                (int)(m + seed) % SIZES;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(everything_is_right_over_slow_and_lossy_links,
                                  clear_stage),
        cmocka_unit_test_teardown(each_side_of_a_cut_names_the_other,
                                  clear_stage),
    };

    choose_rows(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
