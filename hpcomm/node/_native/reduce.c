/* reduce.c: every operator on every element type, once.

   out = in[0] op in[1] op ... in the order of the inputs, from the left: the same bits wherever it is done. Half
   types are widened to float32, reduced there and rounded once, to nearest even, at the end. Rules, as numpy's:

     integers    wrap around; land, lor give 0 or 1
     floats      min, max: what is not a number stays so; of equal values (0.0, -0.0) the later one is taken
     bool        sum, max, lor, bor: or; prod, min, land, band: and; bxor: xor
     complex     sum, avg, prod, land, lor
     avg         the sum, divided by the number of inputs; floats and complex only

   Loops are compiled for several vector widths and chosen when the library is loaded. `ivdep`: out may be an input
   itself, never a part of one that begins elsewhere. No fused multiply-add (build flag): results are the same for
   all widths. */
#include "node.h"

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(NODE_PLAIN)
#define WIDE __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WIDE
#endif
#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < n; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)
#endif

typedef void kernel(void *, const void *, const void *, size_t);
typedef struct { float re, im; } c64;
typedef struct { double re, im; } c128;

#define REDUCE(name, T, value) \
  WIDE static void name(void *o, const void *a, const void *b, size_t n) { \
    T *out = o; \
    const T *left = a, *right = b; \
    EACH { \
      const T x = left[i], y = right[i]; \
      out[i] = value; \
    } \
  }

