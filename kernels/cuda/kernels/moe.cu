// Mixture of experts around its grouped product: routing, the order of rows by expert, and the
// weighted sum of the experts' results.
//
// A token's choices are the pairs t · top_k + s. All orders are fixed: pairs of one expert stay in
// the order of tokens, and a token's sum runs over its choices from the best to the worst.
#include "ptx.cuh"
#include "reduce.cuh"

// How logits become the weights of experts.
enum RouterScoreKind : int { kSoftmax, kSigmoid };

// Parameters of the routing.
// Kernels: moe/moe_route_*
template <class T> struct RouteParams {
  int *chosen;        // [tokens, top_k]
  float *weights;     // [tokens, top_k]
  const T *logits;    // [tokens, experts]
  const float *bias;  // null or [experts]
  const float *scales;  // null or [experts]
  const int *count;   // null or [1]: tokens that are no padding
  int tokens;
  int experts;
  int top_k;
  RouterScoreKind kind;
  int normalize;  // 1 if a token's weights are divided by their sum
  float factor;
};

// Parameters of the order of pairs by expert.
// Kernels: moe/moe_sort_256, moe/moe_sort_1024, moe/moe_sort_plain
struct SortPairsParams {
  int *expert_offsets;  // [experts + 1]
  int *sorted_rows;     // [pairs]
  int *places;          // [pairs]
  const int *chosen;    // [pairs]
  int pairs;
  int experts;
};

// Parameters of the weighted sum of the experts' results.
// Kernels: moe/moe_combine_*
template <class T> struct CombineExpertsParams {
  T *out;                // [tokens, cols]
  const T *base;         // null or [tokens, cols]
  const T *y;            // [pairs, cols]
  const float *weights;  // [tokens, top_k]
  const int *places;     // null or [tokens, top_k]
  int cols;
  int top_k;
};

// Experts that a lane keeps in registers; up to 32 times as many in all.
constexpr int kMaxPerLane = 16;
// The most experts and choices per token that the fast kernels take.
EXPORT_CONSTANT int kMaxExperts = 512;
EXPORT_CONSTANT int kMaxChoices = 32;
static_assert(kMaxExperts == kMaxPerLane * kWarp && kMaxChoices == kWarp, "a lane per choice");
// The most experts that the kernel with fewer registers takes.
EXPORT_CONSTANT int kFewExperts = 128;

struct BestExpert {
  float key;
  int expert;
};
// Higher keys first, then lower numbers.
struct BetterExpert {
  DEVICE bool operator()(const BestExpert &a, const BestExpert &b) const {
    return a.key > b.key || (a.key == b.key && a.expert < b.expert);
  }
};

DEVICE BestExpert best_of_warp(BestExpert best) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const BestExpert other = {__shfl_xor_sync(kAllLanes, best.key, lanes),
                              __shfl_xor_sync(kAllLanes, best.expert, lanes)};
    if (BetterExpert()(other, best)) best = other;
  }
  return best;
}

// One warp chooses the top_k experts of one token by the highest keys. Keys are the logits, whose
// order is that of both kinds of scores; with a bias (DeepSeek-V3) they are score + bias. Weights
// are the scores without the bias, times the scales of the experts, if there are any (Gemma 4). A
// NaN is never preferred. Tokens from *count on are padding and get no expert.
template <class T, int PerLane> DEVICE void route(const RouteParams<T> &p) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp,
            token = int(blockIdx.x) * int(blockDim.x / kWarp) + int(threadIdx.x) / kWarp;
  if (token >= p.tokens) return;
  if (p.count && token >= *p.count) {
    if (lane < p.top_k) {
      p.chosen[int64_t(token) * p.top_k + lane] = -1;
      p.weights[int64_t(token) * p.top_k + lane] = 0.0f;
    }
    return;
  }
  const T *row = p.logits + int64_t(token) * p.experts;
  float logit[PerLane], key[PerLane];
  float most = -infinity();
