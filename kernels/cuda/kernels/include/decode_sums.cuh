// How the splits of a sequence become one result: the block that writes the last part adds them up.
//
// Splits are added up in groups of kGroupSplits, cut at fixed positions of the sequence, and then
// the groups. A sequence of 128k tokens has hundreds of splits: their groups are added up by many
// blocks while others still read the cache, and only the sum over groups is left for the end.
// Parts are added up in the order of their positions, whichever block comes last.
#pragma once
#include "attention.cuh"
#include "ptx.cuh"

// Splits of a group.
EXPORT_CONSTANT int kGroupSplits = 16;

// The memory for parts. An item is a split of a sequence, a key/value head and a tile of query
// rows.
struct DecodeSumParams {
  float *partials;      // [items, kept_rows, head_dim]: of a split, and in its place of a group
  float2 *stats;        // [items, kept_rows]: the maximum in units of log2, and the sum
  float2 *group_stats;  // [items, kept_rows]: the same of a group, in the place of its first split
  uint32_t *group_arrivals;  // [items]: splits of a group that are written; zeros between launches
  uint32_t *row_arrivals;    // [items]: groups of a sequence, in the place of its first split
};

// exp2(a - b), where b is a maximum that includes a; 0 if a is minus infinity, as for keys that are
// not seen.
DEVICE float exp2_below(float a, float b) { return exp2_fast(a - (b == -infinity() ? 0.0f : b)); }

// The sum over keys of four features of a query row.
struct RowSum {
  float most = -infinity();  // the maximum of the scores, in units of log2
  float sum = 0.0f;          // of the weights, relative to the maximum
  float4 values = {0.0f, 0.0f, 0.0f, 0.0f};

  // Adds other keys. Keys that no query sees change no bit.
  DEVICE void add(float2 stats, float4 part) {
    const float high = fmaxf(most, stats.x);
    const float own = exp2_below(most, high), factor = exp2_below(stats.x, high);
    most = high;
    sum = sum * own + stats.y * factor;
    values.x = values.x * own + part.x * factor, values.y = values.y * own + part.y * factor;
    values.z = values.z * own + part.z * factor, values.w = values.w * own + part.w * factor;
  }
};

// Tells whether this block is the last of `parts` blocks that call it with `counter`, which is zero
// before the first of them and after the last. What these blocks wrote before can then be read. All
// threads of a block must call it.
DEVICE bool is_last_part(uint32_t *counter, int parts) {
  __syncthreads();
  bool last = parts == 1;
  if (threadIdx.x == 0 && parts > 1) {
    last = add_acquire_release(counter, 1u) == uint32_t(parts - 1);
    if (last) *counter = 0;
  }
  return __syncthreads_or(threadIdx.x == 0 && last);
}

// Adds up `parts` parts of `rows` query rows, and calls `finish(r, d, sum)` for the four features
// of row r that begin at d. `slot(i)` is the place of part i's first row. A thread reads and
// finishes the same features of a row, so `finish` may overwrite the values of a part.
template <int Threads, class Slot, class Finish>
DEVICE void add_parts(const float *partials, const float2 *stats, int head_dim, int rows, int parts,
                      Slot slot, Finish finish) {
  constexpr int kAtOnce = 8;  // parts whose loads overlap
  const int units = head_dim / 4;
  for (int u = threadIdx.x; u < rows * units; u += Threads) {
    const int r = u / units, d = u % units * 4;
    RowSum all;
    for (int first = 0; first < parts; first += kAtOnce) {
      float2 part_stats[kAtOnce];
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        part_stats[i] = make_float2(-infinity(), 0.0f);
        part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + i < parts) {
          const int64_t from = slot(first + i) + r;
          part_stats[i] = __ldcg(stats + from);
          part[i] = __ldcg(reinterpret_cast<const float4 *>(partials + from * head_dim + d));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) all.add(part_stats[i], part[i]);
    }
    finish(r, d, all);
  }
}
