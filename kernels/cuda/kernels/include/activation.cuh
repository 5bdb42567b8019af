// Activation functions of single numbers.
#pragma once
#include "ptx.cuh"

// Elementwise activation functions.
enum ActivationKind : int { kSilu, kGeluTanh, kGelu, kRelu };

DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exp2_fast(x * -1.44269504f)); }

template <ActivationKind kind> DEVICE float activate(float x) {
  switch (kind) {
    case kSilu: return x * sigmoid(x);
    // 0.5 (1 + tanh(u)) = sigmoid(2u).
    case kGeluTanh: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    case kGelu: return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    default: return x > 0.0f ? x : (x != x ? x : 0.0f);
  }
}
