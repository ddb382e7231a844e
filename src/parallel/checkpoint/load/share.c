/* SPDX-License-Identifier: Apache-2.0 */
/* share: boxes that the same ranks want are dealt with together. They are cut
 * into parts by the chunks that they are stored in, and sorted as they lie in
 * the files; parts in the same few blocks are a piece, so that no block is read
 * twice. The ranks take turns in reading a piece; up to four are under way,
 * each in a buffer, which is why four ranks read at once.
 *
 * All ranks of a set make the same pieces, because they have the same index and
 * want the same. Sets are gone through in the order of a hash of their ranks,
 * so that ranks never wait for each other in a circle. */
#include "parallel/checkpoint/load/share.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/status.h"
#include "parallel/checkpoint/load/read_files.h"

enum {
    UNDER_WAY = 4,      /* pieces */
    PIECE_BLOCKS = 4,   /* of checksums */
    MOST_KEYS = 4 << 20 /* of all ranks that are compared: 64 MiB */
};

/* A want by its tensor and box. */
typedef struct want_key {
    uint64_t hash[2];
    int64_t want;
    int rank; /* of which it is */
} want_key;

/* Ranks that want the same boxes. */
typedef struct rank_set {
    uint64_t hash;
    int64_t first, count;        /* of the sharer's ranks */
    int64_t first_piece, pieces; /* of the sharer's */
    int done;
} rank_set;

/* What is stored at one place of a want. */
typedef struct share_part {
    int64_t want;
    int64_t file;
    uint64_t at; /* about where in it */
    oari_box box;
    uint64_t bytes;
} share_part;

typedef struct share_piece {
    int64_t first, parts;
    uint64_t bytes;
} share_piece;

/* A piece under way. */
typedef struct flight {
    unsigned char *buffer;
    int works;
    oar_work **work;
} flight;

typedef struct sharer {
    oari_ckpt_sharing *is;
    uint64_t window; /* bytes of a piece */
    OARI_VEC(want_key) key;
    OARI_VEC(rank_set) set;
    OARI_VEC(int) rank;
    int64_t *set_of; /* by want; -1: nobody else's */
    void **memory;   /* by want, once a part of it is there */
    uint64_t *left;  /* by want: bytes that are not there */
    OARI_VEC(share_part) part;
    OARI_VEC(share_piece) piece;
    flight flight[UNDER_WAY];
    oar_status status; /* the first failure of this rank's own */
    oar_error error;
} sharer;

static void keep_failure(sharer *s, oar_status status)
{
    if (status != OAR_OK && s->status == OAR_OK) {
        s->status = status;
        s->error = *oar_last_error();
    }
}

/* ---- who wants the same -------------------------------------------------- */

