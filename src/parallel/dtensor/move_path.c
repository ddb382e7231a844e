/* SPDX-License-Identifier: Apache-2.0 */
/* move_path: the plans that a mesh keeps. */
#include <string.h>

#include "base/alloc.h"
#include "parallel/dtensor/move_plan.h"

void oari_move_paths_free(oari_move_path *path)
{
    while (path != NULL) {
        oari_move_path *next = path->next;
        oari_free(path);
        path = next;
    }
}

/* Writes "redistribute [5, 3] S(0) R to R R". Returns its length. */
static size_t write_label(const oar_spec *from, const oar_spec *to, char *text,
                          size_t bytes)
{
    const oari_grid *grid = &from->mesh->grid;
    size_t at = oari_spec_text_add(text, bytes, 0, "redistribute %s ",
                                   oari_box_shape_text(from->shape).text);

    at = oari_cuts_text(grid, &from->layout, text, bytes, at);
    at = oari_spec_text_add(text, bytes, at, " to ");
    return oari_cuts_text(grid, &to->layout, text, bytes, at);
}

static oari_move_path *plan_path(const oar_spec *from, const oar_spec *to,
                                 size_t element)
{
    oari_mover mover = { &from->mesh->grid, from->shape, element };
    oari_move_step step[OAR_MOVES];
    size_t bytes, label = write_label(from, to, NULL, 0) + 1;
    oari_move_path *path;
    int steps;

    if (oari_plan_move(&mover, &from->layout, &to->layout, step, &steps) !=
        OAR_OK)
        return NULL;
    bytes = (size_t)steps * sizeof *step;
    path = oari_alloc(1, sizeof *path + bytes + label);
    if (path == NULL)
        return NULL;
    path->from = from;
    path->to = to;
    path->element = element;
    path->key = (from->hash * 3 + to->hash + element) | 1;
    path->steps = steps;
    memcpy(path->step, step, bytes);
    path->label = (char *)path->step + bytes;
    write_label(from, to, path->label, label);
    for (int i = 0; i < steps; i++) {
        path->us += step[i].us;
        path->bytes +=
            element * (uint64_t)oari_move_received(
                          &mover, i > 0 ? &step[i - 1].after : &from->layout,
                          &step[i], from->mesh->rank);
    }
    return path;
}

oari_move_path *oari_move_path_of(const oar_spec *from, const oar_spec *to,
                                  size_t element)
{
    size_t at = (from->hash * 7 + to->hash + element) % OARI_SPEC_ROWS;
    oar_mesh *mesh = from->mesh;
    oari_spec_table *table;
    oari_move_path *path;

    pthread_mutex_lock(&mesh->lock);
    table = oari_spec_table_of(mesh); /* there is one, of these specs */
    path = table->path[at];
    while (path != NULL &&
           (path->from != from || path->to != to || path->element != element))
        path = path->next;
    if (path == NULL) {
        path = plan_path(from, to, element);
        if (path != NULL) {
            path->next = table->path[at];
            table->path[at] = path;
        }
    }
    pthread_mutex_unlock(&mesh->lock);
    return path;
}
