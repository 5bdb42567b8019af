// Small kernels that test the simulated device itself; tests/cuda/sim.rs says what each must give.
#include "ptx.cuh"

// Every thread reads what its neighbour wrote.
KERNEL neighbours(int *out, int with_barrier) {
  wait_for_previous_kernel();
  SHARED(int, left, 1024);
  left[threadIdx.x] = int(threadIdx.x) + 1000 * int(blockIdx.x);
  if (with_barrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = left[(threadIdx.x + 1) % blockDim.x];
}
REGISTER(neighbours)

enum ShuffleKind { kIndex, kXor, kUp, kDown };
KERNEL shuffles(int *out, int kind, int amount, int width, unsigned mask) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x);
  if (!(mask >> lane & 1)) return;
  const int value = 100 + lane;
  if (kind == kIndex) out[lane] = __shfl_sync(mask, value, amount, width);
  if (kind == kXor) out[lane] = __shfl_xor_sync(mask, value, amount, width);
  if (kind == kUp) out[lane] = __shfl_up_sync(mask, value, unsigned(amount), width);
  if (kind == kDown) out[lane] = __shfl_down_sync(mask, value, unsigned(amount), width);
}
REGISTER(shuffles)

// The halves of a warp go different ways, and the odd and the even lanes after them; then all meet.
KERNEL disjoint_masks(int *out) {
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
  out[lane] = __shfl_down_sync(kAllLanes, value, 1);
}
REGISTER(disjoint_masks)

enum Misuse { kOverlap, kTwoOperations, kTwoTypes, kUnnamed, kOutside, kWidth };
KERNEL misused_masks(int *out, int which) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x);
  int value = lane;
  if (which == kOverlap) value = __shfl_sync(lane < 16 ? 0x0001ffffu : 0xffff8000u, value, 15);
  if (which == kTwoOperations) value = lane < 16 ? __shfl_sync(kAllLanes, value, 0) : int(__ballot_sync(kAllLanes, value));
  if (which == kTwoTypes) value = lane < 16 ? __shfl_sync(kAllLanes, value, 0) : int(__shfl_sync(kAllLanes, int64_t(value), 0));
  if (which == kUnnamed) value = __shfl_sync(0x7fffffffu, value, 0);
  if (which == kOutside && lane < 16) value = __shfl_sync(0x0000ffffu, value, 16);
  if (which == kWidth) value = __shfl_sync(kAllLanes, value, 0, 12);
  out[lane] = value;
}
REGISTER(misused_masks)

// What lanes leave behind counts, even if they return from the kernel before another lane has read it.
KERNEL leave_after_meeting(unsigned *out) {
  wait_for_previous_kernel();
  const unsigned lane = threadIdx.x;
  const unsigned votes = __ballot_sync(kAllLanes, lane % 3 == 1);
  if (lane == 0) out[0] = votes;
  if (lane >= 16) return;
  // Now only half of the warp is there, and the mask may name them all.
  const unsigned sum = __reduce_add_sync(kAllLanes, lane);
  const unsigned last = __shfl_sync(kAllLanes, lane * 2, 15);
  if (lane == 0) out[1] = sum;
  if (lane == 1) out[2] = last;
}
REGISTER(leave_after_meeting)

KERNEL votes(unsigned *out, int threshold) {
  wait_for_previous_kernel();
  const int t = int(threadIdx.x);
  const bool yes = t < threshold;
  unsigned *mine = out + t * 7;
  mine[0] = __ballot_sync(kAllLanes, yes);
  mine[1] = unsigned(__any_sync(kAllLanes, yes)) * 2 + unsigned(__all_sync(kAllLanes, yes));
  mine[2] = __match_any_sync(kAllLanes, t % 5);
  mine[3] = unsigned(__syncthreads_count(yes));
  mine[4] = unsigned(__syncthreads_or(yes) != 0);
  mine[5] = unsigned(__syncthreads_and(yes) != 0);
  mine[6] = unsigned(__syncthreads_count(!yes));
}
REGISTER(votes)

KERNEL mixed_barriers(int *out) {
  wait_for_previous_kernel();
  if (threadIdx.x < 32) __syncthreads();
  else out[0] = __syncthreads_count(1);
}
REGISTER(mixed_barriers)

