// draft_head_merge: the best tokens of each row, from the best of every span.
//
// Shapes     best_scores float32 and best_ids uint32 [R, spans, COUNT], masses [R, spans, 2] float32.
//            ids [R, COUNT] int32 and scores [R, COUNT] float32, best first, the lower id where scores
//            are equal; logsumexp [R] float32.
// Grid       (32, R, 1) in groups of (32, 1, 1): a SIMD-group a row.
// Why        A second launch, since threadgroups cannot wait for one another.
// Bits       Sums run over spans in order; the order of candidates is total.
// Limits     COUNT <= 64.

// body
using namespace dflash;
const uint row = threadgroup_position_in_grid.y, lane = thread_index_in_simdgroup;
const uint spans = masses_shape[1], offered = spans * COUNT;
Candidate kept[(COUNT + 31) / 32];
clear<COUNT>(kept, lane);
Candidate worst = worst_of<COUNT>(kept, lane);
for (uint base = 0; base < offered; base += 32) {
  const uint i = base + lane;
  const ulong at = ulong(row) * offered + min(i, offered - 1);
  const Candidate next{best_scores[at], best_ids[at]};
  offer<COUNT>(kept, worst, next, i < offered && next.id < NOBODY, lane);
}
for (uint slot = 0; slot < COUNT; slot++) {
  const Candidate best = take_best<COUNT>(kept, lane);
  if (lane == 0) {
    ids[row * COUNT + slot] = int(best.id);
    scores[row * COUNT + slot] = best.score;
  }
}
float top = -INFINITY, sum = 0.0f;
for (uint s = 0; s < spans; s++) top = max(top, masses[(row * spans + s) * 2]);
for (uint s = 0; s < spans; s++)
  sum = fma(masses[(row * spans + s) * 2 + 1], exp(masses[(row * spans + s) * 2] - top), sum);
if (lane == 0) logsumexp[row] = top + log(sum);
