// Decode attention cuts sequences at fixed positions, so that other sequences of the step have no
// influence.
#pragma once
#include "kv.cuh"

// The splits that a sequence's queries see: [first, last).
struct Splits {
  int first, last;
  DEVICE int count() const { return last - first; }
};

// The first key that the query at `position` sees: the last `window` keys, or if `window` is
// negative, those of its chunk of `-window` positions.
DEVICE int first_visible(int position, int window) {
  return window > 0 ? max(position - window + 1, 0) : position / -window * -window;
}

// The lowest position that any of the last `queries` positions sees. The cache may no longer hold
// positions before it.
DEVICE int lowest_visible(int context, int queries, int window, int prefix) {
  const int position = context - queries;
  return position < prefix ? 0 : first_visible(position, window);
}

DEVICE Splits splits_of(int context, int lowest, int split_tokens) {
  return {lowest / split_tokens, ceil_div(context, split_tokens)};
}

// One split of a sequence in the list of a step's splits, with all that a block must know of the
// sequence: two vectors of 16 bytes in place of loads that depend on each other.
struct __align__(16) DecodeSplitRecord {
  int row;    // of the step, and of its block tables
  int split;  // counted from position 0
  int token;  // the sequence's first query
  int queries;
  int context;
  int lowest;  // the lowest position that any of the queries sees
  int prefix;
  int start;  // place of the sequence's first split in the list
};
