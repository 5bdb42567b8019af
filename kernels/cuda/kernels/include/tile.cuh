// One tile of out = x · wᵀ on the tensor cores, for many rows: 128 outputs by `Rows` rows.
//
// Asynchronous copies bring weights and activations to shared memory, several steps of 64 k ahead.
// Weights keep their format until they are in registers, so that narrow ones stay narrow. A sum
// runs along k in order, whatever the tile, so a row's result does not depend on its neighbors.
#pragma once
#include "weights.cuh"

// Outputs of a tile.
EXPORT_CONSTANT int kTileOut = 128;
// k of a step.
EXPORT_CONSTANT int kStep = 64;
// Steps in shared memory at the same time, and those in kernels for GPUs whose blocks have 99 KiB
// of shared memory. Their number has no influence on results.
EXPORT_CONSTANT int kTileStages = 4;
EXPORT_CONSTANT int kFewTileStages = 3;
// Rows of the two kinds of tiles.
EXPORT_CONSTANT int kNarrowRows = 16;
EXPORT_CONSTANT int kWideRows = 128;
EXPORT_CONSTANT int kTileThreads = 256;
// Bytes of a stage's group words: two words per output if the weights are packed.
EXPORT_FUNCTION int tile_group_bytes(int weight_bits) { return weight_bits < 16 ? kTileOut * 2 * 4 : 0; }
// Bytes of dynamic shared memory: in each stage the weights, their group words, and the rows of x.
EXPORT_FUNCTION int tile_shared_bytes(int weight_bits, int rows, int stages) {
  return stages * (kTileOut * kStep * weight_bits / 8 + tile_group_bytes(weight_bits) + rows * kStep * 2);
}

// Weights of 16 bits as they are stored, [outputs, inputs].
template <class T> struct StoredStage {
  using UnitOrder = ByChunk;
  static constexpr bool kScaled = false;
  static constexpr int kDepth = kChunk, kBytes = kTileOut * kStep * 2;
  struct Fragment {
    uint4 upper, lower;
  };
  const T *weights;
  int outputs, inputs;

  template <int Threads> DEVICE void copy(unsigned char *to, int output0, int k) const {
    constexpr int kRowsAtOnce = Threads / 8;
    const int first = threadIdx.x / 8, unit = threadIdx.x % 8, at = k + unit * 8;
    unsigned char *to_unit = to + (first * 8 + UnitOrder::place(first, unit)) * 16;
    const T *from = weights + int64_t(output0 + first) * inputs + at;
#pragma unroll
    for (int row = 0; row < kTileOut; row += kRowsAtOnce) {
      const bool valid = output0 + first + row < outputs && at < inputs;
      copy_async16(to_unit + row * 128, valid ? from : weights, valid);
      from += kRowsAtOnce * inputs;
    }
  }
  DEVICE static Fragment read(const unsigned char *from, int tile, int chunk) {
    const int lane = threadIdx.x % kWarp, row = tile * kTileOutputs + lane / 4,
              unit = UnitOrder::place(row, UnitOrder::unit(chunk, lane % 4));
    const uint4 *units = reinterpret_cast<const uint4 *>(from) + unit;
    return {units[row * 8], units[(row + 8) * 8]};
  }
  static constexpr uint32_t kMagic = 0;
  DEVICE void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t, uint32_t (&a)[4]) const {
    const bool first = instruction == 0;
    a[0] = first ? f.upper.x : f.upper.z;
    a[1] = first ? f.lower.x : f.lower.z;
    a[2] = first ? f.upper.y : f.upper.w;
    a[3] = first ? f.lower.y : f.lower.w;
  }
  DEVICE static GroupScale group_of(uint32_t) { return {1.0f, 0}; }
  template <int Threads> DEVICE void copy_groups(uint32_t *, int, int) const {}
  DEVICE bool ends_group(int, int) const { return false; }
};

