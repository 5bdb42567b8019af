// Decode attention: few queries per sequence over a paged cache, as fast as the cache can be read.
//
// A work item is one split of a sequence (a fixed number of tokens from a fixed position), one
// key/value head, and up to 8 or 16 of the query rows that share this head. A planning kernel lists
// the splits of all sequences, and a grid that fills the GPU walks through their items. Items of
// sequences of one split write their output. The others write partial sums, and the block that
// writes the last of a sequence's tile adds them up (decode_sums.cuh).
//
// Scores are computed transposed, S^T = K Q^T and O^T += V^T P^T, so that tokens and features fill
// the 16 rows of the MMA and the few query rows its 8 columns. Within a block each warp takes every
// kWarps-th block of 16 tokens through a ring of its own in shared memory, by asynchronous copies
// that run ahead into the next item, so that only the end of an item needs a barrier of the block.
#pragma once
#include "attention.cuh"
#include "decode_sums.cuh"
#include "decode_tile.cuh"
#include "splits.cuh"

// The number of features that the kernel for heads of this size works on.
EXPORT_FUNCTION int decode_features(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}
// The most query rows of a tile. Two groups of 8 do not fit the registers beside features of every
// number.
EXPORT_FUNCTION int decode_most_rows(int features) { return features == 64 || features == 128 ? 16 : 8; }
EXPORT_FUNCTION int decode_warps(int features) { return features > 128 ? 2 : 4; }
EXPORT_FUNCTION int decode_threads(int features) { return decode_warps(features) * kWarp; }
// Tokens of a split: 2048 bytes of keys and values per feature. On an H200 half of that made full
// batches a quarter to 40% slower, because the end of a split stops the warps of a block. A single
// sequence of 1024 tokens was faster by 2 µs.
EXPORT_FUNCTION int decode_split_tokens(int element_bytes) { return 1024 / element_bytes; }
// Bytes of a block of keys, or of values, with the scales of its rows.
EXPORT_FUNCTION int decode_block_bytes(int features, int element_bytes) {
  return kBlockTokens * features * element_bytes + (element_bytes == 1 ? kBlockTokens * 4 : 0);
}
// Stages of a warp's ring: as many as fit 64 KiB for all warps without the scales, but at most 4.
EXPORT_FUNCTION int decode_stages(int features, int element_bytes) {
  return decode_warps(features) * 2 * kBlockTokens * features * element_bytes * 4 <= 65536
             ? 4
             : 65536 / (decode_warps(features) * 2 * kBlockTokens * features * element_bytes);
}
EXPORT_FUNCTION int decode_ring_bytes(int features, int element_bytes) {
  return decode_warps(features) * decode_stages(features, element_bytes) * 2 *
         decode_block_bytes(features, element_bytes);
}
// Floats from one row to the next where warps exchange sums: the warp's stores hit all banks.
EXPORT_FUNCTION int decode_exchange_stride(int features) { return features + 4; }
// Bytes of dynamic shared memory: the rings, and each warp's sums and statistics of `rows` query
// rows.
EXPORT_FUNCTION int decode_shared_bytes(int features, int element_bytes, int rows) {
  return decode_ring_bytes(features, element_bytes) +
         decode_warps(features) * rows * (decode_exchange_stride(features) * 4 + 8);
}

// Waits until at most `pending` groups of copies are in flight; `Most` or more count as `Most`.
template <int Most> DEVICE void copy_wait_for(int pending) {
  if constexpr (Most == 0) {
    copy_wait<0>();
  } else {
    if (pending >= Most) copy_wait<Most>();
    else copy_wait_for<Most - 1>(pending);
  }
}

// Parameters of decode attention.
// Kernels: decode_bf16/decode_*, decode_f16/decode_*
template <class T, class C> struct DecodeParams {
  T *out;            // [tokens, heads, head_dim]
  const T *queries;  // [tokens, query_stride]
  const C *keys;     // [blocks, kv_heads, 16, head_dim]
  const C *values;
  const float *key_scales;  // null or [blocks, kv_heads, 16]
  const float *value_scales;
  const int *split_count;
  const DecodeSplitRecord *list;  // [capacity], of which `split_count` are set
  DecodeSumParams sums;
  SequenceParams sequences;  // only the tables and the window are read
  ScoreParams scores;
  int query_stride;
  int heads;
  int kv_heads;
  int head_dim;
  int row_tiles;  // tiles of query rows of a key/value head
  int kept_rows;  // rows of a tile that partial sums are kept of
  int capacity;   // at least 1
};

