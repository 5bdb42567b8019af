// The passes over all logits, in which several blocks share a row: a block processes a chunk, a
// warp a segment.
//
// `scan` applies penalties, biases and masks, and computes maxima and sums. `draw` reads the row's
// greatest logit from its records. It draws tokens if no filter but min-p is on, or adds up the
// mass that top-p is a share of. Both write one record per chunk, and these are combined in the
// order of the chunks.
#pragma once
#include "sample_row.cuh"

EXPORT_CONSTANT int kScanThreads = kChunk / kSegment * kWarp;
// The number of 16-byte vectors of a segment that a lane reads.
constexpr int kSteps = kSegment / (4 * kWarp);

// The result of `scan` for a chunk.
struct __align__(8) SeenRecord {
  float max, sum;  // of the logits whose log-probabilities are reported: the greatest one, and the sum of
                   // e^(x - max)
  float best;      // greatest adjusted logit and its id
  int best_id;
  uint32_t finite;  // bit 0: some logit is; bit 1: some adjusted logit is; bit 2: some logit is broken
  uint32_t unused;
};
// The result of `draw` for a chunk.
struct __align__(8) ChunkRecord {
  double score;  // of the best token, whose id is negative if no token can win
  u64 mass;      // of all tokens, in units of `weight`
  int id;
  float sum;  // of e^x over the tokens above min-p's floor
};

// Parameters of the sampling of rows; each kernel reads a part of them.
// Kernels: sample/sample_scan, sample/sample_draw, sample/sample_finish, sample/sample_plain_rows
struct SampleParams {
  const float *logits;    // [rows, vocab]: the model's own
  float *adjusted;        // [rows, vocab]: what a token is chosen from where it differs from the logits
  float *seg_max;         // [2, rows, segments]: greatest logit of a segment, adjusted and the model's
  SeenRecord *seen;       // [rows, chunks]
  ChunkRecord *chunks;    // [rows, chunks]
  const uint32_t *table;  // [columns, table_stride]
  AdjustParams adjust;
  OutcomeParams outcome;
  int table_stride;
  int vocab;
};

// Segments of a row, and records of its chunks.
struct RowLayout {
  int vocab, segments, chunks;
  DEVICE explicit RowLayout(int n) : vocab(n), segments(ceil_div(n, kSegment)), chunks(ceil_div(n, kChunk)) {}
};

// Loads a lane's four neighbors at `id`; those beyond the end of the row are impossible. `whole`:
// rows start at multiples of 16 bytes.
DEVICE float4 load_four(const float *row, int id, int vocab, bool whole) {
  if (whole && id + 4 <= vocab) return *reinterpret_cast<const float4 *>(row + id);
  const float none = -infinity();
  return make_float4(id < vocab ? row[id] : none, id + 1 < vocab ? row[id + 1] : none,
                     id + 2 < vocab ? row[id + 2] : none, id + 3 < vocab ? row[id + 3] : none);
}

// Calls f(id, four logits) for a segment. The lanes of a warp call it together. All loads are
// started before the first is used.
template <class F> DEVICE void each_four(const float *row, int segment, int vocab, bool whole, F f) {
  static_assert(kSteps == 4, "four vectors by name");
  const int first = segment * kSegment + int(threadIdx.x % kWarp) * 4;
  const float4 a = load_four(row, first, vocab, whole), b = load_four(row, first + 4 * kWarp, vocab, whole);
  const float4 c = load_four(row, first + 8 * kWarp, vocab, whole),
               d = load_four(row, first + 12 * kWarp, vocab, whole);
#pragma unroll 1
  for (int s = 0; s < kSteps; s++) f(first + s * 4 * kWarp, s == 0 ? a : s == 1 ? b : s == 2 ? c : d);
}

