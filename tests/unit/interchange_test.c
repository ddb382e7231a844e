/* SPDX-License-Identifier: Apache-2.0 */
/* GPT models in the files of others: what PyTorch computes with them comes out
 * here, what is written is read again bitwise, and files that lie are refused.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include <oarsong/interchange.h>
#include <oarsong/ops.h>
#include <oarsong/safetensors.h>

#include "base/status.h"
#include "file/disk.h"
#include "support/leak_check.h"
#include "support/faulty_disk.h"
#include "unit/gpt2_cases.h"

enum { MANY_BYTES = 1 << 16, MANY_TENSORS = 64, SPLIT = 10 };

static char folder[FOLDER_PATH], bin[FOLDER_PATH + 32];
static char model[FOLDER_PATH + 32], config[FOLDER_PATH + 32];
static char index_path[FOLDER_PATH + 64];

static int skip_sync(const oari_disk *disk, int fd)
{
    (void)disk;
    (void)fd;
    return 0;
}

/* Hundreds of files are written: none is synced. */
static int open_folder(void **state)
{
    static oari_disk disk;

    (void)state;
    disk = oari_disk_system;
    disk.sync = skip_sync;
    oari_disk_replace(&disk);
    folder_make(folder);
    snprintf(bin, sizeof bin, "%s/model.bin", folder);
    snprintf(model, sizeof model, "%s/model.safetensors", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(index_path, sizeof index_path, "%s.index.json", model);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    oari_disk_replace(NULL);
    folder_remove(folder);
    return 0;
}

static int open_golden(void **state)
{
    (void)state;
    return golden_load("gpt2");
}

static size_t read_bytes(const char *path, unsigned char *bytes)
{
    FILE *file = fopen(path, "rb");
    size_t count;

    assert_non_null(file);
    count = fread(bytes, 1, MANY_BYTES, file);
    assert_true(count < MANY_BYTES);
    fclose(file);
    return count;
}

static void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void write_string(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

static oar_gpt_opts small_opts(oar_dtype dtype)
{
    return (oar_gpt_opts){ .size = sizeof(oar_gpt_opts),
                           .vocabulary = 13,
                           .context = 5,
                           .width = 6,
                           .layers = 3,
                           .heads = 2,
                           .activation = OAR_GELU_TANH,
                           .tied = 1,
                           .seed = 77,
                           .dtype = dtype };
}

static oar_module *make_gpt(const oar_gpt_opts *opts)
{
    oar_module *gpt;

    OK(oar_gpt_create(opts, &gpt));
    return gpt;
}

static oar_module *make_small(oar_dtype dtype)
{
    oar_gpt_opts opts = small_opts(dtype);

    return make_gpt(&opts);
}

static void assert_same(const oar_module *a, const oar_module *b)
{
    assert_int_equal(oar_module_params(a), oar_module_params(b));
    for (int i = 0; i < oar_module_params(a); i++) {
        oar_tensor *x = oar_module_param(a, i), *y = oar_module_param(b, i);

        assert_int_equal(oar_tensor_dtype(x), oar_tensor_dtype(y));
        assert_int_equal(oar_tensor_count(x), oar_tensor_count(y));
        assert_memory_equal(oar_tensor_data(x), oar_tensor_data(y),
                            (size_t)oar_tensor_count(x) *
                                oar_dtype_size(oar_tensor_dtype(x)));
    }
}

static oar_status refused_hf(const char *path)
{
    oar_module *gpt = NULL;
    leak_check before = leak_check_begin();
    oar_status status = oar_gpt_from_hf(path, OAR_F32, &gpt, NULL);

    assert_null(gpt);
    leak_check_end(&before);
    return status;
}

static oar_status refused_llmc(const char *path)
{
    oar_module *gpt = NULL;
    leak_check before = leak_check_begin();
    oar_status status = oar_gpt_from_llmc(path, OAR_F32, 0, &gpt, NULL);

    assert_null(gpt);
    leak_check_end(&before);
    return status;
}

/* ---- what PyTorch computes ----------------------------------------------- */

static void logits_are_those_of_torch(void **state)
{
    (void)state;
    check_all_logits(oar_device_of(OAR_CPU, 0));
}

static void options_are_those_of_the_file(void **state)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *gpt;

    (void)state;
    OK(oar_gpt_from_hf(golden_path(""), OAR_F32, &gpt, &o));
    assert_int_equal(o.size, sizeof o);
    assert_int_equal(o.vocabulary, 11);
    assert_int_equal(o.context, 8);
    assert_int_equal(o.width, 6);
    assert_int_equal(o.layers, 2);
    assert_int_equal(o.heads, 2);
    assert_int_equal(o.hidden, 24);
    assert_int_equal(o.activation, OAR_GELU_TANH);
    assert_true(o.tied && o.dropout == 0.1 && o.attention_dropout == 0.1);
    assert_int_equal(oar_module_training(gpt), 0);
    oar_module_release(gpt);
    OK(oar_gpt_from_llmc(golden_path("bf16.bin"), OAR_BF16, 1, &gpt, &o));
    assert_int_equal(o.vocabulary, 11);
    assert_int_equal(o.heads, 2);
    assert_int_equal(o.dtype, OAR_BF16);
    oar_module_release(gpt);
    OK(oar_gpt_from_llmc(golden_path("bf16.bin"), OAR_F16, 0, &gpt, &o));
    assert_int_equal(o.vocabulary, 128);
    oar_module_release(gpt);
}

static void models_from_files_are_never_lazy(void **state)
{
    oar_module *gpt;

    (void)state;
    oar_lazy(1);
    OK(oar_gpt_from_hf(golden_path(""), OAR_F32, &gpt, NULL));
    assert_false(oar_tensor_is_lazy(oar_module_param(gpt, 0)));
    oar_module_release(gpt);
    OK(oar_gpt_from_llmc(golden_path("f32.bin"), OAR_F32, 1, &gpt, NULL));
    assert_false(oar_tensor_is_lazy(oar_module_param(gpt, 0)));
    assert_int_equal(oar_lazy(0), 1);
    oar_module_release(gpt);
}

static void llmc_files_are_written_byte_for_byte(void **state)
{
    static unsigned char want[MANY_BYTES], got[MANY_BYTES];
    static const char *const name[] = { "f32.bin", "bf16.bin" };
    static const oar_dtype dtype[] = { OAR_F32, OAR_BF16 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        oar_module *gpt = read_llmc(golden_path(name[i]), dtype[i], 1);
        size_t bytes = read_bytes(golden_path(name[i]), want);

        OK(oar_gpt_to_llmc(gpt, bin));
        assert_int_equal(read_bytes(bin, got), bytes);
        assert_memory_equal(got, want, bytes);
        oar_module_release(gpt);
    }
}

/* Every tensor that PyTorch's file has, but for the masks. */
static void hf_tensors_are_written_as_they_were(void **state)
{
    oar_module *gpt = read_hf(golden_path(""), OAR_F32);
    oar_safetensors *theirs, *ours;
    int unused = 0;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    OK(oar_safetensors_open(golden_path("model.safetensors"), NULL, &theirs));
    OK(oar_safetensors_open(model, NULL, &ours));
    for (int64_t i = 0; i < oar_safetensors_count(theirs); i++) {
        oar_safetensors_entry e = { .size = sizeof e };
        oar_tensor *want, *got;

        OK(oar_safetensors_entry_at(theirs, i, &e));
        if (strstr(e.name, ".attn.bias") || strstr(e.name, "masked_bias")) {
            unused++;
            continue;
        }
        want = oar_safetensors_tensor(NULL, theirs, e.name);
        got = oar_safetensors_tensor(NULL, ours, e.name);
        if (got == NULL)
            fail_msg("%s", oar_last_error_text());
        assert_int_equal(oar_tensor_shape(got).dim[0], e.shape.dim[0]);
        assert_memory_equal(oar_tensor_data(got), oar_tensor_data(want),
                            e.bytes);
        oar_tensor_release(want);
        oar_tensor_release(got);
    }
    assert_int_equal(oar_safetensors_count(ours) + unused,
                     oar_safetensors_count(theirs));
    assert_string_equal(oar_safetensors_metadata(ours, "format"), "pt");
    oar_safetensors_close(theirs);
    oar_safetensors_close(ours);
    oar_module_release(gpt);
}

/* ---- there and back ------------------------------------------------------ */

static void what_is_written_is_read_bitwise(void **state)
{
    static const oar_dtype dtype[] = { OAR_F32, OAR_BF16, OAR_F16, OAR_F64 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        oar_module *gpt = make_small(dtype[i]), *back;

        OK(oar_gpt_to_hf(gpt, folder));
        back = read_hf(folder, dtype[i]);
        assert_same(gpt, back);
        oar_module_release(back);
        if (i < 2) {
            OK(oar_gpt_to_llmc(gpt, bin));
            back = read_llmc(bin, dtype[i], 1);
            assert_same(gpt, back);
            oar_module_release(back);
        }
        oar_module_release(gpt);
    }
    assert_int_equal(folder_entries(folder), 3); /* nothing is left over */
}

static void from_one_format_to_the_other_and_back(void **state)
{
    oar_module *gpt = make_small(OAR_BF16), *other, *back;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    other = read_hf(folder, OAR_F32);
    OK(oar_gpt_to_llmc(other, bin));
    back = read_llmc(bin, OAR_BF16, 1);
    assert_same(gpt, back);
    oar_module_release(gpt);
    oar_module_release(other);
    oar_module_release(back);
}

static void every_option_of_gpt2_comes_back(void **state)
{
    static const oar_activation activation[] = { OAR_GELU, OAR_GELU_TANH,
                                                 OAR_RELU, OAR_SILU,
                                                 OAR_TANH, OAR_SIGMOID };
    oar_module *gpt, *back;

    (void)state;
    for (int i = 0; i < 6; i++) {
        oar_gpt_opts opts = small_opts(OAR_F32), got = oar_gpt_opts_init();

        opts.activation = activation[i];
        opts.tied = i % 2;
        opts.hidden = i < 3 ? 10 : 24;
        opts.dropout = 0.3;
        opts.attention_dropout = 0.07;
        gpt = make_gpt(&opts);
        OK(oar_gpt_to_hf(gpt, folder));
        OK(oar_gpt_from_hf(folder, OAR_F32, &back, &got));
        assert_same(gpt, back);
        got.seed = opts.seed; /* it is not written */
        assert_memory_equal(&got, &opts, sizeof opts);
        oar_module_release(gpt);
        oar_module_release(back);
    }
}

static void a_slash_behind_the_folder_is_fine(void **state)
{
    oar_module *gpt = make_small(OAR_F32), *back;
    char below[FOLDER_PATH + 32];

    (void)state;
    snprintf(below, sizeof below, "%s/new//", folder);
    OK(oar_gpt_to_hf(gpt, below));
    back = read_hf(below, OAR_F32);
    assert_same(gpt, back);
    oar_module_release(gpt);
    oar_module_release(back);
    below[strlen(below) - 2] = 0;
    folder_remove(below);
}

/* ---- other layouts of the files ------------------------------------------ */

/* The tensors of model.safetensors, to be changed and saved. */
typedef struct tensors {
    int count;
    char text[MANY_TENSORS][100];
    const char *name[MANY_TENSORS];
    oar_tensor *tensor[MANY_TENSORS];
} tensors;

static void load_tensors(tensors *t)
{
    oar_safetensors *file;

    OK(oar_safetensors_open(model, NULL, &file));
    t->count = (int)oar_safetensors_count(file);
    for (int i = 0; i < t->count; i++) {
        oar_safetensors_entry e = { .size = sizeof e };

        OK(oar_safetensors_entry_at(file, i, &e));
        snprintf(t->text[i], sizeof t->text[i], "%s", e.name);
        t->name[i] = t->text[i];
        t->tensor[i] = oar_safetensors_tensor(NULL, file, e.name);
        assert_non_null(t->tensor[i]);
    }
    oar_safetensors_close(file);
}

static void save_tensors(const tensors *t, const char *path)
{
    OK(oar_safetensors_save(path, t->count, t->name, t->tensor, 0, NULL));
}

static void free_tensors(tensors *t)
{
    for (int i = 0; i < t->count; i++)
        oar_tensor_release(t->tensor[i]);
}

static int find_tensor(const tensors *t, const char *name)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->name[i], name) == 0)
            return i;
    fail_msg("no tensor %s", name);
    return -1;
}

