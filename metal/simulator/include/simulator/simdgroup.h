// <metal_simdgroup>: what lanes of a SIMD-group do together.
//
// Every function leaves its operand at an exchange, waits until all lanes have made the same call, and reads
// what it needs. A lane that never comes is an error, not a wait: the runtime names the call.
#pragma once

#include "simulator/math.h"

SIMULATOR_BEGIN

namespace simulator {

template <typename T>
inline T operand(const Exchange* exchange, unsigned lane) {
  T value;
  __builtin_memcpy(&value, exchange->slot[lane], sizeof(T));
  return value;
}

template <typename T>
inline Exchange* meet(const char* operation, const void* site, const T& value) {
  static_assert(sizeof(T) <= sizeof(Exchange::slot[0]), "an operand of a SIMD function has at most 32 bytes");
  return simulator_exchange(operation, site, &value, sizeof(T));
}

// The value that `lane` left; a lane that does not exist has none.
template <typename T>
inline T from_lane(const char* operation, const void* site, const Exchange* exchange, unsigned lane) {
  if (lane >= kLanes || !(exchange->present >> lane & 1)) simulator_bad_lane(operation, site, lane);
  return operand<T>(exchange, lane);
}

SIMULATOR_CALL inline unsigned my_lane() { return simulator_thread()->index % kLanes; }

// All lanes' operands combined: a butterfly over xor 1, 2, 4, 8, 16, or in lane order. With fewer than 32
// lanes, in lane order. Computed by the first lane that asks.
template <typename T, typename Combine>
inline T reduce(Exchange* exchange, bool sequential, Combine combine) {
  if (!exchange->ready) {
    T values[kLanes];
    for (unsigned i = 0; i < kLanes; i++) values[i] = operand<T>(exchange, i);
    if (!sequential && exchange->present == 0xffffffffu) {
      for (unsigned step = 1; step < kLanes; step *= 2)
        for (unsigned i = 0; i < kLanes; i += 2 * step) values[i] = combine(values[i], values[i + step]);
    } else {
      for (unsigned i = 1; i < kLanes && (exchange->present >> i & 1); i++) values[0] = combine(values[0], values[i]);
    }
    __builtin_memcpy(exchange->result, values, sizeof(T));
    exchange->ready = 1;
  }
  T result;
  __builtin_memcpy(&result, exchange->result, sizeof(T));
  return result;
}

// Combined over the lanes below this one (and this one, if inclusive), in lane order.
template <typename T>
inline T prefix_sum(const Exchange* exchange, bool inclusive) {
  T sum = T(0);
  const unsigned end = my_lane() + (inclusive ? 1 : 0);
  for (unsigned i = 0; i < end; i++) sum = sum + operand<T>(exchange, i);
  return sum;
}

}  // namespace simulator

