// All-reduce over peer pointers.
//
// One-shot: every rank reads all ranks' contributions and sums them itself; one meeting, for messages whose latency counts. Two-shot: each
// rank sums its share and the others fetch it; two meetings and 2 (world - 1) / world of the message per link instead of world - 1. The same
// bits on every rank either way. The one-shot form also takes in what follows in a decoder: residual addition and RMSNorm.
//
// The all-gather of columns is one meeting, after which every rank fetches the others' parts.
#include "floats.cuh"
#include "peers.cuh"
#include "reduce.cuh"

constexpr int kThreads = 256;

// x[0..units · N] is replaced by its sum over the ranks.
template <class T, int N> DEVICE void one_shot(Peers peers, T *x, int units) {
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  T *own = peers.staging<T>(peers.rank);
  for (int u = first; u < units; u += step) store_vec(own + int64_t(u) * N, load_vec<T, N>(x + int64_t(u) * N));
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int u = first; u < units; u += step) store_vec(x + int64_t(u) * N, sum_of_ranks<T, N>(peers, int64_t(u) * N));
  end_meeting(peers);
}

template <class T, int N> DEVICE void two_shot(Peers peers, T *x, int units) {
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  const int share = ceil_div(units, peers.world);
  // Calls `f` with what this block does of rank r's share: the same on every rank, so that it is enough that blocks of one number meet.
  auto each = [&](int r, auto f) {
    const int end = min(share, units - r * share);
    for (int u = first; u < end; u += step) f(int64_t(r * share + u) * N);
  };
  T *own = peers.staging<T>(peers.rank);
  for (int r = 0; r < peers.world; r++) each(r, [&](int64_t at) { store_vec(own + at, load_vec<T, N>(x + at)); });
  if (!meet_peers(peers, 0)) return;
  T *mine = peers.result<T>(peers.rank);
  each(peers.rank, [&](int64_t at) { store_vec(mine + at, sum_of_ranks<T, N>(peers, at)); });
  if (!meet_peers(peers, 1)) return;
  let_next_kernel_start();
  // Each rank begins with another one, so that no link has all the traffic.
  for (int i = 0; i < peers.world; i++) {
    const int r = (peers.rank + i) % peers.world;
    const T *theirs = peers.result<T>(r);
    each(r, [&](int64_t at) { store_vec(x + at, load_vec<T, N>(theirs + at)); });
  }
  end_meeting(peers);
}

// residual += sum of x over the ranks; out = norm(residual). A block does whole rows; a row's start stays in registers.
template <class T, int N>
DEVICE void one_shot_norm(Peers peers, T *out, T *residual, const T *x, const float *weight, int rows, int cols, float eps) {
  constexpr int kKept = N == 1 ? 1 : 4;
  SHARED(float, squares, kThreads / kWarp);
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int units = cols / N;
  T *own = peers.staging<T>(peers.rank);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int u = threadIdx.x; u < units; u += kThreads) {
      const int64_t at = int64_t(row) * cols + u * N;
      store_vec(own + at, load_vec<T, N>(x + at));
    }
  }
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    Vec<T, N> kept[kKept];
    float square = 0.0f;
    // Sum and residual are rounded to T where separate kernels would store them.
    auto add = [&](int u) {
      const int64_t at = int64_t(row) * cols + u * N;
      Vec<T, N> a = sum_of_ranks<T, N>(peers, at);
      const Vec<T, N> r = load_vec<T, N>(residual + at);
#pragma unroll
      for (int i = 0; i < N; i++) {
        a.at[i] = from_float<T>(to_float(a.at[i]) + to_float(r.at[i]));
        square += to_float(a.at[i]) * to_float(a.at[i]);
      }
      store_vec(residual + at, a);
      return a;
    };
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int u = threadIdx.x + k * kThreads;
      if (u < units) kept[k] = add(u);
    }
    for (int u = threadIdx.x + kKept * kThreads; u < units; u += kThreads) add(u);
    const float scale = rsqrtf(block_reduce<kThreads>(square, squares, Add()) / float(cols) + eps);
    auto write = [&](int u, const Vec<T, N> &a) {
      const Floats<N> w = load_floats<N>(weight + u * N);
      Vec<T, N> o;
#pragma unroll
      for (int i = 0; i < N; i++) o.at[i] = from_float<T>(to_float(a.at[i]) * scale * w.at[i]);
      store_vec(out + int64_t(row) * cols + u * N, o);
    };
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int u = threadIdx.x + k * kThreads;
      if (u < units) write(u, kept[k]);
    }
    for (int u = threadIdx.x + kKept * kThreads; u < units; u += kThreads) {
      write(u, load_vec<T, N>(residual + int64_t(row) * cols + u * N));
    }
    __syncthreads();
  }
  end_meeting(peers);
}

// whole[row, r · part_cols + c] = rank r's part[row, c]; columns beyond `whole_cols` are padding.
template <int N> DEVICE void gather(Peers peers, float *whole, const float *part, int rows, int part_cols, int whole_cols) {
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  const int units = rows * part_cols / N;
  float *own = peers.staging<float>(peers.rank);
  for (int u = first; u < units; u += step) store_vec(own + int64_t(u) * N, load_vec<float, N>(part + int64_t(u) * N));
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int u = first; u < units; u += step) {
    const int row = u * N / part_cols, col = u * N % part_cols;
#pragma unroll
    for (int r = 0; r < kMostRanks; r++) {
      if (r >= peers.world || r * part_cols + col >= whole_cols) break;
      const auto theirs = load_vec<float, N>(reinterpret_cast<const float *>(peers.parts[r]) + int64_t(u) * N);
      store_vec(whole + int64_t(row) * whole_cols + r * part_cols + col, theirs);
    }
  }
  end_meeting(peers);
}

#define PEERS const uint64_t *regions, PeerState *state, int rank, int world, int64_t capacity, uint64_t patience
#define GATHERED Peers{regions, state, rank, world, capacity, patience, 0, {}}

#define ALL_REDUCE(T, N, suffix)                                                                                              \
  KERNEL all_reduce_one_##suffix(PEERS, T *x, int units) { one_shot<T, N>(GATHERED, x, units); }                              \
  REGISTER(all_reduce_one_##suffix)                                                                                           \
  KERNEL all_reduce_two_##suffix(PEERS, T *x, int units) { two_shot<T, N>(GATHERED, x, units); }                              \
  REGISTER(all_reduce_two_##suffix)                                                                                           \
  KERNEL all_reduce_norm_##suffix(PEERS, T *out, T *residual, const T *x, const float *weight, int rows, int cols, float eps) { \
    one_shot_norm<T, N>(GATHERED, out, residual, x, weight, rows, cols, eps);                                                 \
  }                                                                                                                           \
  REGISTER(all_reduce_norm_##suffix)

ALL_REDUCE(float, 4, f32)
ALL_REDUCE(f16, 8, f16)
ALL_REDUCE(bf16, 8, bf16)
ALL_REDUCE(float, 1, plain_f32)
ALL_REDUCE(f16, 1, plain_f16)
ALL_REDUCE(bf16, 1, plain_bf16)

KERNEL all_gather(PEERS, float *whole, const float *part, int rows, int part_cols, int whole_cols) {
  gather<4>(GATHERED, whole, part, rows, part_cols, whole_cols);
}
REGISTER(all_gather)
KERNEL all_gather_plain(PEERS, float *whole, const float *part, int rows, int part_cols, int whole_cols) {
  gather<1>(GATHERED, whole, part, rows, part_cols, whole_cols);
}
REGISTER(all_gather_plain)
