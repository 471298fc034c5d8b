// <metal_math>, <metal_common>, <metal_integer>: scalar overloads as Metal has them, vectors by element.
//
// half and bfloat compute in float and round once, as MLX's bf16_math.h does on the device.
#pragma once

#include "simulator/runtime.h"
#include "simulator/traits.h"

namespace metal {

// ---- functions of one, two and three floats -------------------------------------------------------------

#define SIMULATOR_MATH1(name, T, expression) \
  METAL_FUNC T name(T value) {               \
    const float x = float(value);            \
    return T(expression);                    \
  }
#define SIMULATOR_MATH2(name, T, expression) \
  METAL_FUNC T name(T first, T second) {     \
    const float x = float(first);            \
    const float y = float(second);           \
    return T(expression);                    \
  }
#define SIMULATOR_FLOAT_FUNCTIONS(T)                                  \
  SIMULATOR_MATH1(exp, T, simulator_exp(x))                           \
  SIMULATOR_MATH1(exp2, T, simulator_exp2(x))                         \
  SIMULATOR_MATH1(log, T, simulator_log(x))                           \
  SIMULATOR_MATH1(log2, T, simulator_log2(x))                         \
  SIMULATOR_MATH1(log10, T, simulator_log10(x))                       \
  SIMULATOR_MATH1(sin, T, simulator_sin(x))                           \
  SIMULATOR_MATH1(cos, T, simulator_cos(x))                           \
  SIMULATOR_MATH1(tan, T, simulator_tan(x))                           \
  SIMULATOR_MATH1(tanh, T, simulator_tanh(x))                         \
  SIMULATOR_MATH1(rsqrt, T, simulator_rsqrt(x))                       \
  SIMULATOR_MATH2(atan2, T, simulator_atan2(x, y))                    \
  SIMULATOR_MATH2(pow, T, simulator_pow(x, y))                        \
  SIMULATOR_MATH2(powr, T, simulator_pow(x, y))                       \
  SIMULATOR_MATH2(fmod, T, simulator_fmod(x, y))                      \
  SIMULATOR_MATH1(sqrt, T, __builtin_sqrtf(x))                        \
  SIMULATOR_MATH1(abs, T, __builtin_fabsf(x))                         \
  SIMULATOR_MATH1(fabs, T, __builtin_fabsf(x))                        \
  SIMULATOR_MATH1(ceil, T, __builtin_ceilf(x))                        \
  SIMULATOR_MATH1(floor, T, __builtin_floorf(x))                      \
  SIMULATOR_MATH1(trunc, T, __builtin_truncf(x))                      \
  SIMULATOR_MATH1(rint, T, __builtin_rintf(x))                        \
  SIMULATOR_MATH1(round, T, __builtin_roundf(x))                      \
  SIMULATOR_MATH1(fract, T, x - __builtin_floorf(x))                  \
  SIMULATOR_MATH1(saturate, T, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f)) \
  SIMULATOR_MATH1(sign, T, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x)    \
  SIMULATOR_MATH2(fmax, T, __builtin_fmaxf(x, y))                     \
  SIMULATOR_MATH2(fmin, T, __builtin_fminf(x, y))                     \
  SIMULATOR_MATH2(max, T, __builtin_fmaxf(x, y))                      \
  SIMULATOR_MATH2(min, T, __builtin_fminf(x, y))                      \
  SIMULATOR_MATH2(copysign, T, __builtin_copysignf(x, y))             \
  METAL_FUNC bool isnan(T x) { return __builtin_isnan(float(x)); }    \
  METAL_FUNC bool isinf(T x) { return __builtin_isinf(float(x)); }    \
  METAL_FUNC bool isfinite(T x) { return __builtin_isfinite(float(x)); } \
  METAL_FUNC bool signbit(T x) { return __builtin_signbit(float(x)); } \
  METAL_FUNC T fma(T a, T b, T c) { return T(__builtin_fmaf(float(a), float(b), float(c))); } \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  METAL_FUNC T mix(T x, T y, T a) { return x + (y - x) * a; }
SIMULATOR_FLOAT_FUNCTIONS(float)
SIMULATOR_FLOAT_FUNCTIONS(half)
SIMULATOR_FLOAT_FUNCTIONS(bfloat)
#undef SIMULATOR_FLOAT_FUNCTIONS
#undef SIMULATOR_MATH1
#undef SIMULATOR_MATH2

METAL_FUNC float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }

// ---- integers -------------------------------------------------------------------------------------------

