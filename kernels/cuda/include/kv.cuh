// The paged cache of keys and values.
//
// Keys and values of one layer are two arrays [blocks, kv_heads, block_size, head_dim]: what one head needs of a block lies in one piece. Cached as
// e4m3 or int8, each row of head_dim elements has a scale of its own, f32 [blocks, kv_heads, block_size]; value = element · scale.
#pragma once
#include "types.cuh"

// The fast kernels know this size of a block; the plain ones take any.
constexpr int kBlockTokens = 16;

// Index of the row of `position` and `head` among all rows of head_dim elements. `table` holds the sequence's blocks in order.
DEVICE int64_t kv_row(const int *table, int position, int head, int kv_heads, int block_size) {
  return (int64_t(table[position / block_size]) * kv_heads + head) * block_size + position % block_size;
}
