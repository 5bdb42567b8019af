// The obvious sampler: one block per row, step by step as the definitions read. `work` [rows, vocab] holds what each step leaves of the
// logits.
#pragma once
#include "sample_row.cuh"

constexpr int kPlainThreads = 256;

DEVICE void sample_plain(const float *logits, float *work, const uint32_t *table, int stride, const Adjust &a, const Outcome &out, int vocab) {
  constexpr int kWarps = kPlainThreads / kWarp;
  SHARED(float, floats, kWarps);
  SHARED(double, doubles, kWarps);
  SHARED(u64, words, kWarps);
  SHARED(Drawn, draws, kWarps);
  wait_for_previous_kernel();
  const Table t{table, stride, int(blockIdx.x)};
  const float *row = logits + int64_t(t.row) * vocab;
  float *x = work + int64_t(t.row) * vocab;
  auto each = [&](auto f) {
    for (int id = threadIdx.x; id < vocab; id += kPlainThreads) f(id);
  };
  // Each ends with a barrier, so that the next may use the same places.
  auto all_max = [&](float v) { v = block_reduce<kPlainThreads>(v, floats, Max()); __syncthreads(); return v; };
  auto all_sum = [&](double v) { v = block_reduce<kPlainThreads>(v, doubles, Add()); __syncthreads(); return v; };
  auto all_count = [&](u64 v) { v = block_reduce<kPlainThreads>(v, words, Add()); __syncthreads(); return v; };
  auto all_least = [&](u64 v) {
    v = block_reduce<kPlainThreads>(v, words, [](u64 p, u64 q) { return p < q ? p : q; });
    __syncthreads();
    return v;
  };

  // Penalties, biases, masks.
  // One number counts the finite logits and, from this bit on, the broken ones: registers are scarce.
  constexpr u64 kBroken = u64(1) << 40;
  u64 finite = 0, still_finite = 0;
  const uint32_t *history = a.history + (t.penalised() ? int64_t(t.word(kSlot)) * a.history_stride : 0);
  each([&](int id) {
    finite += is_broken(row[id]) ? kBroken : u64(is_finite(row[id]));
    float v = sanitize(row[id]);
    uint32_t count = 0;
    for (int i = 0; t.penalised() && i < int(t.word(kPosition)); i++) {
      if (history[i] == uint32_t(id)) count = (count + (i >= int(t.word(kPromptLen)))) | kSeen;
    }
    if (t.marked()) {
      float four[4] = {v, v, v, v};
      mark(four, id, last_token(a, t), t);
      // Written out, since an index that is not known would put the four into local memory.
      const int place = id % 4;
      v = place == 0 ? four[0] : place == 1 ? four[1] : place == 2 ? four[2] : four[3];
    }
    v = penalise(v, count, t);
    for (uint32_t b = t.word(kBiasStart); b < t.word(kBiasStart) + t.word(kBiasCount); b++) {
      if (a.bias_ids[b] == uint32_t(id)) v = __fadd_rn(v, a.biases[b]);
    }
    if (!is_allowed(a, int(t.word(kMaskRow)), id)) v = -infinity();
    still_finite += is_finite(v);
    x[id] = sanitize(v);
  });
  finite = all_count(finite);
  still_finite = all_count(still_finite);
  if (finite == 0 || finite >= kBroken || still_finite == 0) {
    if (threadIdx.x == 0) report_nothing(out, a, t, vocab);
    return;
  }

  // What log-probabilities are reported of: the model's own logits, or what the draw sees.
  const bool warped = t.warped(), samples = t.samples();
  auto value_of = [&](int id) { return warped ? x[id] : sanitize(row[id]); };
  Order order{kByLogit, 0.0f, 1.0f, kNone, 0.0, 0.0, kNone};
  int token;
  if (!samples) {
    u64 first = kNone;
    each([&](int id) { first = min(first, order.key(id, x[id])); });
    token = int(all_least(first) & kIdMask);
  } else {
    float max = -infinity();
    each([&](int id) { max = fmaxf(max, x[id]); });
    max = all_max(max);
    each([&](int id) { x[id] = heat(x[id], max, t.number(kTemperature)); });
    __syncthreads();
    // From here on x is what is drawn from, and the order is that of a distribution under temperature 1.
    order.kind = kByLikelihood;
    // Drops all tokens but the first `target` or those that make that share of the mass, by halving the range of the last one's key.
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
    Drawn best = nothing_drawn();
    each([&](int id) {
      const uint4 w = philox(uint32_t(id / 4), t.word(kPosition), t.word(kSeedLow), t.word(kSeedHigh));
      const uint32_t word = id % 4 == 0 ? w.x : id % 4 == 1 ? w.y : id % 4 == 2 ? w.z : w.w;
      if (x[id] > -infinity()) best = BetterDraw()(best, Drawn{double(x[id]) + gumbel(word), id});
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

  // The first of the tokens after the last one reported, one after the other.
  order.kind = kByLogit;
  const int top_n = min(int(t.word(kTopN)), out.top_stride);
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
      out.top_ids[int64_t(t.row) * out.top_stride + n] = uint32_t(next & kIdMask);
      out.top_logprobs[int64_t(t.row) * out.top_stride + n] = logprob(int(next & kIdMask));
    }
    from = next + 1;
  }
  if (threadIdx.x != 0) return;
  out.tokens[t.row] = uint32_t(token);
  out.logprobs[t.row] = logprob(token);
  out.top_counts[t.row] = uint32_t(n);
}
