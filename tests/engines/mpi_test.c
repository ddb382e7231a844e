/* SPDX-License-Identifier: Apache-2.0 */
/* The backend mpi, over each MPI that is installed. The ranks are this program
 * again, started by mpirun, each in the role that the environment names; they
 * leave what they saw in files of a folder. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "support/leak_check.h"
#include "support/mpi_ranks.h"

enum { PATH = 512, LIMIT_S = 120, ODD = 1003, SKIPPED = 77 };

static const char *flavour;      /* openmpi or mpich */
static char self[PATH];          /* this program */
static char folder[FOLDER_PATH]; /* where ranks leave what they saw */

/* ---- what a rank leaves -------------------------------------------------- */

static void path_of(char path[PATH], const char *what, int rank)
{
    snprintf(path, PATH, "%s/%s.%d", getenv("OARSONG_TEST_FOLDER"), what, rank);
}

/* At once as a whole. */
static void leave(const char *what, int rank, const void *data, size_t bytes)
{
    char path[PATH], part[PATH + 8];
    FILE *file;

    path_of(path, what, rank);
    snprintf(part, sizeof part, "%s.part", path);
    if ((file = fopen(part, "wb")) == NULL)
        return;
    fwrite(data, 1, bytes, file);
    fclose(file);
    rename(part, path);
}

/* The bytes that were left; -1: there is no such file. */
static long find(const char *what, int rank, void *data, size_t most)
{
    char path[PATH];
    FILE *file;
    size_t got;

    path_of(path, what, rank);
    if ((file = fopen(path, "rb")) == NULL)
        return -1;
    got = fread(data, 1, most, file);
    fclose(file);
    return (long)got;
}

/* A rank that goes takes the job with it: none goes before all have left word.
 */
static void await_all(const char *what, int ranks)
{
    time_t until = time(NULL) + 30;
    char byte;

    for (int r = 0; r < ranks && time(NULL) < until;)
        if (find(what, r, &byte, 1) >= 0)
            r++;
        else
            sched_yield();
}

/* ---- roles --------------------------------------------------------------- */

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { BATCH = 2, CONTEXT = 16, WORDS = 61, STEPS = 3 };

static oar_status take_step(oar_tape *tape, oar_module *net, oar_optim *optim,
                            int64_t salt, float *loss_is)
{
    int64_t token[BATCH * CONTEXT], next[BATCH * CONTEXT];
    oar_tensor *x, *y, *loss;

    for (int64_t i = 0; i < BATCH * CONTEXT; i++) {
        token[i] = (i * 7 + salt * 13) % WORDS;
        next[i] = (i * 7 + salt * 13 + 7) % WORDS;
    }
    x = oar_from_data(tape, OAR_I64, OAR_SHAPE(BATCH, CONTEXT), token);
    y = oar_from_data(tape, OAR_I64, OAR_SHAPE(BATCH * CONTEXT), next);
    loss = oar_cross_entropy(tape, oar_forward(tape, net, x), y);
    TRY(oar_backward(tape, loss));
    TRY(oar_tensor_read(loss, OAR_F32, loss_is));
    TRY(oar_optim_step(optim));
    oar_optim_zero_grad(optim);
    oar_tape_reset(tape);
    return OAR_OK;
}

static oar_status leave_params(const oar_module *gpt, int rank)
{
    static float all[1 << 17];
    size_t used = 0;

    for (int i = 0; i < oar_module_params(gpt); i++) {
        oar_tensor *p = oar_module_param(gpt, i);
        TRY(oar_tensor_read(p, OAR_F32, all + used));
        used += (size_t)oar_tensor_count(p);
    }
    leave("params", rank, all, used * sizeof *all);
    return OAR_OK;
}

