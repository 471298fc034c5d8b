// The best of many candidates, kept by a SIMD-group: slot s lies in lane s % 32.
//
// The order is total, by score and then by the lower id, so what is kept does not depend on the order
// in which candidates are offered.
namespace dflash {

struct Candidate {
  float score;
  uint id;
};
constant constexpr uint NOBODY = 0xffffff00;  // ids from here on are empty slots

METAL_FUNC bool better(Candidate a, Candidate b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

METAL_FUNC Candidate from_xor(Candidate mine, ushort step) {
  return Candidate{metal::simd_shuffle_xor(mine.score, step), metal::simd_shuffle_xor(mine.id, step)};
}

template <int COUNT>
METAL_FUNC void clear(thread Candidate* kept, uint lane) {
  for (uint e = 0; e < (COUNT + 31) / 32; e++) kept[e] = Candidate{-INFINITY, 0xffffffff - (lane + 32 * e)};
}

template <int COUNT>
METAL_FUNC Candidate worst_of(const thread Candidate* kept, uint lane) {
  Candidate worst{INFINITY, 0};
  for (uint e = 0; e < (COUNT + 31) / 32; e++)
    if (lane + 32 * e < COUNT && better(worst, kept[e])) worst = kept[e];
  for (ushort step = 1; step < 32; step *= 2) {
    const Candidate other = from_xor(worst, step);
    if (better(worst, other)) worst = other;
  }
  return worst;
}

// Every lane offers one candidate, or none (`real` false); they are let in while they beat the worst.
template <int COUNT>
METAL_FUNC void offer(thread Candidate* kept, thread Candidate& worst, Candidate mine, bool real, uint lane) {
  bool wants = real && better(mine, worst);
  uint votes = uint(ulong(metal::simd_ballot(wants)));
  while (votes != 0) {
    const ushort giver = ushort(metal::ctz(votes));
    const Candidate next{metal::simd_shuffle(mine.score, giver), metal::simd_shuffle(mine.id, giver)};
    for (uint e = 0; e < (COUNT + 31) / 32; e++)
      if (lane + 32 * e < COUNT && kept[e].id == worst.id) kept[e] = next;
    worst = worst_of<COUNT>(kept, lane);
    wants = wants && lane != giver && better(mine, worst);
    votes = uint(ulong(metal::simd_ballot(wants)));
  }
}

// The best of what is kept, in all lanes; its slot is emptied.
template <int COUNT>
METAL_FUNC Candidate take_best(thread Candidate* kept, uint lane) {
  Candidate best{-INFINITY, 0xffffffff};
  for (uint e = 0; e < (COUNT + 31) / 32; e++)
    if (lane + 32 * e < COUNT && better(kept[e], best)) best = kept[e];
  for (ushort step = 1; step < 32; step *= 2) {
    const Candidate other = from_xor(best, step);
    if (better(other, best)) best = other;
  }
  for (uint e = 0; e < (COUNT + 31) / 32; e++)
    if (lane + 32 * e < COUNT && kept[e].id == best.id) kept[e] = Candidate{-INFINITY, 0xffffffff};
  return best;
}

// log(sum exp) in pieces: a maximum, and the sum of exponentials below it.
struct Mass {
  float top, sum;
};
METAL_FUNC Mass with(Mass mass, float logit) {
  if (logit > mass.top) return Mass{logit, metal::fma(mass.sum, metal::exp(mass.top - logit), 1.0f)};
  return Mass{mass.top, mass.sum + (logit == -INFINITY ? 0.0f : metal::exp(logit - mass.top))};
}
METAL_FUNC Mass joined(Mass a, Mass b) {  // symmetrical, so that all lanes of a ladder agree
  const float top = metal::max(a.top, b.top);
  if (top == -INFINITY) return Mass{top, a.sum + b.sum};
  return Mass{top, a.sum * metal::exp(a.top - top) + b.sum * metal::exp(b.top - top)};
}

}  // namespace dflash
