// Prefill attention on the tensor cores of Ampere and later: FlashAttention-2 (Dao, 2023) over a
// paged cache.
//
// A block takes 64 or 128 queries of one head and runs over the keys that they see. Each of its
// four warps owns 16 or 32 of the queries: it keeps their sums in registers, computes scores for a
// tile of keys, turns them into weights without leaving the registers (the accumulators of one
// product are the first operand of the next), and adds the weighted values.
//
// Reasons for the shape:
// - 32 queries per warp halve what a warp reads from shared memory for each product (ldmatrix
//   delivers 128 bytes a cycle; with 16 queries, keys and values alone would ask for all of it at
//   Ampere's rate). The sums of 128 features then take 128 registers; 256 features leave room for
//   16 queries.
// - Keys and values have one tile of shared memory each, filled alternately: while the scores of a
//   tile are computed its values arrive, and while weights and sums are computed the keys of the
//   next one do. Two barriers per tile, two blocks per multiprocessor at up to 70 KiB each, so that
//   one block's exponentials overlap the other's products.
// - Tiles are 32 keys (64 for 64 features): with more keys the registers do not suffice on every
//   GPU. Rarely used values are kept in shared memory.
// - Rows of shared memory are padded by 16 bytes: eight rows of a matrix then lie in different
//   banks for every head size, and all addresses are a base and a constant.
//
// Tiles of keys begin at multiples of their length, wherever the queries begin. A tile of which a
// query sees no key leaves the query's sums unchanged bit for bit (weights of 0, a factor of 1), so
// a query's result depends neither on how its sequence was cut into steps nor on its neighbors.
#pragma once
#include "attention.cuh"
#include "ptx.cuh"

constexpr int kPrefillWarps = 4;
EXPORT_CONSTANT int kPrefillThreads = 128;
static_assert(kPrefillThreads == kPrefillWarps * kWarp, "threads of four warps");
// Queries of a block.
EXPORT_FUNCTION int prefill_queries(int head_dim) { return head_dim > 128 ? 64 : 128; }
// Keys of a tile.
EXPORT_FUNCTION int prefill_keys(int head_dim) { return head_dim > 64 ? 32 : 64; }
// Elements from one row of shared memory to the next.
EXPORT_FUNCTION int prefill_pitch(int head_dim) { return head_dim + 8; }
// Bytes of dynamic shared memory: the queries, and a tile each of keys and values, of 16 bits.
EXPORT_FUNCTION int prefill_shared_bytes(int head_dim) {
  return (prefill_queries(head_dim) + 2 * prefill_keys(head_dim)) * prefill_pitch(head_dim) * 2;
}

template <int D> struct PrefillTile {
  static constexpr int queries = prefill_queries(D), warp_queries = queries / kPrefillWarps;
  static constexpr int keys = prefill_keys(D);
  static constexpr int pitch = prefill_pitch(D);
};

// The queries that a block processes. The grid has a slot for every tile of queries that there may
// be: the sequence at `row` owns the slots from (query_start[row] - query_start[0]) / queries + row
// on, which are at least as many as its tiles. Blocks of the other slots end at once. The last tile
// comes first, because it sees the most keys.
struct PrefillBlock {
  int row, tile;
  DEVICE PrefillBlock(const SequenceParams &all, int slot, int queries) {
    // A 33-ary search, in which all lanes compare at once.
    int low = 0, high = all.rows;
    auto first_slot = [&, from = all.query_start[0]](int at) {
      return (all.query_start[at] - from) / queries + at;
    };
    while (high - low > 1) {
      const int step = ceil_div(high - low, kWarp), at = low + step * int(threadIdx.x % kWarp);
      const bool before = at < high && first_slot(at) <= slot;
      const int last = 31 - __clz(int(__ballot_sync(kAllLanes, before)));
      high = min(high, low + step * (last + 1));
      low += step * last;
    }
    row = low;
    tile = ceil_div(all.query_start[row + 1] - all.query_start[row], queries) - 1 - (slot - first_slot(row));
  }
};

