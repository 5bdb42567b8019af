// Rows sorted by expert, and the rows that a block processes. They are found on the device, because
// only the device knows the number of rows of each expert.
#pragma once
#include "reduce.cuh"

// The work of one block: an expert and some of its sorted rows, [first, end).
struct ExpertRows {
  int expert, first, end;
};

// Finds the `index`-th piece of up to `size` rows, counted through all experts in order; `expert`
// is negative if there is none. `offsets` [experts + 1] holds the place of each expert's first row.
// All lanes of the warp must call it, and get the same result.
DEVICE ExpertRows find_expert_rows(const int *offsets, int experts, int size, int index) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < experts; base += kWarp) {
    const int expert = base + lane;
    const int first = expert < experts ? offsets[expert] : 0,
              end = expert < experts ? offsets[expert + 1] : 0;
    const int pieces = ceil_div(end - first, size);
    int up_to = pieces;
#pragma unroll
    for (int delta = 1; delta < kWarp; delta *= 2) {
      const int other = __shfl_up_sync(kAllLanes, up_to, delta);
      if (lane >= delta) up_to += other;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, before + up_to > index);
    if (beyond) {
      const int found = __ffs(int(beyond)) - 1;
      const int own_first = first + (index - before - (up_to - pieces)) * size;
      return {base + found, __shfl_sync(kAllLanes, own_first, found),
              __shfl_sync(kAllLanes, min(end, own_first + size), found)};
    }
    before += __shfl_sync(kAllLanes, up_to, kWarp - 1);
  }
  return {-1, 0, 0};
}

// How sorted rows are connected with rows of x and of the result.
struct RoutingParams {
  const int *sorted_rows;  // [sorted rows]: a (row, choice) pair each, as row · top_k + choice
  int top_k;
  int x_sorted;    // 1 if x is in the sorted order, 0 if it has one row for all choices of a row
  int out_sorted;  // 1 if the result stays in the sorted order, 0 if it has the order of the pairs
};

// The row of x that sorted row i multiplies.
DEVICE int x_row_of(const RoutingParams &r, int i) { return r.x_sorted ? i : r.sorted_rows[i] / r.top_k; }
// The row of the result that sorted row i is written to.
DEVICE int out_row_of(const RoutingParams &r, int i) { return r.out_sorted ? i : r.sorted_rows[i]; }
