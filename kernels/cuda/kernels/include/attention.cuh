// What all attention kernels share: the sequences of a step, how scores become weights, and which
// keys a query sees.
#pragma once
#include "kv.cuh"
#include "splits.cuh"

// The sequences of a step, as `SequenceBatch` in ops/paged.rs has them.
struct SequenceParams {
  const int *query_start;  // [rows + 1]
  const int *context;      // [rows]
  const int *tables;       // [rows, table_stride]
  const int *prefix;       // null or [rows]
  int rows;
  int table_stride;
  int window;  // as `first_visible` takes it; the largest int for all keys
};

// How scores become weights, as `AttentionScores` in ops/paged.rs has it.
struct ScoreParams {
  const float *alibi;  // null or [heads]
  const float *sinks;  // null or [heads]
  float scale;
  float soft_cap;  // 0 for none
};

// One sequence of a step. Its queries have the positions [first, context).
struct Sequence {
  const int *table;
  int start, queries, context, first, prefix, window;

  DEVICE Sequence(const SequenceParams &all, int row) {
    table = all.tables + int64_t(row) * all.table_stride;
    start = all.query_start[row];
    queries = all.query_start[row + 1] - start;
    context = all.context[row];
    first = context - queries;
    prefix = all.prefix ? min(all.prefix[row], context) : 0;
    window = all.window;
  }

  // The query at `position` sees the keys [begin, end), whatever the features: its window, its
  // chunk, or all of the prefix that it lies in, which its window cannot leave. Both bounds rise
  // with the position.
  DEVICE int begin(int position) const { return position < prefix ? 0 : first_visible(position, window); }
  DEVICE int end(int position) const { return position < prefix ? prefix : position + 1; }
};

constexpr float kLog2E = 1.4426950408889634f;
