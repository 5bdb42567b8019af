// Definitions for all sampling kernels: a row's parameters, the value of a token after each step,
// and the order of tokens.
//
// The host's sampler (`src/sample/`) defines the meaning. To choose the same tokens, the kernels
// compute everything that decides between tokens as the host does: logits in single precision, with
// one rounding per operation; noise in double precision; and the masses that the filters compare as
// integers in units of 2^-43 of the most likely token's weight, whose sums do not depend on the
// order.
#pragma once
#include "ptx.cuh"
#include "reduce.cuh"

typedef unsigned long long u64;

// Tokens of a warp in the kernels that divide a row among blocks. The result does not depend on it.
EXPORT_CONSTANT int kSegment = 512;
// Tokens of a block in these kernels. The result does not depend on it.
EXPORT_CONSTANT int kChunk = 4096;
// Bits of an id, which is the low part of every key. So no two keys are equal, and the lower id
// comes first.
EXPORT_CONSTANT int kIdBits = 20;
EXPORT_CONSTANT int kMaxTokens = 1048576;
static_assert(kMaxTokens == 1 << kIdBits, "every id has its bits");
constexpr u64 kIdMask = (1u << kIdBits) - 1;
// The key of an impossible token, which is greater than every other key.
constexpr u64 kNone = ~0ull;

// The columns of the table of parameters, which is u32 [column, stride] with a row's value at
// [row]. Floats are kept as their bits.
enum SampleColumn : int {
  kFlags,
  kTemperature,  // f32
  kTopK,
  kTopP,       // f32
  kFloor,      // f32
  kTypicalP,   // f32
  kRepetition, // f32
  kFrequency,  // f32
  kPresence,   // f32
  kSeedLow,
  kSeedHigh,
  kPosition,
  kPromptLen,
  kSlot,
  kTopN,
  kMaskRow,
  kBiasStart,
  kBiasCount,
  kGreenBelow,
  kGreenBias,  // f32
};
EXPORT_CONSTANT int kColumns = 20;
static_assert(kGreenBias + 1 == kColumns, "a column for each parameter");
// Bits of the column of flags.
EXPORT_CONSTANT uint32_t kDoSample = 1;
EXPORT_CONSTANT uint32_t kWarped = 2;
EXPORT_CONSTANT uint32_t kAdjusted = 4;

struct ParamTable {
  const uint32_t *at;
  int stride;
  int row;
  DEVICE uint32_t word(SampleColumn c) const { return at[int64_t(c) * stride + row]; }
  DEVICE float number(SampleColumn c) const { return __uint_as_float(word(c)); }
  DEVICE bool samples() const { return word(kFlags) & kDoSample; }
  DEVICE bool warped() const { return word(kFlags) & kWarped; }
  DEVICE bool penalized() const {
    return number(kRepetition) != 1.0f || number(kFrequency) != 0.0f || number(kPresence) != 0.0f;
  }
  // Whether the token is chosen from adjusted logits instead of the model's.
  DEVICE bool adjusted() const { return word(kFlags) & kAdjusted; }
  DEVICE bool watermarked() const { return word(kGreenBelow) != 0; }
  // Whether the reported log-probabilities are those of the adjusted logits and are known before a
  // token is drawn.
  DEVICE bool reports_adjusted() const { return warped() && !samples(); }
};

// The data of the steps that adjust logits before the draw.
struct AdjustParams {
  const uint32_t *history;   // null or [slots, history_stride]
  const uint32_t *bias_ids;  // null or [biases]
  const float *biases;       // null or [biases]
  const uint32_t *masks;     // null or [mask rows, mask_stride]
  int history_stride;
  int mask_stride;
};

// Whether a model's logit makes its row invalid: NaN or plus infinity. Minus infinity is a token
// that the model rules out.
DEVICE bool is_broken(float x) { return !(x < infinity()); }
// Cleans a logit after penalties and biases: NaN becomes an impossible token, and infinity the
// greatest number. Rows without a finite logit and invalid rows are found by their flags.
DEVICE float sanitize(float x) {
  if (x != x) return -infinity();
  return x == infinity() ? 3.402823466e38f : x;
}
DEVICE bool is_finite(float x) { return fabsf(x) < infinity(); }

constexpr uint32_t kSeen = 1u << 31;
// Applies the penalties. `count` is the number of times that the token was generated, with `kSeen`
// if it occurs in the prompt or the output.
DEVICE float penalize(float x, uint32_t count, const ParamTable &t) {
  const float repetition = t.number(kRepetition), frequency = t.number(kFrequency),
              presence = t.number(kPresence);
  if (count & kSeen && repetition != 1.0f) x = x > 0.0f ? x / repetition : x * repetition;
  const uint32_t times = count & ~kSeen;
  if (times) x = __fadd_rn(x, -__fadd_rn(__fmul_rn(frequency, float(times)), presence));
  return x;
}

DEVICE bool is_allowed(const AdjustParams &a, int mask_row, int id) {
  return mask_row < 0 || a.masks[int64_t(mask_row) * a.mask_stride + id / 32] >> (id % 32) & 1;
}

