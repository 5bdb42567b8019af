// out = x · wᵀ for few rows, at the speed of memory: each weight goes from device memory to the
// registers of the one lane that multiplies it.
//
// A block computes 128 outputs over one slice of k, a warp 16 of them; x's part of the slice lies
// in shared memory. A warp loads one batch of fragments while it multiplies by the last one, and
// does not wait for other warps until its slice is done. (A ring that is refilled fragment by
// fragment took half as long again on an H200. Probably its loads share the few counters
// that a warp waits with, so that a wait for one fragment is a wait for those behind it.) Slices
// are a function of the weight's shape alone. The block that finishes an output tile last adds up
// the slices' sums in order, so a row's result depends neither on the rows beside it nor on which
// block comes last.
#pragma once
#include "weights.cuh"

EXPORT_CONSTANT int kSkinnyThreads = 256;
// Outputs of a block.
EXPORT_CONSTANT int kSkinnyOutputs = 128;
// Rows of a block: 8 or this many.
EXPORT_CONSTANT int kSkinnyMaxRows = 16;
// Bytes of dynamic shared memory: the slice of x, and the words of the groups that the slice
// touches.
EXPORT_FUNCTION int skinny_shared_bytes(int rows, int slice_length, int groups) {
  return rows * slice_length * 2 + groups * kSkinnyOutputs * 4;
}

// How k is cut into slices.
struct SliceParams {
  float *partials;     // [blocks of rows][output tiles][slices][rows of a block][128]
  uint32_t *counters;  // [blocks of rows][output tiles]; zeros before and after the kernel
  int length;          // k of a slice, a multiple of 64
  int depth;           // k of the weight, padding included
};

// Weights [outputs, inputs] of 16 bits as they are stored.
template <class T> struct StoredRows {
  using UnitOrder = ByChunk;
  static constexpr bool kScaled = false;
  static constexpr int kBatch = 1;
  static constexpr uint32_t kMagic = 0;
  // Of each chunk.
  struct Fragment {
    uint4 upper[2], lower[2];
  };
  const T *upper, *lower;
  int left;  // k from this lane's first to the end of the row

  DEVICE StoredRows(const T *weights, int first_output, int k, int outputs, int inputs, const CodeTable &) {
    const int lane = threadIdx.x % kWarp, row = first_output + lane / 4, at = k + lane % 4 * 8;
    // Outputs beyond the last are computed from the last and not stored.
    upper = weights + int64_t(min(row, outputs - 1)) * inputs + at;
    lower = weights + int64_t(min(row + 8, outputs - 1)) * inputs + at;
    left = inputs - at;
  }
  DEVICE Fragment load(int i) const {
    Fragment f;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int at = i * kPaddedTo + c * kChunk;
      const bool within = at < left;
      f.upper[c] = within ? load_weights16(upper + at) : make_uint4(0, 0, 0, 0);
      f.lower[c] = within ? load_weights16(lower + at) : make_uint4(0, 0, 0, 0);
    }
    return f;
  }
  DEVICE void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t, uint32_t (&a)[4]) const {
    const uint4 upper = f.upper[instruction / 2], lower = f.lower[instruction / 2];
    const bool first = instruction % 2 == 0;
    a[0] = first ? upper.x : upper.z;
    a[1] = first ? lower.x : lower.z;
    a[2] = first ? upper.y : upper.w;
    a[3] = first ? lower.y : lower.w;
  }
  DEVICE static GroupScale group(uint32_t) { return {1.0f, 0}; }
};

// Packed weights; see weights.cuh.
template <class Format> struct PackedTiles {
  using UnitOrder = typename Format::UnitOrder;
  static constexpr bool kScaled = true;
  static constexpr int kBatch = 4 / Format::kLoads;
  static constexpr uint32_t kMagic = Format::kMagic;
  using Fragment = typename Format::Fragment;
  const uint8_t *at;
  int depth;
  CodeTable table;

  DEVICE PackedTiles(const uint8_t *weights, int first_output, int k, int outputs, int depth,
                     const CodeTable &table)
      : depth(depth), table(table) {
    const int output = min(first_output, outputs - 1) / kTileOutputs * kTileOutputs;
    at = weights + Format::place(output, k, 0, threadIdx.x % kWarp, depth);
  }
  DEVICE Fragment load(int i) const { return Format::load(at + int64_t(i) * Format::kStride, depth); }
  DEVICE void unpack(const Fragment &f, int instruction, uint32_t upper, uint32_t lower, uint32_t magic,
                     uint32_t (&a)[4]) const {
    Format::unpack(f, instruction, upper, lower, magic, table, a);
  }
  DEVICE static GroupScale group(uint32_t word) { return Format::group(word); }
};

