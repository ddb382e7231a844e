/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_draw: schedules over time, as texts, SVG and traces. Each painter
 * writes twice: first to learn the length. */
#include <math.h>

#include "parallel/schedule/schedule.h"
#include "base/status.h"

/* Texts have at most so many columns, SVGs so many pixels for all of the time.
 */
enum { COLUMNS = 240, PIXELS = 1600, LANE = 28, LABEL = 64 };

typedef struct painting {
    const oar_schedule *s;
    const oari_timeline *t;
    oari_schedule_writer *w;
    double unit; /* the shortest action, or what is drawn as one column */
} painting;

/* ---- texts --------------------------------------------------------------- */

/* Returns whether an action computes, and has run. */
static int is_drawn(const painting *p, int rank, int64_t i)
{
    return oari_act_computes(p->s->row[rank].data[i].act) &&
           p->t->begin[p->t->first[rank] + i] >= 0;
}

static int column_at(const painting *p, double time)
{
    return p->unit > 0 ? (int)floor(time / p->unit + 0.5) : 0;
}

static char letter_of(const oar_action *a)
{
    int digit = a->micro % 10;

    return (char)(a->act == OAR_ACT_F   ? '0' + digit
                  : a->act == OAR_ACT_W ? '.'
                                        : 'a' + digit);
}

/* A line for one stage of a rank. */
static void paint_line(const painting *p, int rank, int stage, char *line)
{
    const oari_action_row *row = &p->s->row[rank];
    int columns = column_at(p, p->t->time);

    memset(line, ' ', (size_t)columns);
    for (int64_t i = 0; i < row->count; i++) {
        const oar_action *a = &row->data[i];
        int64_t place = p->t->first[rank] + i;

        if (a->stage != stage || !is_drawn(p, rank, i))
            continue;
        for (int c = column_at(p, p->t->begin[place]);
             c < column_at(p, p->t->end[place]) && c < columns; c++)
            line[c] = letter_of(a);
    }
    line[columns] = '\0';
}

static int digits_of(int number)
{
    int digits = 1;

    for (; number >= 10; number /= 10)
        digits++;
    return digits;
}

static void paint_text(const painting *p)
{
    int ranks = digits_of(p->s->ranks - 1),
        stages = digits_of(p->s->stages - 1);
    int several = p->s->stages > p->s->ranks;
    char line[COLUMNS + 2];

    for (int r = 0; r < p->s->ranks; r++)
        for (int stage = 0, first = 1; stage < p->s->stages; stage++) {
            if (p->s->rank_of[stage] != r)
                continue;
            paint_line(p, r, stage, line);
            if (first)
                oari_write(p->w, "rank %*d ", ranks, r);
            else
                oari_write(p->w, "%*s", ranks + 6, "");
            if (several)
                oari_write(p->w, "stage %*d ", stages, stage);
            oari_write(p->w, "|%s|\n", line);
            first = 0;
        }
}

/* ---- SVG ----------------------------------------------------------------- */

static void paint_box(const painting *p, int rank, int64_t i)
{
    static const int hue[] = { 212, 130, 160, 38 }; /* F, B, I, W */
    const oar_action *a = &p->s->row[rank].data[i];
    int64_t place = p->t->first[rank] + i;
    double scale = p->t->time > 0 ? PIXELS / p->t->time : 0;
    double x = LABEL + scale * p->t->begin[place];
    double width = scale * (p->t->end[place] - p->t->begin[place]);
    int y = rank * LANE + 2;

    oari_write(p->w,
               "<g><title>%d%s%d</title><rect x=\"%.2f\" y=\"%d\" "
               "width=\"%.2f\" height=\"%d\" fill=\"hsl(%d,60%%,%d%%)\"/>",
               a->stage, &"F\0B\0I\0W"[2 * a->act], a -> micro, x, y, width,
               LANE - 4, hue[a->act], 78 - 14 * (a->stage / p->s->ranks % 4));
    if (width >= 14)
        oari_write(p->w, "<text x=\"%.2f\" y=\"%d\">%d</text>", x + width / 2,
                   y + LANE / 2 + 2, a->micro);
    oari_write(p->w, "</g>\n");
}

