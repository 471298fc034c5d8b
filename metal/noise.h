// Gumbel noise, bit for bit that of dflash_mlx/engine/noise.py: Threefry-2x32-20 keyed by a row's stream
// with the token as counter, and the logarithm of Cephes in single operations.
namespace dflash {

METAL_FUNC uint threefry(uint key0, uint key1, uint counter) {
  const uint keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  const uint rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint x = counter + keys[0], y = keys[1];
  for (uint group = 0; group < 5; group++) {
    for (uint i = 0; i < 4; i++) {
      x = x + y;
      y = metal::rotate(y, rotations[group % 2][i]) ^ x;
    }
    x = x + keys[(group + 1) % 3];
    y = y + keys[(group + 2) % 3] + group + 1;
  }
  return x;
}

METAL_FUNC float natural_log(float x) {  // x in (0, infinity), normal
  const uint bits = as_type<uint>(x);
  const float mantissa = as_type<float>((bits & 0x7FFFFFu) | 0x3F800000u);
  const bool high = mantissa > 1.41421356f;
  const float f = (high ? mantissa * 0.5f : mantissa) - 1.0f;
  const float e = float(int(bits >> 23) - 127 + int(high));
  const float square = f * f;
  const float coefficients[8] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                                 -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  float tail = 7.0376836292e-2f;
  for (int i = 0; i < 8; i++) tail = tail * f + coefficients[i];
  tail = tail * f * square;
  tail = tail + e * -2.12194440e-4f;
  tail = tail - 0.5f * square;
  return f + tail + e * 0.693359375f;
}

METAL_FUNC float gumbel(uint key0, uint key1, uint token) {
  const float uniform = (float(threefry(key0, key1, token) >> 9) + 0.5f) * 1.1920928955078125e-07f;
  return -natural_log(-natural_log(uniform));
}

}  // namespace dflash
