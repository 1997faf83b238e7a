/* The arithmetic of the codecs and of the outer step, one pass over memory each.
 *
 * From the same bytes these make the same bytes as the NumPy code beside which they are used (allreduce/codec.py,
 * outer/nesterov.py), on every processor: each multiply and each add is rounded by itself. So this is compiled without
 * contraction into fused multiply-adds and without any licence to reorder (hatch_build.py).
 *
 * Vectors are as codec.py has them: blocks of BLOCK elements, the last one may be shorter, with a scale each. The loops
 * over a block are plain, for the compiler to make vector instructions of; a block of floats stays in the first-level
 * cache between them.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

const char source[] = SOURCE; /* a hash of this file, by which compiled.py knows what it loads */

enum { BLOCK = 1024, ZERO = 8 }; /* ZERO: the level 0 as 4 bits write it, see nibbles.py */

#define EACH_BLOCK(start, width, n) \
    for (int64_t start = 0, width; start < (n) && (width = (n) - start < BLOCK ? (n) - start : BLOCK); start += BLOCK)

static inline uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

/* ---- from floats to levels */

/* A block whose largest magnitude is nearly or truly denormal, in double. The scale is rounded up: a denormal one
 * rounded to nearest can be so small that `top` levels do not reach the largest magnitude. */
static float quantise_tiny(const float *x, int64_t width, float absmax, float top, int zero, uint8_t *levels) {
    float scale = (float)((double)absmax / top);
    if ((double)scale * top < absmax) scale = float_of(bits_of(scale) + 1);
    for (int64_t i = 0; i < width; i++) levels[i] = (uint8_t)((int)rint((double)x[i] / scale) + zero);
    return scale;
}

/* Returns 0 where an element is not finite, or larger than `top` times the largest scale. */
static inline int quantise_block(const float *x, int64_t width, int bits, uint8_t *values, float *scale) {
    const float top = bits == 8 ? 127 : 7, largest = bits == 8 ? 127 * 0x1p119f : 7 * 0x1p123f;
    const int zero = bits == 8 ? 0 : ZERO;
    uint8_t unpacked[BLOCK], *levels = bits == 8 ? values : unpacked;
    /* Without its sign, a float's bits are in the order of its magnitude, with infinity and NaN last. */
    uint32_t most = 0;
    for (int64_t i = 0; i < width; i++) {
        uint32_t magnitude = bits_of(x[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    if (most > bits_of(largest)) return 0;
    const float absmax = float_of(most);
    if (absmax > 0 && absmax < 0x1p-119f) { /* top / absmax overflows, or the scale may be denormal */
        *scale = quantise_tiny(x, width, absmax, top, zero, levels);
    } else {
        const float inverse = absmax > 0 ? top / absmax : 0;
        /* Added to a float32 of at most 2^22 it rounds that to a whole number, ties to even, which its low bits are. */
        const float rounds = 0x1.8p23f + zero;
        *scale = absmax / top;
        for (int64_t i = 0; i < width; i++) levels[i] = (uint8_t)bits_of(x[i] * inverse + rounds);
    }
    if (bits == 4) {
        const int64_t half = (width + 1) / 2, pairs = width - half;
        for (int64_t i = 0; i < pairs; i++) values[i] = levels[i] | levels[half + i] << 4;
        if (pairs < half) values[pairs] = levels[pairs] | ZERO << 4;
    }
    return 1;
}

static int64_t first_unfit(const float *x, int bits) {
    const float largest = bits == 8 ? 127 * 0x1p119f : 7 * 0x1p123f;
    int64_t i = 0;
    while (fabsf(x[i]) <= largest) i++;
    return i;
}

/* Quantise x[n]. Returns the index of the first element that cannot be quantised, -1 where all could. */
int64_t quantise(const float *x, int64_t n, int bits, uint8_t *values, float *scales) {
    EACH_BLOCK(start, width, n) {
        float *scale = scales + start / BLOCK;
        int fits = bits == 8 ? quantise_block(x + start, width, 8, values + start, scale)
                             : quantise_block(x + start, width, 4, values + start / 2, scale);
        if (!fits) return start + first_unfit(x + start, bits);
    }
    return -1;
}

/* ---- from levels to floats */

/* The statement for every element of a block: its index is `i`, its level `level`. */
#define EACH_LEVEL(statement) \
    if (bits == 8) { \
        for (int64_t i = 0; i < width; i++) { const float level = (int8_t)values[i]; statement; } \
    } else { \
        const int64_t half = (width + 1) / 2; \
        for (int64_t i = 0; i < half; i++) { const float level = (values[i] & 15) - ZERO; statement; } \
        for (int64_t i = half; i < width; i++) { const float level = (values[i - half] >> 4) - ZERO; statement; } \
    }

static inline void scale_block(const uint8_t *values, int64_t width, int bits, float factor, float *restrict out) {
    EACH_LEVEL(out[i] = level * factor)
}

static inline void add_block(const uint8_t *values, int64_t width, int bits, float factor, float *restrict out) {
    EACH_LEVEL(out[i] += level * factor)
}

/* out[n] = the vector. */
void dequantise(const uint8_t *values, const float *scales, int64_t n, int bits, float *out) {
    EACH_BLOCK(start, width, n) scale_block(values + start * bits / 8, width, bits, scales[start / BLOCK], out + start);
}

/* Quantise the sum of coefficients[k] * vector k, over `count` vectors in order. Returns as `quantise` does. */
int64_t average(const uint8_t *const *values, const float *const *scales, const float *coefficients, int count,
                int64_t n, int bits, uint8_t *out_values, float *out_scales) {
    float sum[BLOCK];
    EACH_BLOCK(start, width, n) {
        const int64_t block = start / BLOCK, byte = start * bits / 8;
        for (int k = 0; k < count; k++)
            (k ? add_block : scale_block)(values[k] + byte, width, bits, scales[k][block] * coefficients[k], sum);
        if (!quantise_block(sum, width, bits, out_values + byte, out_scales + block))
            return start + first_unfit(sum, bits);
    }
    return -1;
}

/* One step of SGD with momentum, see nesterov.py: of the update, into momentum[n] and anchor[n]. */
void outer_step(const uint8_t *values, const float *scales, int64_t n, int bits, float rate, float decay, int nesterov,
                float *momentum, float *anchor) {
    float gradient[BLOCK];
    EACH_BLOCK(start, width, n) {
        float *restrict m = momentum + start, *restrict a = anchor + start;
        scale_block(values + start * bits / 8, width, bits, scales[start / BLOCK], gradient);
        for (int64_t i = 0; i < width; i++) {
            m[i] = m[i] * decay + gradient[i];
            a[i] -= (nesterov ? m[i] * decay + gradient[i] : m[i]) * rate;
        }
    }
}
