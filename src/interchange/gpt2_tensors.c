/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2_tensors: see its header. Hugging Face keeps four weights of each layer
 * as [in, out], because they belong to its Conv1D; ours and llm.c's are
 * [out, in]. q, k and v lie side by side in the same order in all three. */
#include "interchange/gpt2_tensors.h"

#include <stdio.h>

#include "base/status.h"

#define VOCABULARY OARI_GPT2_VOCABULARY
#define CONTEXT    OARI_GPT2_CONTEXT
#define WIDTH      OARI_GPT2_WIDTH
#define QKV        OARI_GPT2_QKV
#define HIDDEN     OARI_GPT2_HIDDEN

const oari_gpt2_row oari_gpt2_rows[OARI_GPT2_ROWS] = {
    { "wte.weight", "tok.weight", { VOCABULARY, WIDTH }, 0, 0 },
    { "wpe.weight", "pos.weight", { CONTEXT, WIDTH }, 0, 0 },
    { "ln_1.weight", "norm1.weight", { WIDTH }, 1, 0 },
    { "ln_1.bias", "norm1.bias", { WIDTH }, 1, 0 },
    { "attn.c_attn.weight", "attention.qkv.weight", { QKV, WIDTH }, 1, 1 },
    { "attn.c_attn.bias", "attention.qkv.bias", { QKV }, 1, 0 },
    { "attn.c_proj.weight", "attention.out.weight", { WIDTH, WIDTH }, 1, 1 },
    { "attn.c_proj.bias", "attention.out.bias", { WIDTH }, 1, 0 },
    { "ln_2.weight", "norm2.weight", { WIDTH }, 1, 0 },
    { "ln_2.bias", "norm2.bias", { WIDTH }, 1, 0 },
    { "mlp.c_fc.weight", "up.weight", { HIDDEN, WIDTH }, 1, 1 },
    { "mlp.c_fc.bias", "up.bias", { HIDDEN }, 1, 0 },
    { "mlp.c_proj.weight", "down.weight", { WIDTH, HIDDEN }, 1, 1 },
    { "mlp.c_proj.bias", "down.bias", { WIDTH }, 1, 0 },
    { "ln_f.weight", "norm.weight", { WIDTH }, 0, 0 },
    { "ln_f.bias", "norm.bias", { WIDTH }, 0, 0 },
    { "lm_head.weight", "head.weight", { VOCABULARY, WIDTH }, 0, 0 },
};

int oari_gpt2_tensors(int row, const oar_gpt_opts *o)
{
    if (oari_gpt2_rows[row].layered)
        return o->layers;
    return row != OARI_GPT2_HEAD || !o->tied;
}

oar_shape oari_gpt2_shape(int row, const oar_gpt_opts *o)
{
    const int64_t length[] = { [VOCABULARY] = o->vocabulary,
                               [CONTEXT] = o->context,
                               [WIDTH] = o->width,
                               [QKV] = 3 * o->width,
                               [HIDDEN] = o->hidden };
    oar_shape shape = { .ndim = 0 };

    for (int i = 0; i < 2; i++)
        if (oari_gpt2_rows[row].dim[i] != OARI_GPT2_NO_DIM)
            shape.dim[shape.ndim++] = length[oari_gpt2_rows[row].dim[i]];
    return shape;
}

void oari_gpt2_their_name(int row, int layer, char name[OARI_GPT2_NAME])
{
    if (oari_gpt2_rows[row].layered)
        snprintf(name, OARI_GPT2_NAME, "h.%d.%s", layer,
                 oari_gpt2_rows[row].theirs);
    else
        snprintf(name, OARI_GPT2_NAME, "%s", oari_gpt2_rows[row].theirs);
}

oar_status oari_gpt2_param(const oar_module *module, int row, int layer,
                           oar_tensor **param)
{
    const oari_gpt2_row *r = &oari_gpt2_rows[row];
    char name[OARI_GPT2_NAME];

    if (r->layered)
        snprintf(name, sizeof name, "blocks.%d.%s", layer, r->ours);
    else
        snprintf(name, sizeof name, "%s", r->ours);
    *param = oar_module_find(module, name);
    if (*param == NULL)
        return oari_fail(OAR_E_ARG, "the gpt has no parameter \"%s\"", name);
    return OAR_OK;
}

oar_status oari_gpt2_create(const oar_gpt_opts *opts, oar_module **module)
{
    int lazy = oar_lazy(0);
    oar_status status = oar_gpt_create(opts, module);

    oar_lazy(lazy);
    return status;
}

oar_status oari_gpt2_describe(const oar_module *module, oar_gpt_opts *o)
{
    *o = (oar_gpt_opts){ .size = sizeof *o };
    OARI_TRY(oar_gpt_describe(module, o));
    if (o->rotary)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has rotary positions; GPT-2 learns a table "
                         "of them");
    if (o->kv_heads != 0 && o->kv_heads != o->heads)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has %d heads and %d of k and v; GPT-2 has as "
                         "many of each",
                         o->heads, o->kv_heads);
    if (o->layers > OARI_GPT2_MOST_LAYERS)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt has %d layers; at most %d are written",
                         o->layers, OARI_GPT2_MOST_LAYERS);
    return OAR_OK;
}

oar_status oari_gpt2_give(oar_status status, oar_module *made,
                          const oar_gpt_opts *made_opts, oar_module **module,
                          oar_gpt_opts *opts)
{
    if (status == OAR_OK && opts != NULL)
        status =
            oari_struct_give(opts, made_opts, sizeof *made_opts, "gpt_opts");
    if (status != OAR_OK) {
        oar_module_release(made);
        return status;
    }
    oar_module_train(made, 0);
    *module = made;
    return OAR_OK;
}
