// The layout of weights in memory, and their conversion to operands of the tensor cores.
//
// In all products here the weights are operand A of mma.m16n8k16 (16 outputs) and the activations
// operand B (8 rows). The order in which k runs through the products is free as long as A and B
// agree. So lane 4g + t takes eight neighbors k = 8t … 8t + 7 of a chunk of 32, which are 16 bytes
// of a row as it is stored, and they feed two instructions: the first four, then the last four.
//
// Integers are tiles of 16 outputs, [outputs / 16][k / 64] tiles of 512 bytes (4 bits) or 1024
// bytes (8 bits). 512 bytes are a load of 16 bytes for each lane, which the lane multiplies with,
// so that a warp reads memory from end to end. FP8 numbers are rows, [outputs][k], which cuBLASLt
// takes too: there lane 4g + t takes sixteen neighbors k = 16t … 16t + 15 of 64, and they feed four
// instructions. Outputs and k are padded with zeros to multiples of 16 and 64.
//
// Groups of k have a power of two of members, at least 32 (FP8: 64, as a lane's share of an
// instruction must be of one group); one group of all if that is not less than k. One word per
// group and output, [outputs / 16][groups][16], holds the scale. int4 has the zero point (0 … 16)
// in the scale's low 5 bits, which leaves 18 bits of mantissa: scales that were f16 or bf16 are
// exact. The words of GGUF's K-quants are described at their types.
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

// The signed bytes that codes of four bits stand for, four in each word. Other formats have zeros.
struct CodeTableParams {
  uint32_t first, second, third, fourth;
};
using CodeTable = CodeTableParams;

// The scale of one group of one output, and what converts its numbers.
struct GroupScale {
  float scale;
  // int4: added to a stored number, in both halves. K-quants: the group's word.
  uint32_t zero;
};

// The layout that integers share: tiles of 16 outputs by 64 k, each of which has `Loads` times 16
// bytes for a lane. A lane's words feed its four instructions in order.
template <int Loads> struct IntegerTiles {
  using UnitOrder = ByChunk;
  struct Fragment {
    uint4 loads[Loads];
  };
  // Loads of 16 bytes for 16 outputs of 64 k, and the bytes from one such tile to the next.
  static constexpr int kLoads = Loads, kStride = Loads * kTileBytes;
  static constexpr int kLeastGroup = kChunk;

  // The place of a lane's 16 bytes of one load, in the tile of these 16 outputs and 64 k.
  DEVICE static int64_t place(int output, int k, int load, int lane, int depth) {
    const int64_t tile = int64_t(output / kTileOutputs) * (depth / kPaddedTo) + k / kPaddedTo;
    return (tile * Loads + load) * kTileBytes + lane * kLaneBytes;
  }
  DEVICE static Fragment load(const uint8_t *at, int) {
    Fragment f;
#pragma unroll
    for (int i = 0; i < Loads; i++) f.loads[i] = load_weights16(at + i * kTileBytes);
    return f;
  }
  DEVICE static Fragment read(const uint4 *shared) {
    Fragment f;
#pragma unroll
    for (int i = 0; i < Loads; i++) f.loads[i] = shared[i * kWarp];
    return f;
  }
  DEVICE static uint32_t word(const Fragment &f, int index) {
    const uint4 &v = f.loads[index / 4];
    return index % 4 == 0 ? v.x : index % 4 == 1 ? v.y : index % 4 == 2 ? v.z : v.w;
  }
  // The word of one element's instruction, and its register there: pairs 0 and 2 are of the upper
  // eight outputs, 1 and 3 of the lower ones, 2 and 3 of the later k.
  struct Element {
    int instruction, pair, of_pair;
    const uint32_t *words;
  };
  DEVICE static Element element_at(const uint8_t *data, int output, int k, int depth) {
    const int row = output % kTileOutputs, chunk = k % kPaddedTo / kChunk, t = k % kChunk / 8, i = k % 8;
    const int instruction = chunk * 2 + i / 4, lane = row % 8 * 4 + t;
    // A load has the words of 4 / Loads instructions.
    const int64_t at = place(output, k, instruction * Loads / 4, lane, depth);
    return {instruction, i % 4 / 2 * 2 + row / 8, i % 2, reinterpret_cast<const uint32_t *>(data + at)};
  }
};

