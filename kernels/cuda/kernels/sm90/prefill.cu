// Prefill attention for Hopper, after FlashAttention-3 (Shah et al., 2024). The version for all
// GPUs is prefill.cuh, which describes the computation.
//
// One warpgroup copies, two compute. A block takes 128 queries of a head, 64 per computing
// warpgroup; the tensor copy engine brings tiles of keys and values, one box per block of the cache
// and 64 features, with two tiles of each in flight. The two groups take turns: while the tensor
// cores compute the products of one (the scores of the next tile and the sums of this one), the
// other turns scores into weights.
//
// A multiprocessor runs one block. A computing thread has 240 registers, a copying one 24.
#include "hopper.cuh"
#include "prefill.cuh"

constexpr int kGroup = 128, kGroupQueries = 64;
// Tiles of keys, and of values, in shared memory at the same time.
EXPORT_CONSTANT int kStages = 2;
EXPORT_CONSTANT int kHopperThreads = 384;
// Queries of a block.
EXPORT_CONSTANT int kBlockQueries = 128;
static_assert(kHopperThreads == 3 * kGroup && kBlockQueries == 2 * kGroupQueries,
              "one group copies, two compute");
// Keys of a tile.
EXPORT_FUNCTION int hopper_keys(int head_dim) { return head_dim > 128 ? 64 : 128; }
// Bytes of the barriers, rounded up.
EXPORT_CONSTANT int kBarrierBytes = 128;
// Bytes of dynamic shared memory: the queries, the tiles of keys and values, and the barriers.
EXPORT_FUNCTION int hopper_shared_bytes(int head_dim) {
  return (kBlockQueries + 2 * kStages * hopper_keys(head_dim)) * head_dim * 2 + kBarrierBytes;
}

template <int D> struct HopperTile {
  static constexpr int keys = hopper_keys(D), halves = D / 64;
  static constexpr int row = 64;                      // elements of a row of a tile in shared memory
  static constexpr int strip = keys * row;            // 64 features of all keys
  static constexpr int part = D < 128 ? D : 128, parts = D / part;  // features of one product
  static constexpr int bytes = keys * D * 2;
};

struct HopperBarriers {
  uint64_t queries, keys[kStages], values[kStages], keys_free[kStages], values_free[kStages];
};

static_assert(sizeof(HopperBarriers) <= kBarrierBytes, "the barriers fit behind the tiles");

// Parameters of prefill attention on Hopper.
// Kernels: sm90_prefill/prefill_hopper_*
template <class T> struct HopperPrefillParams {
  TensorMap q_map;  // [tokens, heads · D] in boxes of 64 tokens and 64 features
  TensorMap k_map;  // [blocks, kv_heads, 16, D] in boxes of 16 tokens and 64 features
  TensorMap v_map;
  T *out;  // [tokens, heads, D]
  SequenceParams sequences;
  ScoreParams scores;  // without ALiBi and soft cap
  int kv_heads;
  int blocks;
};

// Copies the queries once, and tiles of keys and values as their places become free. One warp
// executes it.
template <class T, int D> DEVICE void copy_tiles(const HopperPrefillParams<T> &p, T *q, T *k, T *v,
                                                 HopperBarriers *barriers, const Sequence &s, int first,
                                                 int head, int begin, int end) {
  const int kv_head = head / (int(gridDim.x) / p.kv_heads);
  using Tile = HopperTile<D>;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) {
    prefetch_map(&p.k_map);
    prefetch_map(&p.v_map);
    barrier_expect(&barriers->queries, kBlockQueries * D * 2);
    for (int i = 0; i < 2 * Tile::halves; i++) {
      const int group = i / Tile::halves, half = i % Tile::halves;
      copy_tensor2(q + i * kGroupQueries * Tile::row, &p.q_map, &barriers->queries, head * D + half * 64,
                   s.start + first + group * kGroupQueries);
    }
  }
  // Each lane copies 64 features of one block of the cache.
  constexpr int kBlocks = Tile::keys / kBlockTokens;
  const int block = lane % kBlocks, half = lane / kBlocks;
  const int offset = half * Tile::strip + block * kBlockTokens * Tile::row;
  int stage = 0, parity = 1;
  for (int tile = begin / Tile::keys * Tile::keys; tile < end; tile += Tile::keys) {
    const int key = tile + block * kBlockTokens;
    // The block number after the last one reads as zeros.
    const int entry = key < end && key + kBlockTokens > begin ? s.table[key / kBlockTokens] : p.blocks;
    barrier_wait(&barriers->keys_free[stage], parity);
    if (lane == 0) barrier_expect(&barriers->keys[stage], Tile::bytes);
    __syncwarp();
    if (half < Tile::halves)
      copy_tensor4(k + stage * Tile::keys * D + offset, &p.k_map, &barriers->keys[stage], half * 64, 0,
                   kv_head, entry);
    barrier_wait(&barriers->values_free[stage], parity);
    if (lane == 0) barrier_expect(&barriers->values[stage], Tile::bytes);
    __syncwarp();
    if (half < Tile::halves)
      copy_tensor4(v + stage * Tile::keys * D + offset, &p.v_map, &barriers->values[stage], half * 64, 0,
                   kv_head, entry);
    stage ^= 1;
    if (stage == 0) parity ^= 1;
  }
}

