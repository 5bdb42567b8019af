// The header that a .cu file includes instead of CUDA's headers when a host compiler builds it for
// the simulated device.
#pragma once
#include "intrinsics.h"
#include "machine.h"
#include "tensor.h"
#include "types.h"
#include "warp.h"
