/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of ops.h has one of DTensors: a new one without a rule fails
 * here. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Reads a file of the source tree; the caller frees it. */
static char *read_source(const char *path)
{
    const char *folder = getenv("OARSONG_SOURCE_DIR");
    char name[1000], *text;
    FILE *file;
    long bytes;

    snprintf(name, sizeof name, "%s/%s", folder != NULL ? folder : ".", path);
    file = fopen(name, "r");
    if (file == NULL)
        fail_msg("%s cannot be read", name);
    fseek(file, 0, SEEK_END);
    bytes = ftell(file);
    rewind(file);
    text = calloc(1, (size_t)bytes + 1);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    fclose(file);
    return text;
}

/* What parts of a whole need is what rules call, and has no rule itself. */
static const char *const of_parts[] = { "batch_norm_merged",
                                        "cross_entropy_merged",
                                        "dropout_part" };

static int missing(const char *abi, const char *name, size_t length)
{
    char wanted[120], plain[80];

    snprintf(plain, sizeof plain, "%.*s", (int)length, name);
    for (size_t i = 0; i < sizeof of_parts / sizeof *of_parts; i++)
        if (strcmp(plain, of_parts[i]) == 0)
            return 0;
    /* "tensor_" tells tensors from collectives of the same name. */
    snprintf(wanted, sizeof wanted, "\"oar_dtensor_%s\"",
             plain + (strncmp(plain, "tensor_", 7) == 0 ? 7 : 0));
    if (strstr(abi, wanted) != NULL)
        return 0;
    print_error("oar_%s has no rule: %s is not there\n", plain, wanted);
    return 1;
}

static size_t word(const char *at)
{
    size_t length = 0;

    while (isalnum((unsigned char)at[length]) || at[length] == '_')
        length++;
    return length;
}

static void every_operation_has_a_rule(void **state)
{
    char *ops = read_source("include/oarsong/ops.h");
    char *abi = read_source("include/oarsong/abi.json");
    int found = 0, failures = 0;

    for (const char *at = ops; (at = strstr(at, "oar_")) != NULL; at += 4) {
        size_t length = word(at + 4);

        if (length == 0 || strncmp(at + 4 + length, "(oar_tape", 9) != 0)
            continue;
        found++;
        failures += missing(abi, at + 4, length);
    }
    for (const char *at = ops; (at = strstr(at, "X(")) != NULL; at += 2) {
        if (at[-1] == 'T' || !islower((unsigned char)at[2]))
            continue; /* the list's own name, or a macro */
        found++;
        failures += missing(abi, at + 2, word(at + 2));
    }
    free(ops);
    free(abi);
    assert_true(found > 90);
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_a_rule),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