static void names_without_transformer_are_read(void **state)
{
    oar_module *gpt = make_small(OAR_F32), *back;
    tensors t;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    load_tensors(&t);
    for (int i = 0; i < t.count; i++)
        t.name[i] += strlen("transformer.");
    save_tensors(&t, model);
    back = read_hf(folder, OAR_F32);
    assert_same(gpt, back);
    free_tensors(&t);
    oar_module_release(gpt);
    oar_module_release(back);
}

/* Saves a model in two files with an index, and gives the index's text. */
static char *split_model(const oar_module *gpt)
{
    static const char *const part[] = { "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors" };
    json_t *map = json_object(), *index;
    char path[FOLDER_PATH + 64], *text;
    tensors t;

    OK(oar_gpt_to_hf(gpt, folder));
    load_tensors(&t);
    for (int i = 0; i < t.count; i++)
        json_object_set_new(map, t.name[i], json_string(part[i >= SPLIT]));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, part[i]);
        OK(oar_safetensors_save(path, i == 0 ? SPLIT : t.count - SPLIT,
                                t.name + SPLIT * i, t.tensor + SPLIT * i, 0,
                                NULL));
    }
    free_tensors(&t);
    index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 7,
                      "weight_map", map);
    text = json_dumps(index, JSON_INDENT(2));
    json_decref(index);
    write_string(index_path, text);
    assert_int_equal(unlink(model), 0);
    return text;
}

