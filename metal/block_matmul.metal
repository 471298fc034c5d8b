// block_matmul: a block's rows times a weight matrix, transposed.
//
// Computes   product[m, n] = sum_k rows_in[m, k] W[n, k], in float32.
// Shapes     rows_in [M, K] in T; weights [N, K BITS / 32] uint32 with scales and biases [N, K / GROUP]
//            (affine: W = scale q + bias), or plain floats [N, K] (BITS 16 or 32). product [M, N] in T.
// Grid       a threadgroup of 256 takes 64 PANELS of the N outputs and all M rows:
//            (256 ceil(N / (64 PANELS)), 1, 1).
// Why        Each weight is read by one lane, dequantized once and multiplied with 8, 16 or 32 rows in
//            matrix operations (TILES of 8 rows). Rows are staged as float32, so that nothing is
//            widened twice, in the order in which the weights' words fill their fragments. Many outputs
//            take two panels, which halves how often the rows are staged.
// Bits       Tiles have one shape at every M and sums run over k in order: a row's bits depend on
//            nothing but itself and the weights.
// Limits     M <= 32, K % 32 == 0. One row costs an 8-row tile: about 1.5 times stock where arithmetic
//            is the limit. 64 outputs a threadgroup leave a large GPU idle below N = 4,096.

// body
using namespace dflash;
threadgroup float staged[4096];
const int M = rows_in_shape[0], K = rows_in_shape[1], N = weights_shape[0];
const Worker me = worker(thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
const int first = (int(threadgroup_position_in_grid.x) * 8 + me.simdgroup) * 8 * PANELS;

simdgroup_float8x8 sums[PANELS * TILES];
for (int i = 0; i < PANELS * TILES; i++) sums[i] = simdgroup_float8x8(0.0f);
multiply<BITS, GROUP, TILES, PANELS>(sums, rows_in, M, K, weights, weights_shape[1], scales, biases, first, N,
                                     staged, me);
for (int i = 0; i < PANELS * TILES; i++) {
  const int n = first + i / TILES * 8 + me.row;
  for (int e = 0; e < 2; e++) {
    const int m = i % TILES * 8 + me.column + e;
    if (m < M && n < N) product[ulong(m) * N + n] = T(mine(sums[i])[e]);
  }
}