// Packed weights; see weights.cuh.
template <class Format> struct PackedStage {
  using UnitOrder = typename Format::UnitOrder;
  static constexpr bool kScaled = true;
  static constexpr int kDepth = kPaddedTo, kTiles = kTileOut / kTileOutputs,
                       kBytes = kTiles * Format::kLoads * kTileBytes;
  static_assert(kDepth == kStep, "a step has one fragment of each tile");
  using Fragment = typename Format::Fragment;
  const uint8_t *weights;
  const uint32_t *scales;  // [outputs / 16][groups][16]
  int outputs, depth, group_bits;
  CodeTable table;

  template <int Threads> DEVICE void copy(unsigned char *to, int output0, int k) const {
#pragma unroll
    for (unsigned i = threadIdx.x; i < kBytes / 16; i += Threads) {
      const int load = i / kWarp % Format::kLoads, output = output0 + i / kWarp / Format::kLoads * kTileOutputs;
      const bool valid = output < outputs;
      const int64_t from = valid ? Format::place(output, k, load, i % kWarp, depth) : 0;
      copy_async16(to + i * 16, weights + from, valid);
    }
  }
  // The words of the groups that the step's two chunks belong to: [tiles][2][16].
  template <int Threads> DEVICE void copy_groups(uint32_t *to, int output0, int k) const {
    const int groups = ((depth - 1) >> group_bits) + 1;
#pragma unroll
    for (unsigned i = threadIdx.x; i < kTiles * 2 * 4; i += Threads) {
      const int output = output0 + i / 8 * kTileOutputs, at = (k + i / 4 % 2 * kChunk) >> group_bits;
      const bool valid = output < outputs;
      const int64_t from = (int64_t(output / kTileOutputs) * groups + at) * kTileOutputs + i % 4 * 4;
      copy_async16(to + i * 4, scales + (valid ? from : 0), valid);
    }
  }
  DEVICE static Fragment read(const unsigned char *from, int tile, int) {
    return Format::read(reinterpret_cast<const uint4 *>(from) + tile * Format::kLoads * kWarp +
                        threadIdx.x % kWarp);
  }
  static constexpr uint32_t kMagic = Format::kMagic;
  DEVICE void unpack(const Fragment &f, int instruction, uint32_t upper, uint32_t lower, uint32_t magic,
                     uint32_t (&a)[4]) const {
    Format::unpack(f, instruction, upper, lower, magic, table, a);
  }
  DEVICE static GroupScale group_of(uint32_t word) { return Format::group(word); }
  // Whether chunk `c` of a step, which is at k, is the last of its group.
  DEVICE bool ends_group(int c, int k) const {
    if (c == 0 && Format::kLeastGroup == kStep) return false;
    return ((k + kChunk) & ((1 << group_bits) - 1)) == 0 || k + kChunk >= depth;
  }
};

// The division of a tile among warps: a warp has 128 / WarpsM outputs and Rows / WarpsN rows.
template <int RowsOfTile, int WarpsM_, int WarpsN_, int Stages> struct TileShape {
  static constexpr int kRows = RowsOfTile, kWarpsM = WarpsM_, kWarpsN = WarpsN_, kStages = Stages,
                       kThreads = WarpsM_ * WarpsN_ * kWarp;
  static constexpr int kTilesM = kTileOut / WarpsM_ / kTileOutputs, kTilesN = RowsOfTile / WarpsN_ / 8;
  static_assert(kThreads == kTileThreads, "the host launches this many threads");
};
using NarrowTile = TileShape<kNarrowRows, 8, 1, kTileStages>;
using WideTile = TileShape<kWideRows, 4, 2, kTileStages>;
using FewStagesTile = TileShape<kWideRows, 4, 2, kFewTileStages>;

// Bits of a weight in shared memory.
template <class W> constexpr int kWeightBits = W::kBytes * 8 / (kTileOut * kStep);
template <class W> constexpr int kGroupBytes = tile_group_bytes(kWeightBits<W>);
template <class W, class S>
constexpr int kStageBytes = tile_shared_bytes(kWeightBits<W>, S::kRows, 1);
// Floats from one row of the finished tile to the next. A remainder of 4 spreads a warp's stores
// over all banks.
constexpr int kDoneStride = kTileOut + 4;

