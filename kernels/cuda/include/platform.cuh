// One source for three compilers: nvcc, NVRTC (no headers of its own), and a host compiler for the simulated device.
//
// Conventions of the kernels:
// - `KERNEL name(…) { body<…>(…); } REGISTER(name)`: exported wrappers over templated device functions. Names end in the type they
//   work on (`_bf16`, `_f16`, `_f32`).
// - Shared memory by SHARED (its size known) and DYNAMIC_SHARED (given at launch), so that the simulated device can fill it with
//   garbage first.
// - PTX only behind the named functions of ptx.cuh and types.cuh, each with its simulated twin.
// - Sizes are `int`, offsets into memory `int64_t`; strides in elements.
#pragma once
#if defined(MILLRACE_SIM)
#include "cuda_sim.h"
#else
#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <stdint.h>
#endif
#define KERNEL extern "C" __global__ void
#define REGISTER(name)
#define DYNAMIC_SHARED(type, name)                                    \
  extern __shared__ __align__(1024) unsigned char dynamic_shared_[]; \
  type *name = reinterpret_cast<type *>(dynamic_shared_)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#define DEVICE __device__ __forceinline__

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

DEVICE float infinity() { return __int_as_float(0x7f800000); }
template <class A, class B> DEVICE auto ceil_div(A a, B b) { return (a + b - 1) / b; }
