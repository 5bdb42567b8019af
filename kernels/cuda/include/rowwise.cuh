// Kernels that touch each element once.
//
// Rows lie along x of the grid, pieces of a row along y: a thread takes kUnroll vectors of N elements, all loaded before the first is
// stored, so that enough bytes are in flight. N = 1 is the plain version for any width and address.
#pragma once
#include "floats.cuh"
#include "ptx.cuh"

constexpr int kRowThreads = 256;
constexpr int kUnroll = 2;

// Calls `load(k, v)` for this thread's vectors v of a row (k counts them), then `finish(k, v)`.
template <class Load, class Finish> DEVICE void each_vector(int vectors, Load load, Finish finish) {
  const int first = blockIdx.y * (kRowThreads * kUnroll) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kUnroll; k++) {
    const int v = first + k * kRowThreads;
    if (v < vectors) load(k, v);
  }
  let_next_kernel_start();
#pragma unroll
  for (int k = 0; k < kUnroll; k++) {
    const int v = first + k * kRowThreads;
    if (v < vectors) finish(k, v);
  }
}
