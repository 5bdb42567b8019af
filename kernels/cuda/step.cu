// What a step needs to know, made on the device, so that the host can ask for a step before it knows what the last one sampled.
//
// Each slot keeps its tokens (the prompt, then what is sampled) and its block table in device memory. A step's rows name a slot and a
// range of positions; sampled tokens are appended in stream order before the next step reads them. All sizes come from device
// memory and grids from upper bounds, so that one graph serves every step up to its size.
#include "ptx.cuh"
#include "reduce.cuh"

// The words of a row, as the host writes them.
struct __align__(16) StepRow {
  int slot, start, count, sample;
};
// to[slot, at..at + length] = words[from..from + length].
struct __align__(16) Range {
  int slot, at, from, length;
};

constexpr int kStepThreads = 256;

// New tokens of slots, new blocks of their tables, or their biases.
DEVICE void write_ranges(int *to, const int *words, const Range *ranges, const int *count, int stride) {
  wait_for_previous_kernel();
  if (int(blockIdx.x) >= *count) return;
  const Range range = ranges[blockIdx.x];
  let_next_kernel_start();
  int *at = to + int64_t(range.slot) * stride + range.at;
  for (int i = threadIdx.x; i < range.length; i += kStepThreads) at[i] = words[range.from + i];
}

// Sums of all threads before this one.
DEVICE int sum_before(int value, int *scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = value;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  int before = 0;
  for (int w = 0; w < warp; w++) before += scratch[w];
  return before + sum - value;
}

struct StepOut {
  int *query_start;               // [most_rows + 1]
  int *context;                   // [most_rows]
  int *tables;                    // [most_rows, table_stride]
  int *tokens, *positions, *slots;  // [most_tokens]
  int *outputs;                   // [most_rows]: tokens of the step that are sampled from, in the order of the rows
  int *output_slots, *output_at;  // [most_rows]: where what is sampled goes
  int *counts;                    // [2]: tokens, outputs
};

// The first blocks do 256 tokens each, the others copy one row's table.
DEVICE void prepare_step(const StepOut &out, const StepRow *rows, const int *row_count, const int *history, int history_stride,
                         const int *slot_tables, int table_stride, int most_rows, int most_tokens, int block_size) {
  DYNAMIC_SHARED(int, begins);  // [most_rows + 1]
  SHARED(int, count_scratch, kStepThreads / kWarp);
  SHARED(int, output_scratch, kStepThreads / kWarp);
  SHARED(int, output_count, 1);
  wait_for_previous_kernel();
  const int n = *row_count, token_blocks = ceil_div(most_tokens, kStepThreads);
  let_next_kernel_start();
  if (int(blockIdx.x) >= token_blocks) {
    const int r = int(blockIdx.x) - token_blocks;
    if (r >= n) return;
    const StepRow row = rows[r];
    const int blocks = ceil_div(row.start + row.count, block_size);
    const int *from = slot_tables + int64_t(row.slot) * table_stride;
    for (int b = threadIdx.x; b < blocks; b += kStepThreads) out.tables[int64_t(r) * table_stride + b] = from[b];
    return;
  }
  // Each thread adds up some neighbouring rows.
  const int each = ceil_div(most_rows, kStepThreads), first = min(int(threadIdx.x) * each, n), end = min(first + each, n);
  int tokens = 0, samples = 0;
  for (int r = first; r < end; r++) {
    tokens += rows[r].count;
    samples += rows[r].sample != 0;
  }
  int begin = sum_before(tokens, count_scratch), output = sum_before(samples, output_scratch);
  const bool writes = blockIdx.x == 0;
  if (writes && threadIdx.x == kStepThreads - 1) {
    out.counts[0] = begin + tokens;
    out.counts[1] = output + samples;
    *output_count = output + samples;
  }
  if (threadIdx.x == kStepThreads - 1) begins[n] = begin + tokens;
  for (int r = first; r < end; r++) {
    const StepRow row = rows[r];
    begins[r] = begin;
    if (writes) {
      out.context[r] = row.start + row.count;
      if (row.sample) {
        out.outputs[output] = begin + row.count - 1;
        out.output_slots[output] = row.slot;
        out.output_at[output] = row.start + row.count;
        output++;
      }
    }
    begin += row.count;
  }
  __syncthreads();
  if (writes) {
    for (int r = *output_count + int(threadIdx.x); r < most_rows; r += kStepThreads) out.outputs[r] = -1;
    for (int r = threadIdx.x; r <= most_rows; r += kStepThreads) out.query_start[r] = begins[min(r, n)];
    for (int r = n + int(threadIdx.x); r < most_rows; r += kStepThreads) out.context[r] = 0;
  }
  const int t = int(blockIdx.x) * kStepThreads + int(threadIdx.x);
  if (t >= most_tokens) return;
  int token = -1, position = 0, slot = -1;
  if (t < begins[n]) {
    // The last row that begins at or before t; rows are not empty.
    int low = 0, high = n - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begins[middle] <= t) low = middle;
      else high = middle - 1;
    }
    const StepRow row = rows[low];
    position = row.start + t - begins[low];
    token = history[int64_t(row.slot) * history_stride + position];
    slot = slot_tables[int64_t(row.slot) * table_stride + position / block_size] * block_size + position % block_size;
  }
  out.tokens[t] = token;
  out.positions[t] = position;
  out.slots[t] = slot;
}

