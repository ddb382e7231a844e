/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline: makes and frees pipelines. */
#include <stdio.h>
#include <string.h>

#include "base/call_site.h"
#include "base/status.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/reducer/agreement.h"

/* ---- making -------------------------------------------------------------- */

/* Returns a number for the whole schedule, messages included. */
static uint64_t hash_schedule(const oar_schedule *s)
{
    uint64_t hash = 0;

    for (int r = 0; r < oar_schedule_ranks(s); r++) {
        int64_t actions = oar_schedule_actions(s, r);
        for (int64_t i = 0; i < actions; i++) {
            oar_action a;
            if (oar_schedule_action(s, r, i, &a) != OAR_OK)
                return hash;
            hash = oari_pipeline_hash(hash, (uint64_t)r);
            hash = oari_pipeline_hash(hash, (uint64_t)a.stage << 32 |
                                                (uint32_t)a.micro);
            hash = oari_pipeline_hash(hash, (uint64_t)a.act);
        }
    }
    return hash;
}

static oar_status take_schedule(oar_pipeline *p, oar_schedule *schedule)
{
    int64_t tags;

    if (schedule == NULL)
        return oari_fail(OAR_E_ARG, "pipeline_create without a schedule");
    p->schedule = oar_schedule_retain(schedule);
    p->total = oar_schedule_stages(schedule);
    p->micro = oar_schedule_micro(schedule);
    if (oar_schedule_ranks(schedule) != p->ranks)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: a schedule for %d ranks, and a "
                         "group of %d",
                         oar_schedule_ranks(schedule), p->ranks);
    OARI_TRY(oar_schedule_check(schedule, NULL, NULL));
    tags = (int64_t)p->total * OARI_TENSORS * OARI_TAGS * p->micro;
    if (tags > UINT32_MAX)
        return oari_fail(OAR_E_ARG,
                         "pipeline_create: %d stages and %d micro-batches are "
                         "too many",
                         p->total, p->micro);
    p->forward_only = 1;
    for (int64_t i = 0; i < oar_schedule_actions(schedule, p->rank); i++) {
        oar_action a;
        OARI_TRY(oar_schedule_action(schedule, p->rank, i, &a));
        p->forward_only &= a.act != OAR_ACT_B && a.act != OAR_ACT_I;
    }
    return OAR_OK;
}

static oar_status allocate_arrays(oar_pipeline *p)
{
    size_t m = (size_t)p->micro;

    p->wiring = oari_alloc((size_t)p->total, sizeof *p->wiring);
    p->rows = oari_alloc(m, sizeof *p->rows);
    p->first_row = oari_alloc(m, sizeof *p->first_row);
    p->class_of = oari_alloc(m, sizeof *p->class_of);
    p->weight = oari_alloc(m, sizeof *p->weight);
    p->loss = oari_alloc(m, sizeof *p->loss);
    p->told = oari_alloc((size_t)p->ranks, sizeof *p->told);
    p->out = oari_alloc(m * OARI_TENSORS, sizeof(oar_tensor *));
    p->at = oari_alloc((size_t)oar_schedule_actions(p->schedule, p->rank) + 1,
                       sizeof *p->at);
    p->sums = oari_alloc((size_t)p->ranks + 3, sizeof *p->sums);
    return p->wiring && p->rows && p->first_row && p->class_of && p->weight &&
                   p->loss && p->told && p->out && p->at && p->sums
               ? OAR_OK
               : OAR_E_NOMEM;
}

/* Returns where this rank's stages are. */
static oar_device find_device(const oar_pipeline *p)
{
    if (p->opts.device != NULL)
        return *p->opts.device;
    for (int i = 0; i < p->stages; i++) {
        const oar_module *module = p->stage[i].given.module;

        if (module != NULL && oar_module_params(module) > 0)
            return oar_tensor_device(oar_module_param(module, 0));
    }
    return (oar_device){ OAR_CPU, 0 };
}

/* What this rank can check alone. */
static oar_status take_arguments(oar_pipeline *p, oar_schedule *schedule,
                                 int stages, const oar_stage *stage,
                                 const oar_pipeline_opts *opts)
{
    OARI_TRY(oari_opts_read(&p->opts, sizeof p->opts, opts));
    if (p->opts.dynamic && p->opts.most_bytes > 0)
        return oari_fail(OAR_E_ARG, "pipeline_create: most_bytes of a dynamic "
                                    "pipeline, whose shapes nobody knows");
    OARI_TRY(take_schedule(p, schedule));
    OARI_TRY(oari_take_stages(p, stages, stage));
    p->device = find_device(p);
    return allocate_arrays(p);
}

