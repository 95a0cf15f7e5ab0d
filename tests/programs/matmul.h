/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The product that all C programs here compute: operands, NPU program, expected result. */
#ifndef MATMUL_H
#define MATMUL_H

#include <stdint.h>

enum { M = 4, K = 64, N = 64, PROGRAM_WORDS = 112, TRAILER_WORDS = 4 };

/* Targets of register writes. */
enum { PC = 0x0101, CNA = 0x0201, CORE = 0x0801, DPU = 0x1001, MARK = 0x0041, ENABLE = 0x0081 };

static inline uint64_t word(uint64_t target, uint64_t offset, uint64_t value)
{
    return target << 48 | value << 16 | offset;
}

/* Writes the program; returns its length in words. */
static inline unsigned write_program(uint64_t *out, uint32_t features, uint32_t weights, uint32_t result)
{
    unsigned n = 0;
#define FEATURES features
#define WEIGHTS weights
#define RESULT result
#define REG(target, offset, value) out[n++] = word(target, offset, (uint32_t)(value));
#include "int8_4x64x64.inc"
#undef REG
#undef FEATURES
#undef WEIGHTS
#undef RESULT
    out[n++] = word(PC, 0x0010, 0); /* no next program */
    out[n++] = word(PC, 0x0014, 0);
    out[n++] = word(MARK, 0, 0);
    out[n++] = word(ENABLE, 0x0008, 0xD); /* CNA, CORE, DPU */
    return n;
}

static inline int8_t feature(unsigned seed, unsigned m, unsigned k)
{
    return (int8_t)((seed + 31 * m + 17 * k + 3 * m * k) % 251 - 125);
}

static inline int8_t weight(unsigned seed, unsigned k, unsigned n)
{
    return (int8_t)((2 * seed + 13 * k + 7 * n + 5 * k * n) % 241 - 120);
}

/* Rows one after the other. */
static inline void fill_features(int8_t *out, unsigned seed)
{
    for (unsigned m = 0; m < M; m++)
        for (unsigned k = 0; k < K; k++)
            out[m * K + k] = feature(seed, m, k);
}

/* Groups of 32 columns, in them blocks of 32 rows of B, in them the columns one after the other. */
static inline void fill_weights(int8_t *out, unsigned seed)
{
    for (unsigned k = 0; k < K; k++)
        for (unsigned n = 0; n < N; n++)
            out[(n / 32 * (K / 32) + k / 32) * 1024 + n % 32 * 32 + k % 32] = weight(seed, k, n);
}

/* Number of elements that differ from a plain product. */
static inline unsigned wrong_results(const int32_t *result, unsigned seed)
{
    unsigned wrong = 0;
    for (unsigned m = 0; m < M; m++)
        for (unsigned n = 0; n < N; n++) {
            int32_t sum = 0;
            for (unsigned k = 0; k < K; k++)
                sum += feature(seed, m, k) * weight(seed, k, n);
            wrong += result[m * N + n] != sum;
        }
    return wrong;
}

#endif
