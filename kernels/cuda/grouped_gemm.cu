// A product per expert: out[r] = x[r] · w[expert of r]ᵀ for rows sorted by expert. weights [experts, outputs, inputs] as they are stored, or packed int4, one
// expert after the other; see tile.cuh. No host knows how many rows an expert has: the grid is large enough for any counts, and blocks without work leave.
#include "experts.cuh"
#include "tile.cuh"

// For a step of decoding, where an expert has few rows and its weights are read once; and for prefill.
using Narrow = Shape<16, 8, 1>;
using Wide = Shape<128, 4, 2>;
constexpr int kStages = 4;

// The grid is [pieces of rows, output tiles].
template <class T, class S, class MakeStage>
DEVICE void grouped(const Operands<T> &p, const int *offsets, int experts, const Routing &routing, int depth, MakeStage make_stage) {
  wait_for_previous_kernel();
  const ExpertRows work = find_expert_rows(offsets, experts, S::kRows, blockIdx.x);
  if (work.expert < 0) return;
  auto x_row = [&](int i) { return work.first + i < work.end ? routing.x_row(work.first + i) : -1; };
  auto out_row = [&](int i) { return routing.out_row(work.first + i); };
  const auto stage = make_stage(work.expert);
  multiply_tile<T, decltype(make_stage(0)), S, kStages>(p, stage, depth, blockIdx.y * kTileOut, x_row, out_row);
}

// The obvious version: one warp per element of the result; the grid is [output warps, sorted rows]. weight(expert, output, k) is an element.
template <class T, class Weight>
DEVICE void grouped_plain(const Operands<T> &p, const int *offsets, int experts, const Routing &routing, Weight weight) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp, output = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp, i = blockIdx.y;
  let_next_kernel_start();
  if (output >= p.outputs || i >= offsets[experts]) return;
  int expert = 0;
  while (offsets[expert + 1] <= i) expert++;
  const T *x = p.x + int64_t(routing.x_row(i)) * p.inputs;
  float sum = 0.0f;
  for (int k = lane; k < p.inputs; k += kWarp) sum += to_float(x[k]) * weight(expert, output, k);
  sum = warp_reduce(sum, Add());
  if (lane == 0) p.out[int64_t(routing.out_row(i)) * p.outputs + output] = from_float<T>(sum);
}

#define GROUPED(T, S, blocks, name)                                                                                                    \
  KERNEL __launch_bounds__(S::kThreads, blocks)                                                                                    \
      name(T *out, const T *x, const T *weights, const int *offsets, const int *sorted_rows, int experts, int top_k,             \
           int x_sorted, int out_sorted, int outputs, int inputs) {                                                              \
    const Operands<T> p{out, x, nullptr, nullptr, 0, outputs, inputs};                                                           \
    grouped<T, S>(p, offsets, experts, {sorted_rows, top_k, x_sorted, out_sorted}, inputs, [&](int expert) {                     \
      return StoredStage<T>{weights + int64_t(expert) * outputs * inputs, outputs, inputs};                                      \
    });                                                                                                                          \
  }                                                                                                                              \
  REGISTER(name)

#define GROUPED_INT4(T, S, blocks, name)                                                                                         \
  KERNEL __launch_bounds__(S::kThreads, blocks)                                                                                  \
      name(T *out, const T *x, const uint8_t *weights, const uint32_t *scales, const int *offsets, const int *sorted_rows,       \
           int experts, int top_k, int x_sorted, int out_sorted, int outputs, int inputs, int depth, int group_bits) {           \
    const Operands<T> p{out, x, nullptr, nullptr, 0, outputs, inputs};                                                           \
    grouped<T, S>(p, offsets, experts, {sorted_rows, top_k, x_sorted, out_sorted}, depth, [&](int expert) {                      \
      const int64_t of_expert = int64_t(expert) * ceil_div(outputs, kTileOutputs) * kTileOutputs;                                \
      return PackedStage<Int4<T>>{weights + of_expert * (depth / 2), scales + of_expert * (((depth - 1) >> group_bits) + 1),     \
                                  outputs, depth, group_bits};                                                                   \
    });                                                                                                                          \
  }                                                                                                                              \
  REGISTER(name)

#define GROUPED_PLAIN(T, suffix)                                                                                                 \
  KERNEL grouped_plain_##suffix(T *out, const T *x, const T *weights, const int *offsets, const int *sorted_rows, int experts,   \
                                int top_k, int x_sorted, int out_sorted, int outputs, int inputs) {                              \
    const Operands<T> p{out, x, nullptr, nullptr, 0, outputs, inputs};                                                           \
    grouped_plain<T>(p, offsets, experts, {sorted_rows, top_k, x_sorted, out_sorted}, [&](int expert, int output, int k) {       \
      return to_float(weights[(int64_t(expert) * outputs + output) * inputs + k]);                                               \
    });                                                                                                                          \
  }                                                                                                                              \
  REGISTER(grouped_plain_##suffix)

#define GROUPED_INT4_PLAIN(T, suffix)                                                                                            \
  KERNEL grouped_int4_plain_##suffix(T *out, const T *x, const uint8_t *weights, const uint32_t *scales, const int *offsets,     \
                                     const int *sorted_rows, int experts, int top_k, int x_sorted, int out_sorted, int outputs,  \
                                     int inputs, int depth, int group_bits) {                                                    \
    const Operands<T> p{out, x, nullptr, nullptr, 0, outputs, inputs};                                                           \
    const int64_t groups = ((depth - 1) >> group_bits) + 1, padded = ceil_div(outputs, kTileOutputs) * kTileOutputs;             \
    grouped_plain<T>(p, offsets, experts, {sorted_rows, top_k, x_sorted, out_sorted}, [&](int expert, int output, int k) {       \
      const int64_t tile = (expert * padded + output) / kTileOutputs * groups + (k >> group_bits);                               \
      const uint32_t word = scales[tile * kTileOutputs + output % kTileOutputs];                                                 \
      const uint8_t *of_expert = weights + expert * padded * (depth / 2);                                                        \
      return Int4<T>::element(of_expert, output, k, depth, Int4<T>::minus_zero_of(word)) * Int4<T>::group(word).scale;           \
    });                                                                                                                          \
  }                                                                                                                              \
  REGISTER(grouped_int4_plain_##suffix)

GROUPED(bf16, Narrow, 2, grouped_narrow_bf16)
GROUPED(f16, Narrow, 2, grouped_narrow_f16)
GROUPED(bf16, Wide, 1, grouped_wide_bf16)
GROUPED(f16, Wide, 1, grouped_wide_f16)
GROUPED_INT4(bf16, Narrow, 2, grouped_int4_narrow_bf16)
GROUPED_INT4(f16, Narrow, 2, grouped_int4_narrow_f16)
GROUPED_INT4(bf16, Wide, 1, grouped_int4_wide_bf16)
GROUPED_INT4(f16, Wide, 1, grouped_int4_wide_f16)
GROUPED_PLAIN(float, f32)
GROUPED_PLAIN(bf16, bf16)
GROUPED_PLAIN(f16, f16)
GROUPED_INT4_PLAIN(float, f32)
GROUPED_INT4_PLAIN(bf16, bf16)
GROUPED_INT4_PLAIN(f16, f16)
