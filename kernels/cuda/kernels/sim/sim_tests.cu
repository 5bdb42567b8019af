// Small kernels that test the simulated device itself; tests/cuda/sim/ says what each must give.
#include "ptx.cuh"

// Parameters of a kernel that only writes.
// Kernels: sim_tests/disjoint_masks, sim_tests/leave_after_meeting, sim_tests/mixed_barriers
// Kernels: sim_tests/untouched, sim_tests/wait_for_last_warp, sim_tests/overflow_dynamic
// Kernels: sim_tests/overflow_static
template <class T> struct OutputParams {
  T *out;
};

// Parameters of a kernel that tries one of several cases.
// Kernels: sim_tests/neighbours, sim_tests/misused_masks, sim_tests/votes, sim_tests/divergence
template <class T> struct CaseParams {
  T *out;
  int which;
};

// Kernels: sim_tests/shuffles
struct ShufflesParams {
  int *out;
  int kind;
  int amount;
  int width;
  unsigned mask;
};

// Kernels: sim_tests/atomics
struct AtomicsParams {
  int *numbers;
  float *sum;
  uint64_t *wide;
};

// Kernels: sim_tests/copies
struct CopiesParams {
  uint32_t *out;
  const uint32_t *from;
  int which;
};

// Kernels: sim_tests/matrices
struct MatricesParams {
  uint32_t *out;
  const uint16_t *from;
  int transposed;
  int stray;  // elements that rows are off by
};

// Kernels: sim_tests/product_*
template <class T> struct MatrixProductParams {
  float *out;
  const T *a;
  const T *b;
  int by_rows;
};

// Kernels: sim_tests/write_at
struct WriteAtParams {
  uint8_t *out;
  int64_t at;
};

// Kernels: sim_tests/tickets
struct TicketsParams {
  int *out;
  int *counter;
};

// Kernels: sim_tests/ping_pong
struct PingPongParams {
  uint32_t *mine;
  const uint32_t *theirs;
  uint32_t *out;
  int rounds;
};

// Kernels: sim_tests/takes_all
struct TakesAllParams {
  int *out;
  const char *text;
  int64_t wide;
  float f;
  unsigned u;
};

// Kernels: sim_tests/ahead
struct AheadParams {
  uint32_t *out;
  const uint32_t *from;
  uint32_t *unused;
  int which;
};

// Every thread reads what its neighbour wrote.
KERNEL(neighbours, CaseParams<int>) {
  wait_for_previous_kernel();
  SHARED(int, left, 1024);
  left[threadIdx.x] = int(threadIdx.x) + 1000 * int(blockIdx.x);
  if (p.which) __syncthreads();
  p.out[blockIdx.x * blockDim.x + threadIdx.x] = left[(threadIdx.x + 1) % blockDim.x];
}

enum ShuffleKind { kIndex, kXor, kUp, kDown };
KERNEL(shuffles, ShufflesParams) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x);
  if (!(p.mask >> lane & 1)) return;
  const int value = 100 + lane;
  if (p.kind == kIndex) p.out[lane] = __shfl_sync(p.mask, value, p.amount, p.width);
  if (p.kind == kXor) p.out[lane] = __shfl_xor_sync(p.mask, value, p.amount, p.width);
  if (p.kind == kUp) p.out[lane] = __shfl_up_sync(p.mask, value, unsigned(p.amount), p.width);
  if (p.kind == kDown) p.out[lane] = __shfl_down_sync(p.mask, value, unsigned(p.amount), p.width);
}

// The halves of a warp take different branches, then the odd and the even lanes do, and finally all
// meet.
KERNEL(disjoint_masks, OutputParams<int>) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x);
  int value = lane;
  if (lane < 16) {
    for (int i = 0; i < 5; i++) value = __shfl_xor_sync(0x0000ffffu, value, 1) + 1;
  } else {
    value = __shfl_sync(0xffff0000u, value, 31);
  }
  if (lane % 2 == 0) value = __reduce_add_sync(0x55555555u, value);
  __syncwarp();
  p.out[lane] = __shfl_down_sync(kAllLanes, value, 1);
}

