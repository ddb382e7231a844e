/* SPDX-License-Identifier: Apache-2.0 */
/* base/isa.h: how far the instructions go among which kernels are chosen at run
 * time: all that the processor has, or up to what OARSONG_ISA names, one of
 * "baseline", "avx2" and "avx512". On other machines than x86-64 there is only
 * the baseline here. */
#ifndef OARI_BASE_ISA_H
#define OARI_BASE_ISA_H

/* Each holds all before it. */
typedef enum oari_isa {
    OARI_ISA_BASELINE, /* what the compiler may assume of the machine */
    OARI_ISA_AVX2,     /* AVX2, FMA and F16C */
    OARI_ISA_AVX512,   /* AVX-512 F, BW, DQ and VL */
    OARI_ISA_COUNT
} oari_isa;

/* Asks once; any thread. A wrong OARSONG_ISA is a warning in the log. */
oari_isa oari_isa_here(void);

/* As OARSONG_ISA spells it. */
const char *oari_isa_name(oari_isa isa);

#endif
