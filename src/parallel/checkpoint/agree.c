/* SPDX-License-Identifier: Apache-2.0 */
/* agree: a failure on one rank is the failure of all, and a rank that works on
 * files is waited for. */
#include <oarsong/collective.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "file/new_file.h"
#include "parallel/checkpoint/checkpoint.h"

/* Options of a save as bits, and a dtype above them. */
enum { BACKGROUND = 1, LAZY = 2, NO_WAIT = 4, KEEP = 8, DTYPE_SHIFT = 8 };
enum { OPTIONS_TEXT = 80 };

/* Gives all ranks the record of the lowest rank that failed, as its failure;
 * `failed` is the number of ranks from it on. */
static oar_status share_failure(const oar_checkpoint *c, oar_group *group,
                                int64_t failed, const oar_error *mine)
{
    oar_error record = *mine;
    int root = c->ranks - (int)failed;

    if (root == c->rank) {
        record.rank = c->rank;
        snprintf(record.text, sizeof record.text, "rank %d: %.490s", c->rank,
                 mine->text);
    }
    OARI_TRY(oar_broadcast(group, oar_span_of(&record, sizeof record, OAR_U8),
                           root, NULL, NULL));
    return oari_fail_with(&record);
}

oar_status oari_ckpt_agree(oar_checkpoint *c, oar_status mine)
{
    oar_error record = *oar_last_error();
    int64_t failed = mine != OAR_OK ? c->ranks - c->rank : 0;

    if (c->group == NULL)
        return mine;
    OARI_TRY(oar_all_reduce(c->group, oar_span_of(&failed, 1, OAR_I64), OAR_MAX,
                            NULL, NULL));
    return failed == 0 ? OAR_OK : share_failure(c, c->group, failed, &record);
}

oar_status oari_ckpt_agree_same(oar_checkpoint *c, const char *call, int count,
                                const oari_ckpt_same *same)
{
    enum { MOST = 8 };
    /* The maxima of a number and of its complement are two ranks' numbers. */
    int64_t word[2 * MOST];

    if (c->group == NULL)
        return OAR_OK;
    for (int i = 0; i < count; i++) {
        word[i] = same[i].number;
        word[count + i] = ~same[i].number;
    }
    OARI_TRY(oar_all_reduce(c->group,
                            oar_span_of(word, 2 * (size_t)count, OAR_I64),
                            OAR_MAX, NULL, NULL));
    for (int i = 0; i < count; i++)
        if (word[i] != ~word[count + i])
            return oari_fail(OAR_E_MISMATCH,
                             "%s: the ranks give different numbers for %s: "
                             "%" PRId64 " and %" PRId64,
                             call, same[i].name, ~word[count + i], word[i]);
    return OAR_OK;
}

uint64_t oari_ckpt_options(const oar_save_opts *o)
{
    return (o->background ? BACKGROUND : 0) | (o->lazy ? LAZY : 0) |
           (o->no_wait ? NO_WAIT : 0) | (o->keep ? KEEP : 0) |
           (o->has_dtype ? (uint64_t)o->dtype + 1 : 0) << DTYPE_SHIFT;
}

/* Writes options as ".background .dtype=f16"; "none". */
static const char *options_text(uint64_t options, char text[OPTIONS_TEXT])
{
    snprintf(
        text, OPTIONS_TEXT, "%s%s%s%s%s%s",
        options & BACKGROUND ? ".background " : "",
        options & LAZY ? ".lazy " : "", options & NO_WAIT ? ".no_wait " : "",
        options & KEEP ? ".keep " : "", options >> DTYPE_SHIFT ? ".dtype=" : "",
        options >> DTYPE_SHIFT
            ? oar_dtype_name((oar_dtype)((options >> DTYPE_SHIFT) - 1))
            : "");
    text[strlen(text) - (text[0] != '\0' && text[strlen(text) - 1] == ' ')] =
        '\0';
    return text[0] != '\0' ? text : "none";
}

