// Decode attention cuts sequences at fixed positions, so that other sequences of the step have no
// influence.
#pragma once
#include "kv.cuh"

// The splits that a sequence's queries see: [first, last).
struct Splits {
  int first, last;
  DEVICE int count() const { return last - first; }
};

// The lowest position that any of the last `queries` positions sees. The cache may no longer hold
// positions before it.
DEVICE int lowest_visible(int context, int queries, int window, int prefix) {
  const int position = context - queries;
  return position < prefix ? 0 : max(0, position - window + 1);
}

DEVICE Splits splits_of(int context, int lowest, int split_tokens) {
  return {lowest / split_tokens, ceil_div(context, split_tokens)};
}
