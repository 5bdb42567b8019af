// The simulated multiprocessor: a block is a set of fibers on one OS thread, one fiber per CUDA
// thread.
//
// A fiber runs until it must wait for others: at a barrier of the block, or where lanes of a warp
// meet. Each launch uses one of four fiber schedules, which decides the fiber that runs next, so
// that a kernel that lacks synchronization gives different results with different schedules. A
// fault (divergence that never resolves, misaligned access, a copy in flight at exit, …) ends the
// launch with a message.
#pragma once
#include "types.h"

namespace sim {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kSlotBytes = 32;
// Groups of lanes of one warp that may be meeting at the same time.
constexpr unsigned kMeetings = 16;
constexpr unsigned kCopies = 512;

// The values that the lanes of one meeting exchange.
struct Exchange {
  unsigned lanes;  // the lanes that took part; lanes that have returned from the kernel need not come
  alignas(32) unsigned char slots[kLanes][kSlotBytes];
};

// The lanes named by `mask` meet to exchange values. There are two exchanges, so that a lane may
// enter the next meeting while another has not yet read the values of the last one.
struct Meeting {
  unsigned mask;
  unsigned arrived;
  unsigned unread;  // lanes that have been released and have not gone on
  unsigned generation;
  int operation;
  Exchange exchanges[2];
};

struct Warp {
  unsigned alive;
  unsigned runnable;
  unsigned spinning;  // of the runnable: those that wait for memory to change
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
  Copy copies[kCopies];
};

struct Machine {
  Fiber *fiber;
  Warp *warps;
  unsigned warp_count;
  unsigned alive;
  unsigned at_barrier;
  bool barrier_votes;  // whether the threads at the barrier have called one that counts votes
  unsigned barrier_generation;
  // The votes of __syncthreads_or/and/count; there are two, as for the exchanges of a meeting.
  unsigned votes[2];
  unsigned char *dynamic_shared;
  size_t dynamic_shared_bytes;
  uint3 block;
  dim3 block_size, grid_size;
};

extern thread_local Machine machine;

// Ends the launch; the message names block and thread.
[[noreturn]] void fail(const char *message);

// Must be called in loops that wait for memory which another thread, block or launch writes: all
// other threads run first.
void spin_pause();

// Whether the block runs ahead while the previous kernel still runs, which it does up to its wait.
// An access to memory before that ends the launch.
bool is_ahead();
// A block that runs ahead stops here.
void wait_for_previous_kernel();

void block_barrier();
// A barrier that counts the votes.
unsigned block_vote(bool vote);

// The operations that lanes can meet in; lanes of one meeting must agree.
enum Operation {
  kSync, kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kMatch, kReduceAdd, kReduceMin, kReduceMax,
  kReduceAnd, kReduceOr, kReduceXor, kMatrix, kMma,
};

// Gives `value` to the other lanes of `mask`, waits for all of them, and returns the values of all.
// The result is valid until the lane's next meeting.
const Exchange &meet(unsigned mask, Operation operation, const void *value, size_t bytes);

template <class T> inline const Exchange &meet(unsigned mask, Operation operation, const T &value) {
  static_assert(sizeof(T) <= kSlotBytes, "too large to exchange");
  return meet(mask, operation, &value, sizeof value);
}

template <class T> inline T slot(const Exchange &exchange, unsigned lane) {
  T value;
  std::memcpy(&value, exchange.slots[lane], sizeof value);
  return value;
}

// Static shared memory. It has the declared size, so that a sanitizer sees an access beyond it, and
// is filled with garbage before every block, because CUDA does not promise zeros.
struct SharedArray {
  explicit SharedArray(size_t bytes);
  ~SharedArray();
  void *data;
  size_t bytes;
  SharedArray *next;
};

// A launch, as the host code asks for it. `LaunchRequest` in `sim/kernels.rs` has the same fields.
struct LaunchRequest {
  const char *kernel;
  unsigned grid[3];
  unsigned block[3];
  size_t dynamic_shared;  // bytes
  size_t most_shared;     // bytes that a block can have, static and dynamic
  const void *params;
  const char *params_type;  // the struct's name without the arguments of a template
  size_t params_bytes;
  const size_t *pointer_offsets;      // [pointer_count]: bytes from the start of `params`
  const char *const *pointer_names;   // [pointer_count]
  size_t pointer_count;
  unsigned schedule;    // bit 0 reverses threads and warps; bit 1 lets a warp run as far as it can
  unsigned os_threads;  // blocks that run at the same time
};

// Ends the launch unless the bytes lie in one piece of the block's shared memory.
void check_shared(const void *p, size_t bytes, const char *message);

// Calls a kernel with the parameters at this address.
using Thunk = void (*)(const void *);
struct Kernel {
  Kernel(const char *name, const char *params_type, size_t params_bytes, Thunk thunk);
  const char *name;
  const char *params_type;  // as it is written in C++, with the arguments of a template
  size_t params_bytes;
  Thunk thunk;
  Kernel *next;
};

template <auto Function> struct Call;
template <class Params, void (*Function)(Params)> struct Call<Function> {
  static void thunk(const void *params) { Function(*static_cast<const Params *>(params)); }
};

}  // namespace sim

#define threadIdx (sim::machine.fiber->thread)
#define blockIdx (sim::machine.block)
#define blockDim (sim::machine.block_size)
#define gridDim (sim::machine.grid_size)
#define warpSize 32

#define KERNEL(name, ...)                                                                    \
  extern "C" void name(__VA_ARGS__ p);                                                       \
  static sim::Kernel registered_##name(#name, #__VA_ARGS__, sizeof(__VA_ARGS__), &sim::Call<&name>::thunk); \
  extern "C" void name([[maybe_unused]] const __VA_ARGS__ p)
#define BOUNDED_KERNEL(name, threads, blocks, ...) KERNEL(name, __VA_ARGS__)
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(sim::machine.dynamic_shared)
#define SHARED(type, name, count)                                            \
  static thread_local sim::SharedArray shared_##name(sizeof(type[count]));   \
  static thread_local type(&name)[count] = *static_cast<type(*)[count]>(shared_##name.data)

inline void __syncthreads() { sim::block_barrier(); }
inline int __syncthreads_count(int vote) { return int(sim::block_vote(vote != 0)); }
inline int __syncthreads_or(int vote) { return __syncthreads_count(vote) != 0; }
inline int __syncthreads_and(int vote) { return __syncthreads_count(vote == 0) == 0; }
