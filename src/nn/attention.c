/* SPDX-License-Identifier: Apache-2.0 */
/* attention: self-attention. One linear layer makes q, k and v of all heads
 * side by side, and they stay there. */
#include <oarsong/layers.h>

#include "autograd/packed.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "nn/attention.h"
#include "nn/build.h"

typedef struct attention {
    int heads, causal;
    double rotary_base;
    int frugal;
} attention;

enum { QKV, OUT };

static oar_tensor *turned(oar_tape *tape, const attention *a, oar_tensor *qkv)
{
    oar_tensor *y;

    if (a->rotary_base == 0)
        return qkv;
    y = oari_packed_rotary(tape, qkv, a->heads, a->rotary_base);
    oari_tape_drop(tape, qkv);
    return y;
}

static oar_tensor *attention_forward(oar_tape *tape, oar_module *module,
                                     oar_tensor *x)
{
    const attention *a = oar_module_self(module);
    oar_attention_opts opts = { .causal = a->causal };
    oar_module *child = oar_module_child(module, QKV);
    oar_tensor *qkv, *y, *out;

    if (tape == NULL)
        return oari_forward_alone(attention_forward, module, x);
    qkv = turned(tape, a, oar_forward(tape, child, x));
    y = oari_packed_attention(tape, qkv, a->heads, &opts);
    if (a->frugal || !tape->recording)
        oari_layer_drop(tape, child, qkv);
    out = oar_forward(tape, oar_module_child(module, OUT), y);
    oari_tape_drop(tape, y);
    return out;
}

static const oar_module_class attention_class = {
    .size = sizeof attention_class,
    .name = "attention",
    .self_size = sizeof(attention),
    .forward = attention_forward,
};

void oari_attention_frugal(oar_module *module)
{
    ((attention *)oar_module_self(module))->frugal = 1;
}

static oar_status check(int64_t width, int heads,
                        const oar_attention_layer_opts *o)
{
    if (width < 1 || heads < 1 || width % heads != 0)
        return oari_fail(OAR_E_ARG,
                         "attention of width %lld with %d heads: the heads "
                         "divide the width",
                         (long long)width, heads);
    if (width > INT64_MAX / 3)
        return oari_fail(OAR_E_ARG, "attention of width %lld: too wide",
                         (long long)width);
    if (!(o->rotary_base >= 0) ||
        (o->rotary_base > 0 && width / heads % 2 != 0))
        return oari_fail(OAR_E_ARG,
                         "attention of width %lld with %d heads and rotary "
                         "base %g: heads of an even width and a base above 0",
                         (long long)width, heads, o->rotary_base);
    return oari_layer_dtype("attention", o->dtype);
}

static oar_status add_children(oar_module *module, int64_t width, uint64_t seed,
                               const oar_attention_layer_opts *o)
{
    oar_linear_opts opts = { .size = sizeof opts,
                             .no_bias = o->no_bias,
                             .dtype = o->dtype };
    oar_module *made = NULL;
    oar_status status;

    status = oar_linear_create(width, 3 * width, seed, &opts, &made);
    OARI_TRY(oari_layer_child(module, "qkv", status, made));
    status = oar_linear_create(width, width, seed + 2, &opts, &made);
    return oari_layer_child(module, "out", status, made);
}

oar_status oar_attention_create(int64_t width, int heads, uint64_t seed,
                                const oar_attention_layer_opts *opts,
                                oar_module **module)
{
    oar_attention_layer_opts o;
    oar_module *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check(width, heads, &o));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "attention_create: nowhere to give it");
    OARI_TRY(oar_module_create(&attention_class, &made));
    *(attention *)oar_module_self(made) =
        (attention){ heads, o.causal, o.rotary_base, 0 };
    return oari_layer_give(add_children(made, width, seed, &o), made, module);
}
