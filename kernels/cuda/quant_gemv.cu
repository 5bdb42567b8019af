// out = x · wᵀ (+ bias, + residual) for packed weights of 4 and 8 bits; see weights.cuh.
//
// The fast kernels are for few rows; see skinny.cuh. The plain ones take any type and number of rows.
#include "reduce.cuh"
#include "skinny.cuh"

// One warp per element of the result. Column k of the weights meets column `columns[k]` of x, or none if that is negative.
template <class T, class Format>
DEVICE void quant_plain(const Operands<T> &p, const uint8_t *weights, const uint32_t *scales, const int *columns, int group_bits, int depth) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kWarp;
  const int64_t index = int64_t(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  let_next_kernel_start();
  if (index >= int64_t(p.rows) * p.outputs) return;
  const int row = int(index / p.outputs), output = int(index % p.outputs);
  const T *x = p.x + int64_t(row) * p.inputs;
  const int64_t groups = ((depth - 1) >> group_bits) + 1;
  const uint32_t *own_scales = scales + output / kTileOutputs * groups * kTileOutputs + output % kTileOutputs;
  float sum = 0.0f;
  for (int k = lane; k < depth; k += kWarp) {
    const int column = columns ? columns[k] : k < p.inputs ? k : -1;
    if (column < 0) continue;
    const uint32_t word = own_scales[(k >> group_bits) * kTileOutputs];
    const float value = Format::element(weights, output, k, depth, Format::minus_zero_of(word));
    sum += to_float(x[column]) * value * Format::group(word).scale;
  }
  sum = warp_reduce(sum, Add());
  if (lane != 0) return;
  if (p.bias) sum += p.bias[output];
  if (p.residual) sum += to_float(p.residual[index]);
  p.out[index] = from_float<T>(sum);
}

#define QUANT_GEMV(T, Format, Tiles, name)                                                                                      \
  KERNEL __launch_bounds__(kSkinnyThreads, 2)                                                                                   \
      name(T *out, const T *x, const uint8_t *weights, const uint32_t *scales, const int *columns, const float *bias,           \
           const T *residual, float *partials, uint32_t *counters, int rows, int outputs, int inputs, int depth, int group_bits,     \
           int length) {                                                                                                        \
    const Operands<T> p{out, x, bias, residual, rows, outputs, inputs};                                                         \
    const Slices s{partials, counters, length, depth};                                                                          \
    skinny<T, PackedTiles<Format<T>>, Tiles>(p, weights, scales, group_bits, columns, s);                                            \
  }                                                                                                                             \
  REGISTER(name)

#define QUANT_PLAIN(T, Format, name)                                                                                            \
  KERNEL name(T *out, const T *x, const uint8_t *weights, const uint32_t *scales, const int *columns, const float *bias,        \
              const T *residual, int rows, int outputs, int inputs, int depth, int group_bits) {                                     \
    quant_plain<T, Format<T>>({out, x, bias, residual, rows, outputs, inputs}, weights, scales, columns, group_bits, depth);         \
  }                                                                                                                             \
  REGISTER(name)

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
