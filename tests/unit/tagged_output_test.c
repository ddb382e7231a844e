/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks print, on its way to where it is shown: whole lines, all bytes,
 * and no rank that waits for ever. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launch/launch.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { STREAMS = 3 };

/* A writer with its reader, and ranks that write into streams. */
typedef struct output_context {
    launch_writer writer;
    launch_stream stream[STREAMS];
    int out; /* the writer's other end */
    char *got;
    size_t bytes, room;
} output_context;

static void open_streams(output_context *d, int write_fd)
{
    OK(launch_writer_open(&d->writer, write_fd));
    for (int i = 0; i < STREAMS; i++) {
        OK(launch_stream_open(&d->stream[i], &d->writer, -1));
        snprintf(d->stream[i].tag, sizeof d->stream[i].tag, "[%d] ", i);
    }
    d->room = 1 << 22;
    d->got = malloc(d->room);
}

static int context_open(output_context *d)
{
    int ends[2];

    *d = (output_context){ 0 };
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    d->out = ends[0];
    fcntl(d->out, F_SETFL, O_NONBLOCK);
    open_streams(d, ends[1]);
    return ends[1];
}

static void context_close(output_context *d, int write_fd)
{
    for (int i = 0; i < STREAMS; i++)
        launch_stream_close(&d->stream[i]);
    launch_writer_close(&d->writer);
    close(write_fd);
    if (d->out >= 0)
        close(d->out);
    free(d->got);
}

static void take_out(output_context *d)
{
    ssize_t n;

    while (d->out >= 0 &&
           (n = read(d->out, d->got + d->bytes, d->room - 1 - d->bytes)) > 0)
        d->bytes += (size_t)n;
    d->got[d->bytes] = 0;
}

/* One pass of the launcher's loop. Returns whether anything is left. */
static int turn(output_context *d)
{
    int more = 0;

    for (int i = 0; i < STREAMS; i++) {
        if (launch_stream_wants(&d->stream[i]))
            launch_stream_read(&d->stream[i]);
        more |= !launch_stream_pump(&d->stream[i]);
    }
    launch_writer_write(&d->writer);
    take_out(d);
    return more || launch_writer_waiting(&d->writer) > 0;
}

static void rank_writes(output_context *d, int i, const char *text)
{
    assert_int_equal(write(d->stream[i].peer_fd, text, strlen(text)),
                     strlen(text));
}

static void rank_ends(output_context *d, int i)
{
    close(d->stream[i].peer_fd);
    d->stream[i].peer_fd = -1;
}

static void finish(output_context *d)
{
    for (int i = 0; i < STREAMS; i++)
        if (d->stream[i].peer_fd >= 0)
            rank_ends(d, i);
    while (turn(d))
        continue;
}

static void lines_come_whole_and_tagged(void **state)
{
    output_context d;
    int fd = context_open(&d);

    rank_writes(&d, 0, "one\ntw");
    rank_writes(&d, 1, "un\n");
    turn(&d);
    assert_string_equal(d.got, "[0] one\n[1] un\n");
    rank_writes(&d, 1, "deux\n");
    rank_writes(&d, 0, "o\n");
    turn(&d);
    assert_string_equal(d.got, "[0] one\n[1] un\n[0] two\n[1] deux\n");
    finish(&d);
    context_close(&d, fd);
}

static void the_last_line_needs_no_newline(void **state)
{
    output_context d;
    int fd = context_open(&d);

    rank_writes(&d, 2, "\nend");
    turn(&d);
    assert_string_equal(d.got, "[2] \n");
    finish(&d);
    assert_string_equal(d.got, "[2] \n[2] end\n");
    context_close(&d, fd);
}

/* 3 MiB without a newline, zeros and all, in pieces as the pipe takes them. */
static void a_very_long_line_survives(void **state)
{
    enum { LONG = 3 << 20 };
    unsigned char *line = malloc(LONG);
    size_t sent = 0;
    output_context d;
    int fd = context_open(&d);

    for (size_t i = 0; i < LONG; i++)
        line[i] = (unsigned char)(i * 7 % 251 == '\n' ? 0 : i * 7 % 251);
    line[LONG - 1] = '\n';
    fcntl(d.stream[0].peer_fd, F_SETFL, O_NONBLOCK);
    while (sent < LONG) {
        ssize_t n = write(d.stream[0].peer_fd, line + sent, LONG - sent);
        sent += n > 0 ? (size_t)n : 0;
        if (sent > LONG / 2 && sent < LONG / 2 + (1 << 17))
            rank_writes(&d, 1, "me too\n");
        turn(&d);
    }
    finish(&d);
    assert_memory_equal(d.got, "[0] ", 4);
    assert_memory_equal(d.got + 4, line, LONG); /* in one piece */
    assert_non_null(strstr(d.got + 4 + LONG, "[1] me too\n"));
    free(line);
    context_close(&d, fd);
}