static oar_status agree(oar_pipeline *p)
{
    char line[200];
    oari_manifest manifest = { .options = line, .does = "make pipelines" };

    snprintf(line, sizeof line,
             "a schedule of %d stages and %d micro-batches (%016llx), equal "
             "%d, dynamic %d, most_bytes %llu, on the %s",
             p->total, p->micro, (unsigned long long)hash_schedule(p->schedule),
             p->opts.equal != 0, p->opts.dynamic != 0,
             (unsigned long long)p->opts.most_bytes,
             p->device.kind == OAR_CPU ? "cpu" : "gpu");
    return oari_agree(&manifest, p->group);
}

oar_status oar_pipeline_create_at(const char *file, int line, oar_group *group,
                                  oar_schedule *schedule, int stages,
                                  const oar_stage *stage,
                                  const oar_pipeline_opts *opts,
                                  oar_pipeline **pipeline)
{
    OARI_CALLED_FROM(file, line);
    oar_pipeline *p;
    oar_status status;

    if (group == NULL || pipeline == NULL)
        return oari_fail(OAR_E_ARG, "pipeline_create without a %s",
                         group == NULL ? "group" : "place for it");
    p = oari_alloc(1, sizeof *p);
    if (p == NULL)
        return oari_agree_on_status(group, OAR_E_NOMEM, "pipeline_create");
    p->rank = oar_group_rank(group);
    p->ranks = oar_group_size(group);
    status = take_arguments(p, schedule, stages, stage, opts);
    status = oari_agree_on_status(group, status, "pipeline_create");
    if (status == OAR_OK)
        status = oar_group_dup_with(group,
                                    OAR_OPTS(oar_dup_opts, .name = "pipeline",
                                             .timeout_ms = p->opts.timeout_ms,
                                             .patient = 1),
                                    &p->group);
    if (status == OAR_OK)
        status = agree(p);
    if (status == OAR_OK)
        status = oari_connect_stages(p);
    if (status != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_pipeline_destroy(p);
        return oari_fail_with(&why);
    }
    *pipeline = p;
    return OAR_OK;
}

void oar_pipeline_destroy(oar_pipeline *p)
{
    if (p == NULL)
        return;
    if (p->group != NULL)
        oari_flights_reset(p);
    for (int i = 0; i < p->stages; i++) {
        oari_flights_free(&p->stage[i]);
        oar_module_release(p->stage[i].given.module);
        oari_free(p->stage[i].edge);
    }
    oari_ties_free(p);
    oar_group_destroy(p->group);
    oar_schedule_release(p->schedule);
    oar_tensor_release(p->losses);
    for (int64_t i = 0; i < p->idle.count; i++)
        oar_tape_destroy(p->idle.data[i]);
    oari_vec_free(&p->idle);
    oari_vec_free(&p->kept);
    oari_free(p->stage);
    oari_free(p->wiring);
    oari_free(p->rows);
    oari_free(p->first_row);
    oari_free(p->class_of);
    oari_free(p->spec);
    oari_free(p->weight);
    oari_free(p->loss);
    oari_free(p->told);
    oari_free(p->out);
    oari_free(p->at);
    oari_free(p->sums);
    oari_free(p->cost);
    oari_free(p->cost_bytes);
    oari_free(p);
}

/* ---- failing ------------------------------------------------------------- */

oar_status oari_pipeline_give_up(oar_pipeline *p)
{
    oar_error why = *oar_last_error();

    oar_group_abort(p->group, why.text);
    p->over = 1;
    oari_stages_give_up(p, &why);
    oari_flights_reset(p);
    return oari_fail_with(&why);
}

static const char *act_name(oar_act act)
{
    static const char *const name[] = {
#define X(id, value, text) [value] = text,
        OAR_ACT_LIST(X)
#undef X
    };

    return name[act];
}

void oari_name_action(const oar_action *a, char *text, size_t bytes)
{
    if (a->micro < 0)
        snprintf(text, bytes, "%d%s", a->stage, act_name(a->act));
    else
        snprintf(text, bytes, "%d%s%d", a->stage, act_name(a->act), a->micro);
}

oar_status oari_why_nothing(void)
{
    oar_status status = oar_last_error()->status;

    return status != OAR_OK
               ? status
               : oari_fail(OAR_E_STATE, "a function gave neither a tensor nor "
                                        "an error");
}

oar_status oari_pipeline_failed(const oar_action *a, oar_status status)
{
    oar_error record = *oar_last_error();
    char text[sizeof record.text];

    if (record.status != status) /* a function of the caller's said no more */
        oari_error_set(&record, status, "%s", oar_status_text(status));
    if (record.status == OAR_E_ABORTED)
        return record.status;
    if (a->micro < 0)
        snprintf(text, sizeof text, "stage %d, %s: ", a->stage,
                 act_name(a->act));
    else
        snprintf(text, sizeof text,
                 "stage %d, %s of micro-batch %d: ", a->stage, act_name(a->act),
                 a->micro);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s",
             record.text);
    memcpy(record.text, text, sizeof text);
    return oari_fail_with(&record);
}
