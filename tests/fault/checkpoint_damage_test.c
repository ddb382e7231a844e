/* SPDX-License-Identifier: Apache-2.0 */
/* Generations that are damaged: every byte of every file changed in turn, every
 * truncation, files that are longer, swapped or replaced by links, and an index
 * that lies although its checksum is right. Each is refused with a sentence, or
 * the numbers are right all the same; none is ever wrong. */
#include "support/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/checkpoint/generation_index.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/sample_state.h"

enum { RANKS = 3, PATH = 512, MOST_FILES = 16 };

static char folder[FOLDER_PATH], runs[FOLDER_PATH + 8];

/* The files of step 1, as they should be. */
static struct sound_file {
    char path[300];
    unsigned char *data;
    size_t bytes;
    int is_read; /* a load reads it; else it is for others */
} sound[MOST_FILES];
static int files;

/* ---- the folder ---------------------------------------------------------- */

static oar_status save_two(oar_group *g, void *arg)
{
    oar_checkpoint_opts o = sample_checkpoint_opts();
    oar_checkpoint *c;
    sample_state s;

    (void)arg;
    o.no_sync = 1;
    CHECK_OK(sample_state_make(&s, oar_group_rank(g), oar_group_size(g)));
    CHECK_OK(oar_checkpoint_open(g, runs, &o, &c));
    for (int64_t step = 1; step <= 2; step++) {
        sample_state_set(&s, step);
        CHECK_OK(oar_checkpoint_save(c, s.state, step, NULL));
    }
    oar_checkpoint_close(c);
    oar_state_destroy(s.state);
    return OAR_OK;
}

static void read_sound(const char *path)
{
    struct sound_file *f = &sound[files++];
    FILE *file = fopen(path, "rb");
    struct stat st;

    assert_true(files <= MOST_FILES);
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &st), 0);
    snprintf(f->path, sizeof f->path, "%.299s", path);
    f->bytes = (size_t)st.st_size;
    f->data = malloc(f->bytes);
    assert_non_null(f->data);
    assert_int_equal(fread(f->data, 1, f->bytes, file), f->bytes);
    f->is_read = strstr(path, "model.safetensors.index.json") == NULL;
    fclose(file);
}

static void read_all_below(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *item;
    char below[300];

    assert_non_null(d);
    while ((item = readdir(d)) != NULL) {
        if (item->d_name[0] == '.')
            continue;
        snprintf(below, sizeof below, "%.200s/%.90s", path, item->d_name);
        if (item->d_type == DT_DIR)
            read_all_below(below);
        else
            read_sound(below);
    }
    closedir(d);
}

static int make_runs(void **state)
{
    char step[PATH];

    (void)state;
    folder_make(folder);
    snprintf(runs, sizeof runs, "%s/runs", folder);
    files = 0;
    if (ranks_run("sim", RANKS, NULL, save_two, NULL) != OAR_OK)
        return 1;
    snprintf(step, sizeof step, "%s/step-000000000001", runs);
    read_all_below(step);
    return files < 5;
}

static int remove_runs(void **state)
{
    (void)state;
    for (int i = 0; i < files; i++)
        free(sound[i].data);
    return folder_remove(folder);
}

static void restore(const struct sound_file *f)
{
    FILE *file = fopen(f->path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(f->data, 1, f->bytes, file), f->bytes);
    assert_int_equal(fclose(file), 0);
}

/* ---- loading ------------------------------------------------------------- */

/* Loads a step in one process, and asserts that what it gives is right. */
static oar_status load(int64_t step, int64_t *loaded)
{
    oar_checkpoint_opts o = sample_checkpoint_opts();
    oar_checkpoint *c;
    oar_status status;
    sample_state s;

    o.read_only = 1;
    assert_int_equal(sample_state_make(&s, 0, 1), OAR_OK);
    OK(oar_checkpoint_open(NULL, runs, &o, &c));
    status = oar_checkpoint_load(c, s.state, step, NULL);
    if (status == OAR_OK) {
        assert_true(sample_state_is_whole(&s));
        assert_true(step == OAR_NEWEST || s.step == step);
    }
    if (loaded != NULL)
        *loaded = s.step;
    oar_checkpoint_close(c);
    oar_state_destroy(s.state);
    return status;
}

/* What a load of step 1 must do with a file that is not as it was. */
static void check_damage(const struct sound_file *f, const char *what,
                         size_t at)
{
    oar_status status = load(1, NULL);

    if (status != (f->is_read ? OAR_E_DATA : OAR_OK))
        fail_msg("%s, %s %zu: %s: %s", f->path, what, at,
                 oar_status_name(status), oar_last_error_text());
}

