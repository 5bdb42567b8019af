// Decode attention of f16 activations over a cache of f16, e4m3 or int8.
#include "decode.cuh"

DECODES(f16, f16, f16, f16)
DECODES(e4m3, e4m3, f16, f16)
DECODES(int8_t, i8, f16, f16)