static int by_key(const void *left, const void *right)
{
    const want_key *a = left, *b = right;
    int order = memcmp(a->hash, b->hash, sizeof a->hash);

    return order != 0 ? order : a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Lists this rank's wants, each once. */
static oar_status list_keys(sharer *s)
{
    const oari_ckpt_sharing *is = s->is;
    int64_t kept = 0;

    s->set_of = oari_alloc((size_t)is->wants, sizeof *s->set_of);
    s->memory = oari_alloc((size_t)is->wants, sizeof *s->memory);
    s->left = oari_alloc((size_t)is->wants, sizeof *s->left);
    if (s->set_of == NULL || s->memory == NULL || s->left == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oari_vec_reserve(&s->key, is->wants));
    for (int64_t i = 0; i < is->wants; i++) {
        struct {
            int64_t tensor;
            oari_box box;
        } what;

        memset(&what, 0, sizeof what);
        what.tensor = is->want[i].tensor - is->index->tensor;
        what.box.ndim = is->want[i].box.ndim;
        memcpy(what.box.offset, is->want[i].box.offset, sizeof what.box.offset);
        memcpy(what.box.extent, is->want[i].box.extent, sizeof what.box.extent);
        s->key.data[s->key.count] =
            (want_key){ .want = i, .rank = is->c->rank };
        oari_hash128(&what, sizeof what, s->key.data[s->key.count++].hash);
        s->set_of[i] = -1;
    }
    if (s->key.count > 0)
        qsort(s->key.data, (size_t)s->key.count, sizeof *s->key.data, by_key);
    for (int64_t i = 0; i < s->key.count; i++)
        if (kept == 0 || memcmp(s->key.data[kept - 1].hash, s->key.data[i].hash,
                                sizeof s->key.data->hash) != 0)
            s->key.data[kept++] = s->key.data[i];
    s->key.count = kept;
    return OAR_OK;
}

/* Puts a want into the set of these ranks. */
static oar_status join_set(sharer *s, const want_key *key, int64_t count)
{
    uint64_t hash = 0;
    int64_t mine = -1, number = 0;

    for (int64_t i = 0; i < count; i++) {
        if (key[i].rank == s->is->c->rank)
            mine = key[i].want;
        hash = oari_hash64(&key[i].rank, sizeof key[i].rank, hash);
    }
    if (mine < 0 || count < 2)
        return OAR_OK;
    while (number < s->set.count && s->set.data[number].hash != hash)
        number++;
    s->set_of[mine] = number;
    if (number < s->set.count)
        return OAR_OK;
    OARI_TRY(oari_vec_push(
        &s->set,
        ((rank_set){ .hash = hash, .first = s->rank.count, .count = count })));
    for (int64_t i = 0; i < count; i++)
        OARI_TRY(oari_vec_push(&s->rank, key[i].rank));
    return OAR_OK;
}

/* All ranks want the same: one set. */
static oar_status join_all(sharer *s)
{
    int ranks = s->is->c->ranks;

    OARI_TRY(oari_vec_push(&s->set, ((rank_set){ .count = ranks })));
    for (int r = 0; r < ranks; r++)
        OARI_TRY(oari_vec_push(&s->rank, r));
    for (int64_t i = 0; i < s->key.count; i++)
        s->set_of[s->key.data[i].want] = 0;
    return OAR_OK;
}

/* Puts the keys of all ranks, which lie one behind the other, into sets. */
static oar_status make_sets(sharer *s, const uint64_t (*hash)[2],
                            const size_t *sizes)
{
    OARI_VEC(want_key) all = { 0 };
    oar_status status = OAR_OK;
    int ranks = s->is->c->ranks, me = s->is->c->rank;

    for (int r = 0; r < ranks && status == OAR_OK; r++) {
        int64_t count = (int64_t)(sizes[r] / sizeof *hash);

        if (r == me && count != s->key.count)
            status = oari_fail(OAR_E_INTERNAL, "a list of wants was changed");
        if (status == OAR_OK)
            status = oari_vec_reserve(&all, count);
        for (int64_t i = 0; i < count && status == OAR_OK; i++)
            all.data[all.count++] =
                (want_key){ .hash = { hash[i][0], hash[i][1] },
                            .want = r == me ? s->key.data[i].want : -1,
                            .rank = r };
        hash += count;
    }
    if (all.count > 0)
        qsort(all.data, (size_t)all.count, sizeof *all.data, by_key);
    for (int64_t i = 0, n; i < all.count && status == OAR_OK; i += n) {
        for (n = 1;
             i + n < all.count && memcmp(all.data[i].hash, all.data[i + n].hash,
                                         sizeof all.data->hash) == 0;)
            n++;
        status = join_set(s, &all.data[i], n);
    }
    oari_vec_free(&all);
    return status;
}

static oar_status compare_wants(sharer *s)
{
    oar_checkpoint *c = s->is->c;
    OARI_VEC(uint64_t) mine = { 0 };
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oar_status status = sizes == NULL ? OAR_E_NOMEM : list_keys(s);
    uint64_t word[3] = { 0 };
    void *bytes = NULL;

    if (status == OAR_OK)
        status = oari_vec_reserve(&mine, 2 * s->key.count);
    for (int64_t i = 0; i < s->key.count && status == OAR_OK; i++)
        for (int k = 0; k < 2; k++)
            mine.data[mine.count++] = s->key.data[i].hash[k];
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK) {
        word[0] =
            oari_hash64(mine.data, (size_t)mine.count * sizeof *mine.data, 0);
        word[1] = ~word[0];
        word[2] = ~(uint64_t)s->key.count;
        status = oar_all_reduce(c->group, oar_span_of(word, 3, OAR_U64),
                                OAR_MIN, NULL, NULL);
    }
    if (status == OAR_OK && word[0] == ~word[1]) {
        status = join_all(s);
    } else if (status == OAR_OK &&
               ~word[2] <= (uint64_t)(MOST_KEYS / c->ranks)) {
        status = oar_all_gather_bytes(c->group, mine.data,
                                      (size_t)mine.count * sizeof *mine.data,
                                      &bytes, sizes, NULL, NULL);
        if (status == OAR_OK)
            status = make_sets(s, bytes, sizes);
    }
    oari_vec_free(&mine);
    oar_free(bytes);
    oari_free(sizes);
    return oari_ckpt_agree(c, status);
}

