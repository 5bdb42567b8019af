// The step between the product with Wqkv and attention: bias, norm of query and key heads (Qwen3),
// rotation, and the write into the paged cache.
//
// A block processes the heads of one token. In the fast version a group of lanes processes one
// head: each lane holds two vectors of N elements that are rotated with each other (or each within
// itself, if pairs are interleaved). So only the statistics of a head cross lanes, and a lane keeps
// the angles for all its heads. A head's result depends on nothing else.
#include "floats.cuh"
#include "ptx.cuh"
#include "reduce.cuh"
#include "rotary.cuh"

EXPORT_CONSTANT int kPrologueThreads = 128;

// Parameters of the prologue.
// Kernels: prologue/prologue_*
template <class T> struct PrologueParams {
  T *qkv;               // [tokens, heads + 2 kv_heads, head_dim]
  const float *bias;    // null or [heads + 2 kv_heads, head_dim]
  const float *q_norm;  // null or [head_dim]
  const float *k_norm;
  const int *positions;         // [tokens]
  const int *second_positions;  // null or [tokens]
  const float *query_scale;     // null or [positions]
  const int *scale_positions;   // null or [tokens]
  const int *slots;             // [tokens]
  void *keys;    // [blocks, kv_heads, block_size, head_dim]
  void *values;
  float *key_scales;  // null or [blocks, kv_heads, block_size]
  float *value_scales;
  RotaryParams rope;
  float q_eps;
  float k_eps;
  int heads;
  int kv_heads;
  int head_dim;
  int block_size;
  int first_head;      // heads before it stay as they are
  int lanes_per_head;  // a power of two; the plain kernel does not read it
  CacheKind cache;     // only the plain kernel reads it
};

// Index of the row of token `slot` (block · block_size + place in it) and `head` in the cache.
template <class T> DEVICE int64_t cache_row(const PrologueParams<T> &p, int slot, int head) {
  return (int64_t(slot / p.block_size) * p.kv_heads + head) * p.block_size + slot % p.block_size;
}

template <class T, int N, CacheKind cache>
DEVICE void store_cached(void *to, int64_t at, const float (&x)[N], float inverse) {
  if constexpr (cache == kSame) {
    Vec<T, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) o.at[i] = from_float<T>(x[i]);
    store_vec(static_cast<T *>(to) + at, o);
  } else if constexpr (cache == kCacheE4m3) {
    Vec<e4m3, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) o.at[i] = from_float<e4m3>(x[i] * inverse);
    store_vec(static_cast<e4m3 *>(to) + at, o);
  } else {
    Vec<int8_t, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) o.at[i] = round_to_i8(x[i] * inverse);
    store_vec(static_cast<int8_t *>(to) + at, o);
  }
}

