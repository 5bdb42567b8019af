// What stands before and behind decode attention: the list of a step's splits, and the sum over each sequence's.
#include "ptx.cuh"
#include "reduce.cuh"
#include "splits.cuh"

constexpr float kLog2e = 1.4426950408889634f;

// Lists the splits of all sequences, one block for all. `starts[row]` is where a row's begin; `split_count` is how many there are.
//
// Sequences without queries, or with more than `most_queries`, have none. What `capacity` does not hold is left out; the host sees to it that it does.
KERNEL __launch_bounds__(1024) decode_plan(int *split_count, int2 *list, int *starts, const int *query_start, const int *context,
                                           const int *prefix, int rows, int most_queries, int window, int split_tokens, int capacity) {
  constexpr int Threads = 1024;
  SHARED(int, sums, Threads / kWarp);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  wait_for_previous_kernel();
  auto splits = [&](int row) {
    const int queries = query_start[row + 1] - query_start[row];
    if (queries == 0 || queries > most_queries) return Splits{0, 0};
    return splits_of(context[row], lowest_visible(context[row], queries, window, prefix ? prefix[row] : 0), split_tokens);
  };
  int before = 0;
  for (int first = 0; first < rows; first += Threads) {
    const int row = first + threadIdx.x;
    const int own = row < rows ? splits(row).count() : 0;
    int up_to = own;
#pragma unroll
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      const int below = __shfl_up_sync(kAllLanes, up_to, lanes);
      if (lane >= lanes) up_to += below;
    }
    if (lane == kWarp - 1) sums[warp] = up_to;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < Threads / kWarp; w++) {
      if (w == warp) up_to += all;
      all += sums[w];
    }
    if (row < rows) starts[row] = before + up_to - own;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    starts[rows] = before;
    *split_count = min(before, capacity);
  }
  let_next_kernel_start();
  for (int row = warp; row < rows; row += Threads / kWarp) {
    const Splits s = splits(row);
    const int start = starts[row];
    for (int i = lane; i < s.count() && start + i < capacity; i += kWarp) list[start + i] = make_int2(row, s.first + i);
  }
}
REGISTER(decode_plan)

// Sums the parts of sequences of more than one split, in the order of the splits. One block per head (x) and query (y).
//
// Warp w takes every kWarps-th split from the w-th on, several at a time so that their loads overlap.
template <class T>
DEVICE void combine(T *out, const float *partials, const float2 *stats, const int *starts, const int *query_start, const float *sinks,
                    int heads, int kv_heads, int head_dim, int row_tiles, int kept_rows, int tile_rows, int most_queries, int capacity) {
  constexpr int kWarps = 4, kAtOnce = 4, kMostUnits = 64;
  SHARED(float4, sums, kWarps * kMostUnits);
  SHARED(float2, warp_stats, kWarps);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, units = head_dim / 4;
  wait_for_previous_kernel();
  const int row = blockIdx.y / most_queries, query = blockIdx.y % most_queries, head = blockIdx.x;
  const int token = query_start[row], queries = query_start[row + 1] - token;
  const int start = starts[row], splits = starts[row + 1] - start;
  if (query >= queries || splits < 2 || start + splits > capacity) return;
  const int group = heads / kv_heads, kv_head = head / group;
  const int r = query * group + head % group, per_split = kv_heads * row_tiles;
  auto slot = [&](int split) {
    return (int64_t(start + split) * per_split + kv_head * row_tiles + r / tile_rows) * kept_rows + r % tile_rows;
  };

  float most = -infinity(), sum = 0.0f;
  float4 all[2] = {};
  for (int first = warp; first < splits; first += kWarps * kAtOnce) {
    float2 part_stats[kAtOnce];
    float4 parts[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int split = first + i * kWarps;
      part_stats[i] = make_float2(-infinity(), 0.0f);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int u = lane + h * kWarp;
        parts[i][h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (split < splits && u < units) parts[i][h] = reinterpret_cast<const float4 *>(partials + slot(split) * head_dim)[u];
      }
      if (split < splits) part_stats[i] = stats[slot(split)];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const float high = fmaxf(most, part_stats[i].x), base = high == -infinity() ? 0.0f : high;
      const float old_factor = exp2_fast(most - base), factor = exp2_fast(part_stats[i].x - base);
      most = high;
      sum = sum * old_factor + part_stats[i].y * factor;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        all[h].x = all[h].x * old_factor + parts[i][h].x * factor;
        all[h].y = all[h].y * old_factor + parts[i][h].y * factor;
        all[h].z = all[h].z * old_factor + parts[i][h].z * factor;
        all[h].w = all[h].w * old_factor + parts[i][h].w * factor;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) sums[warp * kMostUnits + lane + h * kWarp] = all[h];
  if (lane == 0) warp_stats[warp] = make_float2(most, sum);
  __syncthreads();
  let_next_kernel_start();

  const int u = threadIdx.x;
  if (u >= units) return;
  most = -infinity();
  for (int w = 0; w < kWarps; w++) most = fmaxf(most, warp_stats[w].x);
  sum = sinks ? exp2_fast(sinks[head] * kLog2e - most) : 0.0f;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int w = 0; w < kWarps; w++) {
    const float factor = exp2_fast(warp_stats[w].x - most);
    const float4 part = sums[w * kMostUnits + u];
    sum += warp_stats[w].y * factor;
    total.x += part.x * factor, total.y += part.y * factor, total.z += part.z * factor, total.w += part.w * factor;
  }
  const float factor = 1.0f / sum;
  uint2 packed;
  packed.x = pack2<T>(total.x * factor, total.y * factor);
  packed.y = pack2<T>(total.z * factor, total.w * factor);
  *reinterpret_cast<uint2 *>(out + (int64_t(token + query) * heads + head) * head_dim + u * 4) = packed;
}

#define COMBINE(T, suffix)                                                                                                           \
  KERNEL __launch_bounds__(128) decode_combine_##suffix(T *out, const float *partials, const float2 *stats, const int *starts,       \
                                                        const int *query_start, const float *sinks, int heads, int kv_heads,         \
                                                        int head_dim, int row_tiles, int kept_rows, int tile_rows, int most_queries, \
                                                        int capacity) {                                                              \
    combine<T>(out, partials, stats, starts, query_start, sinks, heads, kv_heads, head_dim, row_tiles, kept_rows, tile_rows,         \
               most_queries, capacity);                                                                                              \
  }                                                                                                                                  \
  REGISTER(decode_combine_##suffix)

COMBINE(bf16, bf16)
COMBINE(f16, f16)
