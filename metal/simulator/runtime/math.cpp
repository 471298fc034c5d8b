// Transcendental functions: the C library's, moved by `exp_ulp` units in the last place.
//
// Metal promises a few units at best and every chip has its own, so what holds only for one choice does not
// hold. Exact results stay exact: f(0), infinities, NaN.

#include <math.h>

#include "machine.h"

namespace {

float moved(float result, float argument) {
  const int32_t ulp = simulator::launch->arithmetic.exp_ulp;
  if (ulp == 0 || argument == 0.0f || result == 0.0f || !__builtin_isfinite(result)) return result;
  const float shifted = __builtin_bit_cast(float, __builtin_bit_cast(int32_t, result) + ulp);
  return __builtin_isfinite(shifted) ? shifted : result;
}

uint16_t round_to_bf16(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (__builtin_isnan(value)) return uint16_t(bits >> 16 | 0x40);
  bits += 0x7fff + (bits >> 16 & 1);
  return uint16_t(bits >> 16);
}

}  // namespace

extern "C" {

float simulator_exp(float x) { return moved(expf(x), x); }
float simulator_exp2(float x) { return moved(exp2f(x), x); }
float simulator_log(float x) { return moved(logf(x), x); }
float simulator_log2(float x) { return moved(log2f(x), x); }
float simulator_log10(float x) { return moved(log10f(x), x); }
float simulator_sin(float x) { return moved(sinf(x), x); }
float simulator_cos(float x) { return moved(cosf(x), x); }
float simulator_tan(float x) { return moved(tanf(x), x); }
float simulator_tanh(float x) { return moved(tanhf(x), x); }
float simulator_erf(float x) { return moved(erff(x), x); }
float simulator_atan2(float y, float x) { return moved(atan2f(y, x), y); }
float simulator_pow(float x, float y) { return moved(powf(x, y), y); }
float simulator_rsqrt(float x) { return moved(float(1.0 / sqrt(double(x))), x); }
float simulator_fmod(float x, float y) { return fmodf(x, y); }

#if defined(__x86_64__)
// float -> bfloat16, which clang calls and the C library of older systems lacks. Returned in xmm0.
__bf16 __truncsfbf2(float value) { return __builtin_bit_cast(__bf16, round_to_bf16(value)); }
#endif

}  // extern "C"