static void every_byte_that_is_changed_is_noticed(void **state)
{
    leak_check before;
    size_t bytes = 0;

    (void)state;
    OK(load(1, NULL));
    before = leak_check_begin();
    for (int i = 0; i < files; i++) {
        const struct sound_file *f = &sound[i];
        int fd = open(f->path, O_WRONLY | O_CLOEXEC);

        assert_true(fd >= 0);
        for (size_t at = 0; at < f->bytes; at++) {
            unsigned char changed = f->data[at] ^ (unsigned char)(1 << at % 8);

            assert_int_equal(pwrite(fd, &changed, 1, (off_t)at), 1);
            check_damage(f, "byte", at);
            assert_int_equal(pwrite(fd, &f->data[at], 1, (off_t)at), 1);
        }
        bytes += f->bytes;
        close(fd);
    }
    leak_check_end(&before);
    OK(load(1, NULL));
    print_message("%zu bytes of %d files\n", bytes, files);
}

static void every_truncation_and_a_byte_more_is_noticed(void **state)
{
    (void)state;
    for (int i = 0; i < files; i++) {
        const struct sound_file *f = &sound[i];

        assert_int_equal(truncate(f->path, (off_t)f->bytes + 1), 0);
        check_damage(f, "longer than", f->bytes);
        for (size_t bytes = f->bytes; bytes-- > 0;) {
            assert_int_equal(truncate(f->path, (off_t)bytes), 0);
            check_damage(f, "cut at", bytes);
        }
        assert_int_equal(unlink(f->path), 0);
        check_damage(f, "gone", 0);
        restore(f);
        OK(load(1, NULL));
    }
}

/* Damage of the newest generation that a look at it shows is passed over. */
static void the_newest_that_is_complete_is_loaded(void **state)
{
    char path[PATH];
    int64_t step;

    (void)state;
    OK(load(OAR_NEWEST, &step));
    assert_int_equal(step, 2);
    snprintf(path, sizeof path, "%s/step-000000000002/index.json", runs);
    assert_int_equal(truncate(path, 100), 0);
    OK(load(OAR_NEWEST, &step));
    assert_int_equal(step, 1);
    assert_int_equal(truncate(sound[0].path, 3), 0);
    assert_fails_with(load(OAR_NEWEST, &step), OAR_E_NOT_FOUND,
                      "has no complete generation; of 2 incomplete ones the "
                      "newest: ");
    assert_last_error_has("step-000000000002/index.json is damaged");
}

/* ---- swapped ------------------------------------------------------------- */

static void swap_names(const char *a, const char *b)
{
    assert_int_equal(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE), 0);
}

static void swapped_files_are_noticed(void **state)
{
    char a[PATH], b[PATH];

    (void)state;
    /* The same file of two generations: its header has the generation's id. */
    for (int i = 0; i < files; i++) {
        char *digit;

        snprintf(a, sizeof a, "%.299s", sound[i].path);
        snprintf(b, sizeof b, "%.299s", sound[i].path);
        digit = strstr(b, "step-000000000001");
        digit[16] = '2';
        swap_names(a, b);
        check_damage(&sound[i], "swapped", 0);
        if (sound[i].is_read)
            assert_int_equal(load(2, NULL), OAR_E_DATA);
        swap_names(a, b);
    }
    /* Files of two ranks, of the same size: ranks 1 and 2 hold four each. */
    snprintf(a, sizeof a,
             "%s/step-000000000001/optim/"
             "shard-00002-optim-00001-of-00001.safetensors",
             runs);
    snprintf(b, sizeof b,
             "%s/step-000000000001/optim/"
             "shard-00003-optim-00001-of-00001.safetensors",
             runs);
    swap_names(a, b);
    assert_fails_with(load(1, NULL), OAR_E_DATA, "block 0 of optim/shard-0000");
    assert_last_error_has(" (from byte 0) is damaged: its checksum is ");
    assert_last_error_has(", the index has ");
    swap_names(a, b);
    /* Whole generations under each other's name. */
    snprintf(a, sizeof a, "%s/step-000000000001", runs);
    snprintf(b, sizeof b, "%s/step-000000000002", runs);
    swap_names(a, b);
    assert_fails_with(load(1, NULL), OAR_E_DATA,
                      "step-000000000001 is of step 2 by its index");
    assert_fails_with(load(2, NULL), OAR_E_DATA,
                      "step-000000000002 is of step 1 by its index");
}

/* ---- what is no file ----------------------------------------------------- */

/* Moves something out of the folder and leaves a link to it. */
static void make_link(const char *path, const char *text)
{
    char moved[PATH];

    snprintf(moved, sizeof moved, "%s/moved", folder);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(symlink(moved, path), 0);
    assert_fails_with(load(1, NULL), OAR_E_DATA, text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(moved, path), 0);
    OK(load(1, NULL));
}

static void a_link_is_refused(void **state)
{
    char path[PATH];

    (void)state;
    snprintf(path, sizeof path, "%s/step-000000000001/index.json", runs);
    make_link(path, "step-000000000001/index.json");
    snprintf(path, sizeof path,
             "%s/step-000000000001/model/model-00001-of-00001.safetensors",
             runs);
    make_link(path, "open \"model/model-00001-of-00001.safetensors\": it is a "
                    "symbolic link");
    snprintf(path, sizeof path, "%s/step-000000000001/model", runs);
    make_link(path, "\"model\"");
    snprintf(path, sizeof path, "%s/step-000000000001", runs);
    make_link(path, "step-000000000001");
}

