// RMSNorm and LayerNorm over rows, alone or after a residual addition.
//
// One block per row. A row is read once into registers, so that device memory sees each element once in each direction; rows too long for
// that are read again (from the L2 cache). Statistics are in f32. LayerNorm takes the variance from the mean's deviations, not from the
// squares, which cancel.
#include "ptx.cuh"
#include "reduce.cuh"

enum Kind { kRms, kLayer };

// How many 16-byte vectors of a row a thread keeps.
constexpr int kKept = 8;

template <class T, int Threads, Kind kind, bool add>
DEVICE void norm(T *out, T *residual, const T *x, const float *weight, const float *bias, int cols, float eps) {
  constexpr int N = kVec<T>;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * cols;
  const int vectors = cols / N;
  Vec<T, N> kept[kKept];

  // The row's values as the norm sees them: the sum with the residual is rounded to T first, as the next layer will read it.
  auto read = [&](int v) {
    Vec<T, N> a = load_vec<T, N>(x + row + int64_t(v) * N);
    if (add) {
      const Vec<T, N> r = load_vec<T, N>(residual + row + int64_t(v) * N);
#pragma unroll
      for (int i = 0; i < N; i++) a.at[i] = from_float<T>(to_float(a.at[i]) + to_float(r.at[i]));
      store_vec(residual + row + int64_t(v) * N, a);
    }
    return a;
  };
  auto again = [&](int v) { return load_vec<T, N>((add ? residual : x) + row + int64_t(v) * N); };
  // Calls `f` with every vector of this thread; from the registers where they are kept.
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
    mean = block_reduce<Threads>(sum, sums, Add()) / float(cols);
    square = 0.0f;
    each([&](int, const Vec<T, N> &a) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float d = to_float(a.at[i]) - mean;
        square += d * d;
      }
    });
  }
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(cols) + eps);
  let_next_kernel_start();
  each([&](int v, const Vec<T, N> &a) {
    Vec<T, N> o;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int c = v * N + i;
      float value = (to_float(a.at[i]) - mean) * scale * weight[c];
      if (kind == kLayer && bias) value += bias[c];
      o.at[i] = from_float<T>(value);
    }
    store_vec(out + row + int64_t(v) * N, o);
  });
}

// The obvious version, for any number of columns: one element at a time.
template <class T, Kind kind, bool add>
DEVICE void norm_plain(T *out, T *residual, const T *x, const float *weight, const float *bias, int cols, float eps) {
  constexpr int Threads = 256;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * cols;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < cols; c += Threads) {
    if (add) residual[row + c] = from_float<T>(to_float(residual[row + c]) + to_float(x[row + c]));
    sum += to_float((add ? residual : x)[row + c]);
  }
  const T *values = (add ? residual : x) + row;
  const float mean = kind == kLayer ? block_reduce<Threads>(sum, sums, Add()) / float(cols) : 0.0f;
  float square = 0.0f;
  for (int c = threadIdx.x; c < cols; c += Threads) square += (to_float(values[c]) - mean) * (to_float(values[c]) - mean);
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(cols) + eps);
  let_next_kernel_start();
  for (int c = threadIdx.x; c < cols; c += Threads) {
    float value = (to_float(values[c]) - mean) * scale * weight[c];
    if (kind == kLayer && bias) value += bias[c];
    out[row + c] = from_float<T>(value);
  }
}

#define NORMS(T, suffix)                                                                                            \
  KERNEL rms_norm_##suffix(T *out, const T *x, const float *weight, int cols, float eps) {                          \
    norm<T, 256, kRms, false>(out, nullptr, x, weight, nullptr, cols, eps);                                         \
  }                                                                                                                 \
  REGISTER(rms_norm_##suffix)                                                                                       \
  KERNEL add_rms_norm_##suffix(T *out, T *residual, const T *x, const float *weight, int cols, float eps) {         \
    norm<T, 256, kRms, true>(out, residual, x, weight, nullptr, cols, eps);                                         \
  }                                                                                                                 \
  REGISTER(add_rms_norm_##suffix)                                                                                   \
  KERNEL rms_norm_plain_##suffix(T *out, const T *x, const float *weight, int cols, float eps) {                    \
    norm_plain<T, kRms, false>(out, nullptr, x, weight, nullptr, cols, eps);                                        \
  }                                                                                                                 \
  REGISTER(rms_norm_plain_##suffix)                                                                                 \
  KERNEL add_rms_norm_plain_##suffix(T *out, T *residual, const T *x, const float *weight, int cols, float eps) {   \
    norm_plain<T, kRms, true>(out, residual, x, weight, nullptr, cols, eps);                                        \
  }                                                                                                                 \
  REGISTER(add_rms_norm_plain_##suffix)                                                                             \
  KERNEL layer_norm_##suffix(T *out, const T *x, const float *weight, const float *bias, int cols, float eps) {     \
    norm<T, 256, kLayer, false>(out, nullptr, x, weight, bias, cols, eps);                                          \
  }                                                                                                                 \
  REGISTER(layer_norm_##suffix)                                                                                     \
  KERNEL add_layer_norm_##suffix(T *out, T *residual, const T *x, const float *weight, const float *bias, int cols, \
                                 float eps) {                                                                       \
    norm<T, 256, kLayer, true>(out, residual, x, weight, bias, cols, eps);                                          \
  }                                                                                                                 \
  REGISTER(add_layer_norm_##suffix)                                                                                 \
  KERNEL layer_norm_plain_##suffix(T *out, const T *x, const float *weight, const float *bias, int cols, float eps) { \
    norm_plain<T, kLayer, false>(out, nullptr, x, weight, bias, cols, eps);                                         \
  }                                                                                                                 \
  REGISTER(layer_norm_plain_##suffix)                                                                               \
  KERNEL add_layer_norm_plain_##suffix(T *out, T *residual, const T *x, const float *weight, const float *bias,     \
                                       int cols, float eps) {                                                       \
    norm_plain<T, kLayer, true>(out, residual, x, weight, bias, cols, eps);                                         \
  }                                                                                                                 \
  REGISTER(add_layer_norm_plain_##suffix)

NORMS(float, f32)
NORMS(bf16, bf16)
NORMS(f16, f16)
