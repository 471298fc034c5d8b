// Fibers: one GPU thread each, switched by hand.
//
// A switch saves what the C calling convention says a callee keeps, and nothing else: about 2 ns, where
// swapcontext makes a system call. Floating-point modes are shared by all fibers on purpose.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace simulator {

#if defined(__x86_64__)

__attribute__((naked, noinline)) inline void switch_fiber(void** /*save*/, void* /*load*/) {
  __asm__ volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

// A stack on which the first switch "returns" into `main`, aligned as after a call.
inline void* new_fiber(uint8_t* top, void (*main)()) {
  void** sp = reinterpret_cast<void**>(top) - 2;
  *sp = reinterpret_cast<void*>(main);
  sp -= 6;
  for (int i = 0; i < 6; i++) sp[i] = nullptr;
  return sp;
}

#elif defined(__aarch64__)

__attribute__((naked, noinline)) inline void switch_fiber(void** /*save*/, void* /*load*/) {
  __asm__ volatile(
      "sub sp, sp, #160\n"
      "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
      "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
      "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
      "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
      "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
      "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
      "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
      "add sp, sp, #160\n ret\n");
}

inline void* new_fiber(uint8_t* top, void (*main)()) {
  uint64_t* sp = reinterpret_cast<uint64_t*>(top - 16) - 20;
  for (int i = 0; i < 20; i++) sp[i] = 0;
  sp[11] = reinterpret_cast<uint64_t>(main);  // x30, the return address
  return sp;
}

#else
#error "the simulator switches fibers on x86-64 and arm64 only"
#endif

}  // namespace simulator
