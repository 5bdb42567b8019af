// Plain attention, for any head size, any block size, and every type of activations and of the
// cache.
//
// One warp computes one query of one head. For the scores it takes groups of 32 keys, one per lane;
// for the sum of values it divides the head's features among its lanes. Groups of keys start at
// multiples of 32, so a query's result does not depend on how its sequence was cut into steps.
#include "attention.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

// Queries of a block, one warp each.
EXPORT_CONSTANT int kPlainQueries = 4;
// Bytes of dynamic shared memory: the query and the sum of values of each warp.
EXPORT_FUNCTION int plain_attention_shared_bytes(int head_dim) { return kPlainQueries * 2 * head_dim * 4; }

// Parameters of plain attention.
// Kernels: attention_plain/attention_plain_*
template <class T, class C> struct PlainAttentionParams {
  T *out;         // [tokens, heads, value_dim]
  const T *qkv;   // [tokens, qkv_stride]
  const C *keys;  // [blocks, kv_heads, block_size, head_dim]
  const C *values;  // [blocks, kv_heads, block_size, value_dim], or inside rows of head_dim
  const float *key_scales;  // null or [blocks, kv_heads, block_size]
  const float *value_scales;
  SequenceParams sequences;
  ScoreParams scores;
  int qkv_stride;
  int kv_heads;
  int head_dim;
  int value_dim;
  int value_stride;  // elements from one row of values to the next one
  int block_size;
};

// The grid is [groups of queries, heads, sequences].
template <class T, class C> DEVICE void attention_plain(const PlainAttentionParams<T, C> &p) {
  DYNAMIC_SHARED(float, shared);
  wait_for_previous_kernel();
  const Sequence s(p.sequences, blockIdx.z);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int query = blockIdx.x * kPlainQueries + warp, head = blockIdx.y, heads = gridDim.y,
            kv_head = head / (heads / p.kv_heads);
  if (query >= s.queries) return;
  float *q = shared + warp * 2 * p.head_dim, *sum = q + p.head_dim;
  const T *from = p.qkv + int64_t(s.start + query) * p.qkv_stride + int64_t(head) * p.head_dim;
  for (int d = lane; d < p.head_dim; d += kWarp) {
    q[d] = to_float(from[d]);
    sum[d] = 0.0f;  // there are at most as many features of values
  }
  __syncwarp();

  const int position = s.first + query, begin = s.begin(position), end = s.end(position);
  // A sink counts as a key without a value.
  float most = p.scores.sinks ? p.scores.sinks[head] : -infinity(), weights = p.scores.sinks ? 1.0f : 0.0f;
  for (int tile = begin / kWarp * kWarp; tile < end; tile += kWarp) {
    const int key = tile + lane;
    float score = -infinity();
    if (key >= begin && key < end) {
      const int64_t row = kv_row(s.table, key, kv_head, p.kv_heads, p.block_size);
      float dot = 0.0f;
      for (int d = 0; d < p.head_dim; d++) dot += q[d] * to_float(p.keys[row * p.head_dim + d]);
      if (p.key_scales) dot *= p.key_scales[row];
      score = dot * p.scores.scale;
      if (p.scores.soft_cap > 0.0f) score = p.scores.soft_cap * tanhf(score / p.scores.soft_cap);
      if (p.scores.alibi) score += p.scores.alibi[head] * float(key - position);
    }
    const float now = fmaxf(most, warp_reduce(score, Max())), old = expf(most - now),
                weight = expf(score - now);
    most = now;
    weights = weights * old + warp_reduce(weight, Add());
    for (int d = lane; d < p.value_dim; d += kWarp) sum[d] *= old;
    for (int i = 0; i < kWarp; i++) {
      const float w = __shfl_sync(kAllLanes, weight, i);
      if (tile + i < begin || tile + i >= end) continue;
      const int64_t row = kv_row(s.table, tile + i, kv_head, p.kv_heads, p.block_size);
      const float factor = p.value_scales ? w * p.value_scales[row] : w;
      for (int d = lane; d < p.value_dim; d += kWarp)
        sum[d] += factor * to_float(p.values[row * p.value_stride + d]);
    }
  }
  let_next_kernel_start();
  T *to = p.out + (int64_t(s.start + query) * heads + head) * p.value_dim;
  for (int d = lane; d < p.value_dim; d += kWarp) to[d] = from_float<T>(sum[d] / weights);
}

#define ATTENTION(T, suffix, C, cached) \
  KERNEL(attention_plain_##cached##_##suffix, PlainAttentionParams<T, C>) { attention_plain(p); }
#define ATTENTIONS(C, cached) \
  ATTENTION(float, f32, C, cached) \
  ATTENTION(f16, f16, C, cached) \
  ATTENTION(bf16, bf16, C, cached)

ATTENTIONS(float, f32)
ATTENTIONS(f16, f16)
ATTENTIONS(bf16, bf16)
ATTENTIONS(e4m3, e4m3)
ATTENTIONS(int8_t, i8)