static void several_files_with_an_index_are_read(void **state)
{
    oar_module *gpt = make_small(OAR_F32), *back;

    (void)state;
    free(split_model(gpt));
    back = read_hf(folder, OAR_F32);
    assert_same(gpt, back);
    oar_module_release(gpt);
    oar_module_release(back);
}

/* Hugging Face's cache is folders of links to files elsewhere. */
static void links_of_a_cache_are_followed(void **state)
{
    (void)state;
    assert_int_equal(symlink(golden_path("model.safetensors"), model), 0);
    assert_int_equal(symlink(golden_path("config.json"), config), 0);
    check_logits(oar_device_of(OAR_CPU, 0), read_hf(folder, OAR_F32), "f32");
}

static void without_a_config_heads_are_64_wide(void **state)
{
    oar_gpt_opts opts = small_opts(OAR_F32), got = oar_gpt_opts_init();
    oar_module *gpt, *back;

    (void)state;
    opts.width = 128;
    opts.layers = 1;
    gpt = make_gpt(&opts);
    OK(oar_gpt_to_hf(gpt, folder));
    assert_int_equal(unlink(config), 0);
    OK(oar_gpt_from_hf(folder, OAR_F32, &back, &got));
    assert_same(gpt, back);
    assert_int_equal(got.heads, 2);
    assert_int_equal(got.activation, OAR_GELU_TANH);
    assert_true(got.tied && got.dropout == 0);
    oar_module_release(gpt);
    oar_module_release(back);
    gpt = make_small(OAR_F32);
    OK(oar_gpt_to_hf(gpt, folder));
    assert_int_equal(unlink(config), 0);
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "the width 6 is no multiple of 64");
    oar_module_release(gpt);
}