// The combination of a row's records. Every warp reads all of them; the number of chunks fixes the
// order in which lanes combine them.
struct RowSummary {
  float max;       // of the reported logits
  double log_sum;  // ln sum e^(x - max)
  float best;
  int best_id;
  bool invalid;  // whether a logit is broken, or none is finite after the adjustments
};
DEVICE RowSummary summarize(const SeenRecord *seen, int chunks) {
  float max = -infinity(), best = -infinity();
  int best_id = 0x7fffffff;
  double sum = 0.0;
  uint32_t finite = 0;
  const int lane = threadIdx.x % kWarp;
  for (int c = lane; c < chunks; c += kWarp) max = fmaxf(max, seen[c].max);
  max = warp_reduce(max, Max());
  for (int c = lane; c < chunks; c += kWarp) {
    const SeenRecord s = seen[c];
    if (s.max > -infinity()) sum += double(s.sum) * double(expf(s.max - max));
    if (s.best > best || (s.best == best && s.best_id < best_id)) best = s.best, best_id = s.best_id;
    finite |= s.finite;
  }
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    finite |= __shfl_xor_sync(kAllLanes, finite, lanes);
    const float other = __shfl_xor_sync(kAllLanes, best, lanes);
    const int other_id = __shfl_xor_sync(kAllLanes, best_id, lanes);
    if (other > best || (other == best && other_id < best_id)) best = other, best_id = other_id;
  }
  __syncwarp();
  return RowSummary{max, log(sum), best, best_id, finite != 3};
}

// The grid is [chunks, rows].
DEVICE void scan(const SampleParams &p) {
  SHARED(uint32_t, counts, kChunk);
  SHARED(float, maxima, kScanThreads / kWarp);
  SHARED(float, sums, kScanThreads / kWarp);
  SHARED(float, bests, kScanThreads / kWarp);
  SHARED(int, best_ids, kScanThreads / kWarp);
  SHARED(uint32_t, finites, kScanThreads / kWarp);
  wait_for_previous_kernel();
  const AdjustParams &a = p.adjust;
  const ParamTable t{p.table, p.table_stride, int(blockIdx.y)};
  const RowLayout layout(p.vocab);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int start = int(blockIdx.x) * kChunk, segment = int(blockIdx.x) * (kChunk / kSegment) + warp;
  const float *row = p.logits + int64_t(t.row) * p.vocab;
  const bool whole = p.vocab % 4 == 0, adjusts = t.adjusted();

  float raw[4 * kSteps], x[4 * kSteps];
  bool broken = false;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
    const float4 v = load_four(row, start + warp * kSegment + (s * kWarp + lane) * 4, p.vocab, whole);
    broken |= is_broken(v.x) | is_broken(v.y) | is_broken(v.z) | is_broken(v.w);
    raw[4 * s] = sanitize(v.x), raw[4 * s + 1] = sanitize(v.y), raw[4 * s + 2] = sanitize(v.z),
            raw[4 * s + 3] = sanitize(v.w);
  }
  uint32_t finite = 0;
#pragma unroll
  for (int s = 0; s < kSteps; s++) {
    const int id = start + warp * kSegment + (s * kWarp + lane) * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[4 * s + i] = raw[4 * s + i];
      if (id + i < p.vocab && is_finite(raw[4 * s + i])) finite = 1;
    }
  }
  auto place = [&](int s, int i) { return warp * kSegment + (s * kWarp + lane) * 4 + i; };
  if (adjusts) {
    for (int i = threadIdx.x; i < kChunk; i += kScanThreads) counts[i] = 0;
    __syncthreads();
    if (t.penalized()) {
      // Searches the whole history for this chunk's tokens. It lies in the L2 cache, and no table
      // of the vocabulary's size is needed per sequence.
      const uint32_t *history = a.history + int64_t(t.word(kSlot)) * a.history_stride;
      const int tokens = int(t.word(kPosition)), prompt = int(t.word(kPromptLen));
      for (int i = threadIdx.x; i < tokens; i += kScanThreads) {
        const uint32_t at = history[i] - uint32_t(start);
        if (at >= uint32_t(kChunk)) continue;
        atomicOr(&counts[at], kSeen);
        if (i >= prompt) atomicAdd(&counts[at], 1u);
      }
    }
    __syncthreads();
    const uint32_t previous = t.watermarked() ? last_token(a, t) : 0;
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
      float four[4] = {raw[4 * s], raw[4 * s + 1], raw[4 * s + 2], raw[4 * s + 3]};
      if (t.watermarked()) add_watermark(four, start + place(s, 0), previous, t);
#pragma unroll
      for (int i = 0; i < 4; i++)
        counts[place(s, i)] = __float_as_uint(penalize(four[i], counts[place(s, i)], t));
    }
    __syncthreads();
    const int first = int(t.word(kBiasStart)), biases = int(t.word(kBiasCount));
    for (int b = threadIdx.x; b < biases; b += kScanThreads) {
      const uint32_t id = a.bias_ids[first + b], at = id - uint32_t(start);
      if (at >= uint32_t(kChunk)) continue;
      // The first bias of an id adds all biases of the id, in the order of the list.
      bool is_first = true;
      for (int other = 0; other < b; other++) is_first &= a.bias_ids[first + other] != id;
      if (!is_first) continue;
      float value = __uint_as_float(counts[at]);
      for (int other = b; other < biases; other++) {
        if (a.bias_ids[first + other] == id) value = __fadd_rn(value, a.biases[first + other]);
      }
      counts[at] = __float_as_uint(value);
    }
    __syncthreads();
    const int mask_row = int(t.word(kMaskRow));
    float *to = p.adjusted + int64_t(t.row) * p.vocab;
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int id = start + place(s, i);
        if (id >= p.vocab) continue;
        const float value = is_allowed(a, mask_row, id) ? __uint_as_float(counts[place(s, i)]) : -infinity();
        if (is_finite(value)) finite |= 2;
        x[4 * s + i] = sanitize(value);
        to[id] = x[4 * s + i];
      }
    }
  } else {
    finite |= finite << 1;
  }
  // With this bit the flags are never 3, which marks the row as hopeless.
  if (broken) finite |= 4;

  float seg_raw = -infinity(), seg_x = -infinity();
