// block_attention: a block's rows against a cached context and the block itself.
//
// Computes   softmax(q K^T scale) V per row, K being the context's first `length` rows and then the
//            block's own, without a copy that holds both.
// Shapes     queries [B, H, L, D]; context_keys and context_values [B, H_kv, capacity, D]; block_keys
//            and block_values [B, H_kv, L, D]; settings [8] int32 (see Setting); sinks [H] float32.
//            Direct: rows_out [B, H, L, D] in T. Else rows_out [B H_kv, G L, splits, D] float32 and
//            tops_and_sums [B H_kv, G L, splits, 2], for block_attention_combine.
// Grid       x: splits of SPLIT keys at fixed absolute positions; y: groups of query rows; z: B H_kv.
//            A SIMD-group takes TILES x 8 of the G L query rows that share a KV head.
// Why        Keys and values are staged once for all rows and heads of a threadgroup, so each byte is
//            read ceil(L G D / 16,384) times; scores and values are matrix operations; a tile that no
//            row sees is not read.
// Bits       A row's result depends on its query and its visible keys alone. Tiles and splits begin at
//            absolute positions, whichever segment a key lies in; what a row does not see multiplies
//            its sums by exactly 1 and adds 0.
// Limits     D in {8, 16, 32, 64, 80, 96, 128, 256}, G L <= 512. One row of one head keeps a single SIMD-group a
//            split busy: short contexts leave a large GPU idle.

// body
using namespace dflash;
constexpr int KEYS = D * sizeof(T) <= 256 ? 32 : D * sizeof(T) <= 512 ? 16 : 8;
constexpr int STRIDE = D + 16 / sizeof(T);  // shifts each key to other memory banks
constexpr int PARTS = D / 8;
constexpr int QUADS = D / 4;
threadgroup vec<T, 4> key_quads[KEYS * STRIDE / 4];
threadgroup vec<T, 4> value_quads[KEYS * STRIDE / 4];
const threadgroup T* key_tile = (const threadgroup T*)key_quads;
const threadgroup T* value_tile = (const threadgroup T*)value_quads;

const int rows = settings[ROWS], length = settings[LENGTH], window = settings[WINDOW];
const int origin = settings[FIRST], total = settings[GROUP] * rows;
const bool causal = settings[CAUSAL];
const int begin = origin + max(0, length - window + 1), end = origin + length + rows;
const int split = begin / SPLIT + int(threadgroup_position_in_grid.x);
const int stop = min(end, (split + 1) * SPLIT);
const uint kv_head = threadgroup_position_in_grid.z;

const uint lane = thread_index_in_simdgroup;
const int my_row = fragment_row(lane), my_column = fragment_column(lane);
const int row0 =
    int(threadgroup_position_in_grid.y * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) *
    TILES * 8;

vec<T, 2> query[TILES][PARTS];
simdgroup_float8x8 mixed[TILES][PARTS];
float top[TILES], sum[TILES];
int behind[TILES];  // where my row's query stands
for (int t = 0; t < TILES; t++) {
  const int row = row0 + 8 * t + my_row;
  const ulong at = (ulong(kv_head) * total + min(row, total - 1)) * D + my_column;
  for (int p = 0; p < PARTS; p++) {
    query[t][p] = row < total ? *(const device vec<T, 2>*)(queries + at + 8 * p) : vec<T, 2>(T(0));
    mixed[t][p] = simdgroup_float8x8(0.0f);
  }
  top[t] = NOTHING;
  sum[t] = 0.0f;
  behind[t] = length + row % rows;
}

