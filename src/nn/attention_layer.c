/* SPDX-License-Identifier: Apache-2.0 */
/* attention_layer: self-attention. One linear layer makes q, k and v of all
 * heads side by side, and they stay there. */
#include <oarsong/layers.h>

#include "autograd/ops/packed.h"
#include "autograd/replay.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "nn/attention_layer.h"
#include "nn/build.h"

typedef struct attention {
    int heads, kv_heads, causal, all_heads, first_head;
    double rotary_base, dropout;
    uint64_t next_seed; /* of the dropout */
    int rebuild_qkv;    /* backward may compute them once more */
} attention;

enum { QKV, OUT };

/* On the cpu only: on a GPU a product costs more than its memory is worth. */
static int rebuilds_qkv(const attention *a, const oar_tensor *y)
{
    return a->rebuild_qkv && y != NULL && oar_tensor_device(y).kind == OAR_CPU;
}

static oar_tensor *attention_forward(oar_tape *tape, oar_module *module,
                                     oar_tensor *x)
{
    attention *a = oar_module_self(module);
    oar_attention_opts opts = { .causal = a->causal };
    oar_module *child = oar_module_child(module, QKV);
    oar_module *last = oar_module_child(module, OUT);
    oar_tensor *made, *qkv, *y, *out;

    if (tape == NULL)
        return oari_forward_alone(attention_forward, module, x);
    qkv = made = oar_forward(tape, child, x);
    if (a->rotary_base != 0 && a->heads > 0) {
        qkv = oari_packed_rotary(tape, made, a->heads, a->kv_heads,
                                 a->rotary_base);
        /* With backward hooks, too: a rotation's backward needs no input. */
        if (!oari_layer_is_open(child))
            oari_tape_drop(tape, made);
    }
    if (oar_module_training(module) && a->dropout > 0) {
        opts.dropout = a->dropout;
        opts.seed = a->next_seed;
        opts.all_heads = a->all_heads;
        opts.first_head = a->first_head;
        a->next_seed += !oari_replaying(tape); /* else it was written down */
    }
    y = a->heads > 0
            ? oari_packed_attention(tape, qkv, a->heads, a->kv_heads, &opts)
            : qkv; /* no heads, and so of width 0 */
    if (y != qkv && (rebuilds_qkv(a, y) || !tape->recording))
        oari_layer_drop(tape, child, NULL, qkv);
    out = oar_forward(tape, last, y);
    oari_layer_drop(tape, NULL, last, y);
    return out;
}

static const oar_counter_entry attention_counters[] = {
    { "next_seed", offsetof(attention, next_seed) }, { NULL, 0 }
};

const oar_module_class oari_attention_class = {
    .size = sizeof oari_attention_class,
    .name = "attention",
    .self_size = sizeof(attention),
    .forward = attention_forward,
    .counters = attention_counters,
};

void oari_attention_rebuild_qkv(oar_module *module)
{
    ((attention *)oar_module_self(module))->rebuild_qkv = 1;
}

static oar_status add_children(oar_module *module, int64_t width, uint64_t seed,
                               const oar_attention_layer_opts *o)
{
    const attention *a = oar_module_self(module);
    int64_t all = o->inner / a->heads * (a->heads + 2 * (int64_t)a->kv_heads);
    oar_linear_opts opts = { .size = sizeof opts,
                             .no_bias = o->no_bias,
                             .dtype = o->dtype };
    oar_module *made = NULL;
    oar_status status;

    status = oar_linear_create(width, all, seed, &opts, &made);
    OARI_TRY(oari_layer_child(module, "qkv", status, made));
    status = oar_linear_create(o->inner, width, seed + 2, &opts, &made);
    return oari_layer_child(module, "out", status, made);
}

