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

}  // namespace dflash
