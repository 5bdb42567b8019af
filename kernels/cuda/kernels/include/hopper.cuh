// The instructions that only Hopper has: tensor copies, their barriers, and products of a warpgroup
// (128 threads, four whole warps).
//
// Operands lie in shared memory in rows of 128 bytes (64 elements), swizzled as the tensor copy
// writes them with SWIZZLE_128B; tiles begin at multiples of 1024 bytes. Wider rows are kept as
// several such tiles side by side.
#pragma once
#include "ptx.cuh"

// A descriptor that cuTensorMapEncodeTiled has encoded. It is passed by value.
struct __align__(64) TensorMap {
  uint64_t opaque[16];
};

// Initializes a barrier that copies and threads arrive at.
DEVICE void barrier_init(uint64_t *barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
// Makes barriers that were just initialized visible to the copy engine. A barrier of the block must
// follow.
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and announces the number of bytes that copies will write before the phase ends.
DEVICE void barrier_expect(uint64_t *barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Waits for the end of the phase of this parity; the first phase has parity 0, and the one before
// it counts as ended.
DEVICE void barrier_wait(uint64_t *barrier, int parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}
// Barriers by number (1 to 15) for some of the block's warps: the first function waits, the second
// only arrives.
DEVICE void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Copies a box of a tensor to shared memory. Elements outside of the tensor become zeros.
DEVICE void copy_tensor2(void *to, const TensorMap *map, uint64_t *barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :
      : "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
DEVICE void copy_tensor4(void *to, const TensorMap *map, uint64_t *barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
DEVICE void prefetch_map(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Orders this thread's ordinary writes to shared memory before what the copy engine and the tensor
// cores do after the next barrier.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Moves registers between warpgroups. Every warp of the group must call it.
template <int Registers> DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// The descriptor of an operand. Rows along the product's sum (`K` neighbours in memory):
// `group_stride` is 0 and 8 rows are 1024 bytes apart. Rows across it (transposed): 8 rows are 1024
// bytes apart, and tiles of 64 columns `group_stride` bytes.
DEVICE uint64_t operand(const void *at, int group_stride) {
  const uint64_t address = shared_address(at), group = group_stride ? group_stride : 16;
  return (address & 0x3ffff) >> 4 | group >> 4 << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
// Must be called before the first product that uses registers which other instructions have
// written.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// d = a · b (+ d): [64, 16] by [16, N], both from shared memory, rows of both along the sum.
template <class T, int N> DEVICE void multiply_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool add);
// d += a · b, a from registers as in mma_m16n8k16 (each warp 16 rows), rows of b across the sum.
template <class T, int N> DEVICE void multiply_registers(float (&d)[N / 2], const uint32_t *a, uint64_t b);

#define FLOATS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FLOATS_16(d, i) FLOATS_4(d, i), FLOATS_4(d, i + 4), FLOATS_4(d, i + 8), FLOATS_4(d, i + 12)
#define FLOATS_32(d, i) FLOATS_16(d, i), FLOATS_16(d, i + 16)
#define FLOATS_64(d, i) FLOATS_32(d, i), FLOATS_32(d, i + 32)
#define MULTIPLY_SHARED_64(T, TYPE)                                                                                                                   \
  template <> DEVICE void multiply_shared<T, 64>(float (&d)[32], uint64_t a, uint64_t b, bool add) {                                                  \
    asm volatile(                                                                                                                                     \
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                                       \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,  "\
        "%30, %31}, %32, %33, p, 1, 1, 0, 0; }"                                                                                                       \
        : FLOATS_32(d, 0)                                                                                                                             \
        : "l"(a), "l"(b), "r"(int(add)));                                                                                                             \
  }
#define MULTIPLY_REGISTERS_64(T, TYPE)                                                                                                                \
  template <> DEVICE void multiply_registers<T, 64>(float (&d)[32], const uint32_t *a, uint64_t b) {                                                  \
    asm volatile(                                                                                                                                     \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                                         \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,  "\
        "%30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"                                                                                         \
        : FLOATS_32(d, 0)                                                                                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                        \
  }
#define MULTIPLY_SHARED_128(T, TYPE)                                                                                                                  \
  template <> DEVICE void multiply_shared<T, 128>(float (&d)[64], uint64_t a, uint64_t b, bool add) {                                                 \
    asm volatile(                                                                                                                                     \
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                                      \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,  "\
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57,  "\
        "%58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"                                                                                   \
        : FLOATS_64(d, 0)                                                                                                                             \
        : "l"(a), "l"(b), "r"(int(add)));                                                                                                             \
  }
#define MULTIPLY_REGISTERS_128(T, TYPE)                                                                                                               \
  template <> DEVICE void multiply_registers<T, 128>(float (&d)[64], const uint32_t *a, uint64_t b) {                                                 \
    asm volatile(                                                                                                                                     \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                                        \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,  "\
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57,  "\
        "%58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                                                                     \
        : FLOATS_64(d, 0)                                                                                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                        \
  }
#define MULTIPLY(T, TYPE) \
  MULTIPLY_SHARED_64(T, TYPE) MULTIPLY_SHARED_128(T, TYPE) \
  MULTIPLY_REGISTERS_64(T, TYPE) MULTIPLY_REGISTERS_128(T, TYPE)
MULTIPLY(bf16, "bf16")
MULTIPLY(f16, "f16")