// Sums of values are kept too large by this factor: in f16, weights times a small scale would be
// subnormal.
template <class T> constexpr float kLiftOf = 1.0f;
template <> constexpr float kLiftOf<f16> = 256.0f;

// D: features rounded up to 64, 96, 128 or 256, with zeros behind head_dim. Columns: groups of 8
// query rows.
template <class T, class C, int D, int Columns> struct Decode {
  using Tile = DecodeTile<T, C, D, Columns>;
  static constexpr bool kBytes = Tile::kBytes;
  static constexpr int kChunks = Tile::kChunks, kTileBytes = Tile::kTileBytes;
  static constexpr int kWarps = decode_warps(D);
  static constexpr int kThreads = decode_threads(D);
  static constexpr int kRows = 8 * Columns;
  static constexpr int kSplitTokens = decode_split_tokens(sizeof(C));
  static constexpr int kScaleBytes = kBytes ? kBlockTokens * 4 : 0;
  static constexpr int kStageBytes = 2 * (kTileBytes + kScaleBytes);
  static constexpr int kStages = decode_stages(D, sizeof(C));
  static constexpr int kRingBytes = decode_ring_bytes(D, sizeof(C));
  static_assert(kRingBytes == kWarps * kStages * kStageBytes, "each warp has a ring of its own");
  static constexpr int kStride = decode_exchange_stride(D);
  static constexpr int kShared = decode_shared_bytes(D, sizeof(C), kRows);
  static_assert(D == decode_features(D) && kRows <= decode_most_rows(D),
                "the host asks for such kernels only");
  // The number of blocks that a multiprocessor of Hopper has shared memory for. More than three
  // would leave too few registers.
  static constexpr int kResident = 3 * (kShared + 1024) <= (228 << 10) ? 3 : 2;
  static constexpr float kLift = kBytes ? kLiftOf<T> : 1.0f;

  // One work item, as one warp processes it.
  struct WorkItem {
    int work;           // its number, and that of its partial sums
    int token;          // first query of the sequence
    int queries, context, lowest, prefix;
    int head, first_row;
    int rows;           // query rows of the item, at most kRows
    int first, tiles;   // the warp's blocks of the sequence: first, first + kWarps, …
    int block;          // in lane i: the place of block i of these in the pool
    int start;          // place of the sequence's first split in the list

    DEVICE Splits splits() const { return splits_of(context, lowest, kSplitTokens); }
  };

  // Loads the record of a work item; any other if there is no such item.
  static DEVICE DecodeSplitRecord record_of(const DecodeParams<T, C> &a, int work) {
    return a.list[min(work / (a.kv_heads * a.row_tiles), a.capacity - 1)];
  }

  static DEVICE WorkItem resolve(const DecodeParams<T, C> &a, int work, int count,
                                 const DecodeSplitRecord &entry) {
    WorkItem item = {};
    item.work = work;
    const int per_split = a.kv_heads * a.row_tiles, within = work % per_split;
    if (work >= count * per_split) return item;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    item.head = within / a.row_tiles;
    item.first_row = within % a.row_tiles * kRows;
    item.token = entry.token;
    item.queries = entry.queries;
    item.context = entry.context;
    item.prefix = entry.prefix;
    item.lowest = entry.lowest;
    item.start = entry.start;
    item.rows = min(kRows, item.queries * (a.heads / a.kv_heads) - item.first_row);
    const int begin = entry.split * kSplitTokens, end = min(begin + kSplitTokens, item.context);
    const int from = max(begin, item.lowest) / kBlockTokens;
    // A warp takes blocks by their place in the sequence.
    item.first = from + ((warp - from) & (kWarps - 1));
    const int left = ceil_div(end, kBlockTokens) - item.first;
    item.tiles = item.rows > 0 && left > 0 ? ceil_div(left, kWarps) : 0;
    if (lane < item.tiles)
      item.block = a.sequences.tables[int64_t(entry.row) * a.sequences.table_stride + item.first + lane * kWarps];
    return item;
  }

  // The next block of keys or values that a warp reads.
  struct BlockSource {
    int64_t row;                // the first among all rows of the cache
    int token, lowest, context;
    bool full;                  // all of its tokens are copied
  };

  // Starts the copies of a block's keys or values. Tokens that no query sees become zeros, because
  // their memory may hold anything.
  template <bool keys> static DEVICE void copy_tile(const DecodeParams<T, C> &a, const BlockSource &source,
                                                    unsigned char *to, float *scales_to) {
    constexpr int kCopies = kBlockTokens * kChunks / kWarp;
    constexpr bool kEven = kWarp % kChunks == 0;
    const unsigned lane = threadIdx.x % kWarp;
    const auto *from = reinterpret_cast<const unsigned char *>((keys ? a.keys : a.values) +
                                                               source.row * a.head_dim);
    if (source.full) {
      from += lane * 16;
      const unsigned first = Tile::template place<keys>(lane / kChunks, lane % kChunks);
#pragma unroll
      for (int i = 0; i < kCopies; i++) {
        // If rows divide a warp's copies evenly, the places of the next copies differ from the
        // first by constants.
        const unsigned at = lane + i * kWarp;
        const unsigned to_place = kEven ? (first ^ Tile::template twist<keys>(i * (kWarp / kChunks)) * 16) +
                                              i * kWarp * 16
                                        : Tile::template place<keys>(at / kChunks, at % kChunks);
        copy_async16(to + to_place, from + i * kWarp * 16);
      }
    } else {
      const int row_bytes = a.head_dim * int(sizeof(C));
#pragma unroll 1
      for (int i = 0; i < kCopies; i++) {
        const unsigned at = lane + i * kWarp;
        const int r = at / kChunks, c = at % kChunks;
        const bool valid = c * 16 < row_bytes && source.token + r >= source.lowest &&
                           source.token + r < source.context;
        copy_async16(to + Tile::template place<keys>(r, c), from + (valid ? r * row_bytes + c * 16 : 0),
                     valid);
      }
    }
    if (kBytes && lane < 4)
      copy_async16(scales_to + lane * 4, (keys ? a.key_scales : a.value_scales) + source.row + lane * 4);
    copy_commit();
  }

  // Writes the output of four features of a query row: the sum of values, which is too large by the
  // factor `lift`, divided by the sum of weights.
  static DEVICE void write_output(const DecodeParams<T, C> &a, const WorkItem &item, int r, int d,
                                  const RowSum &all, float lift) {
    const int group = a.heads / a.kv_heads, row = item.first_row + r;
    const int query = row / group, head = item.head * group + row % group;
    float sum = all.sum;
    if (a.scores.sinks) sum += exp2_fast(a.scores.sinks[head] * kLog2E - all.most);
    const float factor = 1.0f / (sum * lift);
    uint2 packed;
    packed.x = pack2<T>(all.values.x * factor, all.values.y * factor);
    packed.y = pack2<T>(all.values.z * factor, all.values.w * factor);
    *reinterpret_cast<uint2 *>(a.out + (int64_t(item.token + query) * a.heads + head) * a.head_dim + d) = packed;
  }

  // Writes a part of a sequence: four features of a query row, and once the statistics of the row.
  static DEVICE void write_part(const DecodeParams<T, C> &a, float2 *stats, int64_t slot, int d,
                                const RowSum &all, float lower) {
    *reinterpret_cast<float4 *>(a.sums.partials + slot * a.head_dim + d) = make_float4(
        all.values.x * lower, all.values.y * lower, all.values.z * lower, all.values.w * lower);
    if (d == 0) stats[slot] = make_float2(all.most, all.sum);
  }

  // Adds up the warps' sums and writes the item's result: the output, or a part.
  static DEVICE void write_item(const DecodeParams<T, C> &a, const WorkItem &item, const float *exchange,
                                const float2 *warp_stats) {
    const int units = a.head_dim / 4;
    const bool whole = item.splits().count() == 1;
    for (int u = threadIdx.x; u < item.rows * units; u += kThreads) {
      const int r = u / units, d = u % units * 4;
      RowSum all;
#pragma unroll
      for (int w = 0; w < kWarps; w++) all.most = fmaxf(all.most, warp_stats[w * kRows + r].x);
#pragma unroll
      for (int w = 0; w < kWarps; w++) {
        const float2 stats = warp_stats[w * kRows + r];
        if (stats.x == -infinity()) continue;  // the warp had no key, and may have left no sums
        const float factor = exp2_below(stats.x, all.most);
        const float4 part = *reinterpret_cast<const float4 *>(exchange + (w * kRows + r) * kStride + d);
        all.sum += stats.y * factor;
        all.values.x += part.x * factor, all.values.y += part.y * factor, all.values.z += part.z * factor,
            all.values.w += part.w * factor;
      }
      if (whole) write_output(a, item, r, d, all, kLift);
      else write_part(a, a.sums.stats, int64_t(item.work) * a.kept_rows + r, d, all, 1.0f / kLift);
    }
  }

  // Adds up the parts of the item's sequence that are complete: its group of splits, and if that is
  // the last group, all groups.
  static DEVICE void add_splits(const DecodeParams<T, C> &a, const WorkItem &item, int count) {
    const Splits all = item.splits();
    // A plan that does not fit lists a part of the sequence, for which no block would come last.
    if (all.count() == 1 || item.rows <= 0 || item.start + all.count() > count) return;
    const int per_split = a.kv_heads * a.row_tiles, within = item.work % per_split;
    auto item_of = [&](int split) { return (item.start + split - all.first) * per_split + within; };
    auto slot_of = [&](int split) { return int64_t(item_of(split)) * a.kept_rows; };
    const int number = (all.first + item.work / per_split - item.start) / kGroupSplits;
    const Splits group = {max(all.first, number * kGroupSplits), min(all.last, (number + 1) * kGroupSplits)};
    if (!is_last_part(a.sums.group_arrivals + item_of(group.first), group.count())) return;
    const bool is_only = group.count() == all.count();
    auto write_sum = [&](int r, int d, const RowSum &sum) { write_output(a, item, r, d, sum, 1.0f); };
    add_parts<kThreads>(
        a.sums.partials, a.sums.stats, a.head_dim, item.rows, group.count(),
        [&](int i) { return slot_of(group.first + i); },
        [&](int r, int d, const RowSum &sum) {
          if (is_only) write_sum(r, d, sum);
          else write_part(a, a.sums.group_stats, slot_of(group.first) + r, d, sum, 1.0f);
        });
    if (is_only) return;
    const int first_group = all.first / kGroupSplits, groups = ceil_div(all.last, kGroupSplits) - first_group;
    if (!is_last_part(a.sums.row_arrivals + item_of(all.first), groups)) return;
    add_parts<kThreads>(
        a.sums.partials, a.sums.group_stats, a.head_dim, item.rows, groups,
        [&](int i) { return slot_of(max(all.first, (first_group + i) * kGroupSplits)); }, write_sum);
  }

  static DEVICE void run(const DecodeParams<T, C> &a) {
    DYNAMIC_SHARED(unsigned char, shared);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    unsigned char *ring = shared + warp * kStages * kStageBytes;
    float *exchange = reinterpret_cast<float *>(shared + kRingBytes);
    float2 *warp_stats = reinterpret_cast<float2 *>(exchange + kWarps * kRows * kStride);
    auto tile_of = [&](int stage, bool values) {
      return ring + stage * kStageBytes + (values ? kTileBytes : 0);
    };
    auto scales_of = [&](int stage, bool values) {
      return reinterpret_cast<float *>(ring + stage * kStageBytes + 2 * kTileBytes +
                                       (values ? kScaleBytes : 0));
    };

    wait_for_previous_kernel();
    // The records are loaded together with the count, which says whether the plan has written them.
    const DecodeSplitRecord first_record = record_of(a, blockIdx.x),
                            second_record = record_of(a, blockIdx.x + gridDim.x);
    const int count = *a.split_count, works = count * a.kv_heads * a.row_tiles;
    const int group = a.heads / a.kv_heads;
    const bool capped = a.scores.soft_cap > 0.0f;
    const float inner = capped ? a.scores.scale / a.scores.soft_cap * 2.0f * kLog2E : a.scores.scale * kLog2E,
                outer = a.scores.soft_cap * kLog2E;

    WorkItem now = resolve(a, blockIdx.x, count, first_record),
             next = resolve(a, blockIdx.x + gridDim.x, count, second_record);
    // The warp's tiles are numbered from the first of `now` on, followed by those of `next`. The
    // copies of `started` tiles have been started.
    int started = 0, stage = 0;
    auto source_of = [&](int tile) {
      const bool later = tile >= now.tiles;
      const int i = later ? tile - now.tiles : tile;
      const int block = __shfl_sync(kAllLanes, later ? next.block : now.block, i);
      BlockSource source;
      source.row = (int64_t(block) * a.kv_heads + (later ? next.head : now.head)) * kBlockTokens;
      source.token = ((later ? next.first : now.first) + i * kWarps) * kBlockTokens;
      source.lowest = later ? next.lowest : now.lowest;
      source.context = later ? next.context : now.context;
      source.full = source.token >= source.lowest && source.token + kBlockTokens <= source.context &&
                    a.head_dim == D;
      return source;
    };
    auto start_keys = [&](const BlockSource &source, int s) {
      copy_tile<true>(a, source, tile_of(s, false), scales_of(s, false));
    };
    auto start_values = [&](const BlockSource &source, int s) {
      copy_tile<false>(a, source, tile_of(s, true), scales_of(s, true));
    };
    auto wrapped = [](int s) { return s >= kStages ? s - kStages : s; };

    for (int work = blockIdx.x; work < works; work += gridDim.x) {
      while (started < kStages && started < now.tiles + next.tiles) {
        const BlockSource source = source_of(started);
        start_keys(source, wrapped(stage + started));
        start_values(source, wrapped(stage + started));
        started++;
      }
      if (work + int(gridDim.x) >= works) let_next_kernel_start();

      uint32_t q[Columns][D / 32][4];
#pragma unroll
      for (int n = 0; n < Columns; n++) {
        const int row = now.first_row + 8 * n + g;
        const T *from = a.queries + int64_t(now.token + row / group) * a.query_stride +
                        (now.head * group + row % group) * a.head_dim;
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
          uint4 x = {0, 0, 0, 0};
          if (8 * n + g < now.rows && 32 * j + 8 * t < a.head_dim)
            x = *reinterpret_cast<const uint4 *>(from + 32 * j + 8 * t);
          q[n][j][0] = kBytes ? __byte_perm(x.x, x.y, 0x5410) : x.x;
          q[n][j][1] = kBytes ? __byte_perm(x.x, x.y, 0x7632) : x.y;
          q[n][j][2] = kBytes ? __byte_perm(x.z, x.w, 0x5410) : x.z;
          q[n][j][3] = kBytes ? __byte_perm(x.z, x.w, 0x7632) : x.w;
        }
      }
      // Of the two query rows per column group whose scores this thread has.
      float slope[Columns][2], most[Columns][2], sum[Columns][2];
      int position[Columns][2];
      const int first_position = now.context - now.queries;
#pragma unroll
      for (int n = 0; n < Columns; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int r = 8 * n + 2 * t + e, row = now.first_row + (r < now.rows ? r : 0);
          position[n][e] = first_position + row / group;
          slope[n][e] = a.scores.alibi && now.tiles ? a.scores.alibi[now.head * group + row % group] * kLog2E
                                                    : 0.0f;
          most[n][e] = -infinity();
          sum[n][e] = 0.0f;
        }
      }
      float o[D / 16][Columns][4];
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
#pragma unroll
        for (int n = 0; n < Columns; n++) o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
      }

      for (int tile = 0; tile < now.tiles; tile++) {
        const bool more = tile + kStages < now.tiles + next.tiles;
        copy_wait_for<2 * kStages - 1>(2 * (started - tile) - 1);
        __syncwarp();
        float s[Columns][4];
        Tile::multiply_keys(s, q, tile_of(stage, false));
        const int token = (now.first + tile * kWarps) * kBlockTokens + g;
        float key_scale[2] = {1.0f, 1.0f};
        if (kBytes) key_scale[0] = scales_of(stage, false)[g], key_scale[1] = scales_of(stage, false)[g + 8];
        __syncwarp();
        BlockSource refill = {};
        if (more) {
          refill = source_of(started);
          start_keys(refill, stage);
        }

#pragma unroll
        for (int n = 0; n < Columns; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) s[n][e] *= inner * key_scale[e / 2];
        }
        if (capped) {
#pragma unroll
          for (int n = 0; n < Columns; n++) {
            // tanh(x) = 1 - 2 / (e^2x + 1)
#pragma unroll
            for (int e = 0; e < 4; e++)
              s[n][e] = outer * (1.0f - __fdividef(2.0f, exp2_fast(fminf(s[n][e], 64.0f)) + 1.0f));
          }
        }
        if (a.scores.alibi) {
#pragma unroll
          for (int n = 0; n < Columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
              s[n][e] += slope[n][e % 2] * float(token + e / 2 * 8 - position[n][e % 2]);
          }
        }
        const bool masked = token - g + kBlockTokens - 1 > first_position ||
                            token - g < first_visible(now.context - 1, a.sequences.window);
        if (masked) {
#pragma unroll
          for (int n = 0; n < Columns; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int i = position[n][e % 2], j = token + e / 2 * 8;
              const bool seen = (j <= i && j >= first_visible(i, a.sequences.window)) ||
                                (i < now.prefix && j < now.prefix && j < now.context);
              if (!seen) s[n][e] = -infinity();
            }
          }
        }

        float factor[Columns][2];
        bool moved = false;