enum Misuse { kOverlap, kTwoOperations, kTwoTypes, kUnnamed, kOutside, kWidth };
KERNEL(misused_masks, CaseParams<int>) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x);
  int value = lane;
  if (p.which == kOverlap) value = __shfl_sync(lane < 16 ? 0x0001ffffu : 0xffff8000u, value, 15);
  if (p.which == kTwoOperations)
    value = lane < 16 ? __shfl_sync(kAllLanes, value, 0) : int(__ballot_sync(kAllLanes, value));
  if (p.which == kTwoTypes)
    value = lane < 16 ? __shfl_sync(kAllLanes, value, 0) : int(__shfl_sync(kAllLanes, int64_t(value), 0));
  if (p.which == kUnnamed) value = __shfl_sync(0x7fffffffu, value, 0);
  if (p.which == kOutside && lane < 16) value = __shfl_sync(0x0000ffffu, value, 16);
  if (p.which == kWidth) value = __shfl_sync(kAllLanes, value, 0, 12);
  p.out[lane] = value;
}

// The values of lanes count even if these return from the kernel before another lane has read them.
KERNEL(leave_after_meeting, OutputParams<unsigned>) {
  wait_for_previous_kernel();
  const unsigned lane = threadIdx.x;
  const unsigned votes = __ballot_sync(kAllLanes, lane % 3 == 1);
  if (lane == 0) p.out[0] = votes;
  if (lane >= 16) return;
  // Only half of the warp still runs, and the mask may name all lanes.
  const unsigned sum = __reduce_add_sync(kAllLanes, lane);
  const unsigned last = __shfl_sync(kAllLanes, lane * 2, 15);
  if (lane == 0) p.out[1] = sum;
  if (lane == 1) p.out[2] = last;
}

KERNEL(votes, CaseParams<unsigned>) {
  wait_for_previous_kernel();
  const int t = int(threadIdx.x);
  const bool yes = t < p.which;
  unsigned *mine = p.out + t * 7;
  mine[0] = __ballot_sync(kAllLanes, yes);
  mine[1] = unsigned(__any_sync(kAllLanes, yes)) * 2 + unsigned(__all_sync(kAllLanes, yes));
  mine[2] = __match_any_sync(kAllLanes, t % 5);
  mine[3] = unsigned(__syncthreads_count(yes));
  mine[4] = unsigned(__syncthreads_or(yes) != 0);
  mine[5] = unsigned(__syncthreads_and(yes) != 0);
  mine[6] = unsigned(__syncthreads_count(!yes));
}

KERNEL(mixed_barriers, OutputParams<int>) {
  wait_for_previous_kernel();
  if (threadIdx.x < 32) __syncthreads();
  else p.out[0] = __syncthreads_count(1);
}

KERNEL(atomics, AtomicsParams) {
  wait_for_previous_kernel();
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&p.numbers[0], 1);
  atomicMax(&p.numbers[1], i);
  atomicMin(&p.numbers[2], -i);
  atomicOr(&p.numbers[3], 1 << i % 31);
  atomicSub(&p.numbers[4], 2);
  if (atomicExch(&p.numbers[5], 1) == 0) atomicAdd(&p.numbers[6], 1);
  for (int seen = p.numbers[7], was; (was = atomicCAS(&p.numbers[7], seen, seen + 1)) != seen;) seen = was;
  atomicAdd(p.sum, 0.5f);
  atomicAdd(p.wide, 1ull << 32);
}

