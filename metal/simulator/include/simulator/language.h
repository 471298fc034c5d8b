// The Metal language on top of C++: keywords, scalar and vector types, address spaces.
//
// Included by every other header. `device`, `thread`, ... become nothing here; the build that checks address
// spaces (SIMULATOR_ADDRESS_SPACES) makes real clang address spaces of them and runs nothing.
#pragma once

#include <stddef.h>
#include <stdint.h>

using half = _Float16;
using bfloat = __bf16;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

namespace metal {
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
using ::bfloat;
using ::half;
}  // namespace metal

#define SIMULATOR_VECTORS(T)                                                                     \
  using T##2 = metal::vec<T, 2>;                                                                 \
  using T##3 = metal::vec<T, 3>;                                                                 \
  using T##4 = metal::vec<T, 4>;                                                                 \
  typedef T packed_##T##2 __attribute__((ext_vector_type(2), aligned(alignof(T))));              \
  typedef T packed_##T##4 __attribute__((ext_vector_type(4), aligned(alignof(T))));
SIMULATOR_VECTORS(bool)
SIMULATOR_VECTORS(char)
SIMULATOR_VECTORS(uchar)
SIMULATOR_VECTORS(short)
SIMULATOR_VECTORS(ushort)
SIMULATOR_VECTORS(int)
SIMULATOR_VECTORS(uint)
SIMULATOR_VECTORS(long)
SIMULATOR_VECTORS(ulong)
SIMULATOR_VECTORS(half)
SIMULATOR_VECTORS(bfloat)
SIMULATOR_VECTORS(float)
#undef SIMULATOR_VECTORS

// Between these, functions are the simulator's and not the kernel's: neither counted nor checked.
#define SIMULATOR_BEGIN                                                                                    \
  _Pragma("clang attribute push(__attribute__((no_sanitize(\"kernel-address\"))), apply_to = function)") \
      _Pragma("clang attribute push(__attribute__((no_sanitize(\"undefined\"))), apply_to = function)")
#define SIMULATOR_END _Pragma("clang attribute pop") _Pragma("clang attribute pop")
// What a kernel calls: never inlined, so that its return address names the call in the kernel; never moved into
// or out of a branch; two calls never merged into one.
#define SIMULATOR_CALL __attribute__((noinline, convergent, nomerge))
#define SIMULATOR_SITE __builtin_return_address(0)

#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_INTERNAL inline __attribute__((always_inline))
#define __METAL_VERSION__ 310

#ifdef SIMULATOR_ADDRESS_SPACES
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant
#define threadgroup
#endif
#define thread
#define kernel

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX ((half)65504.0f)
#define M_PI_F 3.14159265358979323846f
#define M_LN2_F 0.693147180559945309417f
#define M_LOG2E_F 1.44269504088896340736f
#define M_SQRT1_2_F 0.707106781186547524400f

template <typename To, typename From>
METAL_FUNC To as_type(From x) {
  return __builtin_bit_cast(To, x);
}

namespace simulator {
template <typename T>
struct Components {
  static constexpr int count = 1;
  using element = T;
};
template <typename T, int N>
struct Components<T __attribute__((ext_vector_type(N)))> {
  static constexpr int count = N;
  using element = T;
};

template <typename V, typename T>
METAL_FUNC void append(V& to, int& n, T from) {
  using E = typename Components<V>::element;
  if constexpr (Components<T>::count == 1) {
    to[n++] = static_cast<E>(from);
  } else {
    for (int i = 0; i < Components<T>::count; i++) to[n++] = static_cast<E>(from[i]);
  }
}
}  // namespace simulator

// `float4(x)`, `float4(xy, z, w)`: clang's vectors have no such constructors, so the rewriter calls this.
template <typename V, typename... Parts>
METAL_FUNC V make_vector(Parts... parts) {
  constexpr int given = (simulator::Components<Parts>::count + ... + 0);
  constexpr int wanted = simulator::Components<V>::count;
  V result = V(0);
  if constexpr (given == 1) {
    for (int i = 0; i < wanted; i++) {
      int n = i;
      (simulator::append(result, n, parts), ...);
    }
  } else if constexpr (given > 0) {
    static_assert(given == wanted, "a vector is made of one value, or of as many as it has elements");
    int n = 0;
    (simulator::append(result, n, parts), ...);
  }
  return result;
}
