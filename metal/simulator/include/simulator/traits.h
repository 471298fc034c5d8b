// <metal_type_traits>, <metal_limits>: the part of them that kernels use, from compiler builtins.
#pragma once

#include "simulator/language.h"

namespace metal {

template <typename T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  constexpr operator T() const { return v; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

#define SIMULATOR_TRAIT(name, T, ...)                 \
  template <typename T>                               \
  struct name : bool_constant<(__VA_ARGS__)> {};      \
  template <typename T>                               \
  constexpr bool name##_v = name<T>::value;
#define SIMULATOR_TRAIT2(name, ...)                   \
  template <typename A, typename B>                   \
  struct name : bool_constant<(__VA_ARGS__)> {};      \
  template <typename A, typename B>                   \
  constexpr bool name##_v = name<A, B>::value;

template <typename T>
using remove_cv_t = __remove_cv(T);
template <typename T>
struct remove_cv {
  using type = __remove_cv(T);
};
template <typename T>
using remove_reference_t = __remove_reference_t(T);
template <typename T>
using remove_addrspace_t = __remove_cv(T);
template <typename T>
using decay_t = __decay(T);

SIMULATOR_TRAIT2(is_same, __is_same(A, B))
SIMULATOR_TRAIT2(is_convertible, __is_convertible(A, B))
SIMULATOR_TRAIT(is_integral, T, __is_integral(T))
SIMULATOR_TRAIT(is_floating_point, T, __is_floating_point(T))
SIMULATOR_TRAIT(is_arithmetic, T, __is_arithmetic(T))
SIMULATOR_TRAIT(is_signed, T, __is_signed(T))
SIMULATOR_TRAIT(is_unsigned, T, __is_unsigned(T))
SIMULATOR_TRAIT(is_pointer, T, __is_pointer(T))
#undef SIMULATOR_TRAIT
#undef SIMULATOR_TRAIT2

template <bool B, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, typename T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, typename T, typename F>
struct conditional {
  using type = T;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, typename T, typename F>
using conditional_t = typename conditional<B, T, F>::type;

template <typename T>
struct numeric_limits {
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr int digits = 8 * sizeof(T) - is_signed;
  static constexpr T max() { return is_signed ? T((((T(1) << (digits - 1)) - 1) << 1) + 1) : T(~T(0)); }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};
#define SIMULATOR_FLOAT_LIMITS(T, MAX, MIN, EPSILON)                              \
  template <>                                                                     \
  struct numeric_limits<T> {                                                      \
    static constexpr bool is_signed = true;                                       \
    static constexpr T max() { return T(MAX); }                                   \
    static constexpr T min() { return T(MIN); }                                   \
    static constexpr T lowest() { return T(-MAX); }                               \
    static constexpr T epsilon() { return T(EPSILON); }                           \
    static constexpr T infinity() { return T(__builtin_inff()); }                 \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }              \
  };
SIMULATOR_FLOAT_LIMITS(float, 3.402823466e+38f, 1.175494351e-38f, 1.192092896e-07f)
SIMULATOR_FLOAT_LIMITS(half, 65504.0f, 6.103515625e-05f, 0.0009765625f)
SIMULATOR_FLOAT_LIMITS(bfloat, 3.389531389e+38f, 1.175494351e-38f, 0.0078125f)
#undef SIMULATOR_FLOAT_LIMITS

}  // namespace metal
