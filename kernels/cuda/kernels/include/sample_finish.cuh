// The last kernel of sampling: one block per row combines the chunks' records, applies the filters,
// draws a token, and writes the results.
#pragma once
#include "sample_search.cuh"

// The tokens that the filters have left.
struct KeptTokens {
  bool listed;  // whether they are the first `n` of the list; otherwise those that `order` has a key for
  int n;
};

// Calls f(id, logit) for all kept tokens.
template <class F> DEVICE void each_kept(const LogitRow &s, const FinishMemory &scratch,
                                         const TokenOrder &order, const KeptTokens &kept, F f) {
  if (!kept.listed) {
    each_token(s, [&](int id, float logit) {
      if (order.key(id, logit) != kNone) f(id, logit);
    });
    return;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < kept.n; i += kFinishThreads) {
    const int id = int(scratch.list[i] & kIdMask);
    f(id, s.logits[id]);
  }
}

// Computes the mass and the entropy of the remaining tokens for typical sampling, and stores them
// in `order`.
DEVICE void measure_entropy(const LogitRow &s, const FinishMemory &scratch, TokenOrder &order,
                            const KeptTokens &kept) {
  u64 mass = 0;
  double moment = 0.0;
  auto add = [&](float logit) {
    const float x = apply_temperature(sanitize(logit), order.max, order.temperature);
    mass += weight(x);
    // Below -745 the weight is 0 in double precision too, and 0 times minus infinity would be NaN.
    if (x > -745.0f) moment += exp(double(x)) * double(x);
  };
  each_kept(s, scratch, order, kept, [&](int, float logit) { add(logit); });
  exclusive_sum(mass, scratch.totals, &mass);
  __syncthreads();
  moment = block_reduce<kFinishThreads>(moment, reinterpret_cast<double *>(scratch.totals), Add());
  const double sum = double(mass) / 8796093022208.0;
  order.log_total = log(sum);
  order.entropy = order.log_total - moment / sum;
}

// Sorts the list by distance from the entropy, or by likelihood again.
DEVICE void sort_again(const LogitRow &s, const FinishMemory &scratch, const TokenOrder &order, int n,
                       OrderKind kind) {
  TokenOrder by = order;
  by.kind = kind;
  by.limit = by.distance_limit = kNone;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += kFinishThreads) {
    const int id = int(scratch.list[i] & kIdMask);
    scratch.list[i] = by.key(id, s.logits[id]);
  }
  sort_list(scratch.list, n);
}

// Applies top-k, top-p, min-p and typical-p to a row, and returns the tokens that they leave.
// `order` has the row's distribution and no limits; `total` is the mass of all tokens, which is
// needed if there is a top-p but no top-k.
DEVICE KeptTokens filter(const LogitRow &s, const FinishMemory &scratch, TokenOrder &order,
                         const ParamTable &t, u64 total) {
  const int top_k = int(t.word(kTopK));
  const float top_p = t.number(kTopP), floor = t.number(kFloor), typical_p = t.number(kTypicalP);
  // These are enough candidates for most nuclei, and rarely more than the list holds.
  const int least = top_k > 0 ? top_k : max(1, s.segments * 3 / 4);
  KeptTokens kept{false, 0};
  // Whether the list holds all tokens that are left so far.
  bool complete = false;
  if (top_k > 0 || top_p < 1.0f || s.vocab <= kList)
    kept.listed = collect_first(s, order, scratch, least, &kept.n, &complete);
#pragma unroll 1
  for (int filter = 0; filter < 3; filter++) {
    const bool by_mass = filter > 0, typical = filter == 2;
    if (typical) {
      kept.listed &= complete;
      if (floor > -infinity()) {
        const u64 lowest = u64(__float_as_uint(-floor) & 0x7fffffffu) << kIdBits | kIdMask;
        order.limit = order.limit < lowest ? order.limit : lowest;
        if (kept.listed) {
          // The list is in order, and its first token is the most likely one.
          u64 above = 0;
          __syncthreads();
          for (int i = threadIdx.x; i < kept.n; i += kFinishThreads) above += scratch.list[i] <= lowest;
          exclusive_sum(above, scratch.totals, &above);
          kept.n = int(above);
        }
      }
    }
    const double share = filter == 0 ? double(top_k) : double(typical ? typical_p : top_p);
    if (filter == 0 ? top_k == 0 : share >= 1.0) continue;
    if (typical) {
      measure_entropy(s, scratch, order, kept);
      if (kept.listed) sort_again(s, scratch, order, kept.n, kByDistance);
    }
    if (kept.listed) {
      weigh_list(s, order, scratch, kept.n, by_mass);
      const u64 mass = by_mass && complete ? sum_of_amounts(scratch) : total;
      u64 below;
      const int last = first_to_reach(scratch, 0, by_mass ? share * double(mass) : share, &below);
      if (last >= 0) {
        kept.n = last + 1;
        complete = true;
      }
      kept.listed = complete;
    }
    if (!kept.listed) {
      order.kind = typical ? kByDistance : kByLikelihood;
      const u64 limit = find_limit(s, order, scratch, by_mass, share);
      order.kind = kByLikelihood;
      if (typical) order.distance_limit = limit; else order.limit = limit;
    }
  }
  if (kept.listed && typical_p < 1.0f) sort_again(s, scratch, order, kept.n, kByLikelihood);
  return kept;
}