// Parameters of prefill attention.
// Kernels: prefill/prefill_*, prefill_biased/prefill_biased_*
template <class T> struct PrefillParams {
  T *out;         // [tokens, heads, D]
  const T *qkv;   // [tokens, qkv_stride]
  const T *keys;  // [blocks, kv_heads, 16, D]
  const T *values;
  SequenceParams sequences;
  ScoreParams scores;
  int qkv_stride;
  int kv_heads;
};

struct PrefillPlace {
  const int *table;
  int token, position, queries, begin, end, kv_head;
};

// `biased`: soft cap and ALiBi; the other features cost nothing inside the loop.
template <class T, int D, bool biased> DEVICE void prefill(const PrefillParams<T> &p) {
  using Tile = PrefillTile<D>;
  constexpr int M = Tile::warp_queries / 16, N = Tile::keys, P = Tile::pitch, kChunks = D / 8;
  DYNAMIC_SHARED(T, shared_q);
  T *shared_k = shared_q + Tile::queries * P, *shared_v = shared_k + N * P;
  wait_for_previous_kernel();

  const PrefillBlock block(p.sequences, blockIdx.y, Tile::queries);
  if (block.tile < 0) return;
  const Sequence s(p.sequences, block.row);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int head = blockIdx.x, heads = gridDim.x, kv_head = head / (heads / p.kv_heads);
  const int first = block.tile * Tile::queries, last = min(first + Tile::queries, s.queries) - 1;
  // The keys that any query of the block sees, and those that each query sees. Registers are
  // scarce, so rarely used values stay in shared memory.
  const int begin = s.begin(s.first + first), end = s.end(s.first + last);
  SHARED(int2, seen, Tile::queries);
  SHARED(PrefillPlace, place, 1);
  if (threadIdx.x == 0)
    *place = {s.table, s.start + first, s.first + first, last - first + 1, begin, end, kv_head};
  if (threadIdx.x < Tile::queries) {
    const int at = s.first + min(first + int(threadIdx.x), last);
    seen[threadIdx.x] = make_int2(s.begin(at), s.end(at));
  }
  const int2 *seen_by_warp = seen + warp * Tile::warp_queries;

  {
    constexpr int kRows = Tile::warp_queries;
    const T *from = p.qkv + int64_t(s.start) * p.qkv_stride + int64_t(head) * D;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kWarp; i++) {
      const int c = lane + i * kWarp, row = warp * kRows + c / kChunks, column = c % kChunks * 8;
      copy_async16(shared_q + row * P + column,
                   from + int64_t(min(first + row, last)) * p.qkv_stride + column);
    }
  }

  // Each warp copies the keys of one block of the cache, or half of them.
  constexpr int kCopied = N / kPrefillWarps;
  const int copied = warp * kCopied;
  auto find = [&](const int *table, int tile, int begin, int end) {
    const int key = tile + copied;
    return key < end && key + kCopied > begin ? table[key / kBlockTokens] : 0;
  };
  auto copy = [&](T *to, const T *from, int kv_head, int tile, int entry, int begin, int end) {
    from += (int64_t(entry) * p.kv_heads + kv_head) * (kBlockTokens * D) + copied % kBlockTokens * D +
            lane * 8;
    const int key = tile + copied - begin;
#pragma unroll
    for (int i = 0; i < ceil_div(kCopied * kChunks, kWarp); i++) {
      if (kCopied * kChunks % kWarp != 0 && lane + i * kWarp >= kCopied * kChunks) break;
      // If a warp copies whole rows, they advance by a constant.
      const bool whole = kWarp % kChunks == 0;
      const int row = whole ? lane / kChunks + i * (kWarp / kChunks) : (lane + i * kWarp) / kChunks;
      const int at = whole ? lane % kChunks : (lane + i * kWarp) % kChunks;
      // Memory beyond the end may hold anything, and a NaN times a weight of zero is a NaN.
      copy_async16(to + (copied + row) * P + at * 8, from + i * kWarp * 8,
                   unsigned(key + row) < unsigned(end - begin));
    }
    copy_commit();
  };

  float sum[M][D / 8][4], most[M][2], weights[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < D / 8; n++) sum[m][n][0] = sum[m][n][1] = sum[m][n][2] = sum[m][n][3] = 0.0f;
    most[m][0] = most[m][1] = -infinity();
    weights[m][0] = weights[m][1] = 0.0f;
  }
  const float to_log2 = p.scores.scale * kLog2E;
  const float slope = biased && p.scores.alibi ? p.scores.alibi[head] * kLog2E : 0.0f;
  const float cap = biased ? p.scores.soft_cap * kLog2E : 0.0f,
              from_cap = biased && p.scores.soft_cap > 0.0f ? 2.0f * to_log2 / p.scores.soft_cap : 0.0f;
  // This lane's first column in a tile.
  const int column = lane % 4 * 2;
  const T *q_rows = shared_q + (warp * Tile::warp_queries + lane % 16) * P + lane / 16 * 8;
  const T *k_rows = shared_k + (lane % 8 + lane / 16 * 8) * P + lane / 8 % 2 * 8;
  const T *v_rows = shared_v + lane % 16 * P + lane / 16 * 8;

  int tile = begin / N * N, entry = find(s.table, tile, begin, end);
  copy(shared_k, p.keys, kv_head, tile, entry, begin, end);
  do {
    copy_wait<0>();
    __syncthreads();  // the keys are there, and nobody reads the last tile's values any more
    // Without the bias, keeping `kv_head` in a register spills on sm_100; with it, reading it back
    // does.
    copy(shared_v, p.values, biased ? kv_head : place->kv_head, tile, entry, place->begin, place->end);
    entry = find(place->table, tile + N, place->begin, place->end);

    float score[M][N / 8][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < N / 8; n++)
        score[m][n][0] = score[m][n][1] = score[m][n][2] = score[m][n][3] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; m++) load_matrices(a[m], q_rows + m * 16 * P + d * 16);
