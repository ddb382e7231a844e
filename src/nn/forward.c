/* SPDX-License-Identifier: Apache-2.0 */
/* forward: runs a module, with the hooks and maps around it. On a tape that
 * records, the module's place is marked at both ends, and backward runs its
 * hooks there; maps lie between the marks. */
#include <stdio.h>

#include "autograd/tape.h"
#include "base/call_site.h"
#include "base/status.h"
#include "base/trace.h"
#include "device/cuda/cuda_trace.h"
#include "nn/module.h"

oar_status oar_module_on(oar_module *module, oar_module_moment moment,
                         oar_module_fn fn, void *arg, oar_hook **hook)
{
    if (module == NULL)
        return oari_null("module_on");
    if ((int)moment < 0 || (int)moment >= OARI_MOMENTS)
        return oari_fail(OAR_E_ARG, "module %s: there is no moment %d",
                         module->kind.name, (int)moment);
    return oari_hook_add(&module->hooks[moment], (oari_hook_fn)fn, arg, hook);
}

oar_status oar_module_map(oar_module *module, oar_module_moment moment,
                          oar_module_map_fn fn, void *arg, oar_hook **hook)
{
    if (module == NULL)
        return oari_null("module_map");
    if (moment != OAR_BEFORE_FORWARD && moment != OAR_AFTER_FORWARD)
        return oari_fail(OAR_E_ARG,
                         "module %s: a map at moment %d; there are maps before "
                         "and after forward",
                         module->kind.name, (int)moment);
    return oari_hook_add(&module->maps[moment], (oari_hook_fn)fn, arg, hook);
}

/* Returns what the maps of a moment make of x, which this takes if it is
 * `owned`: without a tape every map gives a reference of its own. */
static oar_tensor *run_maps(oar_tape *tape, oar_module *module,
                            oar_module_moment moment, oar_tensor *x, int owned)
{
    OARI_EACH_HOOK(hook, following, &module->maps[moment])
    {
        oar_tensor *y =
            ((oar_module_map_fn)hook->fn)(tape, module, x, hook->arg);

        if (y == NULL && oar_last_error()->status == OAR_OK)
            oari_fail(OAR_E_STATE, "a map of module %s returned NULL",
                      module->kind.name);
        if (tape == NULL && owned)
            oar_tensor_release(x);
        x = y;
        owned = 1;
        if (x == NULL)
            break;
    }
    return x;
}

static oar_status run_hooks(oar_tape *tape, oar_module *module,
                            oar_module_moment moment)
{
    OARI_EACH_HOOK(hook, following, &module->hooks[moment])
    {
        oar_status status = ((oar_module_fn)hook->fn)(tape, module, hook->arg);

        if (status != OAR_OK)
            return oari_hook_failed("module", status);
    }
    return OAR_OK;
}

/* Writes what traces call a module. */
static void write_label(const oar_module *module, const char *behind,
                        char *text, size_t room)
{
    snprintf(text, room, "%s%s%s%s", module->name,
             module->name[0] != 0 ? " " : "", module->kind.name, behind);
}

/* Writes that a module has run into the trace, from `start` to now. */
__attribute__((noinline, cold)) static void
trace_module(oar_module *module, oari_trace_kind kind, uint64_t start)
{
    uint32_t name =
        atomic_load_explicit(&module->trace_name, memory_order_relaxed);
    char text[96];

    if (name == 0) {
        write_label(module, "", text, sizeof text);
        name = oari_trace_name(text);
        atomic_store_explicit(&module->trace_name, name, memory_order_relaxed);
    }
    oari_trace_write(&(oari_trace_entry){
        .start = start, .end = oari_ticks(), .kind = kind, .name = name });
}

static oari_gpu_interval *begin_on_gpu(oar_device device)
{
    return oari_gpu_trace_begin(device, oar_stream_current(device));
}

static void end_on_gpu(oari_gpu_interval *traced, const oar_module *module,
                       const char *behind)
{
    char text[96];

    write_label(module, behind, text, sizeof text);
    oari_gpu_trace_end(traced, text);
}

