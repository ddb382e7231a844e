/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/checkpoint/part_list.h: what one rank holds of which tensors, as a
 * list that ranks send each other before a save.
 *
 * On the wire, all numbers little-endian:
 *   u32 magic "OARC", u32 version 1, u32 entries; for each entry
 *     u8 section number, u8 dtype, u8 ndim, u8 flags,
 *     i64 whole[ndim], i64 offset[ndim], i64 extent[ndim],
 *     u16 length, name (not ended by a zero byte);
 *   u8 number of sections; for each section u8 length, text.
 * Sections are in the order of their texts, entries in the order of section
 * number, name and box, and none is there twice: one list has one form, and a
 * list that is read and written again is the same bytes. */
#ifndef OARI_PARALLEL_CHECKPOINT_PART_LIST_H
#define OARI_PARALLEL_CHECKPOINT_PART_LIST_H

#include "base/vec.h"
#include "parallel/place/box.h"

enum {
    OARI_CKPT_LONGEST_NAME = 1000,  /* bytes of UTF-8 */
    OARI_CKPT_LONGEST_SECTION = 64, /* letters, digits, '-' and '_' */
    OARI_CKPT_MOST_SECTIONS = 255
};

/* Flags of a tensor. */
enum {
    OARI_CKPT_COUNTER = 1, /* a number that goes on counting */
    OARI_CKPT_BYTES = 2    /* bytes of the user's */
};

/* A whole tensor. Texts are borrowed from the object that it is found in. */
typedef struct oari_ckpt_tensor {
    const char *section, *name;
    oar_dtype dtype;
    unsigned flags; /* OARI_CKPT_... */
    oar_shape whole;
} oari_ckpt_tensor;

/* Returns less than, equal to or more than 0: by section, then by name. */
int oari_ckpt_name_compare(const oari_ckpt_tensor *a,
                           const oari_ckpt_tensor *b);

/* Copies the texts of a tensor to *at, which moves on. *section is the copy
 * that the tensor before has, NULL at first: one of the same section shares it.
 */
void oari_ckpt_copy_names(oari_ckpt_tensor *tensor, const char **section,
                          char **at);

/* "model/tok.weight" in quotes, for error sentences; a long name is cut short
 * and ends in "...". */
oari_box_string oari_ckpt_name_text(const oari_ckpt_tensor *tensor);

/* A box of a tensor. */
typedef struct oari_ckpt_part {
    oari_ckpt_tensor tensor;
    oari_box box;
    int64_t item;  /* which call of oari_ckpt_part_list_add... made it: the
                      list's `items` of then; -1 in a list that was read */
    int64_t first; /* where the box begins in the array of that call, which has
                      it row by row: an element */
} oari_ckpt_part;

/* A list of zeros is empty. Parts are added, then it is sealed. */
typedef struct oari_ckpt_part_list {
    OARI_VEC(oari_ckpt_part) part; /* once sealed: in order */
    int64_t items; /* each call adds 1; the caller may skip numbers */
    char *text;    /* the names and sections, once sealed */
    OARI_VEC(unsigned char) wire;
    uint64_t hash[2]; /* XXH3 of the wire's bytes */
} oari_ckpt_part_list;

void oari_ckpt_part_list_free(oari_ckpt_part_list *list); /* empties it */

/* Add an array that is a box of a tensor, or elements first .. first + count -
 * 1 of it, row by row, which are turned into boxes. Texts are borrowed until
 * the list is sealed. OAR_E_ARG, with the name, for what cannot be. */
oar_status oari_ckpt_part_list_add_box(oari_ckpt_part_list *list,
                                       const oari_ckpt_tensor *tensor,
                                       const oari_box *box);
oar_status oari_ckpt_part_list_add_flat(oari_ckpt_part_list *list,
                                        const oari_ckpt_tensor *tensor,
                                        int64_t first, int64_t count);

/* Sorts the parts, copies their texts, writes the wire's bytes and their hash.
 * OAR_E_ARG if two calls added the same name. After a failure the list can only
 * be freed. */
oar_status oari_ckpt_part_list_seal(oari_ckpt_part_list *list);

/* Returns the part of a sealed list that is this box of this tensor, or NULL.
 */
const oari_ckpt_part *oari_ckpt_find_part(const oari_ckpt_part_list *list,
                                          const oari_ckpt_tensor *tensor,
                                          const oari_box *box);

/* Reads a list from the wire into an empty one: sealed, but without the wire's
 * bytes. Everything is checked; OAR_E_DATA. */
oar_status oari_ckpt_part_list_read(const void *wire, size_t bytes,
                                    oari_ckpt_part_list *list);

/* ---- the lists of all ranks ---------------------------------------------- */

typedef struct oari_ckpt_holding {
    int rank;
    int64_t list;
} oari_ckpt_holding;

/* Zeros, but for the number of ranks, are an empty set. Lists that are the same
 * bytes are kept once, so that what all ranks hold does not cost once for each
 * of them. A rank may have several lists. If each has one for each section, a
 * section that is the same everywhere is kept once, whatever the others are. */
typedef struct oari_ckpt_lists {
    int ranks;
    OARI_VEC(oari_ckpt_part_list) list;
    OARI_VEC(oari_ckpt_holding) holding; /* as they were added */
} oari_ckpt_lists;

/* Reads a list that a rank has sent. OAR_E_DATA names the rank. */
oar_status oari_ckpt_lists_add(oari_ckpt_lists *lists, int rank,
                               const void *wire, size_t bytes);
void oari_ckpt_lists_free(oari_ckpt_lists *lists); /* empties it */

#endif