template <class T, int D> struct HopperConsumer {
  using Tile = HopperTile<D>;
  static constexpr int N = Tile::keys;

  float score[N / 2], sum[Tile::parts][Tile::part / 2];
  uint32_t weight[N / 4];
  float most[2], weights[2];

  DEVICE void compute_scores(const T *q, const T *k) {
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
      const uint64_t a = operand(q + d / 4 * kGroupQueries * Tile::row + d % 4 * 16, 0),
                     b = operand(k + d / 4 * Tile::strip + d % 4 * 16, 0);
      multiply_shared<T, N>(score, a, b, d > 0);
    }
    products_commit();
  }
  DEVICE void add_values(const T *v) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
      for (int p = 0; p < Tile::parts; p++) {
        const uint64_t b = operand(v + p * 2 * Tile::strip + k * 16 * Tile::row, Tile::strip * 2);
        multiply_registers<T, Tile::part>(sum[p], weight + 4 * k, b);
      }
    }
    products_commit();
  }
  // Turns scores into weights. `seen`: the keys of this thread's two queries, counted from its
  // first column.
  DEVICE void soften(float to_log2, const int2 (&seen)[2], bool partial, float (&old)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float now = most[half];
#pragma unroll
      for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float &x = score[n * 4 + half * 2 + i];
          if (partial && (n * 8 + i < seen[half].x || n * 8 + i >= seen[half].y)) x = -infinity();
          now = fmaxf(now, x);
        }
      }
      now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 1));
      now = fmaxf(now, __shfl_xor_sync(kAllLanes, now, 2));
      // This function is compiled twice, for whole tiles and for partial ones, and a query may meet
      // either. The roundings are explicit, so that the compiler chooses none of them.
      const float finite = now == -infinity() ? 0.0f : now, base = __fmul_rn(finite, to_log2);
      old[half] = exp2_fast(__fmul_rn(most[half] - finite, to_log2));
      most[half] = now;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float &x = score[n * 4 + half * 2 + i];
          x = exp2_fast(__fmaf_rn(x, to_log2, -base));
          added += x;
        }
      }
      weights[half] = __fmaf_rn(weights[half], old[half], added);
    }
  }
  // The weights as the first operand of the next product.
  DEVICE void pack() {
#pragma unroll
    for (int i = 0; i < N / 4; i++) weight[i] = pack2<T>(score[2 * i], score[2 * i + 1]);
  }
  DEVICE void rescale(const float (&old)[2]) {
#pragma unroll
    for (int p = 0; p < Tile::parts; p++) {
#pragma unroll
      for (int i = 0; i < Tile::part / 2; i++) sum[p][i] *= old[i / 2 % 2];
    }
  }
};