/* ---- pieces -------------------------------------------------------------- */

/* Cuts elements of a box into parts that lie in one window of the file each, as
 * if they lay there one behind the other from `at` on. */
static oar_status cut_box(sharer *s, int64_t want, const oari_box *box,
                          int64_t file, uint64_t at)
{
    const oari_ckpt_index_tensor *t = s->is->want[want].tensor;
    uint64_t element = oar_dtype_size(t->dtype);
    int64_t count = oari_box_count(box), first = 0;
    oar_shape shape = { .ndim = box->ndim };

    memcpy(shape.dim, box->extent, sizeof shape.dim);
    while (first < count) {
        oari_box cut[OARI_FLAT_BOXES];
        uint64_t begin = at + (uint64_t)first * element;
        int64_t room =
            (int64_t)((s->window - begin % s->window + element - 1) / element);
        int64_t next = room < count - first ? room : count - first;
        int boxes = oari_flat_boxes(shape, first, next, cut);

        for (int i = 0; i < boxes; i++) {
            uint64_t bytes = (uint64_t)oari_box_count(&cut[i]) * element;

            for (int d = 0; d < box->ndim; d++)
                cut[i].offset[d] += box->offset[d];
            OARI_TRY(oari_vec_push(
                &s->part, ((share_part){ want, file, begin, cut[i], bytes })));
            begin += bytes;
        }
        first += next;
    }
    s->left[want] += (uint64_t)count * element;
    return OAR_OK;
}

static oar_status add_parts(sharer *s, int64_t number)
{
    const oari_ckpt_want *want = &s->is->want[number];
    const oari_ckpt_index *index = s->is->index;

    for (int64_t k = 0; k < want->tensor->chunks; k++) {
        const oari_ckpt_index_chunk *chunk =
            &index->chunk[want->tensor->first + k];
        oari_box box = oari_ckpt_index_box(index, want->tensor, chunk);
        oari_box common;
        oari_box_runs runs;
        oari_box_run run = { 0 };

        if (!oari_box_meet(&want->box, &box, &common))
            continue;
        oari_box_runs_start(&runs, &common, &box, &common,
                            oar_dtype_size(want->tensor->dtype));
        (void)oari_box_runs_next(&runs, &run);
        OARI_TRY(
            cut_box(s, number, &common, chunk->file, chunk->at + run.from));
    }
    return OAR_OK;
}

static int by_place(const void *left, const void *right)
{
    const share_part *a = left, *b = right;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return oari_box_compare(&a->box, &b->box);
}

/* Makes the pieces of a set. */
static oar_status make_pieces(sharer *s, int64_t number)
{
    rank_set *set = &s->set.data[number];
    int64_t first = s->part.count;

    set->first_piece = s->piece.count;
    for (int64_t i = 0; i < s->key.count; i++) /* the same order on all ranks */
        if (s->set_of[s->key.data[i].want] == number)
            OARI_TRY(add_parts(s, s->key.data[i].want));
    if (s->part.count > first)
        qsort(s->part.data + first, (size_t)(s->part.count - first),
              sizeof *s->part.data, by_place);
    for (int64_t i = first; i < s->part.count; i++) {
        const share_part *p = &s->part.data[i], *before = p - 1;
        share_piece *last =
            i > first ? &s->piece.data[s->piece.count - 1] : NULL;

        if (last == NULL || before->file != p->file ||
            before->at / s->window != p->at / s->window ||
            last->bytes + p->bytes > s->window) {
            OARI_TRY(oari_vec_push(&s->piece, ((share_piece){ i, 0, 0 })));
            last = &s->piece.data[s->piece.count - 1];
            set->pieces++;
        }
        last->parts++;
        last->bytes += p->bytes;
    }
    return OAR_OK;
}