// Applies the temperature. The greatest logit becomes 0, impossible tokens become minus infinity.
// There is no negative zero.
DEVICE float apply_temperature(float x, float max, float temperature) {
  const float delta = x - max;
  return delta == 0.0f ? 0.0f : delta / temperature + 0.0f;
}

// e^x for x <= 0 in units of 2^-43, rounded to the nearest.
DEVICE u64 weight(float x) {
  // In this range the error of single precision is less than a unit.
  if (x < -18.0f) return u64(expf(x) * 8796093022208.0f + 0.5f);
  return u64(exp(double(x)) * 8796093022208.0 + 0.5);
}

// The property that keys order tokens by.
enum OrderKind { kByLikelihood, kByDistance, kByLogit };

struct TokenOrder {
  OrderKind kind;
  // The distribution that is drawn from.
  float max, temperature;
  // Tokens whose key by likelihood is above this limit are excluded.
  u64 limit;
  // For typical sampling: the logarithm of the sum of weights, the entropy, and the greatest key by
  // distance.
  double log_total, entropy;
  u64 distance_limit;

  DEVICE u64 by_distance(int id, float x) const {
    // 43 bits, 36 of them after the point. Tokens at a larger distance have no weight.
    const double distance = fabs(log_total - double(x) - entropy) * 68719476736.0;
    return u64(fmin(distance, 8796093022206.0)) << kIdBits | u64(id);
  }
  // The key of a token. Tokens with smaller keys come first.
  DEVICE u64 key(int id, float logit) const {
    if (kind == kByLogit) {
      const float x = sanitize(logit) + 0.0f;
      const uint32_t bits = __float_as_uint(x);
      if (x == -infinity()) return kNone;
      return u64(bits >> 31 ? bits : 0x7fffffffu - bits) << kIdBits | u64(id);
    }
    const float x = apply_temperature(sanitize(logit), max, temperature);
    if (x == -infinity()) return kNone;
    const u64 likelihood = u64(__float_as_uint(-x) & 0x7fffffffu) << kIdBits | u64(id);
    if (likelihood > limit) return kNone;
    if (kind == kByLikelihood && distance_limit == kNone) return likelihood;
    const u64 distance = by_distance(id, x);
    if (distance > distance_limit) return kNone;
    return kind == kByDistance ? distance : likelihood;
  }
  DEVICE int bits() const {
    return kind == kByLikelihood ? 31 + kIdBits : kind == kByDistance ? 43 + kIdBits : 32 + kIdBits;
  }
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

DEVICE uint32_t last_token(const AdjustParams &a, const ParamTable &t) {
  return a.history[int64_t(t.word(kSlot)) * a.history_stride + int(t.word(kPosition)) - 1];
}

// Adds the watermark's bias to those of four neighbors, the first at `id`, that are green after the
// token `previous`; see `src/sample/watermark.rs`.
DEVICE void add_watermark(float *four, int id, uint32_t previous, const ParamTable &t) {
  const uint4 words = philox(uint32_t(id) / 4, 0, 15485863u, previous);
  const uint32_t below = t.word(kGreenBelow);
  const float bias = t.number(kGreenBias);
  if (words.x < below) four[0] = __fadd_rn(four[0], bias);
  if (words.y < below) four[1] = __fadd_rn(four[1], bias);
  if (words.z < below) four[2] = __fadd_rn(four[2], bias);
  if (words.w < below) four[3] = __fadd_rn(four[3], bias);
}

DEVICE double gumbel(uint32_t word) { return -log(-log1p(-(double(word) + 0.5) * 2.3283064365386963e-10)); }
// Bounds of the noise: no gumbel(word) is above `kMaxGumbel` or below `kMinGumbel`.
constexpr float kMaxGumbel = 22.88f, kMinGumbel = -3.14f;

// The best token of a draw so far.
struct DrawnToken {
  double score;
  int id;
};
struct BetterDraw {
  DEVICE DrawnToken operator()(DrawnToken a, DrawnToken b) const {
    return b.score > a.score || (b.score == a.score && uint32_t(b.id) < uint32_t(a.id)) ? b : a;
  }
};
DEVICE DrawnToken nothing_drawn() { return DrawnToken{-double(infinity()), -1}; }
template <int Threads> DEVICE DrawnToken block_best(DrawnToken d, DrawnToken *scratch) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const DrawnToken other{__shfl_xor_sync(kAllLanes, d.score, lanes),
                           __shfl_xor_sync(kAllLanes, d.id, lanes)};
    d = BetterDraw()(d, other);
  }
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = d;
  __syncthreads();
  DrawnToken best = scratch[0];
#pragma unroll
  for (int w = 1; w < Threads / kWarp; w++) best = BetterDraw()(best, scratch[w]);
  return best;
}

// Where the results of sampling go.
struct OutcomeParams {
  uint32_t *tokens;     // [rows]
  float *logprobs;      // [rows]
  uint32_t *top_ids;    // [rows, top_stride]
  float *top_logprobs;  // [rows, top_stride]
  uint32_t *top_counts; // [rows]
  int top_stride;
};

// Writes the result of an invalid row or of one without a finite logit: its first allowed token,
// with NaN as its log-probability. One thread calls it.
DEVICE void report_nothing(const OutcomeParams &out, const AdjustParams &a, const ParamTable &t, int vocab) {
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
