// Makes one source compile with three compilers: nvcc, NVRTC (which has no headers of its own), and
// a host compiler for the simulated device.
//
// Conventions of the kernels:
// - `KERNEL(name, Params) { … }` defines a kernel whose only parameter is the struct `p` of type
//   `Params`. BOUNDED_KERNEL also gives the threads of a block and the blocks of a multiprocessor
//   that the compiler must leave registers for. Names end in the type that the kernel works on
//   (`_bf16`, `_f16`, `_f32`).
// - The host code reads the layout of parameters, and everything that is marked EXPORT_CONSTANT or
//   EXPORT_FUNCTION, from these sources: `build/shared.rs` describes what it can translate.
// - Shared memory is declared by SHARED (its size is known) and DYNAMIC_SHARED (its size is given
//   at launch), so that the simulated device can fill it with garbage first.
// - PTX stands only in the named functions of ptx.cuh, types.cuh and hopper.cuh. The functions of
//   the first two have a simulated counterpart each.
// - Sizes are `int`, offsets into memory are `int64_t`, and strides count elements.
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
#define KERNEL(name, ...) extern "C" __global__ void name(const __grid_constant__ __VA_ARGS__ p)
#define BOUNDED_KERNEL(name, threads, blocks, ...) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ __VA_ARGS__ p)
#define DYNAMIC_SHARED(type, name)                                    \
  extern __shared__ __align__(1024) unsigned char dynamic_shared_[]; \
  type *name = reinterpret_cast<type *>(dynamic_shared_)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#endif

#define DEVICE __device__ __forceinline__
// Constants, and functions of constants, that the host code uses too.
#define EXPORT_CONSTANT constexpr
#define EXPORT_FUNCTION constexpr __host__ __device__

constexpr unsigned kAllLanes = 0xffffffffu;
EXPORT_CONSTANT int kWarp = 32;

DEVICE float infinity() { return __int_as_float(0x7f800000); }
template <class A, class B> DEVICE auto ceil_div(A a, B b) { return (a + b - 1) / b; }
