// Every load and store of a kernel passes here: clang calls __asan_loadN and __asan_storeN before each
// (-fsanitize=kernel-address with its checks outlined; the hooks are ours, no sanitizer is linked).
//
// An access must lie inside one buffer or one threadgroup variable, read only what was written, and be
// ordered after the other threads' accesses to the same bytes (races.h). It is counted by buffer.

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "races.h"

namespace simulator {
namespace {

struct Buffer {
  uint8_t* base;
  uint64_t size;
  uint32_t *read_stamp, *write_stamp;  // per 32-byte sector: the threadgroup that last touched it
  Cell* cells;                         // of a writable buffer
};

struct Variable {
  const SharedHeader* header;
  uintptr_t begin;
};

constexpr uint32_t kMaxBuffers = 64;
constexpr uint32_t kMaxVariables = 64;
constexpr unsigned kBufferBits = 32;  // 4 GiB of address space each: no 32-bit index reaches the next
constexpr uint64_t kPage = 16384;

uint8_t* arena;
Buffer buffers[kMaxBuffers];
Variable variables[kMaxVariables];
uint32_t variable_count;
Cell* shared_cells;
// What each thread loaded last from each buffer. Loading the same element again at once costs a GPU nothing:
// its compiler keeps the value, where clang, for which all memory is one, must fear a store in between.
uint64_t last_load[kMaxThreads * kMaxBuffers];
uintptr_t constant_page = 1;  // of the kernel's own constant tables, the last one seen

bool loaded_just_now(uint32_t buffer, uint64_t offset, uint32_t size) {
  uint64_t& last = last_load[current->index * launch->buffer_count + buffer];
  const uint64_t key = offset << 16 | size;
  const bool same = last == key;
  last = key;
  return same;
}

void forget_loads(uint32_t first_thread, uint32_t threads) {
  const size_t size = sizeof(uint64_t) * launch->buffer_count;
  memset(&last_load[first_thread * launch->buffer_count], 0, threads * size);
}

uint64_t new_sectors(uint32_t* stamps, uint64_t offset, uint64_t size) {
  uint64_t count = 0;
  for (uint64_t s = offset / 32; s <= (offset + size - 1) / 32; s++) {
    count += stamps[s] != clock.group_begin;
    stamps[s] = clock.group_begin;
  }
  return count;
}

void device_access(uintptr_t address, uint32_t size, bool write, bool atomic, const void* site) {
  const uint64_t position = address - reinterpret_cast<uintptr_t>(arena);
  const uint32_t index = uint32_t((position + (1ull << (kBufferBits - 1))) >> kBufferBits);
  const int64_t offset = int64_t(position) - int64_t(uint64_t(index) << kBufferBits);
  Fault fault = fault_at(FaultKind::out_of_bounds, site, size, write);
  if (index >= launch->buffer_count) {
    fault.kind = FaultKind::wild_address;
    raise(fault);
  }
  fault.buffer = int32_t(index);
  fault.offset = offset;
  Buffer& buffer = buffers[index];
  BufferRequest& request = launch->buffers[index];
  if (offset < 0 || uint64_t(offset) + size > buffer.size) raise(fault);
  if (write) {
    if (!request.writable) {
      fault.kind = FaultKind::input_written;
      raise(fault);
    }
    forget_loads(current->index, 1);
    request.written_bytes += size;
    request.written_sectors += new_sectors(buffer.write_stamp, uint64_t(offset), size);
  } else if (buffer.cells || !loaded_just_now(index, uint64_t(offset), size)) {
    request.read_bytes += size;
    request.read_sectors += new_sectors(buffer.read_stamp, uint64_t(offset), size);
  }
  if (buffer.cells) check_cells(kDevice, buffer.cells + offset, address, fault, request.initialised, atomic);
}

void shared_access(uintptr_t address, uint32_t size, bool write, bool atomic, const void* site) {
  const auto begin = reinterpret_cast<uintptr_t>(launch->shared_begin);
  Fault fault = fault_at(FaultKind::shared_bounds, site, size, write);
  bool inside = false;
  for (uint32_t i = 0; i < variable_count && !inside; i++) {
    const Variable& v = variables[i];
    if (address + size + 64 < v.begin || address >= v.begin + v.header->total) continue;
    inside = address >= v.begin && address + size <= v.begin + v.header->size;
    fault.name = v.header->name;
    fault.offset = int64_t(address) - int64_t(v.begin);
  }
  if (!inside) raise(fault);
  (write ? launch->shared_written_bytes : launch->shared_read_bytes) += size;
  check_cells(kShared, shared_cells + (address - begin), address, fault, false, atomic);
}

// Constant tables of the kernel itself lie in its image, as does nothing else it may touch.
bool in_image(uintptr_t address) {
  if (address / 4096 == constant_page) return true;
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(address), &info) || info.dli_fbase != launch->image) return false;
  constant_page = address / 4096;
  return true;
}

