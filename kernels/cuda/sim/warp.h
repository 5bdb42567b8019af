// Operations among the lanes of a warp. Any mask is right as long as the lanes it names all come.
#pragma once
#include "machine.h"

namespace sim {
template <class T> inline T shuffle(unsigned mask, T value, unsigned from, int width) {
  if (width < 1 || width > 32 || (width & (width - 1))) fail("the width of a shuffle must be a power of two up to 32");
  // Looked up before the lanes meet: after it, one of them may have ended already.
  const unsigned alive = machine.warps[machine.fiber->warp].alive;
  auto *slots = meet(mask, kShuffle, value);
  if (!(mask & alive & (1u << from))) fail("a shuffle reads from a lane that does not take part");
  return slot<T>(slots, from);
}
inline unsigned lane() { return machine.fiber->lane; }

template <class T, class F> inline T reduce(unsigned mask, T value, F combine) {
  auto *slots = meet(mask, kReduce, value);
  const unsigned lanes = mask & machine.warps[machine.fiber->warp].alive;
  T result{};
  bool first = true;
  for (unsigned i = 0; i < kLanes; i++) {
    if (!(lanes >> i & 1)) continue;
    result = first ? slot<T>(slots, i) : combine(result, slot<T>(slots, i));
    first = false;
  }
  return result;
}
}  // namespace sim

inline void __syncwarp(unsigned mask = 0xffffffffu) { sim::meet(mask, sim::kSync, 0); }

template <class T> inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return sim::shuffle(mask, value, (sim::lane() & ~unsigned(width - 1)) | (unsigned(from) & unsigned(width - 1)), width);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned from = sim::lane() ^ unsigned(bits), segment = sim::lane() & ~unsigned(width - 1);
  return sim::shuffle(mask, value, from < segment + unsigned(width) ? from : sim::lane(), width);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned at = sim::lane() & unsigned(width - 1);
  return sim::shuffle(mask, value, at + delta < unsigned(width) ? sim::lane() + delta : sim::lane(), width);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned at = sim::lane() & unsigned(width - 1);
  return sim::shuffle(mask, value, at >= delta ? sim::lane() - delta : sim::lane(), width);
}

inline unsigned __ballot_sync(unsigned mask, int vote) {
  auto *slots = sim::meet(mask, sim::kBallot, int(vote != 0));
  const unsigned lanes = mask & sim::machine.warps[sim::machine.fiber->warp].alive;
  unsigned result = 0;
  for (unsigned i = 0; i < sim::kLanes; i++) {
    if (lanes >> i & 1) result |= unsigned(sim::slot<int>(slots, i)) << i;
  }
  return result;
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }

template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
  auto *slots = sim::meet(mask, sim::kMatch, value);
  const unsigned lanes = mask & sim::machine.warps[sim::machine.fiber->warp].alive;
  unsigned result = 0;
  for (unsigned i = 0; i < sim::kLanes; i++) {
    if (lanes >> i & 1 && sim::slot<T>(slots, i) == value) result |= 1u << i;
  }
  return result;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return sim::reduce(mask, v, [](unsigned a, unsigned b) { return a + b; }); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) { return sim::reduce(mask, v, [](unsigned a, unsigned b) { return a > b ? a : b; }); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return sim::reduce(mask, v, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
inline int __reduce_add_sync(unsigned mask, int v) { return sim::reduce(mask, v, [](int a, int b) { return a + b; }); }
inline int __reduce_max_sync(unsigned mask, int v) { return sim::reduce(mask, v, [](int a, int b) { return a > b ? a : b; }); }
inline int __reduce_min_sync(unsigned mask, int v) { return sim::reduce(mask, v, [](int a, int b) { return a < b ? a : b; }); }
inline unsigned __activemask() { sim::fail("__activemask says nothing that a kernel may rely on"); }