static void a_rank_that_pauses_in_a_long_line_gives_way(void **state)
{
    enum { HALF = 100000 };
    char *half = calloc(HALF + 1, 1);
    output_context d;
    int fd = context_open(&d);

    memset(half, 'x', HALF);
    fcntl(d.stream[0].peer_fd, F_SETPIPE_SZ, 1 << 18);
    rank_writes(&d, 0, half);
    rank_writes(&d, 1, "patience\n");
    while (strstr(d.got, "patience") == NULL)
        turn(&d);
    assert_non_null(strstr(d.got, "x\n[1] patience\n"));
    finish(&d);
    free(half);
    context_close(&d, fd);
}

/* While the reader pauses, reading from the ranks stops; it goes on later. */
static void a_reader_that_waits_stops_the_ranks_not_the_launcher(void **state)
{
    char line[1001];
    size_t lines = 0;
    output_context d;
    int fd = context_open(&d), out = d.out;

    memset(line, 'y', 999);
    line[999] = '\n';
    line[1000] = 0;
    d.out = -1; /* take_out does nothing */
    fcntl(d.stream[0].peer_fd, F_SETFL, O_NONBLOCK);
    for (int silent = 0; silent < 5;) {
        int went = write(d.stream[0].peer_fd, line, 1000) == 1000;
        lines += (size_t)went;
        silent = went ? 0 : silent + 1;
        turn(&d);
    }
    assert_true(lines < 2000); /* bounded: the writer, the stream, two pipes */
    d.out = out;
    finish(&d);
    assert_int_equal(d.bytes, lines * 1004);
    context_close(&d, fd);
}

static void a_closed_output_reaches_the_ranks_as_an_error(void **state)
{
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    output_context d;
    int fd = context_open(&d);

    close(d.out);
    d.out = -1;
    rank_writes(&d, 0, "to nobody\n");
    for (int i = 0; i < 3; i++)
        turn(&d);
    assert_int_equal(write(d.stream[0].peer_fd, "x", 1), -1);
    assert_int_equal(errno, EPIPE);
    finish(&d);
    context_close(&d, fd);
    signal(SIGPIPE, before);
}

