// 8x8 matrices as the lanes of a SIMD-group hold them, for kernels that fill them from any type.
//
// Lane l holds two neighbours of a row (`mine`): row fragment_row(l), columns fragment_column(l) and
// the next.
// The lanes of one row differ in bits 0 and 3, so a row is reduced by shuffles over xor 1 and 8.
// What follows is added and multiplied as written: no fusing, no reordering, no flushing of NaN.
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

namespace dflash {

METAL_FUNC uint fragment_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
METAL_FUNC uint fragment_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

METAL_FUNC thread float2& mine(thread simdgroup_float8x8& matrix) {
  return reinterpret_cast<thread float2&>(matrix.thread_elements());
}

METAL_FUNC float row_max(float x) {
  x = metal::max(x, metal::simd_shuffle_xor(x, 1));
  return metal::max(x, metal::simd_shuffle_xor(x, 8));
}
METAL_FUNC float row_sum(float x) {
  x = x + metal::simd_shuffle_xor(x, 1);
  return x + metal::simd_shuffle_xor(x, 8);
}

}  // namespace dflash
