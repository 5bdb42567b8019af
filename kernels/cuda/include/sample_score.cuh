// What rows of logits make of tokens that are there already.
#pragma once
#include "sample_scan.cuh"

constexpr int kScoreThreads = 256;

// grid [rows]. The token's log-probability, NaN if a logit is broken or none is finite, and one more than the number of tokens that are more likely. `scan` has
// measured the rows, of which nothing was adjusted: segments of nothing more likely are not read again.
DEVICE void score(const float *logits, const float *seg_max, const Seen *seen, const uint32_t *given, uint32_t *ranks, float *logprobs, int vocab) {
  constexpr int kWarps = kScoreThreads / kWarp;
  SHARED(uint32_t, counts, kWarps);
  wait_for_previous_kernel();
  const int row = blockIdx.x;
  const Plan plan(vocab);
  const Measured m = measured(seen + int64_t(row) * plan.chunks, plan.chunks);
  const float *own = logits + int64_t(row) * vocab, *maxima = seg_max + int64_t(row) * plan.segments;
  const float logit = sanitize(own[given[row]]);
  uint32_t above = 0;
  for (int segment = threadIdx.x / kWarp; segment < plan.segments; segment += kWarps) {
    if (!(maxima[segment] > logit)) continue;
    each_four(own, segment, vocab, vocab % 4 == 0, [&](int, float4 v) {
      above += uint32_t(sanitize(v.x) > logit) + uint32_t(sanitize(v.y) > logit) + uint32_t(sanitize(v.z) > logit) + uint32_t(sanitize(v.w) > logit);
    });
  }
  let_next_kernel_start();
  above = block_reduce<kScoreThreads>(above, counts, Add());
  if (threadIdx.x != 0) return;
  ranks[row] = m.hopeless ? 1 : above + 1;
  logprobs[row] = m.hopeless ? __uint_as_float(0x7fc00000u) : float(double(logit) - double(m.max) - m.log_sum);
}
