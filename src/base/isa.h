/* SPDX-License-Identifier: Apache-2.0 */
/* base/isa.h: the instruction set for which kernels are chosen at run time: the
 * highest that the processor has, or the lower one that OARSONG_ISA names
 * ("baseline", "avx2" or "avx512"). Machines other than x86-64 have only the
 * baseline. */
#ifndef OARI_BASE_ISA_H
#define OARI_BASE_ISA_H

/* Each includes all before it. */
typedef enum oari_isa {
    OARI_ISA_BASELINE, /* the one that the compiler assumes */
    OARI_ISA_AVX2,     /* AVX2, FMA and F16C */
    OARI_ISA_AVX512,   /* AVX-512 F, BW, DQ and VL */
    OARI_ISA_COUNT
} oari_isa;

/* Returns the instruction set in use; any thread may call this. The first call
 * decides, and logs a warning if OARSONG_ISA is wrong. */
oari_isa oari_isa_here(void);

/* Returns the name that OARSONG_ISA has for it. */
const char *oari_isa_name(oari_isa isa);

#endif
