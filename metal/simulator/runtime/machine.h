// The state of the one launch that runs, and what its two halves (schedule.cpp, memory.cpp) ask of each other.
#pragma once

#include "launch.h"

namespace simulator {

constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxSimdGroups = kMaxThreads / kLanes;

enum Space : uint32_t { kDevice, kShared };

// How far each SIMD-group is between its own barriers, per memory space: accesses before `ordered` of the
// same SIMD-group are visible.
struct SimdClock {
  uint32_t now;
  uint32_t ordered[2];
};

// The clock of barriers. It runs on across threadgroups, so that an older stamp is another threadgroup's.
struct Clock {
  uint32_t group_begin;  // the value when this threadgroup began
  uint32_t now;          // one more at each threadgroup barrier
  uint32_t ordered[2];   // the value after the last barrier whose flags order that space
  SimdClock simd[kMaxSimdGroups];
};

struct Barrier {
  uint32_t flags;
  const void* site;
};

// schedule.cpp
extern Request* launch;
extern Thread* current;
extern Clock clock;
const Barrier* barrier_after(uint32_t stamp);  // the first of this threadgroup since `stamp`, or null
[[noreturn]] void raise(Fault fault);          // ends the launch; the rest is filled in here
bool on_a_stack(uintptr_t address);

// memory.cpp
bool open_memory();            // maps the buffers; false if the machine has no room
void begin_threadgroup_memory(uint32_t threads);
void settle();                 // a write whose value had to be seen before it could be called a race
void settle_reads();           // a read of nothing that no later write explained: at barriers, at the end
void close_memory();
void* buffer_address(uint32_t index);

}  // namespace simulator
