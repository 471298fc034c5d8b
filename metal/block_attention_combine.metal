// block_attention_combine: the splits of block_attention, added up in the order of their keys.
//
// Computes   sum_s w_s values_s / sum_s w_s sum_s, w_s = exp(top_s - max top), with the row's sink.
// Shapes     partials [R, S, D] float32 and tops_and_sums [R, S, 2] float32, R = B H L rows in order;
//            sinks [H] float32; settings as for block_attention. rows_out [R, D] in T.
// Grid       (32, R, 1) in groups of (32, 1, 1): a SIMD-group a row, a lane every 32nd value.
// Why        Threadgroups cannot wait for one another, so this is a second launch; the order is fixed
//            by absolute position, and a split that the row does not see is skipped, so that more
//            splits elsewhere change no bit.
// Limits     The partials are written and read once: 8 D bytes for each row and split.

// body
using namespace dflash;
const uint row = threadgroup_position_in_grid.y, lane = thread_index_in_simdgroup;
const uint head = row / settings[ROWS] % (settings[GROUP] * settings[KV_HEADS]);
const uint pieces = tops_and_sums_shape[1];
float top = NOTHING;
for (uint s = 0; s < pieces; s++) top = max(top, tops_and_sums[(row * pieces + s) * 2]);
float sum = 0.0f, mixed[(D + 31) / 32] = {};
for (uint s = 0; s < pieces; s++) {
  const ulong piece = ulong(row) * pieces + s;
  const float piece_top = tops_and_sums[2 * piece];
  if (piece_top == NOTHING) continue;
  const float weight = rescaled(piece_top, top);
  sum = fma(tops_and_sums[2 * piece + 1], weight, sum);
  for (uint c = lane; c < D; c += 32) mixed[c / 32] = fma(partials[piece * D + c], weight, mixed[c / 32]);
}
const Ending last = ending(top, sum, SINKS ? float(sinks[head]) : NOTHING);
for (uint c = lane; c < D; c += 32) rows_out[ulong(row) * D + c] = T(mixed[c / 32] * last.factor / last.divisor);
