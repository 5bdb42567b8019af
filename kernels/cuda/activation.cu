// Non-linearities, gated and not, and what else is done to single elements: bias, scaled sums, the soft cap of logits.
#include "rowwise.cuh"

// In the order of `ops::activation::Activation`.
enum Kind { kSilu, kGeluTanh, kGelu, kRelu };

DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exp2_fast(x * -1.44269504f)); }

template <Kind kind> DEVICE float activate(float x) {
  switch (kind) {
    case kSilu: return x * sigmoid(x);
    // 0.5 (1 + tanh(u)) = sigmoid(2u).
    case kGeluTanh: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    case kGelu: return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    default: return x > 0.0f ? x : (x != x ? x : 0.0f);
  }
}

// out[t, c] = act(x[t, c]), times x[t, cols + c] if gated.
template <class T, int N, bool gated, Kind kind> DEVICE void activate_row(T *out, const T *x, int cols) {
  const T *from = x + int64_t(blockIdx.x) * (gated ? 2 : 1) * cols;
  T *to = out + int64_t(blockIdx.x) * cols;
  Vec<T, N> left[kUnroll], right[kUnroll];
  each_vector(
      cols / N,
      [&](int k, int v) {
        left[k] = load_vec<T, N>(from + v * N);
        if (gated) right[k] = load_vec<T, N>(from + cols + v * N);
      },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float a = activate<kind>(to_float(left[k].at[i]));
          o.at[i] = from_float<T>(gated ? a * to_float(right[k].at[i]) : a);
        }
        store_vec(to + v * N, o);
      });
}

template <class T, int N, bool gated> DEVICE void activation(T *out, const T *x, int cols, int kind) {
  wait_for_previous_kernel();
  switch (kind) {
    case kSilu: return activate_row<T, N, gated, kSilu>(out, x, cols);
    case kGeluTanh: return activate_row<T, N, gated, kGeluTanh>(out, x, cols);
    case kGelu: return activate_row<T, N, gated, kGelu>(out, x, cols);
    default: return activate_row<T, N, gated, kRelu>(out, x, cols);
  }
}

template <class T, int N> DEVICE void add_bias(T *x, const float *bias, int cols) {
  wait_for_previous_kernel();
  T *row = x + int64_t(blockIdx.x) * cols;
  Vec<T, N> kept[kUnroll];
  each_vector(
      cols / N, [&](int k, int v) { kept[k] = load_vec<T, N>(row + v * N); },
      [&](int k, int v) {
        const Floats<N> b = load_floats<N>(bias + v * N);
#pragma unroll
        for (int i = 0; i < N; i++) kept[k].at[i] = from_float<T>(to_float(kept[k].at[i]) + b.at[i]);
        store_vec(row + v * N, kept[k]);
      });
}

// x = cap · tanh(x / cap).
template <class T, int N> DEVICE void soft_cap(T *x, int cols, float cap) {
  wait_for_previous_kernel();
  const float inverse = 1.0f / cap;
  T *row = x + int64_t(blockIdx.x) * cols;
  Vec<T, N> kept[kUnroll];
  each_vector(
      cols / N, [&](int k, int v) { kept[k] = load_vec<T, N>(row + v * N); },
      [&](int k, int v) {
#pragma unroll
        for (int i = 0; i < N; i++) kept[k].at[i] = from_float<T>(cap * tanhf(to_float(kept[k].at[i]) * inverse));
        store_vec(row + v * N, kept[k]);
      });
}

// out = a · x + b · y, or a · x without y.
template <class T, int N> DEVICE void scaled_sum(T *out, const T *x, const T *y, int cols, float a, float b) {
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * cols;
  Vec<T, N> left[kUnroll], right[kUnroll];
  each_vector(
      cols / N,
      [&](int k, int v) {
        left[k] = load_vec<T, N>(x + row + v * N);
        if (y) right[k] = load_vec<T, N>(y + row + v * N);
      },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float value = a * to_float(left[k].at[i]);
          o.at[i] = from_float<T>(y ? value + b * to_float(right[k].at[i]) : value);
        }
        store_vec(out + row + v * N, o);
      });
}

#define ROWS(T, N, suffix)                                                                                                       \
  KERNEL gate_##suffix(T *out, const T *x, int cols, int kind) { activation<T, N, true>(out, x, cols, kind); }                   \
  REGISTER(gate_##suffix)                                                                                                        \
  KERNEL activate_##suffix(T *out, const T *x, int cols, int kind) { activation<T, N, false>(out, x, cols, kind); }              \
  REGISTER(activate_##suffix)                                                                                                    \
  KERNEL add_bias_##suffix(T *x, const float *bias, int cols) { add_bias<T, N>(x, bias, cols); }                                 \
  REGISTER(add_bias_##suffix)                                                                                                    \
  KERNEL soft_cap_##suffix(T *x, int cols, float cap) { soft_cap<T, N>(x, cols, cap); }                                          \
  REGISTER(soft_cap_##suffix)                                                                                                    \
  KERNEL scaled_sum_##suffix(T *out, const T *x, const T *y, int cols, float a, float b) {                                       \
    scaled_sum<T, N>(out, x, y, cols, a, b);                                                                                     \
  }                                                                                                                              \
  REGISTER(scaled_sum_##suffix)

ROWS(float, 4, f32)
ROWS(f16, 8, f16)
ROWS(bf16, 8, bf16)
ROWS(float, 1, plain_f32)
ROWS(f16, 1, plain_f16)
ROWS(bf16, 1, plain_bf16)