oar_status oari_ckpt_agree_call(oar_checkpoint *c, oari_ckpt_call *call,
                                oar_status mine)
{
    /* The maxima of a number and of its complement are two ranks' numbers. */
    enum { FAILED, STEP, LEAST_STEP, OPTIONS, LEAST_OPTIONS, BUSY, ID, WORDS };
    oar_group *group = c->calls != NULL ? c->calls : c->group;
    uint64_t word[WORDS] = { 0 };
    char text[2][OPTIONS_TEXT];
    oar_error record;

    if (mine == OAR_OK && c->rank == 0)
        mine = oari_random_id(call->id);
    record = *oar_last_error();
    if (mine != OAR_OK)
        word[FAILED] = (uint64_t)(c->ranks - c->rank);
    word[STEP] = (uint64_t)call->step;
    word[LEAST_STEP] = ~word[STEP];
    word[OPTIONS] = call->options;
    word[LEAST_OPTIONS] = ~call->options;
    word[BUSY] = call->busy != 0;
    word[ID] = c->rank == 0 ? strtoull(call->id, NULL, 16) : 0;
    if (group == NULL && mine != OAR_OK)
        return mine;
    if (group != NULL)
        OARI_TRY(oar_all_reduce(group, oar_span_of(word, WORDS, OAR_U64),
                                OAR_MAX, NULL, NULL));
    if (word[FAILED] != 0)
        return share_failure(c, group, (int64_t)word[FAILED], &record);
    if (word[STEP] != ~word[LEAST_STEP])
        return oari_fail(OAR_E_MISMATCH,
                         "checkpoint_save: the ranks give different steps: "
                         "%" PRIu64 " and %" PRIu64,
                         ~word[LEAST_STEP], word[STEP]);
    if (word[OPTIONS] != ~word[LEAST_OPTIONS])
        return oari_fail(OAR_E_MISMATCH,
                         "checkpoint_save: the ranks give different options: "
                         "%s and %s",
                         options_text(~word[LEAST_OPTIONS], text[0]),
                         options_text(word[OPTIONS], text[1]));
    if (word[BUSY] != 0)
        return oari_fail(OAR_E_STATE,
                         "checkpoint_save: the save before is still under way");
    snprintf(call->id, sizeof call->id, "%016" PRIx64, word[ID]);
    return OAR_OK;
}

/* ---- slow parts ---------------------------------------------------------- */

enum { RENEW_NS = 1000000000 }; /* at most this often */

oari_ckpt_limits oari_ckpt_slow_limits = { .block_ms = 60 * 1000,
                                           .sync_ms = 30 * 60 * 1000,
                                           .read_ms = 30 * 60 * 1000 };

void oari_ckpt_slow_begin(oar_checkpoint *c, int64_t ms)
{
    oar_timeout_scope *before;

    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    before = c->slow;
    /* Without the memory for a scope the timeout counts as ever. */
    if (oar_timeout_scope_begin(c->group, "checkpoint", ms, &c->slow) != OAR_OK)
        c->slow = NULL;
    oar_timeout_scope_end(before);
    c->slow_since_ns = oari_now_ns();
    pthread_mutex_unlock(&c->slow_lock);
}

void oari_ckpt_slow_renew(oar_checkpoint *c, int64_t ms)
{
    int due;

    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    due = oari_now_ns() - c->slow_since_ns > RENEW_NS;
    pthread_mutex_unlock(&c->slow_lock);
    if (due)
        oari_ckpt_slow_begin(c, ms);
}

void oari_ckpt_slow_end(oar_checkpoint *c)
{
    if (c->group == NULL)
        return;
    pthread_mutex_lock(&c->slow_lock);
    oar_timeout_scope_end(c->slow);
    c->slow = NULL;
    pthread_mutex_unlock(&c->slow_lock);
}