#pragma unroll
        for (int n = 0; n < Columns; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float high = fmaxf(s[n][e], s[n][e + 2]);
#pragma unroll
            for (int lanes = 4; lanes < kWarp; lanes *= 2)
              high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, lanes));
            high = fmaxf(high, most[n][e]);
            factor[n][e] = exp2_below(most[n][e], high);
            moved |= high != most[n][e];
            most[n][e] = high;
            s[n][e] = exp2_below(s[n][e], high);
            s[n][e + 2] = exp2_below(s[n][e + 2], high);
            sum[n][e] = sum[n][e] * factor[n][e] + s[n][e] + s[n][e + 2];
          }
        }
        // Usually the maximum no longer changes after a few tiles, and the sums need not be
        // rescaled.
        if (__any_sync(kAllLanes, moved)) {
#pragma unroll
          for (int i = 0; i < D / 16; i++) {
#pragma unroll
            for (int n = 0; n < Columns; n++) {
#pragma unroll
              for (int e = 0; e < 4; e++) o[i][n][e] *= factor[n][e % 2];
            }
          }
        }

        copy_wait_for<2 * kStages - 1>(2 * (started - tile - 1) + (more ? 1 : 0));
        __syncwarp();
        uint32_t p[Columns][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float value_scale = kLift;
          if (kBytes) {
            // The scale of a token that no query sees may be anything.
            const int j = token + half * 8;
            value_scale = j >= now.lowest && j < now.context ? kLift * scales_of(stage, true)[g + half * 8]
                                                             : 0.0f;
          }
#pragma unroll
          for (int n = 0; n < Columns; n++) {
            p[n][half] = transpose_matrix(
                pack2<T>(s[n][2 * half] * value_scale, s[n][2 * half + 1] * value_scale));
          }
        }
        Tile::multiply_values(o, p, tile_of(stage, true));
        __syncwarp();
        if (more) {
          start_values(refill, stage);
          started++;
        }
        stage = wrapped(stage + 1);
      }

      // All threads have read what the last item left in the exchange.
      __syncthreads();
