// Operations among the lanes of a warp. Any mask is valid as long as all lanes that it names take
// part.
#pragma once
#include "machine.h"

namespace sim {
template <class T> inline T shuffle(Operation kind, unsigned mask, T value, unsigned from, int width) {
  if (width < 1 || width > 32 || (width & (width - 1)))
    fail("the width of a shuffle must be a power of two up to 32");
  const Exchange &left = meet(mask, kind, value);
  if (!(left.lanes >> from & 1)) fail("a shuffle reads from a lane that does not take part");
  return slot<T>(left, from);
}
inline unsigned lane() { return machine.fiber->lane; }

template <class T, class F> inline T reduce(Operation kind, unsigned mask, T value, F combine) {
  const Exchange &left = meet(mask, kind, value);
  T result{};
  bool first = true;
  for (unsigned i = 0; i < kLanes; i++) {
    if (!(left.lanes >> i & 1)) continue;
    result = first ? slot<T>(left, i) : combine(result, slot<T>(left, i));
    first = false;
  }
  return result;
}
}  // namespace sim

inline void __syncwarp(unsigned mask = 0xffffffffu) { sim::meet(mask, sim::kSync, 0); }

template <class T> inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return sim::shuffle(sim::kShuffle, mask, value,
                      (sim::lane() & ~unsigned(width - 1)) | (unsigned(from) & unsigned(width - 1)), width);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned from = sim::lane() ^ unsigned(bits), segment = sim::lane() & ~unsigned(width - 1);
  return sim::shuffle(sim::kShuffleXor, mask, value, from < segment + unsigned(width) ? from : sim::lane(),
                      width);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned at = sim::lane() & unsigned(width - 1);
  return sim::shuffle(sim::kShuffleDown, mask, value,
                      at + delta < unsigned(width) ? sim::lane() + delta : sim::lane(), width);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned at = sim::lane() & unsigned(width - 1);
  return sim::shuffle(sim::kShuffleUp, mask, value, at >= delta ? sim::lane() - delta : sim::lane(), width);
}

inline unsigned __ballot_sync(unsigned mask, int vote) {
  const sim::Exchange &left = sim::meet(mask, sim::kBallot, int(vote != 0));
  unsigned result = 0;
  for (unsigned i = 0; i < sim::kLanes; i++) {
    if (left.lanes >> i & 1) result |= unsigned(sim::slot<int>(left, i)) << i;
  }
  return result;
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }

template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes match 4 or 8 bytes");
  const sim::Exchange &left = sim::meet(mask, sim::kMatch, value);
  unsigned result = 0;
  for (unsigned i = 0; i < sim::kLanes; i++) {
    if (left.lanes >> i & 1 && std::memcmp(left.slots[i], &value, sizeof value) == 0) result |= 1u << i;
  }
  return result;
}

#define MILLRACE_SIM_REDUCE(T, name, kind, expression) \
  inline T name(unsigned mask, T v) { \
    return sim::reduce(sim::kind, mask, v, [](T a, T b) { return expression; }); \
  }
MILLRACE_SIM_REDUCE(unsigned, __reduce_add_sync, kReduceAdd, a + b)
MILLRACE_SIM_REDUCE(unsigned, __reduce_max_sync, kReduceMax, a > b ? a : b)
MILLRACE_SIM_REDUCE(unsigned, __reduce_min_sync, kReduceMin, a < b ? a : b)
MILLRACE_SIM_REDUCE(unsigned, __reduce_and_sync, kReduceAnd, a & b)
MILLRACE_SIM_REDUCE(unsigned, __reduce_or_sync, kReduceOr, a | b)
MILLRACE_SIM_REDUCE(unsigned, __reduce_xor_sync, kReduceXor, a ^ b)
MILLRACE_SIM_REDUCE(int, __reduce_add_sync, kReduceAdd, int(unsigned(a) + unsigned(b)))
MILLRACE_SIM_REDUCE(int, __reduce_max_sync, kReduceMax, a > b ? a : b)
MILLRACE_SIM_REDUCE(int, __reduce_min_sync, kReduceMin, a < b ? a : b)
#undef MILLRACE_SIM_REDUCE
inline unsigned __activemask() { sim::fail("__activemask says nothing that a kernel may rely on"); }