/* Puts one member into config.json. */
static void set_member(const char *key, const char *value)
{
    json_t *json = json_load_file(config, 0, NULL);
    json_t *member = json_loads(value, JSON_DECODE_ANY, NULL);

    assert_true(json != NULL && member != NULL);
    json_object_set_new(json, key, member);
    assert_int_equal(json_dump_file(json, config, 0), 0);
    json_decref(json);
}

static void a_config_may_leave_out_most(void **state)
{
    oar_module *gpt = make_small(OAR_F32), *back;
    oar_gpt_opts got = oar_gpt_opts_init();

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    write_string(config, "{\"n_head\": 3, \"unknown\": {\"a\": [1]}}");
    OK(oar_gpt_from_hf(folder, OAR_F32, &back, &got));
    assert_int_equal(got.heads, 3);
    assert_int_equal(got.activation, OAR_GELU_TANH);
    assert_true(got.tied && got.dropout == 0.1 && got.attention_dropout == 0.1);
    oar_module_release(back);
    write_string(config, "{\"num_attention_heads\": 6}");
    OK(oar_gpt_from_hf(folder, OAR_F32, &back, &got));
    assert_int_equal(got.heads, 6);
    oar_module_release(back);
    write_string(config, "{}");
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "\"n_head\" is 12 by default, which does not divide");
    oar_module_release(gpt);
}

static void a_tied_head_may_be_in_the_file(void **state)
{
    oar_module *gpt = make_small(OAR_F32), *back;
    tensors t;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    load_tensors(&t);
    t.name[t.count] = "lm_head.weight";
    t.tensor[t.count] =
        oar_tensor_retain(t.tensor[find_tensor(&t, "transformer.wte.weight")]);
    t.count++;
    save_tensors(&t, model);
    back = read_hf(folder, OAR_F32);
    assert_same(gpt, back);
    oar_module_release(back);
    set_member("tie_word_embeddings", "false");
    back = read_hf(folder, OAR_F32);
    assert_int_equal(oar_module_params(back), oar_module_params(gpt) + 1);
    oar_module_release(back);
    set_member("tie_word_embeddings", "true");
    oar_tensor_release(t.tensor[t.count - 1]);
    t.tensor[t.count - 1] = oar_ones(NULL, OAR_F32, OAR_SHAPE(13, 6));
    save_tensors(&t, model);
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "differs from");
    free_tensors(&t);
    oar_module_release(gpt);
}

/* ---- Hugging Face's files that are refused ------------------------------- */

static void settings_that_a_gpt_lacks_are_named(void **state)
{
    static const struct {
        const char *key, *value;
        oar_status status;
        const char *text;
    } row[] = {
        { "activation_function", "\"mish\"", OAR_E_UNSUPPORTED,
          "\"activation_function\" is \"mish\"" },
        { "activation_function", "7", OAR_E_UNSUPPORTED, "is 7" },
        { "n_inner", "23", OAR_E_DATA,
          "\"n_inner\" is 23, but the tensors have 24" },
        { "n_inner", "-1", OAR_E_DATA, "\"n_inner\" is -1" },
        { "scale_attn_by_inverse_layer_idx", "true", OAR_E_UNSUPPORTED,
          "\"scale_attn_by_inverse_layer_idx\" is true; a gpt has false" },
        { "scale_attn_weights", "false", OAR_E_UNSUPPORTED,
          "\"scale_attn_weights\" is false; a gpt has true" },
        { "scale_attn_weights", "1", OAR_E_DATA, "true or false is expected" },
        { "add_cross_attention", "true", OAR_E_UNSUPPORTED,
          "\"add_cross_attention\" is true" },
        { "layer_norm_epsilon", "1e-6", OAR_E_UNSUPPORTED,
          "\"layer_norm_epsilon\" is 1e-6" },
        { "layer_norm_epsilon", "\"1e-5\"", OAR_E_UNSUPPORTED,
          "\"layer_norm_epsilon\" is \"1e-5\"" },
        { "model_type", "\"llama\"", OAR_E_UNSUPPORTED,
          "\"model_type\" is \"llama\"; only \"gpt2\" is read" },
        { "quantization_config", "{\"bits\":4}", OAR_E_UNSUPPORTED,
          "\"quantization_config\" is {\"bits\":4}" },
        { "pruned_heads", "{\"1\":[0]}", OAR_E_UNSUPPORTED, "pruned_heads" },
        { "embd_pdrop", "0.5", OAR_E_UNSUPPORTED,
          "\"embd_pdrop\" is 0.5 and \"resid_pdrop\" 0" },
        { "attn_pdrop", "1", OAR_E_DATA, "\"attn_pdrop\" is 1" },
        { "attn_pdrop", "\"x\"", OAR_E_DATA, "\"attn_pdrop\" is \"x\"" },
        { "n_head", "4", OAR_E_DATA, "\"n_head\" is 4, which does not divide" },
        { "n_head", "0", OAR_E_DATA, "\"n_head\" is 0" },
        { "n_head", "9223372036854775807", OAR_E_DATA, "does not divide" },
        { "n_head", "2.0", OAR_E_DATA, "a whole number" },
        { "n_layer", "1000000000", OAR_E_DATA,
          "\"n_layer\" is 1000000000, but the tensors have 3" },
        { "num_hidden_layers", "4", OAR_E_DATA, "\"num_hidden_layers\" is 4" },
        { "vocab_size", "14", OAR_E_DATA, "\"vocab_size\" is 14" },
        { "n_positions", "1024", OAR_E_DATA, "\"n_positions\" is 1024" },
        { "n_embd", "768", OAR_E_DATA,
          "\"n_embd\" is 768, but the tensors have 6" },
        { "tie_word_embeddings", "false", OAR_E_DATA,
          "no tensor \"lm_head.weight\"" },
    };
    oar_module *gpt = make_small(OAR_F32);
    static unsigned char bytes[MANY_BYTES];
    size_t count;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    count = read_bytes(config, bytes);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        write_bytes(config, bytes, count);
        set_member(row[i].key, row[i].value);
        assert_fails_with(refused_hf(folder), row[i].status, row[i].text);
    }
    oar_module_release(gpt);
}