static oar_status on_backward(oar_tape *tape, void *arg, int at_end)
{
    oar_module *module = arg;
    oar_status status;

    if (at_end) {
        module->backward_began = oari_trace_begin();
        if (module->backward_began != 0) {
            oari_gpu_trace_end(module->backward_on_gpu, NULL); /* it failed */
            module->backward_on_gpu = begin_on_gpu(module->traced_on);
        }
        return run_hooks(tape, module, OAR_BEFORE_BACKWARD);
    }
    status = run_hooks(tape, module, OAR_AFTER_BACKWARD);
    if (module->backward_began != 0)
        trace_module(module, OARI_TRACE_BACKWARD, module->backward_began);
    module->backward_began = 0;
    if (module->backward_on_gpu != NULL)
        end_on_gpu(module->backward_on_gpu, module, " backward");
    module->backward_on_gpu = NULL;
    return status;
}

static void drop_module(void *arg)
{
    oar_module_release(arg);
}

/* Marks the place of the module on a tape that records; else sets *mark to -1.
 */
static oar_status mark_module(oar_tape *tape, oar_module *module, int64_t *mark)
{
    oar_status status;

    *mark = -1;
    if (tape == NULL || !tape->recording)
        return OAR_OK;
    status = oari_mark_begin(tape, on_backward, drop_module,
                             oar_module_retain(module), mark);
    if (status != OAR_OK)
        oar_module_release(module);
    return status;
}

static oar_tensor *forward_mapped(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    int has_map = module->maps[OAR_BEFORE_FORWARD].first != NULL;
    oar_tensor *in = run_maps(tape, module, OAR_BEFORE_FORWARD, x, 0);
    oar_tensor *y;

    if (in == NULL)
        return NULL;
    y = module->kind.forward(tape, module, in);
    if (tape == NULL && has_map)
        oar_tensor_release(in);
    return y != NULL ? run_maps(tape, module, OAR_AFTER_FORWARD, y, 1) : NULL;
}

static oar_tensor *forward_hooked(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    int64_t mark;
    oar_tensor *y;

    if (mark_module(tape, module, &mark) != OAR_OK ||
        run_hooks(tape, module, OAR_BEFORE_FORWARD) != OAR_OK)
        return NULL;
    if (module->maps[OAR_BEFORE_FORWARD].first == NULL &&
        module->maps[OAR_AFTER_FORWARD].first == NULL)
        y = module->kind.forward(tape, module, x);
    else
        y = forward_mapped(tape, module, x);
    if (y == NULL)
        return NULL;
    if (run_hooks(tape, module, OAR_AFTER_FORWARD) != OAR_OK) {
        if (tape == NULL)
            oar_tensor_release(y);
        return NULL;
    }
    if (mark >= 0 && oari_mark_end(tape, mark) != OAR_OK)
        return NULL;
    return y;
}

__attribute__((noinline, cold)) static oar_tensor *
forward_traced(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    uint64_t began = oari_ticks();
    oari_gpu_interval *on_gpu;
    oar_tensor *y;

    module->traced_on = oar_tensor_device(x);
    on_gpu = begin_on_gpu(module->traced_on);
    y = forward_hooked(tape, module, x);
    if (y == NULL) {
        oari_gpu_trace_end(on_gpu, NULL);
        return NULL;
    }
    if (on_gpu != NULL)
        end_on_gpu(on_gpu, module, "");
    trace_module(module, OARI_TRACE_FORWARD, began);
    return y;
}

oar_tensor *oar_forward_at(const char *file, int line, oar_tape *tape,
                           oar_module *module, oar_tensor *x)
{
    OARI_CALLED_FROM(file, line);

    if (module == NULL || x == NULL) {
        oari_null("forward");
        return NULL;
    }
    return oari_tracing() ? forward_traced(tape, module, x)
                          : forward_hooked(tape, module, x);
}

void oar_module_train(oar_module *module, int on)
{
    if (module == NULL)
        return;
    module->training = on != 0;
    if (module->kind.train != NULL)
        module->kind.train(module->self, module->training);
    for (int i = 0; i < module->entries; i++)
        oar_module_train(module->entry[i].child, on);
}

int oar_module_training(const oar_module *module)
{
    return module != NULL && module->training;
}
