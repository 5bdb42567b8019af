// Places the columns that each rank computed next to each other in one matrix.
#include "ptx.cuh"

EXPORT_CONSTANT int kColumnThreads = 256;

// Parameters of `place_columns`.
// Kernels: columns/place_columns
struct PlaceColumnsParams {
  float *whole;        // [rows, whole_cols]
  const float *parts;  // [ranks, rows, part_cols]
  int rows;
  int part_cols;
  int whole_cols;
};

// whole[row, rank * part_cols + c] = parts[rank, row, c]. Columns beyond `whole_cols` are padding.
// The grid is [pieces of a row, rows].
KERNEL(place_columns, PlaceColumnsParams) {
  wait_for_previous_kernel();
  const int row = blockIdx.y, col = int(blockIdx.x) * kColumnThreads + int(threadIdx.x);
  if (col >= p.whole_cols) return;
  const int rank = col / p.part_cols;
  const float value = p.parts[(int64_t(rank) * p.rows + row) * p.part_cols + col % p.part_cols];
  let_next_kernel_start();
  p.whole[int64_t(row) * p.whole_cols + col] = value;
}
