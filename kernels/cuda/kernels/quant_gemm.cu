// out = x · wᵀ (+ bias) for packed weights and many rows, on the tensor cores; see
// weights.cuh and tile.cuh.
#include "tile.cuh"

// Parameters of the product for many rows.
// Kernels: quant_gemm/int4_gemm_*, quant_gemm/int8_gemm_*, quant_gemm/e4m3_gemm_*
// Kernels: quant_gemm/codes4_gemm_*, quant_gemm/q4_k_gemm_*
// Kernels: quant_gemm/q5_k_gemm_*, quant_gemm/q6_k_gemm_*
template <class T> struct QuantGemmParams {
  ProductParams<T> product;
  PackedWeightParams weight;
};

// Parameters of the reordering of x's columns.
// Kernels: quant_gemm/order_columns_*
template <class T> struct OrderColumnsParams {
  T *out;              // [rows, depth]
  const T *x;          // [rows, inputs]
  const int *columns;  // [depth]
  int inputs;
  int depth;
};

// The grid is [blocks of 128 rows, output tiles]: blocks that run together share the weights.
template <class T, class Format, class S> DEVICE void quant_gemm(const QuantGemmParams<T> &params) {
  const ProductParams<T> &p = params.product;
  const PackedWeightParams &w = params.weight;
  const int row0 = blockIdx.x * S::kRows;
  const PackedStage<Format> stage{w.data, w.scales, p.outputs, w.depth, w.group_bits, w.table};
  auto row = [&](int i) { return row0 + i < p.rows ? row0 + i : -1; };
  wait_for_previous_kernel();
  multiply_tile<T, PackedStage<Format>, S>(p, stage, w.depth, blockIdx.y * kTileOut, row, row, p.stride, 0);
}

// Copies the columns of x in the order in which the weight has them, with zeros where the weight
// has padding. One block copies one row.
template <class T> DEVICE void order_columns(const OrderColumnsParams<T> &p) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  for (int k = threadIdx.x; k < p.depth; k += blockDim.x) {
    const int column = p.columns[k];
    p.out[int64_t(blockIdx.x) * p.depth + k] = column < 0 ? from_float<T>(0.0f)
                                                          : p.x[int64_t(blockIdx.x) * p.inputs + column];
  }
}

#define QUANT_GEMM(T, Format, Tile, name) \
  BOUNDED_KERNEL(name, Tile::kThreads, 1, QuantGemmParams<T>) { quant_gemm<T, Format<T>, Tile>(p); }

#define ORDER_COLUMNS(T, suffix) \
  KERNEL(order_columns_##suffix, OrderColumnsParams<T>) { order_columns(p); }

QUANT_GEMM(bf16, Int4, WideTile, int4_gemm_bf16)
QUANT_GEMM(f16, Int4, WideTile, int4_gemm_f16)
QUANT_GEMM(bf16, Int8, WideTile, int8_gemm_bf16)
QUANT_GEMM(f16, Int8, WideTile, int8_gemm_f16)
QUANT_GEMM(bf16, Fp8, WideTile, e4m3_gemm_bf16)
QUANT_GEMM(f16, Fp8, WideTile, e4m3_gemm_f16)
QUANT_GEMM(bf16, Codes4, WideTile, codes4_gemm_bf16)
QUANT_GEMM(f16, Codes4, WideTile, codes4_gemm_f16)
QUANT_GEMM(bf16, Q4K, WideTile, q4_k_gemm_bf16)
QUANT_GEMM(f16, Q4K, WideTile, q4_k_gemm_f16)
QUANT_GEMM(bf16, Q5K, WideTile, q5_k_gemm_bf16)
QUANT_GEMM(f16, Q5K, WideTile, q5_k_gemm_f16)
QUANT_GEMM(bf16, Q6K, WideTile, q6_k_gemm_bf16)
QUANT_GEMM(f16, Q6K, WideTile, q6_k_gemm_f16)
QUANT_GEMM(bf16, Int8, FewStagesTile, int8_gemm_few_stages_bf16)
QUANT_GEMM(f16, Int8, FewStagesTile, int8_gemm_few_stages_f16)
QUANT_GEMM(bf16, Fp8, FewStagesTile, e4m3_gemm_few_stages_bf16)
QUANT_GEMM(f16, Fp8, FewStagesTile, e4m3_gemm_few_stages_f16)
QUANT_GEMM(bf16, Q5K, FewStagesTile, q5_k_gemm_few_stages_bf16)
QUANT_GEMM(f16, Q5K, FewStagesTile, q5_k_gemm_few_stages_f16)
QUANT_GEMM(bf16, Q6K, FewStagesTile, q6_k_gemm_few_stages_bf16)
QUANT_GEMM(f16, Q6K, FewStagesTile, q6_k_gemm_few_stages_f16)
ORDER_COLUMNS(bf16, bf16)
ORDER_COLUMNS(f16, f16)
