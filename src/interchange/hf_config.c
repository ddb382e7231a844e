/* SPDX-License-Identifier: Apache-2.0 */
/* hf_config: see its header. Only members that change what the model computes
 * are looked at; a member that is null counts as left out. */
#include "interchange/hf_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* For each activation, the first name is the one that is written. */
static const struct activation_name {
    const char *name;
    oar_activation activation;
} activation_names[] = {
    { "gelu_new", OAR_GELU_TANH },  { "gelu_pytorch_tanh", OAR_GELU_TANH },
    { "gelu_fast", OAR_GELU_TANH }, { "gelu", OAR_GELU },
    { "relu", OAR_RELU },           { "silu", OAR_SILU },
    { "swish", OAR_SILU },          { "tanh", OAR_TANH },
    { "sigmoid", OAR_SIGMOID },
};
enum { ACTIVATIONS = sizeof activation_names / sizeof activation_names[0] };

static const double norm_eps = 1e-5; /* of every norm of a gpt */

/* A config.json that is being read. */
typedef struct config {
    const char *where;
    json_t *json;
} config;

/* Returns a member, or NULL if it is left out. */
static const json_t *member(const config *c, const char *key)
{
    const json_t *value = json_object_get(c->json, key);

    return json_is_null(value) ? NULL : value;
}

/* Says that a member has a value that is no good, and what would be. */
static oar_status refuse(const config *c, oar_status status, const char *key,
                         const char *wanted)
{
    char *value =
        json_dumps(json_object_get(c->json, key),
                   JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(10));

    status = oari_fail(status, "%s/config.json: \"%s\" is %.100s; %s", c->where,
                       key, value != NULL ? value : "not a value", wanted);
    free(value);
    return status;
}

/* Reads a whole number from 1; leaves *number alone if the member is left out.
 */
static oar_status read_count(const config *c, const char *key, int64_t *number)
{
    const json_t *value = member(c, key);

    if (value == NULL)
        return OAR_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return refuse(c, OAR_E_DATA, key, "a whole number above 0 is expected");
    *number = json_integer_value(value);
    return OAR_OK;
}

static oar_status read_flag(const config *c, const char *key, int *flag)
{
    const json_t *value = member(c, key);

    if (value == NULL)
        return OAR_OK;
    if (!json_is_boolean(value))
        return refuse(c, OAR_E_DATA, key, "true or false is expected");
    *flag = json_is_true(value);
    return OAR_OK;
}

static oar_status read_dropout(const config *c, const char *key,
                               double *dropout)
{
    const json_t *value = member(c, key);
    double number = 0.1; /* transformers' default */

    if (value != NULL) {
        number = json_number_value(value);
        if (!json_is_number(value) || !(number >= 0 && number < 1))
            return refuse(c, OAR_E_DATA, key,
                          "a number from 0 to below 1 is expected");
    }
    *dropout = number;
    return OAR_OK;
}

/* ---- what is compared ---------------------------------------------------- */

/* A size under its name and the general one that transformers takes as well
 * must be that of the tensors. */
static oar_status check_size(const config *c, const char *key,
                             const char *general, int64_t size)
{
    int64_t said = size;

    OARI_TRY(read_count(c, key, &said));
    if (said == size && general != NULL) {
        key = general;
        OARI_TRY(read_count(c, key, &said));
    }
    if (said != size)
        return oari_fail(OAR_E_DATA,
                         "%s/config.json: \"%s\" is %lld, but the tensors have "
                         "%lld",
                         c->where, key, (long long)said, (long long)size);
    return OAR_OK;
}