/* The network of examples/ddp_gpt, smaller. */
static oar_status train_with(oar_group *world, int adam)
{
    float loss[STEPS];
    oar_module *gpt, *net;
    oar_optim *optim;
    oar_tape *tape;

    TRY(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = WORDS,
                                .context = CONTEXT, .width = 32, .layers = 2,
                                .heads = 2, .seed = 3),
                       &gpt));
    net = oar_module_retain(gpt);
    TRY(oar_ddp_wrap(net, world, NULL, &net));
    TRY(adam
            ? oar_adamw_create(gpt, OAR_OPTS(oar_adam_opts, .lr = 1e-3), &optim)
            : oar_sgd_create(gpt, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &optim));
    TRY(oar_tape_create(&tape));
    for (int64_t step = 0; step < STEPS; step++)
        TRY(take_step(tape, net, optim,
                      step * oar_group_size(world) + oar_group_rank(world),
                      &loss[step]));
    TRY(leave_params(gpt, oar_group_rank(world)));
    leave("losses", oar_group_rank(world), loss, sizeof loss);
    oar_tape_destroy(tape);
    oar_optim_destroy(optim);
    oar_module_release(net);
    oar_module_release(gpt);
    return OAR_OK;
}

static oar_status train(oar_group *world)
{
    return train_with(world, 1);
}

static oar_status train_plainly(oar_group *world)
{
    return train_with(world, 0);
}

/* Rank 1 is killed when all others have told it that they are in the next
 * collective. */
static oar_status die(oar_group *world)
{
    float data[ODD] = { 0 };
    int rank = oar_group_rank(world), word = 0;
    oar_span buf = oar_span_of(data, ODD, OAR_F32);
    oar_span said = oar_span_of(&word, 1, OAR_I32);
    oar_work *work;

    for (int i = 0; i < 7; i++)
        TRY(oar_all_reduce(world, buf, OAR_SUM, NULL, NULL));
    for (int r = 0; rank == 1 && r < oar_group_size(world); r++)
        if (r != rank)
            TRY(oar_recv(world, said, r, 1, NULL, NULL));
    if (rank == 1)
        raise(SIGKILL);
    TRY(oar_all_reduce(world, buf, OAR_SUM, NULL, &work));
    TRY(oar_send(world, said, 1, 1, NULL, NULL));
    TRY(oar_work_wait(work));
    return OAR_E_INTERNAL;
}

/* What rank 1 calls instead of what the others call. */
typedef enum odd_call { KIND, COUNT, DTYPE, OP, ROOT, ODD_CALLS } odd_call;

static oar_status call_oddly(oar_group *g, odd_call odd, int mine)
{
    float data[2 * ODD] = { 0 };
    size_t count = odd == COUNT && mine ? ODD + 1 : ODD;
    oar_dtype dtype = odd == DTYPE && mine ? OAR_I32 : OAR_F32;
    oar_span span = oar_span_of(data, count, dtype);

    if (odd == ROOT || (odd == KIND && mine))
        return oar_broadcast(g, span, odd == ROOT && mine, NULL, NULL);
    return oar_all_reduce(g, span, odd == OP && mine ? OAR_MAX : OAR_SUM, NULL,
                          NULL);
}

/* Each on a group of its own; leaves the first that was not told. */
static oar_status differ(oar_group *world)
{
    int rank = oar_group_rank(world), told = 0;
    char text[600];

    for (int odd = 0; odd < ODD_CALLS; odd++) {
        oar_group *g = NULL;
        oar_status status;
        TRY(oar_group_dup(world, &g));
        TRY(oar_barrier(g, NULL, NULL));
        status = call_oddly(g, (odd_call)odd, rank == 1);
        if (status == OAR_OK) /* a broadcast's root may go ahead */
            status = oar_barrier(g, NULL, NULL);
        snprintf(text, sizeof text, "%d %s %s", odd, oar_status_name(status),
                 oar_last_error_text());
        told += status == OAR_E_MISMATCH &&
                strstr(oar_last_error_text(), "mpi_test.c:") != NULL;
        if (told != odd + 1)
            leave("untold", rank, text, strlen(text));
        TRY(oar_barrier(world, NULL, NULL));
        oar_group_destroy(g);
    }
    leave("reported", rank, &told, sizeof told);
    await_all("reported", oar_group_size(world));
    return OAR_OK;
}

