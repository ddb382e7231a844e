/* SPDX-License-Identifier: Apache-2.0 */
/* support/spec_elements.h: lists of specs, and which elements a rank has, found
 * by cutting index by index. */
#ifndef TESTS_SUPPORT_SPEC_ELEMENTS_H
#define TESTS_SUPPORT_SPEC_ELEMENTS_H

#include <oarsong/dtensor.h>

enum { SPEC_LIST_MOST = 200, SPEC_MOST_PARTS = 8 };

typedef struct spec_list {
    int count;
    const oar_spec *spec[SPEC_LIST_MOST];
} spec_list;

/* Lists the specs with every placement of every mesh dim, in every order. odd:
 * also with parts of given sizes, some of them empty. */
void spec_list_make(oar_mesh *mesh, oar_shape shape, int odd, spec_list *list);

int64_t shape_count(oar_shape shape);

/* Returns whether a rank has an element of the whole. */
int spec_has_element(const oar_spec *spec, int rank, int64_t element);

/* Returns which summand of a partial tensor a rank has; 0 for all ranks where
 * it is not partial. */
int spec_summand_of(const oar_spec *spec, int rank);
/* Returns how many summands there are. */
int spec_summands(const oar_spec *spec);
/* Returns the number of an element in a summand. */
int64_t spec_summand(int64_t element, int i);

#endif
