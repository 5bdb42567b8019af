// All-reduce over peer pointers.
//
// - One-shot: every rank reads all ranks' contributions and sums them itself. It takes one meeting
//   and is for messages whose latency counts.
// - Two-shot: each rank sums its share, and the others fetch it. It takes two meetings, and moves 2
//   (world - 1) / world of the message over each link instead of world - 1.
//
// Every rank gets the same bits from either form. The one-shot form can also add the sum to a
// residual and apply RMSNorm.
//
// The all-gather of columns takes one meeting, after which every rank fetches the others' parts.
#include "floats.cuh"
#include "peers.cuh"
#include "reduce.cuh"

EXPORT_CONSTANT int kAllReduceThreads = 256;
constexpr int kThreads = kAllReduceThreads;

// Parameters of the all-reduce.
// Kernels: allreduce/all_reduce_one_*, allreduce/all_reduce_two_*
template <class T> struct AllReduceParams {
  PeerParams peers;
  T *x;       // [units · N], replaced by its sum over the ranks
  int units;  // vectors of N elements
};

// Parameters of the all-reduce with a residual addition and RMSNorm.
// Kernels: allreduce/all_reduce_norm_*
template <class T> struct AllReduceNormParams {
  PeerParams peers;
  T *out;       // [rows, cols]
  T *residual;  // [rows, cols]
  const T *x;   // [rows, cols]
  const float *weight;  // [cols]
  int rows;
  int cols;
  float eps;
};

// Parameters of the all-gather of columns.
// Kernels: allreduce/all_gather, allreduce/all_gather_plain
struct AllGatherParams {
  PeerParams peers;
  float *whole;       // [rows, whole_cols]
  const float *part;  // [rows, part_cols]
  int rows;
  int part_cols;
  int whole_cols;
};

// x[0..units · N] is replaced by its sum over the ranks.
template <class T, int N> DEVICE void one_shot(const AllReduceParams<T> &p) {
  Peers peers(p.peers);
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  T *own = peers.staging<T>(peers.rank);
  for (int u = first; u < p.units; u += step)
    store_vec(own + int64_t(u) * N, load_vec<T, N>(p.x + int64_t(u) * N));
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int u = first; u < p.units; u += step)
    store_vec(p.x + int64_t(u) * N, sum_of_ranks<T, N>(peers, int64_t(u) * N));
  end_meeting(peers);
}

template <class T, int N> DEVICE void two_shot(const AllReduceParams<T> &p) {
  Peers peers(p.peers);
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  const int share = ceil_div(p.units, peers.world);
  // Calls `f` with this block's part of rank r's share. The part is the same on every rank, so that
  // it is enough for blocks of the same number to meet.
  auto each = [&](int r, auto f) {
    const int end = min(share, p.units - r * share);
    for (int u = first; u < end; u += step) f(int64_t(r * share + u) * N);
  };
  T *own = peers.staging<T>(peers.rank);
  for (int r = 0; r < peers.world; r++)
    each(r, [&](int64_t at) { store_vec(own + at, load_vec<T, N>(p.x + at)); });
  if (!meet_peers(peers, 0)) return;
  T *mine = peers.result<T>(peers.rank);
  each(peers.rank, [&](int64_t at) { store_vec(mine + at, sum_of_ranks<T, N>(peers, at)); });
  if (!meet_peers(peers, 1)) return;
  let_next_kernel_start();
  // Each rank begins with the share of another rank, so that the traffic is spread over the links.
  for (int i = 0; i < peers.world; i++) {
    const int r = (peers.rank + i) % peers.world;
    const T *theirs = peers.result<T>(r);
    each(r, [&](int64_t at) { store_vec(p.x + at, load_vec<T, N>(theirs + at)); });
  }
  end_meeting(peers);
}

