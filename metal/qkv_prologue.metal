// qkv_prologue: what lies between the q/k/v projection and attention.
//
// Computes   queries and keys: RMSNorm over each head (if NORM), then rope; values: moved only.
// Shapes     projected [B, L, (H + 2 H_kv) D] in T, the heads of q, k and v side by side; q_weight and
//            k_weight [D]; wavelengths [rotated / 2] float32; settings [8] int32 and numbers [4]
//            float32 (see the enums). queries [B, H, L, D], keys and values [B, H_kv, L, D] in T.
// Grid       (32 (H + 2 H_kv), L, B): a SIMD-group a head of a row, a lane every 32nd pair.
// Why        One launch instead of two norms, two ropes and three transpositions; attention gets
//            contiguous arrays, so that nothing is copied for it. Float32 from load to store.
// Bits       A head of a row is one SIMD-group's own work; its sum is an xor ladder.
// Limits     The same first position for the whole batch; D even.

namespace dflash {
enum Setting { POSITION, ROWS, HEADS, KV_HEADS, ROTATED };
enum Number { EPSILON, POSITION_SCALE, MAGNITUDE };
}  // namespace dflash

// body
using namespace dflash;
constexpr int PAIRS = (D / 2 + 31) / 32;
const int heads = settings[HEADS], kv_heads = settings[KV_HEADS], rows = settings[ROWS];
const int all = heads + 2 * kv_heads, turned = settings[ROTATED] / 2;
const int head = int(threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup);
const int row = threadgroup_position_in_grid.y, batch = threadgroup_position_in_grid.z;
const int lane = thread_index_in_simdgroup;
const bool is_query = head < heads, is_value = head >= heads + kv_heads;

float2 pair[PAIRS];
int2 place[PAIRS];
float squares = 0.0f;
const ulong from = ((ulong(batch) * rows + row) * all + head) * D;
for (int i = 0; i < PAIRS; i++) {
  const int p = lane + 32 * i;
  const bool halves = p < turned && !INTERLEAVED && !is_value;
  place[i] = halves ? int2(p, p + turned) : int2(2 * p, 2 * p + 1);
  pair[i] = p < D / 2 ? float2(float(projected[from + place[i].x]), float(projected[from + place[i].y]))
                      : float2(0.0f, 0.0f);
  squares = fma(pair[i].x, pair[i].x, squares);
  squares = fma(pair[i].y, pair[i].y, squares);
}
for (ushort step = 1; step < 32; step *= 2) squares = squares + simd_shuffle_xor(squares, step);

if (!is_value) {
  const float inverse = NORM ? rsqrt(squares / float(D) + numbers[EPSILON]) : 1.0f;
  const float position = float(settings[POSITION] + row) * numbers[POSITION_SCALE];
  for (int i = 0; i < PAIRS; i++) {
    const int p = lane + 32 * i;
    if (p >= D / 2) break;
    float x = pair[i].x, y = pair[i].y;
    if (NORM) {
      x = x * inverse * (is_query ? float(q_weight[place[i].x]) : float(k_weight[place[i].x]));
      y = y * inverse * (is_query ? float(q_weight[place[i].y]) : float(k_weight[place[i].y]));
    }
    x = x * numbers[MAGNITUDE];
    y = y * numbers[MAGNITUDE];
    if (p < turned) {
      const float angle = position * (1.0f / wavelengths[p]);
      const float c = cos(angle), s = sin(angle);
      pair[i] = float2(fma(x, c, -(y * s)), fma(x, s, y * c));
    } else {
      pair[i] = float2(x, y);
    }
  }
}

for (int i = 0; i < PAIRS; i++) {
  if (lane + 32 * i >= D / 2) break;
  for (int e = 0; e < 2; e++) {
    const int c = place[i][e];
    if (is_query)
      queries[((ulong(batch) * heads + head) * rows + row) * D + c] = T(pair[i][e]);
    else if (!is_value)
      keys[((ulong(batch) * kv_heads + head - heads) * rows + row) * D + c] = T(pair[i][e]);
    else
      values[((ulong(batch) * kv_heads + head - heads - kv_heads) * rows + row) * D + c] = T(pair[i][e]);
  }
}