/* ---- reading and sending ------------------------------------------------- */

static oar_status read_piece(sharer *s, const share_piece *p, void *buffer)
{
    oari_ckpt_sharing *is = s->is;
    oari_ckpt_read_plan plan = { .gap = oari_ckpt_join_gap(is->index) };
    oari_ckpt_reading reading = { .disk = is->c->disk,
                                  .folder = is->c->folder,
                                  .path = is->c->path,
                                  .index = is->index,
                                  .buffered = is->c->opts.buffered,
                                  .plan = &plan,
                                  .target = &buffer,
                                  .threads = is->c->opts.threads,
                                  .no_verify = is->no_verify };
    oar_status status = OAR_OK;
    uint64_t at = 0;

    for (int64_t i = p->first; i < p->first + p->parts && status == OAR_OK;
         i++) {
        const share_part *q = &s->part.data[i];
        oari_ckpt_wanted wanted = { q->box, 0, at };

        status = oari_ckpt_read_plan_wanted(
            &plan, is->index, is->want[q->want].tensor, 1, &wanted);
        at += q->bytes;
    }
    if (status == OAR_OK)
        status = oari_ckpt_read_plan_finish(&plan);
    if (status == OAR_OK)
        status = oari_ckpt_read_files(&reading);
    is->bytes += reading.bytes;
    is->wanted += plan.wanted_bytes;
    oari_ckpt_read_plan_free(&plan);
    return status;
}

/* Reads a piece, if it is this rank's turn, and starts to send or receive it.
 */
static oar_status start_piece(sharer *s, const rank_set *set, int64_t number)
{
    const oar_checkpoint *c = s->is->c;
    const share_piece *p = &s->piece.data[set->first_piece + number];
    const int *rank = &s->rank.data[set->first];
    int reader = rank[number % set->count];
    flight *f = &s->flight[number % UNDER_WAY];
    oar_span span = oar_span_of(f->buffer, (size_t)p->bytes, OAR_U8);

    if (reader == c->rank)
        keep_failure(s, read_piece(s, p, f->buffer));
    if (set->count == c->ranks) {
        OARI_TRY(oar_broadcast(c->group, span, reader, NULL, &f->work[0]));
        f->works = 1;
        return OAR_OK;
    }
    if (reader != c->rank) {
        OARI_TRY(oar_recv(c->group, span, reader, number, NULL, &f->work[0]));
        f->works = 1;
        return OAR_OK;
    }
    for (int64_t i = 0; i < set->count; i++) {
        if (rank[i] == reader)
            continue;
        OARI_TRY(oar_send(c->group, span, rank[i], number, NULL,
                          &f->work[f->works]));
        f->works++;
    }
    return OAR_OK;
}

/* Puts a part where it is wanted. */
static oar_status place_part(sharer *s, const share_part *p,
                             const unsigned char *bytes)
{
    oari_ckpt_want *want = &s->is->want[p->want];
    oari_box_runs runs;
    oari_box_run run;

    if (s->memory[p->want] == NULL)
        OARI_TRY(s->is->begin(s->is->arg, p->want, &s->memory[p->want]));
    oari_box_runs_start(&runs, &p->box, &p->box, &want->box,
                        oar_dtype_size(want->tensor->dtype));
    while (oari_box_runs_next(&runs, &run))
        memcpy((unsigned char *)s->memory[p->want] + run.to, bytes + run.from,
               run.bytes);
    s->left[p->want] -= p->bytes;
    if (s->left[p->want] > 0)
        return OAR_OK;
    want->shared = 1;
    return s->is->end(s->is->arg, p->want);
}

