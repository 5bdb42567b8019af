// Scores of given tokens by rows of logits.
#pragma once
#include "sample_scan.cuh"

EXPORT_CONSTANT int kScoreThreads = 256;

// Parameters of the scoring of given tokens.
// Kernels: sample/sample_score
struct SampleScoreParams {
  const float *logits;     // [rows, vocab]
  const float *seg_max;    // [rows, segments]: the greatest logit of each segment
  const SeenRecord *seen;  // [rows, chunks]
  const uint32_t *given;   // [rows]
  uint32_t *ranks;         // [rows]
  float *logprobs;         // [rows]
  int vocab;
};

// Computes each token's log-probability (NaN if a logit is broken or none is finite) and its rank:
// one more than the number of tokens that are more likely. `scan` has processed the rows without
// adjustments, so segments without a more likely token need not be read again. The grid is [rows].
DEVICE void score(const SampleScoreParams &p) {
  constexpr int kWarps = kScoreThreads / kWarp;
  SHARED(uint32_t, counts, kWarps);
  wait_for_previous_kernel();
  const int row = blockIdx.x;
  const RowLayout layout(p.vocab);
  const RowSummary m = summarize(p.seen + int64_t(row) * layout.chunks, layout.chunks);
  const float *own = p.logits + int64_t(row) * p.vocab, *maxima = p.seg_max + int64_t(row) * layout.segments;
  const float logit = sanitize(own[p.given[row]]);
  uint32_t above = 0;
  for (int segment = threadIdx.x / kWarp; segment < layout.segments; segment += kWarps) {
    if (!(maxima[segment] > logit)) continue;
    each_four(own, segment, p.vocab, p.vocab % 4 == 0, [&](int, float4 v) {
      above += uint32_t(sanitize(v.x) > logit) + uint32_t(sanitize(v.y) > logit) +
               uint32_t(sanitize(v.z) > logit) + uint32_t(sanitize(v.w) > logit);
    });
  }
  let_next_kernel_start();
  above = block_reduce<kScoreThreads>(above, counts, Add());
  if (threadIdx.x != 0) return;
  p.ranks[row] = m.invalid ? 1 : above + 1;
  p.logprobs[row] = m.invalid ? __uint_as_float(0x7fc00000u)
                              : float(double(logit) - double(m.max) - m.log_sum);
}