static void a_config_that_is_no_json_is_refused(void **state)
{
    static const char *const text[] = {
        "", "{", "[]", "7", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "\xff"
    };
    static char large[(1 << 20) + 2];
    oar_module *gpt = make_small(OAR_F32);

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        write_string(config, text[i]);
        assert_fails_with(refused_hf(folder), OAR_E_DATA, "config.json");
    }
    memset(large, '[', sizeof large - 2); /* as deep as it is long */
    write_string(config, large);
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "config.json");
    memset(large, ' ', sizeof large - 1);
    write_string(config, large);
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "has 1048577 bytes; at most 1048576 are read");
    oar_module_release(gpt);
}

/* Saves the small model with one tensor changed: another name, another tensor
 * (which it takes), or left out if both are NULL. */
static void save_changed(const char *name, const char *new_name,
                         oar_tensor *tensor)
{
    oar_module *gpt = make_small(OAR_F32);
    tensors t;
    int i;

    OK(oar_gpt_to_hf(gpt, folder));
    load_tensors(&t);
    i = find_tensor(&t, name);
    if (new_name != NULL)
        t.name[i] = new_name;
    if (tensor != NULL || new_name == NULL) {
        oar_tensor_release(t.tensor[i]);
        t.tensor[i] = tensor;
    }
    if (tensor == NULL && new_name == NULL) {
        t.count--;
        t.name[i] = t.name[t.count];
        t.tensor[i] = t.tensor[t.count];
    }
    save_tensors(&t, model);
    free_tensors(&t);
    oar_module_release(gpt);
}

static void a_tensor_that_does_not_fit_is_named(void **state)
{
#define FLOATS(...) oar_zeros(NULL, OAR_F32, OAR_SHAPE(__VA_ARGS__))
    (void)state;
    save_changed("transformer.h.1.ln_2.bias", NULL, NULL);
    assert_fails_with(
        refused_hf(folder), OAR_E_DATA,
        "no tensor \"h.1.ln_2.bias\", which a GPT-2 of 3 layers has");
    save_changed("transformer.wte.weight", NULL, NULL);
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "no tensor \"wte.weight\"");
    save_changed("transformer.h.0.mlp.c_fc.weight", NULL, NULL);
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "h.0.mlp.c_fc.weight");
    save_changed("transformer.h.2.attn.c_attn.weight", NULL, FLOATS(18, 6));
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "\"transformer.h.2.attn.c_attn.weight\" is F32 [18, 6]; "
                      "expected is a float [6, 18]");
    save_changed("transformer.ln_f.bias", NULL, FLOATS(7));
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "is F32 [7]; expected is a float [6]");
    save_changed("transformer.wte.weight", NULL, FLOATS(0, 6));
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "is F32 [0, 6]");
    save_changed("transformer.wpe.weight", NULL, FLOATS(5));
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "is F32 [5]");
    save_changed("transformer.wpe.weight", NULL, FLOATS(5, 7));
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "is F32 [5, 7]");
    save_changed("transformer.h.0.ln_1.bias", NULL,
                 oar_zeros(NULL, OAR_I32, OAR_SHAPE(6)));
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "is I32 [6]; expected is a");
    save_changed("transformer.h.0.ln_1.bias", NULL,
                 FLOATS(1, 1, 1, 1, 1, 1, 1, 1));
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "[1, 1, 1, 1, 1, 1, 1, 1]");
#undef FLOATS
}

static void a_name_that_gpt2_lacks_is_refused(void **state)
{
    static const char *const name[] = {
        "score.weight",
        "transformer.h.0.ln_3.bias",
        "h.00.ln_1.bias",
        "h..ln_1.bias",
        "h.1",
        "h.-1.ln_1.bias",
        "ln_1.bias",
        "h.0.wte.weight",
        "../../etc/passwd",
        "transformer.transformer.h.0.ln_1.bias",
        "h.99999999999999999999999.ln_1.bias",
    };

    (void)state;
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        save_changed("transformer.h.0.ln_1.bias", name[i], NULL);
        assert_fails_with(refused_hf(folder), OAR_E_UNSUPPORTED, name[i]);
        assert_fails_with(refused_hf(folder), OAR_E_UNSUPPORTED,
                          "which no GPT-2 has");
    }
    save_changed("transformer.h.0.ln_1.bias", "h.1.ln_1.bias", NULL);
    assert_fails_with(refused_hf(folder), OAR_E_DATA,
                      "twice: \"h.1.ln_1.bias\" in model.safetensors and "
                      "\"transformer.h.1.ln_1.bias\" in model.safetensors");
    save_changed("transformer.h.0.ln_1.bias", "h.1000000000.ln_1.bias", NULL);
    assert_fails_with(refused_hf(folder), OAR_E_UNSUPPORTED,
                      "at most 1000 layers are read");
    save_changed("transformer.h.0.ln_1.bias", "h.999.ln_1.bias", NULL);
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "\"n_layer\" is 3, but");
    assert_int_equal(unlink(config), 0);
    assert_fails_with(refused_hf(folder), OAR_E_DATA, "no config.json");
}

