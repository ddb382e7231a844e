/* SPDX-License-Identifier: Apache-2.0 */
/* replicas: whether ranks that say that they hold the same numbers do. Each
 * hashes what it holds; the least and the greatest hash of each part are found
 * by one all-reduce. */
#include <string.h>

#include <oarsong/collective.h>

#include "base/hash.h"
#include "base/status.h"
#include "parallel/checkpoint/saving.h"

enum { WORDS = 2 * 2 }; /* a hash of 128 bits, and its complement */

/* The parts that several ranks hold. */
typedef struct replicas {
    OARI_VEC(const oari_ckpt_chunk *) part; /* the first that is cut from it */
    uint64_t (*word)[WORDS];
} replicas;

/* Lists the parts, on all ranks the same. A part is in the plan as often as it
 * is cut; the chunk with its first element stands for it. */
static oar_status list_replicas(const oar_checkpoint *c, replicas *r)
{
    for (int64_t i = 0; i < c->plan.chunk.count; i++) {
        const oari_ckpt_chunk *chunk = &c->plan.chunk.data[i];

        if (chunk->replicas > 1 && memcmp(chunk->box.offset, chunk->part.offset,
                                          sizeof chunk->box.offset) == 0)
            OARI_TRY(oari_vec_push(&r->part, chunk));
    }
    r->word = oari_alloc((size_t)r->part.count, sizeof *r->word);
    return r->word == NULL ? OAR_E_NOMEM : OAR_OK;
}

/* Hashes what this rank holds of a part. One that it does not hold has all bits
 * set, which is greater than any hash. */
static oar_status hash_part(oari_ckpt_saving *s, const oari_ckpt_chunk *chunk,
                            uint64_t word[WORDS])
{
    const oari_ckpt_part *part = oari_ckpt_find_part(
        &s->list, &s->c->plan.tensor.data[chunk->tensor].is, &chunk->part);
    size_t element;
    const void *array;

    memset(word, 0xff, WORDS * sizeof *word);
    if (part == NULL || oari_box_count(&part->box) == 0)
        return OAR_OK;
    OARI_TRY(oari_ckpt_array(s, part->item, &array));
    element = oar_dtype_size(part->tensor.dtype);
    oari_hash128((const char *)array + (size_t)part->first * element,
                 (size_t)oari_box_count(&part->box) * element, word);
    word[2] = ~word[0];
    word[3] = ~word[1];
    return OAR_OK;
}

static oar_status hash_replicas(oari_ckpt_saving *s, replicas *r)
{
    OARI_TRY(oari_ckpt_find_arrays(s, NULL));
    if (s->fetched)
        OARI_TRY(oari_ckpt_gpu_copy_wait(&s->c->gpu_copy));
    OARI_TRY(list_replicas(s->c, r));
    for (int64_t i = 0; i < r->part.count; i++)
        OARI_TRY(hash_part(s, r->part.data[i], r->word[i]));
    return OAR_OK;
}

/* Names the part and two of its ranks, on all ranks alike. */
static oar_status name_difference(oari_ckpt_saving *s,
                                  const oari_ckpt_chunk *chunk)
{
    oar_checkpoint *c = s->c;
    const oari_ckpt_tensor *tensor = &c->plan.tensor.data[chunk->tensor].is;
    uint64_t mine[WORDS];
    uint64_t(*all)[WORDS] = oari_alloc((size_t)c->ranks, sizeof *all);
    oar_status status = all == NULL ? OAR_E_NOMEM : hash_part(s, chunk, mine);
    int first = -1, other = -1;

    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK)
        status = oar_all_gather(
            c->group, oar_span_of(mine, WORDS, OAR_U64),
            oar_span_of(all, (size_t)c->ranks * WORDS, OAR_U64), NULL, NULL);
    for (int i = 0; i < c->ranks && status == OAR_OK && other < 0; i++) {
        if (all[i][0] == UINT64_MAX && all[i][2] == UINT64_MAX)
            continue; /* it does not hold the part */
        if (first < 0)
            first = i;
        else if (memcmp(all[i], all[first], sizeof all[i]) != 0)
            other = i;
    }
    oari_free(all);
    OARI_TRY(status);
    return oari_fail(OAR_E_MISMATCH,
                     "%s %s differs between rank %d and rank %d, which say "
                     "that they hold the same numbers",
                     oari_ckpt_name_text(tensor).text,
                     oari_box_text(&chunk->part).text, first, other);
}

oar_status oari_ckpt_check_replicas(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    replicas r = { { 0 }, NULL };
    const oari_ckpt_chunk *differs = NULL;
    oar_status status = oari_ckpt_agree(c, hash_replicas(s, &r));

    if (status == OAR_OK && r.part.count > 0)
        status = oar_all_reduce(
            c->group,
            oar_span_of(r.word, (size_t)r.part.count * WORDS, OAR_U64), OAR_MIN,
            NULL, NULL);
    for (int64_t i = 0; status == OAR_OK && i < r.part.count; i++)
        for (int k = 0; k < WORDS / 2 && differs == NULL; k++)
            if (r.word[i][k] != ~r.word[i][k + WORDS / 2] &&
                r.word[i][k] != UINT64_MAX)
                differs = r.part.data[i];
    oari_vec_free(&r.part);
    oari_free(r.word);
    if (differs != NULL)
        status = name_difference(s, differs);
    return status;
}
