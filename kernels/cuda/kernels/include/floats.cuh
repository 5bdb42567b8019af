// Loads of f32 constants beside activations of 16 bits: as many floats as a vector of activations
// has elements.
#pragma once
#include "types.cuh"

// Neighboring floats, read in accesses of up to 16 bytes.
template <int N> struct Floats {
  float at[N];
};
template <int N> DEVICE Floats<N> load_floats(const float *p) {
  constexpr int kPiece = N < 4 ? N : 4;
  Floats<N> all;
#pragma unroll
  for (int i = 0; i < N; i += kPiece) {
    const Vec<float, kPiece> piece = load_vec<float, kPiece>(p + i);
#pragma unroll
    for (int j = 0; j < kPiece; j++) all.at[i + j] = piece.at[j];
  }
  return all;
}