oar_status oar_attention_create(int64_t width, int heads, uint64_t seed,
                                const oar_attention_layer_opts *opts,
                                oar_module **module)
{
    oar_attention_layer_opts o;
    oar_module *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    o.inner = o.inner != 0 ? o.inner : width;
    if (width < 1 || heads < 1 || o.inner < 1 || o.inner % heads != 0)
        return oari_fail(OAR_E_ARG,
                         "attention of width %lld, %lld inside, with %d heads: "
                         "the heads divide the width inside",
                         (long long)width, (long long)o.inner, heads);
    if (width > INT64_MAX / 3 || o.inner > INT64_MAX / 3)
        return oari_fail(OAR_E_ARG, "attention of width %lld: too wide",
                         (long long)(width > o.inner ? width : o.inner));
    if (o.all_heads < 0 || o.first_head < 0 ||
        (o.all_heads == 0 && o.first_head > 0) ||
        (o.all_heads > 0 && heads > o.all_heads - o.first_head))
        return oari_fail(OAR_E_ARG,
                         "attention with %d heads from %d on of %d: they do "
                         "not fit",
                         heads, o.first_head, o.all_heads);
    if (o.kv_heads < 0 || (o.kv_heads > 0 && heads % o.kv_heads != 0))
        return oari_fail(OAR_E_ARG,
                         "attention with %d heads and %d of k and v: those "
                         "divide the heads",
                         heads, o.kv_heads);
    if (!(o.dropout >= 0 && o.dropout <= 1))
        return oari_fail(OAR_E_ARG, "attention with dropout %g: from 0 to 1",
                         o.dropout);
    if (!(o.rotary_base >= 0) ||
        (o.rotary_base > 0 && o.inner / heads % 2 != 0))
        return oari_fail(OAR_E_ARG,
                         "attention of width %lld with %d heads and rotary "
                         "base %g: heads of an even width and a base above 0",
                         (long long)width, heads, o.rotary_base);
    OARI_TRY(oari_layer_dtype("attention", o.dtype));
    if (module == NULL)
        return oari_fail(OAR_E_ARG, "attention_create: nowhere to give it");
    OARI_TRY(oar_module_create(&oari_attention_class, &made));
    *(attention *)oar_module_self(made) =
        (attention){ .heads = heads,
                     .kv_heads = o.kv_heads > 0 ? o.kv_heads : heads,
                     .causal = o.causal,
                     .rotary_base = o.rotary_base,
                     .dropout = o.dropout,
                     .all_heads = o.all_heads,
                     .first_head = o.first_head,
                     .next_seed = o.dropout_seed };
    return oari_layer_give(add_children(made, width, seed, &o), made, module);
}

/* ---- some of the heads --------------------------------------------------- */

static oar_status refuse_other(const char *what, const oar_module *module)
{
    return oari_fail(OAR_E_ARG, "%s of a %s: it is no attention", what,
                     module != NULL ? oar_module_name(module) : "NULL");
}

oar_status oar_attention_heads(const oar_module *module, int *heads,
                               int *kv_heads)
{
    const attention *a;

    if (!oar_module_is(module, &oari_attention_class))
        return refuse_other("attention_heads", module);
    a = oar_module_self((oar_module *)(uintptr_t)module);
    if (heads != NULL)
        *heads = a->heads;
    if (kv_heads != NULL)
        *kv_heads = a->kv_heads;
    return OAR_OK;
}

oar_status oar_attention_keep_heads(oar_module *module, int first, int count)
{
    attention *a;
    int each;

    if (!oar_module_is(module, &oari_attention_class))
        return refuse_other("attention_keep_heads", module);
    a = oar_module_self(module);
    each = a->kv_heads > 0 ? a->heads / a->kv_heads : 1;
    if (first < 0 || count < 0 || first > a->heads ||
        count > a->heads - first || first % each != 0 || count % each != 0)
        return oari_fail(OAR_E_ARG,
                         "attention_keep_heads: %d from %d on, of %d of which "
                         "%d share a head of k and v",
                         count, first, a->heads, each);
    if (a->all_heads == 0)
        a->all_heads = a->heads;
    a->first_head += first;
    a->heads = count;
    a->kv_heads = count / each;
    return OAR_OK;
}
