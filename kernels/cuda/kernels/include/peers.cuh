// Meetings of the ranks of a group in memory that all of them can read and write.
//
// Every rank has one region and a table of all regions' addresses. All regions have this layout:
// - flags, u32 [2 stages][kMeetingBlocks][kMaxRanks]: flags[stage][block][r] is the last epoch in
//   which rank r's block has arrived
// - staging, [2][capacity]: the rank's contribution
// - result, [2][capacity]: the rank's sums for the others (two-shot)
//
// Regions start as zeros. Epochs only grow, so nothing is ever reset, and they live in device
// memory, so a graph can be replayed. The halves alternate: a rank that writes a half in epoch e
// has met all ranks in e - 1, and all of them had ended e - 2, the last epoch that read the half.
#pragma once
#include "ptx.cuh"

EXPORT_CONSTANT int kMaxRanks = 8;
// Blocks of a launch, which must all run at the same time.
EXPORT_CONSTANT int kMeetingBlocks = 64;
EXPORT_CONSTANT int64_t kFlagBytes = 2 * kMeetingBlocks * kMaxRanks * 4;

// A rank's own state, which no other rank sees.
struct PeerStateRecord {
  uint32_t epoch;   // of the last call
  uint32_t ended;   // blocks that have ended in this call
  uint32_t missed;  // 1 + a rank that did not come in time; nothing is done any more
  uint32_t unused;
  uint32_t *told;  // null, or a word of the host's memory that gets what `missed` gets
};

// A rank's view of its group.
struct PeerParams {
  const uint64_t *regions;  // [world]: the addresses of the ranks' regions
  PeerStateRecord *state;
  int rank;
  int world;
  int64_t capacity;  // bytes of a half, a multiple of 16
  uint64_t timeout;  // nanoseconds that a rank waits for the others
};

// The state of one call.
struct Peers : PeerParams {
  uint32_t epoch;                          // known once the meeting has begun
  const unsigned char *parts[kMaxRanks];  // all ranks' contributions, in registers

  DEVICE explicit Peers(const PeerParams &group) : PeerParams(group), epoch(0) {}

  DEVICE unsigned char *region(int r) const {
    return reinterpret_cast<unsigned char *>(uintptr_t(regions[r]));
  }
  DEVICE uint32_t *flag(int of, int stage, int from) const {
    return reinterpret_cast<uint32_t *>(region(of)) + (stage * kMeetingBlocks + int(blockIdx.x)) * kMaxRanks +
           from;
  }
  template <class T> DEVICE T *staging(int r) const {
    return reinterpret_cast<T *>(region(r) + kFlagBytes + (epoch & 1) * capacity);
  }
  template <class T> DEVICE T *result(int r) const {
    return reinterpret_cast<T *>(region(r) + kFlagBytes + (2 + (epoch & 1)) * capacity);
  }
};

// Begins a meeting. Returns whether no rank was missing so far.
DEVICE bool begin_meeting(Peers &peers) {
  peers.epoch = peers.state->epoch + 1;
#pragma unroll
  for (int r = 0; r < kMaxRanks; r++) {
    if (r < peers.world) peers.parts[r] = peers.staging<unsigned char>(r);
  }
  return peers.state->missed == 0;
}

// Waits until this block has arrived here on all ranks; then everything that their blocks wrote
// before can be read. Returns false if a rank did not arrive in time.
DEVICE bool meet_peers(const Peers &peers, int stage) {
  __syncthreads();
  bool late = false;
  if (int(threadIdx.x) < peers.world) {
    store_release_system(peers.flag(threadIdx.x, stage, peers.rank), peers.epoch);
    const uint32_t *theirs = peers.flag(peers.rank, stage, threadIdx.x);
    const uint64_t start = nanoseconds();
    for (int turn = 1; int(load_acquire_system(theirs) - peers.epoch) < 0; turn++) {
      if (turn % 64 == 0 && nanoseconds() - start > peers.timeout) {
        late = true;
        peers.state->missed = 1 + threadIdx.x;
        if (peers.state->told) store_release_system(peers.state->told, 1 + threadIdx.x);
        break;
      }
      pause_spin();
    }
  }
  return !__syncthreads_or(late);
}

// Ends a meeting. The last block to end stores the epoch of the call, which all blocks have read by
// then.
DEVICE void end_meeting(const Peers &peers) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&peers.state->ended, 1u) + 1 == gridDim.x) {
    peers.state->ended = 0;
    peers.state->epoch = peers.epoch;
  }
}

// The sum over ranks in their order, in f32, rounded to T. It has the same bits on every rank.
template <class T, int N> DEVICE Vec<T, N> sum_of_ranks(const Peers &peers, int64_t at) {
  Vec<T, N> parts[kMaxRanks];
#pragma unroll
  for (int r = 0; r < kMaxRanks; r++) {
    if (r < peers.world) parts[r] = load_vec<T, N>(reinterpret_cast<const T *>(peers.parts[r]) + at);
  }
  float sum[N] = {};
#pragma unroll
  for (int r = 0; r < kMaxRanks; r++) {
    if (r < peers.world) {
#pragma unroll
      for (int i = 0; i < N; i++) sum[i] += to_float(parts[r].at[i]);
    }
  }
  Vec<T, N> total;
#pragma unroll
  for (int i = 0; i < N; i++) total.at[i] = from_float<T>(sum[i]);
  return total;
}
