// The simulated multiprocessor: a block is a set of fibers on one OS thread, one fiber per CUDA thread.
//
// A fiber runs until it must wait for others: at a barrier of the block, or where lanes of a warp meet. Which fiber goes on
// is decided by the launch's order (see `Order`), so that code that relies on luck gives another result in another order.
// A fault (divergence that never resolves, misaligned access, a copy in flight at exit, …) ends the launch with a message.
#pragma once
#include "types.h"

namespace sim {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kSlotBytes = 32;
// Groups of lanes of one warp that may be meeting at the same time.
constexpr unsigned kMeetings = 16;
constexpr unsigned kCopies = 512;

// Lanes named by `mask` come together to exchange values. Slots are doubled so that a lane may enter the next
// meeting while another has yet to read what the last one left.
struct Meeting {
  unsigned mask;
  unsigned arrived;
  unsigned generation;
  int operation;
  alignas(32) unsigned char slots[2][kLanes][kSlotBytes];
};

struct Warp {
  unsigned alive;
  unsigned runnable;
  unsigned meeting_count;
  Meeting meetings[kMeetings];
};

struct Copy {
  void *to;
  const void *from;
  unsigned bytes;   // written, the rest of `size` is zeroed
  unsigned size;
  unsigned group;
};

struct Fiber {
  void *stack_pointer;
  uint3 thread;
  unsigned warp;
  unsigned lane;
  // Asynchronous copies, oldest first: [first_copy, last_copy) modulo kCopies.
  unsigned first_copy, last_copy, group;
  bool spinning;
  Copy copies[kCopies];
};

struct Machine {
  Fiber *fiber;
  Warp *warps;
  unsigned warp_count;
  unsigned alive;
  unsigned at_barrier;
  unsigned barrier_generation;
  // How the threads have voted in __syncthreads_or/and/count; doubled like the slots of a meeting.
  unsigned votes[2];
  unsigned char *dynamic_shared;
  uint3 block;
  dim3 block_size, grid_size;
};

extern thread_local Machine machine;

// Ends the launch; the message names block and thread.
[[noreturn]] void fail(const char *message);

// Lets other threads run until something this thread waits for has happened; `runnable` bits say who may go on.
void wait_for_release();
// For loops that wait on memory which another block or launch writes.
void spin_pause();

void block_barrier();
unsigned block_vote(bool vote);

// The operations that lanes can meet in; lanes of one meeting must agree.
enum Operation { kSync, kShuffle, kBallot, kMatch, kReduce, kMatrix, kMma };

// Leaves `value` for the other lanes of `mask`, waits for all of them, and returns everyone's values.
using Slots = unsigned char (*)[kSlotBytes];
Slots meet(unsigned mask, int operation, const void *value, size_t bytes);

template <class T> inline Slots meet(unsigned mask, int operation, const T &value) {
  static_assert(sizeof(T) <= kSlotBytes, "too large to exchange");
  return meet(mask, operation, &value, sizeof value);
}

template <class T> inline T slot(Slots slots, unsigned lane) {
  T value;
  std::memcpy(&value, slots[lane], sizeof value);
  return value;
}

// Static shared memory: filled with garbage before every block, as nothing promises zeros.
struct SharedArray {
  SharedArray(void *data, size_t bytes);
  void *data;
  size_t bytes;
  SharedArray *next;
};

using Thunk = void (*)(void **);
struct Kernel {
  Kernel(const char *name, Thunk thunk, const unsigned *sizes, unsigned count);
  const char *name;
  Thunk thunk;
  const unsigned *sizes;  // bytes of each parameter
  unsigned count;
  Kernel *next;
};

// Turns an array of pointers to parameters into a call.
template <auto Function> struct Call;
template <class... A, void (*Function)(A...)> struct Call<Function> {
  static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
  static constexpr unsigned count = sizeof...(A);
  template <size_t... I> static void spread(void **p, std::index_sequence<I...>) {
    Function(*static_cast<std::remove_cv_t<A> *>(p[I])...);
  }
  static void thunk(void **p) { spread(p, std::index_sequence_for<A...>{}); }
};

}  // namespace sim

#define threadIdx (sim::machine.fiber->thread)
#define blockIdx (sim::machine.block)
#define blockDim (sim::machine.block_size)
#define gridDim (sim::machine.grid_size)
#define warpSize 32

#define KERNEL extern "C" void
#define REGISTER(name) \
  static sim::Kernel registered_##name(#name, &sim::Call<&name>::thunk, sim::Call<&name>::sizes, sim::Call<&name>::count);
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(sim::machine.dynamic_shared)
#define SHARED(type, name, count) \
  alignas(16) static thread_local type name[count]; \
  static thread_local sim::SharedArray shared_##name(name, sizeof name)

inline void __syncthreads() { sim::block_barrier(); }
inline int __syncthreads_count(int vote) { return int(sim::block_vote(vote != 0)); }
inline int __syncthreads_or(int vote) { return __syncthreads_count(vote) != 0; }
inline int __syncthreads_and(int vote) { return __syncthreads_count(vote == 0) == 0; }
