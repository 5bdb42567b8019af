// The kernel before decode attention: it lists the splits of a step.
#include "attention.cuh"
#include "ptx.cuh"
#include "splits.cuh"

EXPORT_CONSTANT int kPlanThreads = 1024;

// Parameters of the plan.
// Kernels: decode/decode_plan
struct DecodePlanParams {
  int *split_count;  // [1]
  DecodeSplitRecord *list;  // [capacity]
  int *starts;       // [rows + 1]: where a row's splits begin in the list
  SequenceParams sequences;  // the tables are not read
  int max_queries;
  int split_tokens;
  int capacity;
};

// Lists the splits of all sequences, in one block. `starts[row]` is the place of a row's first
// split in the list; `split_count` is the number of splits.
//
// Sequences without queries, or with more than `max_queries`, have no splits. Splits beyond
// `capacity` are left out; the host makes it large enough.
BOUNDED_KERNEL(decode_plan, kPlanThreads, 1, DecodePlanParams) {
  constexpr int Threads = kPlanThreads;
  SHARED(int, sums, Threads / kWarp);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  wait_for_previous_kernel();
  auto splits = [&](int row) {
    const int queries = p.sequences.query_start[row + 1] - p.sequences.query_start[row];
    if (queries == 0 || queries > p.max_queries) return Splits{0, 0};
    return splits_of(p.sequences.context[row],
                     lowest_visible(p.sequences.context[row], queries, p.sequences.window,
                                    p.sequences.prefix ? p.sequences.prefix[row] : 0),
                     p.split_tokens);
  };
  int before = 0;
  for (int first = 0; first < p.sequences.rows; first += Threads) {
    const int row = first + threadIdx.x;
    const int own = row < p.sequences.rows ? splits(row).count() : 0;
    int up_to = own;
#pragma unroll
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      const int below = __shfl_up_sync(kAllLanes, up_to, lanes);
      if (lane >= lanes) up_to += below;
    }
    if (lane == kWarp - 1) sums[warp] = up_to;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < Threads / kWarp; w++) {
      if (w == warp) up_to += all;
      all += sums[w];
    }
    if (row < p.sequences.rows) p.starts[row] = before + up_to - own;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.starts[p.sequences.rows] = before;
    *p.split_count = min(before, p.capacity);
  }
  let_next_kernel_start();
  for (int row = warp; row < p.sequences.rows; row += Threads / kWarp) {
    const Splits s = splits(row);
    if (s.count() == 0) continue;
    DecodeSplitRecord record;
    record.row = row;
    record.token = p.sequences.query_start[row];
    record.queries = p.sequences.query_start[row + 1] - record.token;
    record.context = p.sequences.context[row];
    record.prefix = p.sequences.prefix ? p.sequences.prefix[row] : 0;
    record.lowest = lowest_visible(record.context, record.queries, p.sequences.window, record.prefix);
    record.start = p.starts[row];
    for (int i = lane; i < s.count() && record.start + i < p.capacity; i += kWarp) {
      record.split = s.first + i;
      p.list[record.start + i] = record;
    }
  }
}