static void every_truncation_is_refused(void **state)
{
    oar_module *gpt = make_small(OAR_F32);
    struct stat st;

    (void)state;
    OK(oar_gpt_to_hf(gpt, folder));
    assert_int_equal(stat(model, &st), 0);
    for (off_t i = st.st_size - 1; i >= 0; i -= 1 + i / 50) {
        assert_int_equal(truncate(model, i), 0);
        assert_int_equal(refused_hf(folder), OAR_E_DATA);
    }
    oar_module_release(gpt);
}

static void an_index_names_files_of_its_folder_only(void **state)
{
    static const char *const name[] = { "../model-00001-of-00002.safetensors",
                                        "/etc/passwd",
                                        "a/b",
                                        ".",
                                        "..",
                                        ".hidden",
                                        "" };
    oar_module *gpt = make_small(OAR_F32);
    char text[200];

    (void)state;
    free(split_model(gpt));
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":{\"wte.weight\":\"%s\"}}",
                 name[i]);
        write_string(index_path, text);
        assert_fails_with(refused_hf(folder), OAR_E_DATA,
                          "which is no name of a file in that folder");
    }
    oar_module_release(gpt);
}

static void an_index_that_is_wrong_is_refused(void **state)
{
    static const struct {
        const char *index;
        oar_status status;
        const char *text;
    } row[] = {
        { "", OAR_E_DATA, "index.json" },
        { "[]", OAR_E_DATA, "index.json" },
        { "{}", OAR_E_DATA, "0 members \"weight_map\"" },
        { "{\"weight_map\":{}} x", OAR_E_DATA, "index.json" },
        { "{\"weight_map\":{},\"weight_map\":{}}", OAR_E_DATA,
          "has 2 members" },
        { "{\"weight_map\":{\"a\":1}}", OAR_E_DATA, "index.json" },
        { "{\"weight_map\":{}}", OAR_E_DATA, "no tensor \"wte.weight\"" },
        { "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
          OAR_E_DATA,
          "puts \"a\" into model-00001-of-00002.safetensors, which "
          "does not have it" },
        { "{\"weight_map\":{\"a\":\"nowhere\"}}", OAR_E_NOT_FOUND, "nowhere" },
        { "{\"weight_map\":{\"a\":\"config.json\"}}", OAR_E_DATA,
          "config.json" },
    };
    oar_module *gpt = make_small(OAR_F32);

    (void)state;
    free(split_model(gpt));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        write_string(index_path, row[i].index);
        assert_fails_with(refused_hf(folder), row[i].status, row[i].text);
    }
    oar_module_release(gpt);
}

static void a_path_without_a_model_is_named(void **state)
{
    oar_module *gpt;

    (void)state;
    assert_fails_with(refused_hf(folder), OAR_E_NOT_FOUND,
                      "has neither model.safetensors nor "
                      "model.safetensors.index.json");
    assert_fails_with(refused_hf(model), OAR_E_NOT_FOUND, model);
    assert_fails_with(refused_llmc(bin), OAR_E_NOT_FOUND, bin);
    assert_fails_with(refused_llmc(folder), OAR_E_SYSTEM, folder);
    assert_fails_with(oar_gpt_from_hf(NULL, OAR_F32, &gpt, NULL), OAR_E_ARG,
                      "path");
    assert_fails_with(oar_gpt_from_hf("a", OAR_F32, NULL, NULL), OAR_E_ARG,
                      "module");
    assert_fails_with(oar_gpt_from_llmc(NULL, OAR_F32, 0, &gpt, NULL),
                      OAR_E_ARG, "path");
    assert_fails_with(oar_gpt_to_hf(NULL, "a"), OAR_E_ARG, "module");
    assert_fails_with(oar_gpt_to_llmc(NULL, "a"), OAR_E_ARG, "module");
}

static void dtype_and_opts_are_checked(void **state)
{
    oar_gpt_opts without_size = { 0 };
    oar_module *gpt = NULL;

    (void)state;
    assert_fails_with(oar_gpt_from_hf(golden_path(""), OAR_I32, &gpt, NULL),
                      OAR_E_DTYPE, "i32");
    assert_fails_with(
        oar_gpt_from_llmc(golden_path("f32.bin"), OAR_BOOL, 0, &gpt, NULL),
        OAR_E_DTYPE, "bool");
    assert_fails_with(
        oar_gpt_from_hf(golden_path(""), OAR_F32, &gpt, &without_size),
        OAR_E_ARG, "set its size first");
    assert_null(gpt);
}

/* ---- llm.c's files that are refused -------------------------------------- */

