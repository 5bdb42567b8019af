// Named functions for instructions that C++ does not have. The first half of the file has the
// simulated counterparts.
#pragma once
#include "types.cuh"

#if defined(MILLRACE_SIM)
// Copies 16 bytes to shared memory in the background, or writes zeros if `valid` is false. `from`
// must be a mapped address in both cases.
DEVICE void copy_async16(void *to, const void *from, bool valid = true) {
  sim::copy_async(to, from, 16, valid ? 16 : 0);
}
DEVICE void copy_async8(void *to, const void *from, bool valid = true) {
  sim::copy_async(to, from, 8, valid ? 8 : 0);
}
DEVICE void copy_async4(void *to, const void *from, bool valid = true) {
  sim::copy_async(to, from, 4, valid ? 4 : 0);
}
// Copies 16 bytes of weights. No kernel of a step writes weights, so the copy may begin before
// `wait_for_previous_kernel`.
DEVICE void copy_weights16(void *to, const void *from) { sim::copy_async(to, from, 16, 16, true); }
// Ends a group of copies.
DEVICE void copy_commit() { sim::commit_copies(); }
// Waits until at most `Pending` groups of this thread are in flight. Other threads see the data
// after a barrier.
template <int Pending> DEVICE void copy_wait() { sim::wait_copies(Pending); }
// Loads N 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the addresses of the rows of matrix
// i.
template <int N> DEVICE void load_matrices(uint32_t (&r)[N], const void *row) {
  sim::load_matrices<N, false>(r, row);
}
template <int N> DEVICE void load_matrices_transposed(uint32_t (&r)[N], const void *row) {
  sim::load_matrices<N, true>(r, row);
}
// Transposes an 8x8 matrix of 16-bit elements. Each lane holds two neighbors: row lane / 4, columns
// lane % 4 · 2 and the next.
DEVICE uint32_t transpose_matrix(uint32_t pair) { return sim::transpose_matrix(pair); }
// a · b + c on two neighbors, rounded once.
template <class T> DEVICE uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  const float2 x = unpack2<T>(a), y = unpack2<T>(b), z = unpack2<T>(c);
  return pack2<T>(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}
// Loads 16 bytes of weights. No kernel of a step writes weights, so they may be read before
// `wait_for_previous_kernel`. They are read once and do not evict other data from the L1 cache.
DEVICE uint4 load_weights16(const void *p) {
  sim::check_aligned(p, 16, "misaligned load");
  if (sim::is_ahead()) return {};
  return *static_cast<const uint4 *>(p);
}
// d += a · b on the tensor cores, a [16, 16] in rows, b [16, 8] in columns.
template <class T> DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  sim::mma_m16n8<2>(d, a, b, [](uint32_t r, int i) { return to_float(T{uint16_t(r >> 16 * i)}); });
}
// a [16, 32] and b [32, 8] of e4m3. Needs sm_89.
DEVICE void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  sim::mma_m16n8<4>(d, a, b, [](uint32_t r, int i) { return to_float(e4m3{uint8_t(r >> 8 * i)}); });
}
DEVICE void wait_for_previous_kernel() { sim::wait_for_previous_kernel(); }
DEVICE void let_next_kernel_start() {}
// Makes the compiler compute again what it has computed from this register before.
DEVICE void forget_origin(uint32_t &) {}
DEVICE float exp2_fast(float x) { return std::exp2(x); }
template <class T> DEVICE T load_acquire_system(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
template <class T> DEVICE void store_release_system(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
template <class T> DEVICE T add_acquire_release(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
DEVICE uint64_t nanoseconds() { return sim::nanoseconds(); }
// Must be called in every round of a loop that waits for memory.
DEVICE void pause_spin() { sim::spin_pause(); }
#else
DEVICE uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

DEVICE void copy_async16(void *to, const void *from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
DEVICE void copy_async8(void *to, const void *from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}
DEVICE void copy_async4(void *to, const void *from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
DEVICE void copy_weights16(void *to, const void *from) { copy_async16(to, from); }
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

template <int N> DEVICE void load_matrices(uint32_t (&r)[N], const void *row) {
  static_assert(N == 2 || N == 4, "two or four matrices");
  if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
  }
}
template <int N> DEVICE void load_matrices_transposed(uint32_t (&r)[N], const void *row) {
  static_assert(N == 2 || N == 4, "two or four matrices");
  if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
  }
}

DEVICE uint32_t transpose_matrix(uint32_t pair) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}
template <class T> DEVICE uint32_t fma2(uint32_t a, uint32_t b, uint32_t c);
template <> DEVICE uint32_t fma2<bf16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
template <> DEVICE uint32_t fma2<f16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE uint4 load_weights16(const void *p) {
  uint4 v;
  // Neighboring loads read the other half of the line soon.
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

template <class T> DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <> DEVICE void mma_m16n8k16<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> DEVICE void mma_m16n8k16<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_m16n8k32_e4m3(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

// Programmatic dependent launch: waits until the previous kernel has ended and its writes can be
// read. Every thread of every kernel calls it before it touches memory that another kernel writes.
// No kernel ends before that, so all kernels before the previous one have ended too.
DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel's blocks start and run up to their own wait.
DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void forget_origin(uint32_t &x) { asm volatile("" : "+r"(x)); }
DEVICE float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// Reads and writes of flags between devices.
DEVICE uint32_t load_acquire_system(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void store_release_system(uint32_t *p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Adds to a counter of blocks of one device, and returns its old value. A block that sees the
// additions of others can read what these wrote before them, and what barriers ordered before them.
DEVICE uint32_t add_acquire_release(uint32_t *p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
// A clock that all multiprocessors share; it advances in steps of up to a microsecond.
DEVICE uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
DEVICE void pause_spin() {}
#endif
