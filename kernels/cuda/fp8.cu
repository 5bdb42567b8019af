// Rows of activations as FP8 (e4m3), each with a scale of its own: out[row][k] * scales[row] is nearly x[row][k].
//
// One block per row, which is read once into registers; rows too long for that are read again (from the L2 cache). Rows of `out` have `depth` columns, those
// beyond x's are zeros. A NaN stays one, and an infinity makes one of its row's elements.
#include "ptx.cuh"
#include "reduce.cuh"

constexpr int kThreads = 256;
// How many 16-byte vectors of a row a thread keeps.
constexpr int kKept = 8;
// The largest number of e4m3.
constexpr float kLargest = 448.0f;
// Smaller maxima count as this, so that no scale is zero or has no inverse.
constexpr float kSmallest = 1e-30f;

template <class T> DEVICE void quantize_rows(e4m3 *out, float *scales, const T *x, int cols, int depth) {
  constexpr int N = kVec<T>;
  SHARED(float, maxima, kThreads / kWarp);
  wait_for_previous_kernel();
  const T *row = x + int64_t(blockIdx.x) * cols;
  e4m3 *out_row = out + int64_t(blockIdx.x) * depth;
  const int vectors = depth / N;
  Vec<T, N> kept[kKept];
  auto read = [&](int v) {
    Vec<T, N> a;
    if (v * N < cols) return load_vec<T, N>(row + v * N);
#pragma unroll
    for (int i = 0; i < N; i++) a.at[i] = from_float<T>(0.0f);
    return a;
  };
  float largest = kSmallest;
  auto look_at = [&](const Vec<T, N> &a) {
#pragma unroll
    for (int i = 0; i < N; i++) largest = fmaxf(largest, fabsf(to_float(a.at[i])));
  };
#pragma unroll
  for (int k = 0; k < kKept; k++) {
    const int v = threadIdx.x + k * kThreads;
    if (v < vectors) {
      kept[k] = read(v);
      look_at(kept[k]);
    }
  }
  for (int v = threadIdx.x + kKept * kThreads; v < vectors; v += kThreads) look_at(read(v));

  largest = block_reduce<kThreads>(largest, maxima, Max());
  let_next_kernel_start();
  if (threadIdx.x == 0) scales[blockIdx.x] = largest / kLargest;
  const float inverse = kLargest / largest;
  auto write = [&](int v, const Vec<T, N> &a) {
    Vec<e4m3, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) o.at[i] = from_float<e4m3>(to_float(a.at[i]) * inverse);
    store_vec(out_row + v * N, o);
  };
#pragma unroll
  for (int k = 0; k < kKept; k++) {
    const int v = threadIdx.x + k * kThreads;
    if (v < vectors) write(v, kept[k]);
  }
  for (int v = threadIdx.x + kKept * kThreads; v < vectors; v += kThreads) write(v, read(v));
}

// The obvious version, for any number of columns: one element at a time.
template <class T> DEVICE void quantize_rows_plain(e4m3 *out, float *scales, const T *x, int cols, int depth) {
  SHARED(float, maxima, kThreads / kWarp);
  wait_for_previous_kernel();
  const T *row = x + int64_t(blockIdx.x) * cols;
  float largest = kSmallest;
  for (int c = threadIdx.x; c < cols; c += kThreads) largest = fmaxf(largest, fabsf(to_float(row[c])));
  largest = block_reduce<kThreads>(largest, maxima, Max());
  let_next_kernel_start();
  if (threadIdx.x == 0) scales[blockIdx.x] = largest / kLargest;
  for (int c = threadIdx.x; c < depth; c += kThreads) {
    out[int64_t(blockIdx.x) * depth + c] = from_float<e4m3>(c < cols ? to_float(row[c]) * (kLargest / largest) : 0.0f);
  }
}

#define QUANTIZE(T, suffix)                                                                                          \
  KERNEL quantize_rows_##suffix(e4m3 *out, float *scales, const T *x, int cols, int depth) {                         \
    quantize_rows<T>(out, scales, x, cols, depth);                                                                   \
  }                                                                                                                  \
  REGISTER(quantize_rows_##suffix)                                                                                   \
  KERNEL quantize_rows_plain_##suffix(e4m3 *out, float *scales, const T *x, int cols, int depth) {                   \
    quantize_rows_plain<T>(out, scales, x, cols, depth);                                                             \
  }                                                                                                                  \
  REGISTER(quantize_rows_plain_##suffix)

QUANTIZE(float, f32)
QUANTIZE(bf16, bf16)
QUANTIZE(f16, f16)
