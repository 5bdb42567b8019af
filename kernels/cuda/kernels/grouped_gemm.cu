// One product per expert: out[r] = x[r] · w[expert of r]ᵀ for rows sorted by expert. The weights,
// [experts, outputs, inputs], are as they are stored, or packed with one expert after the other;
// see tile.cuh. Only the device knows how many rows an expert has, so the grid is large enough for
// any distribution of rows, and blocks without work end at once.
#include "experts.cuh"
#include "tile.cuh"

// Which rows belong to which expert.
struct ExpertsParams {
  const int *offsets;  // [experts + 1]: where the sorted rows of each expert begin
  int experts;
  RoutingParams routing;
};

// The product's biases, if it has any, are [experts, outputs].

// Parameters of the product with weights as they are stored.
// Kernels: grouped_gemm/grouped_narrow_*, grouped_gemm/grouped_wide_*, grouped_gemm/grouped_plain_*
template <class T> struct GroupedGemmParams {
  ProductParams<T> product;  // `rows` is not read
  const T *weights;          // [experts, outputs, inputs]
  ExpertsParams experts;
};

// Parameters of the product with packed weights.
// Kernels: grouped_gemm/grouped_int4_*, grouped_gemm/grouped_int8_*, grouped_gemm/grouped_e4m3_*
// Kernels: grouped_gemm/grouped_codes4_*, grouped_gemm/grouped_q4_k_*
// Kernels: grouped_gemm/grouped_q5_k_*, grouped_gemm/grouped_q6_k_*
template <class T> struct GroupedPackedParams {
  ProductParams<T> product;   // `rows` is not read
  PackedWeightParams weight;  // each expert is padded to a multiple of 16 outputs
  ExpertsParams experts;
};

// The grid is [pieces of rows, output tiles]. `make_stage(expert)` gives the expert's weights.
template <class T, class S, class MakeStage>
DEVICE void grouped(const ProductParams<T> &p, const ExpertsParams &e, int depth, MakeStage make_stage) {
  wait_for_previous_kernel();
  const ExpertRows work = find_expert_rows(e.offsets, e.experts, S::kRows, blockIdx.x);
  if (work.expert < 0) return;
  auto x_row = [&](int i) { return work.first + i < work.end ? x_row_of(e.routing, work.first + i) : -1; };
  auto out_row = [&](int i) { return out_row_of(e.routing, work.first + i); };
  const auto stage = make_stage(work.expert);
  // An index takes one register while the tile is computed, and a pointer would take two.
  const int bias0 = work.expert * p.outputs;
  multiply_tile<T, decltype(make_stage(0)), S>(p, stage, depth, blockIdx.y * kTileOut, x_row, out_row,
                                               p.outputs, bias0);
}

// Words of scales of one expert's output tile.
DEVICE int64_t groups_of(const PackedWeightParams &w) { return ((w.depth - 1) >> w.group_bits) + 1; }

// The plain version: one warp computes one element of the result; the grid is [output warps, sorted
// rows]. `weight(expert, output, k)` is an element of the weights.
template <class T, class Weight>
DEVICE void grouped_plain(const ProductParams<T> &p, const ExpertsParams &e, Weight weight) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp, i = blockIdx.y;
  const int output = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  let_next_kernel_start();
  if (output >= p.outputs || i >= e.offsets[e.experts]) return;
  int expert = 0;
  while (e.offsets[expert + 1] <= i) expert++;
  const T *x = p.x + int64_t(x_row_of(e.routing, i)) * p.inputs;
  float sum = 0.0f;
  for (int k = lane; k < p.inputs; k += kWarp) sum += to_float(x[k]) * weight(expert, output, k);
  sum = warp_reduce(sum, Add());
  if (lane != 0) return;
  if (p.bias) sum += p.bias[expert * p.outputs + output];
  p.out[int64_t(out_row_of(e.routing, i)) * p.outputs + output] = from_float<T>(sum);
}

template <class T, class S> DEVICE void grouped_stored(const GroupedGemmParams<T> &params) {
  const ProductParams<T> &p = params.product;
  grouped<T, S>(p, params.experts, p.inputs, [&](int expert) {
    return StoredStage<T>{params.weights + int64_t(expert) * p.outputs * p.inputs, p.outputs, p.inputs};
  });
}

// Bytes of one output of a packed weight.
template <class Format> DEVICE int64_t output_bytes(const PackedWeightParams &w) {
  return int64_t(w.depth) * Format::kLoads * kTileBytes / (kTileOutputs * kPaddedTo);
}

template <class T, class Format, class S> DEVICE void grouped_packed(const GroupedPackedParams<T> &params) {
  const ProductParams<T> &p = params.product;
  const PackedWeightParams &w = params.weight;
  grouped<T, S>(p, params.experts, w.depth, [&](int expert) {
    const int64_t first_output = int64_t(expert) * ceil_div(p.outputs, kTileOutputs) * kTileOutputs;
    return PackedStage<Format>{w.data + first_output * output_bytes<Format>(w),
                               w.scales + first_output * groups_of(w), p.outputs, w.depth, w.group_bits,
                               w.table};
  });
}

template <class T> DEVICE void grouped_stored_plain(const GroupedGemmParams<T> &params) {
  const ProductParams<T> &p = params.product;
  grouped_plain<T>(p, params.experts, [&](int expert, int output, int k) {
    return to_float(params.weights[(int64_t(expert) * p.outputs + output) * p.inputs + k]);
  });
}

