/* SPDX-License-Identifier: Apache-2.0 */
/* exchange: our half of the tests with PyTorch (tests/interop/with-torch); the
 * other half is torch_side.py.
 *     oarsong run -n 3 exchange save FOLDER   saves a generation for each cut
 *     exchange check FILE...                  checks others' safetensors files
 *     exchange gpt FOLDER                     computes with others' GPT-2
 *
 * Element i of a tensor is (7 i + the sum of the bytes of its name) modulo 127,
 * so that both sides know from the name what must be there. bool: modulo 2.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { LONGEST_NAME = 64, LONGEST_PATH = 4096, MOST_ELEMENTS = 1000 };

static oar_status failed(const char *what)
{
    fprintf(stderr, "exchange: %s\n", what);
    return OAR_E_DATA;
}

static double number(const char *name, int64_t i, int is_bool)
{
    int64_t sum = 7 * i;

    for (const char *c = name; *c != '\0'; c++)
        sum += (unsigned char)*c;
    return (double)(sum % 127 % (is_bool ? 2 : 127));
}

/* ---- save ---------------------------------------------------------------- */

/* How a tensor is cut among the ranks. */
typedef enum cut_kind { REPLICATED, ROWS, COLUMNS, FLAT, CUTS } cut_kind;
static const char *const cut_name[CUTS] = { "replicated", "rows", "columns",
                                            "flat" };

/* The part of a tensor that this rank holds, and its place in the whole. */
static oar_tensor *cut_out(oar_group *world, cut_kind how, oar_tensor *all,
                           oar_place *place)
{
    int rank = oar_group_rank(world), ranks = oar_group_size(world);
    int64_t count = oar_tensor_count(all), first = rank * count / ranks;
    oar_tensor *line, *view;
    oar_shape shape;

    if (how == FLAT) {
        place->flat = 1;
        place->first = first;
        line = oar_reshape(NULL, all, OAR_SHAPE(count));
        view = oar_narrow(NULL, line, 0, first,
                          (rank + 1) * count / ranks - first);
        oar_tensor_release(line);
        return view;
    }
    if (oar_place_of_rank(place->whole, how == COLUMNS, rank, ranks, place,
                          &shape) != OAR_OK)
        return NULL;
    return oar_narrow(NULL, all, how == COLUMNS, place->offset[how == COLUMNS],
                      shape.dim[how == COLUMNS]);
}

/* Adds this rank's part of a tensor with the numbers of its name. */
static oar_status add(oar_group *world, oar_state *state, const char *section,
                      const char *name, oar_dtype dtype, oar_shape shape,
                      cut_kind how)
{
    oar_place place = { .size = sizeof place, .whole = shape };
    oar_tensor *all = oar_zeros(NULL, dtype, shape), *part;
    double value[MOST_ELEMENTS];
    oar_status status;

    for (int64_t i = 0; i < oar_tensor_count(all); i++)
        value[i] = number(name, i, dtype == OAR_BOOL);
    TRY(oar_tensor_write(all, OAR_F64, value));
    part = how == REPLICATED ? oar_tensor_retain(all)
                             : cut_out(world, how, all, &place);
    status = oar_state_add_tensor(state, section, name, part,
                                  how == REPLICATED ? NULL : &place);
    oar_tensor_release(part);
    oar_tensor_release(all);
    return status;
}

/* Every dtype, shapes with few dims and many, one number, and none. */
static oar_status add_all(oar_group *world, oar_state *state, cut_kind how)
{
    char name[LONGEST_NAME];

    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        snprintf(name, sizeof name, "%s.%s", cut_name[how],
                 oar_dtype_name((oar_dtype)d));
        TRY(add(world, state, "model", name, (oar_dtype)d, OAR_SHAPE(7, 10),
                how));
    }
    snprintf(name, sizeof name, "%s.cube", cut_name[how]);
    TRY(add(world, state, "model", name, OAR_F16, OAR_SHAPE(5, 4, 3), how));
    snprintf(name, sizeof name, "%s.scalar", cut_name[how]);
    TRY(add(world, state, "model", name, OAR_F32, (oar_shape){ 0 },
            REPLICATED));
    snprintf(name, sizeof name, "%s.empty", cut_name[how]);
    TRY(add(world, state, "model", name, OAR_F32, OAR_SHAPE(0, 3), REPLICATED));
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "state.%s.f32.%s", cut_name[how],
                 i == 0 ? "exp_avg" : "exp_avg_sq");
        TRY(add(world, state, "optim", name, OAR_F32, OAR_SHAPE(7, 10), how));
    }
    return OAR_OK;
}

/* Generation 1 + C has cut C; then all in one; then replicas as bf16. */
static oar_status save(oar_group *world, const char *folder)
{
    const oar_save_opts *half =
        OAR_OPTS(oar_save_opts, .has_dtype = 1, .dtype = OAR_BF16);
    oar_checkpoint *generations;

    TRY(oar_checkpoint_open(world, folder,
                            OAR_OPTS(oar_checkpoint_opts, .no_sync = 1),
                            &generations));
    for (int g = 0; g < CUTS + 2; g++) {
        oar_state *state;

        TRY(oar_state_create(&state));
        for (int how = 0; how < CUTS; how++)
            if (g == how || g == CUTS || (g == CUTS + 1 && how == REPLICATED))
                TRY(add_all(world, state, (cut_kind)how));
        TRY(oar_checkpoint_save(generations, state, g + 1,
                                g == CUTS + 1 ? half : NULL));
        oar_state_destroy(state);
    }
    oar_checkpoint_close(generations);
    return OAR_OK;
}

