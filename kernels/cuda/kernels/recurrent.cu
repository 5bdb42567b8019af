// Recurrent layers: short convolutions, recurrences over the tokens of a sequence, and gates.
//
// The state of a sequence lies in its slot, in f32: the window of the convolution, `[taps - 1,
// channels]` with the oldest token first, then the matrices, `[heads, key_dim, value_dim]`. A row
// that starts at position 0 begins with zeros, whatever its slot holds. Rows beyond those of the
// step have no tokens.
//
// Every result is computed token by token with the same operations, so that the division of a
// prompt into chunks, and the other rows of the step, change no bits.
#include "activation.cuh"
#include "reduce.cuh"
#include "rowwise.cuh"
#include "step_rows.cuh"

EXPORT_CONSTANT int kConvolveThreads = 128;
// The most taps of the kernel that keeps the inputs in registers.
EXPORT_CONSTANT int kConvolveTaps = 4;
// Tokens that a block convolves before it goes on to other tokens of the row.
EXPORT_CONSTANT int kConvolveTokens = 32;

EXPORT_CONSTANT int kRecurThreads = 128;
// Columns of a head's matrix that a block updates.
EXPORT_CONSTANT int kRecurColumns = 32;
// Tokens whose inputs a block reads at once.
EXPORT_CONSTANT int kRecurTokens = 8;
// The most key features of the kernels that keep matrices in registers.
EXPORT_CONSTANT int kSmallKeys = 128;
EXPORT_CONSTANT int kLargeKeys = 256;

// Threads that share a column. They are lanes of one warp, which therefore has eight columns.
constexpr int kParts = kRecurThreads / kRecurColumns;
constexpr int kWarpColumns = kWarp / kParts;
// Added to the square of the length of queries and keys.
constexpr float kLengthEps = 1e-6f;

// Parameters of a convolution.
// Kernels: recurrent/convolve_*
template <class T> struct ConvolveParams {
  T *out;                     // [tokens, channels]
  float *states;              // [slots, slot_elements]
  const T *x;                 // [tokens, cols]
  const float *weight;        // [taps, channels]
  const float *bias;          // null or [channels]
  const StepRowRecord *rows;  // [rows]
  const int *query_start;     // [rows + 1]
  int64_t slot_elements;
  int channels;
  int cols;
  int taps;
  int activates;  // 1 if there is an activation function
  ActivationKind act;
  int gated;  // 1 if a row of x has outer gates, inner gates and values, of `channels` each
};

// Parameters of a recurrence.
// Kernels: recurrent/delta_*, recurrent/state_space_*
template <class T> struct RecurParams {
  T *out;                     // [tokens, heads, value_dim]
  float *states;              // [slots, slot_elements]
  const T *x;                 // [tokens, queries | keys | values]
  const T *rates;             // [tokens, strengths of heads | rates of heads], or the rates alone
  const float *decay_log;     // [heads]
  const float *step_bias;     // [heads]
  const float *skip;          // [heads], for state spaces
  const StepRowRecord *rows;  // [rows]
  const int *query_start;     // [rows + 1]
  int64_t slot_elements;
  int64_t window;  // elements of a slot before its matrices
  int key_heads;
  int neighbors;  // successive value heads that share a key head
  int heads;
  int key_dim;
  int value_dim;
  float least;  // the bounds of the steps of state spaces
  float most;
};

// Functions of gates.
enum GateKind : int { kSigmoidGate, kSiluGate, kIdentityGate };

// Parameters of the product with gates.
// Kernels: recurrent/multiply_gates_*
template <class T> struct MultiplyGatesParams {
  T *x;            // [rows, cols], updated in place
  const T *gates;  // [rows, gate_cols]
  int cols;
  int gate_cols;
  int first;  // column of the first gate
  GateKind kind;
};

// The tokens of a row, and its slot.
struct RowTokens {
  int begin;  // index of the first token in the step
  int count;
  bool is_first;  // whether the sequence begins with this row
  int slot;
};
DEVICE RowTokens tokens_of(const StepRowRecord *rows, const int *query_start, int row) {
  const int begin = query_start[row];
  // The record of a row without tokens is that of an earlier step, or was never written.
  return {begin, query_start[row + 1] - begin, rows[row].start == 0, rows[row].slot};
}

DEVICE float any_activation(ActivationKind kind, float x) {
  switch (kind) {
    case kSilu: return activate<kSilu>(x);
    case kGeluTanh: return activate<kGeluTanh>(x);
    case kGelu: return activate<kGelu>(x);
    default: return activate<kRelu>(x);
  }
}