#pragma unroll
      for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load_matrices(b, k_rows + n * 16 * P + d * 16);
#pragma unroll
        for (int m = 0; m < M; m++) {
          mma_m16n8k16<T>(score[m][2 * n], a[m], {b[0], b[1]});
          mma_m16n8k16<T>(score[m][2 * n + 1], a[m], {b[2], b[3]});
        }
      }
    }
    copy_wait<0>();
    __syncthreads();  // the values are there, and nobody reads the keys any more
    if (tile + N < place->end) {
      copy(shared_k, p.keys, biased ? kv_head : place->kv_head, tile + N, entry, place->begin, place->end);
    }

    if constexpr (biased) {
      // This lane's first query.
      const int position = place->position + warp * Tile::warp_queries + lane / 4;
#pragma unroll
      for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float x = score[m][n][i];
            // cap · tanh(x / cap), by tanh(y) = 1 - 2 / (exp(2y) + 1); the instruction for tanh is
            // too coarse.
            x = p.scores.soft_cap > 0.0f ? cap - __fdividef(2.0f * cap, exp2_fast(x * from_cap) + 1.0f)
                                         : x * to_log2;
            const int distance = tile + n * 8 + column + i % 2 - (position + m * 16 + i / 2 * 8);
            score[m][n][i] = x + slope * float(distance);
          }
        }
      }
    }
    if (tile < seen_by_warp[Tile::warp_queries - 1].x || tile + N > seen_by_warp[0].y) {
#pragma unroll
      for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int2 keys_seen = seen_by_warp[m * 16 + half * 8 + lane / 4];
          const int from = keys_seen.x - tile - column, to = keys_seen.y - tile - column;
#pragma unroll
          for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
              if (n * 8 + i < from || n * 8 + i >= to) score[m][n][half * 2 + i] = -infinity();
            }
          }
        }
      }
    }

    const float factor = biased ? 1.0f : to_log2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float now = most[m][half];
