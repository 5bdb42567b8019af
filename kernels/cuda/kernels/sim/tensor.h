// Asynchronous copies and the tensor core's instructions, by their definitions in the PTX manual.
#pragma once
#include "machine.h"

namespace sim {

inline void check_aligned(const void *p, size_t bytes, const char *message) {
  if (reinterpret_cast<uintptr_t>(p) % bytes) fail(message);
}

// The copy happens when it is waited for and not before: until then the destination holds garbage.
inline void copy_async(void *to, const void *from, unsigned size, unsigned bytes, bool constant = false) {
  Fiber *f = machine.fiber;
  if (is_ahead() && !constant) fail("a copy of memory begins before the wait for the kernel before");
  if (f->last_copy - f->first_copy >= kCopies)
    fail("more asynchronous copies in flight than the simulated device keeps");
  check_aligned(to, size, "misaligned destination of an asynchronous copy");
  check_shared(to, size, "an asynchronous copy writes outside the block's shared memory");
  if (bytes) check_aligned(from, size, "misaligned source of an asynchronous copy");
  std::memset(to, 0x7f, size);
  f->copies[f->last_copy++ % kCopies] = {to, from, bytes, size, f->group};
}
inline void commit_copies() { machine.fiber->group++; }
inline void wait_copies(unsigned pending) {
  Fiber *f = machine.fiber;
  while (f->first_copy != f->last_copy) {
    const Copy &c = f->copies[f->first_copy % kCopies];
    if (c.group + pending >= f->group) break;
    std::memset(c.to, 0, c.size);
    if (c.bytes) std::memcpy(c.to, c.from, c.bytes);
    f->first_copy++;
  }
}

// The meeting of the tensor core's instructions, which need all lanes of a whole warp.
template <class T> inline const Exchange &meet_all(Operation operation, const T &value) {
  const Exchange &left = meet(~0u, operation, value);
  if (left.lanes != ~0u) fail("an instruction of the tensor core needs all 32 lanes of the warp");
  return left;
}

// ldmatrix: lanes 8i to 8i+7 name the rows of matrix i, eight 16-bit elements each. A row is read
// when its lane arrives. Whether writes of other lanes are seen until the last lane has arrived, or
// right after, is not defined.
template <int N, bool Transposed> inline void load_matrices(uint32_t (&r)[N], const void *row) {
  struct Row { uint16_t at[8]; };
  const unsigned lane = machine.fiber->lane;
  Row own{};
  if (lane < N * 8) {
    check_aligned(row, 16, "misaligned row of a matrix");
    check_shared(row, 16, "a row of a matrix lies outside the block's shared memory");
    std::memcpy(&own, row, 16);
  }
  const Exchange &left = meet_all(kMatrix, own);
  for (int i = 0; i < N; i++) {
    uint32_t halves[2];
    for (unsigned j = 0; j < 2; j++) {
      const unsigned at_row = Transposed ? lane % 4 * 2 + j : lane / 4;
      const unsigned at_col = Transposed ? lane / 4 : lane % 4 * 2 + j;
      halves[j] = slot<Row>(left, unsigned(i) * 8 + at_row).at[at_col];
    }
    r[i] = halves[0] | halves[1] << 16;
  }
}

// movmatrix: every lane holds two neighbors of a row of an 8x8 matrix, and gets two neighbors of a
// column.
inline uint32_t transpose_matrix(uint32_t pair) {
  const Exchange &left = meet_all(kMatrix, pair);
  const unsigned lane = machine.fiber->lane, column = lane / 4, row = lane % 4 * 2;
  const auto element = [&](unsigned r) {
    return slot<uint32_t>(left, r * 4 + column / 2) >> 16 * (column % 2) & 0xffff;
  };
  return element(row) | element(row + 1) << 16;
}

// mma.m16n8: D += A·B with A [16, K] in rows and B [K, 8] in columns. A register holds 4 /
// sizeof(element) neighbors along K; `decode(register, i)` returns the i-th. The sum runs along K
// in order, in f32 (a GPU rounds differently).
template <int PerRegister, class F>
inline void mma_m16n8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], F decode) {
  struct Registers { uint32_t a[4], b[2]; };
  const Registers own{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Exchange &left_by = meet_all(kMma, own);
  const unsigned lane = machine.fiber->lane, group = lane / 4, column = lane % 4 * 2;
  for (unsigned half = 0; half < 2; half++) {
    for (unsigned t = 0; t < 4; t++) {
      const auto of_a = slot<Registers>(left_by, group * 4 + t);
      const auto of_b0 = slot<Registers>(left_by, column * 4 + t);
      const auto of_b1 = slot<Registers>(left_by, (column + 1) * 4 + t);
      for (int i = 0; i < PerRegister; i++) {
        const float upper = decode(of_a.a[2 * half], i), lower = decode(of_a.a[2 * half + 1], i);
        const float left = decode(of_b0.b[half], i), right = decode(of_b1.b[half], i);
        d[0] += upper * left;
        d[1] += upper * right;
        d[2] += lower * left;
        d[3] += lower * right;
      }
    }
  }
}

}  // namespace sim
