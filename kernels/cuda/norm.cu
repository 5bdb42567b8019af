// RMSNorm and LayerNorm over rows, alone or after a residual addition.
//
// One block processes one row. It reads the row once into registers, so that each element is read
// and written once in device memory; rows too long for that are read again (from the L2 cache).
// Statistics are in f32. LayerNorm computes the variance from the deviations from the mean, because
// the difference of large squares would cancel.
#include "ptx.cuh"
#include "reduce.cuh"

enum NormKind { kRms, kLayer };

// The number of 16-byte vectors of a row that a thread keeps in registers.
constexpr int kKept = 8;

EXPORT_CONSTANT int kNormThreads = 256;

// Parameters of a norm.
// Kernels: norm/rms_norm_*, norm/add_rms_norm_*, norm/layer_norm_*, norm/add_layer_norm_*
template <class T> struct NormParams {
  T *out;               // [rows, cols]
  T *residual;          // [rows, cols], for the kernels that add x to it first
  const T *x;           // [rows, cols]
  const float *weight;  // [cols]
  const float *bias;    // null or [cols], for LayerNorm
  int cols;
  float eps;
};

template <class T, NormKind kind, bool add> DEVICE void norm(const NormParams<T> &p) {
  constexpr int Threads = kNormThreads;
  constexpr int N = kVec<T>;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * p.cols;
  const int vectors = p.cols / N;
  Vec<T, N> kept[kKept];

  // Reads the row's values. The sum with the residual is rounded to T first, as the next layer will
  // read it.
  auto read = [&](int v) {
    Vec<T, N> a = load_vec<T, N>(p.x + row + int64_t(v) * N);
    if (add) {
      const Vec<T, N> r = load_vec<T, N>(p.residual + row + int64_t(v) * N);
#pragma unroll
      for (int i = 0; i < N; i++) a.at[i] = from_float<T>(to_float(a.at[i]) + to_float(r.at[i]));
      store_vec(p.residual + row + int64_t(v) * N, a);
    }
    return a;
  };
  auto again = [&](int v) { return load_vec<T, N>((add ? p.residual : p.x) + row + int64_t(v) * N); };
  // Calls `f` with every vector of this thread, from the registers if they are kept there.
  auto each = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int v = threadIdx.x + k * Threads;
      if (v < vectors) f(v, kept[k]);
    }
    for (int v = threadIdx.x + kKept * Threads; v < vectors; v += Threads) f(v, again(v));
  };

  float sum = 0.0f, square = 0.0f;
  auto count = [&](const Vec<T, N> &a) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float value = to_float(a.at[i]);
      sum += value;
      square += value * value;
    }
  };
#pragma unroll
  for (int k = 0; k < kKept; k++) {
    const int v = threadIdx.x + k * Threads;
    if (v < vectors) {
      kept[k] = read(v);
      count(kept[k]);
    }
  }
  for (int v = threadIdx.x + kKept * Threads; v < vectors; v += Threads) count(read(v));

  float mean = 0.0f;
  if (kind == kLayer) {
    mean = block_reduce<Threads>(sum, sums, Add()) / float(p.cols);
    square = 0.0f;
    each([&](int, const Vec<T, N> &a) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float d = to_float(a.at[i]) - mean;
        square += d * d;
      }
    });
  }
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(p.cols) + p.eps);
  let_next_kernel_start();
  each([&](int v, const Vec<T, N> &a) {
    Vec<T, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int c = v * N + i;
      float value = (to_float(a.at[i]) - mean) * scale * p.weight[c];
      if (kind == kLayer && p.bias) value += p.bias[c];
      o.at[i] = from_float<T>(value);
    }
    store_vec(p.out + row + int64_t(v) * N, o);
  });
}

// The plain version, for any number of columns: one element at a time.
template <class T, NormKind kind, bool add> DEVICE void norm_plain(const NormParams<T> &p) {
  constexpr int Threads = kNormThreads;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * p.cols;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < p.cols; c += Threads) {
    if (add) p.residual[row + c] = from_float<T>(to_float(p.residual[row + c]) + to_float(p.x[row + c]));
    sum += to_float((add ? p.residual : p.x)[row + c]);
  }
  const T *values = (add ? p.residual : p.x) + row;
  const float mean = kind == kLayer ? block_reduce<Threads>(sum, sums, Add()) / float(p.cols) : 0.0f;
  float square = 0.0f;
  for (int c = threadIdx.x; c < p.cols; c += Threads)
    square += (to_float(values[c]) - mean) * (to_float(values[c]) - mean);
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(p.cols) + p.eps);
  let_next_kernel_start();
  for (int c = threadIdx.x; c < p.cols; c += Threads) {
    float value = (to_float(values[c]) - mean) * scale * p.weight[c];
    if (kind == kLayer && p.bias) value += p.bias[c];
    p.out[row + c] = from_float<T>(value);
  }
}

// Parameters of the norm of parts of rows.
// Kernels: norm/norm_parts_*
template <class T> struct NormPartsParams {
  T *x;                 // [rows, row_cols], updated in place
  const float *weight;  // [cols], or [parts, cols] if each part has its own
  const float *bias;    // null or as long as the weights
  int row_cols;
  int first;  // column of the first part
  int parts;
  int cols;    // of a part
  int own;     // 1 if each part has weights of its own
  int layer;   // 1 for LayerNorm
  float eps;
};

// One block normalizes one part of a row, such as a head.
template <class T> DEVICE void norm_parts(const NormPartsParams<T> &p) {
  constexpr int Threads = kNormThreads;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  T *x = p.x + int64_t(blockIdx.x) * p.row_cols + p.first + int64_t(blockIdx.y) * p.cols;
  const int64_t own = p.own ? int64_t(blockIdx.y) * p.cols : 0;
  float sum = 0.0f;
  if (p.layer)
    for (int c = threadIdx.x; c < p.cols; c += Threads) sum += to_float(x[c]);
  const float mean = p.layer ? block_reduce<Threads>(sum, sums, Add()) / float(p.cols) : 0.0f;
  float square = 0.0f;
  for (int c = threadIdx.x; c < p.cols; c += Threads)
    square += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(p.cols) + p.eps);
  let_next_kernel_start();
  for (int c = threadIdx.x; c < p.cols; c += Threads) {
    float value = (to_float(x[c]) - mean) * scale * p.weight[own + c];
    if (p.bias) value += p.bias[own + c];
    x[c] = from_float<T>(value);
  }
}

#define NORMS(T, suffix)                                                                      \
  KERNEL(norm_parts_##suffix, NormPartsParams<T>) { norm_parts<T>(p); }                       \
  KERNEL(rms_norm_##suffix, NormParams<T>) { norm<T, kRms, false>(p); }                       \
  KERNEL(add_rms_norm_##suffix, NormParams<T>) { norm<T, kRms, true>(p); }                    \
  KERNEL(rms_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kRms, false>(p); }           \
  KERNEL(add_rms_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kRms, true>(p); }        \
  KERNEL(layer_norm_##suffix, NormParams<T>) { norm<T, kLayer, false>(p); }                   \
  KERNEL(add_layer_norm_##suffix, NormParams<T>) { norm<T, kLayer, true>(p); }                \
  KERNEL(layer_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kLayer, false>(p); }       \
  KERNEL(add_layer_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kLayer, true>(p); }

NORMS(float, f32)
NORMS(bf16, bf16)
NORMS(f16, f16)
