/* SPDX-License-Identifier: Apache-2.0 */
/* Programs whose ranks call different things, on every kind of link: every rank
 * notices at the first wrong operation and reports the same words, with both
 * sides and their call sites; differences that are allowed are not reported.
 *
 * The ranks of one job run through all programs, with a group for each.
 *
 * With OARSONG_TEST_ENGINE (support/tested_engine.h) some of the programs run
 * on an external engine, or all with OARSONG_TEST_ALL=1. There a difference may
 * be noticed later: at the next comparison, which is far away only across
 * hosts. */
#include "support/tested_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/fault/mismatch.h"
#include "mismatch_table.h"
#include "support/script.h"
#include "support/mpi_ranks.h"

enum {
    RANKS = 4,
    PROGRAMS = 256,
    PATIENCE_MS = 480000,
    NOTICED_MS = 15000, /* on a busy machine; a group's own timeout is longer */
    BUFFER = 4 << 20,
    ASK_MS = 60,
    COMPARED = 16, /* collectives, within which hosts compare */
    SKIPPED = 77
};

/* ---- programs made of rules ---------------------------------------------- */

typedef struct program_text {
    char name[64], many[96], one[96], says[2][64];
} program_text;

static program programs[PROGRAMS];
static program_text texts[PROGRAMS];
static int made;