static void numbers_of_a_header_are_checked(void **state)
{
    enum { MAGIC, VERSION, CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED };
    static const struct {
        int at, number;
        oar_status status;
        const char *text;
    } row[] = {
        { MAGIC, 20240520, OAR_E_DATA,
          "begins with the number 20240520; a model file of llm.c begins with "
          "20240326" },
        { VERSION, 1, OAR_E_UNSUPPORTED,
          "is of version 1; versions 3 (f32) and 5 (bf16) are read" },
        { VERSION, 5, OAR_E_DATA, "8416 bytes; with 2 layers of width 6" },
        { CONTEXT, 0, OAR_E_DATA, "context 0; it is at least 1" },
        { CONTEXT, 9, OAR_E_DATA, "it would have 8440" },
        { CONTEXT, INT32_MAX, OAR_E_DATA, "context 2147483647" },
        { VOCABULARY, -1, OAR_E_DATA, "vocabulary -1" },
        { VOCABULARY, 129, OAR_E_DATA,
          "vocabulary 129, but only 128 rows for it" },
        { LAYERS, 0, OAR_E_DATA, "layers 0" },
        { LAYERS, 1000, OAR_E_DATA, "with 1000 layers" },
        { LAYERS, 1000000000, OAR_E_UNSUPPORTED,
          "1000000000 layers; at most 1000 are read" },
        { HEADS, 0, OAR_E_DATA, "heads 0" },
        { HEADS, 4, OAR_E_DATA, "4 heads, which do not divide the width 6" },
        { HEADS, INT32_MAX, OAR_E_DATA, "do not divide" },
        { WIDTH, 8, OAR_E_DATA, "layers of width 8" },
        { WIDTH, INT32_MAX - 1, OAR_E_DATA, "layers of width 2147483646" },
        { WIDTH, INT32_MIN, OAR_E_DATA, "width -2147483648" },
        { PADDED, INT32_MAX, OAR_E_DATA, "2147483647 rows of vocabulary" },
        { PADDED, 0, OAR_E_DATA, "padded vocabulary 0" },
    };
    static unsigned char bytes[MANY_BYTES];
    size_t count = read_bytes(golden_path("f32.bin"), bytes);

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        uint64_t allocations = memory_now().allocations;
        int32_t was, number = row[i].number;

        memcpy(&was, bytes + 4 * row[i].at, sizeof was);
        memcpy(bytes + 4 * row[i].at, &number, sizeof number);
        write_bytes(bin, bytes, count);
        memcpy(bytes + 4 * row[i].at, &was, sizeof was);
        assert_fails_with(refused_llmc(bin), row[i].status, row[i].text);
        assert_int_equal(memory_now().allocations, allocations);
    }
}

static void the_size_of_a_file_must_be_exact(void **state)
{
    static unsigned char bytes[MANY_BYTES];
    size_t count = read_bytes(golden_path("bf16.bin"), bytes);

    (void)state;
    write_bytes(bin, bytes, count);
    for (size_t i = count + 2; i > 0; i--) {
        if (i == count)
            continue;
        assert_int_equal(truncate(bin, (off_t)i), 0);
        assert_fails_with(refused_llmc(bin), OAR_E_DATA,
                          i < 1024 ? "1024 bytes of header"
                                   : "it would have 4720");
    }
}

/* ---- models that are not written ----------------------------------------- */

