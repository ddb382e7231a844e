/* SPDX-License-Identifier: Apache-2.0 */
/* report_machine: the speed that the machine reaches, from lines of `oarsong
 * bench --format csv` or bench/limits:
 *     peer,kind,dtype,ranks,bytes,iterations,p50,p10,GB/s,bus GB/s */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Compares names of operations, which are written with "_" or without. */
static int same_kind(const char *a, const char *b)
{
    while (*a != 0 || *b != 0) {
        a += strspn(a, "_");
        b += strspn(b, "_");
        if (*a != *b)
            return 0;
        if (*a != 0) {
            a++;
            b++;
        }
    }
    return 1;
}

int report_machine_read(report *r, const char *path)
{
    FILE *from = fopen(path, "re");
    char line[512];

    if (from == NULL)
        return 0;
    while (fgets(line, sizeof line, from) != NULL) {
        report_speed s = { 0 };
        report_speed *more;

        if (sscanf(line, "%*[^,],%31[^,],%*[^,],%*d,%lf,%*[^,],%*f,%*f,%lf",
                   s.kind, &s.bytes, &s.gb_s) != 3 ||
            !(s.bytes > 0) || !(s.gb_s > 0))
            continue;
        more = realloc(r->speed, ((size_t)r->speeds + 1) * sizeof *more);
        if (more == NULL)
            break;
        r->speed = more;
        r->speed[r->speeds++] = s;
    }
    fclose(from);
    return r->speeds > 0;
}

double report_machine_speed(const report *r, oar_coll op, double bytes)
{
    const char *name = oar_coll_name(op);
    double nearest = INFINITY, speed = 0;

    if (op == OAR_COLL_SEND || op == OAR_COLL_RECV)
        name = "p2p";
    for (int i = 0; i < r->speeds; i++) {
        double away = fabs(log(r->speed[i].bytes / (bytes > 0 ? bytes : 1)));

        if (!same_kind(r->speed[i].kind, name))
            continue;
        if (away < nearest || (away == nearest && r->speed[i].gb_s > speed)) {
            nearest = away;
            speed = r->speed[i].gb_s;
        }
    }
    return speed;
}
