// What a compiled kernel and the runtime say to each other.
//
// A kernel is compiled to a shared object of its own; the runtime (../../runtime) is loaded once, before it,
// and answers these calls. Everything here has C linkage and plain data, so that the two can be built apart.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace simulator {

constexpr unsigned kLanes = 32;  // threads of a SIMD-group

// Who the running thread is: the values of Metal's [[...]] kernel arguments.
struct Thread {
  uint32_t position_in_grid[3];
  uint32_t position_in_threadgroup[3];
  uint32_t threadgroup_position[3];
  uint32_t threads_per_threadgroup[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t threads_per_grid[3];
  uint32_t index;  // in the threadgroup, x fastest; SIMD-group = index / 32, lane = index % 32
  uint32_t threads;  // in this threadgroup
};

// Where the lanes of a SIMD-group meet: each leaves its operand in a slot, all go on when all have come.
// The first lane to go on may leave a result for the others (`ready`), so that a reduction is computed once.
struct Exchange {
  uint32_t present;  // bit i: lane i exists and left an operand
  uint32_t ready;
  alignas(16) uint8_t slot[kLanes][32];
  alignas(16) uint8_t result[kLanes * 8];
};

// One `threadgroup` variable, with a zone on each side that nothing may touch. The rewriter turns
// `threadgroup float tile[32];` into a static object that begins with this; a linker section collects them.
struct alignas(64) SharedHeader {
  const char* name;
  uint32_t size;   // bytes that the kernel may use
  uint32_t total;  // bytes of the whole object, header and zones included: the step to the next one
  uint32_t line;
};

// Choices that Metal leaves open, which a launch selects (see simulator/arithmetic.py).
struct Arithmetic {
  int32_t exp_ulp;         // added to the last place of every transcendental function's result
  int32_t tree_mma;        // sum the 8 products of a matrix operation pairwise instead of one after the other
  int32_t sequential_sum;  // simd_sum adds lane 0, 1, 2, ... instead of a butterfly over xor 1, 2, 4, 8, 16
};

enum MemoryFlags : uint32_t { kMemNone = 0, kMemDevice = 1, kMemThreadgroup = 2, kMemTexture = 4 };

}  // namespace simulator

extern "C" {
const simulator::Thread* simulator_thread();
const simulator::Arithmetic* simulator_arithmetic();

// `site` is the return address of the caller: two lanes meet only if they made the same call.
void simulator_threadgroup_barrier(uint32_t flags, const void* site);
void simulator_simdgroup_barrier(uint32_t flags, const void* site);
simulator::Exchange* simulator_exchange(const char* operation, const void* site, const void* operand, size_t size);
void simulator_count_matrix_operation();
[[noreturn]] void simulator_bad_lane(const char* operation, const void* site, uint32_t lane);

// An atomic access: checked and counted like any other, except that two atomics never race.
void simulator_atomic(const volatile void* address, size_t size, bool write, const void* site);

// Transcendental functions, kept in the runtime so that every kernel gets the same bits.
float simulator_exp(float), simulator_exp2(float), simulator_log(float), simulator_log2(float), simulator_log10(float);
float simulator_sin(float), simulator_cos(float), simulator_tan(float), simulator_tanh(float), simulator_erf(float);
float simulator_atan2(float, float), simulator_pow(float, float), simulator_rsqrt(float);
float simulator_fmod(float, float);
}