template <class F> DEVICE float group_reduce(float value, int group, F combine) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    if (lanes < group) value = combine(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// `lanes_per_head` lanes process one head; each of the first ones has 2 N of its elements.
template <class T, CacheKind cache> DEVICE void prologue(const PrologueParams<T> &p) {
  constexpr int Threads = kPrologueThreads;
  const int group = p.lanes_per_head;
  constexpr int N = kVec<T>;
  wait_for_previous_kernel();
  const int token = blockIdx.x, slot = p.slots[token];
  const int unit = int(threadIdx.x) % group * N, half = p.rope.rotary / 2;
  const bool active = 2 * unit < p.head_dim;
  // The places of this lane's two vectors in the head are `a` and `b`.
  const int section = half > 0 ? unit / half : p.rope.sections, rotated = p.rope.sections * p.rope.rotary;
  const bool rotates = active && section < p.rope.sections;
  const int rest = unit - p.rope.sections * half;
  const int a = rotates ? section * p.rope.rotary + unit % half : rotated + rest;
  const int b = a + (rotates ? half : (p.head_dim - rotated) / 2);
  float cos[N], sin[N];
  if (rotates) {
    const int64_t position = (section == 0 ? p.positions : p.second_positions)[token];
    // The angles of the first N/2 pairs, then of the others: neighbours, or those of b if pairs are
    // neighbours.
    const int one = p.rope.interleaved ? unit % half / 2 : unit % half;
    const int two = one + (p.rope.interleaved ? half / 2 : N / 2);
#pragma unroll
    for (int piece = 0; piece < 2; piece++) {
      const int64_t at = position * half + (piece == 0 ? one : two);
      const Vec<float, N / 2> c = load_vec<float, N / 2>(p.rope.cos + at),
                              s = load_vec<float, N / 2>(p.rope.sin + at);
#pragma unroll
      for (int i = 0; i < N / 2; i++) {
        cos[piece * (N / 2) + i] = c.at[i];
        sin[piece * (N / 2) + i] = s.at[i];
      }
    }
  }

  const float query_scale = p.query_scale ? p.query_scale[p.scale_positions[token]] : 1.0f;
  const int all = p.heads + 2 * p.kv_heads, groups = Threads / group;
  T *row = p.qkv + int64_t(token) * all * p.head_dim;
  for (int start = p.first_head + int(blockIdx.y) * groups; start < all; start += groups * int(gridDim.y)) {
    const int head = start + int(threadIdx.x) / group;
    const bool works = active && head < all;
    const bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
    float x[N], y[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = y[i] = 0.0f;
    if (works) {
      const Vec<T, N> xs = load_vec<T, N>(row + head * p.head_dim + a),
                      ys = load_vec<T, N>(row + head * p.head_dim + b);
#pragma unroll
      for (int i = 0; i < N; i++) {
        x[i] = to_float(xs.at[i]);
        y[i] = to_float(ys.at[i]);
      }
      if (p.bias) {
        const float *bias = p.bias + head * p.head_dim;
        const Floats<N> of_x = load_floats<N>(bias + a), of_y = load_floats<N>(bias + b);
#pragma unroll
        for (int i = 0; i < N; i++) {
          x[i] += of_x.at[i];
          y[i] += of_y.at[i];
        }
      }
    }
    if (p.q_norm) {
      float square = 0.0f;
#pragma unroll
      for (int i = 0; i < N; i++) square += x[i] * x[i] + y[i] * y[i];
      const float mean = group_reduce(square, group, Add()) / float(p.head_dim);
      if (works && !is_value) {
        const float scale = rsqrtf(mean + (is_query ? p.q_eps : p.k_eps));
        const float *weight = is_query ? p.q_norm : p.k_norm;
        const Floats<N> of_x = load_floats<N>(weight + a), of_y = load_floats<N>(weight + b);
#pragma unroll
        for (int i = 0; i < N; i++) {
          x[i] *= scale * of_x.at[i];
          y[i] *= scale * of_y.at[i];
        }
      }
    }
    if (rotates && !is_value) {
      if (p.rope.interleaved) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
          const float x0 = x[2 * i], x1 = x[2 * i + 1], y0 = y[2 * i], y1 = y[2 * i + 1];
          x[2 * i] = x0 * cos[i] - x1 * sin[i];
          x[2 * i + 1] = x1 * cos[i] + x0 * sin[i];
          y[2 * i] = y0 * cos[N / 2 + i] - y1 * sin[N / 2 + i];
          y[2 * i + 1] = y1 * cos[N / 2 + i] + y0 * sin[N / 2 + i];
        }
      } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float first = x[i];
          x[i] = first * cos[i] - y[i] * sin[i];
          y[i] = y[i] * cos[i] + first * sin[i];
        }
      }
    }
    float scale = 0.0f, inverse = 0.0f;
    if constexpr (cache != kSame) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < N; i++) most = fmaxf(most, fmaxf(fabsf(x[i]), fabsf(y[i])));
      scales_of(cache, group_reduce(most, group, Max()), &scale, &inverse);
    }
    if (!works) continue;
    if (is_query) {
      if (p.query_scale) {
#pragma unroll
        for (int i = 0; i < N; i++) {
          x[i] *= query_scale;
          y[i] *= query_scale;
        }
      }
      store_cached<T, N, kSame>(row, head * p.head_dim + a, x, 1.0f);
      store_cached<T, N, kSame>(row, head * p.head_dim + b, y, 1.0f);
    } else if (slot >= 0) {
      const int kv_head = head - p.heads - (is_value ? p.kv_heads : 0);
      const int64_t at = cache_row(p, slot, kv_head);
      void *to = is_value ? p.values : p.keys;
      store_cached<T, N, cache>(to, at * p.head_dim + a, x, inverse);
      store_cached<T, N, cache>(to, at * p.head_dim + b, y, inverse);
      if (cache != kSame && unit == 0) (is_value ? p.value_scales : p.key_scales)[at] = scale;
    }
  }
  let_next_kernel_start();
}

