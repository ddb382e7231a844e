/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong top: what the ranks of a running job do now, in a terminal. */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "tool.h"
#include "top.h"

typedef struct top_options {
    const char *what; /* NULL: the newest job */
    int once;
    double interval_s;
} top_options;

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong top [RUN_ID|PID|DIR] [--once] [--interval S]\n\n"
            "Shows what the ranks of a running job on this host do: a line for "
            "each with the\noperation it is in, where that is called, whom it "
            "waits for, and what it does a\nsecond. The job needs no option "
            "for that; it has to be of the same user. Without a\nname, it is "
            "the job that was started last. q ends it.\n\n"
            "  RUN_ID|PID|DIR  a job: its run id, the pid of its launcher or "
            "of one rank, or its\n                  OARSONG_RECORDER_DIR\n"
            "  --once          print it once, as when the output is no "
            "terminal\n"
            "  --interval S    look every S seconds (1)\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

/* Returns 0 after complaining. */
static int read_options(int argc, char **argv, top_options *o)
{
    for (int i = 1; i < argc; i++) {
        char *end;

        if (strcmp(argv[i], "--once") == 0)
            o->once = 1;
        else if (strcmp(argv[i], "--interval") == 0 && i + 1 < argc) {
            o->interval_s = strtod(argv[++i], &end);
            if (*end != 0 || !(o->interval_s >= 0.05 && o->interval_s <= 3600))
                return tool_bad_option("top", "--interval", argv[i], 1);
        } else if (argv[i][0] != '-' && o->what == NULL)
            o->what = argv[i];
        else
            return tool_bad_option("top", argv[i], NULL,
                                   strcmp(argv[i], "--interval") == 0 ? 1 : -1);
    }
    return 1;
}

/* ---- the terminal -------------------------------------------------------- */

static volatile sig_atomic_t ended;

static void end(int signal_number)
{
    ended = signal_number;
}

static struct termios before;

/* Shows a second screen, without a cursor, and reads keys one by one. */
static void enter_screen(void)
{
    struct termios now;
    struct sigaction act = { .sa_handler = end };

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    if (tcgetattr(STDIN_FILENO, &before) == 0) {
        now = before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    fputs("\033[?1049h\033[?25l", stdout);
}

static void leave_screen(void)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

/* Waits, and returns whether the user wants to end. */
static int wait_for_key(double seconds)
{
    struct pollfd key = { STDIN_FILENO, POLLIN, 0 };
    char c = 0;

    if (poll(&key, 1, (int)(seconds * 1e3)) > 0 &&
        read(STDIN_FILENO, &c, 1) <= 0)
        return 1;
    return ended != 0 || c == 'q' || c == 3;
}

static int run_screen(oar_live *live, const top_options *o)
{
    struct winsize size;
    int failed = 0;

    enter_screen();
    do {
        int known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
        top_screen screen = { .rows =
                                  known && size.ws_row > 0 ? size.ws_row : 24,
                              .columns =
                                  known && size.ws_col > 0 ? size.ws_col : 80,
                              .ansi = 1 };

        fputs("\033[H\033[2J", stdout);
        top_print(live, &screen, stdout);
        fflush(stdout);
        if (wait_for_key(o->interval_s))
            break;
        failed = oar_live_look(live) != OAR_OK;
    } while (!failed);
    leave_screen();
    return failed ? tool_failed("top") : TOOL_OK;
}

/* Looks twice: how long a rank waits is seen between two looks. */
static int run_once(oar_live *live)
{
    top_screen screen = { .rows = 1 << 20, .columns = 200 };

    usleep(300000);
    if (oar_live_look(live) != OAR_OK)
        return tool_failed("top");
    top_print(live, &screen, stdout);
    return fflush(stdout) == 0 ? TOOL_OK : TOOL_FAILED;
}

int tool_top(int argc, char **argv)
{
    top_options o = { .interval_s = 1 };
    oar_live *live;
    int code;

    if (argc > 1 &&
        (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return usage(stdout);
    if (!read_options(argc, argv, &o))
        return TOOL_USAGE;
    if (oar_live_open(o.what, &live) != OAR_OK)
        return tool_failed("top");
    code = o.once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)
               ? run_once(live)
               : run_screen(live, &o);
    oar_live_close(live);
    return code;
}
