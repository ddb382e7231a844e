/* SPDX-License-Identifier: Apache-2.0 */
/* isa: what the processor has, and what the user allows. */
#include "base/isa.h"

#include <pthread.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Not every compiler's __builtin_cpu_supports knows F16C. */
static int has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static oari_isa of_processor(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !has_f16c())
        return OARI_ISA_BASELINE;
    if (!__builtin_cpu_supports("avx512f") ||
        !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return OARI_ISA_AVX2;
    return OARI_ISA_AVX512;
}
#else
static oari_isa of_processor(void)
{
    return OARI_ISA_BASELINE;
}
#endif

static const char *const names[OARI_ISA_COUNT] = {
    [OARI_ISA_BASELINE] = "baseline",
    [OARI_ISA_AVX2] = "avx2",
    [OARI_ISA_AVX512] = "avx512",
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static oari_isa here;

/* The last one that the user wants. */
static oari_isa wanted(void)
{
    const char *text = oari_env_text("OARSONG_ISA");

    for (int i = 0; text != NULL && i < OARI_ISA_COUNT; i++)
        if (strcmp(text, names[i]) == 0)
            return (oari_isa)i;
    if (text != NULL)
        oari_log(OAR_LOG_WARN,
                 "OARSONG_ISA is \"%s\", but should be baseline, avx2 or "
                 "avx512",
                 text);
    return OARI_ISA_COUNT - 1;
}

static void settle(void)
{
    oari_isa has = of_processor(), most = wanted();

    here = most < has ? most : has;
}

oari_isa oari_isa_here(void)
{
    pthread_once(&once, settle);
    return here;
}

const char *oari_isa_name(oari_isa isa)
{
    return names[isa];
}