#pragma unroll
        for (int n = 0; n < N / 8; n++)
          now = fmaxf(now, fmaxf(score[m][n][half * 2], score[m][n][half * 2 + 1]));
        now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 1));
        now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 2));
        // A row that has seen no key yet stays at zero; infinity minus infinity would be NaN.
        const float finite = now == -infinity() ? 0.0f : now, base = finite * factor;
        // Computed from the difference, so that the factor is exactly 1 if the largest score does
        // not change.
        const float old = exp2_fast((most[m][half] - finite) * factor);
        most[m][half] = now;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
          for (int i = half * 2; i < half * 2 + 2; i++) {
            score[m][n][i] = exp2_fast(score[m][n][i] * factor - base);
            added += score[m][n][i];
          }
        }
        weights[m][half] = weights[m][half] * old + added;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
          sum[m][n][half * 2] *= old;
          sum[m][n][half * 2 + 1] *= old;
        }
      }
    }

#pragma unroll
    for (int k = 0; k < N / 16; k++) {
      uint32_t a[M][4];
#pragma unroll
      for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          a[m][i] = pack2<T>(score[m][2 * k + i / 2][i % 2 * 2], score[m][2 * k + i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];
        load_matrices_transposed(b, v_rows + k * 16 * P + n * 16);
#pragma unroll
        for (int m = 0; m < M; m++) {
          mma_m16n8k16<T>(sum[m][2 * n], a[m], {b[0], b[1]});
          mma_m16n8k16<T>(sum[m][2 * n + 1], a[m], {b[2], b[3]});
        }
      }
    }
    tile += N;
  } while (tile < place->end);
  let_next_kernel_start();

  // The result goes through the warp's own part of shared memory, so that whole rows are written at
  // once.
  const float sink = p.scores.sinks ? p.scores.sinks[head] * kLog2E : -infinity();
  T *rows = shared_q + warp * Tile::warp_queries * P;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all_weights = weights[m][half];
      all_weights += __shfl_xor_sync(kAllLanes, all_weights, 1);
      all_weights += __shfl_xor_sync(kAllLanes, all_weights, 2);
      all_weights += exp2_fast(sink - most[m][half] * (biased ? 1.0f : to_log2));
      const float share = __fdividef(1.0f, all_weights);
      uint32_t *to = reinterpret_cast<uint32_t *>(rows + (m * 16 + half * 8 + lane / 4) * P + column);
#pragma unroll
      for (int n = 0; n < D / 8; n++)
        to[n * 4] = pack2<T>(sum[m][n][half * 2] * share, sum[m][n][half * 2 + 1] * share);
    }
  }
  __syncwarp();
  const int left = place->queries - warp * Tile::warp_queries;
  T *to = p.out + (int64_t(place->token + warp * Tile::warp_queries) * heads + head) * D;
#pragma unroll
  for (int i = 0; i < Tile::warp_queries * kChunks / kWarp; i++) {
    const int c = lane + i * kWarp, row = c / kChunks, column = c % kChunks * 8;
    if (row < left)
      store_vec(to + int64_t(row) * heads * D + column, load_vec<T, 8>(rows + row * P + column));
  }
}

#define PREFILL(name, T, D, biased) \
  BOUNDED_KERNEL(name, kPrefillThreads, 2, PrefillParams<T>) { prefill<T, D, biased>(p); }
#define PREFILLS(name, biased)         \
  PREFILL(name##_64_f16, f16, 64, biased)    \
  PREFILL(name##_80_f16, f16, 80, biased)    \
  PREFILL(name##_96_f16, f16, 96, biased)    \
  PREFILL(name##_128_f16, f16, 128, biased)  \
  PREFILL(name##_256_f16, f16, 256, biased)  \
  PREFILL(name##_64_bf16, bf16, 64, biased)  \
  PREFILL(name##_80_bf16, bf16, 80, biased)  \
  PREFILL(name##_96_bf16, bf16, 96, biased)  \
  PREFILL(name##_128_bf16, bf16, 128, biased) \
  PREFILL(name##_256_bf16, bf16, 256, biased)
