// The ranks' columns of a matrix side by side.
#include "ptx.cuh"

constexpr int kThreads = 256;

// whole[row, rank * part_cols + c] = parts[rank, row, c]; columns beyond `whole_cols` are padding. A block does a piece of one row.
KERNEL place_columns(float *whole, const float *parts, int rows, int part_cols, int whole_cols) {
  wait_for_previous_kernel();
  const int row = blockIdx.y, col = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (col >= whole_cols) return;
  const int rank = col / part_cols;
  const float value = parts[(int64_t(rank) * rows + row) * part_cols + col % part_cols];
  let_next_kernel_start();
  whole[int64_t(row) * whole_cols + col] = value;
}
REGISTER(place_columns)