/* One call of each kind, and how it is told. */
static const struct {
    const char *name, *call, *reported;
} kinds[] = {
    { "barrier", "barrier", "calls barrier" },
    { "broadcast", "broadcast 6", "calls broadcast of 6 f32 from 0" },
    { "all_reduce", "all_reduce 6", "calls all_reduce of 6 f32 sum" },
    { "reduce", "reduce 6", "calls reduce of 6 f32 sum to 0" },
    { "gather", "gather 6", "calls gather of 6 f32 to 0" },
    { "scatter", "scatter 6", "calls scatter of 6 f32 from 0" },
    { "all_gather", "all_gather 6", "calls all_gather of 6 f32" },
    { "reduce_scatter", "reduce_scatter 6",
      "calls reduce_scatter of 6 f32 sum" },
    { "all_to_all", "all_to_all 6", "calls all_to_all of " },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* "barrier; CALL MANY; barrier" against "barrier; CALL ONE; barrier". */
static void make(const char *rule, const char *many, const char *one,
                 const char *says, const char *says_one)
{
    program_text *t = &texts[made];

    assert_true(made < PROGRAMS);
    snprintf(t->name, sizeof t->name, "%s: %s", rule, one);
    snprintf(t->many, sizeof t->many, "barrier; %s; barrier", many);
    snprintf(t->one, sizeof t->one, "barrier; %s; barrier", one);
    snprintf(t->says[0], sizeof t->says[0], "%s", says);
    snprintf(t->says[1], sizeof t->says[1], "%s", says_one);
    programs[made++] = (program){
        t->name, t->many, t->one, WRONG, 2, 2, { t->says[0], t->says[1] },
        ODD_ANY
    };
}

/* The same call with one word more on either side. */
static void make_field(const char *rule, const char *call, const char *field,
                       const char *many, const char *one)
{
    char calls[2][48], says[2][48];

    snprintf(calls[0], sizeof calls[0], "%s %s%s", call,
             strcmp(field, "root") == 0 ? "@" : "", many);
    snprintf(calls[1], sizeof calls[1], "%s %s%s", call,
             strcmp(field, "root") == 0 ? "@" : "", one);
    snprintf(says[0], sizeof says[0], "passes %s %s", field, many);
    snprintf(says[1], sizeof says[1], "passes %s %s", field, one);
    make(rule, calls[0], calls[1], says[0], says[1]);
}

static void make_kinds(void)
{
    for (int i = 0; i < KINDS; i++)
        for (int j = i + 1; j < KINDS; j++)
            make("another kind", kinds[i].call, kinds[j].call,
                 kinds[i].reported, kinds[j].reported);
}

static void make_counts_and_dtypes(void)
{
    for (int i = 1; i < KINDS - 1; i++)
        make_field("another count", kinds[i].name, "count", "11", "12");
    for (int i = 1; i < KINDS; i++)
        make_field("another dtype", kinds[i].name, "dtype", "f32", "i32");
    for (int d = 1; d < OAR_DTYPE_COUNT; d++)
        make_field("another dtype", "all_reduce 5", "dtype", "f32",
                   oar_dtype_name((oar_dtype)d));
}

static void make_ops_and_roots(void)
{
    static const char *const reducing[] = { "all_reduce 5 i32", "reduce 5 i32",
                                            "reduce_scatter 5 i32" };
    static const char *const rooted[] = { "broadcast 5", "reduce 5", "gather 5",
                                          "scatter 5" };

    for (int i = 0; i < 3; i++)
        for (int op = 1; op < (i == 0 ? OAR_REDUCE_OP_PREMUL_SUM : 3); op++)
            make_field("another op", reducing[i], "op", "sum",
                       oar_reduce_op_name((oar_reduce_op_kind)op));
    for (int i = 0; i < 4; i++)
        for (int root = 1; root < 3; root++)
            make_field("another root", rooted[i], "root", "0",
                       root == 1 ? "1" : "2");
}

static void make_forms(void)
{
    static const char *const parts[] = { "gather", "scatter", "all_gather",
                                         "reduce_scatter", "all_to_all" };
    static const char *const objects[] = { "broadcast", "gather", "scatter",
                                           "all_gather" };
    char calls[2][32], says[2][32];

    for (int i = 0; i < 5 + 4; i++) {
        const char *name = i < 5 ? parts[i] : objects[i - 5];

        snprintf(calls[0], sizeof calls[0], "%s 5 u8", name);
        snprintf(calls[1], sizeof calls[1], "%s%s 5 u8", name,
                 i < 5 ? "_v" : "_bytes");
        snprintf(says[0], sizeof says[0], "calls %s ", name);
        snprintf(says[1], sizeof says[1], "calls %s%s ", name,
                 i < 5 ? "_v" : "_bytes");
        make("another form", calls[0], calls[1], says[0], says[1]);
    }
}

static void make_all(void)
{
    if (made != 0)
        return;
    for (int i = 0; i < TABLE; i++)
        programs[made++] = table[i];
    make_kinds();
    make_counts_and_dtypes();
    make_ops_and_roots();
    make_forms();
}

/* ---- running ------------------------------------------------------------- */

/* What came of one program on one rank. */
typedef struct program_outcome {
    oar_status status;
    int64_t ms;
    oar_error why;
} program_outcome;

typedef struct mismatch_page {
    char backend[32];
    int ranks, hosts;
    int every; /* of the programs, one in so many */
    int lazy;  /* what differs may be noticed later */
    shared_flag through[PROGRAMS];
    program_outcome outcome[PROGRAMS][RANKS];
} mismatch_page;

static int odd_of(const program *p, int ranks)
{
    int index = (int)(p - programs);

    return p->flags & ODD_LAST ? ranks - 1 : index % ranks;
}

static const char *const files[RANKS] = { "src/rank0.c", "src/rank1.c",
                                          "src/rank2.c", "src/rank3.c" };

/* Calls that are the same everywhere, until one of them notices. */
static void go_on(oar_group *g, program_outcome *o)
{
    for (int i = 0; i < 2 * COMPARED && o->status == OAR_OK; i++)
        o->status = oar_barrier(g, NULL, NULL);
    if (o->status != OAR_OK)
        o->why = *oar_last_error();
}

/* An engine may write to buffers after it has failed. */
static void take_buffers(const mismatch_page *at, script_runner *who)
{
    static unsigned char kept[2][BUFFER];

    who->in = at->lazy ? kept[0] : calloc(1, BUFFER);
    who->out = at->lazy ? kept[1] : calloc(1, BUFFER);
}

static void drop_buffers(const mismatch_page *at, const script_runner *who)
{
    if (at->lazy)
        return;
    free(who->in);
    free(who->out);
}

/* Runs the program on the rank's groups. A rank that waits until its timeout
 * must find the others alive: all stay until all are done, unless the program
 * is about leaving. */
static oar_status run_program(oar_group *g, mismatch_page *at, const program *p)
{
    int rank = oar_group_rank(g), odd = rank == odd_of(p, at->ranks);
    int index = (int)(p - programs), acts;
    program_outcome *o = &at->outcome[index][rank];
    script_call script[SCRIPT_ACTS];
    script_runner who = { .group = g, .file = files[rank] };
    int64_t start = oari_now_ns();

    acts = script_parse(odd ? p->one : p->many, script);
    take_buffers(at, &who);
    CHECK(acts >= 0 && who.in != NULL && who.out != NULL);
    if (p->flags & SPLIT)
        CHECK_OK(oar_group_dup(g, &who.other));
    o->status = script_run(&who, script, acts, &o->why);
    if (at->lazy && o->status == OAR_OK && p->status == OAR_E_MISMATCH)
        go_on(g, o);
    o->ms = ms_since(start);
    shared_flag_raise(&at->through[index]);
    if ((p->flags & LEAVES) == 0)
        CHECK(shared_flag_await(&at->through[index], (uint32_t)at->ranks,
                                2 * NOTICED_MS));
    oar_group_destroy(who.other);
    drop_buffers(at, &who);
    return OAR_OK;
}

static int is_taken(const mismatch_page *at, int index)
{
    return index % at->every == 0 || (programs[index].flags & ANSWERS) != 0;
}

static int be_rank(test_job *c, int rank, void *arg)
{
    mismatch_page *at = arg;
    char host[2] = { (char)('a' + rank * at->hosts / at->ranks), 0 };

    make_all();
    oari_mismatch_ask_ms = ASK_MS;
    setenv("OARSONG_HOST_ID", host, 1);
    for (int i = 0; i < made; i++) {
        oar_group_opts o = oar_group_opts_init();
        char name[16];
        oar_group *g;

        if (!is_taken(at, i))
            continue;
        snprintf(name, sizeof name, "p%d", i);
        o.name = name;
        o.backend = at->backend;
        o.timeout_ms = 2 * NOTICED_MS;
        RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
        RANK_CHECK(run_program(g, at, &programs[i]) == OAR_OK);
        oar_group_destroy(g);
    }
    return 0;
}

/* ---- looking at it ------------------------------------------------------- */

static const mismatch_page *looked_at;
static int blamed[PROGRAMS]; /* each once */

static void fail_program(int index, int rank, const char *what)
{
    const program_outcome *o = &looked_at->outcome[index][rank];

    if (blamed[index]++ != 0)
        return;
    print_message(
        "\"%s\" over %s, odd rank %d: rank %d: %s\n  many: %s\n  one:  "
        "%s\n  got %s after %lld ms: %s\n",
        programs[index].name, looked_at->backend,
        odd_of(&programs[index], looked_at->ranks), rank, what,
        programs[index].many, programs[index].one, oar_status_name(o->status),
        (long long)o->ms, o->why.text);
}

static void expect_text(int index, int rank, const char *wanted)
{
    char what[128];

    snprintf(what, sizeof what, "says nothing of <%s>", wanted);
    if (strstr(looked_at->outcome[index][rank].why.text, wanted) == NULL)
        fail_program(index, rank, what);
}

static void expect_site(int index, int rank, int of, int at)
{
    char site[48];

    snprintf(site, sizeof site, "rank%d.c:%d", of, 10 * at);
    expect_text(index, rank, site);
}

/* The rank whose site stands for the many: the first, or on an engine, where
 * not all may report in time, the one that is named. */
static int teller_of(const mismatch_page *p, int index, int odd)
{
    int first = odd == 0 ? 1 : 0;
    char site[48];

    for (int r = first; p->lazy && r < p->ranks; r++) {
        snprintf(site, sizeof site, "rank%d.c:%d", r, 10 * programs[index].at);
        if (r != odd && strstr(p->outcome[index][0].why.text, site) != NULL)
            return r;
    }
    return first;
}

/* All ranks have the same record, and it names both. */
static void look_at_mismatch(const mismatch_page *p, int index)
{
    const program *is = &programs[index];
    const oar_error *first = &p->outcome[index][0].why;
    int odd = odd_of(is, p->ranks), other = teller_of(p, index, odd);

    for (int r = 0; r < p->ranks; r++) {
        const program_outcome *o = &p->outcome[index][r];

        if (o->status != OAR_E_MISMATCH || o->ms > busy_ms(NOTICED_MS))
            fail_program(index, r, "a mismatch was to be noticed in time");
        expect_site(index, r, other, is->at);
        expect_site(index, r, odd, is->at_one);
        expect_text(index, r, is->says[0]);
        expect_text(index, r, is->says[1]);
        if (memcmp(first, &o->why, sizeof o->why) != 0)
            fail_program(index, r, "not the record of rank 0");
        if ((o->why.rank != 0 && o->why.rank != odd && !p->lazy) ||
            o->why.sequence == 0)
            fail_program(index, r, "signed by no rank");
    }
}

/* The first to time out names the odd rank; in a group of three, all do. */
static void look_at_timeout(const mismatch_page *p, int index)
{
    const program *is = &programs[index];
    int odd = odd_of(is, p->ranks), tells = strcmp(p->backend, "tcp") != 0;
    char name[16];

    snprintf(name, sizeof name, "rank %d", odd);
    for (int r = 0; r < p->ranks; r++) {
        const program_outcome *o = &p->outcome[index][r];

        if (r == odd)
            continue;
        if (o->status != OAR_E_TIMEOUT || o->why.peer != odd)
            fail_program(index, r, "waited for another rank until the timeout");
        expect_text(index, r, is->says[0]);
        expect_text(index, r, name);
        if (is->at_one != 0 &&
            ((tells && p->hosts == 1) || (is->flags & ANSWERS)))
            expect_site(index, r, odd, is->at_one);
        if ((is->flags & SPLIT) && (is->flags & ANSWERS))
            expect_text(index, r, " on group \"");
    }
}

static void look_at_departure(const mismatch_page *p, int index)
{
    const program *is = &programs[index];
    int odd = odd_of(is, p->ranks);

    for (int r = 0; r < p->ranks; r++) {
        const program_outcome *o = &p->outcome[index][r];

        if (o->status != (r == odd ? OAR_E_PEER : OAR_OK))
            fail_program(index, r, "only ranks that stay report it");
    }
    expect_text(index, odd, is->says[0]);
    if (p->outcome[index][odd].why.peer < 0)
        fail_program(index, odd, "no rank is named");
}

static void look_at_success(const mismatch_page *p, int index)
{
    for (int r = 0; r < p->ranks; r++)
        if (p->outcome[index][r].status != OAR_OK)
            fail_program(index, r, "nothing was wrong");
}

static void look(const mismatch_page *p)
{
    int wrong = 0, right = 0, failed = 0;

    looked_at = p;
    memset(blamed, 0, sizeof blamed);
    for (int i = 0; i < made; i++) {
        if (!is_taken(p, i))
            continue;
        switch (programs[i].status) {
        case OAR_OK: look_at_success(p, i); break;
        case OAR_E_TIMEOUT: look_at_timeout(p, i); break;
        case OAR_E_PEER: look_at_departure(p, i); break;
        default: look_at_mismatch(p, i);
        }
        wrong += programs[i].status != OAR_OK;
        right += programs[i].status == OAR_OK;
        failed += blamed[i] != 0;
    }
    printf("%s, %d ranks on %d hosts: %d wrong programs, %d right ones\n",
           p->backend, p->ranks, p->hosts, wrong, right);
    assert_int_equal(failed, 0);
    assert_true(p->every > 1 || wrong >= 100);
}

/* ---- the tests ----------------------------------------------------------- */

static mismatch_page *make_page(const char *backend, int ranks, int hosts,
                                int every)
{
    mismatch_page *p = shared_page(sizeof *p);

    make_all();
    snprintf(p->backend, sizeof p->backend, "%s", backend);
    p->ranks = ranks;
    p->hosts = hosts;
    p->every = every;
    return p;
}

static void look_after(test_job *c, mismatch_page *p)
{
    for (int r = 0; r < p->ranks; r++)
        if (test_job_wait(c, r, PATIENCE_MS) != 0)
            test_job_give_up(c, "rank %d did not get through", r);
    test_job_end(c);
    look(p);
    shared_page_free(p, sizeof *p);
}

static void run_processes(const char *backend, int ranks, int hosts, int every)
{
    mismatch_page *p = make_page(backend, ranks, hosts, every);
    test_job c;

    test_job_start(&c, ranks, be_rank, p, "wrong programs over %s", backend);
    look_after(&c, p);
}

static void run_engine(int ranks, int hosts, int every)
{
    const tested_engine *e = tested_engine_get();
    const char *all = getenv("OARSONG_TEST_ALL");
    mismatch_page *p;
    test_job c;

    if (all != NULL && strcmp(all, "1") == 0)
        every = 1;
    p = make_page(e->name, ranks, hosts, every);
    p->lazy = 1;
    tested_engine_start(e, &c, ranks, be_rank, p, "wrong programs");
    look_after(&c, p);
}

static void wrong_programs_are_reported_on_an_engine(void **state)
{
    run_engine(3, 1, 7);
}

/* Gloo's connections between hosts are plain: that must be asked for. */
static void wrong_programs_are_reported_on_an_engine_across_hosts(void **state)
{
    setenv("OARSONG_WIRE", "plain", 1);
    run_engine(4, 2, 7);
}

static void wrong_programs_are_reported_over_shared_memory(void **state)
{
    run_processes("shm", 3, 1, 1);
}

static void wrong_programs_are_reported_over_tcp(void **state)
{
    run_processes("tcp", 3, 1, 1);
}

static void wrong_programs_are_reported_on_two_hosts(void **state)
{
    run_processes("native", 4, 2, 2);
}

/* ---- threads ------------------------------------------------------------- */

typedef struct mismatch_context {
    mismatch_page *pages;
    const program *program;
} mismatch_context;

static oar_status be_thread(oar_group *g, void *arg)
{
    const mismatch_context *s = arg;

    return run_program(g, s->pages, s->program);
}

static void run_threads(const char *algorithm, int every)
{
    mismatch_page *p = make_page("sim", 3, 1, every);
    oar_group_opts o = oar_group_opts_init();

    oari_mismatch_ask_ms = ASK_MS;
    o.timeout_ms = 2 * NOTICED_MS;
    o.algorithm = algorithm;
    for (int i = 0; i < made; i++) {
        mismatch_context s = { p, &programs[i] };

        if (is_taken(p, i) &&
            oar_sim_run_with(p->ranks, &o, be_thread, &s) != OAR_OK)
            fail_msg("%s: %s", programs[i].name, oar_last_error_text());
    }
    look(p);
    shared_page_free(p, sizeof *p);
}

static void wrong_programs_are_reported_by_threads(void **state)
{
    run_threads(NULL, 1);
}

/* ---- messages ------------------------------------------------------------ */

static const struct {
    const char *send, *recv;
    oar_status status;
    const char *says[2];
} messages[] = {
    { "send 8 @1 tag=1 label=a", "recv 8 @0 tag=1", OAR_OK, { "", "" } },
    { "send 8 @1 tag=1 label=a",
      "recv 7 @0 tag=1",
      OAR_E_SIZE,
      { "recv of 7 f32 (28 bytes) from rank 0 with tag 1",
        "sent 32 bytes of f32" } },
    { "send 70001 @1 tag=1 label=a",
      "recv 8 @0 tag=1",
      OAR_E_SIZE,
      { "recv of 8 f32 (32 bytes) from rank 0 with tag 1",
        "sent 280004 bytes of f32" } },
    { "send 8 i32 @1 tag=2 label=a",
      "recv 8 f32 @0 tag=2",
      OAR_E_DTYPE,
      { "recv of 8 f32 (32 bytes)", "sent 32 bytes of i32" } },
    { "send 4 f64 @1 tag=2 label=a",
      "recv 8 f32 @0 tag=2",
      OAR_E_DTYPE,
      { "recv of 8 f32 (32 bytes)", "sent 32 bytes of f64" } },
    { "send 30001 bf16 @1 tag=3 label=a",
      "recv 30001 f16 @0 tag=3",
      OAR_E_DTYPE,
      { "recv of 30001 f16", "sent 60002 bytes of bf16" } },
    { "send 8 f32 @1 tag=4 label=a",
      "recv 32 u8 @0 tag=4",
      OAR_OK,
      { "", "" } },
    { "send 32 u8 @1 tag=4 label=a",
      "recv 8 f32 @0 tag=4",
      OAR_OK,
      { "", "" } },
    { "send 0 f32 @1 tag=5 label=a",
      "recv 0 f32 @0 tag=5",
      OAR_OK,
      { "", "" } },
};
enum { MESSAGES = sizeof messages / sizeof *messages };

/* The group goes on after each. */
static oar_status exchange(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    static _Thread_local unsigned char in[280008], out[280008];
    script_runner who = {
        .group = g, .file = files[rank], .in = in, .out = out
    };

    for (int i = 0; i < MESSAGES; i++) {
        oar_status wanted = rank == 1 ? messages[i].status : OAR_OK, got;
        script_call script[SCRIPT_ACTS];
        oar_error why = { 0 };
        int acts =
            script_parse(rank ? messages[i].recv : messages[i].send, script);

        CHECK(acts == 1);
        got = script_run(&who, script, acts, &why);
        if (rank == 0 && got == OAR_E_SIZE)
            wanted = OAR_E_SIZE; /* too large to be sent before */
        CHECK(got == wanted);
        if (rank == 1 && wanted != OAR_OK) {
            CHECK(strstr(why.text, messages[i].says[0]) != NULL);
            CHECK(strstr(why.text, messages[i].says[1]) != NULL);
            CHECK(strstr(why.text, "at rank1.c:10") != NULL);
            CHECK(strstr(why.text, "at rank0.c:10 (\"a\")") != NULL);
        }
        CHECK_OK(oar_barrier(g, NULL, NULL));
    }
    return OAR_OK;
}

static void messages_that_do_not_fit_name_both_sides(void **state)
{
    static const char *const backends[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        if (ranks_run(backends[i], 2, NULL, exchange, NULL) != OAR_OK)
            fail_msg("%s: %s", backends[i], oar_last_error_text());
}

static int run_on_engine(const tested_engine *e)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_programs_are_reported_on_an_engine),
        cmocka_unit_test(wrong_programs_are_reported_on_an_engine_across_hosts),
    };

    if (!tested_engine_is_available(e))
        return SKIPPED;
    return cmocka_run_group_tests_name(e->name, tests, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_programs_are_reported_on_two_hosts),
        cmocka_unit_test(wrong_programs_are_reported_over_shared_memory),
        cmocka_unit_test(wrong_programs_are_reported_over_tcp),
        cmocka_unit_test(wrong_programs_are_reported_by_threads),
        cmocka_unit_test(messages_that_do_not_fit_name_both_sides),
    };
    int code;

    if (mpi_ranks_run_child(&code))
        return code;
    if (tested_engine_get() != NULL)
        return run_on_engine(tested_engine_get());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