/* ---- check --------------------------------------------------------------- */

static oar_status check_tensor(const oar_safetensors *file,
                               const oar_safetensors_entry *entry)
{
    double value[MOST_ELEMENTS];
    oar_tensor *all;
    int64_t count;

    if (!entry->known)
        return failed(entry->dtype_text);
    all = oar_safetensors_tensor(NULL, file, entry->name);
    count = oar_tensor_count(all);
    if (count > MOST_ELEMENTS)
        return failed("a larger tensor than any that we wait for");
    TRY(oar_tensor_read(all, OAR_F64, value));
    oar_tensor_release(all);
    for (int64_t i = 0; i < count; i++)
        if (value[i] != number(entry->name, i, entry->dtype == OAR_BOOL)) {
            fprintf(stderr, "%s[%lld] is %g\n", entry->name, (long long)i,
                    value[i]);
            return failed("a wrong number");
        }
    return OAR_OK;
}

static oar_status check(const char *path)
{
    oar_safetensors_entry entry = { .size = sizeof entry };
    oar_safetensors *file;
    int64_t count;

    TRY(oar_safetensors_open(path, NULL, &file));
    count = oar_safetensors_count(file);
    for (int64_t i = 0; i < count; i++) {
        TRY(oar_safetensors_entry_at(file, i, &entry));
        TRY(check_tensor(file, &entry));
    }
    oar_safetensors_close(file);
    printf("%s: %lld tensors are right\n", path, (long long)count);
    return OAR_OK;
}

/* ---- gpt ----------------------------------------------------------------- */

/* The logits of the tokens are those that the other side computed. */
static oar_status check_logits(oar_module *gpt, const oar_safetensors *file)
{
    oar_tensor *tokens = oar_safetensors_tensor(NULL, file, "tokens");
    oar_tensor *want = oar_safetensors_tensor(NULL, file, "logits");
    oar_tensor *have = oar_forward(NULL, gpt, tokens);
    int64_t count = oar_tensor_count(want);
    double *a = malloc(2 * (size_t)count * sizeof *a), *b = a + count, off = 0;

    if (a == NULL || oar_tensor_count(have) != count)
        return failed("another number of logits");
    TRY(oar_tensor_read(want, OAR_F64, a));
    TRY(oar_tensor_read(have, OAR_F64, b));
    for (int64_t i = 0; i < count; i++)
        off = fmax(off, fabs(a[i] - b[i]));
    printf("%lld logits, off by at most %.1e\n", (long long)count, off);
    free(a);
    oar_tensor_release(tokens);
    oar_tensor_release(want);
    oar_tensor_release(have);
    return off < 1e-5 ? OAR_OK : failed("other logits");
}

/* Our tokenizer makes of text.txt what the other side's made of it. */
static oar_status check_tokens(const char *folder, const oar_safetensors *file)
{
    char vocab[LONGEST_PATH], merges[LONGEST_PATH], path[LONGEST_PATH];
    char text[MOST_ELEMENTS];
    oar_tensor *want = oar_safetensors_tensor(NULL, file, "text");
    oar_tokenizer *tokenizer;
    int64_t *token;
    size_t bytes, count;
    FILE *in;
    int same;

    snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
    snprintf(merges, sizeof merges, "%s/merges.txt", folder);
    snprintf(path, sizeof path, "%s/text.txt", folder);
    in = fopen(path, "rb");
    if (in == NULL)
        return failed(path);
    bytes = fread(text, 1, sizeof text, in);
    fclose(in);
    TRY(oar_tokenizer_bpe(vocab, merges, &tokenizer));
    TRY(oar_tokenizer_encode(tokenizer, text, bytes, &token, &count));
    same =
        (int64_t)count == oar_tensor_count(want) &&
        memcmp(token, oar_tensor_const_data(want), count * sizeof *token) == 0;
    printf("%zu bytes are %zu tokens\n", bytes, count);
    oar_free(token);
    oar_tokenizer_destroy(tokenizer);
    oar_tensor_release(want);
    return same ? OAR_OK : failed("other tokens");
}

/* Reads a folder that the other side wrote, with what it computed in
 * expected.safetensors, and writes it back as FOLDER-back. */
static oar_status exchange_gpt(const char *folder)
{
    char path[LONGEST_PATH];
    oar_safetensors *file;
    oar_module *gpt;

    TRY(oar_gpt_from_hf(folder, OAR_F32, &gpt, NULL));
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    TRY(oar_safetensors_open(path, NULL, &file));
    TRY(check_logits(gpt, file));
    TRY(check_tokens(folder, file));
    oar_safetensors_close(file);
    snprintf(path, sizeof path, "%s-back", folder);
    TRY(oar_gpt_to_hf(gpt, path));
    oar_module_release(gpt);
    return OAR_OK;
}

/* -------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    oar_group *world = NULL;
    oar_status status = OAR_E_ARG;

    if (argc == 3 && strcmp(argv[1], "save") == 0) {
        status = oar_group_from_env(NULL, &world);
        if (status == OAR_OK)
            status = save(world, argv[2]);
        oar_group_destroy(world);
    } else if (argc == 3 && strcmp(argv[1], "gpt") == 0)
        status = exchange_gpt(argv[2]);
    else if (argc > 2 && strcmp(argv[1], "check") == 0) {
        status = OAR_OK;
        for (int i = 2; i < argc && status == OAR_OK; i++)
            status = check(argv[i]);
    }
    if (status != OAR_OK)
        fprintf(stderr, "exchange: %s: %s\n", oar_status_name(status),
                oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
