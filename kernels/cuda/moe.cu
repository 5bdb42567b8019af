// Mixture of experts around its grouped product: routing, the order of rows by expert, and the weighted sum of what the experts return.
//
// A token's choices are the pairs t · top_k + s. All orders are fixed: pairs of one expert stay in the order of tokens, and a token's
// sum runs over its choices in the order in which they were made, the best first.
#include "ptx.cuh"
#include "reduce.cuh"

// In the order of `ops::moe::Scores`.
enum Scores { kSoftmax, kSigmoid };

// Experts that a lane keeps in registers; up to 32 times as many in all.
constexpr int kMostPerLane = 16;

struct Best {
  float key;
  int expert;
};
// Higher keys first, then lower numbers.
struct Better {
  DEVICE bool operator()(const Best &a, const Best &b) const { return a.key > b.key || (a.key == b.key && a.expert < b.expert); }
};

DEVICE Best best_of_warp(Best best) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, best.key, lanes), __shfl_xor_sync(kAllLanes, best.expert, lanes)};
    if (Better()(other, best)) best = other;
  }
  return best;
}

// A warp per token chooses the top_k experts of the highest keys. Keys are the logits, whose order is that of both kinds of scores, or with
// a bias (DeepSeek-V3) score + bias; weights are the scores without it. A NaN is never preferred. Tokens from *count on are padding and get
// no expert.
template <class T, int PerLane>
DEVICE void route(int *chosen_out, float *weights, const T *logits, const float *bias, const int *count, int tokens, int experts, int top_k, int kind,
                  int normalise, float factor) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp, token = int(blockIdx.x) * int(blockDim.x / kWarp) + int(threadIdx.x) / kWarp;
  if (token >= tokens) return;
  if (count && token >= *count) {
    if (lane < top_k) {
      chosen_out[int64_t(token) * top_k + lane] = -1;
      weights[int64_t(token) * top_k + lane] = 0.0f;
    }
    return;
  }
  const T *row = logits + int64_t(token) * experts;
  float logit[PerLane], key[PerLane];
  float most = -infinity();
#pragma unroll
  for (int i = 0; i < PerLane; i++) {
    const int e = lane + i * kWarp;
    logit[i] = e < experts ? to_float(row[e]) : -infinity();
    most = fmaxf(most, logit[i]);
  }
  most = warp_reduce(most, Max());
  // A row without a finite logit is shared out evenly among the first experts.
  const bool lost = !(most > -infinity() && most < infinity());
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PerLane; i++) {
    const int e = lane + i * kWarp;
    if (lost || logit[i] != logit[i]) logit[i] = lost ? 0.0f : -infinity();
    if (lost) most = 0.0f;
    const float score = kind == kSoftmax ? expf(logit[i] - most) : 1.0f / (1.0f + expf(-logit[i]));
    if (e < experts) sum += score;
    key[i] = logit[i];
    logit[i] = score;
  }
  const float all = kind == kSoftmax ? warp_reduce(sum, Add()) : 1.0f;
  if (bias) {
#pragma unroll
    for (int i = 0; i < PerLane; i++) {
      const int e = lane + i * kWarp;
      if (e < experts) key[i] = logit[i] / all + bias[e];
    }
  }
  let_next_kernel_start();
  // Lane s keeps choice s.
  int chosen = 0;
  float score = 0.0f;
  uint32_t taken = 0;
  for (int s = 0; s < top_k; s++) {
    Best best = {-infinity(), 0x7fffffff};
    float of_best = 0.0f;
#pragma unroll
    for (int i = 0; i < PerLane; i++) {
      const int e = lane + i * kWarp;
      const Best candidate = {key[i] == key[i] ? key[i] : -infinity(), e};
      if (e < experts && !(taken >> i & 1) && Better()(candidate, best)) {
        best = candidate;
        of_best = logit[i];
      }
    }
    const Best winner = best_of_warp(best);
    const float of_winner = __shfl_sync(kAllLanes, of_best, winner.expert % kWarp);
    if (winner.expert % kWarp == lane) taken |= 1u << winner.expert / kWarp;
    if (lane == s) {
      chosen = winner.expert;
      score = of_winner;
    }
  }
  // One after the other, in the order of the choices.
  float divisor = all;
  if (normalise) {
    divisor = 0.0f;
    for (int s = 0; s < top_k; s++) divisor += __shfl_sync(kAllLanes, score, s);
    // Sigmoids may all be zero.
    if (divisor == 0.0f) divisor = 1.0f;
  }
  if (lane < top_k) {
    chosen_out[int64_t(token) * top_k + lane] = chosen;
    weights[int64_t(token) * top_k + lane] = score / divisor * factor;
  }
}

