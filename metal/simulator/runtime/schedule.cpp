// Runs a grid: threadgroups one after the other in random order, SIMD-groups of each from barrier to barrier,
// lanes of each from meeting to meeting. A SIMD-group goes on only when all of its lanes stand at the same
// call, a threadgroup only when all of its SIMD-groups stand at the same barrier: anything else is a fault.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fiber.h"
#include "machine.h"

namespace simulator {

Request* launch;
Thread* current;
Clock clock;

namespace {

enum class State : uint8_t { runnable, meeting, barrier, finished };

struct Fiber {
  void* sp;
  State state;
  uint32_t flags;
  const void* site;
  const char* operation;
};

struct SimdGroup {
  Exchange exchange[2];  // in turn: a lane may leave its next operand while others still read the last
  uint32_t meetings;
};

constexpr size_t kStack = 256 * 1024;
constexpr size_t kGuard = 16 * 1024;
constexpr uint32_t kBarriersKept = 4096;

uint8_t* stacks;
Thread threads[kMaxThreads];
Fiber fibers[kMaxThreads];
SimdGroup simd_groups[kMaxSimdGroups];
Barrier barriers[kBarriersKept];
void* scheduler;
void* entry_buffers[64];

void yield() {
  settle();
  switch_fiber(&fibers[current->index].sp, scheduler);
}

void fiber_main() {
  launch->entry(entry_buffers);
  fibers[current->index].state = State::finished;
  yield();
  __builtin_trap();
}

bool open_stacks() {
  if (stacks) return true;
  void* memory = mmap(nullptr, kStack * kMaxThreads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  stacks = static_cast<uint8_t*>(memory);
  for (uint32_t i = 0; i < kMaxThreads; i++) mprotect(stacks + i * kStack, kGuard, PROT_NONE);
  return true;
}

bool resume(uint32_t thread) {
  current = &threads[thread];
  fibers[thread].state = State::runnable;
  switch_fiber(&scheduler, fibers[thread].sp);
  return launch->fault.kind == FaultKind::none;
}

// Some threads wait at `first`'s call and others are elsewhere or have returned.
[[nodiscard]] bool diverged(uint32_t begin, uint32_t end, uint32_t first) {
  Fault fault = {};
  fault.kind = fibers[first].state == State::barrier ? FaultKind::divergent_barrier : FaultKind::divergent_simd;
  fault.site = fibers[first].site;
  fault.name = fibers[first].operation;
  fault.expected = end - begin;
  fault.thread = first;
  for (uint32_t i = begin; i < end; i++) {
    const bool there = fibers[i].state == fibers[first].state && fibers[i].site == fibers[first].site;
    fault.reached += there;
    if (!there && fault.other_thread == 0) {  // 0 is either `first` or nobody yet
      fault.other_thread = i;
      fault.other_site = fibers[i].state == State::finished ? nullptr : fibers[i].site;
    }
  }
  fault.buffer = -1;
  memcpy(fault.group, threads[first].threadgroup_position, sizeof(fault.group));
  launch->fault = fault;
  return false;
}

// All of these threads stand at the same call, or all have returned; otherwise a fault.
[[nodiscard]] bool agree(uint32_t begin, uint32_t end) {
  uint32_t first = begin;
  while (first < end && fibers[first].state == State::finished) first++;
  if (first == end) return true;
  for (uint32_t i = begin; i < end; i++)
    if (fibers[i].state != fibers[first].state || fibers[i].site != fibers[first].site)
      return diverged(begin, end, first);
  return true;
}

void hold_meeting(uint32_t simd, uint32_t first) {
  SimdGroup& group = simd_groups[simd];
  if (fibers[first].operation) {
    launch->simd_calls++;
  } else {
    SimdClock& c = clock.simd[simd];
    c.now++;
    if (fibers[first].flags & kMemDevice) c.ordered[kDevice] = c.now;
    if (fibers[first].flags & kMemThreadgroup) c.ordered[kShared] = c.now;
    launch->simd_barriers++;
  }
  group.meetings++;
  Exchange& next = group.exchange[group.meetings % 2];
  next.present = next.ready = 0;
}

// From one threadgroup barrier to the next, or to the end.
[[nodiscard]] bool run_simd_group(uint32_t simd, uint32_t begin, uint32_t end) {
  if (fibers[begin].state == State::finished) return true;
  do {
    for (uint32_t i = begin; i < end; i++)
      if (!resume(i)) return false;
    if (!agree(begin, end)) return false;
    if (fibers[begin].state == State::meeting) hold_meeting(simd, begin);
  } while (fibers[begin].state == State::meeting);
  return true;
}

void pass_barrier(const Fiber& fiber) {
  barriers[clock.now % kBarriersKept] = {fiber.flags, fiber.site};
  clock.now++;
  if (fiber.flags & kMemDevice) clock.ordered[kDevice] = clock.now;
  if (fiber.flags & kMemThreadgroup) clock.ordered[kShared] = clock.now;
  launch->barriers++;
}

void begin_threadgroup(const uint32_t (&position)[3], const uint32_t (&groups)[3]) {
  uint32_t size[3];
  for (int d = 0; d < 3; d++) {
    const uint32_t left = launch->grid[d] - position[d] * launch->group[d];
    size[d] = left < launch->group[d] ? left : launch->group[d];
  }
  const uint32_t count = size[0] * size[1] * size[2];
  for (uint32_t i = 0; i < count; i++) {
    Thread& t = threads[i];
    const uint32_t local[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    for (int d = 0; d < 3; d++) {
      t.position_in_threadgroup[d] = local[d];
      t.position_in_grid[d] = position[d] * launch->group[d] + local[d];
      t.threadgroup_position[d] = position[d];
      t.threads_per_threadgroup[d] = size[d];
      t.threadgroups_per_grid[d] = groups[d];
      t.threads_per_grid[d] = launch->grid[d];
    }
    t.index = i;
    t.threads = count;
    fibers[i] = {new_fiber(stacks + (i + 1) * kStack, fiber_main), State::runnable, 0, nullptr, nullptr};
  }
  for (uint32_t s = 0; s * kLanes < count; s++) {
    simd_groups[s].meetings = 0;
    simd_groups[s].exchange[0].present = simd_groups[s].exchange[0].ready = 0;
  }
  memset(clock.simd, 0, sizeof(clock.simd));
  clock.group_begin = ++clock.now;
  clock.ordered[kDevice] = clock.ordered[kShared] = clock.now;
  begin_threadgroup_memory(count);
}

[[nodiscard]] bool run_threadgroup() {
  const uint32_t count = threads[0].threads;
  do {
    for (uint32_t begin = 0, s = 0; begin < count; begin += kLanes, s++)
      if (!run_simd_group(s, begin, begin + kLanes < count ? begin + kLanes : count)) return false;
    settle_reads();
    if (launch->fault.kind != FaultKind::none || !agree(0, count)) return false;
    if (fibers[0].state == State::barrier) pass_barrier(fibers[0]);
  } while (fibers[0].state == State::barrier);
  return true;
}

uint64_t random_bits(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void run_grid() {
  uint32_t groups[3];
  for (int d = 0; d < 3; d++) groups[d] = (launch->grid[d] + launch->group[d] - 1) / launch->group[d];
  const uint32_t count = groups[0] * groups[1] * groups[2];
  auto* order = static_cast<uint32_t*>(malloc(count * sizeof(uint32_t)));
  uint64_t state = launch->seed;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t j = uint32_t(random_bits(state) % (i + 1));
    order[i] = order[j];
    order[j] = i;
  }
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t n = order[i];
    begin_threadgroup({n % groups[0], n / groups[0] % groups[1], n / groups[0] / groups[1]}, groups);
    launch->threadgroups++;
    if (!run_threadgroup()) break;
  }
  free(order);
}

// Subnormals to zero, in operands and results; returns the mode to restore.
uint64_t set_flush(bool flush, const uint64_t* restore) {
#if defined(__x86_64__)
  const uint32_t old = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(restore ? uint32_t(*restore) : flush ? old | 0x8040u : old & ~0x8040u);
#else
  uint64_t old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  const uint64_t mode = restore ? *restore : flush ? old | (1ull << 24) : old & ~(1ull << 24);
  __asm__ volatile("msr fpcr, %0" ::"r"(mode));
#endif
  return old;
}

}  // namespace

bool on_a_stack(uintptr_t address) { return address - reinterpret_cast<uintptr_t>(stacks) < kStack * kMaxThreads; }

const Barrier* barrier_after(uint32_t stamp) {
  return stamp >= clock.group_begin && stamp < clock.now ? &barriers[stamp % kBarriersKept] : nullptr;
}

void raise(Fault fault) {
  fault.thread = current->index;
  memcpy(fault.group, current->threadgroup_position, sizeof(fault.group));
  launch->fault = fault;
  switch_fiber(&fibers[current->index].sp, scheduler);
  __builtin_trap();
}

}  // namespace simulator

using namespace simulator;

extern "C" {

const Thread* simulator_thread() { return current; }
const Arithmetic* simulator_arithmetic() { return &launch->arithmetic; }
void simulator_count_matrix_operation() { launch->matrix_operations++; }

void simulator_threadgroup_barrier(uint32_t flags, const void* site) {
  Fiber& fiber = fibers[current->index];
  fiber.state = State::barrier;
  fiber.flags = flags;
  fiber.site = site;
  fiber.operation = "threadgroup_barrier";
  yield();
}

void simulator_simdgroup_barrier(uint32_t flags, const void* site) {
  Fiber& fiber = fibers[current->index];
  fiber.state = State::meeting;
  fiber.flags = flags;
  fiber.site = site;
  fiber.operation = nullptr;
  yield();
}

Exchange* simulator_exchange(const char* operation, const void* site, const void* operand, size_t size) {
  Fiber& fiber = fibers[current->index];
  fiber.state = State::meeting;
  fiber.site = site;
  fiber.operation = operation;
  SimdGroup& group = simd_groups[current->index / kLanes];
  Exchange* exchange = &group.exchange[group.meetings % 2];
  memcpy(exchange->slot[current->index % kLanes], operand, size);
  exchange->present |= 1u << current->index % kLanes;
  yield();
  return exchange;
}

void simulator_bad_lane(const char* operation, const void* site, uint32_t lane) {
  Fault fault = {};
  fault.kind = FaultKind::bad_lane;
  fault.site = site;
  fault.name = operation;
  fault.reached = lane;
  fault.buffer = -1;
  raise(fault);
}

int simulator_launch(Request* request) {
  launch = request;
  if (!open_stacks() || !open_memory()) return 1;
  for (uint32_t i = 0; i < request->buffer_count; i++) entry_buffers[i] = buffer_address(i);
  const uint64_t mode = set_flush(request->flush, nullptr);
  run_grid();
  set_flush(false, &mode);
  close_memory();
  launch = nullptr;
  return 0;
}

}  // extern "C"
