// Rows of a weight matrix as left operands of matrix operations: eight neighbours a lane.
//
// A product sums over k in any order, as long as both operands agree. So a lane of row r and column
// pair c (0..3) takes the eight weights k0 + 8 c .. k0 + 8 c + 7: whole words, each read by one lane,
// and pair i of them fills fragment i of four. The right operand's row j of fragment i is then
// k0 + 8 (j / 2) + 2 i + j % 2: `permuted` says where a k of 32 lies among them.
namespace dflash {

METAL_FUNC int permuted(int k) { return k / 2 % 4 * 8 + k / 8 * 2 + k % 2; }

// Packed whole numbers: a lane's eight are 4 or 8 bytes.
template <int BITS>
METAL_FUNC void eight(const device uint* row, int k, thread float* w) {
  if (BITS == 4) {
    const uint word = row[k / 8];
    for (int i = 0; i < 8; i++) w[i] = float(word >> (4 * i) & 15);
  } else {
    const uint2 words = *(const device uint2*)(row + k / 4);
    for (int i = 0; i < 8; i++) w[i] = float(words[i / 4] >> (8 * (i % 4)) & 255);
  }
}

// Plain floats.
template <int BITS, typename W>
METAL_FUNC void eight(const device W* row, int k, thread float* w) {
  for (int j = 0; j < 2; j++) {
    const vec<W, 4> four = *(const device vec<W, 4>*)(row + k + 4 * j);
    for (int i = 0; i < 4; i++) w[4 * j + i] = float(four[i]);
  }
}

// One thread of a threadgroup of 256, and where it stands in a fragment.
struct Worker {
  int index, simdgroup, lane, row, column;
};
METAL_FUNC Worker worker(uint index, uint simdgroup, uint lane) {
  return Worker{int(index), int(simdgroup), int(lane), int(fragment_row(lane)), int(fragment_column(lane))};
}

// sums[panel TILES + tile] += W[first + 8 panel ..][k] rows_in[8 tile ..][k], over all k in order.
//
// `first` is the first of this SIMD-group's PANELS x 8 weight rows. The threadgroup's 256 threads come
// together: they stage the rows as float32, `staged` holding 4,096, in chunks of k.
template <int BITS, int GROUP, int TILES, int PANELS, typename T, typename W, typename S>
METAL_FUNC void multiply(thread simdgroup_float8x8* sums, const device T* rows_in, int M, int K,
                         const device W* weights, ulong width, const device S* scales,
                         const device S* biases, int first, int N, threadgroup float* staged, Worker me) {
  constexpr int ROWS = 8 * TILES;
  constexpr int CHUNK = 4096 / ROWS;
  const int groups = K / GROUP;
  float scale[PANELS], bias[PANELS];
  for (int chunk = 0; chunk < K; chunk += CHUNK) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = me.index; i < CHUNK / 4 * ROWS; i += 256) {
      const int m = i % ROWS, k = i / ROWS * 4;
      vec<T, 4> four = vec<T, 4>(T(0));
      if (m < M && chunk + k < K) four = *(const device vec<T, 4>*)(rows_in + ulong(m) * K + chunk + k);
      for (int e = 0; e < 4; e++) staged[(k / 32 * 32 + permuted(k % 32 + e)) * ROWS + m] = float(four[e]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (int k = chunk; k < metal::min(K, chunk + CHUNK); k += 32) {
      float w[PANELS][8];
      for (int p = 0; p < PANELS; p++) {
        const int n = first + 8 * p + me.row;
        if (BITS <= 8 && k % GROUP == 0) {  // one lane of a row reads its scale, another its bias
          const ulong at = ulong(n) * groups + k / GROUP;
          float part = 0.0f;
          if (n < N && me.column == 0) part = float(scales[at]);
          if (n < N && me.column == 2) part = float(biases[at]);
          scale[p] = simd_shuffle(part, me.lane & ~9);
          bias[p] = simd_shuffle(part, (me.lane & ~9) + 1);
        }
        for (int i = 0; i < 8; i++) w[p][i] = 0.0f;
        if (n < N) eight<BITS>(weights + ulong(n) * width, k + 4 * me.column, w[p]);
        if (BITS <= 8)
          for (int i = 0; i < 8; i++) w[p][i] = metal::fma(scale[p], w[p][i], bias[p]);
      }
      for (int i = 0; i < 4; i++) {
        for (int t = 0; t < TILES; t++) {
          simdgroup_float8x8 left, right;
          simdgroup_load(right, staged + (k - chunk + 8 * i) * ROWS + 8 * t, ROWS);
          for (int p = 0; p < PANELS; p++) {
            mine(left) = float2(w[p][2 * i], w[p][2 * i + 1]);
            simdgroup_multiply_accumulate(sums[p * TILES + t], left, right, sums[p * TILES + t]);
          }
        }
      }
    }
  }
}

}  // namespace dflash
