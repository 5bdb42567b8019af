// Decode attention of bf16 activations over a cache of bf16, e4m3 or int8.
#include "decode.cuh"

DECODES(bf16, bf16, bf16, bf16)
DECODES(e4m3, e4m3, bf16, bf16)
DECODES(int8_t, i8, bf16, bf16)
