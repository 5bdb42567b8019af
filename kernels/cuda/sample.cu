// Sampling: a token per row of logits, chosen as the row's parameters ask, with its log-probability and the most likely tokens.
//
// Three launches. `sample_scan` reads all logits; greedy rows and rows with top-k need nothing else of most of them. `sample_draw` reads
// those rows again that draw from all tokens, or take a share of the mass of all. `sample_finish` reads what is left to read of a row, by
// one block. No step sorts a vocabulary, and no sum depends on how the work is divided.
//
// A token that is there already is judged by `sample_score` behind `sample_scan`; `sample_finish` finds the most likely ones beside it.
#include "sample_finish.cuh"
#include "sample_plain.cuh"
#include "sample_score.cuh"

KERNEL __launch_bounds__(kScanThreads, 4) sample_scan(const float *logits, float *adjusted, float *seg_max, void *seen, const uint32_t *table, int stride,
                                                   const uint32_t *history, int history_stride, const uint32_t *bias_ids, const float *biases,
                                                   const uint32_t *masks, int mask_stride, int vocab) {
  scan(logits, adjusted, seg_max, static_cast<Seen *>(seen), table, stride, Adjust{history, bias_ids, biases, masks, history_stride, mask_stride}, vocab);
}
REGISTER(sample_scan)

KERNEL __launch_bounds__(kScanThreads, 3) sample_draw(const float *logits, const float *adjusted, const void *seen, void *chunk, const uint32_t *table,
                                                   int stride, int vocab) {
  draw(logits, adjusted, static_cast<const Seen *>(seen), static_cast<Chunk *>(chunk), table, stride, vocab);
}
REGISTER(sample_draw)

KERNEL __launch_bounds__(kFinishThreads, 1) sample_finish(const float *logits, const float *adjusted, const float *seg_max, const void *seen,
                                                       const void *chunk, const uint32_t *table, int stride, const uint32_t *masks, int mask_stride,
                                                       uint32_t *tokens, float *logprobs, uint32_t *top_ids, float *top_logprobs,
                                                       uint32_t *top_counts, int top_stride, int vocab) {
  finish(logits, adjusted, seg_max, static_cast<const Seen *>(seen), static_cast<const Chunk *>(chunk), table, stride,
         Adjust{nullptr, nullptr, nullptr, masks, 0, mask_stride}, Outcome{tokens, logprobs, top_ids, top_logprobs, top_counts, top_stride}, vocab);
}
REGISTER(sample_finish)

KERNEL __launch_bounds__(kScoreThreads, 4) sample_score(const float *logits, const float *seg_max, const void *seen, const uint32_t *given, uint32_t *ranks,
                                                    float *logprobs, int vocab) {
  score(logits, seg_max, static_cast<const Seen *>(seen), given, ranks, logprobs, vocab);
}
REGISTER(sample_score)

KERNEL __launch_bounds__(kPlainThreads, 2) sample_plain_rows(const float *logits, float *work, const uint32_t *table, int stride, const uint32_t *history,
                                                         int history_stride, const uint32_t *bias_ids, const float *biases, const uint32_t *masks,
                                                         int mask_stride, uint32_t *tokens, float *logprobs, uint32_t *top_ids, float *top_logprobs,
                                                         uint32_t *top_counts, int top_stride, int vocab) {
  sample_plain(logits, work, table, stride, Adjust{history, bias_ids, biases, masks, history_stride, mask_stride},
               Outcome{tokens, logprobs, top_ids, top_logprobs, top_counts, top_stride}, vocab);
}
REGISTER(sample_plain_rows)
