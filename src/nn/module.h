/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module.h: what a module is inside the library. */
#ifndef OARI_NN_MODULE_H
#define OARI_NN_MODULE_H

#include <stdatomic.h>
#include <stddef.h>

#include <oarsong/module.h>

#include "tensor/hook.h"

enum { OARI_MOMENTS = OAR_AFTER_BACKWARD + 1 };

typedef enum oari_entry_kind {
    OARI_PARAM = 0,
    OARI_BUFFER,
    OARI_CHILD
} oari_entry_kind;

/* Something registered in a module, in the order it was. Owns what it holds. */
typedef struct oari_entry {
    oari_entry_kind kind;
    char *name;
    oar_tensor *tensor; /* of a parameter or buffer */
    oar_module *child;
} oari_entry;

struct oar_module {
    atomic_int refs;
    oar_module_class kind;         /* as much of it as the caller knows */
    const oar_module_class *given; /* where the caller keeps it */
    int training;
    oari_entry *entry;
    int entries;
    int64_t room;
    oari_hooks hooks[OARI_MOMENTS];
    _Alignas(max_align_t) unsigned char self[]; /* the class's */
};

#endif