enum CopyCase { kGood, kStale, kGroups, kInFlight, kMisaligned, kPastTheEnd, kUncommitted };
// 64 threads; every thread copies 16 bytes of two groups, the second one with zeros for odd
// threads.
KERNEL(copies, CopiesParams) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint32_t, tile);  // [2, 64, 4]
  const int t = int(threadIdx.x);
  uint32_t *first = tile + t * 4, *second = first + 256;
  copy_async16(first + (p.which == kMisaligned), p.from + t * 4);
  if (p.which == kPastTheEnd) copy_async16(tile + 512, p.from);
  if (p.which == kUncommitted) {
    copy_wait<0>();
  } else {
    copy_commit();
  }
  copy_async16(second, p.from + 256 + t * 4, t % 2 == 0);
  copy_commit();
  if (p.which == kGood) copy_wait<0>();
  if (p.which == kGroups) copy_wait<1>();
  __syncthreads();
  for (int i = 0; i < 4; i++) {
    p.out[t * 4 + i] = tile[((t + 1) % 64) * 4 + i];
    p.out[256 + t * 4 + i] = tile[256 + ((t + 1) % 64) * 4 + i];
  }
  __syncthreads();
  if (p.which != kInFlight) copy_wait<0>();
}

KERNEL(matrices, MatricesParams) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint16_t, tile);  // [4, 8, 8]
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tile[i] = p.from[i];
  __syncwarp();
  uint32_t four[4], two[2];
  const uint16_t *row = tile + lane * 8 + p.stray;
  if (p.transposed) {
    load_matrices_transposed(four, row);
    load_matrices_transposed(two, row);
  } else {
    load_matrices(four, row);
    load_matrices(two, row);
  }
  // No lane may see these writes.
  for (int i = 0; i < 8; i++) tile[lane * 8 + i] = 0xffff;
  for (int i = 0; i < 4; i++) p.out[i * 32 + lane] = four[i];
  for (int i = 0; i < 2; i++) p.out[(4 + i) * 32 + lane] = two[i];
}

// out [16, 8] = a [16, 16] · b, with b [8, 16] by columns, or [16, 8] by rows.
template <class T> DEVICE void product(const MatrixProductParams<T> &p) {
  wait_for_previous_kernel();
  SHARED(T, left, 256);
  SHARED(T, right, 128);
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 256; i += 32) left[i] = p.a[i];
  for (int i = lane; i < 128; i += 32) right[i] = p.b[i];
  __syncwarp();
  uint32_t ra[4], rb[2];
  load_matrices(ra, left + lane % 16 * 16 + lane / 16 * 8);
  if (p.by_rows) {
    load_matrices_transposed(rb, right + lane % 16 * 8);
  } else {
    load_matrices(rb, right + lane % 8 * 16 + lane / 8 % 2 * 8);
  }
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k16<T>(d, ra, rb);
  for (int i = 0; i < 4; i++) p.out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
KERNEL(product_bf16, MatrixProductParams<bf16>) { product(p); }
KERNEL(product_f16, MatrixProductParams<f16>) { product(p); }

// out [16, 8] = a [16, 32] · b [8, 32] by columns. Four neighbours along the sum lie in one
// register.
KERNEL(product_e4m3, MatrixProductParams<uint32_t>) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x), group = lane / 4, t = lane % 4;
  const uint32_t ra[4] = {p.a[group * 8 + t], p.a[(group + 8) * 8 + t], p.a[group * 8 + 4 + t],
                          p.a[(group + 8) * 8 + 4 + t]};
  const uint32_t rb[2] = {p.b[group * 8 + t], p.b[group * 8 + 4 + t]};
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k32_e4m3(d, ra, rb);
  for (int i = 0; i < 4; i++) p.out[(group + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}

enum Divergence { kBarrierAndShuffle, kMissingLane };
KERNEL(divergence, CaseParams<int>) {
  wait_for_previous_kernel();
  const int t = int(threadIdx.x);
  if (p.which == kBarrierAndShuffle) {
    if (t < 16) __syncthreads();
    else p.out[t] = __shfl_sync(kAllLanes, t, 0);
  }
  if (p.which == kMissingLane) {
    if (t != 7) __syncwarp();
    else __syncthreads();
  }
}

// Copies what shared memory holds before a thread has written to it.
KERNEL(untouched, OutputParams<uint32_t>) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint32_t, given);
  SHARED(uint32_t, own, 4);
  uint32_t *mine = p.out + blockIdx.x * 8;
  for (int i = 0; i < 4; i++) {
    mine[i] = given[i];
    mine[4 + i] = own[i];
    given[i] = own[i] = 0;
  }
}