static oar_status check_sizes(const config *c, const oar_gpt_opts *o)
{
    int64_t hidden = 4 * o->width;

    OARI_TRY(check_size(c, "vocab_size", NULL, o->vocabulary));
    OARI_TRY(
        check_size(c, "n_positions", "max_position_embeddings", o->context));
    OARI_TRY(check_size(c, "n_embd", "hidden_size", o->width));
    OARI_TRY(check_size(c, "n_layer", "num_hidden_layers", o->layers));
    OARI_TRY(read_count(c, "n_inner", &hidden));
    if (hidden != o->hidden)
        return oari_fail(OAR_E_DATA,
                         "%s/config.json: \"n_inner\" is %lld%s, but the "
                         "tensors have %lld",
                         c->where, (long long)hidden,
                         member(c, "n_inner") == NULL ? " by default" : "",
                         (long long)o->hidden);
    return OAR_OK;
}

/* Checks what every gpt has the same. */
static oar_status check_fixed(const config *c)
{
    static const struct {
        const char *key;
        int flag;
    } flags[] = { { "scale_attn_weights", 1 },
                  { "scale_attn_by_inverse_layer_idx", 0 },
                  { "add_cross_attention", 0 },
                  { "is_encoder_decoder", 0 } };
    const json_t *value = member(c, "model_type");

    if (value != NULL && (!json_is_string(value) ||
                          strcmp(json_string_value(value), "gpt2") != 0))
        return refuse(c, OAR_E_UNSUPPORTED, "model_type",
                      "only \"gpt2\" is read");
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        int flag = flags[i].flag;

        OARI_TRY(read_flag(c, flags[i].key, &flag));
        if (flag != flags[i].flag)
            return refuse(c, OAR_E_UNSUPPORTED, flags[i].key,
                          flag ? "a gpt has false" : "a gpt has true");
    }
    value = member(c, "layer_norm_epsilon");
    if (value != NULL && json_number_value(value) != norm_eps)
        return refuse(c, OAR_E_UNSUPPORTED, "layer_norm_epsilon",
                      "a gpt has 1e-05");
    if (member(c, "quantization_config") != NULL)
        return refuse(c, OAR_E_UNSUPPORTED, "quantization_config",
                      "a gpt has none");
    value = member(c, "pruned_heads");
    if (value != NULL && json_object_size(value) + json_array_size(value) > 0)
        return refuse(c, OAR_E_UNSUPPORTED, "pruned_heads", "a gpt has none");
    return OAR_OK;
}

/* ---- what is taken ------------------------------------------------------- */

static oar_status read_heads(const config *c, oar_gpt_opts *o)
{
    const char *key =
        member(c, "n_head") == NULL && member(c, "num_attention_heads") != NULL
            ? "num_attention_heads"
            : "n_head";
    int64_t heads = 12; /* transformers' default */

    OARI_TRY(read_count(c, key, &heads));
    if (heads > o->width || o->width % heads != 0)
        return oari_fail(OAR_E_DATA,
                         "%s/config.json: \"%s\" is %lld%s, which does not "
                         "divide the width %lld",
                         c->where, key, (long long)heads,
                         member(c, key) == NULL ? " by default" : "",
                         (long long)o->width);
    if (heads > INT32_MAX)
        return refuse(c, OAR_E_UNSUPPORTED, key, "at most 2^31 - 1 are read");
    o->heads = (int)heads;
    return OAR_OK;
}

static oar_status read_activation(const config *c, oar_gpt_opts *o)
{
    const json_t *value = member(c, "activation_function");
    const char *name = value != NULL ? json_string_value(value) : "gelu_new";

    for (int i = 0; i < ACTIVATIONS && name != NULL; i++)
        if (strcmp(activation_names[i].name, name) == 0) {
            o->activation = activation_names[i].activation;
            return OAR_OK;
        }
    return refuse(c, OAR_E_UNSUPPORTED, "activation_function",
                  "a gpt can have gelu_new, gelu, relu, silu, tanh or sigmoid");
}