// Four bits, unsigned, minus a zero point. A lane has four words, one per instruction; bits 4p and
// 16 + 4p hold the pair of register a[p].
template <class T> struct Int4 : IntegerTiles<1> {
  // 2^7 as bf16 and 2^10 as f16: the low bits of their mantissas count in ones.
  static constexpr uint32_t kMagic = kOne<T> == kOne<bf16> ? 0x43004300u : 0x64006400u;

  DEVICE static GroupScale group(uint32_t word) {
    return {__uint_as_float(word & ~31u), (kMagic | 0x80008000u) + (word & 31u) * 0x00010001u};
  }
  // Converts a lane's operand of an instruction. `magic` is kMagic, as a variable.
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t zero_upper, uint32_t zero_lower,
                            uint32_t magic, const CodeTable &, uint32_t (&a)[4]) {
    const uint32_t packed = word(f, instruction);
#pragma unroll
    for (int p = 0; p < 4; p++) {
      a[p] = fma2<T>((packed >> 4 * p & 0x000f000fu) | magic, kOne<T>,
                     p % 2 == 0 ? zero_upper : zero_lower);
    }
  }
  DEVICE static float code(const uint8_t *data, int output, int k, int depth) {
    const Element e = element_at(data, output, k, depth);
    return float(e.words[e.instruction] >> (4 * e.pair + 16 * e.of_pair) & 15u);
  }
  // One element, not yet scaled, of a group with this word.
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t word,
                              const CodeTable &) {
    return code(data, output, k, depth) - float(word & 31u);
  }
};

// Q4_K: four bits, unsigned, minus a zero point that is not a whole number, as a group of 32 k has
// a scale and a minimum. The zero point is `whole - (1 + fraction / 128)`; a word has the fraction
// in its low 7 bits, then 6 bits of `whole`, and the scale with 10 bits of mantissa above them. The
// rounding of a number minus its zero point to T is an error of the size that weights stored as
// T have.
template <class T> struct Q4K : Int4<T> {
  using typename Int4<T>::Fragment;
  static constexpr int kWholeAt = 7;
  static constexpr uint32_t kFraction = (1u << kWholeAt) - 1, kWhole = 63, kLowBits = 0x1fff;
  // The lowest of seven bits of mantissa, in both halves.
  static constexpr uint32_t kLowest = kOne<T> == kOne<bf16> ? 0x00010001u : 0x00080008u;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word & ~kLowBits), word}; }
  // Two additions, as a sum of seven and four bits would not fit the mantissa of bf16.
  DEVICE static uint32_t minus_whole(uint32_t word) {
    return (Int4<T>::kMagic | 0x80008000u) + (word >> kWholeAt & kWhole) * 0x00010001u;
  }
  DEVICE static uint32_t fraction(uint32_t word) { return kOne<T> + (word & kFraction) * kLowest; }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t upper, uint32_t lower,
                            uint32_t magic, const CodeTable &table, uint32_t (&a)[4]) {
    Int4<T>::unpack(f, instruction, minus_whole(upper), minus_whole(lower), magic, table, a);
#pragma unroll
    for (int p = 0; p < 4; p++) a[p] = fma2<T>(a[p], kOne<T>, fraction(p % 2 == 0 ? upper : lower));
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t word,
                              const CodeTable &) {
    const float fraction = 1.0f + float(word & kFraction) / (kFraction + 1);
    return Int4<T>::code(data, output, k, depth) - (float(word >> kWholeAt & kWhole) - fraction);
  }
};

