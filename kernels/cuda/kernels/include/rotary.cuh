// Rotary position embedding (Su et al., "RoFormer") and the scales of cached rows, for the fast and
// the plain prologue.
#pragma once
#include "kv.cuh"

// The rotation of a head. Features [0, sections · rotary) are rotated, section s of them by the
// angles of its own position; features form pairs at a distance of rotary / 2, or with their
// neighbors.
struct RotaryParams {
  const float *cos;  // [positions, rotary / 2]
  const float *sin;
  int rotary;
  int sections;
  int interleaved;  // 1 if neighbours pair up
};

// The type of the cache; `Same` is that of the activations.
enum CacheKind : int { kSame, kCacheF32, kCacheF16, kCacheBf16, kCacheE4m3, kCacheI8 };

DEVICE float largest_element(CacheKind cache) { return cache == kCacheI8 ? 127.0f : 448.0f; }

// Computes the row's scale, and the factor on elements before they are rounded. A row of zeros, or
// of numbers too small for a scale, is stored as zeros with the scale 0.
DEVICE void scales_of(CacheKind cache, float most, float *scale, float *inverse) {
  const bool empty = most < 1e-34f;
  *scale = empty ? 0.0f : most / largest_element(cache);
  *inverse = empty ? 0.0f : largest_element(cache) / most;
}

DEVICE int8_t round_to_i8(float x) { return int8_t(__float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f))); }