static oar_status read_dropouts(const config *c, oar_gpt_opts *o)
{
    double after_embedding = 0;

    OARI_TRY(read_dropout(c, "attn_pdrop", &o->attention_dropout));
    OARI_TRY(read_dropout(c, "resid_pdrop", &o->dropout));
    OARI_TRY(read_dropout(c, "embd_pdrop", &after_embedding));
    if (after_embedding != o->dropout)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s/config.json: \"embd_pdrop\" is %g and "
                         "\"resid_pdrop\" %g; a gpt has one dropout for both",
                         c->where, after_embedding, o->dropout);
    return OAR_OK;
}

static oar_status read_members(const config *c, oar_gpt_opts *o)
{
    if (!json_is_object(c->json))
        return oari_fail(OAR_E_DATA, "%s/config.json is not a JSON object",
                         c->where);
    o->tied = 1;
    OARI_TRY(check_fixed(c));
    OARI_TRY(check_sizes(c, o));
    OARI_TRY(read_heads(c, o));
    OARI_TRY(read_activation(c, o));
    OARI_TRY(read_dropouts(c, o));
    return read_flag(c, "tie_word_embeddings", &o->tied);
}

oar_status oari_hf_config_read(const char *where, const char *text,
                               size_t bytes, oar_gpt_opts *o)
{
    config c = { .where = where };
    json_error_t error;
    oar_status status;

    if (text == NULL) {
        if (o->width % 64 != 0)
            return oari_fail(OAR_E_DATA,
                             "%s has no config.json that gives the number of "
                             "heads, and the width %lld is no multiple of 64, "
                             "which a head of GPT-2's own has",
                             where, (long long)o->width);
        o->heads = (int)(o->width / 64);
        o->activation = OAR_GELU_TANH;
        o->tied = 1;
        return OAR_OK;
    }
    c.json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (c.json == NULL)
        return json_error_code(&error) == json_error_out_of_memory
                   ? oari_fail(OAR_E_NOMEM, "out of memory for %s/config.json",
                               where)
                   : oari_fail(OAR_E_DATA, "%s/config.json, line %d: %s", where,
                               error.line, error.text);
    status = read_members(&c, o);
    json_decref(c.json);
    return status;
}

/* ---- writing ------------------------------------------------------------- */

static const char *torch_dtype(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F64: return "float64";
    case OAR_F16: return "float16";
    case OAR_BF16: return "bfloat16";
    default: return "float32";
    }
}

oar_status oari_hf_config_write(const oar_gpt_opts *o, char **text)
{
    char *made = NULL;
    json_t *json;
    int i = 0;

    while (i < ACTIVATIONS && activation_names[i].activation != o->activation)
        i++;
    if (i == ACTIVATIONS)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "the gpt's activation is number %d of layers.h; "
                         "transformers has gelu_new, gelu, relu, silu, tanh "
                         "and sigmoid",
                         (int)o->activation);
    json = json_pack(
        "{s:[s], s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:o, s:f, s:f, s:f, s:f,"
        " s:b, s:b, s:b, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2",
        "activation_function", activation_names[i].name, "vocab_size",
        (json_int_t)o->vocabulary, "n_positions", (json_int_t)o->context,
        "n_embd", (json_int_t)o->width, "n_layer", o->layers, "n_head",
        o->heads, "n_inner",
        o->hidden == 4 * o->width ? json_null()
                                  : json_integer((json_int_t)o->hidden),
        "layer_norm_epsilon", norm_eps, "attn_pdrop", o->attention_dropout,
        "resid_pdrop", o->dropout, "embd_pdrop", o->dropout,
        "scale_attn_weights", 1, "scale_attn_by_inverse_layer_idx", 0,
        "tie_word_embeddings", o->tied, "torch_dtype", torch_dtype(o->dtype));
    if (json != NULL)
        made = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    if (made == NULL)
        return oari_fail(OAR_E_NOMEM, "out of memory for config.json");
    *text = oari_strdup(made);
    free(made);
    return *text != NULL ? OAR_OK : OAR_E_NOMEM;
}