// Signed bytes. A lane has two words per instruction: the upper eight outputs, and the lower ones.
// Bits 0 and 16 of a word begin the pair of the earlier k, bits 8 and 24 that of the later.
template <class T> struct Int8 : IntegerTiles<2> {
  static constexpr bool kWide = kOne<T> == kOne<bf16>;
  // 2^7 as bf16. 2^10 as f16, with the bit that inverts the top bit of a byte.
  static constexpr uint32_t kMagic = kWide ? 0x43004300u : 0x64806480u;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word), 0}; }
  // Converts the signed bytes in the low bytes of both halves; others are ignored. `magic` is
  // kMagic, as a variable.
  DEVICE static uint32_t widen(uint32_t bytes, uint32_t magic) {
    // bf16 has only eight bits: 2^7 plus the low seven bits, minus 2^7, or minus 2^8 for a negative
    // number. For f16, a byte with its top bit inverted is the number plus 128.
    if (kWide)
      return fma2<T>((bytes & 0x007f007fu) | magic, kOne<T>, (bytes & 0x00800080u) | (magic ^ 0x80008000u));
    return fma2<T>((bytes & 0x00ff00ffu) ^ magic, kOne<T>, 0xe480e480u);
  }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t magic,
                            const CodeTable &, uint32_t (&a)[4]) {
    const uint32_t upper = word(f, instruction * 2), lower = word(f, instruction * 2 + 1);
    a[0] = widen(upper, magic);
    a[1] = widen(lower, magic);
    a[2] = widen(upper >> 8, magic);
    a[3] = widen(lower >> 8, magic);
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t,
                              const CodeTable &) {
    const Element e = element_at(data, output, k, depth);
    const uint32_t packed = e.words[e.instruction % 2 * 2 + e.pair % 2];
    return float(int8_t(packed >> (e.pair / 2 * 8 + e.of_pair * 16)));
  }
};

// Codes of four bits that stand for signed bytes, such as MXFP4 and IQ4.
template <class T> struct Codes4 : Int4<T> {
  using typename Int4<T>::Fragment;
  static constexpr uint32_t kMagic = Int8<T>::kMagic;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word), 0}; }
  // The bytes that the four codes in the low half of a word stand for. The upper bit of a code says
  // which half of the table it indexes.
  DEVICE static uint32_t look_up(uint32_t codes, const CodeTable &table) {
    const uint32_t lower = __byte_perm(table.first, table.second, codes & 0x7777u),
                   upper = __byte_perm(table.third, table.fourth, codes & 0x7777u);
    return __byte_perm(lower, upper, (codes & 0x8888u) >> 1 | 0x3210u);
  }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t magic,
                            const CodeTable &table, uint32_t (&a)[4]) {
    const uint32_t packed = Int4<T>::word(f, instruction);
    const uint32_t earlier = look_up(packed, table), later = look_up(packed >> 16, table);
#pragma unroll
    for (int p = 0; p < 4; p++)
      a[p] = Int8<T>::widen(__byte_perm(earlier, later, 0x0400u + p * 0x0101u), magic);
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t,
                              const CodeTable &table) {
    const int code = int(Int4<T>::code(data, output, k, depth));
    const uint32_t word = code < 4 ? table.first : code < 8 ? table.second : code < 12 ? table.third : table.fourth;
    return float(int8_t(word >> code % 4 * 8));
  }
};

// Q6_K: signed bytes whose scale is an integer times a number of type f16. A group of 32 k has two
// integers, each for 16 k, in the low two bytes of its word, and the other factor in the upper
// half. The number of type f16 scales sums. The integers scale the bytes before, as lanes 4g and
// 4g + 1 have the first 16 k of an instruction's output and 4g + 2 and 4g + 3 the last; products
// are rounded to T.
template <class T> struct Q6K : Int8<T> {
  using typename Int8<T>::Fragment;
  static constexpr int kSubBlock = 16;

  DEVICE static GroupScale group(uint32_t word) { return {to_float(f16{uint16_t(word >> 16)}), word}; }
  // The integer that scales this lane's bytes, in both halves.
  DEVICE static uint32_t factor(uint32_t word, uint32_t magic) {
    const int sub_block = threadIdx.x % 4 * 8 / kSubBlock;
    return Int8<T>::widen((word >> sub_block * 8 & 0xffu) * 0x00010001u, magic);
  }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t upper, uint32_t lower,
                            uint32_t magic, const CodeTable &table, uint32_t (&a)[4]) {
    const uint32_t factors[2] = {factor(upper, magic), factor(lower, magic)};
    Int8<T>::unpack(f, instruction, upper, lower, magic, table, a);
#pragma unroll
    for (int p = 0; p < 4; p++) a[p] = fma2<T>(a[p], factors[p % 2], 0x80008000u);
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t word,
                              const CodeTable &table) {
    const int8_t factor = int8_t(word >> k % kChunk / kSubBlock * 8);
    return Int8<T>::element(data, output, k, depth, word, table) * float(factor);
  }
};