#pragma unroll
  for (int i = 0; i < PerLane; i++) {
    const int e = lane + i * kWarp;
    logit[i] = e < p.experts ? to_float(row[e]) : -infinity();
    most = fmaxf(most, logit[i]);
  }
  most = warp_reduce(most, Max());
  // A row without a finite logit goes to the first experts in equal parts.
  const bool lost = !(most > -infinity() && most < infinity());
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PerLane; i++) {
    const int e = lane + i * kWarp;
    if (lost || logit[i] != logit[i]) logit[i] = lost ? 0.0f : -infinity();
    if (lost) most = 0.0f;
    const float score = p.kind == kSoftmax ? expf(logit[i] - most) : 1.0f / (1.0f + expf(-logit[i]));
    if (e < p.experts) sum += score;
    key[i] = logit[i];
    logit[i] = score;
  }
  const float all = p.kind == kSoftmax ? warp_reduce(sum, Add()) : 1.0f;
  if (p.bias) {
#pragma unroll
    for (int i = 0; i < PerLane; i++) {
      const int e = lane + i * kWarp;
      if (e < p.experts) key[i] = logit[i] / all + p.bias[e];
    }
  }
  let_next_kernel_start();
  // Lane s keeps choice s.
  int chosen = 0;
  float score = 0.0f;
  uint32_t taken = 0;
  for (int s = 0; s < p.top_k; s++) {
    BestExpert best = {-infinity(), 0x7fffffff};
    float of_best = 0.0f;
#pragma unroll
    for (int i = 0; i < PerLane; i++) {
      const int e = lane + i * kWarp;
      const BestExpert candidate = {key[i] == key[i] ? key[i] : -infinity(), e};
      if (e < p.experts && !(taken >> i & 1) && BetterExpert()(candidate, best)) {
        best = candidate;
        of_best = logit[i];
      }
    }
    const BestExpert winner = best_of_warp(best);
    const float of_winner = __shfl_sync(kAllLanes, of_best, winner.expert % kWarp);
    if (winner.expert % kWarp == lane) taken |= 1u << winner.expert / kWarp;
    if (lane == s) {
      chosen = winner.expert;
      score = of_winner;
    }
  }
  // The sum runs in the order of the choices.
  float divisor = all;
  if (p.normalize) {
    divisor = 0.0f;
    for (int s = 0; s < p.top_k; s++) divisor += __shfl_sync(kAllLanes, score, s);
    // Sigmoids may all be zero.
    if (divisor == 0.0f) divisor = 1.0f;
  }
  if (lane < p.top_k) {
    p.chosen[int64_t(token) * p.top_k + lane] = chosen;
    const float weight = score / divisor * p.factor;
    p.weights[int64_t(token) * p.top_k + lane] = p.scales ? weight * p.scales[chosen] : weight;
  }
}

// The plain version, for any number of experts and choices: one thread per token searches the best
// expert after the last one found.
template <class T> DEVICE void route_plain(const RouteParams<T> &p) {
  wait_for_previous_kernel();
  const int token = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (token >= p.tokens) return;
  const T *row = p.logits + int64_t(token) * p.experts;
  int *chosen = p.chosen + int64_t(token) * p.top_k;
  float *weight = p.weights + int64_t(token) * p.top_k;
  const bool padding = p.count && token >= *p.count;
  float most = -infinity();
  for (int e = 0; e < p.experts; e++) most = fmaxf(most, to_float(row[e]));
  const bool lost = !(most > -infinity() && most < infinity());
  if (lost) most = 0.0f;
  auto logit = [&](int e) {
    const float value = to_float(row[e]);
    return lost ? 0.0f : value == value ? value : -infinity();
  };
  auto score = [&](int e) {
    return p.kind == kSoftmax ? expf(logit(e) - most) : 1.0f / (1.0f + expf(-logit(e)));
  };
  float all = 0.0f;
  for (int e = 0; e < p.experts; e++) all += score(e);
  if (p.kind != kSoftmax) all = 1.0f;
  BestExpert last = {infinity(), -1};
  float sum = 0.0f;
  for (int s = 0; s < p.top_k; s++) {
    BestExpert best = {-infinity(), 0x7fffffff};
    for (int e = 0; e < p.experts; e++) {
      const float key = p.bias ? score(e) / all + p.bias[e] : logit(e);
      const BestExpert candidate = {key == key ? key : -infinity(), e};
      if (BetterExpert()(last, candidate) && BetterExpert()(candidate, best)) best = candidate;
    }
    last = best;
    chosen[s] = padding ? -1 : best.expert;
    weight[s] = score(best.expert);
    sum += weight[s];
  }
  const float divisor = !p.normalize ? all : sum == 0.0f ? 1.0f : sum;
  for (int s = 0; s < p.top_k; s++) {
    weight[s] = padding ? 0.0f : weight[s] / divisor * p.factor;
    if (p.scales && !padding) weight[s] *= p.scales[chosen[s]];
  }
}