#pragma unroll
      for (int n = 0; n < Columns; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float total = sum[n][e];
#pragma unroll
          for (int lanes = 4; lanes < kWarp; lanes *= 2) total += __shfl_xor_sync(kAllLanes, total, lanes);
          const int r = warp * kRows + 8 * n + 2 * t + e;
          if (g == 0) warp_stats[r] = make_float2(most[n][e], total);
          if (now.tiles) {
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
              exchange[r * kStride + Tile::feature(i, 0)] = o[i][n][e];
              exchange[r * kStride + Tile::feature(i, 1)] = o[i][n][e + 2];
            }
          }
        }
      }
      __syncthreads();
      write_item(a, now, exchange, warp_stats);
      add_splits(a, now, count);
      started -= now.tiles;
      now = next;
      const int later = work + 2 * gridDim.x;
      next = resolve(a, later, count, record_of(a, later));
    }
  }
};

template <class T, class C, int D, int Columns>
constexpr int kDecodeResident = Decode<T, C, D, Columns>::kResident;

#define DECODE(C, cache, T, suffix, D, columns)                                                         \
  BOUNDED_KERNEL(decode_##D##_##columns##_##cache##_##suffix, decode_threads(D),                        \
                 (kDecodeResident<T, C, D, columns>), DecodeParams<T, C>) {                             \
    Decode<T, C, D, columns>::run(p);                                                                   \
  }

#define DECODES(C, cache, T, suffix)   \
  DECODE(C, cache, T, suffix, 64, 1)   \
  DECODE(C, cache, T, suffix, 64, 2)   \
  DECODE(C, cache, T, suffix, 96, 1)   \
  DECODE(C, cache, T, suffix, 128, 1)  \
  DECODE(C, cache, T, suffix, 128, 2)  \
  DECODE(C, cache, T, suffix, 256, 1)
