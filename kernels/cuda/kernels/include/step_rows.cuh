// The rows of a step: which tokens of which sequences it computes.
#pragma once
#include "platform.cuh"

// A row of a step, as the host writes it.
struct __align__(16) StepRowRecord {
  int slot;    // the sequence's slot
  int start;   // the first position
  int count;   // positions, at least 1
  int sample;  // 1 if a token is sampled after the last position
};