template <class T, class Format> DEVICE void grouped_packed_plain(const GroupedPackedParams<T> &params) {
  const ProductParams<T> &p = params.product;
  const PackedWeightParams &w = params.weight;
  const int64_t padded = ceil_div(p.outputs, kTileOutputs) * kTileOutputs;
  grouped_plain<T>(p, params.experts, [&](int expert, int output, int k) {
    const int64_t group = (expert * padded + output) / kTileOutputs * groups_of(w) + (k >> w.group_bits);
    const uint32_t word = w.scales[group * kTileOutputs + output % kTileOutputs];
    const uint8_t *data = w.data + expert * padded * output_bytes<Format>(w);
    return Format::element(data, output, k, w.depth, word, w.table) * Format::group(word).scale;
  });
}

// Narrow tiles are for decoding, where an expert has few rows and its weights are read once; wide
// tiles are for prefill, with fewer stages where a block has too little shared memory.
#define GROUPED(T, suffix)                                                                             \
  BOUNDED_KERNEL(grouped_narrow_##suffix, kTileThreads, 2, GroupedGemmParams<T>) {                     \
    grouped_stored<T, NarrowTile>(p);                                                                  \
  }                                                                                                    \
  BOUNDED_KERNEL(grouped_wide_##suffix, kTileThreads, 1, GroupedGemmParams<T>) {                       \
    grouped_stored<T, WideTile>(p);                                                                    \
  }                                                                                                    \
  BOUNDED_KERNEL(grouped_wide_few_stages_##suffix, kTileThreads, 1, GroupedGemmParams<T>) {            \
    grouped_stored<T, FewStagesTile>(p);                                                               \
  }

#define GROUPED_PACKED(T, Format, Tile, blocks, name)                         \
  BOUNDED_KERNEL(name, kTileThreads, blocks, GroupedPackedParams<T>) {        \
    grouped_packed<T, Format<T>, Tile>(p);                                    \
  }

// Four stages of four bits fit the shared memory of every GPU.
#define PACKED(T, suffix)                                                           \
  GROUPED_PACKED(T, Int4, NarrowTile, 2, grouped_int4_narrow_##suffix)              \
  GROUPED_PACKED(T, Int4, WideTile, 1, grouped_int4_wide_##suffix)                  \
  GROUPED_PACKED(T, Int8, NarrowTile, 2, grouped_int8_narrow_##suffix)              \
  GROUPED_PACKED(T, Int8, WideTile, 1, grouped_int8_wide_##suffix)                  \
  GROUPED_PACKED(T, Int8, FewStagesTile, 1, grouped_int8_wide_few_stages_##suffix)  \
  GROUPED_PACKED(T, Fp8, NarrowTile, 2, grouped_e4m3_narrow_##suffix)               \
  GROUPED_PACKED(T, Fp8, WideTile, 1, grouped_e4m3_wide_##suffix)                   \
  GROUPED_PACKED(T, Fp8, FewStagesTile, 1, grouped_e4m3_wide_few_stages_##suffix)   \
  GROUPED_PACKED(T, Codes4, NarrowTile, 2, grouped_codes4_narrow_##suffix)          \
  GROUPED_PACKED(T, Codes4, WideTile, 1, grouped_codes4_wide_##suffix)              \
  GROUPED_PACKED(T, Q4K, NarrowTile, 2, grouped_q4_k_narrow_##suffix)               \
  GROUPED_PACKED(T, Q4K, WideTile, 1, grouped_q4_k_wide_##suffix)                   \
  GROUPED_PACKED(T, Q5K, NarrowTile, 2, grouped_q5_k_narrow_##suffix)               \
  GROUPED_PACKED(T, Q5K, WideTile, 1, grouped_q5_k_wide_##suffix)                   \
  GROUPED_PACKED(T, Q5K, FewStagesTile, 1, grouped_q5_k_wide_few_stages_##suffix)   \
  GROUPED_PACKED(T, Q6K, NarrowTile, 2, grouped_q6_k_narrow_##suffix)               \
  GROUPED_PACKED(T, Q6K, WideTile, 1, grouped_q6_k_wide_##suffix)                   \
  GROUPED_PACKED(T, Q6K, FewStagesTile, 1, grouped_q6_k_wide_few_stages_##suffix)

#define GROUPED_PLAIN(T, suffix)                                                                       \
  KERNEL(grouped_plain_##suffix, GroupedGemmParams<T>) { grouped_stored_plain(p); }                    \
  KERNEL(grouped_int4_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Int4<T>>(p); } \
  KERNEL(grouped_int8_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Int8<T>>(p); } \
  KERNEL(grouped_e4m3_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Fp8<T>>(p); }  \
  KERNEL(grouped_codes4_plain_##suffix, GroupedPackedParams<T>) {                                      \
    grouped_packed_plain<T, Codes4<T>>(p);                                                             \
  }                                                                                                    \
  KERNEL(grouped_q4_k_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Q4K<T>>(p); }  \
  KERNEL(grouped_q5_k_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Q5K<T>>(p); }  \
  KERNEL(grouped_q6_k_plain_##suffix, GroupedPackedParams<T>) { grouped_packed_plain<T, Q6K<T>>(p); }

GROUPED(bf16, bf16)
GROUPED(f16, f16)
PACKED(bf16, bf16)
PACKED(f16, f16)
GROUPED_PLAIN(float, f32)
GROUPED_PLAIN(bf16, bf16)
GROUPED_PLAIN(f16, f16)
