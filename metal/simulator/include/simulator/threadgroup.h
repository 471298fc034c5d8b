// Threadgroup memory and barriers.
#pragma once

#include "simulator/runtime.h"
#include "simulator/traits.h"

namespace metal {

enum class mem_flags : uint32_t {
  mem_none = simulator::kMemNone,
  mem_device = simulator::kMemDevice,
  mem_threadgroup = simulator::kMemThreadgroup,
  mem_texture = simulator::kMemTexture,
  mem_device_and_threadgroup = simulator::kMemDevice | simulator::kMemThreadgroup,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint32_t(a) | uint32_t(b)); }

SIMULATOR_BEGIN
SIMULATOR_CALL inline void threadgroup_barrier(mem_flags flags) {
  simulator_threadgroup_barrier(uint32_t(flags), SIMULATOR_SITE);
}
SIMULATOR_CALL inline void simdgroup_barrier(mem_flags flags) {
  simulator_simdgroup_barrier(uint32_t(flags), SIMULATOR_SITE);
}
SIMULATOR_END

}  // namespace metal

namespace simulator {

constexpr unsigned kZone = 64;  // bytes on each side of a variable that nothing may touch

template <typename T>
struct alignas(64) Shared {
  SharedHeader header;
  uint8_t before[kZone];
  alignas(64) uint8_t value[sizeof(T)];
  uint8_t after[kZone];
};

}  // namespace simulator

#ifdef __APPLE__
#define SIMULATOR_SHARED_SECTION __attribute__((section("__DATA,threadgroup"), used))
#else
#define SIMULATOR_SHARED_SECTION __attribute__((section("simulator_threadgroup"), used))
#endif

// `threadgroup float tile[32];` becomes SIMULATOR_SHARED(tile, [32], float).
#ifdef SIMULATOR_ADDRESS_SPACES
#define SIMULATOR_SHARED(name, dimensions, ...) static threadgroup __VA_ARGS__ name dimensions;
#else
#define SIMULATOR_SHARED(name, dimensions, ...)                                                       \
  typedef __VA_ARGS__ name##_type dimensions;                                                         \
  static simulator::Shared<name##_type> name##_storage SIMULATOR_SHARED_SECTION = {                   \
      {#name, sizeof(name##_type), sizeof(simulator::Shared<name##_type>), __LINE__}, {}, {}, {}};    \
  name##_type& name = *reinterpret_cast<name##_type*>(name##_storage.value);
#endif
