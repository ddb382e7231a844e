/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/target_clones.h: hot loops for every vector width of the machine.
 *
 * OARI_TARGET_CLONES before a function has the compiler make it several times
 * on x86-64, where the baseline is narrow, and the loader pick the widest that
 * the processor has. Elsewhere the baseline is good already and it is empty.
 * None of the versions contracts a multiplication and an addition, so all give
 * the same bits. What gains much from doing so is in fused.h. */
#ifndef OARI_TENSOR_CPU_TARGET_CLONES_H
#define OARI_TENSOR_CPU_TARGET_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OARI_TARGET_CLONES \
    __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OARI_TARGET_CLONES
#endif

/* Before a loop whose result may lie in exactly the memory of an input, but
 * not across it: an element depends on its own place only. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* some cannot be vectors */
#define OARI_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define OARI_IVDEP _Pragma("GCC ivdep")
#endif

#endif