[[gnu::noinline]] void wild_access(uintptr_t address, uint32_t size, bool write, const void* site) {
  if (!write && in_image(address)) return;
  Fault fault = fault_at(FaultKind::wild_address, site, size, write);
  fault.offset = int64_t(address);
  raise(fault);
}

inline void access(uintptr_t address, uint32_t size, bool write, bool atomic, const void* site) {
  if (on_a_stack(address)) return;
  settle();
  if (unexplained.patience && --unexplained.patience == 0) raise(unexplained.fault);
  const auto shared = reinterpret_cast<uintptr_t>(launch->shared_begin);
  if (address - reinterpret_cast<uintptr_t>(arena) + (1ull << 31) < uint64_t(kMaxBuffers) << kBufferBits) {
    device_access(address, size, write, atomic, site);
  } else if (address - shared < reinterpret_cast<uintptr_t>(launch->shared_end) - shared) {
    shared_access(address, size, write, atomic, site);
  } else {
    wild_access(address, size, write, site);
  }
}

// An access that the compiler knows to be aligned, and so will the GPU's.
inline void aligned_access(uintptr_t address, uint32_t size, bool write, const void* site) {
  if (address % size) {
    Fault fault = fault_at(FaultKind::misaligned, site, size, write);
    raise(fault);
  }
  access(address, size, write, false, site);
}

void map_buffer(uint32_t index) {
  BufferRequest& request = launch->buffers[index];
  Buffer& buffer = buffers[index];
  buffer.base = arena + (uint64_t(index) << kBufferBits);
  buffer.size = request.size;
  const uint64_t mapped = (request.size + kPage) / kPage * kPage;
  mmap(buffer.base, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (request.initialised) {
    memcpy(buffer.base, request.data, request.size);
  } else {
    memset(buffer.base, 0xff, request.size);  // NaN in every float format
  }
  const uint64_t sectors = request.size / 32 + 1;
  buffer.read_stamp = static_cast<uint32_t*>(calloc(sectors, sizeof(uint32_t)));
  buffer.write_stamp = static_cast<uint32_t*>(calloc(sectors, sizeof(uint32_t)));
  buffer.cells = request.writable ? static_cast<Cell*>(calloc(request.size + 1, sizeof(Cell))) : nullptr;
}

void unmap_buffer(uint32_t index) {
  BufferRequest& request = launch->buffers[index];
  Buffer& buffer = buffers[index];
  if (request.writable) {
    memcpy(request.data, buffer.base, request.size);
    for (uint64_t i = 0; i < request.size && !request.initialised; i++)
      request.unwritten_bytes += buffer.cells[i].write_time == 0;
  }
  free(buffer.read_stamp);
  free(buffer.write_stamp);
  free(buffer.cells);
  const uint64_t mapped = (request.size + kPage) / kPage * kPage;
  mmap(buffer.base, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace

bool open_memory() {
  if (launch->buffer_count > kMaxBuffers) return false;
  if (!arena) {
    // Half a buffer's room before the first, so that a negative index of it is recognised too.
    const uint64_t size = (uint64_t(kMaxBuffers) + 1) << kBufferBits;
    void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    arena = static_cast<uint8_t*>(memory) + (1ull << (kBufferBits - 1));
    arena = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(arena) + kPage - 1) / kPage * kPage);
  }
  for (uint32_t i = 0; i < launch->buffer_count; i++) map_buffer(i);
  variable_count = 0;
  constant_page = 1;
  pending.size = 0;
  unexplained = {};
  const auto end = reinterpret_cast<uintptr_t>(launch->shared_end);
  auto at = reinterpret_cast<uintptr_t>(launch->shared_begin);
  for (shared_cells = static_cast<Cell*>(calloc(end - at + 1, sizeof(Cell))); at < end;) {
    auto* header = reinterpret_cast<SharedHeader*>(at);
    if (variable_count == kMaxVariables) return false;
    variables[variable_count++] = {header, at + sizeof(SharedHeader) + 64};
    at += header->total;
  }
  return true;
}

void begin_threadgroup_memory(uint32_t threads) {
  forget_loads(0, threads);
  for (uint32_t i = 0; i < variable_count; i++)
    memset(reinterpret_cast<void*>(variables[i].begin), 0xff, variables[i].header->size);
}

void settle() {
  if (pending.size == 0) return;
  const uint32_t size = pending.size;
  pending.size = 0;
  if (memcmp(reinterpret_cast<void*>(pending.address), pending.before, size) != 0) raise(pending.fault);
}

void settle_reads() {
  if (unexplained.fault.kind == FaultKind::none) return;
  launch->fault = unexplained.fault;
  unexplained = {};
}

void close_memory() {
  // What went wrong after a read of nothing went wrong because of it, a race excepted.
  if (launch->fault.kind != FaultKind::none && launch->fault.kind != FaultKind::race) settle_reads();
  for (uint32_t i = 0; i < launch->buffer_count; i++) unmap_buffer(i);
  free(shared_cells);
}

void* buffer_address(uint32_t index) { return buffers[index].base; }

}  // namespace simulator

