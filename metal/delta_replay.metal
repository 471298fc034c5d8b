// delta_replay: a Gated DeltaNet state after the rows that were accepted, from the rows' saved inputs.
//
// Computes   for t < accepted: S = S g_t; d = (v_t - S k_t) beta_t; S = S + d k_t^T, in float32.
// Shapes     state_in and state_out [B, Hv, Dv, Dk] float32; keys [B, T, Hk, Dk]; values [B, T, Hv, Dv];
//            gates [B, T, Hv] or, if VECTOR, [B, T, Hv, Dk]; betas [B, T, Hv]; accepted [1] int32.
// Grid       (32, Dv / 4, B Hv) in groups of (32, 4, 1): a SIMD-group keeps four rows of one state, a
//            lane Dk / 32 neighbours of each.
// Why        A verifying pass leaves the state after all rows. Running the layer again over the accepted
//            ones would repeat projections, convolution and outputs; this reads what they left, only
//            the accepted rows, and computes no output. The count stays on the GPU: no wait for it.
//            Four rows share a reading of the keys.
// Bits       Every sum is written in the order of mlx-lm's sequential kernels: along a lane, then over
//            xor 1, 2, 4, 8, 16. Fusing is left to the compiler as it is there (no pragma), so that
//            both fuse alike; the number of rows changes nothing, as there is one loop for any.
// Limits     Dk a multiple of 32, Dv of 16.

// body
constexpr int EACH = DK / 32;
const int rows = keys_shape[1], key_heads = keys_shape[2], value_heads = values_shape[2];
const int number = threadgroup_position_in_grid.z;
const int batch = number / value_heads, head = number % value_heads;
const int key_head = head / (value_heads / key_heads);
const int first = thread_position_in_grid.y * 4, lane = thread_index_in_simdgroup;
const ulong at = (ulong(number) * DV + first) * DK + lane * EACH;

float state[4][EACH];
for (int r = 0; r < 4; r++)
  for (int i = 0; i < EACH; i++) state[r][i] = state_in[at + r * DK + i];

for (int t = 0; t < min(accepted[0], rows); t++) {
  const ulong row = ulong(batch) * rows + t;
  const ulong key_at = (row * key_heads + key_head) * DK + lane * EACH;
  const ulong head_at = row * value_heads + head;
  float key[EACH];
  for (int i = 0; i < EACH; i++) key[i] = float(keys[key_at + i]);
  const float beta = float(betas[head_at]);
  for (int r = 0; r < 4; r++) {
    float recalled = 0.0f;
    for (int i = 0; i < EACH; i++) {
      const float gate = float(VECTOR ? gates[head_at * DK + lane * EACH + i] : gates[head_at]);
      state[r][i] = state[r][i] * gate;
      recalled += state[r][i] * key[i];
    }
    for (ushort step = 1; step < 32; step *= 2) recalled += simd_shuffle_xor(recalled, step);
    const float delta = (float(values[head_at * DV + first + r]) - recalled) * beta;
    for (int i = 0; i < EACH; i++) state[r][i] = state[r][i] + key[i] * delta;
  }
}

for (int r = 0; r < 4; r++)
  for (int i = 0; i < EACH; i++) state_out[at + r * DK + i] = state[r][i];
