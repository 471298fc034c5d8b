// A launch, as the Python driver asks for it and as the runtime answers. simulator/launch.py mirrors these.
#pragma once

#include "simulator/runtime.h"

namespace simulator {

struct BufferRequest {
  void* data;  // the driver's memory: copied in, and out again if writable
  uint64_t size;
  uint32_t writable;
  uint32_t initialised;
  uint64_t read_bytes, read_sectors, written_bytes, written_sectors, unwritten_bytes;
};

enum class FaultKind : uint32_t {
  none,
  out_of_bounds,       // of a buffer
  wild_address,        // of no buffer at all
  input_written,       // a store into a const buffer
  shared_bounds,       // outside a threadgroup variable
  uninitialised,
  race,
  divergent_barrier,
  divergent_simd,
  bad_lane,
  misaligned,
  array_bounds,        // of a thread's own array
  division,
};

struct Fault {
  FaultKind kind;
  uint32_t write;         // of the access at fault: 1 if it writes
  uint32_t other_write;   // of the earlier access in a race
  uint32_t thread, other_thread;
  uint32_t group[3];
  uint32_t reached, expected;  // threads at a barrier or SIMD call
  uint32_t barrier_flags;      // of a barrier that lies between the two accesses but does not order them
  int32_t buffer;              // number, or -1
  uint32_t bytes;
  int64_t offset;
  const void *site, *other_site, *barrier_site;
  const char* name;  // the SIMD function, or the threadgroup variable
};

struct Request {
  void (*entry)(void* const*);
  BufferRequest* buffers;
  SharedHeader *shared_begin, *shared_end;
  const void* image;  // where the kernel's shared object lies
  uint32_t buffer_count;
  uint32_t grid[3], group[3];  // threads
  uint32_t flush;              // subnormals to zero
  Arithmetic arithmetic;
  uint64_t seed;
  // Answers.
  uint64_t threadgroups, barriers, simd_barriers, simd_calls, matrix_operations;
  uint64_t shared_read_bytes, shared_written_bytes;
  Fault fault;
};

}  // namespace simulator

extern "C" int simulator_launch(simulator::Request*);