using namespace simulator;

#define HOOK_SITE __builtin_return_address(0)
#define HOOKS(size)                                                                                   \
  void __asan_load##size##_noabort(uintptr_t a) { aligned_access(a, size, false, HOOK_SITE); }        \
  void __asan_store##size##_noabort(uintptr_t a) { aligned_access(a, size, true, HOOK_SITE); }        \
  void __asan_load##size(uintptr_t a) { aligned_access(a, size, false, HOOK_SITE); }                  \
  void __asan_store##size(uintptr_t a) { aligned_access(a, size, true, HOOK_SITE); }

extern "C" {

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __asan_loadN(uintptr_t a, size_t size) { access(a, uint32_t(size), false, false, HOOK_SITE); }
void __asan_storeN(uintptr_t a, size_t size) { access(a, uint32_t(size), true, false, HOOK_SITE); }
void __asan_loadN_noabort(uintptr_t a, size_t size) { access(a, uint32_t(size), false, false, HOOK_SITE); }
void __asan_storeN_noabort(uintptr_t a, size_t size) { access(a, uint32_t(size), true, false, HOOK_SITE); }
void __asan_handle_no_return() {}

void* __asan_memcpy(void* to, const void* from, size_t size) {
  if (size == 0) return to;
  access(reinterpret_cast<uintptr_t>(from), uint32_t(size), false, false, HOOK_SITE);
  access(reinterpret_cast<uintptr_t>(to), uint32_t(size), true, false, HOOK_SITE);
  return memmove(to, from, size);
}
void* __asan_memmove(void* to, const void* from, size_t size) {
  if (size == 0) return to;
  access(reinterpret_cast<uintptr_t>(from), uint32_t(size), false, false, HOOK_SITE);
  access(reinterpret_cast<uintptr_t>(to), uint32_t(size), true, false, HOOK_SITE);
  return memmove(to, from, size);
}
void* __asan_memset(void* to, int value, size_t size) {
  if (size == 0) return to;
  access(reinterpret_cast<uintptr_t>(to), uint32_t(size), true, false, HOOK_SITE);
  return memset(to, value, size);
}

void simulator_atomic(const volatile void* address, size_t size, bool write, const void* site) {
  access(reinterpret_cast<uintptr_t>(address), uint32_t(size), write, true, site);
}

// clang's checks of a thread's own arrays and of divisors (-fsanitize-minimal-runtime).
void __ubsan_handle_out_of_bounds_minimal() { raise(fault_at(FaultKind::array_bounds, HOOK_SITE, 0, false)); }
void __ubsan_handle_divrem_overflow_minimal() { raise(fault_at(FaultKind::division, HOOK_SITE, 0, false)); }

}  // extern "C"
