// The plain sampler: one block per row follows the definitions step by step. `adjusted` [rows,
// vocab] holds the logits after each step.
#pragma once
#include "sample_scan.cuh"

EXPORT_CONSTANT int kPlainThreads = 256;

DEVICE void sample_plain(const SampleParams &p) {
  constexpr int kWarps = kPlainThreads / kWarp;
  SHARED(float, floats, kWarps);
  SHARED(double, doubles, kWarps);
  SHARED(u64, words, kWarps);
  SHARED(DrawnToken, draws, kWarps);
  wait_for_previous_kernel();
  const ParamTable t{p.table, p.table_stride, int(blockIdx.x)};
  const float *row = p.logits + int64_t(t.row) * p.vocab;
  float *x = p.adjusted + int64_t(t.row) * p.vocab;
  auto each = [&](auto f) {
    for (int id = threadIdx.x; id < p.vocab; id += kPlainThreads) f(id);
  };
  // Each reduction ends with a barrier, so that the next one may use the same places.
  auto all_max = [&](float v) {
    v = block_reduce<kPlainThreads>(v, floats, Max());
    __syncthreads();
    return v;
  };
  auto all_sum = [&](double v) {
    v = block_reduce<kPlainThreads>(v, doubles, Add());
    __syncthreads();
    return v;
  };
  auto all_count = [&](u64 v) {
    v = block_reduce<kPlainThreads>(v, words, Add());
    __syncthreads();
    return v;
  };
  auto all_least = [&](u64 v) {
    v = block_reduce<kPlainThreads>(v, words, [](u64 x, u64 y) { return x < y ? x : y; });
    __syncthreads();
    return v;
  };

  // Penalties, biases, masks. One number counts the finite logits and, from this bit on, the broken
  // ones, because registers are scarce.
  constexpr u64 kBroken = u64(1) << 40;
  u64 finite = 0, still_finite = 0;
  const uint32_t *history = p.adjust.history +
                            (t.penalized() ? int64_t(t.word(kSlot)) * p.adjust.history_stride : 0);
  each([&](int id) {
    finite += is_broken(row[id]) ? kBroken : u64(is_finite(row[id]));
    float v = sanitize(row[id]);
    uint32_t count = 0;
    for (int i = 0; t.penalized() && i < int(t.word(kPosition)); i++) {
      if (history[i] == uint32_t(id)) count = (count + (i >= int(t.word(kPromptLen)))) | kSeen;
    }
    if (t.watermarked()) {
      float four[4] = {v, v, v, v};
      add_watermark(four, id, last_token(p.adjust, t), t);
      // Written out, because an index that is not a constant would move the four into local memory.
      const int place = id % 4;
      v = place == 0 ? four[0] : place == 1 ? four[1] : place == 2 ? four[2] : four[3];
    }
    v = penalize(v, count, t);
    for (uint32_t b = t.word(kBiasStart); b < t.word(kBiasStart) + t.word(kBiasCount); b++) {
      if (p.adjust.bias_ids[b] == uint32_t(id)) v = __fadd_rn(v, p.adjust.biases[b]);
    }
    if (!is_allowed(p.adjust, int(t.word(kMaskRow)), id)) v = -infinity();
    still_finite += is_finite(v);
    x[id] = sanitize(v);
  });
  finite = all_count(finite);
  still_finite = all_count(still_finite);
  if (finite == 0 || finite >= kBroken || still_finite == 0) {
    if (threadIdx.x == 0) report_nothing(p.outcome, p.adjust, t, p.vocab);
    return;
  }

  // The logits whose log-probabilities are reported: the model's own, or those that a token is
  // drawn from.
  const bool warped = t.warped(), samples = t.samples();
  auto value_of = [&](int id) { return warped ? x[id] : sanitize(row[id]); };
  TokenOrder order{kByLogit, 0.0f, 1.0f, kNone, 0.0, 0.0, kNone};
  int token;
  if (!samples) {
    u64 first = kNone;
    each([&](int id) { first = min(first, order.key(id, x[id])); });
    token = int(all_least(first) & kIdMask);
  } else {
    float max = -infinity();
    each([&](int id) { max = fmaxf(max, x[id]); });
    max = all_max(max);
    each([&](int id) { x[id] = apply_temperature(x[id], max, t.number(kTemperature)); });
    __syncthreads();
    // From here on, x holds the logits that a token is drawn from, and the order is that of a
    // distribution with temperature 1.
    order.kind = kByLikelihood;
    // Drops all tokens but the first `target`, or the first that have that share of the mass. It
    // finds the last one's key by bisection.
    auto keep = [&](bool by_mass, double target) {
      auto amount = [&](u64 limit) {
        u64 sum = 0;
        each([&](int id) {
          if (order.key(id, x[id]) <= limit && x[id] > -infinity()) sum += by_mass ? weight(x[id]) : 1;
        });
        return all_count(sum);
      };
      const double goal = by_mass ? target * double(amount(kNone - 1)) : target;
      u64 low = 0, high = (1ull << order.bits()) - 1;
      while (low < high) {
        const u64 middle = low + (high - low) / 2;
        if (double(amount(middle)) >= goal) high = middle; else low = middle + 1;
      }
      each([&](int id) {
        if (order.key(id, x[id]) > high) x[id] = -infinity();
      });
      __syncthreads();
    };
    if (t.word(kTopK) > 0) keep(false, double(t.word(kTopK)));
    if (t.number(kTopP) < 1.0f) keep(true, double(t.number(kTopP)));
    each([&](int id) {
      if (x[id] < t.number(kFloor)) x[id] = -infinity();
    });
    __syncthreads();
    if (t.number(kTypicalP) < 1.0f) {
      u64 mass = 0;
      double moment = 0.0;
      each([&](int id) {
        mass += weight(x[id]);
        if (x[id] > -745.0f) moment += exp(double(x[id])) * double(x[id]);
      });
      const double sum = double(all_count(mass)) / 8796093022208.0;
      order.log_total = log(sum);
      order.entropy = order.log_total - all_sum(moment) / sum;
      order.kind = kByDistance;
      keep(true, double(t.number(kTypicalP)));
      order.kind = kByLikelihood;
    }
    DrawnToken best = nothing_drawn();
    each([&](int id) {
      const uint4 w = philox(uint32_t(id / 4), t.word(kPosition), t.word(kSeedLow), t.word(kSeedHigh));
      const uint32_t word = id % 4 == 0 ? w.x : id % 4 == 1 ? w.y : id % 4 == 2 ? w.z : w.w;
      if (x[id] > -infinity()) best = BetterDraw()(best, DrawnToken{double(x[id]) + gumbel(word), id});
    });
    token = block_best<kPlainThreads>(best, draws).id;
  }

  float max = -infinity();
  each([&](int id) { max = fmaxf(max, value_of(id)); });
  max = all_max(max);
  double sum = 0.0;
  each([&](int id) { sum += double(expf(value_of(id) - max)); });
  const double log_sum = log(all_sum(sum));
  auto logprob = [&](int id) { return float(double(value_of(id)) - double(max) - log_sum); };
  let_next_kernel_start();

  // Each round reports the first token after the last one reported.
  order.kind = kByLogit;
  const int top_n = min(int(t.word(kTopN)), p.outcome.top_stride);
  int n = 0;
  for (u64 from = 0; n < top_n; n++) {
    u64 next = kNone;
    each([&](int id) {
      const u64 key = order.key(id, value_of(id));
      if (key >= from) next = min(next, key);
    });
    next = all_least(next);
    if (next == kNone) break;
    if (threadIdx.x == 0) {
      p.outcome.top_ids[int64_t(t.row) * p.outcome.top_stride + n] = uint32_t(next & kIdMask);
      p.outcome.top_logprobs[int64_t(t.row) * p.outcome.top_stride + n] = logprob(int(next & kIdMask));
    }
    from = next + 1;
  }
  if (threadIdx.x != 0) return;
  p.outcome.tokens[t.row] = uint32_t(token);
  p.outcome.logprobs[t.row] = logprob(token);
  p.outcome.top_counts[t.row] = uint32_t(n);
}
