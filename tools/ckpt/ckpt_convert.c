/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong ckpt export, import, reshard: generations from and for other
 * programs, and other numbers of ranks. */
#include "ckpt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

/* ---- export -------------------------------------------------------------- */

static int64_t dim_of(const oar_catalog *catalog, const char *name, int dim,
                      oar_dtype *dtype)
{
    oar_catalog_entry e = oar_catalog_entry_init();

    if (oar_catalog_find(catalog, "model", name, &e) != OAR_OK ||
        dim >= e.shape.ndim)
        return -1;
    *dtype = e.dtype;
    return e.shape.dim[dim];
}

/* Makes the GPT whose tensors the catalog has; they tell all but the number of
 * heads and the activation, which is GPT-2's. */
static oar_status make_gpt(const oar_catalog *catalog, const ckpt_options *o,
                           oar_module **module)
{
    oar_gpt_opts opts = oar_gpt_opts_init();
    oar_catalog_entry head = oar_catalog_entry_init();
    oar_dtype dtype = OAR_F32;
    char name[60] = "blocks.0.up.weight";

    opts.vocabulary = dim_of(catalog, "tok.weight", 0, &dtype);
    opts.width = dim_of(catalog, "tok.weight", 1, &dtype);
    opts.context = dim_of(catalog, "pos.weight", 0, &dtype);
    opts.hidden = dim_of(catalog, name, 0, &dtype);
    while (dim_of(catalog, name, 0, &dtype) > 0)
        snprintf(name, sizeof name, "blocks.%d.up.weight", ++opts.layers);
    if (opts.vocabulary < 1 || opts.width < 1 || opts.context < 1 ||
        opts.layers == 0)
        return OAR_E_UNSUPPORTED;
    opts.heads = o->heads > 0 ? (int)o->heads : (int)(opts.width / 64);
    if (opts.heads < 1)
        opts.heads = 1;
    opts.activation = OAR_GELU_TANH;
    opts.tied =
        oar_catalog_find(catalog, "model", "head.weight", &head) != OAR_OK ||
        head.alias_of != NULL;
    opts.dtype = o->has_dtype ? o->dtype : dtype;
    return oar_gpt_create(&opts, module);
}

static oar_status fill_module(oar_catalog *catalog, oar_module *module)
{
    oar_status status = OAR_OK;
    char name[300];

    for (int i = 0; i < oar_module_params(module) && status == OAR_OK; i++) {
        oar_catalog_entry e = oar_catalog_entry_init();
        oar_tensor *from;

        status = oar_module_param_name(module, i, name, sizeof name);
        /* A tied head has two names, one of which may be unknown. */
        if (status != OAR_OK ||
            (strcmp(name, "head.weight") == 0 &&
             oar_catalog_find(catalog, "model", name, &e) != OAR_OK))
            continue;
        from = oar_catalog_tensor(catalog, "model", name);
        status = from == NULL
                     ? oar_last_error()->status
                     : oar_tensor_copy(oar_module_param(module, i), from);
        oar_tensor_release(from);
    }
    return status;
}

static int export_gpt(oar_catalog *catalog, const ckpt_options *o)
{
    oar_module *module = NULL;
    oar_status status = make_gpt(catalog, o, &module);

    if (module == NULL && status == OAR_E_UNSUPPORTED) {
        fprintf(stderr,
                "oarsong ckpt export: %s does not hold a GPT with the names of "
                "oar_gpt_create: --format safetensors writes any model\n",
                o->path[0]);
        return TOOL_FAILED;
    }
    if (status == OAR_OK)
        status = fill_module(catalog, module);
    if (status == OAR_OK)
        status = strcmp(o->format, "hf") == 0
                     ? oar_gpt_to_hf(module, o->path[1])
                     : oar_gpt_to_llmc(module, o->path[1]);
    oar_module_release(module);
    return status == OAR_OK ? TOOL_OK : tool_failed("ckpt export");
}

