// out = x · wᵀ (+ bias) for weights [outputs, inputs] as they are stored.
//
// The fast kernels are for 16-bit types and few rows; see skinny.cuh. The plain kernels take any
// type, shape and number of rows.
#include "reduce.cuh"
#include "skinny.cuh"

// Parameters of the product for few rows.
// Kernels: gemv/gemv8_*, gemv/gemv16_*
template <class T> struct GemvParams {
  ProductParams<T> product;
  const T *weights;  // [outputs, inputs]
  SliceParams slices;
};

// Parameters of the plain product.
// Kernels: gemv/gemv_plain_*
template <class T> struct GemvPlainParams {
  ProductParams<T> product;
  const T *weights;  // [outputs, inputs]
};

// One warp computes one element of the result.
template <class T> DEVICE void gemv_plain(const ProductParams<T> &p, const T *weights) {
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
  p.out[int64_t(row) * p.stride + output] = from_float<T>(sum);
}

// A weight as it is stored has no scales: all of k is one group.
constexpr int kOneGroup = 30;

#define GEMV(T, suffix, Tiles, name)                                                               \
  BOUNDED_KERNEL(name##suffix, kSkinnyThreads, 2, GemvParams<T>) {                                 \
    skinny<T, StoredRows<T>, Tiles>(p.product, p.weights, nullptr, kOneGroup, nullptr, p.slices,     \
                                         CodeTable{});                                             \
  }

#define GEMV_PLAIN(T, suffix) \
  KERNEL(gemv_plain_##suffix, GemvPlainParams<T>) { gemv_plain(p.product, p.weights); }

GEMV(bf16, bf16, 1, gemv8_)
GEMV(bf16, bf16, 2, gemv16_)
GEMV(f16, f16, 1, gemv8_)
GEMV(f16, f16, 2, gemv16_)
GEMV_PLAIN(float, f32)
GEMV_PLAIN(bf16, bf16)
GEMV_PLAIN(f16, f16)
