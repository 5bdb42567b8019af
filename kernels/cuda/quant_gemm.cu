// out = x · wᵀ (+ bias, + residual) for packed weights and many rows, on the tensor cores; see weights.cuh and tile.cuh.
#include "tile.cuh"

using Wide = Shape<128, 4, 2>;
constexpr int kStages = 4;

// The grid is [blocks of 128 rows, output tiles]: blocks that run together share the weights.
template <class T, class Format>
DEVICE void quant_gemm(const Operands<T> &p, const uint8_t *weights, const uint32_t *scales, int depth, int group_bits) {
  const int row0 = blockIdx.x * Wide::kRows;
  const PackedStage<Format> stage{weights, scales, p.outputs, depth, group_bits};
  auto row = [&](int i) { return row0 + i < p.rows ? row0 + i : -1; };
  wait_for_previous_kernel();
  multiply_tile<T, PackedStage<Format>, Wide, kStages>(p, stage, depth, blockIdx.y * kTileOut, row, row);
}

// The columns of x in the order in which the weights have them, zeros where they have padding. One block per row.
template <class T> DEVICE void order_columns(T *out, const T *x, const int *columns, int inputs, int depth) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int k = threadIdx.x; k < depth; k += blockDim.x) {
    const int column = columns[k];
    out[int64_t(blockIdx.x) * depth + k] = column < 0 ? from_float<T>(0.0f) : x[int64_t(blockIdx.x) * inputs + column];
  }
}

#define QUANT_GEMM(T, Format, name)                                                                                            \
  KERNEL __launch_bounds__(Wide::kThreads, 1)                                                                                  \
      name(T *out, const T *x, const uint8_t *weights, const uint32_t *scales, const float *bias, const T *residual, int rows, \
           int outputs, int inputs, int depth, int group_bits) {                                                                    \
    quant_gemm<T, Format<T>>({out, x, bias, residual, rows, outputs, inputs}, weights, scales, depth, group_bits);                  \
  }                                                                                                                            \
  REGISTER(name)

#define ORDER_COLUMNS(T, suffix)                                                                        \
  KERNEL order_columns_##suffix(T *out, const T *x, const int *columns, int inputs, int depth) {        \
    order_columns<T>(out, x, columns, inputs, depth);                                                   \
  }                                                                                                     \
  REGISTER(order_columns_##suffix)

QUANT_GEMM(bf16, Int4, int4_gemm_bf16)
QUANT_GEMM(f16, Int4, int4_gemm_f16)
QUANT_GEMM(bf16, Int8, int8_gemm_bf16)
QUANT_GEMM(f16, Int8, int8_gemm_f16)
QUANT_GEMM(bf16, Fp8, e4m3_gemm_bf16)
QUANT_GEMM(f16, Fp8, e4m3_gemm_f16)
ORDER_COLUMNS(bf16, bf16)
ORDER_COLUMNS(f16, f16)
