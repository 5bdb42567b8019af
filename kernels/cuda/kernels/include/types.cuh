// Element types and their conversions. The types are structs of our own, because NVRTC has no
// cuda_bf16.h.
#pragma once
#include "platform.cuh"

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
// FP8 with 4 bits of exponent and 3 of mantissa, no infinities (Micikevicius et al., "FP8 Formats
// for Deep Learning").
struct e4m3 { uint8_t bits; };

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
DEVICE float to_float(f16 x) {
#if defined(MILLRACE_SIM)
  _Float16 h;
  memcpy(&h, &x.bits, 2);
  return float(h);
#else
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
  return f;
#endif
}
// The conversion is exact: the bits become those of a float whose exponent is 120 too small. NaN is
// 0x7f.
DEVICE float to_float(e4m3 x) {
  const uint32_t sign = uint32_t(x.bits & 0x80) << 24, rest = uint32_t(x.bits & 0x7f);
  const float magnitude = __uint_as_float(rest << 20) * __uint_as_float(0x7b800000);  // 2^120
  return __uint_as_float(sign | (rest == 0x7f ? 0x7fc00000u : __float_as_uint(magnitude)));
}
DEVICE float to_float(int8_t x) { return float(x); }

// Rounds to nearest, ties to even.
template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x) {
#if defined(MILLRACE_SIM)
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{0x7fff};
  return bf16{uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
#else
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
#endif
}
template <> DEVICE f16 from_float<f16>(float x) {
#if defined(MILLRACE_SIM)
  const _Float16 h = _Float16(x);
  f16 r;
  memcpy(&r.bits, &h, 2);
  return r;
#else
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
#endif
}
// Saturates at 448. It uses arithmetic, so that the result is the same on every device (GPUs before
// sm_89 have no instruction for it).
template <> DEVICE e4m3 from_float<e4m3>(float x) {
  const uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80;
  if ((u & 0x7fffffffu) > 0x7f800000u) return e4m3{uint8_t(sign | 0x7f)};
  const float magnitude = fminf(fabsf(x), 448.0f);
  // Below 2^-6 the step is 2^-9: adding 2^14 pushes all smaller bits off the mantissa's end.
  if (magnitude < 0.015625f) {
    const uint32_t steps = __float_as_uint(magnitude + 16384.0f) - __float_as_uint(16384.0f);
    return e4m3{uint8_t(sign | steps)};
  }
  const uint32_t m = __float_as_uint(magnitude);
  const uint32_t rounded = (m + 0x7ffffu + (m >> 20 & 1)) >> 20;
  return e4m3{uint8_t(sign | (rounded - (120u << 3)))};
}

// Packs two neighbors into one register, the first in the low half.
template <class T> DEVICE uint32_t pack2(float low, float high) {
  return uint32_t(from_float<T>(low).bits) | uint32_t(from_float<T>(high).bits) << 16;
}
#if !defined(MILLRACE_SIM)
template <> DEVICE uint32_t pack2<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> DEVICE uint32_t pack2<f16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
#endif
template <class T> DEVICE float2 unpack2(uint32_t v) {
  return make_float2(to_float(T{uint16_t(v)}), to_float(T{uint16_t(v >> 16)}));
}

// N neighbors that are moved in one access of up to 16 bytes. The address must be a multiple of its
// size.
template <class T, int N> struct __align__(sizeof(T) * N) Vec {
  T at[N];
};
// The number of elements that fit 16 bytes.
template <class T> constexpr int kVec = 16 / int(sizeof(T));

template <class T, int N> DEVICE Vec<T, N> load_vec(const T *p) {
  return *reinterpret_cast<const Vec<T, N> *>(p);
}
template <class T, int N> DEVICE void store_vec(T *p, const Vec<T, N> &v) {
  *reinterpret_cast<Vec<T, N> *>(p) = v;
}