#pragma unroll
  for (int i = 0; i < 4 * kSteps; i++) seg_raw = fmaxf(seg_raw, raw[i]), seg_x = fmaxf(seg_x, x[i]);
  const bool of_adjusted = t.reports_adjusted();
  // Each thread's sum is relative to its own maximum.
  const float own = of_adjusted ? seg_x : seg_raw;
  float sum = 0.0f;
  if (own > -infinity()) {
#pragma unroll
    for (int i = 0; i < 4 * kSteps; i++)
      sum += exp2_fast(((of_adjusted ? x[i] : raw[i]) - own) * 1.44269504f);
  }
  int best_id = 0x7fffffff;
#pragma unroll
  for (int i = 4 * kSteps - 1; i >= 0; i--) {
    if (x[i] == seg_x) best_id = start + place(i / 4, i % 4);
  }
  float best = seg_x;
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, lanes);
    const int other_id = __shfl_xor_sync(kAllLanes, best_id, lanes);
    if (other > best || (other == best && other_id < best_id)) best = other, best_id = other_id;
    finite |= __shfl_xor_sync(kAllLanes, finite, lanes);
  }
  seg_raw = warp_reduce(seg_raw, Max());
  const float max = of_adjusted ? best : seg_raw;
  sum = own > -infinity() ? sum * exp2_fast((own - max) * 1.44269504f) : 0.0f;
  sum = warp_reduce(sum, Add());
  if (lane == 0) {
    maxima[warp] = max, sums[warp] = sum, bests[warp] = best, best_ids[warp] = best_id,
    finites[warp] = finite;
    if (segment < layout.segments) {
      p.seg_max[int64_t(t.row) * layout.segments + segment] = best;
      p.seg_max[(int64_t(gridDim.y) + t.row) * layout.segments + segment] = seg_raw;
    }
  }
  let_next_kernel_start();
  __syncthreads();
  if (threadIdx.x != 0) return;
  SeenRecord all{-infinity(), 0.0f, -infinity(), 0x7fffffff, 0, 0};
  for (int w = 0; w < kScanThreads / kWarp; w++) all.max = fmaxf(all.max, maxima[w]);
  for (int w = 0; w < kScanThreads / kWarp; w++) {
    if (maxima[w] > -infinity()) all.sum += sums[w] * exp2_fast((maxima[w] - all.max) * 1.44269504f);
    if (bests[w] > all.best) all.best = bests[w], all.best_id = best_ids[w];
    all.finite |= finites[w];
  }
  p.seen[int64_t(t.row) * layout.chunks + blockIdx.x] = all;
}

