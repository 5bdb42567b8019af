// Rows sorted by expert, and which of them a block works on; found on the device, because only the device knows the counts.
#pragma once
#include "reduce.cuh"

// The work of one block: an expert and some of its sorted rows, [first, end).
struct ExpertRows {
  int expert, first, end;
};

// The `index`-th piece of up to `size` rows, counted through all experts in order; `expert` is negative if there is none. `offsets` [experts + 1] says
// where each expert's rows begin. All lanes of the warp come and get the same.
DEVICE ExpertRows find_expert_rows(const int *offsets, int experts, int size, int index) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < experts; base += kWarp) {
    const int expert = base + lane;
    const int first = expert < experts ? offsets[expert] : 0, end = expert < experts ? offsets[expert + 1] : 0;
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
      return {base + found, __shfl_sync(kAllLanes, own_first, found), __shfl_sync(kAllLanes, min(end, own_first + size), found)};
    }
    before += __shfl_sync(kAllLanes, up_to, kWarp - 1);
  }
  return {-1, 0, 0};
}

// Which row of x the sorted row i has, and where its result goes. `sorted_rows` [sorted rows] names a (row, choice) pair each: row · top_k + choice.
struct Routing {
  const int *sorted_rows;
  int top_k;
  // Whether x is in the sorted order, or has one row for all choices of a row.
  int x_sorted;
  // Whether the result stays in the sorted order, or each row goes back to the place of its pair.
  int out_sorted;

  DEVICE int x_row(int i) const { return x_sorted ? i : sorted_rows[i] / top_k; }
  DEVICE int out_row(int i) const { return out_sorted ? i : sorted_rows[i]; }
};
