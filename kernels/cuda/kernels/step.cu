// Computes the inputs of a step on the device, so that the host can submit a step before it knows
// the tokens that the last one sampled.
//
// Each slot keeps its tokens (the prompt, then the sampled tokens) and its block table in device
// memory. A step's rows name a slot and a range of positions; sampled tokens are appended in stream
// order before the next step reads them. All sizes come from device memory and grids from upper
// bounds, so that one graph serves every step up to its size.
#include "ptx.cuh"
#include "reduce.cuh"
#include "step_rows.cuh"

// The prefix of a row's sequence. Its tokens attend to each other in both directions.
struct __align__(8) StepPrefixRecord {
  int length;
  int anchor;  // the position that stands for all later tokens on the first axis of a rotation
};
// A copy of words into a slot: to[slot, at..at + length] = words[from..from + length].
struct __align__(16) SlotWriteRecord {
  int slot;
  int at;
  int from;
  int length;
};

EXPORT_CONSTANT int kStepThreads = 256;
// Bytes of dynamic shared memory of `prepare_step`: where each row begins.
EXPORT_FUNCTION int prepare_step_shared_bytes(int max_rows) { return (max_rows + 1) * 4; }

// Parameters of the copies into slots.
// Kernels: step/write_ranges_i32
struct WriteRangesParams {
  int *to;                        // [slots, stride]
  const int *words;
  const SlotWriteRecord *ranges;  // [count]
  const int *count;               // [1]
  int stride;
};

// What the kernels of a step read.
struct StepOutputParams {
  int *query_start;   // [max_rows + 1]
  int *context;       // [max_rows]
  int *prefix;        // [max_rows]
  int *tables;        // [max_rows, table_stride]
  int *tokens;        // [max_tokens]
  int *positions;     // [max_tokens]
  int *axes;          // [2, max_tokens]: positions on the axes of a rotation that has two
  int *slots;         // [max_tokens]
  int *outputs;       // [max_rows]: tokens of the step that are sampled from, in the order of the rows
  int *output_slots;  // [max_rows]: the slot that gets the sampled token
  int *output_at;     // [max_rows]: the position that the sampled token gets
  int *counts;        // [2]: tokens, outputs
};

// Parameters of the preparation of a step.
// Kernels: step/prepare_step_i32, step/prepare_step_plain_i32
struct PrepareStepParams {
  StepOutputParams out;
  const StepRowRecord *rows;  // [row_count]
  const StepPrefixRecord *prefixes;  // [row_count]
  const int *row_count;       // [1]
  const int *history;         // [slots, history_stride]
  const int *slot_tables;     // [slots, table_stride]
  int history_stride;
  int table_stride;
  int max_rows;
  int max_tokens;
  int block_size;
};

// Parameters of the appending of sampled tokens.
// Kernels: step/append_sampled_i32
struct AppendSampledParams {
  int *history;             // [slots, history_stride]
  const int *sampled;       // [max_rows]
  const int *output_slots;  // [max_rows]
  const int *output_at;     // [max_rows]
  const int *counts;        // [2]: tokens, outputs
  int history_stride;
};

// Writes new tokens of slots, new blocks of their tables, or their biases.
DEVICE void write_ranges(const WriteRangesParams &p) {
  wait_for_previous_kernel();
  if (int(blockIdx.x) >= *p.count) return;
  const SlotWriteRecord range = p.ranges[blockIdx.x];
  let_next_kernel_start();
  int *at = p.to + int64_t(range.slot) * p.stride + range.at;
  for (int i = threadIdx.x; i < range.length; i += kStepThreads) at[i] = p.words[range.from + i];
}

// The sum over all threads before this one.
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

// The position of a token on one of the axes: the tokens of the prefix are counted on the first
// one, and those after it on the second one, from 1.
DEVICE int position_on_axis(int axis, int position, const StepPrefixRecord &prefix) {
  if (position < prefix.length) return axis == 0 ? position : 0;
  return axis == 0 ? prefix.anchor : position - prefix.length + 1;
}

