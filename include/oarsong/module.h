/* SPDX-License-Identifier: Apache-2.0 */
/* module.h: parts of a model: ordered, named parameters and a forward.
 *
 * A module is counted like a tensor. A container takes the references of the
 * children it is given. Parameters are found by dotted names ("0.weight") in
 * the order they were registered, depth first; the same tensors every time, so
 * that handles held by optimizers and wrappers stay valid.
 *
 * Threads: one module by one thread at a time.
 */
#ifndef OARSONG_MODULE_H
#define OARSONG_MODULE_H

#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

typedef struct oar_module oar_module;

/* A counter in a module's private data: a number that goes on from one forward
 * to the next, such as the seed of a dropout, and that a resumed run needs. */
typedef struct oar_counter_entry {
    const char *name; /* without dots, unique in its class */
    size_t offset;    /* of the uint64_t in the private data */
} oar_counter_entry;

/* What a kind of module does. The library keeps the pointer: make it const and
 * static. */
typedef struct oar_module_class {
    size_t size; /* sizeof, for the ABI */
    const char *name;
    size_t self_size; /* of the private data, which the library allocates */
    oar_tensor *(*forward)(oar_tape *tape, oar_module *module, oar_tensor *x);
    void (*destroy)(void *self); /* (optional) not for parameters or children */
    void (*train)(void *self, int on); /* (optional) the mode has changed */
    const oar_counter_entry *counters; /* (optional) the last has no name */
} oar_module_class;

/* A module without parameters or children yet; gives one reference. */
OAR_API oar_status oar_module_create(const oar_module_class *kind,
                                     oar_module **module);
OAR_API oar_module *oar_module_retain(oar_module *module);
OAR_API void oar_module_release(oar_module *module); /* NULL is fine */
OAR_API void *oar_module_self(oar_module *module);   /* the private data */
OAR_API const char *oar_module_name(const oar_module *module); /* its class's */
/* Whether oar_module_create was given this very class, by its address: two
 * classes may have the same name. 0 for NULL. */
OAR_API int oar_module_is(const oar_module *module,
                          const oar_module_class *kind);

/* Register under a name without dots, unique in its module. Take the reference
 * they are given, also on failure. A parameter is made to require a gradient;
 * a buffer is state that is saved and broadcast, but not trained. */
OAR_API oar_status oar_module_add_param(oar_module *module, const char *name,
                                        oar_tensor *param);
OAR_API oar_status oar_module_add_buffer(oar_module *module, const char *name,
                                         oar_tensor *buffer);
OAR_API oar_status oar_module_add_child(oar_module *module, const char *name,
                                        oar_module *child);

OAR_API int oar_module_children(const oar_module *module); /* direct ones */
OAR_API oar_module *oar_module_child(const oar_module *module, int index);
/* The name that child was registered under, without dots; NULL out of range.
 * Valid until the module is freed. */
OAR_API const char *oar_module_child_name(const oar_module *module, int index);
/* The module of this dotted name ("blocks.0.attention"), borrowed; NULL if
 * there is none (not an error). */
OAR_API oar_module *oar_module_find_module(const oar_module *module,
                                           const char *name);

/* Put something else in the place of the child, or of the parameter, of this
 * dotted name; what was there loses the module's reference. Take the reference
 * they are given, also on failure. The order and the names stay. A child takes
 * the training mode of its place. A parameter may have another shape and dtype;
 * it is made to require a gradient if the one before did. One that is
 * registered in several places stays in the others. OAR_E_NOT_FOUND if there is
 * none of that name: the error has the nearest names. OAR_E_ARG if a module
 * would be inside itself. Handles of what was there, which an optimizer or a
 * wrapper holds, are not changed: make those afterwards. Not between a forward
 * and its backward. */
OAR_API oar_status oar_module_replace(oar_module *module, const char *name,
                                      oar_module *child);
OAR_API oar_status oar_module_replace_param(oar_module *module,
                                            const char *name,
                                            oar_tensor *param);

/* All parameters below this module, in order; borrowed. NULL out of range. One
 * that was registered in two places is there twice. */
OAR_API int oar_module_params(const oar_module *module);
OAR_API oar_tensor *oar_module_param(const oar_module *module, int index);
OAR_API int oar_module_buffers(const oar_module *module);
OAR_API oar_tensor *oar_module_buffer(const oar_module *module, int index);

/* Writes the dotted name of a parameter into name, cut to fit. */
OAR_API oar_status oar_module_param_name(const oar_module *module, int index,
                                         char *name, size_t bytes);

OAR_API oar_status oar_module_buffer_name(const oar_module *module, int index,
                                          char *name, size_t bytes);
