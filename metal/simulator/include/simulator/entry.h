// How the runtime calls a kernel: one function that takes buffers by number and reads the rest off the thread.
//
// The driver writes, for `[[kernel]] void f(const device float* a, constant int& n, uint3 tid [[...]])`:
//   SIMULATOR_ENTRY(f, Buffer<0>, Buffer<1>, Builtin<&Thread::position_in_grid>)
#pragma once

#include "simulator/runtime.h"
#include "simulator/traits.h"

namespace simulator {

SIMULATOR_BEGIN

template <unsigned index>
struct Buffer {
  template <typename P>
  static P as(void* const* buffers) {
    if constexpr (__is_pointer(P)) {
      return reinterpret_cast<P>(buffers[index]);
    } else {
      return *reinterpret_cast<__remove_reference_t(P)*>(buffers[index]);
    }
  }
};

template <auto Member>
struct Builtin {
  template <typename P>
  static P as(void* const*) {
    const auto& value = simulator_thread()->*Member;
    using C = Components<__remove_cv(P)>;
    if constexpr (C::count == 1) {
      return P(value[0]);
    } else {
      __remove_cv(P) result;
      for (int i = 0; i < C::count; i++) result[i] = typename C::element(value[i]);
      return result;
    }
  }
};

// The builtins that are one number.
enum class Number { index, lane, simdgroup, simdgroups, lanes, quad_lane, quad };
template <Number which>
struct Scalar {
  template <typename P>
  static P as(void* const*) {
    const Thread* t = simulator_thread();
    switch (which) {
      case Number::index: return P(t->index);
      case Number::lane: return P(t->index % kLanes);
      case Number::simdgroup: return P(t->index / kLanes);
      case Number::simdgroups: return P((t->threads + kLanes - 1) / kLanes);
      case Number::lanes: return P(kLanes);
      case Number::quad_lane: return P(t->index % 4);
      case Number::quad: return P(t->index / 4);
    }
  }
};

template <typename... Slots, typename... Parameters>
inline void call(void (*function)(Parameters...), void* const* buffers) {
  static_assert(sizeof...(Slots) == sizeof...(Parameters));
  function(Slots::template as<Parameters>(buffers)...);
}

SIMULATOR_END

}  // namespace simulator

#define SIMULATOR_ENTRY(function, ...)                                             \
  SIMULATOR_BEGIN extern "C" void simulator_entry(void* const* buffers) {          \
    using namespace simulator;                                                     \
    call<__VA_ARGS__>(function, buffers);                                          \
  }                                                                                \
  SIMULATOR_END

// Where this kernel's threadgroup variables lie: the linker knows the ends of the section.
#ifdef __APPLE__
extern "C" simulator::SharedHeader simulator_section_begin __asm("section$start$__DATA$threadgroup");
extern "C" simulator::SharedHeader simulator_section_end __asm("section$end$__DATA$threadgroup");
#else
extern "C" simulator::SharedHeader simulator_section_begin __asm("__start_simulator_threadgroup")
    __attribute__((weak, visibility("hidden")));
extern "C" simulator::SharedHeader simulator_section_end __asm("__stop_simulator_threadgroup")
    __attribute__((weak, visibility("hidden")));
#endif
SIMULATOR_BEGIN
extern "C" simulator::SharedHeader* simulator_shared_begin() { return &simulator_section_begin; }
extern "C" simulator::SharedHeader* simulator_shared_end() { return &simulator_section_end; }
SIMULATOR_END
