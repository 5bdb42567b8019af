// Activation functions, gated and plain, and other elementwise operations: bias, scaled sum, and
// the soft cap of logits.
#include "activation.cuh"
#include "rowwise.cuh"

// Parameters of an activation function.
// Kernels: activation/gate_*, activation/activate_*
template <class T> struct ActivationParams {
  T *out;      // [rows, cols]
  const T *x;  // [rows, cols], or [rows, 2 * cols] with the gate's features first
  int cols;
  ActivationKind kind;
};

// Parameters of the clamped gate.
// Kernels: activation/gate_clamped_*
template <class T> struct ClampedGateParams {
  T *out;      // [rows, cols]
  const T *x;  // [rows, 2 * cols] with the gate's features first
  int cols;
  float alpha;
  float limit;
};

// Parameters of the addition of a bias.
// Kernels: activation/add_bias_*
template <class T> struct AddBiasParams {
  T *x;               // [rows, cols], updated in place
  const float *bias;  // [cols]
  int cols;
};

// Parameters of the soft cap.
// Kernels: activation/soft_cap_*
template <class T> struct SoftCapParams {
  T *x;  // [rows, cols], updated in place
  int cols;
  float cap;
};

// Parameters of a scaled sum.
// Kernels: activation/scaled_sum_*
template <class T> struct ScaledSumParams {
  T *out;      // [rows, cols]
  const T *x;  // [rows, cols]
  const T *y;  // null or [rows, cols]
  int cols;
  float x_factor;
  float y_factor;
};

// out[t, c] = act(x[t, c]), times x[t, cols + c] if gated.
template <class T, int N, bool gated, ActivationKind kind>
DEVICE void activate_row(const ActivationParams<T> &p) {
  const T *from = p.x + int64_t(blockIdx.x) * (gated ? 2 : 1) * p.cols;
  T *to = p.out + int64_t(blockIdx.x) * p.cols;
  Vec<T, N> left[kUnroll], right[kUnroll];
  each_vector(
      p.cols / N,
      [&](int k, int v) {
        left[k] = load_vec<T, N>(from + v * N);
        if (gated) right[k] = load_vec<T, N>(from + p.cols + v * N);
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

template <class T, int N, bool gated> DEVICE void activation(const ActivationParams<T> &p) {
  wait_for_previous_kernel();
  switch (p.kind) {
    case kSilu: return activate_row<T, N, gated, kSilu>(p);
    case kGeluTanh: return activate_row<T, N, gated, kGeluTanh>(p);
    case kGelu: return activate_row<T, N, gated, kGelu>(p);
    default: return activate_row<T, N, gated, kRelu>(p);
  }
}

// out = g · sigmoid(alpha · g) · (u + 1), where g is the gate, at most the limit, and u is up
// between the limit and its negative. A NaN stays a NaN.
template <class T, int N> DEVICE void gate_clamped(const ClampedGateParams<T> &p) {
  wait_for_previous_kernel();
  const T *from = p.x + int64_t(blockIdx.x) * 2 * p.cols;
  T *to = p.out + int64_t(blockIdx.x) * p.cols;
  Vec<T, N> left[kUnroll], right[kUnroll];
  each_vector(
      p.cols / N,
      [&](int k, int v) {
        left[k] = load_vec<T, N>(from + v * N);
        right[k] = load_vec<T, N>(from + p.cols + v * N);
      },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float gate = to_float(left[k].at[i]), up = to_float(right[k].at[i]);
          const float g = gate > p.limit ? p.limit : gate;
          const float u = up > p.limit ? p.limit : (up < -p.limit ? -p.limit : up);
          o.at[i] = from_float<T>(g * sigmoid(p.alpha * g) * (u + 1.0f));
        }
        store_vec(to + v * N, o);
      });
}

// x += bias.
template <class T, int N> DEVICE void add_bias(const AddBiasParams<T> &p) {
  wait_for_previous_kernel();
  T *row = p.x + int64_t(blockIdx.x) * p.cols;
  Vec<T, N> kept[kUnroll];
  each_vector(
      p.cols / N, [&](int k, int v) { kept[k] = load_vec<T, N>(row + v * N); },
      [&](int k, int v) {
        const Floats<N> b = load_floats<N>(p.bias + v * N);
#pragma unroll
        for (int i = 0; i < N; i++) kept[k].at[i] = from_float<T>(to_float(kept[k].at[i]) + b.at[i]);
        store_vec(row + v * N, kept[k]);
      });
}

// x = cap · tanh(x / cap).
template <class T, int N> DEVICE void soft_cap(const SoftCapParams<T> &p) {
  wait_for_previous_kernel();
  const float inverse = 1.0f / p.cap;
  T *row = p.x + int64_t(blockIdx.x) * p.cols;
  Vec<T, N> kept[kUnroll];
  each_vector(
      p.cols / N, [&](int k, int v) { kept[k] = load_vec<T, N>(row + v * N); },
      [&](int k, int v) {
#pragma unroll
        for (int i = 0; i < N; i++) {
          kept[k].at[i] = from_float<T>(p.cap * tanhf(to_float(kept[k].at[i]) * inverse));
        }
        store_vec(row + v * N, kept[k]);
      });
}

// out = x_factor · x + y_factor · y, or x_factor · x if there is no y.
template <class T, int N> DEVICE void scaled_sum(const ScaledSumParams<T> &p) {
  wait_for_previous_kernel();
  const int64_t row = int64_t(blockIdx.x) * p.cols;
  Vec<T, N> left[kUnroll], right[kUnroll];
  each_vector(
      p.cols / N,
      [&](int k, int v) {
        left[k] = load_vec<T, N>(p.x + row + v * N);
        if (p.y) right[k] = load_vec<T, N>(p.y + row + v * N);
      },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float value = p.x_factor * to_float(left[k].at[i]);
          o.at[i] = from_float<T>(p.y ? value + p.y_factor * to_float(right[k].at[i]) : value);
        }
        store_vec(p.out + row + v * N, o);
      });
}

#define ELEMENTWISE(T, N, suffix)                                                          \
  KERNEL(gate_##suffix, ActivationParams<T>) { activation<T, N, true>(p); }                \
  KERNEL(gate_clamped_##suffix, ClampedGateParams<T>) { gate_clamped<T, N>(p); }           \
  KERNEL(activate_##suffix, ActivationParams<T>) { activation<T, N, false>(p); }           \
  KERNEL(add_bias_##suffix, AddBiasParams<T>) { add_bias<T, N>(p); }                       \
  KERNEL(soft_cap_##suffix, SoftCapParams<T>) { soft_cap<T, N>(p); }                       \
  KERNEL(scaled_sum_##suffix, ScaledSumParams<T>) { scaled_sum<T, N>(p); }

ELEMENTWISE(float, 4, f32)
ELEMENTWISE(f16, 8, f16)
ELEMENTWISE(bf16, 8, bf16)
ELEMENTWISE(float, 1, plain_f32)
ELEMENTWISE(f16, 1, plain_f16)
ELEMENTWISE(bf16, 1, plain_bf16)