/* Waits for a piece, and puts it where it is wanted. */
static oar_status finish_piece(sharer *s, const rank_set *set, int64_t number)
{
    const share_piece *p = &s->piece.data[set->first_piece + number];
    flight *f = &s->flight[number % UNDER_WAY];
    oar_status status = oar_work_wait_all(f->works, f->work);
    uint64_t at = 0;

    for (int i = 0; i < f->works; i++)
        oar_work_release(f->work[i]);
    f->works = 0;
    for (int64_t i = 0; i < p->parts && status == OAR_OK; i++) {
        const share_part *q = &s->part.data[p->first + i];

        if (s->status == OAR_OK)
            keep_failure(s, place_part(s, q, f->buffer + at));
        at += q->bytes;
    }
    return status;
}

static oar_status run_set(sharer *s, const rank_set *set)
{
    int64_t started = 0, finished = 0;
    oar_status status = OAR_OK;
    oar_error why;

    while (status == OAR_OK && finished < set->pieces)
        if (started < set->pieces && started - finished < UNDER_WAY)
            status = start_piece(s, set, started++);
        else
            status = finish_piece(s, set, finished++);
    if (status == OAR_OK)
        return OAR_OK;
    why = *oar_last_error();
    for (; finished < started; finished++) /* they have the buffers */
        (void)finish_piece(s, set, finished);
    return oari_fail_with(&why);
}

/* ---- the call ------------------------------------------------------------ */

/* Allocates all that is needed, so that only reading and sending can fail. */
static oar_status prepare_sets(sharer *s)
{
    size_t most = 1;

    for (int64_t i = 0; i < s->set.count; i++) {
        OARI_TRY(make_pieces(s, i));
        if ((size_t)s->set.data[i].count > most)
            most = (size_t)s->set.data[i].count;
    }
    for (int i = 0; i < UNDER_WAY && s->piece.count > 0; i++) {
        s->flight[i].buffer = oari_alloc_aligned(64, s->window);
        s->flight[i].work = oari_alloc(most, sizeof *s->flight[i].work);
        if (s->flight[i].buffer == NULL || s->flight[i].work == NULL)
            return OAR_E_NOMEM;
    }
    return OAR_OK;
}

/* Goes through the sets in the order of their hashes. */
static oar_status run_sets(sharer *s)
{
    for (int64_t n = 0; n < s->set.count; n++) {
        rank_set *next = NULL;

        for (int64_t i = 0; i < s->set.count; i++)
            if (!s->set.data[i].done &&
                (next == NULL || s->set.data[i].hash < next->hash))
                next = &s->set.data[i];
        OARI_TRY(run_set(s, next));
        next->done = 1;
    }
    return OAR_OK;
}

oar_status oari_ckpt_share(oari_ckpt_sharing *sharing)
{
    sharer s = { .is = sharing,
                 .window = PIECE_BLOCKS * sharing->index->block_bytes };
    oar_status status = compare_wants(&s);

    if (status == OAR_OK)
        status = oari_ckpt_agree(sharing->c, prepare_sets(&s));
    if (status == OAR_OK)
        status = run_sets(&s);
    for (int i = 0; i < UNDER_WAY; i++) {
        oari_free(s.flight[i].buffer);
        oari_free(s.flight[i].work);
    }
    oari_vec_free(&s.key);
    oari_vec_free(&s.set);
    oari_vec_free(&s.rank);
    oari_vec_free(&s.part);
    oari_vec_free(&s.piece);
    oari_free(s.set_of);
    oari_free(s.memory);
    oari_free(s.left);
    OARI_TRY(status);
    return s.status == OAR_OK ? OAR_OK : oari_fail_with(&s.error);
}

oar_status oari_ckpt_on_several_hosts(oar_checkpoint *c, int *several)
{
    const char *other = oari_env_text("OARSONG_HOST_ID");
    char host[256] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, host, sizeof host - 1) : -1;
    uint64_t word[2];

    if (fd >= 0)
        (void)close(fd);
    if (got <= 0)
        (void)gethostname(host, sizeof host - 1);
    word[0] = oari_hash64(host, strlen(host), 0);
    if (other !=
        NULL) /* ranks that are to be taken for those of another host */
        word[0] = oari_hash64(other, strlen(other), word[0]);
    word[1] = ~word[0];
    OARI_TRY(oar_all_reduce(c->group, oar_span_of(word, 2, OAR_U64), OAR_MIN,
                            NULL, NULL));
    *several = word[0] != ~word[1];
    return OAR_OK;
}