template <class T, int D> DEVICE void prefill_hopper(const HopperPrefillParams<T> &p) {
  using Tile = HopperTile<D>;
  constexpr int N = Tile::keys;
  DYNAMIC_SHARED(T, q);
  T *k = q + kBlockQueries * D, *v = k + kStages * N * D;
  HopperBarriers *barriers = reinterpret_cast<HopperBarriers *>(v + kStages * N * D);
  wait_for_previous_kernel();
  const PrefillBlock block(p.sequences, blockIdx.y, kBlockQueries);
  if (block.tile < 0) return;
  const Sequence s(p.sequences, block.row);
  const int head = blockIdx.x, heads = gridDim.x;
  const int first = block.tile * kBlockQueries, last = min(first + kBlockQueries, s.queries) - 1;
  const int begin = s.begin(s.first + first), end = s.end(s.first + last);

  if (threadIdx.x == 0) {
    barrier_init(&barriers->queries, 1);
    for (int i = 0; i < kStages; i++) {
      barrier_init(&barriers->keys[i], 1);
      barrier_init(&barriers->values[i], 1);
      // One arrival per computing warp.
      barrier_init(&barriers->keys_free[i], 8);
      barrier_init(&barriers->values_free[i], 8);
    }
    barriers_made();
  }
  __syncthreads();

  const int group = int(threadIdx.x) / kGroup - 1;
  if (group < 0) {
    give_registers<24>();
    if (threadIdx.x < kWarp) copy_tiles<T, D>(p, q, k, v, barriers, s, first, head, begin, end);
  } else {
    take_registers<240>();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % 4, column = lane % 4 * 2;
    const int query = first + group * kGroupQueries + warp * 16 + lane / 4;
    int2 seen[2];
    for (int half = 0; half < 2; half++) {
      const int at = s.first + min(query + half * 8, last);
      seen[half] = make_int2(s.begin(at) - column, s.end(at) - column);
    }
    // The keys that all queries of the group see.
    const int group_first = s.first + min(first + group * kGroupQueries, last),
              group_last = s.first + min(first + group * kGroupQueries + 63, last);
    const int full_begin = s.begin(group_last), full_end = s.end(group_first);
    const float to_log2 = p.scores.scale * kLog2E;
    const T *own_q = q + group * kGroupQueries * D;
    const int start = begin / N * N, tiles = ceil_div(end - start, N);
    HopperConsumer<T, D> c;
#pragma unroll
    for (int part = 0; part < Tile::parts; part++) {
#pragma unroll
      for (int i = 0; i < Tile::part / 2; i++) c.sum[part][i] = 0.0f;
    }
    c.most[0] = c.most[1] = -infinity();
    c.weights[0] = c.weights[1] = 0.0f;
    float old[2];
    auto soften = [&](int tile) {
      const int at = start + tile * N;
      const int2 here[2] = {make_int2(seen[0].x - at, seen[0].y - at),
                            make_int2(seen[1].x - at, seen[1].y - at)};
      if (at < full_begin || at + N > full_end) {
        c.soften(to_log2, here, true, old);
      } else {
        c.soften(to_log2, here, false, old);
      }
    };
    // The named barriers 1 and 2 give each group its turn.
    auto await_turn = [&] { named_sync(1 + group, 2 * kGroup); };
    auto pass_turn = [&] { named_arrive(2 - group, 2 * kGroup); };
    if (group == 1 && tiles > 1) pass_turn();

    barrier_wait(&barriers->queries, 0);
    barrier_wait(&barriers->keys[0], 0);
    products_begin();
    c.compute_scores(own_q, k);
    products_wait<0>();
    if (lane == 0) barrier_arrive(&barriers->keys_free[0]);
    soften(0);
    c.pack();
    for (int tile = 1; tile < tiles; tile++) {
      const int stage = tile % kStages, parity = tile / kStages % 2, before = (tile - 1) % kStages,
                parity_before = (tile - 1) / kStages % 2;
      barrier_wait(&barriers->keys[stage], parity);
      barrier_wait(&barriers->values[before], parity_before);
      await_turn();
      products_begin();
      c.compute_scores(own_q, k + stage * N * D);
      c.add_values(v + before * N * D);
      // Nobody waits for a turn after the last one.
      if (group == 0 || tile + 1 < tiles) pass_turn();
      products_wait<1>();
      if (lane == 0) barrier_arrive(&barriers->keys_free[stage]);
      soften(tile);
      products_wait<0>();
      if (lane == 0) barrier_arrive(&barriers->values_free[before]);
      c.rescale(old);
      c.pack();
    }
    const int stage = (tiles - 1) % kStages;
    barrier_wait(&barriers->values[stage], (tiles - 1) / kStages % 2);
    T *values = v + stage * N * D;
    // Memory after the sequence's end in its last block may hold NaN, and a NaN times a weight of
    // zero is a NaN. Both groups write zeros and wait for each other's.
    const int behind = s.context - (start + (tiles - 1) * N);
    if (behind < N && behind % kBlockTokens != 0) {
      const int rows = kBlockTokens - behind % kBlockTokens;
      for (int i = threadIdx.x - kGroup; i < rows * Tile::halves * 8; i += 2 * kGroup) {
        const int half = i / (rows * 8), at = i % (rows * 8);
        *reinterpret_cast<uint4 *>(values + half * Tile::strip + (behind + at / 8) * Tile::row +
                                   at % 8 * 8) = make_uint4(0, 0, 0, 0);
      }
      publish_shared();
      named_sync(3, 2 * kGroup);
    }
    products_begin();
    c.add_values(values);
    products_wait<0>();
    let_next_kernel_start();

    const float sink = p.scores.sinks ? p.scores.sinks[head] * kLog2E : -infinity();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all_weights = c.weights[half];
      all_weights += __shfl_xor_sync(kAllLanes, all_weights, 1);
      all_weights += __shfl_xor_sync(kAllLanes, all_weights, 2);
      all_weights += exp2_fast(sink - c.most[half] * to_log2);
      const float share = __fdividef(1.0f, all_weights);
      if (query + half * 8 > last) continue;
      T *to = p.out + (int64_t(s.start + query + half * 8) * heads + head) * D + column;
#pragma unroll
      for (int part = 0; part < Tile::parts; part++) {
#pragma unroll
        for (int n = 0; n < Tile::part / 8; n++) {
          *reinterpret_cast<uint32_t *>(to + part * Tile::part + n * 8) =
              pack2<T>(c.sum[part][n * 4 + half * 2] * share, c.sum[part][n * 4 + half * 2 + 1] * share);
        }
      }
    }
  }
}

#define PREFILL_HOPPER(name, T, D) \
  BOUNDED_KERNEL(name, kHopperThreads, 1, HopperPrefillParams<T>) { prefill_hopper<T, D>(p); }

PREFILL_HOPPER(prefill_hopper_64_f16, f16, 64)
PREFILL_HOPPER(prefill_hopper_128_f16, f16, 128)
PREFILL_HOPPER(prefill_hopper_256_f16, f16, 256)
PREFILL_HOPPER(prefill_hopper_64_bf16, bf16, 64)
PREFILL_HOPPER(prefill_hopper_128_bf16, bf16, 128)
PREFILL_HOPPER(prefill_hopper_256_bf16, bf16, 256)