static void what_is_no_file_is_refused(void **state)
{
    const char *path;

    (void)state;
    for (int i = 0; i < files; i++) {
        path = sound[i].path;
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0);
        check_damage(&sound[i], "a pipe", 0);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        check_damage(&sound[i], "a folder", 0);
        assert_int_equal(rmdir(path), 0);
        restore(&sound[i]);
    }
}

/* ---- an index that lies -------------------------------------------------- */

/* Writes step 1's index with a text in it replaced, and its checksum right. */
static void change_index(const struct sound_file *f, const char *from,
                         const char *to)
{
    enum { END = 26 }; /* "end":"..."}\n */
    char text[8192] = "", *at;
    size_t length;
    FILE *file;

    assert_true(f->bytes < sizeof text - 200);
    memcpy(text, f->data, f->bytes - END);
    at = strstr(text, from);
    if (at == NULL)
        fail_msg("the index has no %s", from);
    length = strlen(text);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
    length = length - strlen(from) + strlen(to);
    snprintf(text + length, sizeof text - length, "\"end\":\"%016llx\"}\n",
             (unsigned long long)oari_block_sum(text, length));
    file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

static void an_index_that_lies_is_refused(void **state)
{
    static const struct {
        const char *from, *to;
        oar_status status;
        const char *text;
    } lies[] = {
        { "\"oarsong_checkpoint\":1", "\"oarsong_checkpoint\":2",
          OAR_E_UNSUPPORTED, "is of format 2; this version of Oarsong reads" },
        { "\"block_bytes\":65536", "\"block_bytes\":0", OAR_E_DATA,
          "a block size of 0" },
        { "\"block_bytes\":65536", "\"block_bytes\":4096", OAR_E_DATA,
          "checksums for 2 blocks" },
        { "\"path\":\"model/", "\"path\":\"../model/", OAR_E_DATA,
          "\"../model/model-00001-of-00001.safetensors\"" },
        { "\"path\":\"model/model-00001-of-00001.safetensors\"",
          "\"path\":\"/etc/passwd\"", OAR_E_DATA, "\"/etc/passwd\"" },
        { "\"path\":\"model/", "\"path\":\"..\\u002f", OAR_E_DATA,
          "\"../model-00001-of-00001.safetensors\"" },
        { "\"path\":\"model/model", "\"path\":\"model/..model", OAR_E_DATA,
          "\"model/..model" },
        { "\"path\":\"model/", "\"path\":\"other/", OAR_E_DATA, "\"other\"" },
        { "\"step\":1", "\"step\":2", OAR_E_DATA, "is of step 2 by its index" },
        { "\"shape\":[4,5]", "\"shape\":[5,5]", OAR_E_SHAPE, "weight" },
        { "\"shape\":[4,5]", "\"shape\":[4,4]", OAR_E_DATA, "weight" },
        { "\"shape\":[4,5]", "\"shape\":[4611686018427387904,5]", OAR_E_DATA,
          "weight" },
        { "\"shape\":[13]", "\"shape\":[14]", OAR_E_SHAPE, "moment" },
        { "\"offset\":[5]", "\"offset\":[4]", OAR_E_DATA, "moment" },
        { "\"at\":4096", "\"at\":4095", OAR_E_DATA, "weight" },
        { "\"at\":4096", "\"at\":9223372036854775807", OAR_E_DATA, "weight" },
        { "\"file\":0", "\"file\":9", OAR_E_DATA, "weight" },
        { "\"dtype\":\"F32\"", "\"dtype\":\"F64\"", OAR_E_DATA, "weight" },
        { "\"dtype\":\"F32\"", "\"dtype\":\"F31\"", OAR_E_DATA, "weight" },
    };
    const struct sound_file *index = NULL;

    (void)state;
    for (int i = 0; i < files; i++)
        if (strstr(sound[i].path, "1/index.json") != NULL)
            index = &sound[i];
    assert_non_null(index);
    change_index(index, "\"step\":1", "\"step\":1");
    OK(load(1, NULL));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        leak_check before = leak_check_begin();

        change_index(index, lies[i].from, lies[i].to);
        assert_fails_with(load(1, NULL), lies[i].status, lies[i].text);
        if (lies[i].status != OAR_E_SHAPE)
            assert_true(last_error_has("step-000000000001") ||
                        last_error_has("runs, step 1: "));
        leak_check_end(&before);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_runs, remove_runs)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_byte_that_is_changed_is_noticed),
        TEST(every_truncation_and_a_byte_more_is_noticed),
        TEST(the_newest_that_is_complete_is_loaded),
        TEST(swapped_files_are_noticed),
        TEST(a_link_is_refused),
        TEST(what_is_no_file_is_refused),
        TEST(an_index_that_lies_is_refused),
    };

    return cmocka_run_group_tests_name("checkpoint damage", tests, NULL, NULL);
}
