/* SPDX-License-Identifier: Apache-2.0 */
/* lr_schedule: the learning rate at a step, as a factor: pure arithmetic, so
 * that a resumed run needs no state of it. */
#include <math.h>

#include "base/status.h"
#include "optim/optim.h"

static int is_malformed(const oar_lr_schedule *s)
{
    if (s->warmup < 0 || s->steps < 0 || s->every < 0 || !(s->final >= 0) ||
        isinf(s->final))
        return 1;
    switch (s->kind) {
    case OAR_LR_CONSTANT: return 0;
    case OAR_LR_LINEAR:
    case OAR_LR_COSINE: return s->steps <= s->warmup;
    case OAR_LR_STEP: return s->every == 0;
    }
    return 1;
}

double oar_lr_schedule_at(const oar_lr_schedule *schedule, int64_t step)
{
    oar_lr_schedule s;
    const double pi = 3.14159265358979323846;
    int64_t past, span, times;
    double part;

    if (oari_opts_read(&s, sizeof s, schedule) != OAR_OK || is_malformed(&s) ||
        step < 0)
        return NAN;
    if (step < s.warmup)
        return (double)step / (double)s.warmup;
    if (s.steps > s.warmup && step > s.steps)
        step = s.steps;
    past = step - s.warmup; /* of `span` steps after the warmup */
    span = s.steps - s.warmup;
    part = span > 0 ? (double)past / (double)span : 0;
    times = s.every > 0 ? past / s.every : 0;
    switch (s.kind) {
    case OAR_LR_CONSTANT: return 1;
    case OAR_LR_LINEAR: return 1 + (s.final - 1) * part;
    case OAR_LR_COSINE:
        return s.final + (1 - s.final) * (1 + cos(pi * part)) / 2;
    case OAR_LR_STEP: return pow(s.final, (double)times);
    }
    return NAN;
}
