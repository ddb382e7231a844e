/* SPDX-License-Identifier: Apache-2.0 */
/* bpe: merges the bytes of a word, always the pair of the lowest rank, of equal
 * ones the first.
 *
 * The parts of a word are a list within an array: a part stays where its first
 * byte is. Pairs that can be merged wait in a heap. A pair in the heap is out
 * of date once one of its parts was merged with another; that shows when it is
 * taken out, because a part's token never comes back. So a word of n bytes
 * takes n log n steps, whatever the text and the merges are. */
#include "data/bpe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/vec.h"

enum {
    GONE = -1
}; /* the token of a part that was merged into the one before */

typedef struct part {
    int32_t token;
    size_t before, after; /* places of its neighbours; NOWHERE: none */
} part;

#define NOWHERE SIZE_MAX

typedef struct pair {
    const oari_bpe_merge *merge;
    size_t at; /* of the left part */
} pair;

typedef struct workspace {
    OARI_VEC(part) parts;
    OARI_VEC(pair) heap; /* the lowest first */
    OARI_VEC(int64_t) tokens;
} workspace;

void oari_bpe_close(oari_bpe *bpe)
{
    if (bpe == NULL)
        return;
    oari_free(bpe->text);
    oari_free(bpe->token);
    oari_free(bpe->sorted);
    oari_free(bpe->merge);
    oari_free(bpe->first);
    oari_free(bpe);
}

/* Returns the merge of two tokens, or NULL. */
static const oari_bpe_merge *merge_of(const oari_bpe *bpe, int32_t left,
                                      int32_t right)
{
    int32_t low = bpe->first[left], end = bpe->first[left + 1], high = end;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;

        if (bpe->merge[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && bpe->merge[low].right == right ? &bpe->merge[low]
                                                       : NULL;
}

/* ---- the heap ------------------------------------------------------------ */

static int is_before(const pair *a, const pair *b)
{
    return a->merge->rank != b->merge->rank ? a->merge->rank < b->merge->rank
                                            : a->at < b->at;
}

static pair pop_pair(workspace *w)
{
    pair *heap = w->heap.data, lowest = heap[0], moved;
    int64_t count = --w->heap.count, at = 0;

    moved = heap[count];
    for (;;) {
        int64_t child = 2 * at + 1;

        if (child + 1 < count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (child >= count || !is_before(&heap[child], &moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
    return lowest;
}

/* ---- a word -------------------------------------------------------------- */

/* Puts the part at a place and the one after it into the heap, if there is one
 * and they can be merged. */
static oar_status offer_pair(const oari_bpe *bpe, workspace *w, size_t at)
{
    const part *p = w->parts.data;
    int64_t place = w->heap.count;
    pair made = { .at = at };

    if (at == NOWHERE || p[at].after == NOWHERE)
        return OAR_OK;
    made.merge = merge_of(bpe, p[at].token, p[p[at].after].token);
    if (made.merge == NULL)
        return OAR_OK;
    OARI_TRY(oari_vec_push(&w->heap, made));
    while (place > 0 && is_before(&made, &w->heap.data[(place - 1) / 2])) {
        w->heap.data[place] = w->heap.data[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    w->heap.data[place] = made;
    return OAR_OK;
}

static oar_status merge_parts(const oari_bpe *bpe, workspace *w)
{
    part *p = w->parts.data;

    while (w->heap.count > 0) {
        pair next = pop_pair(w);
        part *left = &p[next.at], *right;

        if (left->token != next.merge->left || left->after == NOWHERE)
            continue;
        right = &p[left->after];
        if (right->token != next.merge->right)
            continue;
        left->token = next.merge->result;
        left->after = right->after;
        right->token = GONE;
        if (left->after != NOWHERE)
            p[left->after].before = next.at;
        OARI_TRY(offer_pair(bpe, w, left->before));
        OARI_TRY(offer_pair(bpe, w, next.at));
    }
    return OAR_OK;
}

static oar_status encode_word(const oari_bpe *bpe, const char *word,
                              size_t bytes, workspace *w)
{
    w->parts.count = 0;
    w->heap.count = 0;
    OARI_TRY(oari_vec_reserve(&w->parts, (int64_t)bytes));
    for (size_t i = 0; i < bytes; i++)
        w->parts.data[i] =
            (part){ .token = bpe->of_byte[(unsigned char)word[i]],
                    .before = i > 0 ? i - 1 : NOWHERE,
                    .after = i + 1 < bytes ? i + 1 : NOWHERE };
    for (size_t i = 0; i < bytes; i++)
        OARI_TRY(offer_pair(bpe, w, i));
    OARI_TRY(merge_parts(bpe, w));
    for (size_t i = 0; i != NOWHERE; i = w->parts.data[i].after)
        OARI_TRY(oari_vec_push(&w->tokens, w->parts.data[i].token));
    return OAR_OK;
}

oar_status oari_bpe_encode(const oari_bpe *bpe, const char *text, size_t bytes,
                           int64_t **token, size_t *count)
{
    workspace w = { .tokens = { 0 } };
    oar_status status = oari_vec_reserve(&w.tokens, 1);

    for (size_t at = 0, word; status == OAR_OK && at < bytes; at += word) {
        word = oari_bpe_word(text + at, bytes - at);
        status = encode_word(bpe, text + at, word, &w);
    }
    oari_vec_free(&w.parts);
    oari_vec_free(&w.heap);
    if (status != OAR_OK) {
        oari_vec_free(&w.tokens);
        return status;
    }
    *token = w.tokens.data;
    *count = (size_t)w.tokens.count;
    return OAR_OK;
}
