// Attention in its obvious form: any head size, any block size, every type of activations and of cache.
//
// One warp per query and head. It takes keys by the 32, one per lane, for the scores, and shares the head's features among its lanes for the
// sum of values. Groups of keys start at multiples of 32, so a query's result does not depend on how its sequence was cut into steps.
#include "attention.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

constexpr int kWarps = 4;

template <class T, class C>
DEVICE void attention_plain(T *out, const T *qkv, const C *keys, const C *values, const float *key_scales, const float *value_scales,
                            const float *alibi, const float *sinks, Sequences all, int qkv_stride, int kv_heads, int head_dim, int block_size,
                            float scale, float soft_cap) {
  DYNAMIC_SHARED(float, shared);
  wait_for_previous_kernel();
  const Sequence s(all, blockIdx.z);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int query = blockIdx.x * kWarps + warp, head = blockIdx.y, heads = gridDim.y, kv_head = head / (heads / kv_heads);
  if (query >= s.queries) return;
  float *q = shared + warp * 2 * head_dim, *sum = q + head_dim;
  const T *from = qkv + int64_t(s.start + query) * qkv_stride + int64_t(head) * head_dim;
  for (int d = lane; d < head_dim; d += kWarp) {
    q[d] = to_float(from[d]);
    sum[d] = 0.0f;
  }
  __syncwarp();

  const int position = s.first + query, begin = s.begin(position), end = s.end(position);
  // A sink is a key without a value.
  float most = sinks ? sinks[head] : -infinity(), weights = sinks ? 1.0f : 0.0f;
  for (int tile = begin / kWarp * kWarp; tile < end; tile += kWarp) {
    const int key = tile + lane;
    float score = -infinity();
    if (key >= begin && key < end) {
      const int64_t row = kv_row(s.table, key, kv_head, kv_heads, block_size);
      float dot = 0.0f;
      for (int d = 0; d < head_dim; d++) dot += q[d] * to_float(keys[row * head_dim + d]);
      if (key_scales) dot *= key_scales[row];
      score = dot * scale;
      if (soft_cap > 0.0f) score = soft_cap * tanhf(score / soft_cap);
      if (alibi) score += alibi[head] * float(key - position);
    }
    const float now = fmaxf(most, warp_reduce(score, Max())), old = expf(most - now), weight = expf(score - now);
    most = now;
    weights = weights * old + warp_reduce(weight, Add());
    for (int d = lane; d < head_dim; d += kWarp) sum[d] *= old;
    for (int i = 0; i < kWarp; i++) {
      const float w = __shfl_sync(kAllLanes, weight, i);
      if (tile + i < begin || tile + i >= end) continue;
      const int64_t row = kv_row(s.table, tile + i, kv_head, kv_heads, block_size);
      const float factor = value_scales ? w * value_scales[row] : w;
      for (int d = lane; d < head_dim; d += kWarp) sum[d] += factor * to_float(values[row * head_dim + d]);
    }
  }
  let_next_kernel_start();
  T *to = out + (int64_t(s.start + query) * heads + head) * head_dim;
  for (int d = lane; d < head_dim; d += kWarp) to[d] = from_float<T>(sum[d] / weights);
}

#define ATTENTION(T, suffix, C, cached)                                                                                                         \
  KERNEL attention_plain_##cached##_##suffix(T *out, const T *qkv, const C *keys, const C *values, const float *key_scales,                     \
                                             const float *value_scales, const float *alibi, const float *sinks, const int *query_start,         \
                                             const int *context, const int *tables, const int *prefix, int rows, int table_stride, int window, \
                                             int qkv_stride, int kv_heads, int head_dim, int block_size, float scale, float soft_cap) {         \
    attention_plain<T, C>(out, qkv, keys, values, key_scales, value_scales, alibi, sinks,                                                       \
                          {query_start, context, tables, prefix, rows, table_stride, window}, qkv_stride, kv_heads, head_dim, block_size, scale, \
                          soft_cap);                                                                                                            \
  }                                                                                                                                             \
  REGISTER(attention_plain_##cached##_##suffix)
#define ATTENTIONS(C, cached) \
  ATTENTION(float, f32, C, cached) \
  ATTENTION(f16, f16, C, cached) \
  ATTENTION(bf16, bf16, C, cached)

ATTENTIONS(float, f32)
ATTENTIONS(f16, f16)
ATTENTIONS(bf16, bf16)
ATTENTIONS(e4m3, e4m3)
ATTENTIONS(int8_t, i8)