/* The operators whose result has the same bits for signed and unsigned. */
#define WRAPPING(T) \
  REDUCE(sum_##T, T, 1u * x + y) REDUCE(prod_##T, T, 1u * x * y) REDUCE(band_##T, T, x & y) REDUCE(bor_##T, T, x | y) \
  REDUCE(bxor_##T, T, x ^ y) REDUCE(land_##T, T, (x != 0) & (y != 0)) REDUCE(lor_##T, T, (x | y) != 0)
WRAPPING(uint8_t) WRAPPING(uint16_t) WRAPPING(uint32_t) WRAPPING(uint64_t)

#define ORDERED(T) REDUCE(min_##T, T, x < y ? x : y) REDUCE(max_##T, T, x > y ? x : y)
ORDERED(int8_t) ORDERED(int16_t) ORDERED(int32_t) ORDERED(int64_t)
ORDERED(uint8_t) ORDERED(uint16_t) ORDERED(uint32_t) ORDERED(uint64_t)

#define FLOATING(T) \
  REDUCE(sum_##T, T, x + y) REDUCE(prod_##T, T, x * y) REDUCE(min_##T, T, ((x < y) | (x != x)) ? x : y) \
  REDUCE(max_##T, T, ((x > y) | (x != x)) ? x : y) REDUCE(land_##T, T, (x != 0) & (y != 0)) \
  REDUCE(lor_##T, T, (x != 0) | (y != 0))
FLOATING(float) FLOATING(double)

REDUCE(and_bool, uint8_t, (x != 0) & (y != 0))
REDUCE(or_bool, uint8_t, (x != 0) | (y != 0))
REDUCE(xor_bool, uint8_t, (x != 0) ^ (y != 0))

/* The real part of a product as a sum: of a difference GCC 12 makes a fused multiply-add, whatever the flag says. */
#define COMPLEX(T, R) \
  static void sum_##T(void *o, const void *a, const void *b, size_t n) { sum_##R(o, a, b, 2 * n); } \
  REDUCE(prod_##T, T, ((T){x.re * y.re + -x.im * y.im, x.re * y.im + x.im * y.re})) \
  REDUCE(land_##T, T, ((T){((x.re != 0) | (x.im != 0)) & ((y.re != 0) | (y.im != 0)), 0})) \
  REDUCE(lor_##T, T, ((T){(x.re != 0) | (x.im != 0) | (y.re != 0) | (y.im != 0), 0}))
COMPLEX(c64, float) COMPLEX(c128, double)

/*                  sum        avg        prod        min        max        band ..                           */
#define INTEGER(S, U) \
  {sum_##U, NULL, prod_##U, min_##S, max_##S, band_##U, bor_##U, bxor_##U, land_##U, lor_##U}
#define REAL(T) {sum_##T, sum_##T, prod_##T, min_##T, max_##T, NULL, NULL, NULL, land_##T, lor_##T}
#define PAIR(T) {sum_##T, sum_##T, prod_##T, NULL, NULL, NULL, NULL, NULL, land_##T, lor_##T}
static kernel *const kernels[DTYPES][OPS] = {
    [BOOL] = {or_bool, NULL, and_bool, and_bool, or_bool, and_bool, or_bool, xor_bool, and_bool, or_bool},
    [I8] = INTEGER(int8_t, uint8_t),
    [I16] = INTEGER(int16_t, uint16_t),
    [I32] = INTEGER(int32_t, uint32_t),
    [I64] = INTEGER(int64_t, uint64_t),
    [U8] = INTEGER(uint8_t, uint8_t),
    [U16] = INTEGER(uint16_t, uint16_t),
    [U32] = INTEGER(uint32_t, uint32_t),
    [U64] = INTEGER(uint64_t, uint64_t),
    [F16] = REAL(float), /* on what they are widened to */
    [BF16] = REAL(float),
    [F32] = REAL(float),
    [F64] = REAL(double),
    [C64] = PAIR(c64),
    [C128] = PAIR(c128),
};

int reduce_knows(int dtype, int op) { return dtype > 0 && dtype < DTYPES && op >= 0 && op < OPS && kernels[dtype][op]; }

size_t dtype_bytes(int dtype) {
  static const unsigned char bytes[DTYPES] = {[BOOL] = 1, [I8] = 1, [I16] = 2, [I32] = 4, [I64] = 8, [U8] = 1,
      [U16] = 2, [U32] = 4, [U64] = 8, [F16] = 2, [BF16] = 2, [F32] = 4, [F64] = 8, [LONG_DOUBLE] = 16,
      [C64] = 8, [C128] = 16};
  return dtype > 0 && dtype < DTYPES ? bytes[dtype] : 0;
}

/* The value that an operator does not notice; the low bytes of a word come first. */
static uint64_t neutral(int dtype, int op) {
  static const uint64_t ones[DTYPES] = {[F16] = 0x3c00, [BF16] = 0x3f80, [F32] = 0x3f800000, [C64] = 0x3f800000,
      [F64] = 0x3ff0000000000000, [C128] = 0x3ff0000000000000};
  static const uint64_t infinity[DTYPES] = {[F16] = 0x7c00, [BF16] = 0x7f80, [F32] = 0x7f800000,
      [F64] = 0x7ff0000000000000};
  const uint64_t one = ones[dtype] ? ones[dtype] : 1, sign = 1ull << (8 * dtype_bytes(dtype) - 1) % 64;
  const int is_least = op == OP_MAX, is_whole = dtype <= U64, is_signed = dtype <= I64;
  if (op == OP_PROD || op == OP_LAND || (dtype == BOOL && (op == OP_MIN || op == OP_BAND))) return one;
  if (op == OP_BAND) return UINT64_MAX;
  if (dtype == BOOL || (op != OP_MIN && op != OP_MAX)) return 0;
  if (is_whole) return is_signed ? (is_least ? sign : sign - 1) : is_least ? 0 : UINT64_MAX;
  return infinity[dtype] | (is_least ? sign : 0);
}

void reduce_neutral(int dtype, int op, void *out, size_t count) {
  const uint64_t value[2] = {neutral(dtype, op), 0};
  const size_t size = dtype_bytes(dtype), nbytes = count * size;
  char *to = out;
  if (!value[0]) {
    memset(to, 0, nbytes); /* the system's own is quicker for long arrays */
    return;
  }
  for (size_t done = 0; done < nbytes;) { /* each time as much as there is already, up to what caches hold */
    size_t part = done == 0 ? size : done < 4096 ? done : 4096;
    if (part > nbytes - done) part = nbytes - done;
    memcpy(to + done, done ? to : (const char *)value, part);
    done += part;
  }
}

/* -- half types ---------------------------------------------------------------------------------------------- */
static inline float as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline uint32_t as_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

WIDE static void widen_bf16(float *out, const uint16_t *in, size_t n) {
  EACH out[i] = as_float((uint32_t)in[i] << 16);
}
static inline uint16_t to_bf16(float x) {
  uint32_t u = as_bits(x), rounded = u + 0x7fff + (u >> 16 & 1);
  return (uint16_t)((x != x ? u | 0x400000 : rounded) >> 16);
}
WIDE static void narrow_bf16(uint16_t *out, const float *in, size_t n) { EACH out[i] = to_bf16(in[i]); }
/* Sums of two halves from memory to memory; how many were done: all, or what fills registers. */
WIDE static size_t sum_bf16(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t n) {
  EACH out[i] = to_bf16(as_float((uint32_t)a[i] << 16) + as_float((uint32_t)b[i] << 16));
  return n;
}

#if defined(__aarch64__)
static void widen_f16(float *out, const uint16_t *in, size_t n) {
  const __fp16 *half = (const void *)in;
  EACH out[i] = half[i];
}
static void narrow_f16(uint16_t *out, const float *in, size_t n) {
  __fp16 *half = (void *)out;
  EACH half[i] = (__fp16)in[i];
}
static size_t sum_f16(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t n) {
  __fp16 *half = (void *)out;
  const __fp16 *left = (const void *)a, *right = (const void *)b;
  EACH half[i] = (__fp16)((float)left[i] + (float)right[i]);
  return n;
}
#else
/* By whole numbers, so that compilers vectorise it: denormal halves are multiples of 2^-24. */
WIDE static void plainly_widen_f16(float *out, const uint16_t *in, size_t n) {
  EACH {
    uint32_t h = in[i], size = h & 0x7fff, sign = (h & 0x8000) << 16;
    uint32_t normal = (size << 13) + ((127 - 15) << 23), special = size << 13 | 0x7f800000;
    uint32_t small = as_bits((float)(int32_t)size * 0x1p-24f);
    uint32_t quiet = size > 0x7c00 ? special | 0x400000 : special;
    out[i] = as_float(sign | (size < 0x400 ? small : size < 0x7c00 ? normal : quiet));
  }
}
WIDE static void plainly_narrow_f16(uint16_t *out, const float *in, size_t n) {
  EACH {
    uint32_t u = as_bits(in[i]), size = u & 0x7fffffff, sign = u >> 16 & 0x8000;
    uint32_t normal = (size - ((127 - 15) << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t small = as_bits(as_float(size) + 0.5f) - as_bits(0.5f); /* the addition rounds */
    uint32_t special = size > 0x7f800000 ? 0x7e00 | (size >> 13 & 0x3ff) : 0x7c00;
    out[i] = (uint16_t)(sign | (size < 0x38800000 ? small : size < 0x47800000 ? normal : special));
  }
}
#if defined(__x86_64__) && !defined(NODE_PLAIN)
#include <immintrin.h>
#define HAS_F16C __builtin_cpu_supports("avx2") > 0 /* whatever has AVX2 has F16C */
#define F16C __attribute__((target("avx,f16c")))
F16C static inline __m256 load_f16(const uint16_t *in) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)in)); }
F16C static inline void store_f16(uint16_t *out, __m256 x) {
  _mm_storeu_si128((void *)out, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
F16C static size_t sum_f16(uint16_t *out, const uint16_t *a, const uint16_t *b, size_t n) {
  size_t i = 0;
  for (; HAS_F16C && i + 8 <= n; i += 8) store_f16(out + i, _mm256_add_ps(load_f16(a + i), load_f16(b + i)));
  return i;
}
F16C static void widen_f16(float *out, const uint16_t *in, size_t n) {
  size_t i = 0;
  for (; HAS_F16C && i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, load_f16(in + i));
  plainly_widen_f16(out + i, in + i, n - i);
}
F16C static void narrow_f16(uint16_t *out, const float *in, size_t n) {
  size_t i = 0;
  for (; HAS_F16C && i + 8 <= n; i += 8) store_f16(out + i, _mm256_loadu_ps(in + i));
  plainly_narrow_f16(out + i, in + i, n - i);
}
#else
#define widen_f16 plainly_widen_f16
#define narrow_f16 plainly_narrow_f16
#define sum_f16(...) 0
#endif
#endif

static void widen(int dtype, float *out, const void *in, size_t n) {
  if (dtype == F16)
    widen_f16(out, in, n);
  else
    widen_bf16(out, in, n);
}

static void narrow(int dtype, void *out, const float *in, size_t n) {
  if (dtype == F16)
    narrow_f16(out, in, n);
  else
    narrow_bf16(out, in, n);
}

/* -- reducing ------------------------------------------------------------------------------------------------- */
enum { TILE = 2048 }; /* elements reduced over all inputs at a time: stays in the first cache */

WIDE static void divide_float(float *out, float by, size_t n) { EACH out[i] /= by; }
WIDE static void divide_double(double *out, double by, size_t n) { EACH out[i] /= by; }
static void divide(int dtype, void *out, int by, size_t n) {
  switch (dtype) {
    case F64: divide_double(out, by, n); break;
    case C128: divide_double(out, by, 2 * n); break;
    case C64: divide_float(out, (float)by, 2 * n); break;
    default: divide_float(out, (float)by, n);
  }
}

static void fold_halves(int dtype, int op, int divide_by, char *out, const void *const *in, int inputs, size_t count) {
  kernel *f = kernels[dtype][op];
  float sum[TILE], next[TILE];
  size_t at = 0;
  if (inputs == 2 && op == OP_SUM)
    at = dtype == F16 ? sum_f16((uint16_t *)out, in[0], in[1], count) : sum_bf16((uint16_t *)out, in[0], in[1], count);
  for (; at < count; at += TILE) {
    size_t n = count - at < TILE ? count - at : TILE;
    widen(dtype, sum, (const uint16_t *)in[0] + at, n);
    if (inputs == 1 && op >= OP_LAND) f(sum, sum, sum, n);
    for (int i = 1; i < inputs; i++) {
      widen(dtype, next, (const uint16_t *)in[i] + at, n);
      f(sum, sum, next, n);
    }
    if (op == OP_AVG) divide_float(sum, (float)divide_by, n);
    narrow(dtype, (uint16_t *)out + at, sum, n);
  }
}

/* out = the reduce of inputs >= 1 arrays of count elements; out may be one of them. */
void reduce_arrays(int dtype, int op, int divide_by, void *o, const void *const *in, int inputs, size_t count) {
  kernel *f = kernels[dtype][op];
  char *out = o;
  if (dtype == F16 || dtype == BF16) {
    fold_halves(dtype, op, divide_by, out, in, inputs, count);
    return;
  }
  if (inputs == 2 && op != OP_AVG) {
    f(out, in[0], in[1], count);
    return;
  }
  size_t size = dtype_bytes(dtype);
  _Alignas(64) char tile[TILE * 16];
  for (size_t at = 0; at < count; at += TILE) {
    size_t n = count - at < TILE ? count - at : TILE;
    const char *sum = (const char *)in[0] + at * size;
    if (inputs == 1) {
      if (op >= OP_LAND)
        f(out + at * size, sum, sum, n);
      else
        memmove(out + at * size, sum, n * size);
    }
    for (int i = 1; i < inputs; i++) { /* the result is written last: out may be any input */
      char *to = i + 1 < inputs ? tile : out + at * size;
      f(to, sum, (const char *)in[i] + at * size, n);
      sum = to;
    }
    if (op == OP_AVG) divide(dtype, out + at * size, divide_by, n);
  }
}

/* A link of a chain: made = before op x; out is `made` in a scan, and `before` in an exscan. Halves go on as float32, and
   are rounded in out alone. before NULL: there is nobody before; made NULL: nor behind. out may be x. */
void reduce_link(const struct call *c, size_t at, char *made, const char *before, size_t count) {
  const int is_half = c->dtype == F16 || c->dtype == BF16, is_scan = c->verb == BY_SCAN;
  const size_t size = dtype_bytes(c->dtype), wide = is_half ? sizeof(float) : size;
  kernel *f = kernels[c->dtype][c->op];
  float widened[TILE];
  _Alignas(64) char tile[TILE * 16], own[TILE * 16], made_here[TILE * 16]; /* the last two: of what does not lie in order */
  for (size_t i = 0; i < count; i += TILE) {
    const size_t n = count - i < TILE ? count - i : TILE;
    if (c->x_lies) call_read(c, own, at + i * size, n * size);
    const char *x = c->x_lies ? own : c->x + at + i * size, *earlier = before ? before + i * wide : NULL;
    char *out = c->out_lies ? made_here : c->out + at + i * size, *to = is_scan && !is_half ? out : tile;
    if (is_half) {
      widen(c->dtype, widened, x, n);
      x = (const char *)widened;
    }
    const char *sum = earlier || c->op >= OP_LAND ? to : x;
    if (earlier && (made || is_scan)) f(to, earlier, x, n);
    if (!earlier && c->op >= OP_LAND) f(to, x, x, n);
    if (made) memcpy(made + i * wide, sum, n * wide);
    const char *result = is_scan ? sum : earlier;
    if (!result)
      reduce_neutral(c->dtype, c->op, out, n);
    else if (is_half)
      narrow(c->dtype, out, (const float *)result, n);
    else if (result != out)
      memcpy(out, result, n * size);
    if (c->out_lies) call_write(c, at + i * size, out, n * size);
  }
}
