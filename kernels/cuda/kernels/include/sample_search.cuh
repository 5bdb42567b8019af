// Finds the first tokens of an order without sorting the vocabulary: a given number of them, or
// those that have a given share of the mass.
//
// Usually they are among few hundred candidates, which the segments' greatest logits lead to: at
// least m tokens reach the m-th greatest of these, and segments below it need not be read. If that
// is not enough, the digits of the keys are counted from the top until the remaining tokens fit the
// list.
#pragma once
#include "sample_scan.cuh"

EXPORT_CONSTANT int kFinishThreads = 512;
constexpr int kList = 2048;
constexpr int kDigit = 11;
constexpr int kBins = 1 << kDigit;
static_assert(kBins == 4 * kFinishThreads && kList == kBins,
              "a thread has four bins, and an amount is of a bin or of a place");

// Shared memory of a block that finishes a row.
struct FinishMemory {
  u64 *list;          // [kList]
  u64 *amounts;       // [kBins]: tokens or masses, by bin or by place in the list
  uint32_t *counts;   // [kBins]
  u64 *totals;        // [warps + 1]
  int *found;         // [2]
};

// The row that a block finishes.
struct LogitRow {
  const float *logits;
  const float *seg_max;
  int vocab, segments;
};

// Calls f(id, logit) for all tokens of a segment. The lanes of a warp call it together.
template <class F> DEVICE void each_of_segment(const LogitRow &s, int segment, F f) {
  each_four(s.logits, segment, s.vocab, s.vocab % 4 == 0, [&](int id, float4 v) {
#pragma unroll 1
    for (int i = 0; i < 4; i++) f(id + i, i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
  });
}
template <class F> DEVICE void each_token(const LogitRow &s, F f) {
  for (int segment = threadIdx.x / kWarp; segment < s.segments; segment += kFinishThreads / kWarp)
    each_of_segment(s, segment, f);
}

// The sum over all threads before this one; `total` gets the sum over all threads. `totals` has a
// place per warp.
DEVICE u64 exclusive_sum(u64 value, u64 *totals, u64 *total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  u64 sum = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const u64 other = __shfl_up_sync(kAllLanes, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) totals[warp] = sum;
  __syncthreads();
  u64 before = 0, all = 0;
  for (int w = 0; w < kFinishThreads / kWarp; w++) {
    if (w == warp) before = all;
    all += totals[w];
  }
  *total = all;
  return before + sum - value;
}

// Sorts the list in ascending order; places from `n` on are overwritten. The function begins and
// ends with a barrier.
DEVICE void sort_list(u64 *list, int n) {
  int size = 1;
  while (size < n) size *= 2;
  for (int i = n + int(threadIdx.x); i < size; i += kFinishThreads) list[i] = kNone;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kFinishThreads) {
        const int low = (i / step) * step * 2 + i % step, high = low + step;
        const u64 a = list[low], b = list[high];
        if ((a > b) == ((low & run) == 0)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
  }
}

// Whether a sum reaches the goal. Masses are compared as the host compares them, in double
// precision.
DEVICE bool reached(u64 sum, double goal) { return double(sum) >= goal; }

// The first place of `amounts` [kBins] at which their sum, from `before` on, reaches the goal; -1
// if it does not. `sum_before` gets the sum before that place. The function begins and ends with a
// barrier.
DEVICE int first_to_reach(const FinishMemory &s, u64 before, double goal, u64 *sum_before) {
  u64 part[4], total;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) part[i] = s.amounts[int(threadIdx.x) * 4 + i];
  if (threadIdx.x == 0) s.found[0] = -1;
  u64 sum = before + exclusive_sum(part[0] + part[1] + part[2] + part[3], s.totals, &total);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (!reached(sum, goal) && reached(sum + part[i], goal)) {
      s.found[0] = int(threadIdx.x) * 4 + i;
      s.totals[kFinishThreads / kWarp] = sum;
    }
    sum += part[i];
  }
  __syncthreads();
  const int at = s.found[0];
  *sum_before = at < 0 ? 0 : s.totals[kFinishThreads / kWarp];
  __syncthreads();
  return at;
}

// The sum of all amounts.
DEVICE u64 sum_of_amounts(const FinishMemory &s) {
  u64 sum = 0, total;
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kFinishThreads) sum += s.amounts[i];
  exclusive_sum(sum, s.totals, &total);
  return total;
}

// Fills `amounts` for the first `n` tokens of the list: with 1, or with their weights in the
// distribution that is drawn from.
DEVICE void weigh_list(const LogitRow &s, const TokenOrder &o, const FinishMemory &scratch, int n,
                       bool by_mass) {
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < kList; i += kFinishThreads) {
    u64 amount = i < n;
    if (by_mass && i < n)
      amount = weight(apply_temperature(sanitize(s.logits[scratch.list[i] & kIdMask]), o.max, o.temperature));
    scratch.amounts[i] = amount;
  }
}

