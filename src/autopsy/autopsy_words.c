/* SPDX-License-Identifier: Apache-2.0 */
/* autopsy_words: the words that sentences and tables are made of. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/vec.h"
#include "autopsy/autopsy.h"

void oari_say(oari_words *w, const char *format, ...)
{
    va_list args;
    int bytes;

    va_start(args, format);
    bytes = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (w->failed || bytes < 0 ||
        oari_array_reserve(w->text, w->used, w->room, bytes + 1) != OAR_OK) {
        w->failed = 1;
        return;
    }
    va_start(args, format);
    vsnprintf(w->text + w->used, (size_t)bytes + 1, format, args);
    va_end(args);
    w->used += (size_t)bytes;
}

/* How many ranks from `at` on follow each other. */
static int run_length(const int *rank, int count, int at)
{
    int n = 1;

    while (at + n < count && rank[at + n] == rank[at] + n)
        n++;
    return n;
}

void oari_rank_list(const int *rank, int count, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < count;) {
        int n = run_length(rank, count, i);
        char one[40];

        if (n < 3)
            n = 1;
        snprintf(one, sizeof one, n > 1 ? "%s%d-%d" : "%s%d", i > 0 ? ", " : "",
                 rank[i], rank[i] + n - 1);
        if (used + strlen(one) + 5 > bytes) {
            snprintf(text + used, bytes - used, "..");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s", one);
        i += n;
    }
}

void oari_age_text(int64_t ns, char text[32])
{
    int64_t s = ns / 1000000000;

    if (s < 1)
        snprintf(text, 32, "%" PRId64 " ms", ns / 1000000);
    else if (s < 120)
        snprintf(text, 32, "%" PRId64 ".%d s", s,
                 (int)(ns % 1000000000 / 100000000));
    else if (s < 7200)
        snprintf(text, 32, "%" PRId64 " min %d s", s / 60, (int)(s % 60));
    else
        snprintf(text, 32, "%" PRId64 " h %d min", s / 3600,
                 (int)(s / 60 % 60));
}

void oari_life_text(const oari_witness *w, char *text, size_t bytes)
{
    const char *word = "not seen from here";

    switch (w->life) {
    case OARI_LIFE_ABSENT: word = "no call yet"; break;
    case OARI_LIFE_RUNS: word = "running"; break;
    case OARI_LIFE_SLEEPS: word = "sleeping"; break;
    case OARI_LIFE_STOPPED: word = "stopped"; break;
    case OARI_LIFE_EXITED: word = "exited"; break;
    case OARI_LIFE_DEAD: word = "dead"; break;
    case OARI_LIFE_UNKNOWN: break;
    }
    snprintf(text, bytes, "%s", w->note[0] != 0 ? w->note : word);
}

/* " from rank 1, tag 7", with the rank's number in the world. */
static void say_peer(const oari_case *c, const oari_op *op, char *text,
                     size_t bytes)
{
    const char *way = op->kind == OAR_COLL_SEND ? "to" : "from";
    int known = op->root >= 0 && op->root < c->ranks;
    int world = known ? c->part[op->root].world : -1;
    int n = known ? snprintf(text, bytes, " %s rank %d", way,
                             world >= 0 ? world : op->root)
                  : snprintf(text, bytes, " %s any rank", way);

    if (n < 0 || (size_t)n >= bytes)
        return;
    if (op->tag >= 0)
        snprintf(text + n, bytes - (size_t)n, ", tag %" PRId64 ",", op->tag);
}

void oari_op_text(const oari_case *c, const oari_part *p, const oari_op *op,
                  char *text, size_t bytes)
{
    oar_record r = oari_op_record(p, op);
    char peer[64] = "";

    if (op->kind >= OAR_COLL_SEND)
        say_peer(c, op, peer, sizeof peer);
    snprintf(
        text, bytes, "%s #%" PRIu64 "%s at %s%s%s%s", oar_coll_name(op->kind),
        op->number != 0 ? op->number : op->sequence, peer, r.site,
        r.label[0] != 0 ? " \"" : "", r.label, r.label[0] != 0 ? "\"" : "");
}