/* Rank 0 sends and goes at once; rank 1 asks only when it has gone. */
static oar_status send_and_leave(oar_group *world)
{
    static char small[100], large[100000];
    oar_group *g = NULL;
    int rank = oar_group_rank(world);

    memset(small, 1, sizeof small);
    TRY(oar_group_dup(world, &g));
    if (rank == 0)
        TRY(oar_send(g, oar_span_of(small, sizeof small, OAR_U8), 1, 5, NULL,
                     NULL));
    if (rank == 0)
        oar_group_destroy(g);
    TRY(oar_barrier(world, NULL, NULL));
    if (rank == 1) {
        TRY(oar_recv(g, oar_span_of(large, sizeof small, OAR_U8), 0, 5, NULL,
                     NULL));
        if (memcmp(small, large, sizeof small) != 0)
            return OAR_E_DATA;
    }
    if (rank != 0)
        oar_group_destroy(g);
    return OAR_OK;
}

static oar_status name_backend(oar_group *world)
{
    const char *name = oar_group_backend(world);

    leave("name", oar_group_rank(world), name, strlen(name) + 1);
    return oar_barrier(world, NULL, NULL);
}

/* More elements than an int counts. */
static oar_status move_much(oar_group *world)
{
    size_t count = ((size_t)1 << 31) + 12345, wrong = 0;
    unsigned char *data = calloc(count, 1);
    oar_status status;

    if (data == NULL)
        return OAR_E_NOMEM;
    for (size_t i = 0; oar_group_rank(world) == 1 && i < count; i++)
        data[i] = (unsigned char)(i * 31 + (i >> 20));
    status =
        oar_broadcast(world, oar_span_of(data, count, OAR_U8), 1, NULL, NULL);
    for (size_t i = 0; i < count; i++)
        wrong += data[i] != (unsigned char)(i * 31 + (i >> 20));
    free(data);
    if (wrong != 0)
        fprintf(stderr, "%zu of %zu are wrong\n", wrong, count);
    return wrong != 0 ? OAR_E_INTERNAL : status;
}

static const struct {
    const char *name;
    oar_status (*play)(oar_group *world);
} roles[] = { { "train", train },
              { "train_plainly", train_plainly },
              { "die", die },
              { "differ", differ },
              { "send_and_leave", send_and_leave },
              { "move_much", move_much },
              { "name_backend", name_backend } };

static int play(const char *role)
{
    oar_group *world = NULL;
    oar_status status = oar_group_from_env(NULL, &world);

    for (size_t i = 0; status == OAR_OK && i < sizeof roles / sizeof *roles;
         i++)
        if (strcmp(role, roles[i].name) == 0)
            status = roles[i].play(world);
    if (status != OAR_OK)
        fprintf(stderr, "%s: %s\n", role, oar_last_error_text());
    oar_group_destroy(world);
    return status != OAR_OK;
}

/* ---- starting ranks ------------------------------------------------------ */

/* Leaves out what is NULL. */
static void execute(const char *const *args, size_t count)
{
    char *word[16];
    int n = 0;

    for (size_t i = 0; i < count; i++)
        if (args[i] != NULL)
            memcpy(&word[n++], &args[i], sizeof word[0]);
    word[n] = NULL;
    execvp(word[0], word);
}

/* launcher: a program and its first argument, or NULL. What is said goes to a
 * file. Returns the exit code, or 128 and the signal. */
