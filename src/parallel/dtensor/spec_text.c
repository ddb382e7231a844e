/* SPDX-License-Identifier: Apache-2.0 */
/* spec_text: specs as a person reads them. */
#include <stdarg.h>
#include <stdio.h>

#include "parallel/dtensor/spec.h"

enum { SIZES_SHOWN = 8 };

size_t oari_spec_text_add(char *text, size_t bytes, size_t at,
                          const char *format, ...)
{
    va_list args;
    int wrote;

    va_start(args, format);
    wrote = vsnprintf(at < bytes ? text + at : NULL,
                      at < bytes ? bytes - at : 0, format, args);
    va_end(args);
    return at + (size_t)(wrote > 0 ? wrote : 0);
}

static size_t write_sizes(const oari_sizes *sizes, char *text, size_t bytes,
                          size_t at)
{
    for (int i = 0; i < sizes->parts && i < SIZES_SHOWN; i++)
        at = oari_spec_text_add(text, bytes, at, "%s%lld", i > 0 ? " " : ": ",
                                (long long)sizes->size[i]);
    return oari_spec_text_add(text, bytes, at, "%s",
                              sizes->parts > SIZES_SHOWN ? " ..." : "");
}

static size_t write_cut(const oari_cut *cut, char *text, size_t bytes,
                        size_t at)
{
    switch (cut->kind) {
    case OAR_REPLICATE: return oari_spec_text_add(text, bytes, at, "R");
    case OAR_PARTIAL:
        return oari_spec_text_add(text, bytes, at, "P(%s)",
                                  oar_reduce_op_name(cut->op));
    case OAR_SHARD:
        at = oari_spec_text_add(text, bytes, at, "S(%d", cut->dim);
        break;
    case OAR_FLAT:
        at = oari_spec_text_add(text, bytes, at, "F");
        if (cut->sizes == NULL)
            return at;
        at = oari_spec_text_add(text, bytes, at, "(");
        break;
    }
    if (cut->sizes != NULL)
        at = write_sizes(cut->sizes, text, bytes, at);
    return oari_spec_text_add(text, bytes, at, ")");
}

size_t oari_cuts_text(const oari_grid *grid, const oari_cuts *layout,
                      char *text, size_t bytes, size_t at)
{
    const char *before = " in the order ";
    int natural = 1, last = -1;

    for (int m = 0; m < grid->dims; m++) {
        at = oari_spec_text_add(text, bytes, at, "%s", m > 0 ? " " : "");
        at = write_cut(&layout->on[m], text, bytes, at);
    }
    for (int i = 0; i < grid->dims; i++)
        if (oari_cut_splits(&layout->on[layout->order[i]])) {
            natural &= layout->order[i] > last;
            last = layout->order[i];
        }
    for (int i = 0; i < grid->dims && !natural; i++)
        if (oari_cut_splits(&layout->on[layout->order[i]])) {
            at = oari_spec_text_add(text, bytes, at, "%s%s", before,
                                    grid->name[layout->order[i]]);
            before = " ";
        }
    return at;
}

size_t oar_spec_text(const oar_spec *spec, char *text, size_t bytes)
{
    const oari_grid *grid;
    size_t at = 0;

    if (spec == NULL)
        return oari_spec_text_add(text, bytes, 0, "no spec");
    grid = &spec->mesh->grid;
    at = oari_spec_text_add(text, bytes, at, "%s on",
                            oari_box_shape_text(spec->shape).text);
    for (int m = 0; m < grid->dims; m++)
        at = oari_spec_text_add(text, bytes, at, " %s=%d", grid->name[m],
                                grid->size[m]);
    at = oari_spec_text_add(text, bytes, at, ": ");
    return oari_cuts_text(grid, &spec->layout, text, bytes, at);
}