// Copies x's rows [first, first + Rows) of columns [k, k + length) to shared rows `stride` elements
// apart, with zeros where x has no element. Column j of the weights meets column `columns[j]` of x,
// or none if that is negative.
template <class UnitOrder, int Rows, class T>
DEVICE void load_slice(T *shared, int stride, const ProductParams<T> &p, const int *columns, int first, int k,
                       int length) {
  const int units = length / 8;
  for (int i = threadIdx.x; i < Rows * units; i += kSkinnyThreads) {
    const int row = i / units, unit = i % units, column = k + unit * 8;
    T *to = shared + row * stride + UnitOrder::place(row, unit) * 8;
    const T *from = p.x + int64_t(min(first + row, p.rows - 1)) * p.inputs;
    if (columns) {
      Vec<T, 8> v;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int c = first + row < p.rows ? columns[column + j] : -1;
        v.at[j] = c < 0 ? from_float<T>(0.0f) : from[c];
      }
      store_vec(to, v);
    } else {
      const bool valid = first + row < p.rows && column < p.inputs;
      copy_async16(to, from + (valid ? column : 0), valid);
    }
  }
}

// The grid is [blocks of rows, output tiles, slices]; `Tiles` of eight rows make a block of rows.
// `scales` [outputs / 16][groups][16].
template <class T, class W, int Tiles, class Stored>
DEVICE void skinny(const ProductParams<T> &p, const Stored *weights, const uint32_t *scales, int group_bits,
                   const int *columns, const SliceParams &s, const CodeTable &table) {
  constexpr int kRows = 8 * Tiles, kOutputTiles = kSkinnyOutputs / kTileOutputs;
  DYNAMIC_SHARED(T, xs);
  SHARED(int, is_last, 1);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int row0 = blockIdx.x * kRows, output0 = blockIdx.y * kSkinnyOutputs, k0 = blockIdx.z * s.length;
  const int own_output = output0 + warp * kTileOutputs;
  const int length = min(s.length, s.depth - k0), fragments = length / kPaddedTo;

  // Weights are constants, so their loads may begin while the previous kernel still runs.
  const W source(weights, own_output, k0, p.outputs, W::kScaled ? s.depth : p.inputs, table);
  typename W::Fragment even[W::kBatch], odd[W::kBatch];
  // Beyond the last fragment it is loaded again, so that no load depends on a condition.
  auto load_batch = [&](typename W::Fragment(&batch)[W::kBatch], int first) {
#pragma unroll
    for (int i = 0; i < W::kBatch; i++) batch[i] = source.load(min(first + i, fragments - 1));
  };
  load_batch(even, 0);
  uint32_t *words = reinterpret_cast<uint32_t *>(xs + kRows * s.length);
  const int first_group = k0 >> group_bits, groups = ((k0 + length - 1) >> group_bits) - first_group + 1;
  if (W::kScaled) {
    const int all_groups = ((s.depth - 1) >> group_bits) + 1, last_tile = (p.outputs - 1) / kTileOutputs;
    for (int i = threadIdx.x; i < kOutputTiles * groups * 4; i += kSkinnyThreads) {
      const int tile = i / (groups * 4), at = i % (groups * 4);
      const int64_t from = int64_t(min(output0 / kTileOutputs + tile, last_tile)) * all_groups + first_group;
      copy_weights16(words + i * 4, scales + from * kTileOutputs + at * 4);
    }
  }
  wait_for_previous_kernel();
  load_slice<typename W::UnitOrder, kRows>(xs, s.length, p, columns, row0, k0, length);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  let_next_kernel_start();

  // `part` is the sum of one group in the unit of the stored numbers, `sum` that of all groups,
  // scaled.
  float sum[Tiles][4] = {}, part[Tiles][4] = {};
  GroupScale upper, lower;
  int at_group = 0, left_in_group = (1 << group_bits) - (k0 & ((1 << group_bits) - 1));
  auto read_group = [&] {
    const uint32_t *word = words + (warp * groups + at_group) * kTileOutputs;
    upper = W::group(W::kScaled ? word[g] : 0);
    lower = W::group(W::kScaled ? word[g + 8] : 0);
  };
  auto end_group = [&] {
#pragma unroll
    for (int n = 0; n < Tiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        sum[n][i] = W::kScaled ? __fmaf_rn(i < 2 ? upper.scale : lower.scale, part[n][i], sum[n][i])
                               : part[n][i];
        if (W::kScaled) part[n][i] = 0.0f;
      }
    }
  };
  read_group();
  // Where this lane's units of each chunk lie in row g of x. A fragment has whole rows of units, so
  // that it only moves them.
  const T *units[2];
