//! Random traffic from a seed: arrivals with priorities, more adapters than places, salts and
//! common prefixes, several answers to one prompt, both schedules, cancellations, shortage of
//! blocks and slots, late answers, late masks, answers of several tokens per row, disk caches whose
//! reads and writes fail, shards that die, sequences that kill them, sequences that fail, small
//! frames, and shards whose prompts cannot be shared or divided.
//!
//! `MILLRACE_SIM_SEED=7` replays one seed. `MILLRACE_SIM_STEPS=2000000` simulates for longer than
//! the default.

mod distant_index;
mod ledger;
mod traffic;
mod world;

use self::world::simulate;

/// Number of steps to simulate by default: a few seconds in the test profile.
const STEPS: u64 = 60_000;

/// Counts of what happened in a simulation.
#[derive(Debug, Default)]
struct Totals {
    steps: u64,
    finished: u64,
    cancelled: u64,
    refused: u64,
    preemptions: u64,
    priority_preemptions: u64,
    deaths: u64,
    lost_steps: u64,
    overtakes: u64,
    hit_blocks: u64,
    shared_blocks: u64,
    /// Reused blocks that were computed with an adapter.
    adapted_blocks: u64,
    /// Adapters that were copied into places, and adapters that were unloaded.
    placed: u64,
    unloaded: u64,
    awaited_blocks: u64,
    evictions: u64,
    releases: u64,
    /// Masks that followed their steps, and rows whose masks came too late.
    late_masks: u64,
    deferred: u64,
    scored: u64,
    vectors: u64,
    /// Deadly requests that arrived, deaths of the shards by them, and sequences that were blamed.
    deadly: u64,
    killed: u64,
    blamed: u64,
    /// Sequences that failed alone.
    failed: u64,
    /// Steps and answers that fill more than a quarter of a frame, and so may have left out a row.
    full_frames: u64,
    /// Blocks that a router in front of the server has heard of.
    stored: u64,
    /// Blocks that were copied between the KV cache and the disk cache, and copies that failed.
    read_from_disk: u64,
    written_to_disk: u64,
    failed_disk_reads: u64,
    failed_disk_writes: u64,
    /// Rows of shards whose sequences cannot share blocks, and of shards that need whole prompts.
    unshared: u64,
    whole: u64,
    /// Sequences that began with the recurrent states of a checkpoint, and rows that saved theirs.
    restored: u64,
    saved: u64,
    /// Drafts in rows, and those that were right.
    drafted: u64,
    accepted_drafts: u64,
    /// Rows for which the draft model guessed.
    guessed: u64,
    /// Rows before which recurrent states were kept, and rows that went back to them.
    kept: u64,
    rewound: u64,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.steps += other.steps;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.preemptions += other.preemptions;
        self.priority_preemptions += other.priority_preemptions;
        self.deaths += other.deaths;
        self.lost_steps += other.lost_steps;
        self.overtakes += other.overtakes;
        self.hit_blocks += other.hit_blocks;
        self.shared_blocks += other.shared_blocks;
        self.adapted_blocks += other.adapted_blocks;
        self.placed += other.placed;
        self.unloaded += other.unloaded;
        self.awaited_blocks += other.awaited_blocks;
        self.evictions += other.evictions;
        self.releases += other.releases;
        self.late_masks += other.late_masks;
        self.deferred += other.deferred;
        self.scored += other.scored;
        self.vectors += other.vectors;
        self.deadly += other.deadly;
        self.killed += other.killed;
        self.blamed += other.blamed;
        self.failed += other.failed;
        self.full_frames += other.full_frames;
        self.stored += other.stored;
        self.read_from_disk += other.read_from_disk;
        self.written_to_disk += other.written_to_disk;
        self.failed_disk_reads += other.failed_disk_reads;
        self.failed_disk_writes += other.failed_disk_writes;
        self.unshared += other.unshared;
        self.whole += other.whole;
        self.restored += other.restored;
        self.saved += other.saved;
        self.drafted += other.drafted;
        self.accepted_drafts += other.accepted_drafts;
        self.guessed += other.guessed;
        self.kept += other.kept;
        self.rewound += other.rewound;
    }
}

/// Prints the seed when a test panics.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with MILLRACE_SIM_SEED={}", self.0);
        }
    }
}

#[test]
fn random_traffic_keeps_every_invariant() {
    let variable = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    if let Some(seed) = variable("MILLRACE_SIM_SEED") {
        eprintln!("seed {seed}: {:?}", replayable(seed));
        return;
    }
    let (mut totals, wanted) = (Totals::default(), variable("MILLRACE_SIM_STEPS").unwrap_or(STEPS));
    for seed in 0.. {
        totals.add(&replayable(seed));
        if totals.steps >= wanted {
            break;
        }
    }
    eprintln!("{totals:?}");
    // The simulation must reach the situations that it is meant to test.
    let often = totals.steps / 1000;
    let Totals { finished, cancelled, refused, preemptions, deaths, lost_steps, .. } = totals;
    assert!(finished > 10 * often && preemptions > often && cancelled > often && refused > 0, "{totals:?}");
    assert!(deaths > often / 2 && lost_steps > often / 2, "{totals:?}");
    let Totals { overtakes, hit_blocks, shared_blocks, evictions, releases, scored, vectors, .. } = totals;
    assert!(overtakes > often && hit_blocks > 100 * often, "{totals:?}");
    assert!(releases > 100 * often && scored > 100 * often && vectors > often, "{totals:?}");
    assert!(totals.priority_preemptions > often / 2, "{totals:?}");
    let Totals { deadly, killed, blamed, failed, full_frames, .. } = totals;
    assert!(killed > 0 && killed <= 3 * deadly, "a deadly request costs three losses: {totals:?}");
    assert!(blamed > often / 10 && failed > often / 2 && full_frames > often / 10, "{totals:?}");
    assert!(totals.stored > 100 * often, "{totals:?}");
    assert!(totals.late_masks > 30 * often && totals.deferred > 10 * often, "{totals:?}");
    assert!(shared_blocks > 30 * often && evictions > 50 * often, "{totals:?}");
    assert!(totals.adapted_blocks > 30 * often, "{totals:?}");
    assert!(totals.placed > 5 * often && totals.unloaded > often / 10, "{totals:?}");
    assert!(totals.awaited_blocks > 5 * often, "{totals:?}");
    assert!(totals.unshared > 100 * often && totals.whole > 100 * often, "{totals:?}");
    let Totals { drafted, accepted_drafts, .. } = totals;
    assert!(accepted_drafts > 3 * often && drafted > accepted_drafts + often, "{totals:?}");
    assert!(totals.guessed > 3 * often, "{totals:?}");
    assert!(totals.rewound > often / 10 && totals.kept > totals.rewound, "{totals:?}");
    let Totals { read_from_disk, written_to_disk, failed_disk_reads, failed_disk_writes, .. } = totals;
    assert!(read_from_disk > 4 * often && written_to_disk > 100 * often, "{totals:?}");
    assert!(failed_disk_reads > often / 2 && failed_disk_writes > 0, "{totals:?}");
    assert!(totals.saved > often / 2 && totals.restored > often / 4, "{totals:?}");
}

#[test]
fn a_seed_replays() {
    assert_eq!(format!("{:?}", replayable(3)), format!("{:?}", replayable(3)));
}

fn replayable(seed: u64) -> Totals {
    let _replay = Replay(seed);
    simulate(seed)
}
