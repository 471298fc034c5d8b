// <metal_atomic>: relaxed atomics on 32-bit values. The runtime knows them and lets them meet.
#pragma once

#include "simulator/runtime.h"
#include "simulator/traits.h"

namespace metal {

enum memory_order { memory_order_relaxed };

template <typename T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;

SIMULATOR_BEGIN

template <typename T, typename Update>
inline T atomic_update(volatile device atomic<T>* object, const void* site, Update update) {
  simulator_atomic((const volatile void*)object, sizeof(T), true, site);
  const T old = object->value;
  object->value = update(old);
  return old;
}

template <typename T>
SIMULATOR_CALL T atomic_load_explicit(const volatile device atomic<T>* object, memory_order) {
  simulator_atomic((const volatile void*)object, sizeof(T), false, SIMULATOR_SITE);
  return object->value;
}
template <typename T, typename U>
SIMULATOR_CALL void atomic_store_explicit(volatile device atomic<T>* object, U desired, memory_order) {
  simulator_atomic((const volatile void*)object, sizeof(T), true, SIMULATOR_SITE);
  object->value = T(desired);
}

#define SIMULATOR_ATOMIC(name, ...)                                                                \
  template <typename T, typename U>                                                                \
  SIMULATOR_CALL T atomic_##name##_explicit(volatile device atomic<T>* object, U operand, memory_order) { \
    const T b = T(operand);                                                                        \
    return atomic_update(object, SIMULATOR_SITE, [b](T a) -> T { return __VA_ARGS__; });           \
  }
SIMULATOR_ATOMIC(exchange, b)
SIMULATOR_ATOMIC(fetch_add, a + b)
SIMULATOR_ATOMIC(fetch_sub, a - b)
SIMULATOR_ATOMIC(fetch_min, b < a ? b : a)
SIMULATOR_ATOMIC(fetch_max, a < b ? b : a)
SIMULATOR_ATOMIC(fetch_and, a & b)
SIMULATOR_ATOMIC(fetch_or, a | b)
SIMULATOR_ATOMIC(fetch_xor, a ^ b)
#undef SIMULATOR_ATOMIC

template <typename T, typename U>
SIMULATOR_CALL bool atomic_compare_exchange_weak_explicit(volatile device atomic<T>* object, T* expected, U desired,
                                                          memory_order, memory_order) {
  const T wanted = *expected;
  *expected = atomic_update(object, SIMULATOR_SITE, [=](T a) -> T { return a == wanted ? T(desired) : a; });
  return *expected == wanted;
}

SIMULATOR_END

}  // namespace metal
