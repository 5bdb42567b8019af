// Rows by number: embeddings by token, activations by index.
#include "rowwise.cuh"

// out[t] = factor · table[tokens[t] - first]; zeros for a token whose row the table does not hold, such as the -1 of padding.
template <class Table, class T, int N>
DEVICE void embed(T *out, const Table *table, const int *tokens, int first, int rows, int cols, float factor) {
  wait_for_previous_kernel();
  const int row = tokens[blockIdx.x] - first;
  const bool held = row >= 0 && row < rows;
  const Table *from = table + (held ? int64_t(row) * cols : 0);
  T *to = out + int64_t(blockIdx.x) * cols;
  Vec<Table, N> kept[kUnroll];
  each_vector(
      cols / N, [&](int k, int v) { if (held) kept[k] = load_vec<Table, N>(from + v * N); },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) o.at[i] = from_float<T>(held ? to_float(kept[k].at[i]) * factor : 0.0f);
        store_vec(to + v * N, o);
      });
}

// out[i] = x[index[i] / divisor], in units of U; zeros where the index is negative.
template <class U> DEVICE void gather(U *out, const U *x, const int *index, int units, int divisor) {
  wait_for_previous_kernel();
  const int row = index[blockIdx.x];
  const U *from = x + (row >= 0 ? int64_t(row / divisor) * units : 0);
  U *to = out + int64_t(blockIdx.x) * units;
  U kept[kUnroll];
  each_vector(
      units, [&](int k, int v) { kept[k] = row >= 0 ? from[v] : U{}; }, [&](int k, int v) { to[v] = kept[k]; });
}

// As many elements as fit 16 bytes in both types.
template <class A, class B> constexpr int kBoth = kVec<A> < kVec<B> ? kVec<A> : kVec<B>;

#define EMBED(Table, from, T, to)                                                                                                            \
  KERNEL embed_##from##_##to(T *out, const Table *table, const int *tokens, int first, int rows, int cols, float factor) {                   \
    embed<Table, T, kBoth<Table, T>>(out, table, tokens, first, rows, cols, factor);                                             \
  }                                                                                                                                          \
  REGISTER(embed_##from##_##to)                                                                                                              \
  KERNEL embed_plain_##from##_##to(T *out, const Table *table, const int *tokens, int first, int rows, int cols, float factor) {             \
    embed<Table, T, 1>(out, table, tokens, first, rows, cols, factor);                                                                       \
  }                                                                                                                                          \
  REGISTER(embed_plain_##from##_##to)

EMBED(float, f32, float, f32)
EMBED(float, f32, f16, f16)
EMBED(float, f32, bf16, bf16)
EMBED(f16, f16, float, f32)
EMBED(f16, f16, f16, f16)
EMBED(f16, f16, bf16, bf16)
EMBED(bf16, bf16, float, f32)
EMBED(bf16, bf16, f16, f16)
EMBED(bf16, bf16, bf16, bf16)

#define GATHER(U, bytes)                                                                                       \
  KERNEL gather_##bytes(U *out, const U *x, const int *index, int units, int divisor) { gather(out, x, index, units, divisor); } \
  REGISTER(gather_##bytes)

GATHER(uint4, 16)
GATHER(uint32_t, 4)
GATHER(uint16_t, 2)
