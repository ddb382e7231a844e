/* SPDX-License-Identifier: Apache-2.0 */
/* isa: the instruction set that the processor has and the user allows. */
#include "base/isa.h"

#include <pthread.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static oari_isa processor_isa(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    /* Not every compiler's __builtin_cpu_supports knows F16C. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || (c & bit_F16C) == 0)
        return OARI_ISA_BASELINE;
    if (!__builtin_cpu_supports("avx512f") ||
        !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return OARI_ISA_AVX2;
    return OARI_ISA_AVX512;
#else
    return OARI_ISA_BASELINE;
#endif
}

static const char *const names[OARI_ISA_COUNT] = {
    [OARI_ISA_BASELINE] = "baseline",
    [OARI_ISA_AVX2] = "avx2",
    [OARI_ISA_AVX512] = "avx512",
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static oari_isa here;

static void choose_isa(void)
{
    const char *text = oari_env_text("OARSONG_ISA");
    oari_isa has = processor_isa();
    int most = 0;

    while (text != NULL && most < OARI_ISA_COUNT &&
           strcmp(text, names[most]) != 0)
        most++;
    if (most == OARI_ISA_COUNT)
        oari_log(OAR_LOG_WARN,
                 "OARSONG_ISA is \"%s\", but should be baseline, avx2 or "
                 "avx512",
                 text);
    here = text != NULL && most < (int)has ? (oari_isa)most : has;
}

oari_isa oari_isa_here(void)
{
    pthread_once(&once, choose_isa);
    return here;
}

const char *oari_isa_name(oari_isa isa)
{
    return names[isa];
}