// The obvious version, for any number of experts and choices: a thread per token looks for the best expert after the last one found.
template <class T>
DEVICE void route_plain(int *chosen_out, float *weights, const T *logits, const float *bias, const int *count, int tokens, int experts, int top_k,
                        int kind, int normalise, float factor) {
  wait_for_previous_kernel();
  const int token = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (token >= tokens) return;
  const T *row = logits + int64_t(token) * experts;
  int *chosen = chosen_out + int64_t(token) * top_k;
  float *weight = weights + int64_t(token) * top_k;
  const bool padding = count && token >= *count;
  float most = -infinity();
  for (int e = 0; e < experts; e++) most = fmaxf(most, to_float(row[e]));
  const bool lost = !(most > -infinity() && most < infinity());
  if (lost) most = 0.0f;
  auto logit = [&](int e) {
    const float value = to_float(row[e]);
    return lost ? 0.0f : value == value ? value : -infinity();
  };
  auto score = [&](int e) { return kind == kSoftmax ? expf(logit(e) - most) : 1.0f / (1.0f + expf(-logit(e))); };
  float all = 0.0f;
  for (int e = 0; e < experts; e++) all += score(e);
  if (kind != kSoftmax) all = 1.0f;
  Best last = {infinity(), -1};
  float sum = 0.0f;
  for (int s = 0; s < top_k; s++) {
    Best best = {-infinity(), 0x7fffffff};
    for (int e = 0; e < experts; e++) {
      const float key = bias ? score(e) / all + bias[e] : logit(e);
      const Best candidate = {key == key ? key : -infinity(), e};
      if (Better()(last, candidate) && Better()(candidate, best)) best = candidate;
    }
    last = best;
    chosen[s] = padding ? -1 : best.expert;
    weight[s] = score(best.expert);
    sum += weight[s];
  }
  const float divisor = !normalise ? all : sum == 0.0f ? 1.0f : sum;
  for (int s = 0; s < top_k; s++) weight[s] = padding ? 0.0f : weight[s] / divisor * factor;
}

// Orders the pairs by expert. Block e counts the pairs of lower experts, which is where its own begin, and puts down its own: no block
// waits for another, and ties cannot come in another order. Pairs of no expert (-1, of padding) come nowhere; their places at the end
// say -1.
template <int Threads> DEVICE void sort_by_expert(int *expert_offsets, int *sorted_rows, int *places, const int *chosen, int pairs, int experts) {
  constexpr int kWarps = Threads / kWarp;
  SHARED(int, lower_counts, kWarps);
  SHARED(int, warp_counts, 2 * kWarps);
  wait_for_previous_kernel();
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int lower = 0;
  for (int i = threadIdx.x; i < pairs; i += Threads) lower += chosen[i] >= 0 && chosen[i] < expert;
  int at = block_reduce<Threads>(lower, lower_counts, Add());
  let_next_kernel_start();
  if (threadIdx.x == 0) expert_offsets[expert] = at;
  int *counts = warp_counts;
  for (int start = 0; start < pairs; start += Threads) {
    const int i = start + int(threadIdx.x), of = i < pairs ? chosen[i] : -2;
    const unsigned mine = __ballot_sync(kAllLanes, of == expert);
    if (lane == 0) counts[warp] = __popc(mine);
    __syncthreads();
    int before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      before += w < warp ? counts[w] : 0;
      all += counts[w];
    }
    if (of == expert) {
      const int place = at + before + __popc(mine & ((1u << lane) - 1));
      sorted_rows[place] = i;
      places[i] = place;
    }
    if (of == -1 && expert == 0) places[i] = -1;
    at += all;
    // The other half next time: one barrier a turn is enough.
    counts = counts == warp_counts ? warp_counts + kWarps : warp_counts;
  }
  if (expert == experts - 1) {
    if (threadIdx.x == 0) expert_offsets[experts] = at;
    for (int i = at + int(threadIdx.x); i < pairs; i += Threads) sorted_rows[i] = -1;
  }
}

// The obvious version: one thread goes through all pairs for each expert, and at last for none.
DEVICE void sort_plain(int *expert_offsets, int *sorted_rows, int *places, const int *chosen, int pairs, int experts) {
  wait_for_previous_kernel();
  int at = 0;
  for (int e = 0; e < experts; e++) {
    expert_offsets[e] = at;
    for (int i = 0; i < pairs; i++) {
      if (chosen[i] != e) continue;
      places[i] = at;
      sorted_rows[at++] = i;
    }
  }
  expert_offsets[experts] = at;
  for (int i = 0; i < pairs; i++) {
    if (chosen[i] >= 0) continue;
    places[i] = -1;
    sorted_rows[at++] = -1;
  }
}

