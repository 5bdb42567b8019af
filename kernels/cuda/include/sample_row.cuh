// What the sampling kernels share: a row's parameters, the value of a token at each step of the way, and the order of tokens.
//
// The host's sampler (`src/sample/`) says what everything means. To be equal to it token for token, all that decides between tokens is
// computed as there: logits in single precision, one rounding per operation; noise in double precision; and the masses that the filters
// compare as integers, units of 2^-43 of the most likely token's weight, whose sums depend on no order.
#pragma once
#include "ptx.cuh"
#include "reduce.cuh"

typedef unsigned long long u64;

// Tokens of a block of the kernels that share a row among blocks, and of one warp of it: the result depends on neither.
constexpr int kSegment = 512;
constexpr int kChunk = 4096;
// An id's bits. The low part of every key, so that no two keys are equal and the lower id comes first.
constexpr int kIdBits = 20;
constexpr u64 kIdMask = (1u << kIdBits) - 1;
// The key of a token that is impossible; greater than every other.
constexpr u64 kNone = ~0ull;

// The columns of the table of parameters, u32 or f32 [column, stride] with a row's value at [row].
enum Column {
  kFlags, kTemperature, kTopK, kTopP, kFloor, kTypicalP, kRepetition, kFrequency, kPresence, kSeedLow, kSeedHigh, kPosition, kPromptLen,
  kSlot, kTopN, kMaskRow, kBiasStart, kBiasCount, kGreenBelow, kGreenBias,
};
constexpr uint32_t kDoSample = 1, kWarped = 2, kAdjusted = 4;

struct Table {
  const uint32_t *at;
  int stride;
  int row;
  DEVICE uint32_t word(Column c) const { return at[int64_t(c) * stride + row]; }
  DEVICE float number(Column c) const { return __uint_as_float(word(c)); }
  DEVICE bool samples() const { return word(kFlags) & kDoSample; }
  DEVICE bool warped() const { return word(kFlags) & kWarped; }
  DEVICE bool penalised() const { return number(kRepetition) != 1.0f || number(kFrequency) != 0.0f || number(kPresence) != 0.0f; }
  // Whether a token is chosen from other logits than the model's.
  DEVICE bool adjusted() const { return word(kFlags) & kAdjusted; }
  DEVICE bool marked() const { return word(kGreenBelow) != 0; }
  // Whether the log-probabilities are those of the adjusted logits and known before a token is drawn.
  DEVICE bool reports_adjusted() const { return warped() && !samples(); }
};

// What the steps before the draw may change a logit by.
struct Adjust {
  const uint32_t *history;  // [slots, history_stride]
  const uint32_t *bias_ids;
  const float *biases;
  const uint32_t *masks;  // [mask rows, mask_stride]
  int history_stride, mask_stride;
};

// Whether a model's logit spoils its row: NaN or plus infinity. Minus infinity is a token that the model rules out.
DEVICE bool is_broken(float x) { return !(x < infinity()); }
// What penalties and biases have made of finite logits: NaN is impossible, and an infinity the greatest number. A row of nothing finite, and one that
// a model's logit spoils, are found by their flags.
DEVICE float sanitize(float x) {
  if (x != x) return -infinity();
  return x == infinity() ? 3.402823466e38f : x;
}
DEVICE bool is_finite(float x) { return fabsf(x) < infinity(); }

constexpr uint32_t kSeen = 1u << 31;
// The penalties. `count` is how often the token was generated, and `kSeen` if it occurs in the prompt or the output.
DEVICE float penalise(float x, uint32_t count, const Table &t) {
  const float repetition = t.number(kRepetition), frequency = t.number(kFrequency), presence = t.number(kPresence);
  if (count & kSeen && repetition != 1.0f) x = x > 0.0f ? x / repetition : x * repetition;
  const uint32_t times = count & ~kSeen;
  if (times) x = __fadd_rn(x, -__fadd_rn(__fmul_rn(frequency, float(times)), presence));
  return x;
}

DEVICE bool is_allowed(const Adjust &a, int mask_row, int id) {
  return mask_row < 0 || a.masks[int64_t(mask_row) * a.mask_stride + id / 32] >> (id % 32) & 1;
}

// The logit under the temperature, the greatest one at 0; impossible tokens at minus infinity. There is only one zero.
DEVICE float heat(float x, float max, float temperature) {
  const float delta = x - max;
  return delta == 0.0f ? 0.0f : delta / temperature + 0.0f;
}

// e^x for x <= 0 in units of 2^-43, to the nearest.
DEVICE u64 weight(float x) {
  // Here single precision errs by less than a unit.
  if (x < -18.0f) return u64(expf(x) * 8796093022208.0f + 0.5f);
  return u64(exp(double(x)) * 8796093022208.0 + 0.5);
}

// What a key orders tokens by.
enum Kind { kByLikelihood, kByDistance, kByLogit };

struct Order {
  Kind kind;
  // The distribution that is drawn from.
  float max, temperature;
  // Only tokens whose likelihood's key is not above this are there.
  u64 limit;
  // For typical sampling: logarithm of the sum of weights, entropy, and the greatest key by distance.
  double log_total, entropy;
  u64 distance_limit;