// The plain version, for any shape and any type of the cache: one warp processes one head, whose
// features lie in shared memory.
template <class T> DEVICE void prologue_plain(const PrologueParams<T> &p) {
  DYNAMIC_SHARED(float, x);
  wait_for_previous_kernel();
  const int token = blockIdx.x, head = p.first_head + int(blockIdx.y), lane = threadIdx.x,
            slot = p.slots[token];
  const bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
  T *from = p.qkv + (int64_t(token) * (p.heads + 2 * p.kv_heads) + head) * p.head_dim;
  float square = 0.0f;
  for (int d = lane; d < p.head_dim; d += kWarp) {
    x[d] = to_float(from[d]) + (p.bias ? p.bias[head * p.head_dim + d] : 0.0f);
    square += x[d] * x[d];
  }
  const float *weight = is_value ? nullptr : is_query ? p.q_norm : p.k_norm;
  if (weight) {
    const float scale = rsqrtf(warp_reduce(square, Add()) / float(p.head_dim) +
                               (is_query ? p.q_eps : p.k_eps));
    for (int d = lane; d < p.head_dim; d += kWarp) x[d] *= scale * weight[d];
  }
  __syncwarp();
  const int half = p.rope.rotary / 2;
  for (int i = lane; !is_value && i < p.rope.sections * half; i += kWarp) {
    const int section = i / half, pair = i % half, base = section * p.rope.rotary;
    const int64_t angle = int64_t((section == 0 ? p.positions : p.second_positions)[token]) * half + pair;
    const int one = base + (p.rope.interleaved ? 2 * pair : pair),
              two = p.rope.interleaved ? one + 1 : one + half;
    const float c = p.rope.cos[angle], s = p.rope.sin[angle], first = x[one], second = x[two];
    x[one] = first * c - second * s;
    x[two] = second * c + first * s;
  }
  __syncwarp();
  let_next_kernel_start();
  if (is_query) {
    const float query_scale = p.query_scale ? p.query_scale[p.scale_positions[token]] : 1.0f;
    for (int d = lane; d < p.head_dim; d += kWarp) from[d] = from_float<T>(x[d] * query_scale);
    return;
  }
  if (slot < 0) return;
  const int64_t at = cache_row(p, slot, head - p.heads - (is_value ? p.kv_heads : 0));
  float scale = 0.0f, inverse = 0.0f;
  if (p.cache == kCacheE4m3 || p.cache == kCacheI8) {
    float most = 0.0f;
    for (int d = lane; d < p.head_dim; d += kWarp) most = fmaxf(most, fabsf(x[d]));
    scales_of(p.cache, warp_reduce(most, Max()), &scale, &inverse);
    if (lane == 0) (is_value ? p.value_scales : p.key_scales)[at] = scale;
  }
  void *to = is_value ? p.values : p.keys;
  for (int d = lane; d < p.head_dim; d += kWarp) {
    const int64_t place = at * p.head_dim + d;
    switch (p.cache) {
      case kCacheF32: static_cast<float *>(to)[place] = x[d]; break;
      case kCacheF16: static_cast<f16 *>(to)[place] = from_float<f16>(x[d]); break;
      case kCacheBf16: static_cast<bf16 *>(to)[place] = from_float<bf16>(x[d]); break;
      case kCacheE4m3: static_cast<e4m3 *>(to)[place] = from_float<e4m3>(x[d] * inverse); break;
      default: static_cast<int8_t *>(to)[place] = round_to_i8(x[d] * inverse);
    }
  }
}

#define FAST(T, cache, suffix) \
  KERNEL(prologue_##suffix, PrologueParams<T>) { prologue<T, cache>(p); }
#define PLAIN(T, suffix) \
  KERNEL(prologue_plain_##suffix, PrologueParams<T>) { prologue_plain(p); }

FAST(f16, kSame, f16)
FAST(bf16, kSame, bf16)
FAST(f16, kCacheE4m3, e4m3_f16)
FAST(bf16, kCacheE4m3, e4m3_bf16)
FAST(f16, kCacheI8, i8_f16)
FAST(bf16, kCacheI8, i8_bf16)
PLAIN(float, f32)
PLAIN(f16, f16)
PLAIN(bf16, bf16)