// `x_row(i)` is the row of x for the tile's row i, negative if there is none; `out_row(i)` is the
// row of the result, whose rows are `stride` elements apart. The bias of output 0 is at `bias0`.
// `p.rows` and `p.stride` are not read.
template <class T, class W, class S, class XRow, class OutRow>
DEVICE void multiply_tile(const ProductParams<T> &p, const W &weights, int depth, int output0, XRow x_row,
                          OutRow out_row, int stride, int bias0) {
  constexpr int kThreads = S::kThreads, kCopies = (S::kRows * 8 + kThreads - 1) / kThreads;
  static_assert(S::kRows * kDoneStride * 4 <= S::kStages * kStageBytes<W, S>,
                "the finished tile takes the stages' place");
  DYNAMIC_SHARED(unsigned char, shared);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int first_m = warp / S::kWarpsN * S::kTilesM, first_n = warp % S::kWarpsN * S::kTilesN;

  // The rows of x that this thread copies units of.
  constexpr int kRowsAtOnce = kThreads / 8;
  const int first_row = threadIdx.x / 8, unit = threadIdx.x % 8;
  int rows[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; i++) {
    const int row = first_row + i * kRowsAtOnce;
    rows[i] = row < S::kRows ? x_row(row) : -1;
  }
  auto copy_step = [&](int step) {
    unsigned char *stage = shared + step % S::kStages * kStageBytes<W, S>;
    const int k = step * kStep;
    weights.template copy<kThreads>(stage, output0, k);
    weights.template copy_groups<kThreads>(reinterpret_cast<uint32_t *>(stage + W::kBytes), output0, k);
    const int column = k + unit * 8;
    unsigned char *to = stage + W::kBytes + kGroupBytes<W> +
                        (first_row * 8 + W::UnitOrder::place(first_row, unit)) * 16;
#pragma unroll
    for (int i = 0; i < kCopies; i++) {
      const bool valid = rows[i] >= 0 && column < p.inputs;
      const T *from = valid ? p.x + int64_t(rows[i]) * p.inputs + column : p.x;
      if (first_row + i * kRowsAtOnce < S::kRows) copy_async16(to + i * kRowsAtOnce * 128, from, valid);
    }
  };

  const uint32_t magic = as_variable(W::kMagic, p.inputs);
  float sum[S::kTilesM][S::kTilesN][4] = {}, part[S::kTilesM][S::kTilesN][4] = {};
  auto multiply_step = [&](int step) {
    const unsigned char *stage = shared + step % S::kStages * kStageBytes<W, S>;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(stage + W::kBytes);
    const T *xs = reinterpret_cast<const T *>(stage + W::kBytes + kGroupBytes<W>);
    auto word = [&](int m, int c, int more) {
      return words[((first_m + m) * 2 + c) * kTileOutputs + g + more];
    };
    typename W::Fragment f[S::kTilesM];
#pragma unroll
    for (int c = 0; c < kStep / kChunk; c++) {
      uint32_t a[S::kTilesM][2][4];
#pragma unroll
      for (int m = 0; m < S::kTilesM; m++) {
        if (c % (W::kDepth / kChunk) == 0) f[m] = W::read(stage, first_m + m, c);
        const uint32_t upper = W::kScaled ? W::group_of(word(m, c, 0)).zero : 0;
        const uint32_t lower = W::kScaled ? W::group_of(word(m, c, 8)).zero : 0;
#pragma unroll
        for (int half = 0; half < 2; half++)
          weights.unpack(f[m], c % (W::kDepth / kChunk) * 2 + half, upper, lower, magic, a[m][half]);
      }
#pragma unroll
      for (int n = 0; n < S::kTilesN; n++) {
        uint32_t b[2][2];
        load_operand(
            b, xs + (((first_n + n) * 8 + g) * 8 + W::UnitOrder::place(g, W::UnitOrder::unit(c, t))) * 8);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
          for (int m = 0; m < S::kTilesM; m++)
            mma_m16n8k16<T>(W::kScaled ? part[m][n] : sum[m][n], a[m][half], b[half]);
        }
      }
      if (W::kScaled && weights.ends_group(c, step * kStep + c * kChunk)) {
#pragma unroll
        for (int m = 0; m < S::kTilesM; m++) {
          const float upper_scale = W::group_of(word(m, c, 0)).scale,
                      lower_scale = W::group_of(word(m, c, 8)).scale;
#pragma unroll
          for (int n = 0; n < S::kTilesN; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
              sum[m][n][i] = __fmaf_rn(i < 2 ? upper_scale : lower_scale, part[m][n][i], sum[m][n][i]);
              part[m][n][i] = 0.0f;
            }
          }
        }
      }
    }
  };

  const int steps = ceil_div(depth, kStep);
#pragma unroll
  for (int step = 0; step < S::kStages - 1; step++) {
    if (step < steps) copy_step(step);
    copy_commit();
  }
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    copy_wait<S::kStages - 2>();
    // All copies of this step have arrived, and no thread reads the stage of the next copies.
    __syncthreads();
    if (step + S::kStages - 1 < steps) copy_step(step + S::kStages - 1);
    copy_commit();
    multiply_step(step);
  }
  let_next_kernel_start();
  copy_wait<0>();
  __syncthreads();

  // The result goes through shared memory, so that rows are written in pieces of 16 bytes.
  float *done = reinterpret_cast<float *>(shared);
#pragma unroll
  for (int m = 0; m < S::kTilesM; m++) {
#pragma unroll
    for (int n = 0; n < S::kTilesN; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = (first_n + n) * 8 + t * 2 + i % 2,
                  output = (first_m + m) * kTileOutputs + g + i / 2 * 8;
        done[row * kDoneStride + output] = sum[m][n][i];
      }
    }
  }
  __syncthreads();
  const bool whole = p.outputs % 8 == 0 && stride % 8 == 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kRows * (kTileOut / 8); i += kThreads) {
    const int row = i / (kTileOut / 8), column = i % (kTileOut / 8) * 8, output = output0 + column;
    if (output >= p.outputs || x_row(row) < 0) continue;
    const int64_t at = int64_t(out_row(row)) * stride + output;
    const int valid = min(8, p.outputs - output);
    Vec<T, 8> v;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float value = done[row * kDoneStride + column + j];
      if (p.bias && j < valid) value += p.bias[bias0 + output + j];
      v.at[j] = from_float<T>(value);
    }
    if (whole) store_vec(p.out + at, v);
    else for (int j = 0; j < valid; j++) p.out[at + j] = v.at[j];
  }
}