KERNEL atomics(int *numbers, float *sum, unsigned long long *wide) {
  wait_for_previous_kernel();
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&numbers[0], 1);
  atomicMax(&numbers[1], i);
  atomicMin(&numbers[2], -i);
  atomicOr(&numbers[3], 1 << i % 31);
  atomicSub(&numbers[4], 2);
  if (atomicExch(&numbers[5], 1) == 0) atomicAdd(&numbers[6], 1);
  for (int seen = numbers[7], was; (was = atomicCAS(&numbers[7], seen, seen + 1)) != seen;) seen = was;
  atomicAdd(sum, 0.5f);
  atomicAdd(wide, 1ull << 32);
}
REGISTER(atomics)

enum CopyCase { kGood, kStale, kGroups, kInFlight, kMisaligned, kPastTheEnd, kUncommitted };
// 64 threads; every thread copies 16 bytes of two groups, the second one with zeros for odd threads.
KERNEL copies(uint32_t *out, const uint32_t *in, int which) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint32_t, tile);  // [2, 64, 4]
  const int t = int(threadIdx.x);
  uint32_t *first = tile + t * 4, *second = first + 256;
  copy_async16(first + (which == kMisaligned), in + t * 4);
  if (which == kPastTheEnd) copy_async16(tile + 512, in);
  if (which == kUncommitted) {
    copy_wait<0>();
  } else {
    copy_commit();
  }
  copy_async16(second, in + 256 + t * 4, t % 2 == 0);
  copy_commit();
  if (which == kGood) copy_wait<0>();
  if (which == kGroups) copy_wait<1>();
  __syncthreads();
  for (int i = 0; i < 4; i++) {
    out[t * 4 + i] = tile[((t + 1) % 64) * 4 + i];
    out[256 + t * 4 + i] = tile[256 + ((t + 1) % 64) * 4 + i];
  }
  __syncthreads();
  if (which != kInFlight) copy_wait<0>();
}
REGISTER(copies)

KERNEL matrices(uint32_t *out, const uint16_t *in, int transposed, int stray) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint16_t, tile);  // [4, 8, 8]
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tile[i] = in[i];
  __syncwarp();
  uint32_t four[4], two[2];
  const uint16_t *row = tile + lane * 8 + stray;
  if (transposed) {
    load_matrices_transposed(four, row);
    load_matrices_transposed(two, row);
  } else {
    load_matrices(four, row);
    load_matrices(two, row);
  }
  // Nobody may see this any more.
  for (int i = 0; i < 8; i++) tile[lane * 8 + i] = 0xffff;
  for (int i = 0; i < 4; i++) out[i * 32 + lane] = four[i];
  for (int i = 0; i < 2; i++) out[(4 + i) * 32 + lane] = two[i];
}
REGISTER(matrices)

