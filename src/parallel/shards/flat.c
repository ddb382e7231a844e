/* SPDX-License-Identifier: Apache-2.0 */
/* flat: how arrays lie in flats, and how flats are cut into parts. Arithmetic
 * only: any rank can compute every rank's part.
 *
 * Every array begins on a cache line. A flat is cut at pages, so that a rank
 * can be kept from writing to the parts of others. Pages that are left over
 * after an even division go to the ranks in turn, from flat to flat: a model of
 * many small units is spread evenly, too.
 */
#include "base/alloc.h"
#include "base/status.h"
#include "parallel/shards/shards.h"

enum { LINE = 64 };

int oari_cut_evenly(size_t count, size_t grain, int parts, int spare,
                    size_t *end)
{
    size_t n = (size_t)parts, grains = (count + grain - 1) / grain;
    size_t each = grains / n, extra = grains % n, at = 0;

    for (size_t p = 0; p < n; p++) {
        size_t turn = (p + n - (size_t)spare) % n;

        at += (each + (turn < extra)) * grain;
        end[p] = at < count ? at : count;
    }
    return (int)(((size_t)spare + extra) % n);
}

/* Returns the position nearest to `at` where a cut is allowed: between rows of
 * the array there, or at its ends. */
static size_t allowed_cut(const oari_sharded_array *a, size_t at)
{
    size_t inside = at - a->at, low;

    if (inside >= a->count) /* the gap after it */
        return at;
    low = inside / a->row * a->row;
    if (inside - low > a->row / 2)
        low = low + a->row < a->count ? low + a->row : a->count;
    return a->at + low;
}

/* Moves the ends of parts to where cuts are allowed. */
static void move_cuts(const oar_shards *s, int flat, int parts, size_t *end)
{
    size_t before = 0;
    int i = 0, found = -1;

    for (int p = 0; p < parts - 1; p++) {
        for (; i < s->arrays; i++) {
            const oari_sharded_array *a = &s->array[i];
            if (a->flat != flat)
                continue;
            if (a->at > end[p])
                break;
            found = i;
        }
        if (found >= 0 && s->array[found].row > 1)
            end[p] = allowed_cut(&s->array[found], end[p]);
        if (end[p] < before)
            end[p] = before;
        before = end[p];
    }
}

size_t oari_flat_part_first(const oari_flat *flat, int part)
{
    size_t first = 0;

    for (int p = 0; p < part; p++)
        first += flat->counts[p];
    return first;
}

void oari_flat_range(const oar_shards *s, int array, int part, size_t *first,
                     size_t *count)
{
    const oari_sharded_array *a = &s->array[array];
    const oari_flat *flat = &s->flat[a->flat];
    size_t low = oari_flat_part_first(flat, part);
    size_t high = low + flat->counts[part], stop = a->at + a->count;

    if (low < a->at)
        low = a->at;
    if (high > stop)
        high = stop;
    *first = low < high ? low - a->at : 0;
    *count = low < high ? high - low : 0;
}

/* ---- making -------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Returns the flat of the unit for such arrays, a new one if there is none. */
static int flat_for(oar_shards *s, int unit, oar_dtype dtype, int frozen)
{
    int converts = s->opts.mixed && (dtype == OAR_F32 || dtype == OAR_F64);
    oari_shard_unit *u = &s->unit[unit];
    oari_flat *flat;

    for (int f = u->first; f < u->first + u->flats; f++)
        if (s->flat[f].dtype == dtype && s->flat[f].frozen == frozen)
            return f;
    flat = &s->flat[s->flats];
    flat->unit = unit;
    flat->dtype = dtype;
    flat->whole_dtype = converts ? s->opts.whole_dtype : dtype;
    flat->mean_dtype = converts ? s->opts.reduce_dtype : dtype;
    flat->frozen = frozen;
    s->apart |= flat->whole_dtype != dtype;
    u->flats++;
    return s->flats++;
}

/* Lists the arrays by unit, each unit's in their order; begin: by unit. */
static void sort_by_unit(const oar_shards *s, int *sorted, int *begin)
{
    for (int i = 0; i < s->arrays; i++)
        begin[s->array[i].unit + 1]++;
    for (int u = 0; u < s->units; u++)
        begin[u + 1] += begin[u];
    for (int i = 0; i < s->arrays; i++)
        sorted[begin[s->array[i].unit]++] = i;
}

/* Returns how many elements of a flat are whole cache lines in both dtypes. */
static size_t line_count(const oari_flat *flat)
{
    size_t size = oar_dtype_size(flat->dtype);
    size_t whole = oar_dtype_size(flat->whole_dtype);

    return LINE / (size < whole ? size : whole);
}

static void assign_arrays(oar_shards *s, const oar_span *array,
                          const unsigned char *frozen, const int *sorted)
{
    int unit = -1;

    for (int k = 0; k < s->arrays; k++) {
        oari_sharded_array *a = &s->array[sorted[k]];
        const oar_span *span = &array[sorted[k]];
        int is_frozen = span->dtype > OAR_BF16 ||
                        (frozen != NULL && frozen[sorted[k]] != 0);
        oari_flat *flat;

        if (a->unit != unit)
            s->unit[a->unit].first = s->flats;
        unit = a->unit;
        s->unit[unit].trained += !is_frozen;
        a->flat = flat_for(s, unit, span->dtype, is_frozen);
        flat = &s->flat[a->flat];
        a->at = flat->count;
        a->count = span->count;
        flat->count += round_up(span->count, line_count(flat));
    }
}

/* Cuts every flat, and lays out this rank's parts and all whole flats. */
static oar_status cut_flats(oar_shards *s, const oari_flat_cut *cut,
                            size_t *end)
{
    int spare = 0;

    for (int f = 0; f < s->flats; f++) {
        oari_flat *flat = &s->flat[f];
        size_t size = oar_dtype_size(flat->dtype), before = 0, part;
        size_t whole_size = oar_dtype_size(flat->whole_dtype);

        flat->counts = oari_alloc((size_t)cut->parts, sizeof *flat->counts);
        if (flat->counts == NULL)
            return OAR_E_NOMEM;
        spare = oari_cut_evenly(flat->count, cut->page / whole_size, cut->parts,
                                spare, end);
        move_cuts(s, f, cut->parts, end);
        for (int p = 0; p < cut->parts; p++) {
            flat->counts[p] = end[p] - before;
            if (p == cut->mine)
                flat->first = before;
            before = end[p];
        }
        part = round_up(flat->counts[cut->mine] * size, LINE);
        flat->whole_at = s->whole_bytes;
        flat->part_at = s->part_bytes;
        flat->grad_at = s->grad_bytes;
        s->whole_bytes += round_up(flat->count * whole_size, cut->page);
        s->part_bytes += part;
        s->grad_bytes += flat->frozen ? 0 : part;
    }
    return OAR_OK;
}

oar_status oari_flats_make(oar_shards *s, const oar_span *array,
                           const unsigned char *frozen,
                           const oari_flat_cut *cut)
{
    int *sorted = oari_alloc((size_t)s->arrays + 1, sizeof *sorted);
    int *begin = oari_alloc((size_t)s->units + 1, sizeof *begin);
    size_t *end = oari_alloc((size_t)cut->parts, sizeof *end);
    oar_status status = OAR_E_NOMEM;

    if (sorted != NULL && begin != NULL && end != NULL) {
        sort_by_unit(s, sorted, begin);
        assign_arrays(s, array, frozen, sorted);
        status = cut_flats(s, cut, end);
    }
    oari_free(sorted);
    oari_free(begin);
    oari_free(end);
    return status;
}
