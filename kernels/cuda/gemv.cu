// out = x · wᵀ (+ bias, + residual) for weights [outputs, inputs] as they are stored.
//
// The fast kernels are for 16 bits and few rows; see skinny.cuh. The plain ones take any type, shape and number of rows.
#include "reduce.cuh"
#include "skinny.cuh"

// One warp per element of the result.
template <class T> DEVICE void gemv_plain(const Operands<T> &p, const T *weights) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp;
  const int64_t index = int64_t(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  let_next_kernel_start();
  if (index >= int64_t(p.rows) * p.outputs) return;
  const int row = int(index / p.outputs), output = int(index % p.outputs);
  const T *x = p.x + int64_t(row) * p.inputs, *w = weights + int64_t(output) * p.inputs;
  float sum = 0.0f;
  for (int k = lane; k < p.inputs; k += kWarp) sum += to_float(x[k]) * to_float(w[k]);
  sum = warp_reduce(sum, Add());
  if (lane != 0) return;
  if (p.bias) sum += p.bias[output];
  if (p.residual) sum += to_float(p.residual[index]);
  p.out[index] = from_float<T>(sum);
}

#define GEMV(T, suffix, Tiles, name)                                                                                              \
  KERNEL __launch_bounds__(kSkinnyThreads, 2) name##suffix(T *out, const T *x, const T *weights, const float *bias,               \
                                                           const T *residual, float *partials, uint32_t *counters, int rows,      \
                                                           int outputs, int inputs, int depth, int length) {                      \
    const Operands<T> p{out, x, bias, residual, rows, outputs, inputs};                                                           \
    skinny<T, StoredRows<T>, Tiles>(p, weights, nullptr, 30, nullptr, Slices{partials, counters, length, depth});              \
  }                                                                                                                               \
  REGISTER(name##suffix)

#define GEMV_PLAIN(T, suffix)                                                                                                     \
  KERNEL gemv_plain_##suffix(T *out, const T *x, const T *weights, const float *bias, const T *residual, int rows, int outputs,   \
                             int inputs) {                                                                                        \
    gemv_plain<T>({out, x, bias, residual, rows, outputs, inputs}, weights);                                                      \
  }                                                                                                                               \
  REGISTER(gemv_plain_##suffix)

GEMV(bf16, bf16, 1, gemv8_)
GEMV(bf16, bf16, 2, gemv16_)
GEMV(f16, f16, 1, gemv8_)
GEMV(f16, f16, 2, gemv16_)
GEMV_PLAIN(float, f32)
GEMV_PLAIN(bf16, bf16)
GEMV_PLAIN(f16, f16)