// The obvious version: one thread does it all, row after row.
DEVICE void prepare_step_plain(const StepOut &out, const StepRow *rows, int n, const int *history, int history_stride,
                               const int *slot_tables, int table_stride, int most_rows, int most_tokens, int block_size) {
  int token = 0, output = 0;
  for (int r = 0; r < n; r++) {
    const StepRow row = rows[r];
    const int end = row.start + row.count;
    const int *table = slot_tables + int64_t(row.slot) * table_stride;
    for (int b = 0; b < ceil_div(end, block_size); b++) out.tables[int64_t(r) * table_stride + b] = table[b];
    out.query_start[r] = token;
    out.context[r] = end;
    for (int position = row.start; position < end; position++, token++) {
      out.tokens[token] = history[int64_t(row.slot) * history_stride + position];
      out.positions[token] = position;
      out.slots[token] = table[position / block_size] * block_size + position % block_size;
    }
    if (!row.sample) continue;
    out.outputs[output] = token - 1;
    out.output_slots[output] = row.slot;
    out.output_at[output] = end;
    output++;
  }
  out.counts[0] = token;
  out.counts[1] = output;
  for (int r = n; r <= most_rows; r++) out.query_start[r] = token;
  for (int r = n; r < most_rows; r++) out.context[r] = 0;
  for (; output < most_rows; output++) out.outputs[output] = -1;
  for (; token < most_tokens; token++) {
    out.tokens[token] = out.slots[token] = -1;
    out.positions[token] = 0;
  }
}

// history[output_slots[i], output_at[i]] = sampled[i]; what has no room is only reported.
DEVICE void append_sampled(int *history, const int *sampled, const int *output_slots, const int *output_at, const int *counts, int history_stride) {
  wait_for_previous_kernel();
  const int i = int(blockIdx.x) * kStepThreads + int(threadIdx.x);
  if (i >= counts[1]) return;
  const int slot = output_slots[i], at = output_at[i];
  if (at >= history_stride) return;
  history[int64_t(slot) * history_stride + at] = sampled[i];
}

KERNEL write_ranges_i32(int *to, const int *words, const Range *ranges, const int *count, int stride) {
  write_ranges(to, words, ranges, count, stride);
}
REGISTER(write_ranges_i32)
KERNEL prepare_step_i32(int *query_start, int *context, int *tables, int *tokens, int *positions, int *slots, int *outputs,
                        int *output_slots, int *output_at, int *counts, const StepRow *rows, const int *row_count, const int *history,
                        int history_stride, const int *slot_tables, int table_stride, int most_rows, int most_tokens, int block_size) {
  const StepOut out = {query_start, context, tables, tokens, positions, slots, outputs, output_slots, output_at, counts};
  prepare_step(out, rows, row_count, history, history_stride, slot_tables, table_stride, most_rows, most_tokens, block_size);
}
REGISTER(prepare_step_i32)
KERNEL prepare_step_plain_i32(int *query_start, int *context, int *tables, int *tokens, int *positions, int *slots, int *outputs,
                              int *output_slots, int *output_at, int *counts, const StepRow *rows, const int *row_count,
                              const int *history, int history_stride, const int *slot_tables, int table_stride, int most_rows,
                              int most_tokens, int block_size) {
  const StepOut out = {query_start, context, tables, tokens, positions, slots, outputs, output_slots, output_at, counts};
  wait_for_previous_kernel();
  prepare_step_plain(out, rows, *row_count, history, history_stride, slot_tables, table_stride, most_rows, most_tokens, block_size);
}
REGISTER(prepare_step_plain_i32)
KERNEL append_sampled_i32(int *history, const int *sampled, const int *output_slots, const int *output_at, const int *counts,
                          int history_stride) {
  append_sampled(history, sampled, output_slots, output_at, counts, history_stride);
}
REGISTER(append_sampled_i32)