// Orders the pairs by expert. Block e counts the pairs of lower experts, which gives the place of
// its own first pair, and writes its own pairs. No block waits for another, and the order of equal
// pairs is fixed. Pairs of no expert (-1, for padding) get the place -1, and the end of the sorted
// rows is filled with -1.
template <int Threads> DEVICE void sort_by_expert(const SortPairsParams &p) {
  constexpr int kWarps = Threads / kWarp;
  SHARED(int, lower_counts, kWarps);
  SHARED(int, warp_counts, 2 * kWarps);
  wait_for_previous_kernel();
  const int expert = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int lower = 0;
  for (int i = threadIdx.x; i < p.pairs; i += Threads) lower += p.chosen[i] >= 0 && p.chosen[i] < expert;
  int at = block_reduce<Threads>(lower, lower_counts, Add());
  let_next_kernel_start();
  if (threadIdx.x == 0) p.expert_offsets[expert] = at;
  int *counts = warp_counts;
  for (int start = 0; start < p.pairs; start += Threads) {
    const int i = start + int(threadIdx.x), of = i < p.pairs ? p.chosen[i] : -2;
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
      p.sorted_rows[place] = i;
      p.places[i] = place;
    }
    if (of == -1 && expert == 0) p.places[i] = -1;
    at += all;
    // The halves alternate, so that one barrier per round is enough.
    counts = counts == warp_counts ? warp_counts + kWarps : warp_counts;
  }
  if (expert == p.experts - 1) {
    if (threadIdx.x == 0) p.expert_offsets[p.experts] = at;
    for (int i = at + int(threadIdx.x); i < p.pairs; i += Threads) p.sorted_rows[i] = -1;
  }
}

// The plain version: one thread goes through all pairs for each expert, and then through those of
// no expert.
DEVICE void sort_plain(const SortPairsParams &p) {
  wait_for_previous_kernel();
  int at = 0;
  for (int e = 0; e < p.experts; e++) {
    p.expert_offsets[e] = at;
    for (int i = 0; i < p.pairs; i++) {
      if (p.chosen[i] != e) continue;
      p.places[i] = at;
      p.sorted_rows[at++] = i;
    }
  }
  p.expert_offsets[p.experts] = at;
  for (int i = 0; i < p.pairs; i++) {
    if (p.chosen[i] >= 0) continue;
    p.places[i] = -1;
    p.sorted_rows[at++] = -1;
  }
}

// out[t] = base[t] + Σ weights[t, s] · y[places[t, s]], over s in order, in f32. Without places, y
// lies in the order of pairs.
template <class T, int N> DEVICE void combine(const CombineExpertsParams<T> &p) {
  wait_for_previous_kernel();
  const int v = int(blockIdx.y * blockDim.x + threadIdx.x);
  if (v >= p.cols / N) return;
  const int64_t pair = int64_t(blockIdx.x) * p.top_k, column = int64_t(v) * N;
  float sum[N] = {};
  if (p.base) {
    const Vec<T, N> b = load_vec<T, N>(p.base + int64_t(blockIdx.x) * p.cols + column);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = to_float(b.at[i]);
  }
#pragma unroll 4
  for (int s = 0; s < p.top_k; s++) {
    const int place = p.places ? p.places[pair + s] : int(pair) + s;
    if (place < 0) continue;
    const Vec<T, N> part = load_vec<T, N>(p.y + int64_t(place) * p.cols + column);
    const float weight = p.weights[pair + s];
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] += weight * to_float(part.at[i]);
  }
  let_next_kernel_start();
  Vec<T, N> o;
#pragma unroll
  for (int i = 0; i < N; i++) o.at[i] = from_float<T>(sum[i]);
  store_vec(p.out + int64_t(blockIdx.x) * p.cols + column, o);
}

#define ROUTE(T, suffix)                                                                     \
  KERNEL(moe_route_##suffix, RouteParams<T>) { route<T, kFewExperts / kWarp>(p); }           \
  KERNEL(moe_route_many_##suffix, RouteParams<T>) { route<T, kMaxPerLane>(p); }             \
  KERNEL(moe_route_plain_##suffix, RouteParams<T>) { route_plain(p); }
#define COMBINE(T, N, suffix)                                                                \
  KERNEL(moe_combine_##suffix, CombineExpertsParams<T>) { combine<T, N>(p); }

ROUTE(float, f32)
ROUTE(f16, f16)
ROUTE(bf16, bf16)
COMBINE(float, 4, f32)
COMBINE(f16, 8, f16)
COMBINE(bf16, 8, bf16)
COMBINE(float, 1, plain_f32)
COMBINE(f16, 1, plain_f16)
COMBINE(bf16, 1, plain_bf16)

KERNEL(moe_sort_256, SortPairsParams) { sort_by_expert<256>(p); }
KERNEL(moe_sort_1024, SortPairsParams) { sort_by_expert<1024>(p); }
KERNEL(moe_sort_plain, SortPairsParams) { sort_plain(p); }
