// Prefill attention with soft cap and ALiBi. See prefill.cuh.
#include "prefill.cuh"

PREFILLS(prefill_biased, true)