// Collects all tokens with keys up to `limit` in the list, unsorted; segments without one are not
// read. Returns the number of these tokens; those that do not fit the list are not kept.
DEVICE int collect_up_to(const LogitRow &s, const TokenOrder &o, const FinishMemory &scratch, u64 limit,
                         bool by_segment) {
  __syncthreads();
  if (threadIdx.x == 0) scratch.found[1] = 0;
  __syncthreads();
  for (int segment = threadIdx.x / kWarp; segment < s.segments; segment += kFinishThreads / kWarp) {
    if (by_segment) {
      const u64 least = o.key(0, s.seg_max[segment]);
      if (least == kNone || least > limit) continue;
    }
    each_of_segment(s, segment, [&](int id, float logit) {
      const u64 key = o.key(id, logit);
      if (key == kNone || key > limit) return;
      const int at = atomicAdd(&scratch.found[1], 1);
      if (at < kList) scratch.list[at] = key;
    });
  }
  __syncthreads();
  return scratch.found[1];
}

// Collects the first `n` tokens of the order in the list, sorted; at least `least` of them unless
// there are fewer. `complete` says whether these are all tokens. Returns false if they do not fit.
DEVICE bool collect_first(const LogitRow &s, const TokenOrder &o, const FinishMemory &scratch, int least,
                          int *n, bool *complete) {
  u64 limit = kNone - 1;
  *complete = s.vocab <= kList || least > s.segments;
  if (!*complete) {
    // The segment of rank `least`, ties by index.
    __syncthreads();
    for (int i = threadIdx.x; i < s.segments; i += kFinishThreads) {
      const float mine = s.seg_max[i];
      int rank = 0;
      for (int j = 0; j < s.segments; j++) {
        const float other = s.seg_max[j];
        rank += other > mine || (other == mine && j < i);
      }
      if (rank == least - 1) scratch.found[0] = i;
    }
    __syncthreads();
    const u64 key = o.key(0, s.seg_max[scratch.found[0]]);
    *complete = key == kNone;
    if (key != kNone) limit = key | kIdMask;
  }
  *n = collect_up_to(s, o, scratch, limit, true);
  if (*n > kList) return false;
  sort_list(scratch.list, *n);
  return true;
}

// The key of the last token of the smallest set of first tokens that has `target` tokens, or that
// share of the mass; the greatest possible key if all tokens together do not reach it. The function
// overwrites the list and everything else in shared memory.
DEVICE u64 find_limit(const LogitRow &s, const TokenOrder &o, const FinishMemory &scratch, bool by_mass,
                      double target) {
  u64 prefix = 0, before = 0;
  double goal = target;
  for (int rest = o.bits(); rest > 0;) {
    const int shift = rest > kDigit ? rest - kDigit : 0;
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kFinishThreads) scratch.counts[i] = 0, scratch.amounts[i] = 0;
    __syncthreads();
    each_token(s, [&](int id, float logit) {
      const u64 key = o.key(id, logit);
      if (key == kNone || key >> rest != prefix) return;
      const int bin = int(key >> shift) & int((1u << (rest - shift)) - 1);
      atomicAdd(&scratch.counts[bin], 1u);
      atomicAdd(&scratch.amounts[bin],
                by_mass ? weight(apply_temperature(sanitize(logit), o.max, o.temperature)) : u64(1));
    });
    if (rest == o.bits() && by_mass) goal = target * double(sum_of_amounts(scratch));
    u64 below;
    const int bin = first_to_reach(scratch, before, goal, &below);
    if (bin < 0) return kNone - 1;
    before = below;
    prefix = prefix << (rest - shift) | u64(bin);
    rest = shift;
    if (rest > 0 && scratch.counts[bin] <= uint32_t(kList)) {
      // The tokens that differ only in the last digits fit the list.
      if (threadIdx.x == 0) scratch.found[1] = 0;
      __syncthreads();
      each_token(s, [&](int id, float logit) {
        const u64 key = o.key(id, logit);
        if (key != kNone && key >> rest == prefix) scratch.list[atomicAdd(&scratch.found[1], 1)] = key;
      });
      __syncthreads();
      const int n = scratch.found[1];
      sort_list(scratch.list, n);
      weigh_list(s, o, scratch, n, by_mass);
      const int last = first_to_reach(scratch, before, goal, &below);
      return scratch.list[last < 0 ? n - 1 : last];
    }
  }
  return prefix;
}
