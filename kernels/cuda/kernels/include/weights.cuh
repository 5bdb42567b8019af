// The layout of weights in memory, and their conversion to operands of the tensor cores.
//
// In all products here the weights are operand A of mma.m16n8k16 (16 outputs) and the activations
// operand B (8 rows). The order in which k runs through the products is free as long as A and B
// agree. So lane 4g + t takes eight neighbors k = 8t … 8t + 7 of a chunk of 32, which are 16 bytes
// of a row as it is stored, and they feed two instructions: the first four, then the last four.
//
// Weights of 4 bits are tiles of 16 outputs, [outputs / 16][k / 64] tiles of 512 bytes, 16 bytes
// for each lane, so that a load of 16 bytes per lane is what the lane multiplies with, and a warp
// reads memory from end to end. Those of 8 bits are rows, [outputs][k], which cuBLASLt takes too:
// there lane 4g + t takes sixteen neighbors k = 16t … 16t + 15 of 64, and they feed four
// instructions. Outputs and k are padded with zeros to multiples of 16 and 64.
//
// Groups of k have a power of two of members, at least 32 (8 bits: 64, as a lane's share of an
// instruction must be of one group); one group of all if that is not less than k. One word per
// group and output, [outputs / 16][groups][16], holds the scale. int4 has the zero point (0 … 16)
// in the scale's low 5 bits, which leaves 18 bits of mantissa: scales that were f16 or bf16 are
// exact.
#pragma once
#include "ptx.cuh"

// 1 in both halves.
template <class T> constexpr uint32_t kOne = 0;
template <> constexpr uint32_t kOne<bf16> = 0x3f803f80u;
template <> constexpr uint32_t kOne<f16> = 0x3c003c00u;

constexpr int kTileOutputs = 16;
// A group has a multiple of this number of k.
constexpr int kChunk = 32;
EXPORT_CONSTANT int kPaddedTo = 64;
constexpr int kLaneBytes = 16;
constexpr int kTileBytes = kWarp * kLaneBytes;

// The order in which lanes take the units of eight k of a row of x in shared memory, and the place
// of a unit. Rows are a multiple of 128 bytes long. Odd rows have units exchanged, so that the
// eight lanes that are served at once (two rows, four units) hit all banks.
//
// Chunk after chunk: lanes take neighbors, and odd rows have their halves exchanged.
struct ByChunk {
  DEVICE static int unit(int chunk, int t) { return chunk * 4 + t; }
  DEVICE static int place(int row, int unit) { return unit ^ (row & 1) << 2; }
};
// Lane after lane: each takes two neighbors, one for each chunk, and odd rows have neighbors
// exchanged.
struct ByLane {
  DEVICE static int unit(int chunk, int t) { return t * 2 + chunk; }
  DEVICE static int place(int row, int unit) { return unit ^ (row & 1); }
};

// A constant that the compiler takes for a variable, as it does not know that `count` is not
// negative. With two constants, `x & mask | constant` would be two instructions: an instruction has
// room for one.
DEVICE uint32_t as_variable(uint32_t constant, int count) { return constant | uint32_t(count) >> 31; }

// The scale and the zero point of one group of one output.
struct GroupScale {
  float scale;
  // Added to a stored number to convert it, in both halves. Only int4 needs it.
  uint32_t minus_zero;
};

// Four bits, unsigned, minus a zero point. A lane has four words, one per instruction; bits 4p and
// 16 + 4p hold the pair of register a[p].
template <class T> struct Int4 {
  using UnitOrder = ByChunk;
  using Fragment = uint4;
  // Loads of 16 bytes for 16 outputs of 64 k, the outputs of one, and the bytes from one to that of
  // the next 64 k.
  static constexpr int kLoads = 1, kOutputs = kTileOutputs / kLoads, kStride = kTileBytes;
  // 2^7 as bf16 and 2^10 as f16: the low bits of their mantissas count in ones.
  static constexpr uint32_t kMagic = kOne<T> == kOne<bf16> ? 0x43004300u : 0x64006400u;

  DEVICE static GroupScale group(uint32_t word) {
    return {__uint_as_float(word & ~31u), (kMagic | 0x80008000u) + (word & 31u) * 0x00010001u};
  }
  // The place of a lane's 16 bytes of the load for these outputs.
  DEVICE static int64_t place(int output, int k, int lane, int depth) {
    return (int64_t(output / kTileOutputs) * (depth / kPaddedTo) + k / kPaddedTo) * kTileBytes +
           lane * kLaneBytes;
  }
  DEVICE static Fragment load(const uint8_t *at, int) { return load_weights16(at); }
  DEVICE static Fragment read(const uint4 *shared) { return *shared; }
  // Converts a lane's operand of an instruction. `magic` is kMagic, as a variable.
  DEVICE static void unpack(const uint4 &v, int instruction, uint32_t minus_zero_upper,
                            uint32_t minus_zero_lower, uint32_t magic, uint32_t (&a)[4]) {
    const uint32_t word = instruction == 0 ? v.x : instruction == 1 ? v.y : instruction == 2 ? v.z : v.w;
#pragma unroll
    for (int p = 0; p < 4; p++) {
      a[p] = fma2<T>((word >> 4 * p & 0x000f000fu) | magic, kOne<T>,
                     p % 2 == 0 ? minus_zero_upper : minus_zero_lower);
    }
  }
  // One element, with `minus_zero` added.
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, float minus_zero) {
    const int row = output % kTileOutputs, chunk = k % kPaddedTo / kChunk, t = k % kChunk / 8, i = k % 8;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(data +
                                                               place(output, k, row % 8 * 4 + t, depth));
    const int p = i % 4 / 2 * 2 + row / 8;
    return float(words[chunk * 2 + i / 4] >> (4 * p + 16 * (i % 2)) & 15u) + minus_zero;
  }
  DEVICE static float minus_zero_of(uint32_t word) { return -float(word & 31u); }
};

