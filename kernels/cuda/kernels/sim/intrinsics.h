// Arithmetic, bit and memory intrinsics that the kernels use.
#pragma once
#include "machine.h"

#include <algorithm>
#include <chrono>

using std::max;
using std::min;

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
// Each operation is rounded, so the host compiler must not fuse it with another one.
inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float exp10f(float x) { return std::pow(10.0f, x); }

inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
inline float __uint_as_float(unsigned i) { float f; std::memcpy(&f, &i, 4); return f; }
inline int __float_as_int(float f) { int i; std::memcpy(&i, &f, 4); return i; }
inline unsigned __float_as_uint(float f) { unsigned i; std::memcpy(&i, &f, 4); return i; }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rd(float x) { return int(std::floor(x)); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(int8_t(unsigned(a) >> 8 * i)) * int(int8_t(unsigned(b) >> 8 * i));
  return c;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned s = selector >> 4 * i & 0xf;
    unsigned byte = unsigned(both >> 8 * (s & 7)) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << 8 * i;
  }
  return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}

template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline void __stcs(T *p, T v) { *p = v; }
template <class T> inline void __stcg(T *p, T v) { *p = v; }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { sim::spin_pause(); }
namespace sim {
inline uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
}  // namespace sim

namespace sim {
// Applies `combine` to the value at `p` atomically, and returns the old value.
template <class T, class F> inline T atomic_update(T *p, F combine) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static_assert(sizeof(T) == sizeof(Bits), "atomics take 4 or 8 bytes");
  Bits *bits = reinterpret_cast<Bits *>(p);
  Bits old = __atomic_load_n(bits, __ATOMIC_SEQ_CST), wanted;
  T value;
  do {
    std::memcpy(&value, &old, sizeof value);
    const T result = combine(value);
    std::memcpy(&wanted, &result, sizeof wanted);
  } while (!__atomic_compare_exchange_n(bits, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return value;
}
}  // namespace sim

// The operand converts to the type of the memory, as with CUDA's overloads.
namespace sim {
template <class T> struct Same { using Type = T; };
template <class T> using Operand = typename Same<T>::Type;
}  // namespace sim

template <class T> inline T atomicAdd(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return T(x + v); });
}
template <class T> inline T atomicSub(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return T(x - v); });
}
template <class T> inline T atomicMax(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return x < v ? v : x; });
}
template <class T> inline T atomicMin(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return v < x ? v : x; });
}
template <class T> inline T atomicOr(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return T(x | v); });
}
template <class T> inline T atomicAnd(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return T(x & v); });
}
template <class T> inline T atomicXor(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T x) { return T(x ^ v); });
}
template <class T> inline T atomicExch(T *p, sim::Operand<T> v) {
  return sim::atomic_update(p, [v](T) { return v; });
}
template <class T> inline T atomicCAS(T *p, sim::Operand<T> expected, sim::Operand<T> v) {
  return sim::atomic_update(p, [expected, v](T x) { return x == expected ? v : x; });
}
