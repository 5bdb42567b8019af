// Selection of rows by number: embeddings by token, activations by index.
#include "rowwise.cuh"

// Parameters of the lookup of embeddings.
// Kernels: embed/embed_*
template <class Table, class T> struct EmbedParams {
  T *out;              // [tokens, cols]
  const Table *table;  // [rows, cols]
  const int *tokens;   // [tokens]
  int first;           // the token of the table's first row
  int rows;            // rows of the table
  int cols;
  float factor;
};

// Parameters of the selection of rows.
// Kernels: embed/gather_*
template <class U> struct GatherRowsParams {
  U *out;            // [rows, units]
  const U *x;        // [_, units]
  const int *index;  // [rows]
  int units;         // units of type U in a row
  int divisor;
};

// out[t] = factor · table[tokens[t] - first]. A token whose row the table does not hold, such as
// the token -1 of padding, gets zeros.
template <class Table, class T, int N> DEVICE void embed(const EmbedParams<Table, T> &p) {
  wait_for_previous_kernel();
  const int row = p.tokens[blockIdx.x] - p.first;
  const bool held = row >= 0 && row < p.rows;
  const Table *from = p.table + (held ? int64_t(row) * p.cols : 0);
  T *to = p.out + int64_t(blockIdx.x) * p.cols;
  Vec<Table, N> kept[kUnroll];
  each_vector(
      p.cols / N,
      [&](int k, int v) {
        if (held) kept[k] = load_vec<Table, N>(from + v * N);
      },
      [&](int k, int v) {
        Vec<T, N> o;
#pragma unroll
        for (int i = 0; i < N; i++) {
          o.at[i] = from_float<T>(held ? to_float(kept[k].at[i]) * p.factor : 0.0f);
        }
        store_vec(to + v * N, o);
      });
}

// out[i] = x[index[i] / divisor], in units of type U. A negative index gives zeros.
template <class U> DEVICE void gather_rows(const GatherRowsParams<U> &p) {
  wait_for_previous_kernel();
  const int row = p.index[blockIdx.x];
  const U *from = p.x + (row >= 0 ? int64_t(row / p.divisor) * p.units : 0);
  U *to = p.out + int64_t(blockIdx.x) * p.units;
  U kept[kUnroll];
  each_vector(
      p.units, [&](int k, int v) { kept[k] = row >= 0 ? from[v] : U{}; },
      [&](int k, int v) { to[v] = kept[k]; });
}

// The number of elements that fit 16 bytes in both types.
template <class A, class B> constexpr int kBoth = kVec<A> < kVec<B> ? kVec<A> : kVec<B>;

#define EMBED(Table, from, T, to)                                                              \
  KERNEL(embed_##from##_##to, EmbedParams<Table, T>) { embed<Table, T, kBoth<Table, T>>(p); }  \
  KERNEL(embed_plain_##from##_##to, EmbedParams<Table, T>) { embed<Table, T, 1>(p); }

EMBED(float, f32, float, f32)
EMBED(float, f32, f16, f16)
EMBED(float, f32, bf16, bf16)
EMBED(f16, f16, float, f32)
EMBED(f16, f16, f16, f16)
EMBED(f16, f16, bf16, bf16)
EMBED(bf16, bf16, float, f32)
EMBED(bf16, bf16, f16, f16)
EMBED(bf16, bf16, bf16, bf16)

KERNEL(gather_16, GatherRowsParams<uint4>) { gather_rows(p); }
KERNEL(gather_4, GatherRowsParams<uint32_t>) { gather_rows(p); }
KERNEL(gather_2, GatherRowsParams<uint16_t>) { gather_rows(p); }
