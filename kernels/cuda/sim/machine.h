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

// What the lanes of one meeting left for each other.
struct Exchange {
  unsigned lanes;  // who took part; lanes that have returned from the kernel need not come
  alignas(32) unsigned char slots[kLanes][kSlotBytes];
};

// Lanes named by `mask` come together to exchange values. Exchanges are doubled so that a lane may enter the next
// meeting while another has yet to read what the last one left.
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
  bool barrier_votes;  // what those at the barrier have called: a plain barrier, or one that counts votes
  unsigned barrier_generation;
  // How the threads have voted in __syncthreads_or/and/count; doubled like the slots of a meeting.
  unsigned votes[2];
  unsigned char *dynamic_shared;
  size_t dynamic_shared_bytes;
  uint3 block;
  dim3 block_size, grid_size;
};

extern thread_local Machine machine;

// Ends the launch; the message names block and thread.
[[noreturn]] void fail(const char *message);

// For loops that wait on memory which another thread, block or launch writes: everybody else goes first.
void spin_pause();

// Whether the block runs ahead of the kernel before it, which it does up to its wait. What it touches of memory by then ends the launch.
bool is_ahead();
// Where a block that runs ahead stops.
void wait_for_previous_kernel();

void block_barrier();
// A barrier that counts the votes.
unsigned block_vote(bool vote);

// The operations that lanes can meet in; lanes of one meeting must agree.
enum Operation {
  kSync, kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kMatch, kReduceAdd, kReduceMin, kReduceMax,
  kReduceAnd, kReduceOr, kReduceXor, kMatrix, kMma,
};

// Leaves `value` for the other lanes of `mask`, waits for all of them, and returns what everyone left. Valid until the
// lane's next meeting.
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

// Static shared memory: of the size that was declared, so that a sanitizer sees an access beyond it, and filled with garbage
// before every block, as nothing promises zeros.
struct SharedArray {
  explicit SharedArray(size_t bytes);
  ~SharedArray();
  void *data;
  size_t bytes;
  SharedArray *next;
};

// Ends the launch unless the bytes lie in one piece of the block's shared memory.
void check_shared(const void *p, size_t bytes, const char *message);

using Thunk = void (*)(void **);
struct Kernel {
  Kernel(const char *name, Thunk thunk, const unsigned *sizes, const bool *addresses, unsigned count);
  const char *name;
  Thunk thunk;
  const unsigned *sizes;  // bytes of each parameter
  const bool *addresses;  // which of them point to memory
  unsigned count;
  Kernel *next;
};

// Turns an array of pointers to parameters into a call.
template <auto Function> struct Call;
template <class... A, void (*Function)(A...)> struct Call<Function> {
  static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
  static constexpr bool addresses[sizeof...(A) + 1] = {std::is_pointer_v<A>..., false};
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
  static sim::Kernel registered_##name(#name, &sim::Call<&name>::thunk, sim::Call<&name>::sizes, sim::Call<&name>::addresses, \
                                       sim::Call<&name>::count);
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(sim::machine.dynamic_shared)
#define SHARED(type, name, count)                                            \
  static thread_local sim::SharedArray shared_##name(sizeof(type[count]));   \
  static thread_local type(&name)[count] = *static_cast<type(*)[count]>(shared_##name.data)

inline void __syncthreads() { sim::block_barrier(); }
inline int __syncthreads_count(int vote) { return int(sim::block_vote(vote != 0)); }
inline int __syncthreads_or(int vote) { return __syncthreads_count(vote) != 0; }
inline int __syncthreads_and(int vote) { return __syncthreads_count(vote == 0) == 0; }