static void what_others_cannot_hold_is_not_written(void **state)
{
    enum { HF = 1, LLMC = 2 };
    const struct {
        oar_gpt_opts opts;
        int refused;
        const char *text;
    } row[] = {
        { { .rotary = 1, .tied = 1 }, HF | LLMC, "rotary positions" },
        { { .kv_heads = 1, .tied = 1 }, HF | LLMC, "2 heads and 1 of k and v" },
        { { .activation = OAR_SOFTPLUS, .tied = 1 }, HF | LLMC, "activation" },
        { { .activation = OAR_GELU, .tied = 1 },
          LLMC,
          "activation is number 2 of layers.h" },
        { { .tied = 0 }, LLMC, "a head of its own" },
        { { .hidden = 20, .tied = 1 }, LLMC, "width 8 and 20 in the MLP" },
        { { .dtype = OAR_F16, .tied = 1 }, LLMC, "the gpt is f16" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        oar_gpt_opts opts = row[i].opts;
        oar_module *gpt;

        opts.size = sizeof opts;
        opts.width = 8;
        opts.heads = 2;
        opts.layers = 1;
        if (opts.activation == OAR_ACTIVATION_DEFAULT)
            opts.activation = OAR_GELU_TANH;
        gpt = make_gpt(&opts);
        if (row[i].refused & HF)
            assert_fails_with(oar_gpt_to_hf(gpt, folder), OAR_E_UNSUPPORTED,
                              row[i].text);
        if (row[i].refused & LLMC)
            assert_fails_with(oar_gpt_to_llmc(gpt, bin), OAR_E_UNSUPPORTED,
                              row[i].text);
        oar_module_release(gpt);
    }
    assert_int_equal(folder_entries(folder), 0);
}

static void only_a_gpt_has_its_options(void **state)
{
    oar_gpt_opts opts = oar_gpt_opts_init();
    oar_module *cnn, *gpt;

    (void)state;
    OK(oar_cnn_create(NULL, &cnn));
    assert_fails_with(oar_gpt_describe(cnn, &opts), OAR_E_ARG, "it is no gpt");
    assert_fails_with(oar_gpt_describe(NULL, &opts), OAR_E_ARG, "it is no gpt");
    assert_fails_with(oar_gpt_to_hf(cnn, folder), OAR_E_ARG, "it is no gpt");
    assert_fails_with(oar_gpt_to_llmc(cnn, bin), OAR_E_ARG, "it is no gpt");
    oar_module_release(cnn);
    OK(oar_gpt_create(NULL, &gpt));
    assert_fails_with(oar_gpt_describe(gpt, NULL), OAR_E_ARG, "NULL");
    OK(oar_gpt_describe(gpt, &opts));
    assert_int_equal(opts.vocabulary, 256);
    assert_int_equal(opts.hidden, 512);
    assert_int_equal(opts.activation, OAR_GELU);
    oar_module_release(gpt);
}

/* ---- failures ------------------------------------------------------------ */

static oar_status read_both(void *arg)
{
    oar_module *gpt;

    (void)arg;
    OARI_TRY(oar_gpt_from_hf(folder, OAR_F64, &gpt, NULL));
    oar_module_release(gpt);
    OARI_TRY(oar_gpt_from_llmc(bin, OAR_F64, 1, &gpt, NULL));
    oar_module_release(gpt);
    return OAR_OK;
}

static oar_status write_both(void *gpt)
{
    OARI_TRY(oar_gpt_to_hf(gpt, folder));
    return oar_gpt_to_llmc(gpt, bin);
}

static void each_allocation_may_fail(void **state)
{
    oar_gpt_opts opts = small_opts(OAR_F32);
    oar_module *gpt;

    (void)state;
    opts.layers = 1;
    gpt = make_gpt(&opts);
    fail_each_allocation(write_both, gpt);
    fail_each_allocation(read_both, NULL);
    free(split_model(gpt));
    fail_each_allocation(read_both, NULL);
    oar_module_release(gpt);
}

/* A write that fails at any call leaves each file as it was, or new. */
static void each_disk_call_may_fail(void **state)
{
    oar_gpt_opts opts = small_opts(OAR_F32);
    oar_module *old, *new, *back;
    oar_status status = OAR_E_SYSTEM;

    (void)state;
    opts.layers = 1;
    old = make_gpt(&opts);
    opts.seed = 5;
    new = make_gpt(&opts);
    for (long at = 1; status != OAR_OK; at++) {
        leak_check before = leak_check_begin();

        OK(oar_gpt_to_hf(old, folder));
        OK(oar_gpt_to_llmc(old, bin));
        faulty_disk_use(DISK_FAULT_ERROR, at, EIO);
        status = write_both(new);
        faulty_disk_stop();
        if (faulty_disk_struck() == NULL)
            assert_int_equal(status, OAR_OK);
        else
            status = OAR_E_SYSTEM; /* the call may have been no matter */
        assert_int_equal(folder_entries(folder), 3);
        back = read_hf(folder, OAR_F32);
        oar_module_release(back);
        back = read_llmc(bin, OAR_F32, 1);
        oar_module_release(back);
        leak_check_end(&before);
    }
    back = read_llmc(bin, OAR_F32, 1);
    assert_same(new, back);
    oar_module_release(back);
    oar_module_release(old);
    oar_module_release(new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_torch),
        cmocka_unit_test(options_are_those_of_the_file),
        cmocka_unit_test(models_from_files_are_never_lazy),
#define IN_FOLDER(test) \
    cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
        IN_FOLDER(llmc_files_are_written_byte_for_byte),
        IN_FOLDER(hf_tensors_are_written_as_they_were),
        IN_FOLDER(what_is_written_is_read_bitwise),
        IN_FOLDER(from_one_format_to_the_other_and_back),
        IN_FOLDER(every_option_of_gpt2_comes_back),
        IN_FOLDER(a_slash_behind_the_folder_is_fine),
        IN_FOLDER(names_without_transformer_are_read),
        IN_FOLDER(several_files_with_an_index_are_read),
        IN_FOLDER(links_of_a_cache_are_followed),
        IN_FOLDER(without_a_config_heads_are_64_wide),
        IN_FOLDER(a_config_may_leave_out_most),
        IN_FOLDER(a_tied_head_may_be_in_the_file),
        IN_FOLDER(settings_that_a_gpt_lacks_are_named),
        IN_FOLDER(a_config_that_is_no_json_is_refused),
        IN_FOLDER(a_tensor_that_does_not_fit_is_named),
        IN_FOLDER(a_name_that_gpt2_lacks_is_refused),
        IN_FOLDER(every_truncation_is_refused),
        IN_FOLDER(an_index_names_files_of_its_folder_only),
        IN_FOLDER(an_index_that_is_wrong_is_refused),
        IN_FOLDER(a_path_without_a_model_is_named),
        IN_FOLDER(dtype_and_opts_are_checked),
        IN_FOLDER(numbers_of_a_header_are_checked),
        IN_FOLDER(the_size_of_a_file_must_be_exact),
        IN_FOLDER(what_others_cannot_hold_is_not_written),
        IN_FOLDER(only_a_gpt_has_its_options),
        IN_FOLDER(each_allocation_may_fail),
        IN_FOLDER(each_disk_call_may_fail),
    };

    return cmocka_run_group_tests(tests, open_golden, golden_close);
}