  DEVICE u64 by_distance(int id, float x) const {
    // 43 bits, 36 of them behind the point. What is farther off has no weight.
    const double distance = fabs(log_total - double(x) - entropy) * 68719476736.0;
    return u64(fmin(distance, 8796093022206.0)) << kIdBits | u64(id);
  }
  // The smaller, the earlier the token is taken.
  DEVICE u64 key(int id, float logit) const {
    if (kind == kByLogit) {
      const float x = sanitize(logit) + 0.0f;
      const uint32_t bits = __float_as_uint(x);
      if (x == -infinity()) return kNone;
      return u64(bits >> 31 ? bits : 0x7fffffffu - bits) << kIdBits | u64(id);
    }
    const float x = heat(sanitize(logit), max, temperature);
    if (x == -infinity()) return kNone;
    const u64 likelihood = u64(__float_as_uint(-x) & 0x7fffffffu) << kIdBits | u64(id);
    if (likelihood > limit) return kNone;
    if (kind == kByLikelihood && distance_limit == kNone) return likelihood;
    const u64 distance = by_distance(id, x);
    if (distance > distance_limit) return kNone;
    return kind == kByDistance ? distance : likelihood;
  }
  DEVICE int bits() const { return kind == kByLikelihood ? 31 + kIdBits : kind == kByDistance ? 43 + kIdBits : 32 + kIdBits; }
};

// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3").
DEVICE uint4 philox(uint32_t c0, uint32_t c1, uint32_t k0, uint32_t k1) {
  uint32_t c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32_t high = __umulhi(0xCD9E8D57u, c2), low = 0xCD9E8D57u * c2;
    const uint32_t other_high = __umulhi(0xD2511F53u, c0), other_low = 0xD2511F53u * c0;
    c0 = high ^ c1 ^ k0;
    c1 = low;
    c2 = other_high ^ c3 ^ k1;
    c3 = other_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

DEVICE uint32_t last_token(const Adjust &a, const Table &t) {
  return a.history[int64_t(t.word(kSlot)) * a.history_stride + int(t.word(kPosition)) - 1];
}

// Adds the watermark's bias to those of four neighbours, the first at `id`, that are green after `previous`; see `src/sample/watermark.rs`.
DEVICE void mark(float *four, int id, uint32_t previous, const Table &t) {
  const uint4 words = philox(uint32_t(id) / 4, 0, 15485863u, previous);
  const uint32_t below = t.word(kGreenBelow);
  const float bias = t.number(kGreenBias);
  if (words.x < below) four[0] = __fadd_rn(four[0], bias);
  if (words.y < below) four[1] = __fadd_rn(four[1], bias);
  if (words.z < below) four[2] = __fadd_rn(four[2], bias);
  if (words.w < below) four[3] = __fadd_rn(four[3], bias);
}

DEVICE double gumbel(uint32_t word) { return -log(-log1p(-(double(word) + 0.5) * 2.3283064365386963e-10)); }
// Never less than any gumbel(word), and less by no more than that than any that wins: the most likely token's is above `kLeastGumbel`.
constexpr float kMostGumbel = 22.88f, kLeastGumbel = -3.14f;

// The token drawn so far.
struct Drawn {
  double score;
  int id;
};
struct BetterDraw {
  DEVICE Drawn operator()(Drawn a, Drawn b) const {
    return b.score > a.score || (b.score == a.score && uint32_t(b.id) < uint32_t(a.id)) ? b : a;
  }
};
DEVICE Drawn nothing_drawn() { return Drawn{-double(infinity()), -1}; }
template <int Threads> DEVICE Drawn block_best(Drawn d, Drawn *scratch) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const Drawn other{__shfl_xor_sync(kAllLanes, d.score, lanes), __shfl_xor_sync(kAllLanes, d.id, lanes)};
    d = BetterDraw()(d, other);
  }
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = d;
  __syncthreads();
  Drawn best = scratch[0];
#pragma unroll
  for (int w = 1; w < Threads / kWarp; w++) best = BetterDraw()(best, scratch[w]);
  return best;
}

// What a step leaves for the host and for the next step. `top_*` are [rows, top_stride].
struct Outcome {
  uint32_t *tokens;
  float *logprobs;
  uint32_t *top_ids;
  float *top_logprobs;
  uint32_t *top_counts;
  int top_stride;
};

// The answer for a row that a logit spoils, or without a finite logit: its first allowed token, with NaN for its log-probability. By one thread.
DEVICE void report_nothing(const Outcome &out, const Adjust &a, const Table &t, int vocab) {
  const int mask_row = int(t.word(kMaskRow));
  uint32_t token = 0;
  if (mask_row >= 0) {
    for (int w = 0; w < ceil_div(vocab, 32); w++) {
      const uint32_t word = a.masks[int64_t(mask_row) * a.mask_stride + w];
      if (word == 0) continue;
      token = uint32_t(w * 32 + __ffs(int(word)) - 1);
      break;
    }
  }
  out.tokens[t.row] = token;
  out.logprobs[t.row] = __uint_as_float(0x7fc00000u);
  out.top_counts[t.row] = 0;
}
