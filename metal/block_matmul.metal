// block_matmul: a block's rows times a weight matrix, transposed.
//
// Computes   product[m, n] = sum_k rows_in[m, k] W[n, k], in float32.
// Shapes     rows_in [M, K] in T; weights [N, K BITS / 32] uint32 with scales and biases [N, K / GROUP]
//            (affine: W = scale q + bias), or plain floats [N, K] (BITS 16 or 32). product [M, N] in T.
// Grid       a threadgroup of 256 takes 64 of the N outputs and all M rows: (256 ceil(N / 64), 1, 1).
// Why        Each weight is read by one lane, dequantized once and multiplied with 8, 16 or 32 rows in
//            matrix operations (TILES of 8 rows). Rows are staged as float32, so that nothing is
//            widened twice, in the order in which the weights' words fill their fragments.
// Bits       Tiles have one shape at every M and sums run over k in order: a row's bits depend on
//            nothing but itself and the weights.
// Limits     M <= 32, K % 32 == 0. One row costs an 8-row tile: about 1.5 times stock where arithmetic
//            is the limit. 64 outputs a threadgroup leave a large GPU idle below N = 4,096.

// body
using namespace dflash;
constexpr int ROWS = 8 * TILES;
constexpr int CHUNK = 4096 / ROWS;  // 16 KiB of rows
threadgroup float staged[CHUNK * ROWS];

const int M = rows_in_shape[0], K = rows_in_shape[1], N = weights_shape[0];
const uint lane = thread_index_in_simdgroup;
const int my_row = fragment_row(lane), my_column = fragment_column(lane);
const int n = int(threadgroup_position_in_grid.x) * 64 + int(simdgroup_index_in_threadgroup) * 8 + my_row;
const ulong width = weights_shape[1];
const ulong groups = K / GROUP;

simdgroup_float8x8 sums[TILES];
for (int t = 0; t < TILES; t++) sums[t] = simdgroup_float8x8(0.0f);
float scale = 1.0f, bias = 0.0f;

for (int chunk = 0; chunk < K; chunk += CHUNK) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = thread_index_in_threadgroup; i < CHUNK / 4 * ROWS; i += 256) {
    const int m = i % ROWS, k = i / ROWS * 4;
    vec<T, 4> four = vec<T, 4>(T(0));
    if (m < M && chunk + k < K) four = *(const device vec<T, 4>*)(rows_in + ulong(m) * K + chunk + k);
    for (int e = 0; e < 4; e++) staged[(k / 32 * 32 + permuted(k % 32 + e)) * ROWS + m] = float(four[e]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int k = chunk; k < min(K, chunk + CHUNK); k += 32) {
    if (BITS <= 8 && k % GROUP == 0) {  // one lane of a row reads its scale, another its bias
      const ulong at = n * groups + k / GROUP;
      float part = 0.0f;
      if (n < N && my_column == 0) part = float(scales[at]);
      if (n < N && my_column == 2) part = float(biases[at]);
      scale = simd_shuffle(part, lane & ~9u);
      bias = simd_shuffle(part, (lane & ~9u) + 1);
    }
    float w[8] = {};
    if (n < N) eight<BITS>(weights + n * width, k + 4 * my_column, w);
    if (BITS <= 8)
      for (int i = 0; i < 8; i++) w[i] = fma(scale, w[i], bias);
    for (int i = 0; i < 4; i++) {
      simdgroup_float8x8 left, right;
      mine(left) = float2(w[2 * i], w[2 * i + 1]);
      for (int t = 0; t < TILES; t++) {
        simdgroup_load(right, staged + (k - chunk + 8 * i) * ROWS + 8 * t, ROWS);
        simdgroup_multiply_accumulate(sums[t], left, right, sums[t]);
      }
    }
  }
}

for (int t = 0; t < TILES; t++) {
  for (int e = 0; e < 2; e++) {
    const int m = 8 * t + my_column + e;
    if (m < M && n < N) product[ulong(m) * N + n] = T(mine(sums[t])[e]);
  }
}