static void paint_svg(const painting *p)
{
    oari_write(p->w,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d "
               "%d\" font-family=\"sans-serif\" font-size=\"11\" "
               "text-anchor=\"middle\" stroke-width=\"0.5\">\n",
               LABEL + PIXELS + 8, p->s->ranks * LANE + 4);
    for (int r = 0; r < p->s->ranks; r++) {
        oari_write(p->w, "<text x=\"%d\" y=\"%d\">rank %d</text>\n", LABEL / 2,
                   r * LANE + LANE / 2 + 4, r);
        oari_write(p->w, "<g stroke=\"#333\">\n");
        for (int64_t i = 0; i < p->s->row[r].count; i++)
            if (is_drawn(p, r, i))
                paint_box(p, r, i);
        oari_write(p->w, "</g>\n");
    }
    oari_write(p->w, "</svg>\n");
}

/* ---- traces -------------------------------------------------------------- */

static void paint_chrome(const painting *p)
{
    const char *comma = "";

    oari_write(p->w, "{\"traceEvents\":[\n");
    for (int r = 0; r < p->s->ranks; r++) {
        oari_write(p->w,
                   "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,"
                   "\"tid\":%d,\"args\":{\"name\":\"rank %d\"}}",
                   comma, r, r);
        comma = ",\n";
        for (int64_t i = 0; i < p->s->row[r].count; i++) {
            const oar_action *a = &p->s->row[r].data[i];
            int64_t place = p->t->first[r] + i;

            if (!is_drawn(p, r, i))
                continue;
            oari_write(p->w, ",\n{\"name\":\"");
            oari_write_action(p->w, a);
            oari_write(p->w,
                       "\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,"
                       "\"dur\":%.3f,\"args\":{\"stage\":%d,\"micro\":%d}}",
                       r, 1e3 * p->t->begin[place],
                       1e3 * (p->t->end[place] - p->t->begin[place]), a->stage,
                       a->micro);
        }
    }
    oari_write(p->w, "\n],\"displayTimeUnit\":\"ms\"}\n");
}

/* ---- all ----------------------------------------------------------------- */

/* Returns the length of the shortest action, or more if there are too many. */
static double unit_of(const oar_schedule *s, const oari_timeline *t)
{
    double least = t->time;

    for (int r = 0; r < s->ranks; r++)
        for (int64_t i = t->first[r]; i < t->first[r] + s->row[r].count; i++) {
            double length = t->end[i] - t->begin[i];

            least = length > 0 && length < least ? length : least;
        }
    return least < t->time / COLUMNS ? t->time / COLUMNS : least;
}

oar_status oari_timeline_paint(const oari_timeline *t, oar_picture picture,
                               char **text)
{
    static void (*const painter[])(const painting *) = {
        [OAR_PICTURE_TEXT] = paint_text,
        [OAR_PICTURE_SVG] = paint_svg,
        [OAR_PICTURE_CHROME] = paint_chrome,
    };
    oari_schedule_writer w = { NULL, 0, 0 };
    painting p = { t->schedule, t, &w, unit_of(t->schedule, t) };

    painter[picture](&p);
    w = (oari_schedule_writer){ oari_alloc(w.used + 1, 1), w.used + 1, 0 };
    if (w.text == NULL)
        return OAR_E_NOMEM;
    painter[picture](&p);
    *text = w.text;
    return OAR_OK;
}

oar_status oar_schedule_draw(const oar_schedule *schedule,
                             const oar_schedule_cost *cost, oar_picture picture,
                             char **text)
{
    oar_schedule_cost c;
    oari_timeline t;
    oar_status status;

    if (schedule == NULL || text == NULL || (unsigned)picture > 2)
        return oari_fail(OAR_E_ARG, "no schedule to draw, nowhere to give the "
                                    "picture, or no such picture");
    OARI_TRY(oari_cost_read(schedule, cost, &c));
    status = oari_schedule_run(schedule, &c, &t);
    if (status == OAR_OK)
        status = oari_timeline_paint(&t, picture, text);
    oari_timeline_free(&t);
    return status;
}
