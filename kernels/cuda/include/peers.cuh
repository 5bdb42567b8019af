// Meetings of the ranks of a group in memory that all of them can read and write.
//
// Every rank has one region, the same way laid out, and a table of all regions' addresses:
//   flags    u32 [2 stages][kMeetingBlocks][kMostRanks]   flags[stage][block][r]: the last epoch in which rank r's block has come
//   staging  [2][capacity]                                what the rank contributes
//   result   [2][capacity]                                what it has summed for the others (two-shot)
// Regions start as zeros. Epochs only grow, so nothing is ever reset, and they live in device memory, so a graph can be replayed. Halves
// alternate: who writes a half in epoch e has met all ranks in e - 1, and they had all ended e - 2, the last that read it.
#pragma once
#include "ptx.cuh"

constexpr int kMostRanks = 8;
constexpr int kMeetingBlocks = 64;
constexpr int64_t kFlagBytes = 2 * kMeetingBlocks * kMostRanks * 4;

// A rank's own words, which no other rank sees.
struct PeerState {
  uint32_t epoch;   // of the last call
  uint32_t ended;   // blocks that have ended in this call
  uint32_t missed;  // 1 + a rank that did not come in time; nothing is done any more
  uint32_t unused;
  uint32_t *told;   // null, or a word of the host's memory that gets what `missed` gets
};

struct Peers {
  const uint64_t *regions;  // [world]
  PeerState *state;
  int rank, world;
  int64_t capacity;  // bytes of a half, a multiple of 16
  uint64_t patience;  // nanoseconds
  // Of this call: known once the meeting has begun.
  uint32_t epoch;
  const unsigned char *parts[kMostRanks];  // all ranks' contributions, in registers

  DEVICE unsigned char *region(int r) const { return reinterpret_cast<unsigned char *>(uintptr_t(regions[r])); }
  DEVICE uint32_t *flag(int of, int stage, int from) const {
    return reinterpret_cast<uint32_t *>(region(of)) + (stage * kMeetingBlocks + int(blockIdx.x)) * kMostRanks + from;
  }
  template <class T> DEVICE T *staging(int r) const {
    return reinterpret_cast<T *>(region(r) + kFlagBytes + (epoch & 1) * capacity);
  }
  template <class T> DEVICE T *result(int r) const {
    return reinterpret_cast<T *>(region(r) + kFlagBytes + (2 + (epoch & 1)) * capacity);
  }
};

// Whether the group is whole so far.
DEVICE bool begin_meeting(Peers &peers) {
  peers.epoch = peers.state->epoch + 1;
#pragma unroll
  for (int r = 0; r < kMostRanks; r++) {
    if (r < peers.world) peers.parts[r] = peers.staging<unsigned char>(r);
  }
  return peers.state->missed == 0;
}

// Returns when this block has come here on all ranks: what their blocks wrote before can be read then. False if one did not come in time.
DEVICE bool meet_peers(const Peers &peers, int stage) {
  __syncthreads();
  bool late = false;
  if (int(threadIdx.x) < peers.world) {
    store_release_system(peers.flag(threadIdx.x, stage, peers.rank), peers.epoch);
    const uint32_t *theirs = peers.flag(peers.rank, stage, threadIdx.x);
    const uint64_t start = nanoseconds();
    for (int turn = 1; int(load_acquire_system(theirs) - peers.epoch) < 0; turn++) {
      if (turn % 64 == 0 && nanoseconds() - start > peers.patience) {
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

// The last block to end makes the epoch that of the call: all blocks have read it by then.
DEVICE void end_meeting(const Peers &peers) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&peers.state->ended, 1u) + 1 == gridDim.x) {
    peers.state->ended = 0;
    peers.state->epoch = peers.epoch;
  }
}

// The sum over ranks in their order, in f32, rounded to T: the same bits wherever it is taken.
template <class T, int N> DEVICE Vec<T, N> sum_of_ranks(const Peers &peers, int64_t at) {
  Vec<T, N> parts[kMostRanks];
#pragma unroll
  for (int r = 0; r < kMostRanks; r++) {
    if (r < peers.world) parts[r] = load_vec<T, N>(reinterpret_cast<const T *>(peers.parts[r]) + at);
  }
  float sum[N] = {};
#pragma unroll
  for (int r = 0; r < kMostRanks; r++) {
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
