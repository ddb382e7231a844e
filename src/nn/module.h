/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module.h: what a module is inside the library. */
#ifndef OARI_NN_MODULE_H
#define OARI_NN_MODULE_H

#include <stdatomic.h>
#include <stddef.h>

#include <oarsong/module.h>

#include "tensor/hook.h"

enum { OARI_MOMENTS = OAR_AFTER_BACKWARD + 1, OARI_MAPS = 2 };

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
    oari_hooks maps[OARI_MAPS];                /* of the input, of the result */
    _Atomic uint32_t trace_name;               /* in the trace; 0: none yet */
    uint64_t backward_began;                   /* ticks; 0: is not traced */
    struct oari_gpu_interval *backward_on_gpu; /* NULL: is not traced */
    oar_device traced_on; /* where its input was, if that was traced */
    char name[32];        /* in the module above; cut to fit */
    int replaced;         /* it, or something in it, by the user */
    _Alignas(max_align_t) unsigned char self[]; /* the class's */
};

/* Returns the entry called by the first `length` letters of name, or NULL. */
oari_entry *oari_module_entry(const oar_module *module, const char *name,
                              size_t length);

/* Follows a dotted name down to its last part, which *name becomes. Returns the
 * module that has that part, or NULL if there is none. */
const oar_module *oari_module_follow(const oar_module *module,
                                     const char **name);

/* Returns whether module is `wanted` or holds it at any depth. */
int oari_module_holds(const oar_module *module, const oar_module *wanted);

#endif
