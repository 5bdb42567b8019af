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
// The blocks of a multiprocessor that registers are left for: while some wait for their sums, the
// others read. More would spill registers: LayerNorm has a mean and biases too, and in f32 a vector
// of weights takes as many registers as the values.
template <class T, NormKind kind> constexpr int kNormResident = sizeof(T) > 2 ? 2 : kind == kRms ? 4 : 3;

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

// 16 bytes of a row, as loaded: two elements of 16 bits to a register.
using Packed = Vec<uint32_t, 4>;

template <class T> DEVICE Packed load_packed(const T *p) {
  return load_vec<uint32_t, 4>(reinterpret_cast<const uint32_t *>(p));
}
template <class T> DEVICE void store_packed(T *p, const Packed &v) {
  store_vec(reinterpret_cast<uint32_t *>(p), v);
}
template <class T> DEVICE void unpack(float (&to)[kVec<T>], const Packed &v) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (sizeof(T) == 4) {
      to[i] = __uint_as_float(v.at[i]);
    } else {
      const float2 two = unpack2<T>(v.at[i]);
      to[2 * i] = two.x, to[2 * i + 1] = two.y;
    }
  }
}
template <class T> DEVICE Packed pack(const float (&from)[kVec<T>]) {
  Packed v;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (sizeof(T) == 4) v.at[i] = __float_as_uint(from[i]);
    else v.at[i] = pack2<T>(from[2 * i], from[2 * i + 1]);
  }
  return v;
}

template <class T, NormKind kind, bool add> DEVICE void norm(const NormParams<T> &p) {
  constexpr int Threads = kNormThreads;
  constexpr int N = kVec<T>;
  SHARED(float, sums, Threads / kWarp);
  SHARED(float, squares, Threads / kWarp);
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * p.cols;
  const int vectors = p.cols / N;
  Packed kept[kKept];

  // Reads the row's values. The sum with the residual is rounded to T first, as the next layer will
  // read it.
  auto read = [&](int v) {
    Packed a = load_packed(p.x + row + int64_t(v) * N);
    if (add) {
      float values[N], residual[N];
      unpack<T>(values, a);
      unpack<T>(residual, load_packed(p.residual + row + int64_t(v) * N));
#pragma unroll
      for (int i = 0; i < N; i++) values[i] += residual[i];
      a = pack<T>(values);
      store_packed(p.residual + row + int64_t(v) * N, a);
    }
    return a;
  };
  auto again = [&](int v) { return load_packed((add ? p.residual : p.x) + row + int64_t(v) * N); };
  // Calls `f` with every vector of this thread, from the registers if they are kept there.
  auto each = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kKept; k++) {
      const int v = threadIdx.x + k * Threads;
      // Otherwise the compiler keeps what it has unpacked before, in twice the registers.
#pragma unroll
      for (int i = 0; i < 4; i++) forget_origin(kept[k].at[i]);
      if (v < vectors) f(v, kept[k]);
    }
    for (int v = threadIdx.x + kKept * Threads; v < vectors; v += Threads) f(v, again(v));
  };

  float sum = 0.0f, square = 0.0f;
  auto count = [&](const Packed &a) {
    float values[N];
    unpack<T>(values, a);
#pragma unroll
    for (int i = 0; i < N; i++) {
      sum += values[i];
      square += values[i] * values[i];
    }
  };
#pragma unroll
  for (int k = 0; k < kKept; k++) {
    const int v = threadIdx.x + k * Threads;
    kept[k] = {};
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
    each([&](int, const Packed &a) {
      float values[N];
      unpack<T>(values, a);
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float d = values[i] - mean;
        square += d * d;
      }
    });
  }
  const float scale = rsqrtf(block_reduce<Threads>(square, squares, Add()) / float(p.cols) + p.eps);
  let_next_kernel_start();
  each([&](int v, const Packed &a) {
    float values[N];
    unpack<T>(values, a);
#pragma unroll
    for (int i = 0; i < N; i += kVec<float>) {
      const auto weight = load_vec<float, kVec<float>>(p.weight + v * N + i);
      Vec<float, kVec<float>> bias = {};
      if (kind == kLayer && p.bias) bias = load_vec<float, kVec<float>>(p.bias + v * N + i);
#pragma unroll
      for (int j = 0; j < kVec<float>; j++) {
        float &value = values[i + j];
        value = (value - mean) * scale * weight.at[j];
        if (kind == kLayer && p.bias) value += bias.at[j];
      }
    }
    store_packed(p.out + row + int64_t(v) * N, pack<T>(values));
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

#define NORM(name, T, kind, add) \
  BOUNDED_KERNEL(name, kNormThreads, (kNormResident<T, kind>), NormParams<T>) { norm<T, kind, add>(p); }

#define NORMS(T, suffix)                                                                      \
  KERNEL(norm_parts_##suffix, NormPartsParams<T>) { norm_parts<T>(p); }                       \
  NORM(rms_norm_##suffix, T, kRms, false)                                                     \
  NORM(add_rms_norm_##suffix, T, kRms, true)                                                  \
  KERNEL(rms_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kRms, false>(p); }           \
  KERNEL(add_rms_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kRms, true>(p); }        \
  NORM(layer_norm_##suffix, T, kLayer, false)                                                 \
  NORM(add_layer_norm_##suffix, T, kLayer, true)                                              \
  KERNEL(layer_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kLayer, false>(p); }       \
  KERNEL(add_layer_norm_plain_##suffix, NormParams<T>) { norm_plain<T, kLayer, true>(p); }

NORMS(float, f32)
NORMS(bf16, bf16)
NORMS(f16, f16)