// The layout that formats of eight bits share: rows, of which a lane has sixteen k of output g, and
// sixteen of output g + 8.
struct ByteRows {
  using UnitOrder = ByLane;
  struct Fragment {
    uint4 upper, lower;
  };
  static constexpr int kLoads = 2, kOutputs = kTileOutputs / kLoads, kStride = kPaddedTo;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word), 0}; }
  DEVICE static int64_t place(int output, int k, int lane, int depth) {
    return int64_t(output + lane / 4) * depth + k + lane % 4 * kLaneBytes;
  }
  DEVICE static Fragment load(const uint8_t *at, int depth) {
    return {load_weights16(at), load_weights16(at + int64_t(kOutputs) * depth)};
  }
  DEVICE static Fragment read(const uint4 *shared) { return {shared[0], shared[kWarp]}; }
  DEVICE static uint32_t word(const uint4 &v, int instruction) {
    return instruction == 0 ? v.x : instruction == 1 ? v.y : instruction == 2 ? v.z : v.w;
  }
  DEVICE static float minus_zero_of(uint32_t) { return 0.0f; }
};

template <class T> struct Int8 : ByteRows {
  // 2^7 as bf16 and 2^10 as f16.
  static constexpr uint32_t kMagic = kOne<T> == kOne<bf16> ? 0x43004300u : 0x64006400u;

  // Two signed bytes, in the low byte of each half.
  DEVICE static uint32_t widen(uint32_t pair, uint32_t magic);
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t magic,
                            uint32_t (&a)[4]) {
    const uint32_t upper = word(f.upper, instruction), lower = word(f.lower, instruction);
    a[0] = widen(__byte_perm(upper, 0, 0x4140), magic);
    a[1] = widen(__byte_perm(lower, 0, 0x4140), magic);
    a[2] = widen(__byte_perm(upper, 0, 0x4342), magic);
    a[3] = widen(__byte_perm(lower, 0, 0x4342), magic);
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, float) {
    return float(int8_t(data[int64_t(output) * depth + k]));
  }
};
// Computes 2^7 plus the low seven bits, minus 2^7, or minus 2^8 for a negative number. This is
// exact, although bf16 has only eight bits.
template <> DEVICE uint32_t Int8<bf16>::widen(uint32_t pair, uint32_t magic) {
  const uint32_t minus_magic = magic ^ 0x80008000u;
  return fma2<bf16>((pair & 0x007f007fu) | magic, kOne<bf16>, (pair & 0x00800080u) | minus_magic);
}
// With the top bit inverted, the byte is the number plus 128.
template <> DEVICE uint32_t Int8<f16>::widen(uint32_t pair, uint32_t magic) {
  return fma2<f16>((pair ^ 0x00800080u) | magic, kOne<f16>, 0xe480e480u);
}

template <class T> struct Fp8 : ByteRows {
  static constexpr uint32_t kMagic = 0;

  // Converts two numbers in the high byte of each half: exponent and mantissa move to the places
  // that T has for them, and a factor corrects the difference of the biases. The conversion is
  // exact for all numbers but NaN, which is refused when weights are packed.
  DEVICE static uint32_t widen(uint32_t pair) {
    constexpr bool wide = kOne<T> == kOne<bf16>;
    const uint32_t magnitude = (pair & 0x7f007f00u) >> (wide ? 4 : 1);
    return fma2<T>(magnitude | (pair & 0x80008000u), wide ? 0x7b807b80u : 0x5c005c00u, 0x80008000u);
  }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t,
                            uint32_t (&a)[4]) {
    const uint32_t upper = word(f.upper, instruction), lower = word(f.lower, instruction);
    a[0] = widen(__byte_perm(upper, 0, 0x1404));
    a[1] = widen(__byte_perm(lower, 0, 0x1404));
    a[2] = widen(__byte_perm(upper, 0, 0x3424));
    a[3] = widen(__byte_perm(lower, 0, 0x3424));
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, float) {
    return to_float(e4m3{data[int64_t(output) * depth + k]});
  }
};

// Loads eight neighbors along k, as operand B of two instructions.
template <class T> DEVICE void load_operand(uint32_t (&b)[2][2], const T *shared) {
  const uint4 v = *reinterpret_cast<const uint4 *>(shared);
  b[0][0] = v.x;
  b[0][1] = v.y;
  b[1][0] = v.z;
  b[1][1] = v.w;
}

// The operands of a product besides the weights.
template <class T> struct ProductParams {
  T *out;             // [rows, outputs]
  const T *x;         // [rows, inputs]
  const float *bias;  // null or [outputs]
  const T *residual;  // null or [rows, outputs]; added to the result before it is rounded
  int rows;
  int outputs;
  int inputs;
};

// A packed weight.
struct PackedWeightParams {
  const uint8_t *data;
  const uint32_t *scales;  // [outputs / 16][groups][16]
  int depth;               // k of the weight, padding included
  int group_bits;          // a group has 1 << group_bits k
};
