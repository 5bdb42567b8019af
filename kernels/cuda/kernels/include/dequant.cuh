// Converts cached bytes to 16-bit floats, two at a time and exactly, so that a row's scale can be
// applied to sums instead of to elements.
//
// A register holds the bytes b0 b1 b2 b3 with b0 lowest. The even bytes (b0, b2) lie in different
// halves, and so do the odd ones. So two bytes become two neighboring floats without a permutation.
// The other factor of a product must have the same order.
#pragma once
#include "ptx.cuh"

struct Bytes2 {
  uint32_t even, odd;
};

template <class T, class C> struct Dequant;

// Moves the bits of e4m3 to the places of the wider type, whose exponent has a larger bias. A
// multiplication corrects the bias, also for subnormal numbers. NaN, which a cache should not hold,
// becomes 480.
template <> struct Dequant<bf16, e4m3> {
  static DEVICE uint32_t scaled(uint32_t magnitude, uint32_t sign) {
    return fma2<bf16>(magnitude | sign, 0x7b807b80u, 0x80008000u);  // 2^120
  }
  static DEVICE Bytes2 widen(uint32_t x) {
    return {scaled((x & 0x007f007fu) << 4, (x & 0x00800080u) << 8),
            scaled((x & 0x7f007f00u) >> 4, x & 0x80008000u)};
  }
};
template <> struct Dequant<f16, e4m3> {
  static DEVICE uint32_t scaled(uint32_t magnitude, uint32_t sign) {
    return fma2<f16>(magnitude | sign, 0x5c005c00u, 0x80008000u);  // 2^8
  }
  static DEVICE Bytes2 widen(uint32_t x) {
    return {scaled((x & 0x007f007fu) << 7, (x & 0x00800080u) << 8),
            scaled((x & 0x7f007f00u) >> 1, x & 0x80008000u)};
  }
};
// Takes the low seven bits as the mantissa of 128 + x and subtracts 128, or 256 if the byte is
// negative.
template <> struct Dequant<bf16, int8_t> {
  static DEVICE uint32_t even(uint32_t x) {
    return fma2<bf16>((x & 0x007f007fu) | 0x43004300u, 0x3f803f80u, (x & 0x00800080u) | 0xc300c300u);
  }
  static DEVICE Bytes2 widen(uint32_t x) { return {even(x), even(x >> 8)}; }
};
// The byte plus 128 is taken as the mantissa of 1024 + x, from which 1152 is subtracted.
template <> struct Dequant<f16, int8_t> {
  static DEVICE uint32_t even(uint32_t x) {
    return fma2<f16>((x & 0x00ff00ffu) ^ 0x64806480u, 0x3c003c00u, 0xe480e480u);
  }
  static DEVICE Bytes2 widen(uint32_t x) { return {even(x), even(x >> 8)}; }
};