/* By dotted name; NULL if there is none (not an error). */
OAR_API oar_tensor *oar_module_find(const oar_module *module, const char *name);

/* All counters of this module and below, in order ("0.next_seed"): read and
 * written where they are. Borrowed; NULL out of range, or if there is none of
 * that name (not an error). With its parameters, buffers and counters copied, a
 * module of the same layers goes on bitwise. */
OAR_API int oar_module_counters(const oar_module *module);
OAR_API uint64_t *oar_module_counter(const oar_module *module, int index);
OAR_API oar_status oar_module_counter_name(const oar_module *module, int index,
                                           char *name, size_t bytes);
OAR_API uint64_t *oar_module_find_counter(const oar_module *module,
                                          const char *name);

/* Frozen parameters require no gradient; and all below. */
OAR_API oar_status oar_module_freeze(oar_module *module, int on);

/* Moves every parameter and buffer to a device, in place: the same tensors,
 * there from now on. Their gradients go; optimizers move their states at their
 * next step. Tapes that have recorded the module have to be reset. OAR_E_STATE:
 * a tensor without its data, or a guarded one; on failure nothing has moved. */
OAR_API oar_status oar_module_to(oar_module *module, oar_device device);
/* Converts floats in place, in the same way; those of norms stay as they are
 * unless all. Make optimizers afterwards, or cast with them: oar_optim_cast. */
OAR_API oar_status oar_module_cast(oar_module *module, oar_dtype dtype,
                                   int all);

/* Copies every parameter and buffer of `from` into the one of the same name,
 * shape and dtype. strict: both must have the same names. The first that does
 * not fit is named, and then nothing is copied. */
OAR_API oar_status oar_module_load(oar_module *into, const oar_module *from,
                                   int strict);

/* Runs the module: hooks before, its forward, hooks after. */
#define oar_forward(tape, module, x) oar_forward_at(OAR_HERE, tape, module, x)
OAR_API oar_tensor *oar_forward_at(const char *file, int line, oar_tape *tape,
                                   oar_module *module, oar_tensor *x);

/* Activation recomputation: runs module's forward without recording its inside;
 * when backward comes to it, runs it again on a tape of its own, and backward
 * through that. Random numbers are the same both times. The result and the
 * gradients are bitwise those of oar_forward. Forward hooks inside run twice,
 * the second time on the inner tape, where the backward hooks run too. When
 * backward is split, all of it belongs to the inputs half. */
#define oar_recompute(tape, module, x) \
    oar_recompute_at(OAR_HERE, tape, module, x)
OAR_API oar_tensor *oar_recompute_at(const char *file, int line, oar_tape *tape,
                                     oar_module *module, oar_tensor *x);

OAR_API void oar_module_train(oar_module *module, int on); /* and all below */
OAR_API int oar_module_training(const oar_module *module);

/* Hooks around a module, run in the order added; a failure ends the pass with
 * that status. Backward hooks run when backward reaches the module's output
 * (before) and when the gradient of its input is complete (after), whether or
 * not that input needs one; when backward is split, in the inputs half. A
 * module that nothing was recorded for has none. */
typedef enum oar_module_moment {
    OAR_BEFORE_FORWARD = 0,
    OAR_AFTER_FORWARD = 1,
    OAR_BEFORE_BACKWARD = 2,
    OAR_AFTER_BACKWARD = 3
} oar_module_moment;
typedef oar_status (*oar_module_fn)(oar_tape *tape, oar_module *module,
                                    void *arg);
OAR_API oar_status oar_module_on(oar_module *module, oar_module_moment moment,
                                 oar_module_fn fn, void *arg, oar_hook **hook);

/* Changes what goes into a module's forward (OAR_BEFORE_FORWARD: x is its
 * input, after the hooks of that moment) or what comes out of it
 * (OAR_AFTER_FORWARD: x is its result, before the hooks): what fn returns takes
 * the place of x. It is recorded as part of the module, so backward hooks
 * enclose it. Returns its tensors as an operation does: x itself is fine on a
 * tape; without one the caller owns the result, so it gives a reference of x
 * then. NULL ends the forward with the last error. Maps run in the order added,
 * each on the result of the one before. oar_hook_remove removes one. Another
 * moment is OAR_E_ARG. */
typedef oar_tensor *(*oar_module_map_fn)(oar_tape *tape, oar_module *module,
                                         oar_tensor *x, void *arg);
OAR_API oar_status oar_module_map(oar_module *module, oar_module_moment moment,
                                  oar_module_map_fn fn, void *arg,
                                  oar_hook **hook);

OAR_END_DECLS

#endif
