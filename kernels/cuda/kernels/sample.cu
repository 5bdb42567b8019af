// Sampling: chooses a token for each row of logits by the row's parameters, and reports its
// log-probability and the most likely tokens.
//
// Sampling takes three launches. `sample_scan` reads all logits; for greedy rows and rows with
// top-k, most logits are not read again. `sample_draw` reads the rows again that draw from all
// tokens, or that need the mass of all tokens. `sample_finish` reads the rest, with one block per
// row. No kernel sorts a vocabulary, and no sum depends on how the work is divided.
//
// `sample_score` scores a given token after `sample_scan`; `sample_finish` then finds the most
// likely tokens.
#include "sample_finish.cuh"
#include "sample_plain.cuh"
#include "sample_score.cuh"

BOUNDED_KERNEL(sample_scan, kScanThreads, 4, SampleParams) { scan(p); }
BOUNDED_KERNEL(sample_draw, kScanThreads, 3, SampleParams) { draw(p); }
BOUNDED_KERNEL(sample_finish, kFinishThreads, 1, SampleParams) { finish(p); }
BOUNDED_KERNEL(sample_score, kScoreThreads, 4, SampleScoreParams) { score(p); }
BOUNDED_KERNEL(sample_plain_rows, kPlainThreads, 2, SampleParams) { sample_plain(p); }
