// A replacement of NCCL between simulated devices, whose memory is the host's. It has the functions
// that the host code calls, for ranks in threads or processes of one machine. Sums run in f32 in
// the order of the ranks and are rounded once.
//
// Communicators do not block, and are as late as the real library may be: a collective is in
// progress until its state has been asked for several times, and only then does it move data.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

enum Result {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
constexpr int kMaxRanks = 64;
constexpr size_t kChunk = 64 << 10;
// Answers "in progress" before a collective is done.
constexpr int kLateAnswers = 3;

// The memory that all ranks have mapped.
struct Region {
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> aborted;
  std::atomic<uint32_t> taken[kMaxRanks];
  // The collective that each rank is about to run, so that different ones are detected.
  uint64_t intention[kMaxRanks];
  unsigned char slots[kMaxRanks][kChunk];
};

struct UniqueId {
  char name[128];
};

struct Communicator {
  Region *region;
  int rank, world;
  std::function<Result()> pending;  // the collective in progress
  int late_answers;                 // how often its state is still in progress
};

thread_local char last_error[256];

Result fail(Result code, const char *why) {
  std::snprintf(last_error, sizeof last_error, "%s", why);
  return code;
}

// Waits for all ranks.
Result meet(Communicator *c) {
  Region *r = c->region;
  const uint32_t generation = r->generation.load();
  if (r->arrived.fetch_add(1) + 1 == uint32_t(c->world)) {
    r->arrived = 0;
    r->generation.fetch_add(1);
  } else {
    while (r->generation.load() == generation) {
      if (r->aborted.load()) return fail(kRemoteError, "a rank has aborted");
      sched_yield();
    }
  }
  // Ranks may abort after all have arrived; the meeting still succeeds.
  return kSuccess;
}

size_t size_of(int type) {
  switch (type) {
    case 0: case 1: case 10: return 1;
    case 6: case 9: return 2;
    case 2: case 3: case 7: return 4;
    default: return 8;
  }
}

float widen(const unsigned char *p, int type) {
  if (type == 7) { float f; std::memcpy(&f, p, 4); return f; }
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  if (type == 6) { _Float16 h; std::memcpy(&h, &bits, 2); return float(h); }
  const uint32_t u = uint32_t(bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

void narrow(unsigned char *p, float f, int type) {
  if (type == 7) { std::memcpy(p, &f, 4); return; }
  if (type == 6) { const _Float16 h = _Float16(f); std::memcpy(p, &h, 2); return; }
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t bits = uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  std::memcpy(p, &bits, 2);
}

// Calls `take(rank, offset, chunk, bytes)` for each piece of the `bytes` at every rank's `from`.
template <class F>
Result exchange(Communicator *c, const void *from, size_t bytes, uint64_t intention, F take) {
  Region *r = c->region;
  r->intention[c->rank] = intention ^ bytes;
  size_t at = 0;
  do {
    const size_t piece = bytes - at < kChunk ? bytes - at : kChunk;
    if (piece) std::memcpy(r->slots[c->rank], static_cast<const unsigned char *>(from) + at, piece);
    if (Result code = meet(c)) return code;
    for (int i = 0; i < c->world; i++) {
      if (r->intention[i] != r->intention[c->rank])
        return fail(kInvalidUsage, "ranks are in different collectives");
    }
    for (int i = 0; i < c->world; i++) take(i, at, r->slots[i], piece);
    if (Result code = meet(c)) return code;
    at += piece;
  } while (at < bytes);
  return kSuccess;
}

// Begins a collective.
Result begin(Communicator *c, std::function<Result()> work) {
  if (c->pending) return fail(kInvalidUsage, "the collective before is still in progress");
  c->pending = std::move(work);
  c->late_answers = kLateAnswers;
  return kInProgress;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Result ncclGetVersion(int *version) {
  *version = 22000;
  return kSuccess;
}

// Names an anonymous file of this process, which exists as long as the process.
EXPORT Result ncclGetUniqueId(UniqueId *id) {
  const int file = memfd_create("millrace-simulated-nccl", 0);
  if (file < 0 || ftruncate(file, sizeof(Region)) != 0) return fail(kSystemError, "no memory to share");
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->name, sizeof id->name, "/proc/%d/fd/%d", int(getpid()), file);
  return kSuccess;
}

EXPORT Result ncclCommInitRankConfig(Communicator **comm, int world, UniqueId id, int rank, void *) {
  if (world < 1 || world > kMaxRanks || rank < 0 || rank >= world)
    return fail(kInvalidArgument, "no such rank");
  const int file = open(id.name, O_RDWR);
  if (file < 0) return fail(kSystemError, "rank 0 is gone");
  void *at = mmap(nullptr, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return fail(kSystemError, "no memory to share");
  Region *region = static_cast<Region *>(at);
  if (region->taken[rank].exchange(1)) return fail(kInvalidUsage, "the rank is taken");
  region->joined.fetch_add(1);
  *comm = new Communicator{region, rank, world, nullptr, 0};
  return kInProgress;
}

EXPORT Result ncclCommGetAsyncError(Communicator *c, Result *state) {
  const bool formed = c->region->joined.load() == uint32_t(c->world);
  *state = c->region->aborted.load() ? kRemoteError : formed ? kSuccess : kInProgress;
  if (*state != kSuccess || !c->pending) return kSuccess;
  if (c->late_answers-- > 0) {
    *state = kInProgress;
  } else {
    *state = std::exchange(c->pending, nullptr)();
  }
  return kSuccess;
}

EXPORT Result ncclCommAbort(Communicator *c) {
  c->region->aborted = 1;
  munmap(c->region, sizeof(Region));
  delete c;
  return kSuccess;
}

EXPORT Result ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                            Communicator *c, void *) {
  if (operation != 0 || (type != 6 && type != 7 && type != 9))
    return fail(kInvalidArgument, "only sums of floats");
  return begin(c, [=] {
    const size_t size = size_of(type);
    std::vector<float> sums(kChunk / size);
    return exchange(c, from, count * size, 1000 + uint64_t(type),
                    [&](int rank, size_t at, const unsigned char *chunk, size_t bytes) {
                      for (size_t i = 0; i < bytes / size; i++) {
                        const float v = widen(chunk + i * size, type);
                        sums[i] = rank == 0 ? v : sums[i] + v;
                        if (rank == c->world - 1)
                          narrow(static_cast<unsigned char *>(to) + at + i * size, sums[i], type);
                      }
                    });
  });
}

EXPORT Result ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *c, void *) {
  return begin(c, [=] {
    const size_t part = count * size_of(type);
    return exchange(c, from, part, 2000 + uint64_t(type),
                    [&](int rank, size_t at, const unsigned char *chunk, size_t bytes) {
                      std::memcpy(static_cast<unsigned char *>(to) + size_t(rank) * part + at, chunk, bytes);
                    });
  });
}

EXPORT Result ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *c,
                            void *) {
  return begin(c, [=] {
    return exchange(c, from, count * size_of(type), 3000 + uint64_t(type),
                    [&](int rank, size_t at, const unsigned char *chunk, size_t bytes) {
                      if (rank == root) std::memcpy(static_cast<unsigned char *>(to) + at, chunk, bytes);
                    });
  });
}

EXPORT const char *ncclGetErrorString(Result code) {
  switch (code) {
    case kSuccess: return "no error";
    case kSystemError: return "unhandled system error";
    case kInvalidArgument: return "invalid argument";
    case kInvalidUsage: return "invalid usage";
    case kRemoteError: return "remote process exited or there was a network error";
    default: return "in progress";
  }
}

EXPORT const char *ncclGetLastError(Communicator *) { return last_error; }
