// draft_head: the best tokens of each draft row, without its logits ever being written.
//
// Computes   logits = cap tanh(hidden W^T multiplier / cap) (no cap: 0), scores = logits / T + Gumbel noise
//            (if NOISE), and of each row the COUNT best scores and log(sum exp(logits)), in pieces:
//            one for every SPAN of the vocabulary, for draft_head_merge.
// Shapes     hidden [R, K] in T; weights, scales and biases as for block_matmul, [N, ..]; tokens [N] int32
//            (if MAPPED: the ids of a draft vocabulary); streams [R, 2] uint32 (if NOISE); numbers [4]
//            float32 (see Number). best_scores and best_ids [R, spans, COUNT]; masses [R, spans, 2].
// Grid       (256 spans, 1, 1) in groups of 256, spans = ceil(N / SPAN).
// Why        A tile of 128 tokens is multiplied as in block_matmul, each weight read once, and looked at
//            where it lies, in threadgroup memory; few candidates beat the worst of those kept, so
//            looking costs little. What leaves is R spans (8 COUNT + 8) bytes instead of 4 R N.
// Bits       Tiles and spans begin at fixed tokens; a row is one SIMD-group's own work.
// Limits     R <= 32, COUNT <= 64, K % 32 == 0.

namespace dflash {
enum Factor { MULTIPLIER, CAP, COLDNESS };
}

// body
using namespace dflash;
constexpr int KEPT = (COUNT + 31) / 32;
constexpr int WIDTH = 128;
threadgroup float staged[4096];  // rows while multiplying, then a tile's logits
const int M = hidden_shape[0], K = hidden_shape[1], N = weights_shape[0];
const Worker me = worker(thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
const uint span = threadgroup_position_in_grid.x, spans = threadgroups_per_grid.x;

Candidate kept[TILES][KEPT], worst[TILES];
Mass mass[TILES];
for (int t = 0; t < TILES; t++) {
  clear<COUNT>(kept[t], me.lane);
  worst[t] = worst_of<COUNT>(kept[t], me.lane);
  mass[t] = Mass{-INFINITY, 0.0f};
}

for (int tile = span * SPAN; tile < min(N, int(span + 1) * SPAN); tile += WIDTH) {
  simdgroup_float8x8 sums[2 * TILES];
  for (int i = 0; i < 2 * TILES; i++) sums[i] = simdgroup_float8x8(0.0f);
  multiply<BITS, GROUP, TILES, 2>(sums, hidden, M, K, weights, weights_shape[1], scales, biases,
                                  tile + me.simdgroup * 16, N, staged, me);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < 2 * TILES; i++)
    for (int e = 0; e < 2; e++)
      staged[(i % TILES * 8 + me.column + e) * WIDTH + me.simdgroup * 16 + i / TILES * 8 + me.row] = mine(sums[i])[e];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int t = 0; t < TILES; t++) {
    const int m = me.simdgroup + 8 * t;
    if (m >= M) break;
    for (int i = me.lane; i < WIDTH; i += 32) {
      const int n = tile + i;
      const bool real = n < N;
      float logit = staged[m * WIDTH + i] * numbers[MULTIPLIER];
      if (numbers[CAP] != 0.0f) logit = tanh(logit / numbers[CAP]) * numbers[CAP];
      if (real) mass[t] = with(mass[t], logit);
      const uint token = MAPPED ? uint(tokens[min(n, N - 1)]) : uint(n);
      float score = logit * numbers[COLDNESS];
      if (NOISE) score = score + gumbel(streams[2 * m], streams[2 * m + 1], token);
      offer<COUNT>(kept[t], worst[t], Candidate{score, token}, real, me.lane);
    }
  }
}

for (int t = 0; t < TILES; t++) {
  const int m = me.simdgroup + 8 * t;
  if (m >= M) break;
  for (ushort step = 1; step < 32; step *= 2)
    mass[t] = joined(mass[t], Mass{simd_shuffle_xor(mass[t].top, step), simd_shuffle_xor(mass[t].sum, step)});
  const ulong piece = ulong(m) * spans + span;
  for (int e = 0; e < KEPT; e++) {
    const int slot = me.lane + 32 * e;
    if (slot < COUNT) {
      best_scores[piece * COUNT + slot] = kept[t][e].score;
      best_ids[piece * COUNT + slot] = kept[t][e].id;
    }
  }
  if (me.lane == 0) {
    masses[2 * piece] = mass[t].top;
    masses[2 * piece + 1] = mass[t].sum;
  }
}