// residual += sum of x over the ranks; out = norm(residual). A block processes whole rows; the
// start of a row stays in registers.
template <class T, int N> DEVICE void one_shot_norm(const AllReduceNormParams<T> &p) {
  Peers peers(p.peers);
  constexpr int kKept = N == 1 ? 1 : 4;
  SHARED(float, squares, kThreads / kWarp);
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int units = p.cols / N;
  T *own = peers.staging<T>(peers.rank);
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    for (int u = threadIdx.x; u < units; u += kThreads) {
      const int64_t at = int64_t(row) * p.cols + u * N;
      store_vec(own + at, load_vec<T, N>(p.x + at));
    }
  }
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Vec<T, N> kept[kKept];
    float square = 0.0f;
    // Sum and residual are rounded to T, as they are when separate kernels store them.
    auto add = [&](int u) {
      const int64_t at = int64_t(row) * p.cols + u * N;
      Vec<T, N> a = sum_of_ranks<T, N>(peers, at);
      const Vec<T, N> r = load_vec<T, N>(p.residual + at);
#pragma unroll
      for (int i = 0; i < N; i++) {
        a.at[i] = from_float<T>(to_float(a.at[i]) + to_float(r.at[i]));
        square += to_float(a.at[i]) * to_float(a.at[i]);
      }
      store_vec(p.residual + at, a);
      return a;
    };
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int u = threadIdx.x + k * kThreads;
      if (u < units) kept[k] = add(u);
    }
    for (int u = threadIdx.x + kKept * kThreads; u < units; u += kThreads) add(u);
    const float scale = rsqrtf(block_reduce<kThreads>(square, squares, Add()) / float(p.cols) + p.eps);
    auto write = [&](int u, const Vec<T, N> &a) {
      const Floats<N> w = load_floats<N>(p.weight + u * N);
      Vec<T, N> o;
#pragma unroll
      for (int i = 0; i < N; i++) o.at[i] = from_float<T>(to_float(a.at[i]) * scale * w.at[i]);
      store_vec(p.out + int64_t(row) * p.cols + u * N, o);
    };
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int u = threadIdx.x + k * kThreads;
      if (u < units) write(u, kept[k]);
    }
    for (int u = threadIdx.x + kKept * kThreads; u < units; u += kThreads) {
      write(u, load_vec<T, N>(p.residual + int64_t(row) * p.cols + u * N));
    }
    __syncthreads();
  }
  end_meeting(peers);
}

// whole[row, r · part_cols + c] = rank r's part[row, c]; columns beyond `whole_cols` are padding.
template <int N> DEVICE void all_gather_columns(const AllGatherParams &p) {
  Peers peers(p.peers);
  wait_for_previous_kernel();
  if (!begin_meeting(peers)) return;
  const int step = int(gridDim.x) * kThreads, first = int(blockIdx.x) * kThreads + int(threadIdx.x);
  const int units = p.rows * p.part_cols / N;
  float *own = peers.staging<float>(peers.rank);
  for (int u = first; u < units; u += step)
    store_vec(own + int64_t(u) * N, load_vec<float, N>(p.part + int64_t(u) * N));
  if (!meet_peers(peers, 0)) return;
  let_next_kernel_start();
  for (int u = first; u < units; u += step) {
    const int row = u * N / p.part_cols, col = u * N % p.part_cols;
#pragma unroll
    for (int r = 0; r < kMaxRanks; r++) {
      if (r >= peers.world || r * p.part_cols + col >= p.whole_cols) break;
      const auto theirs = load_vec<float, N>(reinterpret_cast<const float *>(peers.parts[r]) +
                                             int64_t(u) * N);
      store_vec(p.whole + int64_t(row) * p.whole_cols + r * p.part_cols + col, theirs);
    }
  }
  end_meeting(peers);
}

#define ALL_REDUCE(T, N, suffix)                                                               \
  KERNEL(all_reduce_one_##suffix, AllReduceParams<T>) { one_shot<T, N>(p); }                   \
  KERNEL(all_reduce_two_##suffix, AllReduceParams<T>) { two_shot<T, N>(p); }                   \
  KERNEL(all_reduce_norm_##suffix, AllReduceNormParams<T>) { one_shot_norm<T, N>(p); }

ALL_REDUCE(float, 4, f32)
ALL_REDUCE(f16, 8, f16)
ALL_REDUCE(bf16, 8, bf16)
ALL_REDUCE(float, 1, plain_f32)
ALL_REDUCE(f16, 1, plain_f16)
ALL_REDUCE(bf16, 1, plain_bf16)

KERNEL(all_gather, AllGatherParams) { all_gather_columns<4>(p); }
KERNEL(all_gather_plain, AllGatherParams) { all_gather_columns<1>(p); }
