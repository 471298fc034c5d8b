// What the two launches of block_attention share.
//
// A softmax comes in pieces: each has a maximum, a sum of exponentials below it, and weighted values.
namespace dflash {

enum Setting { LENGTH, ROWS, CAPACITY, FIRST, WINDOW, CAUSAL, GROUP, KV_HEADS };

// Whether a query sees a key that lies `ahead` positions after it (negative: before).
METAL_FUNC bool sees(int ahead, int window, bool causal) {
  return ahead > -window && ahead < (causal ? 1 : window);
}

constant constexpr float NOTHING = -INFINITY;  // the maximum of a piece that sees no key

// What a piece counts for under a new maximum: exactly 1 if that is its own, whatever exp(0) is.
METAL_FUNC float rescaled(float old_top, float new_top) {
  return old_top == new_top ? 1.0f : metal::exp(old_top - new_top);
}

// The factor and the divisor of the values, when an attention sink joins the softmax at the end.
struct Ending {
  float factor, divisor;
};
METAL_FUNC Ending ending(float top, float sum, float sink) {
  float peak = metal::max(top, sink);
  float factor = rescaled(top, peak);
  float drained = sink == NOTHING ? 0.0f : rescaled(sink, peak);
  return Ending{factor, metal::fma(sum, factor, drained)};
}

}  // namespace dflash