namespace metal {

#define SIMULATOR_REDUCTION(name, sequential, ...)                                               \
  template <typename T>                                                                          \
  SIMULATOR_CALL T name(T value) {                                                               \
    return simulator::reduce<T>(simulator::meet(#name, SIMULATOR_SITE, value), sequential,       \
                                [](T a, T b) -> T { return __VA_ARGS__; });                      \
  }
SIMULATOR_REDUCTION(simd_sum, simulator_arithmetic()->sequential_sum, a + b)
SIMULATOR_REDUCTION(simd_product, simulator_arithmetic()->sequential_sum, a * b)
SIMULATOR_REDUCTION(simd_max, false, max(a, b))
SIMULATOR_REDUCTION(simd_min, false, min(a, b))
SIMULATOR_REDUCTION(simd_and, false, a & b)
SIMULATOR_REDUCTION(simd_or, false, a | b)
SIMULATOR_REDUCTION(simd_xor, false, a ^ b)
#undef SIMULATOR_REDUCTION

#define SIMULATOR_SHUFFLE(name, index, lane)                                                     \
  template <typename T>                                                                          \
  SIMULATOR_CALL T name(T value, ushort index) {                                                 \
    const void* site = SIMULATOR_SITE;                                                           \
    const auto* exchange = simulator::meet(#name, site, value);                                  \
    return simulator::from_lane<T>(#name, site, exchange, lane);                                 \
  }
SIMULATOR_SHUFFLE(simd_shuffle, source, source)
SIMULATOR_SHUFFLE(simd_broadcast, source, source)
SIMULATOR_SHUFFLE(simd_shuffle_xor, mask, simulator::my_lane() ^ mask)
SIMULATOR_SHUFFLE(simd_shuffle_rotate_down, by, (simulator::my_lane() + by) % 32)
SIMULATOR_SHUFFLE(simd_shuffle_rotate_up, by, (simulator::my_lane() + 32 - by % 32) % 32)
#undef SIMULATOR_SHUFFLE

// Lanes whose source would lie outside keep their own value, as Metal says.
template <typename T>
SIMULATOR_CALL T simd_shuffle_down(T value, ushort by) {
  const void* site = SIMULATOR_SITE;
  const auto* exchange = simulator::meet("simd_shuffle_down", site, value);
  const unsigned lane = simulator::my_lane() + by;
  return lane < 32 ? simulator::from_lane<T>("simd_shuffle_down", site, exchange, lane) : value;
}
template <typename T>
SIMULATOR_CALL T simd_shuffle_up(T value, ushort by) {
  const auto* exchange = simulator::meet("simd_shuffle_up", SIMULATOR_SITE, value);
  const unsigned lane = simulator::my_lane();
  return lane >= by ? simulator::operand<T>(exchange, lane - by) : value;
}
template <typename T>
SIMULATOR_CALL T simd_shuffle_and_fill_up(T value, T filling, ushort by) {
  struct Pair {
    T value, filling;
  };
  const auto* exchange = simulator::meet("simd_shuffle_and_fill_up", SIMULATOR_SITE, Pair{value, filling});
  const unsigned lane = simulator::my_lane();
  return lane >= by ? simulator::operand<Pair>(exchange, lane - by).value
                    : simulator::operand<Pair>(exchange, 32 + lane - by).filling;
}

template <typename T>
SIMULATOR_CALL T simd_prefix_inclusive_sum(T value) {
  return simulator::prefix_sum<T>(simulator::meet("simd_prefix_inclusive_sum", SIMULATOR_SITE, value), true);
}
template <typename T>
SIMULATOR_CALL T simd_prefix_exclusive_sum(T value) {
  return simulator::prefix_sum<T>(simulator::meet("simd_prefix_exclusive_sum", SIMULATOR_SITE, value), false);
}

template <typename T>
SIMULATOR_CALL T simd_broadcast_first(T value) {
  return simulator::operand<T>(simulator::meet("simd_broadcast_first", SIMULATOR_SITE, value), 0);
}

SIMULATOR_CALL inline bool simd_any(bool value) {
  return simulator::reduce<bool>(simulator::meet("simd_any", SIMULATOR_SITE, value), false,
                                 [](bool a, bool b) { return a || b; });
}
SIMULATOR_CALL inline bool simd_all(bool value) {
  return simulator::reduce<bool>(simulator::meet("simd_all", SIMULATOR_SITE, value), false,
                                 [](bool a, bool b) { return a && b; });
}

struct simd_vote {
  using vote_t = ulong;
  vote_t bits;
  explicit simd_vote(vote_t bits = 0) : bits(bits) {}
  explicit operator vote_t() const { return bits; }
  bool all() const { return bits == 0xffffffffu; }
  bool any() const { return bits != 0; }
};
SIMULATOR_CALL inline simd_vote simd_ballot(bool value) {
  const auto* exchange = simulator::meet("simd_ballot", SIMULATOR_SITE, value);
  ulong bits = 0;
  for (unsigned i = 0; i < 32; i++)
    if (exchange->present >> i & 1) bits |= ulong(simulator::operand<bool>(exchange, i)) << i;
  return simd_vote(bits);
}

// Four neighbouring lanes.
template <typename T>
SIMULATOR_CALL T quad_sum(T value) {
  const auto* exchange = simulator::meet("quad_sum", SIMULATOR_SITE, value);
  const unsigned first = simulator::my_lane() & ~3u;
  const T a = simulator::operand<T>(exchange, first) + simulator::operand<T>(exchange, first + 1);
  return a + (simulator::operand<T>(exchange, first + 2) + simulator::operand<T>(exchange, first + 3));
}

}  // namespace metal

SIMULATOR_END
