// The arithmetic of decode attention on one cached block of 16 tokens, and the layout of such a
// block in shared memory.
//
// Dot products take the features in a permuted order: thread t of a quad has features 32j + 8t to
// 32j + 8t + 7, which it reads with one access from a row of keys and from a query. The result of
// the MMA does not change, because both operands have the same order.
#pragma once
#include "dequant.cuh"
#include "kv.cuh"

// D: features of a row, a multiple of 32. Columns: groups of 8 query rows.
template <class T, class C, int D, int Columns> struct DecodeTile {
  static constexpr bool kBytes = sizeof(C) == 1;
  static constexpr int kChunks = D * int(sizeof(C)) / 16;  // of 16 bytes in a row
  static constexpr int kTileBytes = kBlockTokens * kChunks * 16;

  // Chunks of a row are stored in an order that depends on the row, so that the reads of a warp hit
  // all banks: chunk c at c ^ twist(row). Keys are read 2 rows of 64 bytes (8 of 32, if elements
  // are bytes) at a time, values 8 rows of 16 bytes.
  template <bool keys> static constexpr DEVICE int twist(int row) {
    if (!keys) return kChunks % 8 == 0 ? row & 7 : kChunks % 8 == 4 ? row >> 1 & 3 : row >> 2 & 1;
    if (!kBytes) return kChunks % 8 == 0 ? (row & 1) << 2 : 0;
    return kChunks % 8 == 0 ? (row & 3) << 1 : kChunks % 8 == 4 ? row & 2 : 0;
  }
  // The place of chunk `c` of a row in a tile, in bytes.
  template <bool keys> static DEVICE unsigned place(int row, int c) {
    return (row * kChunks + (c ^ twist<keys>(row))) * 16;
  }
  // The place `bytes` further to the right in the row. It costs nothing if `bytes` is known at
  // compile time: the bits that twists change are flipped, the others added. The bits of `bytes`
  // must be zero in the place's own chunk before its twist.
  template <bool keys> static DEVICE unsigned advance(unsigned place, unsigned bytes) {
    constexpr unsigned twisted = !keys || twist<true>(7) != 0 ? (kChunks % 8 == 0   ? 127
                                                                 : kChunks % 8 == 4 ? 63
                                                                                    : 31)
                                                              : 0;
    return (place ^ (bytes & twisted)) + (bytes & ~twisted);
  }

  // Scores of 16 tokens: s[column][0..1] of token g, s[column][2..3] of token g + 8, two query rows
  // each.
  static DEVICE void multiply_keys(float (&s)[Columns][4], const uint32_t (&q)[Columns][D / 32][4],
                                   const unsigned char *tile) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    float other[Columns][4];  // a second chain of sums, so that MMAs wait for each other half as long
#pragma unroll
    for (int n = 0; n < Columns; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] = other[n][e] = 0.0f;
    }
    // Row g + 8 is twisted like row g.
    constexpr unsigned kBelow = 8 * kChunks * 16;
    const unsigned mine = kBytes ? place<true>(g, t / 2) + t % 2 * 8 : place<true>(g, t);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      uint32_t low[4], high[4];
      const unsigned char *at = tile + advance<true>(mine, j * 32 * unsigned(sizeof(C)));
      if constexpr (kBytes) {
        const uint2 x = *reinterpret_cast<const uint2 *>(at);
        const uint2 y = *reinterpret_cast<const uint2 *>(at + kBelow);
        const Bytes2 x0 = Dequant<T, C>::widen(x.x), x1 = Dequant<T, C>::widen(x.y);
        const Bytes2 y0 = Dequant<T, C>::widen(y.x), y1 = Dequant<T, C>::widen(y.y);
        low[0] = x0.even, low[1] = y0.even, low[2] = x0.odd, low[3] = y0.odd;
        high[0] = x1.even, high[1] = y1.even, high[2] = x1.odd, high[3] = y1.odd;
      } else {
        const uint4 x = *reinterpret_cast<const uint4 *>(at);
        const uint4 y = *reinterpret_cast<const uint4 *>(at + kBelow);
        low[0] = x.x, low[1] = y.x, low[2] = x.y, low[3] = y.y;
        high[0] = x.z, high[1] = y.z, high[2] = x.w, high[3] = y.w;
      }
#pragma unroll
      for (int n = 0; n < Columns; n++) {
        const uint32_t first[2] = {q[n][j][0], q[n][j][1]}, second[2] = {q[n][j][2], q[n][j][3]};
        mma_m16n8k16<T>(s[n], low, first);
        mma_m16n8k16<T>(other[n], high, second);
      }
    }
#pragma unroll
    for (int n = 0; n < Columns; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) s[n][e] += other[n][e];
    }
  }

  // o += V^T · p.
  static DEVICE void multiply_values(float (&o)[D / 16][Columns][4], const uint32_t (&p)[Columns][2],
                                     const unsigned char *tile) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (kBytes) {
      // A pair of bytes moves as one element: its register holds two features of two tokens.
      const unsigned mine = place<false>(lane % 16, lane / 16);
#pragma unroll
      for (int i = 0; i < D / 16; i += 2) {
        uint32_t r[4];
        load_matrices_transposed(r, tile + advance<false>(mine, i * 16));
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const Bytes2 x = Dequant<T, C>::widen(r[2 * h]), y = Dequant<T, C>::widen(r[2 * h + 1]);
          const uint32_t v[4] = {x.even, x.odd, y.even, y.odd};
#pragma unroll
          for (int n = 0; n < Columns; n++) mma_m16n8k16<T>(o[i + h][n], v, p[n]);
        }
      }
    } else {
      const unsigned mine = place<false>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        uint32_t v[4];
        load_matrices_transposed(v, tile + advance<false>(mine, i * 32));
#pragma unroll
        for (int n = 0; n < Columns; n++) mma_m16n8k16<T>(o[i][n], v, p[n]);
      }
    }
  }

  // The feature whose sum is o[i][.][2 * half].
  static DEVICE int feature(int i, int half) {
    const int g = threadIdx.x % kWarp / 4;
    return kBytes ? 16 * i + 2 * g + half : 16 * i + 8 * half + g;
  }
};