// One channel of a row's convolution.
template <class T> struct ConvolvedChannel {
  const ConvolveParams<T> &p;
  const RowTokens row;
  const int channel;
  float *window;  // this channel of the slot's window; tokens are p.channels apart

  DEVICE ConvolvedChannel(const ConvolveParams<T> &params, const RowTokens &tokens, int c)
      : p(params), row(tokens), channel(c), window(params.states + tokens.slot * params.slot_elements + c) {}

  // The input of the row's token t. Negative tokens are those before the row.
  DEVICE float input(int t) const {
    if (t < 0) {
      const int at = p.taps - 1 + t;
      return row.is_first || at < 0 ? 0.0f : window[int64_t(at) * p.channels];
    }
    const T *x = p.x + int64_t(row.begin + t) * p.cols + channel;
    return p.gated ? to_float(x[p.channels]) * to_float(x[2 * p.channels]) : to_float(x[0]);
  }

  // Writes the result of token t, whose weighted inputs have this sum.
  DEVICE void finish(int t, float sum) const {
    if (p.activates) sum = any_activation(p.act, sum);
    if (p.gated) sum *= to_float(p.x[int64_t(row.begin + t) * p.cols + channel]);
    p.out[int64_t(row.begin + t) * p.channels + channel] = from_float<T>(sum);
  }

  // Moves the window to the last tokens of the row. Each of its places is overwritten after it was
  // read for the last time.
  DEVICE void move_window() const {
    for (int i = 0; i < p.taps - 1; i++)
      window[int64_t(i) * p.channels] = input(row.count - (p.taps - 1) + i);
  }
};

// The grid is [pieces of the channels, rows, groups of tokens]. A thread convolves one channel and
// keeps the inputs that the next token needs in registers, so that each is read once. Only the
// blocks of a row's first tokens need its window, and they also move it.
template <class T> DEVICE void convolve(const ConvolveParams<T> &p) {
  wait_for_previous_kernel();
  const int c = int(blockIdx.x) * kConvolveThreads + int(threadIdx.x);
  const RowTokens row = tokens_of(p.rows, p.query_start, blockIdx.y);
  if (row.count == 0 || c >= p.channels) return;
  const ConvolvedChannel<T> channel(p, row, c);
  // Taps that the convolution lacks have weight 0 and come first.
  float weights[kConvolveTaps], inputs[kConvolveTaps];
  const int lacking = kConvolveTaps - p.taps;
#pragma unroll
  for (int k = 0; k < kConvolveTaps; k++)
    weights[k] = k < lacking ? 0.0f : p.weight[int64_t(k - lacking) * p.channels + c];
  const float bias = p.bias ? p.bias[c] : 0.0f;
  const int groups = gridDim.z;
  for (int first = int(blockIdx.z) * kConvolveTokens; first < row.count; first += groups * kConvolveTokens) {
#pragma unroll
    for (int k = 1; k < kConvolveTaps; k++) inputs[k] = channel.input(first - kConvolveTaps + k);
    const int end = min(first + kConvolveTokens, row.count);
    for (int t = first; t < end; t++) {
#pragma unroll
      for (int k = 1; k < kConvolveTaps; k++) inputs[k - 1] = inputs[k];
      inputs[kConvolveTaps - 1] = channel.input(t);
      float sum = bias;
#pragma unroll
      for (int k = 0; k < kConvolveTaps; k++) sum = fmaf(weights[k], inputs[k], sum);
      channel.finish(t, sum);
    }
  }
  let_next_kernel_start();
  if (blockIdx.z == 0) channel.move_window();
}

// The plain version, for any number of taps: each input is read for each of its results.
template <class T> DEVICE void convolve_plain(const ConvolveParams<T> &p) {
  wait_for_previous_kernel();
  const int c = int(blockIdx.x) * kConvolveThreads + int(threadIdx.x);
  const RowTokens row = tokens_of(p.rows, p.query_start, blockIdx.y);
  if (row.count == 0 || c >= p.channels) return;
  const ConvolvedChannel<T> channel(p, row, c);
  for (int t = 0; t < row.count; t++) {
    float sum = p.bias ? p.bias[c] : 0.0f;
    for (int tap = 0; tap < p.taps; tap++)
      sum = fmaf(p.weight[int64_t(tap) * p.channels + c], channel.input(t - (p.taps - 1) + tap), sum);
    channel.finish(t, sum);
  }
  let_next_kernel_start();
  channel.move_window();
}