#pragma unroll
  for (int c = 0; c < 2; c++) units[c] = xs + g * s.length + W::UnitOrder::place(g, W::UnitOrder::unit(c, t)) * 8;
  const uint32_t magic = as_variable(W::kMagic, p.rows);
  // Only groups of one chunk end in the middle of a fragment.
  const bool ends_within = W::kScaled && 1 << group_bits == kChunk;
  auto multiply = [&](const typename W::Fragment &f, int k) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      uint32_t b[Tiles][2][2];
#pragma unroll
      for (int n = 0; n < Tiles; n++) load_operand(b[n], units[c] + k + n * 8 * s.length);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint32_t a[4];
        source.unpack(f, c * 2 + half, upper.zero, lower.zero, magic, a);
#pragma unroll
        for (int n = 0; n < Tiles; n++) mma_m16n8k16<T>(part[n], a, b[n][half]);
      }
      if (!W::kScaled || (c == 0 && !ends_within)) continue;
      left_in_group -= c == 0 || ends_within ? kChunk : kPaddedTo;
      if (left_in_group == 0) {
        end_group();
        left_in_group = 1 << group_bits;
        if (++at_group < groups) read_group();
      }
    }
  };
  auto multiply_batch = [&](const typename W::Fragment(&batch)[W::kBatch], int first) {
    const int count = fragments - first;
#pragma unroll
    for (int i = 0; i < W::kBatch; i++) {
      if (i >= count) return;
      multiply(batch[i], (first + i) * kPaddedTo);
    }
  };
  for (int at = 0; at < fragments; at += 2 * W::kBatch) {
    load_batch(odd, at + W::kBatch);
    multiply_batch(even, at);
    load_batch(even, at + 2 * W::kBatch);
    multiply_batch(odd, at + W::kBatch);
  }
  end_group();

  auto finish = [&](int row, int output, float value) {
    if (row >= p.rows || output >= p.outputs) return;
    if (p.bias) value += p.bias[output];
    p.out[int64_t(row) * p.stride + output] = from_float<T>(value);
  };
  const int slices = gridDim.z;
  if (slices == 1) {
#pragma unroll
    for (int n = 0; n < Tiles; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) finish(row0 + n * 8 + t * 2 + i % 2, own_output + g + i / 2 * 8, sum[n][i]);
    }
    return;
  }
  const int64_t tile = int64_t(blockIdx.x) * gridDim.y + blockIdx.y;
  constexpr int kSums = kRows * kSkinnyOutputs;
  float *own = s.partials + (tile * slices + blockIdx.z) * kSums;
#pragma unroll
  for (int n = 0; n < Tiles; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = n * 8 + t * 2 + i % 2;
      if (row0 + row < p.rows)
        __stcg(own + row * kSkinnyOutputs + warp * kTileOutputs + g + i / 2 * 8, sum[n][i]);
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *is_last = atomicAdd(s.counters + tile, 1u) == uint32_t(slices - 1);
  __syncthreads();
  if (!*is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < min(kRows, p.rows - row0) * kSkinnyOutputs; i += kSkinnyThreads) {
    float value = 0.0f;
#pragma unroll 4
    for (int slice = 0; slice < slices; slice++)
      value += __ldcg(s.partials + (tile * slices + slice) * kSums + i);
    finish(row0 + i / kSkinnyOutputs, output0 + i % kSkinnyOutputs, value);
  }
  if (threadIdx.x == 0) s.counters[tile] = 0;
}
