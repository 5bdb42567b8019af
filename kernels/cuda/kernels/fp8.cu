// Quantization of activation rows to FP8 (e4m3), with one scale per row: out[row][k] * scales[row]
// approximates x[row][k].
//
// One block processes one row. It reads the row once into registers; rows too long for that are
// read again (from the L2 cache). Rows of `out` have `depth` columns; those beyond x's are zeros. A
// NaN stays a NaN. An infinity becomes a NaN and makes the row's scale infinite.
#include "ptx.cuh"
#include "reduce.cuh"

EXPORT_CONSTANT int kQuantizeThreads = 256;
constexpr int kThreads = kQuantizeThreads;
// The number of 16-byte vectors of a row that a thread keeps in registers.
constexpr int kKept = 8;
// The largest number of e4m3.
constexpr float kLargest = 448.0f;
// A row's maximum counts as at least this, so that every scale has a finite inverse.
constexpr float kSmallest = 1e-30f;

// Parameters of the quantization of rows.
// Kernels: fp8/quantize_rows_*
template <class T> struct QuantizeRowsParams {
  e4m3 *out;      // [rows, depth]
  float *scales;  // [rows]
  const T *x;     // [rows, cols]
  int cols;
  int depth;
};

template <class T> DEVICE void quantize_rows(const QuantizeRowsParams<T> &p) {
  constexpr int N = kVec<T>;
  SHARED(float, maxima, kThreads / kWarp);
  wait_for_previous_kernel();
  const T *row = p.x + int64_t(blockIdx.x) * p.cols;
  e4m3 *out_row = p.out + int64_t(blockIdx.x) * p.depth;
  const int vectors = p.depth / N;
  Vec<T, N> kept[kKept];
  auto read = [&](int v) {
    Vec<T, N> a;
    if (v * N < p.cols) return load_vec<T, N>(row + v * N);
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
  if (threadIdx.x == 0) p.scales[blockIdx.x] = largest / kLargest;
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

// The plain version, for any number of columns: one element at a time.
template <class T> DEVICE void quantize_rows_plain(const QuantizeRowsParams<T> &p) {
  SHARED(float, maxima, kThreads / kWarp);
  wait_for_previous_kernel();
  const T *row = p.x + int64_t(blockIdx.x) * p.cols;
  float largest = kSmallest;
  for (int c = threadIdx.x; c < p.cols; c += kThreads) largest = fmaxf(largest, fabsf(to_float(row[c])));
  largest = block_reduce<kThreads>(largest, maxima, Max());
  let_next_kernel_start();
  if (threadIdx.x == 0) p.scales[blockIdx.x] = largest / kLargest;
  for (int c = threadIdx.x; c < p.depth; c += kThreads) {
    p.out[int64_t(blockIdx.x) * p.depth + c] = from_float<e4m3>(
        c < p.cols ? to_float(row[c]) * (kLargest / largest) : 0.0f);
  }
}

#define QUANTIZE(T, suffix)                                                           \
  KERNEL(quantize_rows_##suffix, QuantizeRowsParams<T>) { quantize_rows(p); }         \
  KERNEL(quantize_rows_plain_##suffix, QuantizeRowsParams<T>) { quantize_rows_plain(p); }

QUANTIZE(float, f32)
QUANTIZE(bf16, bf16)
QUANTIZE(f16, f16)