// ln(1 + e^x) = max(x, 0) + ln(1 + y), where y = e^-|x| is at most 1. The series of ln(1 + y) =
// 2 atanh(z) for z = y / (2 + y) ends where z, at most 1/3, has no effect in single precision.
DEVICE float softplus(float x) {
  const float y = expf(-fabsf(x)), z = y / (2.0f + y), square = z * z;
  float series = 1.0f / 13.0f;
#pragma unroll
  for (int n = 11; n > 0; n -= 2) series = fmaf(series, square, 1.0f / float(n));
  return fmaxf(x, 0.0f) + 2.0f * z * series;
}

// The numbers by which a token changes a head's matrix.
struct TokenFactors {
  float decay;
  float strength;  // of the change by the delta rule, or the step of a state space
};
template <class T, bool delta> DEVICE TokenFactors factors_of(const RecurParams<T> &p, int token, int head) {
  const T *rates = p.rates + int64_t(token) * (delta ? 2 : 1) * p.heads;
  float step = softplus(to_float(rates[(delta ? p.heads : 0) + head]) + p.step_bias[head]);
  if (!delta) step = fminf(fmaxf(step, p.least), p.most);
  const float decay = expf(-expf(p.decay_log[head]) * step);
  return {decay, delta ? 1.0f / (1.0f + expf(-to_float(rates[head]))) : step};
}

// The inputs of a token: queries, keys, then values.
template <class T> DEVICE const T *inputs_of(const RecurParams<T> &p, int token) {
  return p.x + int64_t(token) * (2 * p.key_heads * p.key_dim + p.heads * p.value_dim);
}

// The head of queries and keys that a value head has.
template <class T> DEVICE int key_head_of(const RecurParams<T> &p, int head) {
  return head / p.neighbors % p.key_heads;
}

// The row of the matrix that is number i of a thread's part of a column. Four neighbors belong to
// one thread, so that it reads keys and queries in pieces of 16 bytes; the parts' pieces are
// neighbors too, so that no two of them lie in one bank.
DEVICE int matrix_row(int i, int part) { return (i / 4 * kParts + part) * 4 + i % 4; }

// The sum of all parts of a column; every part gets it.
DEVICE float sum_of_parts(float sum) {
#pragma unroll
  for (int lanes = kWarpColumns; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  return sum;
}

// The inputs of some tokens for one head and some columns, in shared memory. Features beyond
// `key_dim`, and columns beyond `value_dim`, are 0.
struct StagedTokens {
  float *keys;     // [kRecurTokens, Keys], divided by their lengths for the delta rule
  float *queries;  // [kRecurTokens, Keys], as the keys; and divided by the root of key_dim
  float *values;   // [kRecurTokens, kRecurColumns]
  TokenFactors *factors;  // [kRecurTokens]
};

// Reads the inputs of `count` tokens. Each warp reads a token at a time.
template <class T, int Keys, bool delta>
DEVICE void stage_tokens(const RecurParams<T> &p, const StagedTokens &staged, int token, int count, int head) {
  constexpr int kEach = Keys / kWarp;
  const int lane = threadIdx.x % kWarp, key_head = key_head_of(p, head);
  const int column = int(blockIdx.x) * kRecurColumns + lane;
  for (int t = threadIdx.x / kWarp; t < count; t += kRecurThreads / kWarp) {
    const T *query = inputs_of(p, token + t) + key_head * p.key_dim, *key = query + p.key_heads * p.key_dim;
    const T *value = inputs_of(p, token + t) + 2 * p.key_heads * p.key_dim + head * p.value_dim;
    float k[kEach], q[kEach], key_square = 0.0f, query_square = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int feature = i * kWarp + lane;
      k[i] = feature < p.key_dim ? to_float(key[feature]) : 0.0f;
      q[i] = feature < p.key_dim ? to_float(query[feature]) : 0.0f;
      key_square = fmaf(k[i], k[i], key_square);
      query_square = fmaf(q[i], q[i], query_square);
    }
    float of_key = 1.0f, of_query = 1.0f;
    if (delta) {
      of_key = rsqrtf(warp_reduce(key_square, Add()) + kLengthEps);
      of_query = rsqrtf(warp_reduce(query_square, Add()) + kLengthEps) * rsqrtf(float(p.key_dim));
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      staged.keys[t * Keys + i * kWarp + lane] = k[i] * of_key;
      staged.queries[t * Keys + i * kWarp + lane] = q[i] * of_query;
    }
    staged.values[t * kRecurColumns + lane] = column < p.value_dim ? to_float(value[column]) : 0.0f;
    if (lane == 0) staged.factors[t] = factors_of<T, delta>(p, token + t, head);
  }
}