static int run_by(const char *launcher, const char *word, int ranks,
                  const char *program, const char *argument)
{
    char count[8], limit[8], log[PATH];
    const char *args[] = { "timeout", limit,   launcher, word, "-n",
                           count,     program, argument, NULL };
    int status = 0, fd;
    pid_t child;

    snprintf(count, sizeof count, "%d", ranks);
    snprintf(limit, sizeof limit, "%d", LIMIT_S);
    snprintf(log, sizeof log, "%s/log", folder);
    if ((child = fork()) == 0) {
        mpi_ranks_allow_root();
        fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        execute(args, sizeof args / sizeof *args);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run(int ranks, const char *program, const char *argument)
{
    char launcher[32];

    snprintf(launcher, sizeof launcher, "mpirun.%s", flavour);
    return run_by(launcher, NULL, ranks, program, argument);
}

static void read_log(char *text, size_t bytes)
{
    char path[PATH];
    FILE *file;

    text[0] = 0;
    snprintf(path, sizeof path, "%s/log", folder);
    if ((file = fopen(path, "rb")) == NULL)
        return;
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

static void show_log(void)
{
    char text[4000];

    read_log(text, sizeof text);
    print_message("%s\n", text);
}

static int run_role(int ranks, const char *role, const char *backend)
{
    setenv("OARSONG_TEST_ROLE", role, 1);
    setenv("OARSONG_BACKEND", backend, 1);
    return run(ranks, self, NULL);
}

static void expect(int code)
{
    if (code != 0)
        show_log();
    assert_int_equal(code, 0);
}

/* ---- tests --------------------------------------------------------------- */

enum { PARAMS = 1 << 17 };

typedef struct trained_model {
    float param[PARAMS], loss[4 * STEPS];
    long bytes; /* of param */
    int ranks;
} trained_model;

/* Trains by that backend, with that algorithm or its own (NULL). All ranks have
 * the same parameters. */
static void train_by(const char *backend, const char *algorithm, int ranks,
                     const char *role, trained_model *o)
{
    static float other[PARAMS];

    if (algorithm != NULL)
        setenv("OARSONG_ALGO", algorithm, 1);
    expect(run_role(ranks, role, backend));
    unsetenv("OARSONG_ALGO");
    o->ranks = ranks;
    o->bytes = find("params", 0, o->param, sizeof o->param);
    assert_true(o->bytes > 10000);
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(find("params", r, other, sizeof other), o->bytes);
        assert_memory_equal(other, o->param, (size_t)o->bytes);
        assert_int_equal(find("losses", r, o->loss + (size_t)r * STEPS,
                              STEPS * sizeof(float)),
                         STEPS * sizeof(float));
    }
}

static double apart(const float *a, const float *b, size_t count)
{
    double worst = 0;

    for (size_t i = 0; i < count; i++) {
        double by = fabs((double)a[i] - (double)b[i]);
        if (by > worst)
            worst = by;
    }
    return worst;
}

static double params_apart(const trained_model *a, const trained_model *b)
{
    assert_int_equal(a->bytes, b->bytes);
    return apart(a->param, b->param, (size_t)a->bytes / sizeof *a->param);
}

static double losses_apart(const trained_model *a, const trained_model *b)
{
    return apart(a->loss, b->loss, (size_t)a->ranks * STEPS);
}

static double train_twice(int ranks, const char *role, const char *algorithm)
{
    static trained_model native, mpi;

    train_by("native", algorithm, ranks, role, &native);
    train_by("mpi", algorithm, ranks, role, &mpi);
    return params_apart(&native, &mpi);
}

static void training_gives_the_parameters_that_native_gives(void **state)
{
    assert_true(train_twice(2, "train", NULL) == 0); /* a + b is b + a */
    assert_true(train_twice(4, "train_plainly", NULL) <= 1e-6);
}

static void in_the_order_of_ranks_training_gives_the_same_bits(void **state)
{
    assert_true(train_twice(4, "train", "all_reduce:exchange") == 0);
}

/* Adam divides each gradient by its size: where that is nothing but rounding
 * the parameter goes either way, as far as any other. That holds for every
 * backend that adds in another order, native links too; the loss is the
 * same. */
static void with_adam_another_order_moves_what_has_no_gradient(void **state)
{
    static trained_model ring, exchange, mpi;
    double ours, theirs;

    train_by("native", "all_reduce:exchange", 4, "train", &exchange);
    train_by("native", "all_reduce:ring", 4, "train", &ring);
    train_by("mpi", NULL, 4, "train", &mpi);
    ours = params_apart(&ring, &exchange);
    theirs = params_apart(&mpi, &exchange);
    print_message("parameters: native in two orders %.2g apart, mpi %.2g; "
                  "losses %.2g and %.2g\n",
                  ours, theirs, losses_apart(&ring, &exchange),
                  losses_apart(&mpi, &exchange));
    assert_true(theirs <= STEPS * 2e-3); /* the most that Adam ever moves */
    assert_true(ours > 1e-6 && theirs <= 100 * ours);
    assert_true(losses_apart(&mpi, &exchange) <= 1e-6);
}

static void a_program_that_initialised_mpi_keeps_it(void **state)
{
    static const char *const levels[] = { "serialized", "multiple", "late" };
    char program[PATH];

    snprintf(program, sizeof program, "%s/tests/engines/own_mpi_%s",
             getenv("OARSONG_BUILD_DIR"), flavour);
    setenv("OARSONG_BACKEND", "mpi", 1);
    for (int i = 0; i < 3; i++)
        expect(run(2, program, levels[i]));
}

/* MPICH 5 says it itself, in the program's own MPI_Init; and two ranks of Open
 * MPI that do not know of each other may fail there at making the same folder.
 */
static int says_wrong_mpirun(const char *text)
{
    return strstr(text, "orte_init failed") != NULL ||
           strstr(text, "mpirun of this MPI") != NULL ||
           strstr(text, "not of one MPI job") != NULL ||
           strstr(text, "uses another MPI") != NULL ||
           strstr(text, "unsupported PMI version") != NULL;
}

/* Any backend gives an error that says what to do, and does not crash. */
static void the_wrong_mpirun_is_reported(void **state)
{
    static const char *const backends[] = { "mpi", "mpi-openmpi", "mpi-mpich" };
    const char *other = strcmp(flavour, "mpich") == 0 ? "openmpi" : "mpich";
    char program[PATH], launcher[32], path[64], text[4000];

    snprintf(launcher, sizeof launcher, "mpirun.%s", other);
    snprintf(path, sizeof path, "/usr/bin/%s", launcher);
    if (access(path, X_OK) != 0) {
        print_message("skipped: there is no %s\n", path);
        skip();
    }
    snprintf(program, sizeof program, "%s/tests/engines/own_mpi_%s",
             getenv("OARSONG_BUILD_DIR"), flavour);
    for (int i = 0; i < 3; i++) {
        setenv("OARSONG_BACKEND", backends[i], 1);
        assert_int_not_equal(run_by(launcher, NULL, 2, program, "multiple"), 0);
        read_log(text, sizeof text);
        if (!says_wrong_mpirun(text) || strstr(text, "Segmentation") != NULL)
            show_log();
        assert_null(strstr(text, "Segmentation"));
        assert_true(says_wrong_mpirun(text));
    }
}

static void mpirun_decides_which_mpi_it_is(void **state)
{
    char name[32] = "", wanted[32];

    snprintf(wanted, sizeof wanted, "mpi-%s", flavour);
    expect(run_role(2, "name_backend", "mpi"));
    assert_true(find("name", 1, name, sizeof name) > 0);
    assert_string_equal(name, wanted);
}

static void what_was_sent_before_leaving_arrives(void **state)
{
    expect(run_role(3, "send_and_leave", "mpi"));
}

/* Twice two GiB: only where OARSONG_TEST_LARGE is set. */
static void more_than_an_int_counts_is_moved(void **state)
{
    if (getenv("OARSONG_TEST_LARGE") == NULL) {
        print_message("skipped: OARSONG_TEST_LARGE is not set\n");
        skip();
    }
    expect(run_role(2, "move_much", "mpi"));
}

/* MPI without ULFM ends the job; our recorder is ours. */
static void the_autopsy_names_the_rank_that_died_first(void **state)
{
    char recorder_files[PATH], *text = NULL;
    oar_autopsy *autopsy = NULL;

    snprintf(recorder_files, sizeof recorder_files, "%s/records", folder);
    mkdir(recorder_files, 0700);
    setenv("OARSONG_RECORDER_DIR", recorder_files, 1);
    assert_int_not_equal(run_role(3, "die", "mpi"), 0);
    unsetenv("OARSONG_RECORDER_DIR");
    assert_int_equal(oar_autopsy_open(recorder_files, &autopsy), OAR_OK);
    assert_int_equal(oar_autopsy_text(autopsy, &text), OAR_OK);
    if (strstr(text, "rank 1") == NULL)
        print_message("%s\n", text);
    assert_non_null(strstr(text, "rank 1"));
    oar_free(text);
    oar_autopsy_destroy(autopsy);
    folder_remove(recorder_files);
}

static void ranks_that_call_other_things_get_a_mismatch(void **state)
{
    char text[700] = "";
    int told = 0;

    run_role(3, "differ", "mpi"); /* the job ends as it likes */
    for (int r = 0; r < 3; r++) {
        if (find("untold", r, text, sizeof text - 1) > 0)
            print_message("rank %d: %s\n", r, text);
        if (find("reported", r, &told, sizeof told) != sizeof told)
            show_log();
        assert_int_equal(told, ODD_CALLS);
    }
}

static void without_mpirun_it_says_what_to_use(void **state)
{
    char name[32], command[PATH], text[4000];

    snprintf(name, sizeof name, "mpi-%s", flavour);
    snprintf(command, sizeof command, "%s/bin/oarsong",
             getenv("OARSONG_BUILD_DIR"));
    setenv("OARSONG_TEST_ROLE", "name_backend", 1);
    setenv("OARSONG_BACKEND", name, 1);
    assert_int_not_equal(run_by(command, "run", 2, self, NULL), 0);
    read_log(text, sizeof text);
    assert_non_null(strstr(text, "run it by mpirun"));
}

static void a_group_of_one_needs_no_mpirun(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *group = NULL;
    float data[3] = { 1, 2, 3 };
    char name[32];

    snprintf(name, sizeof name, "mpi-%s", flavour);
    o.backend = name;
    assert_int_equal(oar_group_create(NULL, 0, 1, &o, &group), OAR_OK);
    assert_string_equal(oar_group_backend(group), name);
    assert_int_equal(oar_all_reduce(group, oar_span_of(data, 3, OAR_F32),
                                    OAR_AVG, NULL, NULL),
                     OAR_OK);
    assert_true(data[0] == 1 && data[2] == 3);
    oar_group_destroy(group);
}

/* ---- for each MPI -------------------------------------------------------- */

static int set_up(void **state)
{
    folder_make(folder);
    setenv("OARSONG_TEST_FOLDER", folder, 1);
    /* Open MPI's mpiruns of one user remove a folder that others need. */
    setenv("OMPI_MCA_orte_tmpdir_base", folder, 1);
    return 0;
}

static int tear_down(void **state)
{
    unsetenv("OMPI_MCA_orte_tmpdir_base");
    folder_remove(folder);
    return 0;
}

static int run_all(const char *which)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_gives_the_parameters_that_native_gives),
        cmocka_unit_test(in_the_order_of_ranks_training_gives_the_same_bits),
        cmocka_unit_test(with_adam_another_order_moves_what_has_no_gradient),
        cmocka_unit_test(a_program_that_initialised_mpi_keeps_it),
        cmocka_unit_test(the_wrong_mpirun_is_reported),
        cmocka_unit_test(mpirun_decides_which_mpi_it_is),
        cmocka_unit_test(what_was_sent_before_leaving_arrives),
        cmocka_unit_test(more_than_an_int_counts_is_moved),
        cmocka_unit_test(the_autopsy_names_the_rank_that_died_first),
        cmocka_unit_test(ranks_that_call_other_things_get_a_mismatch),
        cmocka_unit_test(without_mpirun_it_says_what_to_use),
        cmocka_unit_test(a_group_of_one_needs_no_mpirun),
    };

    flavour = which;
    return cmocka_run_group_tests_name(which, tests, set_up, tear_down);
}

int main(void)
{
    static const char *const names[] = { "openmpi", "mpich" };
    oar_backend_caps caps = oar_backend_caps_init();
    const char *build = getenv("OARSONG_BUILD_DIR");
    char plugins[PATH], backend[32];
    int failed = 0, there = 0;

    if (getenv("OARSONG_TEST_ROLE") != NULL)
        return play(getenv("OARSONG_TEST_ROLE"));
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    snprintf(plugins, sizeof plugins, "%s/lib", build != NULL ? build : ".");
    setenv("OARSONG_PLUGIN_PATH", plugins, 1);
    setenv("OARSONG_TIMEOUT_MS", "30000", 0);
    for (int i = 0; i < 2; i++) {
        snprintf(backend, sizeof backend, "mpi-%s", names[i]);
        if (oar_backend_available(backend, &caps) != OAR_OK) {
            printf("%s: skipped: %s\n", backend, oar_last_error_text());
            continue;
        }
        failed += run_all(names[i]);
        there++;
    }
    return there != 0 ? failed : SKIPPED;
}