static void limit_file(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A limit on the size of files stands for a disk that is full for a while. */
static void a_full_disk_costs_lines_and_ends_no_rank(void **state)
{
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    FILE *file = tmpfile();
    output_context d = { .out = -1 };
    ssize_t bytes;

    assert_non_null(file);
    open_streams(&d, fileno(file));
    limit_file(6);
    rank_writes(&d, 0, "written in part\n");
    turn(&d);
    assert_int_equal(d.writer.lost, EFBIG);
    for (int i = 0; i < 3; i++) {
        rank_writes(&d, 0, "lost\n");
        turn(&d);
    }
    limit_file(RLIM_INFINITY);
    rank_writes(&d, 0, "written again\n");
    finish(&d);
    bytes = pread(fileno(file), d.got, d.room - 1, 0);
    assert_true(bytes > 0);
    d.got[bytes] = 0;
    assert_string_equal(d.got, "[0] wr\n[0] written again\n");
    context_close(&d, dup(fileno(file)));
    fclose(file);
    signal(SIGXFSZ, before);
}

/* What launch_event_loop does when the last rank has ended without a word. */
static void a_stream_that_has_ended_is_not_waited_for(void **state)
{
    launch l = { .ranks = 1, .opts = oar_launch_opts_init() };
    int count;

    l.opts.lines = 1;
    l.rank = calloc(1, sizeof *l.rank);
    OK(launch_logs_read(&l.logs, &l.opts, "run", 1));
    OK(launch_output_open(&l));
    OK(launch_output_rank(&l, 0));
    launch_output_started(&l, 0); /* so no process has the writing ends */
    count = launch_output_poll(&l, 0);
    assert_int_equal(poll(l.poll, (nfds_t)count, -1), count);
    assert_int_equal(launch_output_move(&l), LAUNCH_OUTPUT_DONE);
    launch_output_end(&l);
    launch_output_close(&l);
    launch_logs_drop(&l.logs);
    free(l.rank);
}

/* ---- terminals ----------------------------------------------------------- */

static int open_terminal(output_context *d)
{
    struct winsize size = { .ws_row = 24, .ws_col = 60 };
    char name[64];
    int slave;

    *d = (output_context){ 0 };
    d->out = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (d->out < 0 || grantpt(d->out) != 0 || unlockpt(d->out) != 0 ||
        ptsname_r(d->out, name, sizeof name) != 0 ||
        (slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0)
        return -1;
    ioctl(slave, TIOCSWINSZ, &size);
    fcntl(d->out, F_SETFL, O_NONBLOCK);
    open_streams(d, slave);
    return slave;
}

/* Waits for the text to be on the terminal. */
static void until(output_context *d, const char *text)
{
    int64_t patience = oari_deadline(20000);

    while (strstr(d->got, text) == NULL) {
        turn(d);
        if (oari_now_ns() > patience)
            fail_msg("\"%s\" does not say \"%s\"", d->got, text);
    }
}

static void a_terminal_shows_progress_and_takes_it_back(void **state)
{
    output_context d;
    int fd = open_terminal(&d);

    if (fd < 0)
        skip();                               /* no terminals here */
    assert_true(isatty(d.stream[0].peer_fd)); /* so does a rank have one */
    rank_writes(&d, 0, "\rstep 1   ");
    until(&d, "\r\033[K[0] step 1   ");
    rank_writes(&d, 0, "\rstep 2   ");
    until(&d, "\r\033[K[0] step 2   ");
    rank_writes(&d, 1, "a line\n");
    until(&d, "step 2   \r\033[K[1] a line\r\n");
    rank_writes(&d, 0, "\rstep 3\n");
    until(&d, "[1] a line\r\n[0] step 3\r\n");
    assert_null(strstr(strstr(d.got, "[1] a line"), "step 2"));
    finish(&d);
    context_close(&d, fd);
}

static void a_terminal_is_not_flooded_by_a_line_too_long_for_it(void **state)
{
    output_context d;
    int fd = open_terminal(&d);

    if (fd < 0)
        skip();
    for (int i = 0; i < 50; i++)
        rank_writes(&d, 0, "0123456789");
    rank_writes(&d, 1, "short\n");
    until(&d, "[1] short\r\n");
    rank_writes(&d, 0, "\n");
    until(&d, "0123456789\r\n");
    finish(&d);
    context_close(&d, fd);
}

/* ---- which output goes where --------------------------------------------- */

static void outputs_are_chosen_for_all_or_by_rank(void **state)
{
    unsigned char v[3];

    OK(launch_std_read("tee", NULL, 3, v));
    assert_memory_equal(v, "\0\0\0", 3);
    OK(launch_std_read("tee", "2", 3, v));
    assert_memory_equal(v, "\2\2\2", 3);
    OK(launch_std_read("tee", "0:1,2:3", 3, v));
    assert_memory_equal(v, "\1\0\3", 3);
    OK(launch_filter_read(NULL, 3, v));
    assert_memory_equal(v, "\1\1\1", 3);
    OK(launch_filter_read("0,2,9", 3, v));
    assert_memory_equal(v, "\1\0\1", 3);
}

static void outputs_that_are_none_are_named(void **state)
{
    static const char *const bad[] = {
        "4",  "-1",   "x",     "",   "0:4", "0:",
        ":1", "0:1,", "0:1;1", "1 ", "a:1", "0,1"
    };
    unsigned char v[3];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (launch_std_read("tee", bad[i], 3, v) != OAR_E_ARG)
            fail_msg("\"%s\" was taken", bad[i]);
    assert_fails_with(launch_std_read("tee", "3:1", 3, v), OAR_E_ARG,
                      "tee names local rank 3 of 3");
    assert_fails_with(launch_filter_read("1,x", 3, v), OAR_E_ARG, "1,x");
    assert_int_equal(launch_filter_read("", 3, v), OAR_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_whole_and_tagged),
        cmocka_unit_test(the_last_line_needs_no_newline),
        cmocka_unit_test(a_very_long_line_survives),
        cmocka_unit_test(a_rank_that_pauses_in_a_long_line_gives_way),
        cmocka_unit_test(a_reader_that_waits_stops_the_ranks_not_the_launcher),
        cmocka_unit_test(a_closed_output_reaches_the_ranks_as_an_error),
        cmocka_unit_test(a_full_disk_costs_lines_and_ends_no_rank),
        cmocka_unit_test(a_stream_that_has_ended_is_not_waited_for),
        cmocka_unit_test(a_terminal_shows_progress_and_takes_it_back),
        cmocka_unit_test(a_terminal_is_not_flooded_by_a_line_too_long_for_it),
        cmocka_unit_test(outputs_are_chosen_for_all_or_by_rank),
        cmocka_unit_test(outputs_that_are_none_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
