// Who touched each byte last, and whether anyone may touch it now.
//
// Order is happens-before, not luck: every byte that can change carries a stamp of the clock of barriers, so a
// race is found whatever the order in which the simulator happens to run the threads.
#pragma once

#include <string.h>

#include "machine.h"

namespace simulator {

// The last write of a byte and the reads since, as far as a race can depend on them.
struct Cell {
  uint32_t write_time, write_simd_time, write_site;  // time 0: never
  uint32_t read_time, read_simd_time, read_site;
  uint16_t writer, reader;
  uint8_t reader_simd;
  bool many_readers;       // more than one thread of that SIMD-group
  bool many_reader_simds;  // more than one SIMD-group
  bool atomic;             // the last write was atomic
};

struct PendingWrite {  // a store over another thread's: a race unless it stores the same bits
  uintptr_t address;
  uint32_t size;
  uint8_t before[16];
  Fault fault;
};

// The first read of what nobody wrote. If another thread writes it before the next barrier, the fault is the
// missing barrier; otherwise this one. What the kernel computes from it meanwhile does not matter, except that
// it must end.
struct PendingRead {
  Fault fault;
  uint32_t patience;
};

inline PendingWrite pending;
inline PendingRead unexplained;

inline Fault fault_at(FaultKind kind, const void* site, uint32_t size, bool write) {
  Fault fault = {};
  fault.kind = kind;
  fault.site = site;
  fault.bytes = size;
  fault.write = write;
  fault.buffer = -1;
  return fault;
}

inline uint32_t short_site(const void* site) { return uint32_t(uintptr_t(site) - uintptr_t(launch->image)); }
inline const void* long_site(uint32_t site) { return reinterpret_cast<const void*>(uintptr_t(launch->image) + site); }

// Does the running thread see an access of `thread` at that time?
inline bool ordered(Space space, uint32_t thread, uint32_t time, uint32_t simd_time) {
  if (time < clock.group_begin) return false;
  if (thread == current->index || time < clock.ordered[space]) return true;
  const uint32_t simd = thread / kLanes;
  return simd == current->index / kLanes && simd_time < clock.simd[simd].ordered[space];
}

inline Fault race(Fault fault, uint32_t other_thread, uint32_t time, uint32_t other_site, bool other_write) {
  fault.kind = FaultKind::race;
  fault.other_thread = other_thread;
  fault.other_site = long_site(other_site);
  fault.other_write = other_write;
  if (const Barrier* barrier = barrier_after(time)) {
    fault.barrier_site = barrier->site;
    fault.barrier_flags = barrier->flags;
  }
  if (time < clock.group_begin) fault.expected = 1;  // another threadgroup's: no barrier can order them
  return fault;
}

// Reads since the last barrier that orders them are kept as: one thread, several of one SIMD-group, or more.
inline void remember_read(Space space, Cell& cell, const void* site) {
  const uint32_t me = current->index, simd = me / kLanes;
  const SimdClock& simd_clock = clock.simd[simd];
  if (cell.read_time < clock.ordered[space]) {
    cell.many_readers = cell.many_reader_simds = false;
  } else if (cell.reader_simd != simd) {
    cell.many_reader_simds = true;
  } else if (cell.read_simd_time < simd_clock.ordered[space]) {
    cell.many_readers = false;
  } else if (cell.reader != me) {
    cell.many_readers = true;
  }
  cell.read_time = clock.now;
  cell.read_simd_time = simd_clock.now;
  cell.read_site = short_site(site);
  cell.reader = uint16_t(me);
  cell.reader_simd = uint8_t(simd);
}

// Has another thread read the byte without a barrier since?
inline bool read_elsewhere(Space space, const Cell& cell) {
  const uint32_t me = current->index, simd = me / kLanes;
  if (cell.read_time < clock.group_begin) return space == kDevice && cell.read_time != 0;
  if (cell.read_time < clock.ordered[space]) return false;
  if (cell.many_reader_simds || cell.reader_simd != simd) return true;
  return cell.read_simd_time >= clock.simd[simd].ordered[space] && (cell.many_readers || cell.reader != me);
}

inline bool written(Space space, const Cell& cell) {
  return space == kShared ? cell.write_time >= clock.group_begin : cell.write_time != 0;
}

inline bool sees_write(Space space, const Cell& cell, bool atomic) {
  return !written(space, cell) || (atomic && cell.atomic) ||
         ordered(space, cell.writer, cell.write_time, cell.write_simd_time);
}

inline void check_read(Space space, Cell& cell, const Fault& fault, bool initialised, bool atomic) {
  if (!written(space, cell) && !initialised && unexplained.fault.kind == FaultKind::none) {
    unexplained = {fault, 100000};
    unexplained.fault.kind = FaultKind::uninitialised;
    unexplained.fault.thread = current->index;
    memcpy(unexplained.fault.group, current->threadgroup_position, sizeof(fault.group));
  }
  if (!sees_write(space, cell, atomic)) raise(race(fault, cell.writer, cell.write_time, cell.write_site, true));
  if (!atomic) remember_read(space, cell, fault.site);
}

// True if the write collides with another thread's write: not yet a fault, see PendingWrite.
inline bool check_write(Space space, Cell& cell, const Fault& fault, bool atomic, Fault* collision) {
  if (read_elsewhere(space, cell)) raise(race(fault, cell.reader, cell.read_time, cell.read_site, false));
  const bool collides = !sees_write(space, cell, atomic);
  if (collides) *collision = race(fault, cell.writer, cell.write_time, cell.write_site, true);
  cell.write_time = clock.now;
  cell.write_simd_time = clock.simd[current->index / kLanes].now;
  cell.write_site = short_site(fault.site);
  cell.writer = uint16_t(current->index);
  cell.atomic = atomic;
  return collides;
}

inline void check_cells(Space space, Cell* cells, uintptr_t address, const Fault& fault, bool initialised, bool atomic) {
  bool collides = false;
  Fault collision;
  for (uint32_t i = 0; i < fault.bytes; i++) {
    if (fault.write) {
      collides |= check_write(space, cells[i], fault, atomic, &collision);
    } else {
      check_read(space, cells[i], fault, initialised, atomic);
    }
  }
  if (!collides) return;
  if (fault.bytes > sizeof(pending.before)) raise(collision);
  pending.address = address;
  pending.size = fault.bytes;
  pending.fault = collision;
  memcpy(pending.before, reinterpret_cast<void*>(address), fault.bytes);
}

}  // namespace simulator