KERNEL(write_at, WriteAtParams) {
  wait_for_previous_kernel();
  p.out[p.at] = 1;
}

// Records the order of the threads, before and after their warps meet.
KERNEL(tickets, TicketsParams) {
  wait_for_previous_kernel();
  p.out[threadIdx.x] = atomicAdd(p.counter, 1);
  __syncwarp();
  p.out[blockDim.x + threadIdx.x] = atomicAdd(p.counter, 1);
}

// The first warp waits for a flag that the last one writes.
KERNEL(wait_for_last_warp, OutputParams<uint32_t>) {
  wait_for_previous_kernel();
  SHARED(uint32_t, flag, 1);
  if (threadIdx.x == 0) flag[0] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    while (load_acquire_system(flag) == 0) __nanosleep(20);
  } else if (threadIdx.x == blockDim.x - 1) {
    store_release_system(flag, 1u);
  }
  p.out[threadIdx.x] = 1;
}

// For two launches: each reports its round and waits for the other one, `rounds` times.
KERNEL(ping_pong, PingPongParams) {
  wait_for_previous_kernel();
  if (threadIdx.x != 0) return;
  for (uint32_t r = 1; r <= uint32_t(p.rounds); r++) {
    store_release_system(p.mine, r);
    while (load_acquire_system(p.theirs) < r) __nanosleep(20);
  }
  p.out[0] = load_acquire_system(p.theirs);
}

KERNEL(takes_all, TakesAllParams) {
  wait_for_previous_kernel();
  p.out[0] = int(p.f) + int(p.wide >> 32) + int(p.u) + (p.text == nullptr);
}

// A planted error for the sanitizers: the last thread writes one element too far.
DEVICE void fill(float *to, int count) { to[threadIdx.x] = float(count); }
KERNEL(overflow_dynamic, OutputParams<float>) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(float, tile);  // [31]
  fill(tile, 31);
  p.out[0] = tile[0];
}
KERNEL(overflow_static, OutputParams<float>) {
  wait_for_previous_kernel();
  SHARED(float, tile, 31);
  fill(tile, 31);
  p.out[0] = tile[0];
}

// Actions that a kernel may do before its wait for the previous kernel, and actions that it may not
// do.
enum Ahead { kNothing, kWeights, kRead, kWrite, kAtomic, kCopy, kLeave, kBarrier };
KERNEL(ahead, AheadParams) {
  SHARED(uint32_t, own, 8);
  uint32_t word = p.unused != nullptr;
  if (p.which == kWeights) {
    copy_weights16(own, p.from);
    word += load_weights16(p.from).x;
  }
  if (p.which == kRead) word += p.from[threadIdx.x];
  if (p.which == kWrite) p.out[-int(blockIdx.x)] = word;
  if (p.which == kAtomic) atomicAdd(p.out, 1u);
  if (p.which == kCopy) copy_async16(own + 4, p.from);
  if (p.which == kLeave && blockIdx.x == 4 && threadIdx.x == 7) return;
  if (p.which == kBarrier) {
    if (threadIdx.x < 32) wait_for_previous_kernel();
    __syncthreads();
  }
  if (p.which != kBarrier || threadIdx.x >= 32) wait_for_previous_kernel();
  copy_commit();
  copy_wait<0>();
  p.out[blockIdx.x * blockDim.x + threadIdx.x] = word + (p.which == kWeights ? own[3] : 0);
}
