// accept: how many drafts are right, and the tokens that the round emits.
//
// Computes   accepted = the number of leading j with choices[j] == block[j + 1]
//            result   = [accepted, choices[0..accepted], -1, -1, ...]
//            A right draft equals the target's choice, so the emitted tokens are choices alone: the
//            accepted drafts, then the bonus token.
// Shapes     choices [L] int32, the target's choice after each row; block [L] int32, the anchor and
//            the drafts; result [L + 1] int32.
// Grid       one SIMD-group: (32, 1, 1) in groups of (32, 1, 1).
// Why        the host reads one small array a round, and what follows on the GPU need not wait for
//            it. A lane compares one draft; the votes of all lanes are a word whose lowest zero is
//            the answer: no loop, no memory between threads.
// Limits     1 <= L <= 32. L is no template argument: the last blocks of a text are shorter, and each
//            L would be a kernel to compile.

// body
const uint rows = choices_shape[0], lane = thread_index_in_simdgroup;
bool right = lane + 1 < rows && choices[lane] == block[lane + 1];
uint votes = uint(ulong(simd_ballot(right)));
uint accepted = ctz(~votes);
if (lane == 0) result[0] = int(accepted);
if (lane < rows) result[lane + 1] = lane <= accepted ? choices[lane] : -1;
