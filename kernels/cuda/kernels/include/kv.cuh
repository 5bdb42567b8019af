// The paged cache of keys and values.
//
// Keys and values of one layer are two arrays [blocks, kv_heads, block_size, head_dim], so that the
// part of a block that one head reads is contiguous. If they are e4m3 or int8, each row of head_dim
// elements has a scale, f32 [blocks, kv_heads, block_size], and value = element · scale.
#pragma once
#include "types.cuh"

// Tokens of a block for the fast kernels. The plain kernels take any number.
EXPORT_CONSTANT int kBlockTokens = 16;

// The index of the row of `position` and `head` among all rows of head_dim elements. `table` holds
// the sequence's blocks in order.
DEVICE int64_t kv_row(const int *table, int position, int head, int kv_heads, int block_size) {
  return (int64_t(table[position / block_size]) * kv_heads + head) * block_size + position % block_size;
}