// out[t] = base[t] + Σ weights[t, s] · y[places[t, s]], over s in order, in f32; y lies in the order of pairs if there are no places.
template <class T, int N>
DEVICE void combine(T *out, const T *base, const T *y, const float *weights, const int *places, int cols, int top_k) {
  wait_for_previous_kernel();
  const int v = int(blockIdx.y * blockDim.x + threadIdx.x);
  if (v >= cols / N) return;
  const int64_t pair = int64_t(blockIdx.x) * top_k, column = int64_t(v) * N;
  float sum[N] = {};
  if (base) {
    const Vec<T, N> b = load_vec<T, N>(base + int64_t(blockIdx.x) * cols + column);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = to_float(b.at[i]);
  }
#pragma unroll 4
  for (int s = 0; s < top_k; s++) {
    const int place = places ? places[pair + s] : int(pair) + s;
    if (place < 0) continue;
    const Vec<T, N> part = load_vec<T, N>(y + int64_t(place) * cols + column);
    const float weight = weights[pair + s];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] += weight * to_float(part.at[i]);
  }
  let_next_kernel_start();
  Vec<T, N> o;
#pragma unroll
  for (int i = 0; i < N; i++) o.at[i] = from_float<T>(sum[i]);
  store_vec(out + int64_t(blockIdx.x) * cols + column, o);
}

#define ROUTE(T, PerLane, suffix)                                                                                                \
  KERNEL moe_route_##suffix(int *chosen, float *weights, const T *logits, const float *bias, const int *count, int tokens, int experts, int top_k, \
                            int kind, int normalise, float factor) {                                                             \
    route<T, PerLane>(chosen, weights, logits, bias, count, tokens, experts, top_k, kind, normalise, factor);                           \
  }                                                                                                                              \
  REGISTER(moe_route_##suffix)
#define ROUTE_PLAIN(T, suffix)                                                                                                   \
  KERNEL moe_route_plain_##suffix(int *chosen, float *weights, const T *logits, const float *bias, const int *count, int tokens, \
                                  int experts, int top_k, int kind, int normalise, float factor) {                               \
    route_plain<T>(chosen, weights, logits, bias, count, tokens, experts, top_k, kind, normalise, factor);                       \
  }                                                                                                                              \
  REGISTER(moe_route_plain_##suffix)
#define COMBINE(T, N, suffix)                                                                                                    \
  KERNEL moe_combine_##suffix(T *out, const T *base, const T *y, const float *weights, const int *places, int cols, int top_k) { \
    combine<T, N>(out, base, y, weights, places, cols, top_k);                                                                   \
  }                                                                                                                              \
  REGISTER(moe_combine_##suffix)

ROUTE(float, 4, f32)
ROUTE(f16, 4, f16)
ROUTE(bf16, 4, bf16)
ROUTE(float, kMostPerLane, many_f32)
ROUTE(f16, kMostPerLane, many_f16)
ROUTE(bf16, kMostPerLane, many_bf16)
ROUTE_PLAIN(float, f32)
ROUTE_PLAIN(f16, f16)
ROUTE_PLAIN(bf16, bf16)
COMBINE(float, 4, f32)
COMBINE(f16, 8, f16)
COMBINE(bf16, 8, bf16)
COMBINE(float, 1, plain_f32)
COMBINE(f16, 1, plain_f16)
COMBINE(bf16, 1, plain_bf16)

KERNEL moe_sort_256(int *expert_offsets, int *sorted_rows, int *places, const int *chosen, int pairs, int experts) {
  sort_by_expert<256>(expert_offsets, sorted_rows, places, chosen, pairs, experts);
}
REGISTER(moe_sort_256)
KERNEL moe_sort_1024(int *expert_offsets, int *sorted_rows, int *places, const int *chosen, int pairs, int experts) {
  sort_by_expert<1024>(expert_offsets, sorted_rows, places, chosen, pairs, experts);
}
REGISTER(moe_sort_1024)
KERNEL moe_sort_plain(int *expert_offsets, int *sorted_rows, int *places, const int *chosen, int pairs, int experts) {
  sort_plain(expert_offsets, sorted_rows, places, chosen, pairs, experts);
}
REGISTER(moe_sort_plain)
