// Attention over latents: what comes before it and after it. Attention itself is plain attention,
// whose values are the last features of its keys.
#include "ptx.cuh"
#include "rotary.cuh"

EXPORT_CONSTANT int kLatentThreads = 128;
// Tokens that a block multiplies by its columns of a head's matrix.
EXPORT_CONSTANT int kHeadTokens = 4;

// Parameters of the product with a matrix of each head.
// Kernels: latent/linear_heads_*
template <class T> struct LinearHeadsParams {
  T *out;      // [tokens, heads, from - inputs + outputs]
  const T *x;  // [tokens, heads, from]
  const T *w;  // [heads, inputs, outputs]
  int tokens;
  int from;
  int inputs;
  int outputs;
};

// out[t, h] = [x[t, h, inputs..] | w[h] · x[t, h, ..inputs]]. A thread computes one output of some
// tokens; each sum runs in the order of the inputs. The grid is [pieces of the outputs, heads,
// groups of tokens]; the first piece also copies.
template <class T> DEVICE void linear_heads(const LinearHeadsParams<T> &p) {
  wait_for_previous_kernel();
  const int head = blockIdx.y, heads = gridDim.y, first = int(blockIdx.z) * kHeadTokens,
            count = min(kHeadTokens, p.tokens - first), carried = p.from - p.inputs,
            to = carried + p.outputs, o = int(blockIdx.x) * kLatentThreads + int(threadIdx.x);
  const T *x = p.x + (int64_t(first) * heads + head) * p.from;
  T *out = p.out + (int64_t(first) * heads + head) * to;
  if (blockIdx.x == 0) {
    for (int t = 0; t < count; t++) {
      for (int d = threadIdx.x; d < carried; d += kLatentThreads)
        out[int64_t(t) * heads * to + d] = x[int64_t(t) * heads * p.from + p.inputs + d];
    }
  }
  if (o < p.outputs) {
    const T *w = p.w + int64_t(head) * p.inputs * p.outputs + o;
    float sums[kHeadTokens];
#pragma unroll
    for (int t = 0; t < kHeadTokens; t++) sums[t] = 0.0f;
    for (int i = 0; i < p.inputs; i++) {
      const float weight = to_float(w[int64_t(i) * p.outputs]);
#pragma unroll
      for (int t = 0; t < kHeadTokens; t++) {
        if (t < count) sums[t] += weight * to_float(x[int64_t(t) * heads * p.from + i]);
      }
    }
    for (int t = 0; t < count; t++) out[int64_t(t) * heads * to + carried + o] = from_float<T>(sums[t]);
  }
  let_next_kernel_start();
}

// Parameters of the step before attention over latents.
// Kernels: latent/latent_prologue_*
template <class T> struct LatentPrologueParams {
  T *queries;            // [tokens, heads, key_dim]
  const T *latents;      // [tokens, key_dim]
  const int *positions;  // [tokens]
  const int *slots;      // [tokens]
  void *keys;            // [blocks, block_size, key_dim]
  RotaryParams rope;
  int heads;
  int key_dim;
  CacheKind cache;
};

// Rotates the first features of the queries in place, and writes the rotated latents into the
// cache. The grid is [tokens, heads + 1]; the last blocks of a token process its latent.
template <class T> DEVICE void latent_prologue(const LatentPrologueParams<T> &p) {
  wait_for_previous_kernel();
  const int token = blockIdx.x, head = blockIdx.y, half = p.rope.rotary / 2, slot = p.slots[token];
  const bool is_query = head < p.heads;
  T *query = p.queries + (int64_t(token) * p.heads + head) * p.key_dim;
  const T *from = is_query ? query : p.latents + int64_t(token) * p.key_dim;
  const int64_t row = int64_t(slot) * p.key_dim;
  const auto store = [&](int d, float x) {
    if (is_query) {
      query[d] = from_float<T>(x);
    } else if (slot >= 0) {
      switch (p.cache) {
        case kCacheF32: static_cast<float *>(p.keys)[row + d] = x; break;
        case kCacheF16: static_cast<f16 *>(p.keys)[row + d] = from_float<f16>(x); break;
        default: static_cast<bf16 *>(p.keys)[row + d] = from_float<bf16>(x);
      }
    }
  };
  for (int pair = threadIdx.x; pair < half; pair += kLatentThreads) {
    const int64_t angle = int64_t(p.positions[token]) * half + pair;
    const int one = p.rope.interleaved ? 2 * pair : pair, two = p.rope.interleaved ? one + 1 : one + half;
    const float c = p.rope.cos[angle], s = p.rope.sin[angle], first = to_float(from[one]),
                second = to_float(from[two]);
    store(one, first * c - second * s);
    store(two, second * c + first * s);
  }
  if (!is_query) {
    for (int d = p.rope.rotary + int(threadIdx.x); d < p.key_dim; d += kLatentThreads)
      store(d, to_float(from[d]));
  }
  let_next_kernel_start();
}

#define LATENT(T, suffix) \
  KERNEL(linear_heads_##suffix, LinearHeadsParams<T>) { linear_heads(p); } \
  KERNEL(latent_prologue_##suffix, LatentPrologueParams<T>) { latent_prologue(p); }

LATENT(float, f32)
LATENT(f16, f16)
LATENT(bf16, bf16)