#define SIMULATOR_INTEGER_FUNCTIONS(T)                                             \
  METAL_FUNC T min(T x, T y) { return y < x ? y : x; }                             \
  METAL_FUNC T max(T x, T y) { return x < y ? y : x; }                             \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }        \
  METAL_FUNC T abs(T x) { return x < T(0) ? T(-x) : x; }                           \
  METAL_FUNC T popcount(T x) {                                                     \
    return T(__builtin_popcountll((unsigned long long)x & (~0ull >> (64 - 8 * sizeof(T))))); \
  }                                                                                \
  METAL_FUNC T rotate(T x, T by) {                                                 \
    constexpr int bits = 8 * sizeof(T);                                            \
    const ulong u = ulong(x) & (~0ul >> (64 - bits));                              \
    const int n = int(by) & (bits - 1);                                            \
    return n == 0 ? x : T((u << n) | (u >> (bits - n)));                           \
  }                                                                                \
  METAL_FUNC T clz(T x) {                                                          \
    const ulong u = ulong(x) & (~0ul >> (64 - 8 * sizeof(T)));                     \
    return u == 0 ? T(8 * sizeof(T)) : T(__builtin_clzll(u) - (64 - 8 * int(sizeof(T)))); \
  }                                                                                \
  METAL_FUNC T ctz(T x) { return x == T(0) ? T(8 * sizeof(T)) : T(__builtin_ctzll((unsigned long long)x)); }
SIMULATOR_INTEGER_FUNCTIONS(char)
SIMULATOR_INTEGER_FUNCTIONS(int8_t)
SIMULATOR_INTEGER_FUNCTIONS(uchar)
SIMULATOR_INTEGER_FUNCTIONS(short)
SIMULATOR_INTEGER_FUNCTIONS(ushort)
SIMULATOR_INTEGER_FUNCTIONS(int)
SIMULATOR_INTEGER_FUNCTIONS(uint)
SIMULATOR_INTEGER_FUNCTIONS(long)
SIMULATOR_INTEGER_FUNCTIONS(ulong)
#undef SIMULATOR_INTEGER_FUNCTIONS

METAL_FUNC int mulhi(int x, int y) { return int((long(x) * long(y)) >> 32); }
METAL_FUNC uint mulhi(uint x, uint y) { return uint((ulong(x) * ulong(y)) >> 32); }

template <typename T>
METAL_FUNC T select(T if_false, T if_true, bool condition) {
  return condition ? if_true : if_false;
}

// ---- vectors, element by element --------------------------------------------------------------------------

#define SIMULATOR_VECTOR1(name)                                       \
  template <typename T, int N>                                        \
  METAL_FUNC vec<T, N> name(vec<T, N> x) {                            \
    vec<T, N> result;                                                 \
    for (int i = 0; i < N; i++) result[i] = name(T(x[i]));            \
    return result;                                                    \
  }
#define SIMULATOR_VECTOR2(name)                                       \
  template <typename T, int N>                                        \
  METAL_FUNC vec<T, N> name(vec<T, N> x, vec<T, N> y) {               \
    vec<T, N> result;                                                 \
    for (int i = 0; i < N; i++) result[i] = name(T(x[i]), T(y[i]));   \
    return result;                                                    \
  }
SIMULATOR_VECTOR1(exp)
SIMULATOR_VECTOR1(exp2)
SIMULATOR_VECTOR1(log)
SIMULATOR_VECTOR1(sqrt)
SIMULATOR_VECTOR1(rsqrt)
SIMULATOR_VECTOR1(abs)
SIMULATOR_VECTOR1(fabs)
SIMULATOR_VECTOR1(floor)
SIMULATOR_VECTOR1(ceil)
SIMULATOR_VECTOR1(round)
SIMULATOR_VECTOR2(min)
SIMULATOR_VECTOR2(max)
SIMULATOR_VECTOR2(fmin)
SIMULATOR_VECTOR2(fmax)
#undef SIMULATOR_VECTOR1
#undef SIMULATOR_VECTOR2

template <typename T, int N>
METAL_FUNC vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> result;
  for (int i = 0; i < N; i++) result[i] = fma(T(a[i]), T(b[i]), T(c[i]));
  return result;
}
template <typename T, int N>
METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum += a[i] * b[i];
  return sum;
}

#define SIMULATOR_FAST_MATH \
  using metal::abs;         \
  using metal::atan2;       \
  using metal::ceil;        \
  using metal::clamp;       \
  using metal::cos;         \
  using metal::exp;         \
  using metal::exp2;        \
  using metal::fabs;        \
  using metal::floor;       \
  using metal::fma;         \
  using metal::fmax;        \
  using metal::fmin;        \
  using metal::log;         \
  using metal::log2;        \
  using metal::max;         \
  using metal::min;         \
  using metal::pow;         \
  using metal::rint;        \
  using metal::round;       \
  using metal::rsqrt;       \
  using metal::sin;         \
  using metal::sqrt;        \
  using metal::tan;         \
  using metal::tanh;        \
  using metal::trunc;
namespace fast {
SIMULATOR_FAST_MATH
METAL_FUNC float divide(float x, float y) { return x / y; }
}  // namespace fast
namespace precise {
SIMULATOR_FAST_MATH
METAL_FUNC float divide(float x, float y) { return x / y; }
}  // namespace precise
#undef SIMULATOR_FAST_MATH

}  // namespace metal
