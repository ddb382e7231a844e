/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/place/box.h: boxes of elements, which are what ranks hold of a
 * tensor, what files store of it and what a load wants of it.
 *
 * Nothing here allocates. A shape or a box from outside is checked once, by
 * oari_box_shape_fits and oari_box_fits; no product of the extents of a
 * box that passed, not even with a dim of 0 taken as 1, overflows. The other
 * functions rely on that. */
#ifndef OARI_PARALLEL_PLACE_BOX_H
#define OARI_PARALLEL_PLACE_BOX_H

#include <oarsong/tensor.h>

/* A range in every dim of a tensor. The numbers behind ndim are 0. */
typedef struct oari_box {
    int ndim; /* 0: the one element of a 0-d tensor */
    int64_t offset[OAR_MAX_DIMS], extent[OAR_MAX_DIMS];
} oari_box;

/* Returns whether a tensor can have this shape: 0 to OAR_MAX_DIMS dims, none
 * of them negative, and a size in bytes that fits an int64_t. */
int oari_box_shape_fits(oar_shape whole, size_t element);

/* Returns whether a box lies in a shape that fits. */
int oari_box_fits(const oari_box *box, oar_shape whole);

/* Returns the box of all elements of a shape. */
oari_box oari_box_whole(oar_shape whole);

/* Returns the number of elements. */
int64_t oari_box_count(const oari_box *box);

/* Returns less than, equal to or more than 0: by number of dims, then by
 * offsets, the first dim first, then by extents. */
int oari_box_compare(const oari_box *a, const oari_box *b);

/* Gives the elements that two boxes of one tensor have in common. Returns 0 if
 * there are none. */
int oari_box_meet(const oari_box *a, const oari_box *b, oari_box *common);

enum { OARI_FLAT_BOXES = 2 * OAR_MAX_DIMS - 1 };

/* Cuts elements first .. first + count - 1 of a shape, row by row, into boxes.
 * One behind the other they hold the elements in this order; n dims give at
 * most 2n - 1. An empty range has no boxes, but that of an empty tensor is the
 * whole. Returns the number of boxes; -1 if the range is not in the shape. */
int oari_flat_boxes(oar_shape whole, int64_t first, int64_t count,
                    oari_box box[OARI_FLAT_BOXES]);

/* ---- runs ---------------------------------------------------------------- */

/* Bytes that lie one behind the other in two arrays. */
typedef struct oari_box_run {
    uint64_t from, to, bytes;
} oari_box_run;

/* The runs of a box `what` that lies in two boxes, `from` and `to`, each of
 * which is stored row by row: a copy of `what` from one to the other. Fields
 * are for the functions below. */
typedef struct oari_box_runs {
    int outer; /* dims that are walked through; the others are in one run */
    int64_t left;
    int64_t extent[OAR_MAX_DIMS], index[OAR_MAX_DIMS];
    uint64_t from_stride[OAR_MAX_DIMS], to_stride[OAR_MAX_DIMS];
    oari_box_run next;
} oari_box_runs;

/* Starts at the first run, and returns how many there are. Both arrays may be
 * the same box. */
int64_t oari_box_runs_start(oari_box_runs *runs, const oari_box *what,
                            const oari_box *from, const oari_box *to,
                            size_t element);

/* Gives the next run, in rising order of both places. Returns 0 after the last
 * one. */
int oari_box_runs_next(oari_box_runs *runs, oari_box_run *run);

/* Copies a box that lies in two boxes, each of which is stored row by row. */
void oari_box_copy(const oari_box *what, const oari_box *from,
                   const oari_box *to, size_t element, const void *from_data,
                   void *to_data);

/* ---- texts --------------------------------------------------------------- */

/* For error sentences: oari_box_text(box).text. */
typedef struct oari_box_string {
    char text[360];
} oari_box_string;

/* "[0:4, 2:6]": first and end in each dim. */
oari_box_string oari_box_text(const oari_box *box);

/* "[4, 6]". */
oari_box_string oari_box_shape_text(oar_shape shape);

#endif
