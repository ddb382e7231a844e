/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h: the numbers that bench and conform check results with, made
 * without the library's own conversions. */
#ifndef OARSONG_NUMBERS_H
#define OARSONG_NUMBERS_H

#include <stdint.h>

#include <oarsong/span.h>

/* A hash of two numbers. */
uint64_t value_mix(uint64_t a, uint64_t b);

double float_read(oar_dtype dtype, const void *element);
double float_rounded(oar_dtype dtype, double value);
void float_write(oar_dtype dtype, double value, void *element); /* rounds */
int float_digits(oar_dtype dtype); /* of the significand, after the point */
double float_ulp(oar_dtype dtype, double at);

#endif