int ckpt_export(const ckpt_options *o)
{
    oar_export_opts opts = oar_export_opts_init();
    int gpt = o->format != NULL && strcmp(o->format, "safetensors") != 0;
    oar_catalog *catalog;
    int code = TOOL_OK;

    if (gpt && strcmp(o->format, "hf") != 0 && strcmp(o->format, "llmc") != 0) {
        tool_bad_option("ckpt", "--format", o->format, 0);
        return TOOL_USAGE;
    }
    if (gpt && (o->section != NULL || o->file_bytes > 0)) {
        tool_refuse("ckpt", "--format %s takes no %s", o->format,
                    o->section != NULL ? "--section" : "--max-file-bytes");
        return TOOL_USAGE;
    }
    if (oar_catalog_open(o->path[0], &catalog) != OAR_OK)
        return tool_failed("ckpt export");
    opts.section = o->section;
    opts.file_bytes = o->file_bytes;
    opts.has_dtype = o->has_dtype;
    opts.dtype = o->dtype;
    if (gpt)
        code = export_gpt(catalog, o);
    else if (oar_catalog_export(catalog, o->path[1], &opts) != OAR_OK)
        code = tool_failed("ckpt export");
    oar_catalog_close(catalog);
    return code;
}

/* ---- import -------------------------------------------------------------- */

static oar_save_opts save_opts(const ckpt_options *o)
{
    oar_save_opts opts = oar_save_opts_init();

    opts.note = "imported";
    opts.has_dtype = o->has_dtype;
    opts.dtype = o->dtype;
    return opts;
}

static oar_status save_module(oar_module *module, const ckpt_options *o)
{
    oar_save_opts opts = save_opts(o);
    oar_checkpoint *to = NULL;
    oar_state *state = NULL;
    oar_status status = oar_state_create(&state);

    if (status == OAR_OK)
        status = oar_state_add_module(state, module, NULL);
    if (status == OAR_OK)
        status = oar_checkpoint_open(NULL, o->path[1], NULL, &to);
    if (status == OAR_OK)
        status = oar_checkpoint_save(to, state, (int64_t)o->step, &opts);
    oar_checkpoint_close(to);
    oar_state_destroy(state);
    return status;
}

/* Says so if the names are those of a GPT-2 of Hugging Face. */
static void advise(const ckpt_options *o)
{
    static const char *const name[] = { "h.0.attn.c_attn.weight",
                                        "transformer.h.0.attn.c_attn.weight" };
    oar_catalog_entry e = oar_catalog_entry_init();
    oar_catalog *catalog;

    if (oar_catalog_open(o->path[1], &catalog) != OAR_OK)
        return;
    for (int i = 0; i < 2; i++)
        if (oar_catalog_find(catalog, "model", name[i], &e) == OAR_OK)
            printf("these are the names of Hugging Face's GPT-2; --gpt2 would "
                   "give it those of oar_gpt_create\n");
    oar_catalog_close(catalog);
}

int ckpt_import(const ckpt_options *o)
{
    oar_save_opts opts = save_opts(o);
    oar_dtype dtype = o->has_dtype ? o->dtype : OAR_F32;
    size_t length = strlen(o->path[0]);
    int llmc = length > 4 && strcmp(o->path[0] + length - 4, ".bin") == 0;
    oar_module *module = NULL;
    oar_status status;

    if (o->trim && !llmc) {
        tool_refuse("ckpt", "--trim is for a .bin file of llm.c");
        return TOOL_USAGE;
    }
    if (llmc)
        status = oar_gpt_from_llmc(o->path[0], dtype, o->trim, &module, NULL);
    else if (o->gpt2)
        status = oar_gpt_from_hf(o->path[0], dtype, &module, NULL);
    else
        status = oar_checkpoint_import(o->path[0], o->path[1], (int64_t)o->step,
                                       &opts);
    if (module != NULL)
        status = save_module(module, o);
    oar_module_release(module);
    if (status != OAR_OK)
        return tool_failed("ckpt import");
    printf("%s has step %zu\n", o->path[1], o->step);
    if (!llmc && !o->gpt2)
        advise(o);
    return TOOL_OK;
}

/* ---- reshard ------------------------------------------------------------- */

int ckpt_reshard(const ckpt_options *o)
{
    oar_catalog *catalog = NULL;
    oar_status status;

    if (o->ranks == 0) {
        tool_refuse("ckpt", "reshard needs --ranks N");
        return TOOL_USAGE;
    }
    status = oar_catalog_open(o->path[0], &catalog);
    if (status == OAR_OK)
        status = oar_catalog_reshard(catalog, o->path[1], (int)o->ranks);
    oar_catalog_close(catalog);
    return status == OAR_OK ? TOOL_OK : tool_failed("ckpt reshard");
}
