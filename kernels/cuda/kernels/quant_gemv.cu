// out = x · wᵀ (+ bias) for packed weights of 4 and 8 bits; see weights.cuh.
//
// The fast kernels are for few rows; see skinny.cuh. The plain kernels take any type and number of
// rows.
#include "reduce.cuh"
#include "skinny.cuh"

// Parameters of the product for few rows.
// Kernels: quant_gemv/int4_gemv*, quant_gemv/int8_gemv*, quant_gemv/e4m3_gemv*
// Kernels: quant_gemv/codes4_gemv*, quant_gemv/q4_k_gemv*
// Kernels: quant_gemv/q5_k_gemv*, quant_gemv/q6_k_gemv*
template <class T> struct QuantGemvParams {
  ProductParams<T> product;
  PackedWeightParams weight;
  const int *columns;  // null or [depth]; see `QuantPlainParams`
  SliceParams slices;
};

// Parameters of the plain product.
// Kernels: quant_gemv/int4_plain_*, quant_gemv/int8_plain_*, quant_gemv/e4m3_plain_*
// Kernels: quant_gemv/codes4_plain_*, quant_gemv/q4_k_plain_*
// Kernels: quant_gemv/q5_k_plain_*, quant_gemv/q6_k_plain_*
template <class T> struct QuantPlainParams {
  ProductParams<T> product;
  PackedWeightParams weight;
  // Null or [depth]: the column of x that each column of the weight is multiplied with; negative
  // for padding.
  const int *columns;
};

// One warp computes one element of the result.
template <class T, class Format> DEVICE void quant_plain(const QuantPlainParams<T> &params) {
  const ProductParams<T> &p = params.product;
  const PackedWeightParams &w = params.weight;
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp;
  const int64_t index = int64_t(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  let_next_kernel_start();
  if (index >= int64_t(p.rows) * p.outputs) return;
  const int row = int(index / p.outputs), output = int(index % p.outputs);
  const T *x = p.x + int64_t(row) * p.inputs;
  const int64_t groups = ((w.depth - 1) >> w.group_bits) + 1;
  const uint32_t *own_scales = w.scales + output / kTileOutputs * groups * kTileOutputs +
                               output % kTileOutputs;
  float sum = 0.0f;
  for (int k = lane; k < w.depth; k += kWarp) {
    const int column = params.columns ? params.columns[k] : k < p.inputs ? k : -1;
    if (column < 0) continue;
    const uint32_t word = own_scales[(k >> w.group_bits) * kTileOutputs];
    const float value = Format::element(w.data, output, k, w.depth, word, w.table);
    sum += to_float(x[column]) * value * Format::group(word).scale;
  }
  sum = warp_reduce(sum, Add());
  if (lane != 0) return;
  if (p.bias) sum += p.bias[output];
  p.out[int64_t(row) * p.stride + output] = from_float<T>(sum);
}

#define QUANT_GEMV(T, Format, Tiles, name)                                                  \
  BOUNDED_KERNEL(name, kSkinnyThreads, 2, QuantGemvParams<T>) {                             \
    skinny<T, PackedTiles<Format<T>>, Tiles>(p.product, p.weight.data, p.weight.scales,     \
                                             p.weight.group_bits, p.columns, p.slices,      \
                                             p.weight.table);                               \
  }

#define QUANT_PLAIN(T, Format, name) \
  KERNEL(name, QuantPlainParams<T>) { quant_plain<T, Format<T>>(p); }

#define FORMAT(Format, name)                        \
  QUANT_GEMV(bf16, Format, 1, name##_gemv8_bf16)    \
  QUANT_GEMV(bf16, Format, 2, name##_gemv16_bf16)   \
  QUANT_GEMV(f16, Format, 1, name##_gemv8_f16)      \
  QUANT_GEMV(f16, Format, 2, name##_gemv16_f16)     \
  QUANT_PLAIN(float, Format, name##_plain_f32)      \
  QUANT_PLAIN(bf16, Format, name##_plain_bf16)      \
  QUANT_PLAIN(f16, Format, name##_plain_f16)

FORMAT(Int4, int4)
FORMAT(Int8, int8)
FORMAT(Fp8, e4m3)
FORMAT(Codes4, codes4)
FORMAT(Q4K, q4_k)
FORMAT(Q5K, q5_k)
FORMAT(Q6K, q6_k)
