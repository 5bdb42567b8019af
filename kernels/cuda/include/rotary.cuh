// Rotary position embedding (Su et al., "RoFormer") and the write of keys and values into the paged cache: what the fast and the plain
// prologue share.
#pragma once
#include "kv.cuh"

// What happens to a head. Features [0, sections · rotary) are rotated, section s of them by the angles of its own position; features
// pair up at a distance of rotary / 2, or with their neighbours.
struct Rotary {
  const float *cos, *sin;  // [positions, rotary / 2]
  int rotary, sections;
  bool interleaved;
};

// Types of the cache, in the order of `ops::prologue`.
enum Cache { kSame, kCacheF32, kCacheF16, kCacheBf16, kCacheE4m3, kCacheI8 };

DEVICE float largest_element(Cache cache) { return cache == kCacheI8 ? 127.0f : 448.0f; }

// The row's factor, and what an element is multiplied with before it is rounded. A row of zeros, or of less than a scale can say, is
// kept as zeros with the scale 0.
DEVICE void scales_of(Cache cache, float most, float *scale, float *inverse) {
  const bool empty = most < 1e-34f;
  *scale = empty ? 0.0f : most / largest_element(cache);
  *inverse = empty ? 0.0f : largest_element(cache) / most;
}

DEVICE int8_t round_to_i8(float x) { return int8_t(__float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f))); }