for (int tile = max(begin, split * SPLIT) / KEYS * KEYS; tile < stop; tile += KEYS) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = thread_index_in_threadgroup; i < KEYS * QUADS; i += simdgroups_per_threadgroup * 32) {
    const int key = i / QUADS, part = i % QUADS * 4;
    const int place = tile + key - origin;
    vec<T, 4> k = vec<T, 4>(T(0)), v = vec<T, 4>(T(0));
    if (tile + key >= begin && place < length) {
      const ulong at = (ulong(kv_head) * settings[CAPACITY] + place) * D + part;
      k = *(const device vec<T, 4>*)(context_keys + at);
      v = *(const device vec<T, 4>*)(context_values + at);
    } else if (place >= length && place < length + rows) {
      const ulong at = (ulong(kv_head) * rows + (place - length)) * D + part;
      k = *(const device vec<T, 4>*)(block_keys + at);
      v = *(const device vec<T, 4>*)(block_values + at);
    }
    key_quads[(key * STRIDE + part) / 4] = k;
    value_quads[(key * STRIDE + part) / 4] = v;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (row0 >= total) continue;

  simdgroup_float8x8 scores[TILES][KEYS / 8];
  for (int t = 0; t < TILES; t++)
    for (int n = 0; n < KEYS / 8; n++) scores[t][n] = simdgroup_float8x8(0.0f);
  for (int p = 0; p < PARTS; p++) {
    simdgroup_float8x8 left[TILES], right;
    for (int t = 0; t < TILES; t++) mine(left[t]) = float2(float(query[t][p][0]), float(query[t][p][1]));
    for (int n = 0; n < KEYS / 8; n++) {
      const int at = (8 * n + my_column) * STRIDE + 8 * p + my_row;
      mine(right) = float2(float(key_tile[at]), float(key_tile[at + STRIDE]));
      for (int t = 0; t < TILES; t++)
        simdgroup_multiply_accumulate(scores[t][n], left[t], right, scores[t][n]);
    }
  }

  for (int t = 0; t < TILES; t++) {
    float tile_top = NOTHING;
    for (int n = 0; n < KEYS / 8; n++) {
      for (int e = 0; e < 2; e++) {
        const int place = tile + 8 * n + my_column + e - origin;
        const bool seen = place >= 0 && place < length + rows && sees(place - behind[t], window, causal);
        const float score = seen ? mine(scores[t][n])[e] * scale[0] : NOTHING;
        mine(scores[t][n])[e] = score;
        tile_top = max(tile_top, score);
      }
    }
    const float new_top = max(top[t], row_max(tile_top));
    const float kept = rescaled(top[t], new_top);
    float added = 0.0f;
    for (int n = 0; n < KEYS / 8; n++) {
      for (int e = 0; e < 2; e++) {
        const float score = mine(scores[t][n])[e];
        const float weight = score == NOTHING ? 0.0f : exp(score - new_top);
        mine(scores[t][n])[e] = weight;
        added = added + weight;
      }
    }
    top[t] = new_top;
    sum[t] = fma(sum[t], kept, added);
    for (int p = 0; p < PARTS; p++) mine(mixed[t][p]) *= kept;
  }

  for (int p = 0; p < PARTS; p++) {
    for (int n = 0; n < KEYS / 8; n++) {
      simdgroup_float8x8 right;
      const int at = (8 * n + my_row) * STRIDE + 8 * p + my_column;
      mine(right) = float2(float(value_tile[at]), float(value_tile[at + 1]));
      for (int t = 0; t < TILES; t++)
        simdgroup_multiply_accumulate(mixed[t][p], scores[t][n], right, mixed[t][p]);
    }
  }
}

for (int t = 0; t < TILES; t++) sum[t] = row_sum(sum[t]);
for (int t = 0; t < TILES; t++) {
  const int row = row0 + 8 * t + my_row;
  if (row >= total) break;
  const ulong at = ulong(kv_head) * total + row;
  if (DIRECT) {
    const int head = int(kv_head) % settings[KV_HEADS] * settings[GROUP] + row / rows;
    const Ending last = ending(top[t], sum[t], SINKS ? float(sinks[head]) : NOTHING);
    for (int p = 0; p < PARTS; p++)
      for (int e = 0; e < 2; e++)
        rows_out[at * D + 8 * p + my_column + e] = Out(mine(mixed[t][p])[e] * last.factor / last.divisor);
  } else {
    const ulong piece = at * threadgroups_per_grid.x + threadgroup_position_in_grid.x;
    for (int p = 0; p < PARTS; p++)
      for (int e = 0; e < 2; e++) rows_out[piece * D + 8 * p + my_column + e] = Out(mine(mixed[t][p])[e]);
    if (my_column == 0) {
      tops_and_sums[2 * piece] = top[t];
      tops_and_sums[2 * piece + 1] = sum[t];
    }
  }
}
