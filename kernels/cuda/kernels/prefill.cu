// Prefill attention without soft cap and ALiBi. See prefill.cuh.
#include "prefill.cuh"

PREFILLS(prefill, false)
