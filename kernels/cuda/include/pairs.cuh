// Arithmetic on two 16-bit numbers in one register, the first in the low half.
#pragma once
#include "ptx.cuh"

template <class T> constexpr uint32_t kOne = 0;
template <> constexpr uint32_t kOne<bf16> = 0x3f803f80u;
template <> constexpr uint32_t kOne<f16> = 0x3c003c00u;

// a · b + c in each half, rounded once.
template <class T> DEVICE uint32_t fma2(uint32_t a, uint32_t b, uint32_t c);
#if defined(MILLRACE_SIM)
// In f32 first: exact wherever the result itself is, which is all that the kernels use it for.
template <class T> DEVICE uint32_t fma2_by_halves(uint32_t a, uint32_t b, uint32_t c) {
  const float2 x = unpack2<T>(a), y = unpack2<T>(b), z = unpack2<T>(c);
  return pack2<T>(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}
template <> DEVICE uint32_t fma2<bf16>(uint32_t a, uint32_t b, uint32_t c) { return fma2_by_halves<bf16>(a, b, c); }
template <> DEVICE uint32_t fma2<f16>(uint32_t a, uint32_t b, uint32_t c) { return fma2_by_halves<f16>(a, b, c); }
// 16 bytes that are read once: they do not push anything else out of the L1 cache.
DEVICE uint4 load_once16(const void *p) {
  sim::check_aligned(p, 16, "misaligned load");
  return *static_cast<const uint4 *>(p);
}
#else
template <> DEVICE uint32_t fma2<bf16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
template <> DEVICE uint32_t fma2<f16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE uint4 load_once16(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
#endif