// Applies a token to a thread's part of a column, and returns the column's result without the
// values that bypass the state.
template <int Rows, bool delta>
DEVICE float update_column(float (&s)[Rows], const float *keys, const float *queries, float value,
                           TokenFactors factors, int part) {
  float change = factors.strength * value;
  if (delta) {
    float seen[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Rows; i += 4) {
      const Vec<float, 4> key = load_vec<float, 4>(keys + matrix_row(i, part));
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s[i + e] *= factors.decay;
        seen[e] = fmaf(key.at[e], s[i + e], seen[e]);
      }
    }
    change = factors.strength * (value - sum_of_parts((seen[0] + seen[1]) + (seen[2] + seen[3])));
  }
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < Rows; i += 4) {
    const Vec<float, 4> key = load_vec<float, 4>(keys + matrix_row(i, part));
    const Vec<float, 4> query = load_vec<float, 4>(queries + matrix_row(i, part));
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float old = delta ? s[i + e] : factors.decay * s[i + e];
      s[i + e] = fmaf(key.at[e], change, old);
      sum[e] = fmaf(query.at[e], s[i + e], sum[e]);
    }
  }
  return sum_of_parts((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// The grid is [slices of the columns, heads, rows]. A block keeps a slice of a head's matrix, of up
// to `Keys` rows, in registers while it passes over the tokens of a row.
//
// The state is read once and written once per launch: `8 * key_dim * value_dim` bytes for each head
// and row. That bounds the speed of decode. With several tokens, each of them costs a thread
// `key_dim / 2` multiply-adds and two exchanges between lanes, or twice as many for the delta rule.
// That bounds the speed of prefill, because the tokens follow each other.
template <class T, int Keys, bool delta> DEVICE void recur(const RecurParams<T> &p) {
  constexpr int Rows = Keys / kParts;
  SHARED(float, keys, kRecurTokens * Keys);
  SHARED(float, queries, kRecurTokens * Keys);
  SHARED(float, values, kRecurTokens * kRecurColumns);
  SHARED(TokenFactors, factors, kRecurTokens);
  wait_for_previous_kernel();
  const RowTokens row = tokens_of(p.rows, p.query_start, blockIdx.z);
  if (row.count == 0) return;
  const StagedTokens staged = {keys, queries, values, factors};
  const int head = blockIdx.y, lane = threadIdx.x % kWarp, part = lane / kWarpColumns;
  const int of_slice = int(threadIdx.x) / kWarp * kWarpColumns + lane % kWarpColumns;
  const int column = int(blockIdx.x) * kRecurColumns + of_slice;
  float *matrix = p.states + row.slot * p.slot_elements + p.window +
                  int64_t(head) * p.key_dim * p.value_dim + column;
  const bool is_column = column < p.value_dim;
  float s[Rows];
#pragma unroll
  for (int i = 0; i < Rows; i++) {
    const int at = matrix_row(i, part);
    s[i] = !row.is_first && is_column && at < p.key_dim ? matrix[int64_t(at) * p.value_dim] : 0.0f;
  }
  const float skip = delta ? 0.0f : p.skip[head];
  for (int first = 0; first < row.count; first += kRecurTokens) {
    const int count = min(kRecurTokens, row.count - first);
    stage_tokens<T, Keys, delta>(p, staged, row.begin + first, count, head);
    __syncthreads();
    for (int t = 0; t < count; t++) {
      const float value = values[t * kRecurColumns + of_slice];
      float y = update_column<Rows, delta>(s, keys + t * Keys, queries + t * Keys, value, factors[t], part);
      if (!delta) y = fmaf(skip, value, y);
      if (part == 0 && is_column) {
        const int64_t token = row.begin + first + t;
        p.out[(token * p.heads + head) * p.value_dim + column] = from_float<T>(y);
      }
    }
    __syncthreads();
  }
  let_next_kernel_start();
#pragma unroll
  for (int i = 0; i < Rows; i++) {
    const int at = matrix_row(i, part);
    if (is_column && at < p.key_dim) matrix[int64_t(at) * p.value_dim] = s[i];
  }
}

template <class T> DEVICE float inverse_length(const T *x, int cols) {
  float square = 0.0f;
  for (int i = 0; i < cols; i++) square = fmaf(to_float(x[i]), to_float(x[i]), square);
  return rsqrtf(square + kLengthEps);
}

// The plain version, for any number of key features: a thread updates one column in device memory.
template <class T, bool delta> DEVICE void recur_plain(const RecurParams<T> &p) {
  wait_for_previous_kernel();
  const int column = int(blockIdx.x) * kRecurThreads + int(threadIdx.x), head = blockIdx.y;
  const RowTokens row = tokens_of(p.rows, p.query_start, blockIdx.z);
  if (row.count == 0 || column >= p.value_dim) return;
  const int key_head = key_head_of(p, head);
  float *matrix = p.states + row.slot * p.slot_elements + p.window +
                  int64_t(head) * p.key_dim * p.value_dim + column;
  if (row.is_first)
    for (int k = 0; k < p.key_dim; k++) matrix[int64_t(k) * p.value_dim] = 0.0f;
  for (int token = row.begin; token < row.begin + row.count; token++) {
    const T *query = inputs_of(p, token) + key_head * p.key_dim, *key = query + p.key_heads * p.key_dim;
    const T *values = inputs_of(p, token) + 2 * p.key_heads * p.key_dim + head * p.value_dim;
    const TokenFactors factors = factors_of<T, delta>(p, token, head);
    const float of_key = delta ? inverse_length(key, p.key_dim) : 1.0f;
    const float of_query = delta ? inverse_length(query, p.key_dim) * rsqrtf(float(p.key_dim)) : 1.0f;
    const float value = to_float(values[column]);
    float seen = 0.0f, y = 0.0f;
    for (int k = 0; k < p.key_dim; k++) {
      float &s = matrix[int64_t(k) * p.value_dim];
      s *= factors.decay;
      if (delta) seen = fmaf(to_float(key[k]) * of_key, s, seen);
    }
    const float change = factors.strength * (value - seen);
    for (int k = 0; k < p.key_dim; k++) {
      float &s = matrix[int64_t(k) * p.value_dim];
      s = fmaf(to_float(key[k]) * of_key, change, s);
      y = fmaf(to_float(query[k]) * of_query, s, y);
    }
    if (!delta) y = fmaf(p.skip[head], value, y);
    p.out[(int64_t(token) * p.heads + head) * p.value_dim + column] = from_float<T>(y);
  }
  let_next_kernel_start();
}

// x *= function(gates).
template <class T, int N> DEVICE void multiply_gates(const MultiplyGatesParams<T> &p) {
  wait_for_previous_kernel();
  T *row = p.x + int64_t(blockIdx.x) * p.cols;
  const T *gates = p.gates + int64_t(blockIdx.x) * p.gate_cols + p.first;
  Vec<T, N> kept[kUnroll], of_gates[kUnroll];
  each_vector(
      p.cols / N,
      [&](int k, int v) {
        kept[k] = load_vec<T, N>(row + v * N);
        of_gates[k] = load_vec<T, N>(gates + v * N);
      },
      [&](int k, int v) {
#pragma unroll
        for (int i = 0; i < N; i++) {
          const float gate = to_float(of_gates[k].at[i]);
          const float factor = p.kind == kIdentityGate ? gate
                               : p.kind == kSiluGate   ? gate * sigmoid(gate)
                                                       : sigmoid(gate);
          kept[k].at[i] = from_float<T>(to_float(kept[k].at[i]) * factor);
        }
        store_vec(row + v * N, kept[k]);
      });
}

#define RECURRENT(T, N, suffix)                                                                   \
  KERNEL(convolve_##suffix, ConvolveParams<T>) { convolve(p); }                                   \
  KERNEL(convolve_plain_##suffix, ConvolveParams<T>) { convolve_plain(p); }                       \
  KERNEL(delta_small_##suffix, RecurParams<T>) { recur<T, kSmallKeys, true>(p); }                 \
  KERNEL(delta_large_##suffix, RecurParams<T>) { recur<T, kLargeKeys, true>(p); }                 \
  KERNEL(delta_plain_##suffix, RecurParams<T>) { recur_plain<T, true>(p); }                       \
  KERNEL(state_space_small_##suffix, RecurParams<T>) { recur<T, kSmallKeys, false>(p); }          \
  KERNEL(state_space_large_##suffix, RecurParams<T>) { recur<T, kLargeKeys, false>(p); }          \
  KERNEL(state_space_plain_##suffix, RecurParams<T>) { recur_plain<T, false>(p); }                \
  KERNEL(multiply_gates_##suffix, MultiplyGatesParams<T>) { multiply_gates<T, N>(p); }            \
  KERNEL(multiply_gates_plain_##suffix, MultiplyGatesParams<T>) { multiply_gates<T, 1>(p); }

RECURRENT(float, 4, f32)
RECURRENT(f16, 8, f16)
RECURRENT(bf16, 8, bf16)
