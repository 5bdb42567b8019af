// Reductions whose order depends only on the number of threads.
#pragma once
#include "platform.cuh"

struct Add {
  template <class T> DEVICE T operator()(T a, T b) const { return a + b; }
};
struct Max {
  DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class T, class F> DEVICE T warp_reduce(T value, F combine) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, lanes));
  return value;
}

// Every thread gets the result. `scratch` has one place per warp; it may be used again after the
// next barrier.
template <int Threads, class T, class F> DEVICE T block_reduce(T value, T *scratch, F combine) {
  constexpr int kWarps = Threads / kWarp;
  value = warp_reduce(value, combine);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  T all = scratch[0];
#pragma unroll
  for (int w = 1; w < kWarps; w++) all = combine(all, scratch[w]);
  return all;
}