// The grid is [rows].
DEVICE void finish(const SampleParams &p) {
  constexpr int kWarps = kFinishThreads / kWarp;
  SHARED(u64, list, kList);
  SHARED(u64, amounts, kBins);
  SHARED(uint32_t, counts, kBins);
  SHARED(u64, totals, kWarps + 1);
  SHARED(int, found, 2);
  SHARED(DrawnToken, bests, kWarps);
  SHARED(float, maxima, kWarps);
  SHARED(double, sums, kWarps);
  wait_for_previous_kernel();
  const FinishMemory scratch{list, amounts, counts, totals, found};
  const ParamTable t{p.table, p.table_stride, int(blockIdx.x)};
  const RowLayout layout(p.vocab);
  const RowSummary m = summarize(p.seen + int64_t(t.row) * layout.chunks, layout.chunks);
  if (m.invalid) {
    if (threadIdx.x == 0) report_nothing(p.outcome, p.adjust, t, p.vocab);
    return;
  }
  const bool is_adjusted = t.adjusted(), warped = t.warped();
  const float *own = p.logits + int64_t(t.row) * p.vocab,
              *chosen_from = is_adjusted ? p.adjusted + int64_t(t.row) * p.vocab : own;
  const LogitRow source{chosen_from, p.seg_max + int64_t(t.row) * layout.segments, p.vocab, layout.segments};
  const ChunkRecord *chunks = p.chunks + int64_t(t.row) * layout.chunks;

  TokenOrder order{kByLikelihood, m.best, t.number(kTemperature), kNone, 0.0, 0.0, kNone};
  int token = m.best_id;
  // These describe the distribution whose log-probabilities are reported.
  float max = m.max;
  double log_sum = m.log_sum;
  KeptTokens kept{false, 0};
  if (draws_at_once(t)) {
    DrawnToken best = nothing_drawn();
    double sum = 0.0;
    for (int c = 0; c < layout.chunks; c++) {
      best = BetterDraw()(best, DrawnToken{chunks[c].score, chunks[c].id});
      sum += double(chunks[c].sum);
    }
    token = best.id;
    if (t.number(kFloor) > -infinity())
      order.limit = u64(__float_as_uint(-t.number(kFloor)) & 0x7fffffffu) << kIdBits | kIdMask;
    if (warped) max = 0.0f, log_sum = log(sum);
  } else if (t.samples()) {
    u64 total = 0;
    for (int c = 0; needs_mass(t) && c < layout.chunks; c++) total += chunks[c].mass;
    kept = filter(source, scratch, order, t, total);
    const uint32_t key_low = t.word(kSeedLow), key_high = t.word(kSeedHigh), position = t.word(kPosition);
    DrawnToken best = nothing_drawn();
    float own_max = -infinity();
    double sum = 0.0;
    each_kept(source, scratch, order, kept, [&](int id, float logit) {
      const float x = apply_temperature(sanitize(logit), order.max, order.temperature);
      own_max = fmaxf(own_max, x);
      const uint4 words = philox(uint32_t(id / 4), position, key_low, key_high);
      const uint32_t word = id % 4 == 0 ? words.x : id % 4 == 1 ? words.y : id % 4 == 2 ? words.z : words.w;
      // Most tokens cannot win, and need no logarithm; see `draw`.
      if (x + float(__clz(int(word)) + 1) * 0.693148f + 1e-4f >= float(best.score))
        best = BetterDraw()(best, DrawnToken{double(x) + gumbel(word), id});
    });
    token = block_best<kFinishThreads>(best, bests).id;
    if (warped) {
      max = block_reduce<kFinishThreads>(own_max, maxima, Max());
      each_kept(source, scratch, order, kept, [&](int, float logit) {
        sum += double(expf(apply_temperature(sanitize(logit), order.max, order.temperature) - max));
      });
      log_sum = log(block_reduce<kFinishThreads>(sum, sums, Add()));
    }
  }
  let_next_kernel_start();
  const bool of_kept = warped && t.samples();
  // The value whose log-probability is reported.
  auto value_of = [&](int id) {
    if (!warped) return sanitize(own[id]);
    const float x = sanitize(chosen_from[id]);
    return of_kept ? apply_temperature(x, order.max, order.temperature) : x;
  };
  if (threadIdx.x == 0) {
    p.outcome.tokens[t.row] = uint32_t(token);
    p.outcome.logprobs[t.row] = float(double(value_of(token)) - double(max) - log_sum);
  }

  const int top_n = min(int(t.word(kTopN)), p.outcome.top_stride);
  int n = 0;
  if (top_n > 0) {
    LogitRow top = source;
    if (!of_kept) {
      order = TokenOrder{kByLogit, 0.0f, 1.0f, kNone, 0.0, 0.0, kNone};
      kept.listed = false;
      if (!warped && is_adjusted) {
        top.logits = own;
        top.seg_max = p.seg_max + (int64_t(gridDim.x) + t.row) * layout.segments;
      }
    }
    bool complete;
    if (kept.listed) {
      n = kept.n;
    } else if (order.distance_limit != kNone || !collect_first(top, order, scratch, top_n, &n, &complete)) {
      // Candidates by segment ignore distances, and may be too many.
      const u64 limit = find_limit(top, order, scratch, false, double(top_n));
      n = collect_up_to(top, order, scratch, limit, false);
      sort_list(list, n);
    }
    n = min(n, top_n);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kFinishThreads) {
      const int id = int(list[i] & kIdMask);
      p.outcome.top_ids[int64_t(t.row) * p.outcome.top_stride + i] = uint32_t(id);
      p.outcome.top_logprobs[int64_t(t.row) * p.outcome.top_stride + i] = float(double(value_of(id)) -
                                                                                double(max) - log_sum);
    }
  }
  if (threadIdx.x == 0) p.outcome.top_counts[t.row] = uint32_t(n);
}