// Q5_K: signed bytes minus a fraction. A group of 32 k has a zero point, of which the whole part is
// in the bytes; `fraction / 128 + 1` is to be added, and the fraction is in the low 7 bits of the
// group's word, below a scale with 16 bits of mantissa.
template <class T> struct Q5K : Int8<T> {
  using typename Int8<T>::Fragment;
  static constexpr uint32_t kFraction = Q4K<T>::kFraction;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word & ~kFraction), word}; }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t upper, uint32_t lower,
                            uint32_t magic, const CodeTable &table, uint32_t (&a)[4]) {
    Int8<T>::unpack(f, instruction, upper, lower, magic, table, a);
#pragma unroll
    for (int p = 0; p < 4; p++)
      a[p] = fma2<T>(a[p], kOne<T>, Q4K<T>::fraction(p % 2 == 0 ? upper : lower));
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t word,
                              const CodeTable &table) {
    const float fraction = 1.0f + float(word & kFraction) / (kFraction + 1);
    return Int8<T>::element(data, output, k, depth, word, table) + fraction;
  }
};

// FP8 (e4m3) in rows, of which a lane has sixteen k of output g, and sixteen of output g + 8.
template <class T> struct Fp8 {
  using UnitOrder = ByLane;
  struct Fragment {
    uint4 upper, lower;
  };
  static constexpr int kLoads = 2, kStride = kPaddedTo;
  static constexpr int kLeastGroup = kPaddedTo;
  static constexpr uint32_t kMagic = 0;

  DEVICE static GroupScale group(uint32_t word) { return {__uint_as_float(word), 0}; }
  // The place of a lane's 16 bytes of one load.
  DEVICE static int64_t place(int output, int k, int load, int lane, int depth) {
    return int64_t(output + load * (kTileOutputs / kLoads) + lane / 4) * depth + k + lane % 4 * kLaneBytes;
  }
  DEVICE static Fragment load(const uint8_t *at, int depth) {
    return {load_weights16(at), load_weights16(at + int64_t(kTileOutputs / kLoads) * depth)};
  }
  DEVICE static Fragment read(const uint4 *shared) { return {shared[0], shared[kWarp]}; }
  DEVICE static uint32_t word(const uint4 &v, int instruction) {
    return instruction == 0 ? v.x : instruction == 1 ? v.y : instruction == 2 ? v.z : v.w;
  }

  // Converts two numbers in the high byte of each half: exponent and mantissa move to the places
  // that T has for them, and a factor corrects the difference of the biases. The conversion is
  // exact for all numbers but NaN, which is refused when weights are packed.
  DEVICE static uint32_t widen(uint32_t pair) {
    constexpr bool wide = kOne<T> == kOne<bf16>;
    const uint32_t magnitude = (pair & 0x7f007f00u) >> (wide ? 4 : 1);
    return fma2<T>(magnitude | (pair & 0x80008000u), wide ? 0x7b807b80u : 0x5c005c00u, 0x80008000u);
  }
  DEVICE static void unpack(const Fragment &f, int instruction, uint32_t, uint32_t, uint32_t,
                            const CodeTable &, uint32_t (&a)[4]) {
    const uint32_t upper = word(f.upper, instruction), lower = word(f.lower, instruction);
    a[0] = widen(__byte_perm(upper, 0, 0x1404));
    a[1] = widen(__byte_perm(lower, 0, 0x1404));
    a[2] = widen(__byte_perm(upper, 0, 0x3424));
    a[3] = widen(__byte_perm(lower, 0, 0x3424));
  }
  DEVICE static float element(const uint8_t *data, int output, int k, int depth, uint32_t,
                              const CodeTable &) {
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
  int rows;
  int outputs;
  int inputs;
  int stride;  // elements from one row of `out` to the next
};

// A packed weight.
struct PackedWeightParams {
  const uint8_t *data;
  const uint32_t *scales;  // [outputs / 16][groups][16]
  int depth;               // k of the weight, padding included
  int group_bits;          // a group has 1 << group_bits k
  CodeTableParams table;   // of codes of four bits
};