// Whether `draw` draws the token itself.
DEVICE bool draws_at_once(const ParamTable &t) {
  return t.samples() && t.word(kTopK) == 0 && t.number(kTopP) >= 1.0f && t.number(kTypicalP) >= 1.0f;
}
// Whether `draw` measures the mass that top-p is a share of.
DEVICE bool needs_mass(const ParamTable &t) {
  return t.samples() && t.word(kTopK) == 0 && t.number(kTopP) < 1.0f;
}

// The grid is [chunks, rows].
DEVICE void draw(const SampleParams &p) {
  SHARED(DrawnToken, bests, kScanThreads / kWarp);
  SHARED(u64, masses, kScanThreads / kWarp);
  SHARED(float, sums, kScanThreads / kWarp);
  wait_for_previous_kernel();
  const ParamTable t{p.table, p.table_stride, int(blockIdx.y)};
  const bool draws = draws_at_once(t), weighs = needs_mass(t);
  if (!draws && !weighs) return;
  const RowLayout layout(p.vocab);
  const RowSummary m = summarize(p.seen + int64_t(t.row) * layout.chunks, layout.chunks);
  if (m.invalid) return;
  const float *row = (t.adjusted() ? p.adjusted : p.logits) + int64_t(t.row) * p.vocab;
  const int segment = int(blockIdx.x) * (kChunk / kSegment) + int(threadIdx.x / kWarp);
  const float temperature = t.number(kTemperature), floor = t.number(kFloor);
  const bool needs_sum = t.warped();
  DrawnToken best = nothing_drawn();
  // No token with a lower score can win, because the score of the most likely one is at least this.
  float least = kMinGumbel;
  u64 mass = 0;
  float sum = 0.0f;
  auto x_of = [&](float logit) { return apply_temperature(sanitize(logit), m.best, temperature); };

  if (segment < layout.segments && weighs) {
    each_four(row, segment, p.vocab, p.vocab % 4 == 0, [&](int, float4 v) {
#pragma unroll 1
      for (int i = 0; i < 4; i++) mass += weight(x_of(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w));
    });
  }
  if (segment < layout.segments && draws) {
    each_four(row, segment, p.vocab, p.vocab % 4 == 0, [&](int id, float4 v) {
      const float none = -infinity();
      float4 x = make_float4(x_of(v.x), x_of(v.y), x_of(v.z), x_of(v.w));
      x.x = x.x >= floor ? x.x : none, x.y = x.y >= floor ? x.y : none, x.z = x.z >= floor ? x.z : none,
      x.w = x.w >= floor ? x.w : none;
      if (needs_sum) sum += (expf(x.x) + expf(x.y)) + (expf(x.z) + expf(x.w));
      uint32_t able = 0;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) + kMaxGumbel >= least) {
        words = philox(uint32_t(id / 4), t.word(kPosition), t.word(kSeedLow), t.word(kSeedHigh));
        // E > u and u > 2^-(z + 1), z being the leading zeros of the word, hence g < (z + 1) ln 2.
        auto bound = [](float x, uint32_t word) { return x + float(__clz(int(word)) + 1) * 0.693148f; };
        able = uint32_t(bound(x.x, words.x) >= least) | uint32_t(bound(x.y, words.y) >= least) << 1 |
               uint32_t(bound(x.z, words.z) >= least) << 2 | uint32_t(bound(x.w, words.w) >= least) << 3;
      }
      while (able) {
        const int i = __ffs(int(able)) - 1;
        able &= able - 1;
        const float logit = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
        const uint32_t word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
        best = BetterDraw()(best, DrawnToken{double(logit) + gumbel(word), id + i});
      }
      // The best score of any lane spares the others most of the logarithms.
      least = warp_reduce(fmaxf(least, float(best.score) - 1e-4f), Max());
    });
  }
  let_next_kernel_start();
  sum = warp_reduce(sum, Add());
  mass = warp_reduce(mass, Add());
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum, masses[threadIdx.x / kWarp] = mass;
  best = block_best<kScanThreads>(best, bests);
  if (threadIdx.x != 0) return;
  ChunkRecord all{best.score, 0, best.id, 0.0f};
  for (int w = 0; w < kScanThreads / kWarp; w++) all.sum += sums[w], all.mass += masses[w];
  p.chunks[int64_t(t.row) * layout.chunks + blockIdx.x] = all;
}
