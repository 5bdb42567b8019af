// Fibers, barriers and launches of the simulated device. Linked into the library of every .cu file.
#include "machine.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
// For functions that a fiber never returns from: memory that their frames poison would stay
// poisoned for the next fiber on this stack.
#define NO_ASAN __attribute__((no_sanitize_address))
#else
#define WITH_ASAN 0
#define NO_ASAN
#endif

extern "C" void millrace_sim_switch(void **save, void *to);

#if defined(__x86_64__)
constexpr int kSaved = 6;
asm(R"(
.text
.type millrace_sim_switch,@function
.hidden millrace_sim_switch
.globl millrace_sim_switch
millrace_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size millrace_sim_switch,.-millrace_sim_switch
)");
#elif defined(__aarch64__)
constexpr int kSaved = 20;
asm(R"(
.text
.type millrace_sim_switch,@function
.hidden millrace_sim_switch
.globl millrace_sim_switch
millrace_sim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size millrace_sim_switch,.-millrace_sim_switch
)");
#else
#error "the simulated device knows x86-64 and AArch64"
#endif

namespace sim {

thread_local Machine machine;

namespace {

constexpr size_t kStack = 256 << 10;
// The time that a block may wait for memory that another thread should write. Only a deadlock
// reaches it: on a busy machine the other thread may not run for many seconds.
constexpr auto kSpinLimit = std::chrono::minutes(10);

Kernel *kernels = nullptr;
thread_local SharedArray *shared_arrays = nullptr;

// The state of an OS thread while it works on a launch.
struct Worker {
  Fiber *fibers;
  char *stacks;
  void *scheduler;
  Thunk thunk;
  const void *params;
  const char *const *pointer_names;
  bool reverse, greedy;
  bool ahead;    // whether the block runs only up to its wait for the previous kernel
  bool waiting;  // whether a thread of it has reached this wait
  std::string *fault;
  // The time from which on every thread that can run has waited for memory to change.
  std::chrono::steady_clock::time_point spins_since;
  bool only_spins;
  const void *own_stack;
  size_t own_stack_bytes;
};
thread_local Worker *worker;

NO_ASAN void to_scheduler() {
  void *abandoned;
#if WITH_ASAN
  __sanitizer_start_switch_fiber(nullptr, worker->own_stack, worker->own_stack_bytes);
#endif
  millrace_sim_switch(&abandoned, worker->scheduler);
}

NO_ASAN void run(Fiber *next, bool leaving) {
  Fiber *from = machine.fiber;
  if (next == from && !leaving) return;
  machine.fiber = next;
#if WITH_ASAN
  void *fake = nullptr;
  __sanitizer_start_switch_fiber(leaving ? nullptr : &fake, worker->stacks + kStack * (next - worker->fibers),
                                 kStack);
#endif
  millrace_sim_switch(&from->stack_pointer, next->stack_pointer);
#if WITH_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

unsigned first_lane(unsigned lanes) {
  return worker->reverse ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
}

// The next fiber after the current one among the lanes that `eligible` returns for each warp.
template <class F> Fiber *next_of(bool greedy, F eligible) {
  const Fiber *f = machine.fiber;
  const unsigned n = machine.warp_count;
  const unsigned lanes = eligible(machine.warps[f->warp]);
  const unsigned later = worker->reverse ? lanes & ((1u << f->lane) - 1) : lanes & ~((2u << f->lane) - 1);
  if (later) return &worker->fibers[f->warp * kLanes + first_lane(later)];
  if (greedy && lanes) return &worker->fibers[f->warp * kLanes + first_lane(lanes)];
  for (unsigned i = 1; i <= n; i++) {
    const unsigned w = worker->reverse ? (f->warp + n - i) % n : (f->warp + i) % n;
    if (const unsigned found = eligible(machine.warps[w]))
      return &worker->fibers[w * kLanes + first_lane(found)];
  }
  return nullptr;
}

const char *why_nobody_runs() {
  for (unsigned w = 0; w < machine.warp_count; w++) {
    const Warp &warp = machine.warps[w];
    for (unsigned i = 0; i < warp.meeting_count; i++) {
      for (unsigned k = 0; k < warp.meeting_count; k++) {
        if (i != k && warp.meetings[k].arrived && warp.meetings[i].arrived & warp.meetings[k].mask) {
          return "deadlock: lanes of one warp wait under masks that overlap but differ";
        }
      }
    }
  }
  return "deadlock: threads wait for others that never come (divergent barrier or lane mask)";
}

// The fiber that runs after the current one, which may be waiting or may have ended. Fibers that
// spin come after all others, in turn and never greedily. If all fibers spin, the thread yields to
// other OS threads.
Fiber *successor(bool from_spin) {
  if (!from_spin) worker->only_spins = false;
  if (Fiber *next = next_of(worker->greedy, [](const Warp &w) { return w.runnable & ~w.spinning; }))
    return next;
  Fiber *next = next_of(false, [](const Warp &w) { return w.runnable; });
  if (!next && worker->waiting) to_scheduler();
  if (!next) fail(why_nobody_runs());
  const auto now = std::chrono::steady_clock::now();
  if (!worker->only_spins) {
    worker->only_spins = true;
    worker->spins_since = now;
  } else if (now - worker->spins_since > kSpinLimit) {
    fail("waited too long for memory that nobody has written");
  }
  std::this_thread::yield();
  return next;
}

// Lets other threads run until this one is runnable again.
void wait_for_release() {
  const Fiber *f = machine.fiber;
  machine.warps[f->warp].runnable &= ~(1u << f->lane);
  run(successor(false), false);
}

void release_barrier() {
  machine.at_barrier = 0;
  machine.barrier_generation++;
  machine.votes[machine.barrier_generation & 1] = 0;
  for (unsigned w = 0; w < machine.warp_count; w++) machine.warps[w].runnable = machine.warps[w].alive;
}

bool complete(const Meeting &m, const Warp &w) { return m.arrived != 0 && m.arrived == (m.mask & w.alive); }

void release(Meeting &m, Warp &w) {
  m.exchanges[m.generation & 1].lanes = m.arrived;
  w.runnable |= m.arrived;
  m.unread = m.arrived;
  m.arrived = 0;
  m.generation++;
}

NO_ASAN void thread_main() {
#if WITH_ASAN
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!worker->own_stack) {
    worker->own_stack = bottom;
    worker->own_stack_bytes = bytes;
  }
#endif
  worker->thunk(worker->params);
  Fiber *f = machine.fiber;
  if (worker->ahead) fail("a thread ends without waiting for the kernel before");
  if (f->first_copy != f->last_copy) fail("a thread ends with asynchronous copies in flight");
  Warp &w = machine.warps[f->warp];
  w.alive &= ~(1u << f->lane);
  w.runnable &= ~(1u << f->lane);
  machine.alive--;
  if (machine.alive == 0) to_scheduler();
  // Threads that waited for one that has ended are released.
  if (machine.at_barrier && machine.at_barrier == machine.alive) release_barrier();
  for (unsigned i = 0; i < w.meeting_count; i++) {
    if (complete(w.meetings[i], w)) release(w.meetings[i], w);
  }
  run(successor(false), true);
  std::abort();
}

void run_block(Warp *warps, unsigned threads, bool ahead) {
  Fiber *fibers = worker->fibers;
  worker->ahead = ahead;
  worker->waiting = false;
  const dim3 size = machine.block_size;
  machine.warps = warps;
  machine.warp_count = (threads + kLanes - 1) / kLanes;
  machine.alive = threads;
  machine.at_barrier = 0;
  machine.barrier_generation = 0;
  machine.votes[0] = machine.votes[1] = 0;
  for (SharedArray *s = shared_arrays; s; s = s->next) std::memset(s->data, 0xCD, s->bytes);
  for (unsigned w = 0; w < machine.warp_count; w++) {
    const unsigned lanes = threads - w * kLanes;
    warps[w].alive = lanes >= kLanes ? ~0u : (1u << lanes) - 1;
    warps[w].runnable = warps[w].alive;
    warps[w].spinning = 0;
    warps[w].meeting_count = 0;
  }
  for (unsigned i = 0; i < threads; i++) {
    Fiber &f = fibers[i];
    f.thread = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    f.warp = i / kLanes;
    f.lane = i % kLanes;
    f.first_copy = f.last_copy = f.group = 0;
    void **top = reinterpret_cast<void **>(worker->stacks + kStack * (i + 1));
#if defined(__x86_64__)
    *--top = nullptr;  // keeps the stack aligned as after a call
    *--top = reinterpret_cast<void *>(&thread_main);
    for (int k = 0; k < kSaved; k++) *--top = nullptr;
#else
    for (int k = 0; k < kSaved; k++) *--top = nullptr;
    top[11] = reinterpret_cast<void *>(&thread_main);  // x30
#endif
    f.stack_pointer = top;
  }
  Fiber *first = &fibers[worker->reverse ? threads - 1 : 0];
  machine.fiber = first;
#if WITH_ASAN
  void *fake;
  worker->own_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake, worker->stacks + kStack * (first - fibers), kStack);
#endif
  millrace_sim_switch(&worker->scheduler, first->stack_pointer);
#if WITH_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

}  // namespace

void fail(const char *message) {
  const uint3 b = machine.block, t = machine.fiber->thread;
  char where[160];
  std::snprintf(where, sizeof where, " (block %u,%u,%u thread %u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
  *worker->fault = std::string(message) + where;
  to_scheduler();
  std::abort();
}

void spin_pause() {
  const Fiber *f = machine.fiber;
  unsigned &spinning = machine.warps[f->warp].spinning;
  spinning |= 1u << f->lane;
  run(successor(true), false);
  spinning &= ~(1u << f->lane);
}

bool is_ahead() { return worker->ahead; }

void wait_for_previous_kernel() {
  if (!worker->ahead) return;
  worker->waiting = true;
  wait_for_release();
}

namespace {
void arrive_at_barrier(bool votes) {
  if (machine.at_barrier && machine.barrier_votes != votes)
    fail("a barrier that votes meets one that does not");
  machine.barrier_votes = votes;
  if (++machine.at_barrier == machine.alive) {
    release_barrier();
  } else {
    wait_for_release();
  }
}
}  // namespace

void block_barrier() { arrive_at_barrier(false); }

unsigned block_vote(bool vote) {
  // No thread reads the tally of the previous vote once a thread votes again.
  unsigned &tally = machine.votes[machine.barrier_generation & 1];
  tally += vote;
  arrive_at_barrier(true);
  return tally;
}

const Exchange &meet(unsigned mask, Operation kind, const void *value, size_t bytes) {
  Fiber *f = machine.fiber;
  Warp &w = machine.warps[f->warp];
  const unsigned bit = 1u << f->lane;
  const int operation = int(kind) << 8 | int(bytes);
  if (!(mask & bit)) fail("a lane calls a warp operation with a mask that does not name it");
  Meeting *m = w.meetings, *end = w.meetings + w.meeting_count;
  while (m != end && m->mask != mask) m++;
  if (m == end) {
    // A meeting that no lane waits in or has yet to read from is reused.
    if (w.meeting_count == kMeetings) {
      for (m = w.meetings; m != end && (m->arrived || m->unread); m++) {}
      if (m == end) fail("too many groups of lanes meet at once");
    } else {
      w.meeting_count++;
    }
    m->mask = mask;
    m->arrived = 0;
    m->unread = 0;
    m->generation = 0;
  }
  if (m->arrived == 0) m->operation = operation;
  if (m->operation != operation) fail("lanes of one mask are in different warp operations");
  Exchange &own = m->exchanges[m->generation & 1];
  std::memcpy(own.slots[f->lane], value, bytes);
  m->arrived |= bit;
  if (complete(*m, w)) {
    release(*m, w);
  } else {
    wait_for_release();
  }
  m->unread &= ~bit;
  return own;
}

// The addresses that replace those of a kernel's parameters while a block runs ahead: memory that
// cannot be touched.
namespace {
constexpr unsigned kMaxPointers = 64;
constexpr size_t kApart = size_t(1) << 30;

struct Forbidden {
  char *start;
  struct sigaction before;
  Forbidden() {
    void *at = mmap(nullptr, kApart * kMaxPointers, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    start = at == MAP_FAILED ? nullptr : static_cast<char *>(at);
    struct sigaction action {};
    action.sa_sigaction = &touched;
    // The handler is left by a switch to another stack, and the signal must not stay blocked.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
  }
  // The address is in the middle of its part, so that offsets may be negative.
  void *address_of(size_t pointer) const { return start + kApart * pointer + kApart / 2; }
  static void touched(int signal, siginfo_t *info, void *context);
};
Forbidden &forbidden() {
  static Forbidden all;
  return all;
}

void Forbidden::touched(int signal, siginfo_t *info, void *context) {
  const Forbidden &all = forbidden();
  const size_t offset = size_t(static_cast<char *>(info->si_addr) - all.start);
  if (worker && worker->ahead && offset < kApart * kMaxPointers) {
    const std::string name = worker->pointer_names[offset / kApart];
    fail(("memory of the parameter " + name + " is touched before the wait for the kernel before").c_str());
  }
  // The fault has another cause. The previous handler gets it when the instruction is executed
  // again.
  sigaction(signal, &all.before, nullptr);
  (void)context;
}
}  // namespace

SharedArray::SharedArray(size_t bytes) : data(nullptr), bytes(bytes), next(shared_arrays) {
  if (posix_memalign(&data, 128, bytes) != 0) std::abort();
  std::memset(data, 0xCD, bytes);
  shared_arrays = this;
}

SharedArray::~SharedArray() { std::free(data); }

void check_shared(const void *p, size_t bytes, const char *message) {
  const auto within = [&](const void *from, size_t size) {
    const auto at = reinterpret_cast<uintptr_t>(p), start = reinterpret_cast<uintptr_t>(from);
    return at >= start && at + bytes <= start + size;
  };
  if (within(machine.dynamic_shared, machine.dynamic_shared_bytes)) return;
  for (const SharedArray *s = shared_arrays; s; s = s->next) {
    if (within(s->data, s->bytes)) return;
  }
  fail(message);
}

Kernel::Kernel(const char *name, const char *params_type, size_t params_bytes, Thunk thunk)
    : name(name), params_type(params_type), params_bytes(params_bytes), thunk(thunk), next(kernels) {
  kernels = this;
}

namespace {
// Whether the type, which may have the arguments of a template, is the struct of this name.
bool is_struct(const char *type, const char *name) {
  const size_t length = std::strlen(name);
  return std::strncmp(type, name, length) == 0 && (type[length] == 0 || type[length] == '<');
}

// What is wrong with the launch of a kernel, or nothing.
std::string refusal(const LaunchRequest &launch, const Kernel *kernel) {
  const size_t threads = size_t(launch.block[0]) * launch.block[1] * launch.block[2];
  const unsigned *grid = launch.grid;
  const size_t blocks = size_t(grid[0]) * grid[1] * grid[2];
  if (!kernel) return std::string("no kernel of the name ") + launch.kernel;
  if (threads == 0 || threads > kMaxThreads) return "a block must have 1 to 1024 threads";
  if (blocks == 0 || grid[1] > 65535 || grid[2] > 65535 || grid[0] > 2147483647u) {
    return "the grid is empty or larger than a device takes";
  }
  if (launch.dynamic_shared > launch.most_shared) return "more shared memory than a block can have";
  if (launch.pointer_count > kMaxPointers || !forbidden().start) {
    return "too many pointers, or no memory for the simulated device";
  }
  if (!is_struct(kernel->params_type, launch.params_type)) {
    return std::string("the kernel takes ") + kernel->params_type + ", not " + launch.params_type;
  }
  if (kernel->params_bytes != launch.params_bytes) {
    return std::string(kernel->params_type) + " has " + std::to_string(kernel->params_bytes) +
           " bytes, not " + std::to_string(launch.params_bytes);
  }
  return "";
}
}  // namespace

}  // namespace sim

// Runs a kernel to its end. Returns 0 on success; otherwise `message` gets the error.
extern "C" __attribute__((visibility("default"))) int millrace_sim_launch(const sim::LaunchRequest *request,
                                                                          char *message,
                                                                          size_t message_bytes) {
  using namespace sim;
  const LaunchRequest &launch = *request;
  const unsigned *grid = launch.grid, *block = launch.block;
  const size_t dynamic_shared = launch.dynamic_shared;
  Kernel *kernel = kernels;
  while (kernel && std::strcmp(kernel->name, launch.kernel) != 0) kernel = kernel->next;
  std::string fault = refusal(launch, kernel);
  const size_t threads = size_t(block[0]) * block[1] * block[2];
  const size_t blocks = size_t(grid[0]) * grid[1] * grid[2];

  // Before anything else some blocks run ahead, as they may on a GPU while the kernel before them
  // still runs: up to their wait, with addresses that cannot be touched.
  const size_t ahead = std::min<size_t>(blocks, 3);
  const auto *bytes = static_cast<const unsigned char *>(launch.params);
  std::vector<unsigned char> params_ahead(bytes, bytes + launch.params_bytes);
  for (size_t i = 0; fault.empty() && i < launch.pointer_count; i++) {
    unsigned char *pointer = params_ahead.data() + launch.pointer_offsets[i];
    void *address;
    std::memcpy(&address, pointer, sizeof address);
    if (address) address = forbidden().address_of(i);
    std::memcpy(pointer, &address, sizeof address);
  }

  std::atomic<size_t> next{0};
  std::atomic<bool> failed{!fault.empty()};
  std::mutex lock;
  auto work = [&] {
    Worker self{};
    std::string own_fault;
    std::vector<Fiber> fibers(threads);
    std::vector<Warp> warps((threads + kLanes - 1) / kLanes);
    const size_t bytes = kStack * threads;
    self.stacks = static_cast<char *>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    // The memory has exactly the requested size, so that a sanitizer sees an access beyond it.
    void *shared = nullptr;
    if (self.stacks == MAP_FAILED || (dynamic_shared && posix_memalign(&shared, 1024, dynamic_shared) != 0)) {
      own_fault = "no memory for the simulated device";
    } else {
      self.fibers = fibers.data();
      self.thunk = kernel->thunk;
      self.pointer_names = launch.pointer_names;
      self.reverse = launch.schedule & 1;
      self.greedy = launch.schedule & 2;
      self.fault = &own_fault;
      worker = &self;
      machine.block_size = {block[0], block[1], block[2]};
      machine.grid_size = {grid[0], grid[1], grid[2]};
      machine.dynamic_shared = static_cast<unsigned char *>(shared);
      machine.dynamic_shared_bytes = dynamic_shared;
      for (size_t i; !failed && own_fault.empty() && (i = next++) < ahead + blocks;) {
        const bool is_ahead = i < ahead;
        const size_t b = is_ahead ? i * (blocks - 1) / std::max<size_t>(ahead - 1, 1) : i - ahead;
        self.params = is_ahead ? params_ahead.data() : launch.params;
        if (shared) std::memset(shared, 0xCD, dynamic_shared);
        machine.block = {unsigned(b % grid[0]), unsigned(b / grid[0] % grid[1]),
                         unsigned(b / (size_t(grid[0]) * grid[1]))};
        run_block(warps.data(), unsigned(threads), is_ahead);
#if WITH_ASAN
        // The block's threads have stopped in the middle of their functions.
        if (is_ahead) ASAN_UNPOISON_MEMORY_REGION(self.stacks, bytes);
#endif
        size_t static_shared = 0;
        for (const SharedArray *a = shared_arrays; a; a = a->next) static_shared += a->bytes;
        if (own_fault.empty() && dynamic_shared + static_shared > launch.most_shared)
          own_fault = "more shared memory than a block can have";
      }
      worker = nullptr;
    }
    free(shared);
#if WITH_ASAN
    // After a fault, threads have stopped in the middle of their functions.
    if (self.stacks != MAP_FAILED && !own_fault.empty()) ASAN_UNPOISON_MEMORY_REGION(self.stacks, bytes);
#endif
    if (self.stacks != MAP_FAILED) munmap(self.stacks, bytes);
    if (!own_fault.empty()) {
      std::lock_guard<std::mutex> guard(lock);
      if (!failed.exchange(true)) fault = own_fault;
    }
  };
  if (!failed) {
    const size_t n = std::min<size_t>(blocks, launch.os_threads ? launch.os_threads : 1);
    std::vector<std::thread> others;
    for (size_t i = 1; i < n; i++) others.emplace_back(work);
    std::thread(work).join();  // a thread of its own, so that thread-local memory of the caller is left alone
    for (auto &t : others) t.join();
  }
  if (fault.empty()) return 0;
  std::snprintf(message, message_bytes, "%s: %s", launch.kernel, fault.c_str());
  return 1;
}
