// In place of MLX's, whose constructors need address spaces: enough for the headers that mention the type.
#pragma once

#include <metal_stdlib>

template <typename T>
struct complex_t {
  T real, imag;
  constexpr complex_t(T real, T imag) : real(real), imag(imag) {}
};
using complex64_t = complex_t<float>;
