/* SPDX-License-Identifier: Apache-2.0 */
/* unit/gpt2_cases.h: GPT-2 weights in the files of others, and the logits that
 * PyTorch computes with them (make_gpt2.py), on any device. For tests, one file
 * each. */
#ifndef OARI_TESTS_GPT2_CASES_H
#define OARI_TESTS_GPT2_CASES_H

#include <oarsong/device.h>
#include <oarsong/interchange.h>
#include <oarsong/module.h>
#include <oarsong/ops.h>

#include "golden/golden.h"
#include "support/last_error.h"

enum { LONG_PATH = 1024 };

/* Where a file that make_gpt2.py wrote is. */
static const char *golden_path(const char *name)
{
    static char path[LONG_PATH];
    const char *root = getenv("OARSONG_SOURCE_DIR");

    snprintf(path, sizeof path, "%s/tests/golden/gpt2%s%s",
             root != NULL ? root : ".", name[0] != 0 ? "/" : "", name);
    return path;
}

static oar_module *read_hf(const char *path, oar_dtype dtype)
{
    oar_module *gpt;

    OK(oar_gpt_from_hf(path, dtype, &gpt, NULL));
    return gpt;
}

static oar_module *read_llmc(const char *path, oar_dtype dtype, int trim)
{
    oar_module *gpt;

    OK(oar_gpt_from_llmc(path, dtype, trim, &gpt, NULL));
    return gpt;
}

/* Takes the model. */
static void check_logits(oar_device device, oar_module *gpt, const char *name)
{
    oar_tensor *here = golden_tensor(golden_get("tokens", "in0"), OAR_I64);
    oar_tensor *tokens = oar_to(NULL, here, device), *logits, *real;
    const golden *want = golden_get(name, "out");

    OK(oar_module_to(gpt, device));
    logits = oar_forward(NULL, gpt, tokens);
    real = oar_narrow(NULL, logits, 1, 0, want->shape.dim[1]);
    golden_compare(want, real);
    oar_tensor_release(real);
    oar_tensor_release(logits);
    oar_tensor_release(tokens);
    oar_tensor_release(here);
    oar_module_release(gpt);
}

/* Of every file, computed on a device. */
static void check_all_logits(oar_device device)
{
    check_logits(device, read_hf(golden_path(""), OAR_F32), "f32");
    check_logits(device, read_hf(golden_path("model.safetensors"), OAR_F32),
                 "f32");
    check_logits(device, read_hf(golden_path(""), OAR_F64), "f32");
    check_logits(device, read_llmc(golden_path("f32.bin"), OAR_F32, 0), "f32");
    check_logits(device, read_llmc(golden_path("f32.bin"), OAR_F64, 1), "f32");
    check_logits(device, read_llmc(golden_path("bf16.bin"), OAR_F32, 0),
                 "bf16");
    check_logits(device, read_llmc(golden_path("bf16.bin"), OAR_F64, 1),
                 "bf16");
}

#endif