// out [16, 8] = a [16, 16] · b, with b [8, 16] by columns, or [16, 8] by rows.
template <class T> DEVICE void product(float *out, const T *a, const T *b, int by_rows) {
  wait_for_previous_kernel();
  SHARED(T, left, 256);
  SHARED(T, right, 128);
  const int lane = int(threadIdx.x);
  for (int i = lane; i < 256; i += 32) left[i] = a[i];
  for (int i = lane; i < 128; i += 32) right[i] = b[i];
  __syncwarp();
  uint32_t ra[4], rb[2];
  load_matrices(ra, left + lane % 16 * 16 + lane / 16 * 8);
  if (by_rows) {
    load_matrices_transposed(rb, right + lane % 16 * 8);
  } else {
    load_matrices(rb, right + lane % 8 * 16 + lane / 8 % 2 * 8);
  }
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k16<T>(d, ra, rb);
  for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
KERNEL product_bf16(float *out, const bf16 *a, const bf16 *b, int by_rows) { product(out, a, b, by_rows); }
REGISTER(product_bf16)
KERNEL product_f16(float *out, const f16 *a, const f16 *b, int by_rows) { product(out, a, b, by_rows); }
REGISTER(product_f16)

// out [16, 8] = a [16, 32] · b [8, 32] by columns. Four neighbours along the sum lie in one register.
KERNEL product_e4m3(float *out, const uint32_t *a, const uint32_t *b) {
  wait_for_previous_kernel();
  const int lane = int(threadIdx.x), group = lane / 4, t = lane % 4;
  const uint32_t ra[4] = {a[group * 8 + t], a[(group + 8) * 8 + t], a[group * 8 + 4 + t], a[(group + 8) * 8 + 4 + t]};
  const uint32_t rb[2] = {b[group * 8 + t], b[group * 8 + 4 + t]};
  float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_m16n8k32_e4m3(d, ra, rb);
  for (int i = 0; i < 4; i++) out[(group + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}
REGISTER(product_e4m3)

enum Divergence { kBarrierAndShuffle, kMissingLane };
KERNEL divergence(int *out, int which) {
  wait_for_previous_kernel();
  const int t = int(threadIdx.x);
  if (which == kBarrierAndShuffle) {
    if (t < 16) __syncthreads();
    else out[t] = __shfl_sync(kAllLanes, t, 0);
  }
  if (which == kMissingLane) {
    if (t != 7) __syncwarp();
    else __syncthreads();
  }
}
REGISTER(divergence)

// What shared memory holds before anybody has written to it.
KERNEL untouched(uint32_t *out) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(uint32_t, given);
  SHARED(uint32_t, own, 4);
  uint32_t *mine = out + blockIdx.x * 8;
  for (int i = 0; i < 4; i++) {
    mine[i] = given[i];
    mine[4 + i] = own[i];
    given[i] = own[i] = 0;
  }
}
REGISTER(untouched)

KERNEL write_at(uint8_t *out, int64_t at) {
  wait_for_previous_kernel();
  out[at] = 1;
}
REGISTER(write_at)

// In which order the threads come by, before and after their warps meet.
KERNEL tickets(int *out, int *counter) {
  wait_for_previous_kernel();
  out[threadIdx.x] = atomicAdd(counter, 1);
  __syncwarp();
  out[blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
}
REGISTER(tickets)

// The first warp waits for the last one, which goes on after a while.
KERNEL wait_for_last_warp(uint32_t *out) {
  wait_for_previous_kernel();
  SHARED(uint32_t, flag, 1);
  if (threadIdx.x == 0) flag[0] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    while (load_acquire_system(flag) == 0) __nanosleep(20);
  } else if (threadIdx.x == blockDim.x - 1) {
    store_release_system(flag, 1u);
  }
  out[threadIdx.x] = 1;
}
REGISTER(wait_for_last_warp)

// Two launches: each says where it is and waits for the other one, `rounds` times.
KERNEL ping_pong(uint32_t *mine, const uint32_t *theirs, uint32_t *out, int rounds) {
  wait_for_previous_kernel();
  if (threadIdx.x != 0) return;
  for (uint32_t r = 1; r <= uint32_t(rounds); r++) {
    store_release_system(mine, r);
    while (load_acquire_system(theirs) < r) __nanosleep(20);
  }
  out[0] = load_acquire_system(theirs);
}
REGISTER(ping_pong)

KERNEL takes_all(int *out, float f, int64_t wide, unsigned u, const char *text) {
  wait_for_previous_kernel();
  out[0] = int(f) + int(wide >> 32) + int(u) + (text == nullptr);
}
REGISTER(takes_all)

// Planted for the sanitizers: the last thread writes one element too far.
DEVICE void fill(float *to, int count) { to[threadIdx.x] = float(count); }
KERNEL overflow_dynamic(float *out) {
  wait_for_previous_kernel();
  DYNAMIC_SHARED(float, tile);  // [31]
  fill(tile, 31);
  out[0] = tile[0];
}
REGISTER(overflow_dynamic)
KERNEL overflow_static(float *out) {
  wait_for_previous_kernel();
  SHARED(float, tile, 31);
  fill(tile, 31);
  out[0] = tile[0];
}
REGISTER(overflow_static)

// What may stand before the wait for the kernel before this one, and what may not.
enum Ahead { kNothing, kWeights, kRead, kWrite, kAtomic, kCopy, kLeave, kBarrier };
KERNEL ahead(uint32_t *out, const uint32_t *in, uint32_t *unused, int which) {
  SHARED(uint32_t, own, 8);
  uint32_t word = unused != nullptr;
  if (which == kWeights) {
    copy_weights16(own, in);
    word += load_weights16(in).x;
  }
  if (which == kRead) word += in[threadIdx.x];
  if (which == kWrite) out[-int(blockIdx.x)] = word;
  if (which == kAtomic) atomicAdd(out, 1u);
  if (which == kCopy) copy_async16(own + 4, in);
  if (which == kLeave && blockIdx.x == 4 && threadIdx.x == 7) return;
  if (which == kBarrier) {
    if (threadIdx.x < 32) wait_for_previous_kernel();
    __syncthreads();
  }
  if (which != kBarrier || threadIdx.x >= 32) wait_for_previous_kernel();
  copy_commit();
  copy_wait<0>();
  out[blockIdx.x * blockDim.x + threadIdx.x] = word + (which == kWeights ? own[3] : 0);
}
REGISTER(ahead)
