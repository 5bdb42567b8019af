// Prefill attention with ALiBi and soft cap. See prefill.cuh.
#include "prefill.cuh"

PREFILLS(prefill_biased, true)
