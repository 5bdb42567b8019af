// The kernels before and after decode attention: one lists the splits of a step, the other sums up
// the splits of each sequence.
#include "attention.cuh"
#include "ptx.cuh"
#include "reduce.cuh"
#include "splits.cuh"

EXPORT_CONSTANT int kPlanThreads = 1024;
EXPORT_CONSTANT int kCombineThreads = 128;

// Parameters of the plan.
// Kernels: decode/decode_plan
struct DecodePlanParams {
  int *split_count;  // [1]
  int2 *list;        // [capacity]: (row, split)
  int *starts;       // [rows + 1]: where a row's splits begin in the list
  SequenceParams sequences;  // the tables are not read
  int max_queries;
  int split_tokens;
  int capacity;
};

// Parameters of the sum over splits.
// Kernels: decode/decode_combine_*
template <class T> struct DecodeCombineParams {
  T *out;                 // [tokens, heads, head_dim]
  const float *partials;  // [items, kept_rows, head_dim]
  const float2 *stats;    // [items, kept_rows]
  const int *starts;      // [rows + 1]
  const int *query_start;  // [rows + 1]
  const float *sinks;      // null or [heads]
  int heads;
  int kv_heads;
  int head_dim;
  int row_tiles;
  int kept_rows;
  int tile_rows;  // query rows of a tile
  int max_queries;
  int capacity;
};

// Lists the splits of all sequences, in one block. `starts[row]` is the place of a row's first
// split in the list; `split_count` is the number of splits.
//
// Sequences without queries, or with more than `max_queries`, have no splits. Splits beyond
// `capacity` are left out; the host makes it large enough.
BOUNDED_KERNEL(decode_plan, kPlanThreads, 1, DecodePlanParams) {
  constexpr int Threads = kPlanThreads;
  SHARED(int, sums, Threads / kWarp);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  wait_for_previous_kernel();
  auto splits = [&](int row) {
    const int queries = p.sequences.query_start[row + 1] - p.sequences.query_start[row];
    if (queries == 0 || queries > p.max_queries) return Splits{0, 0};
    return splits_of(p.sequences.context[row],
                     lowest_visible(p.sequences.context[row], queries, p.sequences.window,
                                    p.sequences.prefix ? p.sequences.prefix[row] : 0),
                     p.split_tokens);
  };
  int before = 0;
  for (int first = 0; first < p.sequences.rows; first += Threads) {
    const int row = first + threadIdx.x;
    const int own = row < p.sequences.rows ? splits(row).count() : 0;
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
    if (row < p.sequences.rows) p.starts[row] = before + up_to - own;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.starts[p.sequences.rows] = before;
    *p.split_count = min(before, p.capacity);
  }
  let_next_kernel_start();
  for (int row = warp; row < p.sequences.rows; row += Threads / kWarp) {
    const Splits s = splits(row);
    const int start = p.starts[row];
    for (int i = lane; i < s.count() && start + i < p.capacity; i += kWarp)
      p.list[start + i] = make_int2(row, s.first + i);
  }
}

// Sums up the parts of sequences of more than one split, in a fixed order. The grid is [heads,
// queries].
//
// Warp w takes every kWarps-th split from the w-th on, several at a time so that their loads
// overlap.
template <class T> DEVICE void combine(const DecodeCombineParams<T> &p) {
  constexpr int kWarps = kCombineThreads / kWarp, kAtOnce = 4, kMaxUnits = 64;
  SHARED(float4, sums, kWarps * kMaxUnits);
  SHARED(float2, warp_stats, kWarps);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, units = p.head_dim / 4;
  wait_for_previous_kernel();
  const int row = blockIdx.y / p.max_queries, query = blockIdx.y % p.max_queries, head = blockIdx.x;
  const int token = p.query_start[row], queries = p.query_start[row + 1] - token;
  const int start = p.starts[row], splits = p.starts[row + 1] - start;
  if (query >= queries || splits < 2 || start + splits > p.capacity) return;
  const int group = p.heads / p.kv_heads, kv_head = head / group;
  const int r = query * group + head % group, per_split = p.kv_heads * p.row_tiles;
  auto slot = [&](int split) {
    return (int64_t(start + split) * per_split + kv_head * p.row_tiles + r / p.tile_rows) * p.kept_rows +
           r % p.tile_rows;
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
        if (split < splits && u < units)
          parts[i][h] = reinterpret_cast<const float4 *>(p.partials + slot(split) * p.head_dim)[u];
      }
      if (split < splits) part_stats[i] = p.stats[slot(split)];
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
  for (int h = 0; h < 2; h++) sums[warp * kMaxUnits + lane + h * kWarp] = all[h];
  if (lane == 0) warp_stats[warp] = make_float2(most, sum);
  __syncthreads();
  let_next_kernel_start();

  const int u = threadIdx.x;
  if (u >= units) return;
  most = -infinity();
  for (int w = 0; w < kWarps; w++) most = fmaxf(most, warp_stats[w].x);
  sum = p.sinks ? exp2_fast(p.sinks[head] * kLog2E - most) : 0.0f;
  float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int w = 0; w < kWarps; w++) {
    const float factor = exp2_fast(warp_stats[w].x - most);
    const float4 part = sums[w * kMaxUnits + u];
    sum += warp_stats[w].y * factor;
    total.x += part.x * factor, total.y += part.y * factor, total.z += part.z * factor,
        total.w += part.w * factor;
  }
  const float factor = 1.0f / sum;
  uint2 packed;
  packed.x = pack2<T>(total.x * factor, total.y * factor);
  packed.y = pack2<T>(total.z * factor, total.w * factor);
  *reinterpret_cast<uint2 *>(p.out + (int64_t(token + query) * p.heads + head) * p.head_dim + u * 4) = packed;
}

#define COMBINE(T, suffix) \
  BOUNDED_KERNEL(decode_combine_##suffix, kCombineThreads, 1, DecodeCombineParams<T>) { combine(p); }

COMBINE(bf16, bf16)
COMBINE(f16, f16)
