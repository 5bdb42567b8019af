// Prefill attention without terms on single scores. See prefill.cuh.
#include "prefill.cuh"

PREFILLS(prefill, false)
