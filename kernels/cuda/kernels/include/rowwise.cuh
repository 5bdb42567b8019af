// Kernels that touch each element once.
//
// The grid is [rows, pieces of a row]. A thread processes kUnroll vectors of N elements and loads
// all of them before it stores the first, so that enough bytes are in flight. N = 1 is the plain
// version for any width and address.
#pragma once
#include "floats.cuh"
#include "ptx.cuh"

EXPORT_CONSTANT int kRowThreads = 256;
// Vectors that a thread processes.
EXPORT_CONSTANT int kUnroll = 2;

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