// Each of the first blocks processes 256 tokens; each of the others copies one row's table.
DEVICE void prepare_step(const PrepareStepParams &p) {
  DYNAMIC_SHARED(int, begins);  // [max_rows + 1]
  SHARED(int, count_scratch, kStepThreads / kWarp);
  SHARED(int, output_scratch, kStepThreads / kWarp);
  SHARED(int, output_count, 1);
  wait_for_previous_kernel();
  const int n = *p.row_count, token_blocks = ceil_div(p.max_tokens, kStepThreads);
  let_next_kernel_start();
  if (int(blockIdx.x) >= token_blocks) {
    const int r = int(blockIdx.x) - token_blocks;
    if (r >= n) return;
    const StepRowRecord row = p.rows[r];
    const int blocks = ceil_div(row.start + row.count, p.block_size);
    const int *from = p.slot_tables + int64_t(row.slot) * p.table_stride;
    for (int b = threadIdx.x; b < blocks; b += kStepThreads)
      p.out.tables[int64_t(r) * p.table_stride + b] = from[b];
    return;
  }
  // Each thread adds up some neighboring rows.
  const int each = ceil_div(p.max_rows, kStepThreads), first = min(int(threadIdx.x) * each, n),
            end = min(first + each, n);
  int tokens = 0, samples = 0;
  for (int r = first; r < end; r++) {
    tokens += p.rows[r].count;
    samples += p.rows[r].sample != 0;
  }
  int begin = sum_before(tokens, count_scratch), output = sum_before(samples, output_scratch);
  const bool writes = blockIdx.x == 0;
  if (writes && threadIdx.x == kStepThreads - 1) {
    p.out.counts[0] = begin + tokens;
    p.out.counts[1] = output + samples;
    *output_count = output + samples;
  }
  if (threadIdx.x == kStepThreads - 1) begins[n] = begin + tokens;
  for (int r = first; r < end; r++) {
    const StepRowRecord row = p.rows[r];
    begins[r] = begin;
    if (writes) {
      p.out.context[r] = row.start + row.count;
      p.out.prefix[r] = p.prefixes[r].length;
      if (row.sample) {
        p.out.outputs[output] = begin + row.count - 1;
        p.out.output_slots[output] = row.slot;
        p.out.output_at[output] = row.start + row.count;
        output++;
      }
    }
    begin += row.count;
  }
  __syncthreads();
  if (writes) {
    for (int r = *output_count + int(threadIdx.x); r < p.max_rows; r += kStepThreads) p.out.outputs[r] = -1;
    for (int r = threadIdx.x; r <= p.max_rows; r += kStepThreads) p.out.query_start[r] = begins[min(r, n)];
    for (int r = n + int(threadIdx.x); r < p.max_rows; r += kStepThreads)
      p.out.context[r] = p.out.prefix[r] = 0;
  }
  const int t = int(blockIdx.x) * kStepThreads + int(threadIdx.x);
  if (t >= p.max_tokens) return;
  int token = -1, position = 0, slot = -1;
  StepPrefixRecord prefix = {1, 0};  // padding has position 0 on both axes
  if (t < begins[n]) {
    // The last row that begins at or before t; rows are not empty.
    int low = 0, high = n - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begins[middle] <= t) low = middle;
      else high = middle - 1;
    }
    const StepRowRecord row = p.rows[low];
    position = row.start + t - begins[low];
    prefix = p.prefixes[low];
    token = p.history[int64_t(row.slot) * p.history_stride + position];
    slot = p.slot_tables[int64_t(row.slot) * p.table_stride + position / p.block_size] * p.block_size +
           position % p.block_size;
  }
  p.out.tokens[t] = token;
  p.out.positions[t] = position;
  for (int axis = 0; axis < 2; axis++)
    p.out.axes[axis * p.max_tokens + t] = position_on_axis(axis, position, prefix);
  p.out.slots[t] = slot;
}

// The plain version: one thread processes row after row.
DEVICE void prepare_step_plain(const PrepareStepParams &p) {
  wait_for_previous_kernel();
  const int n = *p.row_count;
  int token = 0, output = 0;
  for (int r = 0; r < n; r++) {
    const StepRowRecord row = p.rows[r];
    const int end = row.start + row.count;
    const int *table = p.slot_tables + int64_t(row.slot) * p.table_stride;
    for (int b = 0; b < ceil_div(end, p.block_size); b++)
      p.out.tables[int64_t(r) * p.table_stride + b] = table[b];
    p.out.query_start[r] = token;
    p.out.context[r] = end;
    p.out.prefix[r] = p.prefixes[r].length;
    for (int position = row.start; position < end; position++, token++) {
      p.out.tokens[token] = p.history[int64_t(row.slot) * p.history_stride + position];
      p.out.positions[token] = position;
      for (int axis = 0; axis < 2; axis++)
        p.out.axes[axis * p.max_tokens + token] = position_on_axis(axis, position, p.prefixes[r]);
      p.out.slots[token] = table[position / p.block_size] * p.block_size + position % p.block_size;
    }
    if (!row.sample) continue;
    p.out.outputs[output] = token - 1;
    p.out.output_slots[output] = row.slot;
    p.out.output_at[output] = end;
    output++;
  }
  p.out.counts[0] = token;
  p.out.counts[1] = output;
  for (int r = n; r <= p.max_rows; r++) p.out.query_start[r] = token;
  for (int r = n; r < p.max_rows; r++) p.out.context[r] = p.out.prefix[r] = 0;
  for (; output < p.max_rows; output++) p.out.outputs[output] = -1;
  for (; token < p.max_tokens; token++) {
    p.out.tokens[token] = p.out.slots[token] = -1;
    p.out.positions[token] = 0;
    p.out.axes[token] = p.out.axes[p.max_tokens + token] = 0;
  }
}

// history[output_slots[i], output_at[i]] = sampled[i]. A token for a full slot is not kept.
DEVICE void append_sampled(const AppendSampledParams &p) {
  wait_for_previous_kernel();
  const int i = int(blockIdx.x) * kStepThreads + int(threadIdx.x);
  if (i >= p.counts[1]) return;
  const int slot = p.output_slots[i], at = p.output_at[i];
  if (at >= p.history_stride) return;
  p.history[int64_t(slot) * p.history_stride + at] = p.sampled[i];
}

KERNEL(write_ranges_i32, WriteRangesParams) { write_ranges(p); }
KERNEL(prepare_step_i32, PrepareStepParams) { prepare_step(p); }
KERNEL(prepare_step_plain_i32, PrepareStepParams) { prepare_step_plain(p); }
KERNEL(append_sampled_i32, AppendSampledParams) { append_sampled(p); }
