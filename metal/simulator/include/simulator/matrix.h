// <metal_simdgroup_matrix>: 8x8 matrices spread over the 32 lanes of a SIMD-group.
//
// Lane l holds two neighbours of a row (q = l / 4): row (q & 4) + (l / 2) % 4, columns (q & 2) * 2 + (l % 2) * 2
// and the next. Products are summed in float, one after the other with fma or pairwise (Arithmetic::tree_mma);
// the order inside Apple's unit is not known, so a kernel must not depend on it.
#pragma once

#include "simulator/simdgroup.h"

SIMULATOR_BEGIN

namespace simulator {

inline unsigned fragment_row(unsigned lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline unsigned fragment_column(unsigned lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

}  // namespace simulator

namespace metal {

template <typename T, int Rows, int Columns>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "Metal has 8x8 matrices only");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    const unsigned lane = simulator::my_lane();
    const unsigned row = simulator::fragment_row(lane), column = simulator::fragment_column(lane);
    for (unsigned j = 0; j < 2; j++) elements[j] = row == column + j ? diagonal : T(0);
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

}  // namespace metal

namespace simulator {

inline float dot8(const float* a, const float (*b)[8], unsigned column, float sum, bool tree) {
#pragma clang fp contract(off)
  if (!tree) {
    for (unsigned k = 0; k < 8; k++) sum = __builtin_fmaf(a[k], b[k][column], sum);
    return sum;
  }
  float product[8];
  for (unsigned k = 0; k < 8; k++) product[k] = a[k] * b[k][column];
  return sum + (((product[0] + product[1]) + (product[2] + product[3])) +
                ((product[4] + product[5]) + (product[6] + product[7])));
}

struct Fragments {
  float a[2], b[2], c[2];
};

// D = A B + C for the whole SIMD-group, from all lanes' fragments: `result` gets each lane's two elements.
inline void multiply(const Exchange* exchange, float (*result)[2], bool tree) {
  float a[8][8], b[8][8], c[8][8];
  for (unsigned lane = 0; lane < kLanes; lane++) {
    const auto part = operand<Fragments>(exchange, lane);
    const unsigned row = fragment_row(lane), column = fragment_column(lane);
    for (unsigned j = 0; j < 2; j++) {
      a[row][column + j] = part.a[j];
      b[row][column + j] = part.b[j];
      c[row][column + j] = part.c[j];
    }
  }
  for (unsigned lane = 0; lane < kLanes; lane++) {
    const unsigned row = fragment_row(lane), column = fragment_column(lane);
    for (unsigned j = 0; j < 2; j++) result[lane][j] = dot8(a[row], b, column + j, c[row][column + j], tree);
  }
}

// Only to check that all lanes are here; no value goes anywhere.
SIMULATOR_CALL inline void together(const char* operation) { meet(operation, SIMULATOR_SITE, 0); }

// Where a lane's two elements lie: the step to the first and from it to the second.
struct Place {
  ulong first, step;
};
METAL_FUNC Place fragment_place(ulong per_row, ulong2 origin, bool transpose) {
  const unsigned lane = my_lane();
  const ulong row = fragment_row(lane) + origin.y, column = fragment_column(lane) + origin.x;
  return transpose ? Place{column * per_row + row, per_row} : Place{row * per_row + column, 1};
}

}  // namespace simulator

namespace metal {

template <typename T, typename A, typename B, typename C>
SIMULATOR_CALL void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                                  const simdgroup_matrix<B, 8, 8>& b,
                                                  const simdgroup_matrix<C, 8, 8>& c) {
  simulator::Fragments mine;
  for (int j = 0; j < 2; j++) {
    mine.a[j] = float(a.elements[j]);
    mine.b[j] = float(b.elements[j]);
    mine.c[j] = float(c.elements[j]);
  }
  auto* exchange = simulator::meet("simdgroup_multiply_accumulate", SIMULATOR_SITE, mine);
  auto* result = reinterpret_cast<float(*)[2]>(exchange->result);
  if (!exchange->ready) {
    simulator::multiply(exchange, result, simulator_arithmetic()->tree_mma);
    simulator_count_matrix_operation();
    exchange->ready = 1;
  }
  for (int j = 0; j < 2; j++) d.elements[j] = T(result[simulator::my_lane()][j]);
}

SIMULATOR_END

// From here on it is the kernel that reads and writes.

template <typename T, typename A, typename B>
METAL_FUNC void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> zero(T(0));
  simdgroup_multiply_accumulate(d, a, b, zero);
}

template <typename T, int Rows, int Columns>
METAL_FUNC simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Rows, Columns> filled;
  filled.elements = vec<T, 2>(value);
  return filled;
}

template <typename T, int Rows, int Columns>
METAL_FUNC simdgroup_matrix<T, Rows, Columns> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Rows, Columns>(value);
}

// Metal loads and stores a matrix in memory of its own type only.
#ifdef SIMULATOR_ADDRESS_SPACES
#define SIMULATOR_SAME_TYPE(pointer, T)
#else
#define SIMULATOR_SAME_TYPE(pointer, T)                                                   \
  static_assert(is_same_v<remove_cv_t<remove_reference_t<decltype(*pointer)>>, T>,        \
                "a simdgroup_matrix is loaded from and stored to memory of its own type");
#endif

template <typename T, typename Pointer>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, Pointer source, ulong elements_per_row = 8,
                               ulong2 origin = ulong2(0), bool transpose = false) {
  SIMULATOR_SAME_TYPE(source, T)
  simulator::together("simdgroup_load");
  const auto place = simulator::fragment_place(elements_per_row, origin, transpose);
  d.elements[0] = source[place.first];
  d.elements[1] = source[place.first + place.step];
}

template <typename T, typename Pointer>
METAL_FUNC void simdgroup_store(simdgroup_matrix<T, 8, 8> a, Pointer destination, ulong elements_per_row = 8,
                                ulong2 origin = ulong2(0), bool transpose = false) {
  SIMULATOR_SAME_TYPE(destination, T)
  simulator::together("simdgroup_store");
  const auto place = simulator::fragment_place(elements_per_row, origin, transpose);
  destination[place.first] = a.elements[0];
  destination[place.first + place.step] = a.elements[1];
}

}  // namespace metal
