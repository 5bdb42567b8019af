//! All-reduce: every rank runs in a thread of its own, and each is late once.
//!
//! On a GPU the ranks are streams of one context, whose kernels wait for each other. While they
//! wait, nothing may make the driver wait for the whole context: no kernel is loaded and no memory
//! is allocated or freed. So each rank prepares its buffers and launches its kernels once alone
//! before any rank starts, and keeps its buffers until all are done.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use millrace_cuda::ops::allreduce::{
    AllGatherColumns, AllReduceForm, AllReduceNorm, PeerGroup, all_gather, all_reduce, all_reduce_norm,
};
use millrace_cuda::ops::norm::{NormKind, NormRows, norm};
use millrace_cuda::{Device, Elem, Memory};
use millrace_test_patience::patience;

use crate::common::*;

/// The timeout of ranks that all arrive. Only ranks that wait for each other forever reach it.
fn long() -> Duration {
    patience(Duration::from_secs(120))
}

/// The shared memory of a group's ranks, and each rank's state.
struct Region {
    capacity: usize,
    regions: Vec<Memory>,
    table: Memory,
    states: Vec<Memory>,
}

impl Region {
    /// Memory that no rank has written is garbage. `epoch` is that of the last call.
    fn new(world: usize, capacity: usize, epoch: u32) -> Region {
        let flags = PeerGroup::region_bytes(0);
        let regions: Vec<Memory> = (0..world)
            .map(|_| {
                let region = garbage(Elem::U32, PeerGroup::region_bytes(capacity) / 4);
                let epochs: Vec<u8> = (0..flags / 4).flat_map(|_| epoch.to_le_bytes()).collect();
                DEVICE.write(region.view(Elem::U8).slice(0..flags), &epochs).unwrap();
                region
            })
            .collect();
        let addresses: Vec<u8> =
            regions.iter().flat_map(|r| r.view(Elem::U8).address().to_le_bytes()).collect();
        let states = (0..world).map(|_| put_u32(&[epoch, 0, 0, 0, 0, 0])).collect();
        let table = DEVICE.upload(&addresses).unwrap();
        DEVICE.synchronize().unwrap();
        Region { capacity, regions, table, states }
    }

    fn group(&self, rank: usize, timeout: Duration) -> PeerGroup<'_> {
        PeerGroup {
            rank,
            world: self.regions.len(),
            regions: self.table.view(Elem::U64),
            state: self.states[rank].view(Elem::U32),
            capacity: self.capacity,
            timeout,
        }
    }

    /// The bytes of all ranks' regions.
    fn bytes(&self) -> Vec<Vec<u8>> {
        self.regions.iter().map(|region| DEVICE.read(region.view(Elem::U8)).unwrap()).collect()
    }
}

/// A call that all ranks make.
#[derive(Debug, Clone)]
struct Round {
    elem: Elem,
    /// `None` for the all-reduce with residual and norm, over rows of `cols`.
    form: Option<AllReduceForm>,
    rows: usize,
    cols: usize,
    /// The delay of each rank in milliseconds.
    delays: Vec<u64>,
    /// The inputs of each rank.
    inputs: Vec<Vec<f32>>,
    residual: Vec<f32>,
    weight: Vec<f32>,
}

fn random(rng: &mut Rng, world: usize, most: usize) -> Round {
    let form = rng.pick(&[Some(AllReduceForm::OneShot), Some(AllReduceForm::TwoShot), None]);
    let elem = rng.pick(&ACTIVATIONS);
    let cols = rng.pick(&[1, 5, 8, 64, 100, 1001, 1024, 4104]);
    let rows = rng.pick(&[1, 2, 7, 70]).min(most / cols).max(1);
    let late = rng.below(world);
    Round {
        elem,
        form,
        rows,
        cols,
        delays: (0..world).map(|r| if r == late { 12 } else { rng.below(3) as u64 }).collect(),
        inputs: (0..world).map(|_| rng.values(elem, rows * cols)).collect(),
        residual: rng.values(elem, rows * cols),
        weight: rng.values(Elem::F32, cols),
    }
}

/// The memory that a rank's part in a round reads and writes.
struct Buffers {
    x: Memory,
    residual: Memory,
    weight: Memory,
}

impl Buffers {
    fn new(round: &Round, rank: usize) -> Buffers {
        Buffers {
            x: put(round.elem, &round.inputs[rank]),
            residual: put(round.elem, &round.residual),
            weight: put(Elem::F32, &round.weight),
        }
    }

    fn launch(&self, round: &Round, device: &Device, group: &PeerGroup<'_>) {
        let elem = round.elem;
        let x = self.x.view(elem);
        match round.form {
            Some(form) => all_reduce(device, group, form, x, round.rows * round.cols).unwrap(),
            None => {
                let n = AllReduceNorm {
                    rows: round.rows,
                    cols: round.cols,
                    eps: 1e-5,
                    x,
                    residual: self.residual.view(elem),
                    weight: self.weight.view(Elem::F32),
                    out: x,
                };
                all_reduce_norm(device, group, &n).unwrap();
            }
        }
        device.synchronize().unwrap();
    }

    /// The result of a rank: `x` or the normalized rows, and the residual.
    fn read(&self, elem: Elem) -> (Vec<f32>, Vec<f32>) {
        (get(self.x.view(elem)), get(self.residual.view(elem)))
    }
}

/// Runs these ranks of a group, each in a thread with a device, and returns their results in order.
///
/// `prepare` makes a rank's buffers and launches its kernels once, in a group of its own. `work`
/// runs when all have been prepared. Buffers and devices are freed when all ranks are done.
fn as_ranks<B: Send, T: Send>(
    region: &Region,
    ranks: &[usize],
    prepare: impl Fn(&Device, usize) -> B + Sync,
    work: impl Fn(&Device, &PeerGroup<'_>, &B) -> T + Sync,
) -> Vec<T> {
    let ready = Barrier::new(ranks.len());
    let done: Vec<(T, B, Device)> = thread::scope(|scope| {
        let start = |&rank: &usize| {
            let (prepare, work, ready) = (&prepare, &work, &ready);
            scope.spawn(move || {
                let device = own_device();
                let buffers = prepare(&device, rank);
                device.synchronize().unwrap();
                ready.wait();
                let result = work(&device, &region.group(rank, long()), &buffers);
                (result, buffers, device)
            })
        };
        let ranks: Vec<_> = ranks.iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    done.into_iter().map(|(result, ..)| result).collect()
}

/// Makes the buffers of all rounds and launches their kernels once, in a group of one rank.
fn prepare_rounds(rounds: &[Round], device: &Device, rank: usize) -> Vec<Buffers> {
    let alone = Region::new(1, capacity_of(rounds), 0);
    for round in rounds {
        Buffers::new(round, rank).launch(round, device, &alone.group(0, long()));
    }
    rounds.iter().map(|round| Buffers::new(round, rank)).collect()
}

/// The results of all ranks in all rounds.
fn run_rounds(region: &Region, rounds: &[Round]) -> Vec<Vec<(Vec<f32>, Vec<f32>)>> {
    let all: Vec<usize> = (0..region.regions.len()).collect();
    as_ranks(
        region,
        &all,
        |device, rank| prepare_rounds(rounds, device, rank),
        |device, group, buffers| {
            for (round, buffers) in rounds.iter().zip(buffers) {
                thread::sleep(Duration::from_millis(round.delays[group.rank]));
                buffers.launch(round, device, group);
            }
            assert_eq!(group.missed(device).unwrap(), None);
            rounds.iter().zip(buffers).map(|(round, buffers)| buffers.read(round.elem)).collect()
        },
    )
}

/// Bytes of the longest message.
fn capacity_of(rounds: &[Round]) -> usize {
    rounds.iter().map(|r| (r.rows * r.cols * 4).next_multiple_of(16)).max().unwrap_or(16)
}

fn reference(round: &Round) -> (Vec<f32>, Vec<f32>) {
    let n = round.rows * round.cols;
    let sums: Vec<f64> = (0..n).map(|i| round.inputs.iter().map(|x| f64::from(x[i])).sum()).collect();
    if round.form.is_some() {
        return (sums.iter().map(|s| *s as f32).collect(), round.residual.clone());
    }
    let residual: Vec<f32> = sums
        .iter()
        .zip(&round.residual)
        .map(|(s, r)| round_to(round.elem, f64::from(round_to(round.elem, *s)) + f64::from(*r)))
        .collect();
    let mut out = Vec::new();
    for row in residual.chunks_exact(round.cols) {
        let square: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
        let scale = 1.0 / (square / round.cols as f64 + 1e-5).sqrt();
        out.extend(
            row.iter().zip(&round.weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32),
        );
    }
    (out, residual)
}

fn round_to(elem: Elem, x: f64) -> f32 {
    round(elem, x as f32)
}

fn check(world: usize, rounds: &[Round], epoch: u32) {
    let region = Region::new(world, capacity_of(rounds), epoch);
    let results = run_rounds(&region, rounds);
    for (i, round) in rounds.iter().enumerate() {
        let (want, residual) = reference(round);
        let name = format!(
            "{world} ranks, round {i}: {:?} {:?} {} x {}",
            round.form, round.elem, round.rows, round.cols
        );
        // f32 sums may be rounded to the other neighbor, twice.
        let slack = precision(round.elem) * 4.1 + 2e-5;
        for (rank, of_rank) in results.iter().enumerate() {
            assert_close(&format!("{name}, rank {rank}"), &of_rank[i].0, &want, slack, 2e-5);
            assert_close(&format!("{name}, rank {rank}: residual"), &of_rank[i].1, &residual, slack, 1e-5);
            let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same(&of_rank[i].0, &results[0][i].0), "{name}: rank {rank} differs from rank 0");
        }
    }
}

fn rounds_of(world: usize, seeds: u64, rounds: usize) {
    for_seeds(seeds, |rng| {
        let rounds: Vec<Round> = (0..rounds).map(|_| random(rng, world, 30_000 / world)).collect();
        // Epochs wrap around too.
        check(world, &rounds, rng.pick(&[0, u32::MAX - 3, 0x7fff_fffe]));
    });
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_form_and_type_matches_the_reference() {
    let rng = &mut Rng(9);
    let mut rounds = Vec::new();
    for elem in ACTIVATIONS {
        for form in [Some(AllReduceForm::OneShot), Some(AllReduceForm::TwoShot), None] {
            for cols in [64, 37] {
                let inputs = (0..2).map(|_| rng.values(elem, 2 * cols)).collect();
                let (residual, weight) = (rng.values(elem, 2 * cols), rng.values(Elem::F32, cols));
                rounds.push(Round {
                    elem,
                    form,
                    rows: 2,
                    cols,
                    delays: vec![0; 2],
                    inputs,
                    residual,
                    weight,
                });
            }
        }
    }
    check(2, &rounds, 0);
}

#[test]
fn two_ranks_match_the_reference() {
    rounds_of(2, 4, 8);
}

#[test]
fn three_and_four_ranks_match_the_reference() {
    rounds_of(3, 1, 6);
    rounds_of(4, 2, 6);
}

#[test]
fn eight_ranks_match_the_reference() {
    rounds_of(8, 1, 5);
}

#[test]
fn the_sum_of_one_rank_is_its_own() {
    rounds_of(1, 1, 3);
}

/// The one-shot and the two-shot form give the same bits.
#[test]
fn forms_give_the_same_bits() {
    for_seeds(2, |rng| {
        let one = Round { form: Some(AllReduceForm::OneShot), elem: Elem::BF16, ..random(rng, 4, 4000) };
        let x: Vec<Vec<f32>> = [AllReduceForm::OneShot, AllReduceForm::TwoShot]
            .map(|form| {
                let round = Round { form: Some(form), ..one.clone() };
                run_rounds(&Region::new(4, 1 << 17, 0), &[round]).remove(3).remove(0).0
            })
            .to_vec();
        assert_eq!(x[0], x[1]);
    });
}

/// The fused kernel and the two that it replaces give the same bits, so that the choice by the
/// message's size makes no difference.
#[test]
fn fused_and_separate_kernels_give_the_same_bits() {
    for_seeds(3, |rng| {
        let round = random(rng, 2, 9000);
        let n = round.rows * round.cols;
        let of_form = |form| {
            let round = Round { form, ..round.clone() };
            let region = Region::new(2, n.next_multiple_of(4) * 4, 0);
            run_rounds(&region, &[round]).remove(1).remove(0)
        };
        let (sums, _) = of_form(Some(AllReduceForm::OneShot));
        let (x, residual) = (put(round.elem, &sums), put(round.elem, &round.residual));
        let (weight, out) = (put(Elem::F32, &round.weight), garbage(round.elem, n));
        let rows = NormRows {
            rows: round.rows,
            cols: round.cols,
            eps: 1e-5,
            x: x.view(round.elem),
            residual: Some(residual.view(round.elem)),
            out: out.view(round.elem),
        };
        norm(&DEVICE, NormKind::Rms { weight: weight.view(Elem::F32) }, &rows).unwrap();
        let separate = (get(out.view(round.elem)), get(residual.view(round.elem)));
        assert_eq!(of_form(None), separate, "{:?} {} x {}", round.elem, round.rows, round.cols);
    });
}

/// The columns of all ranks are gathered, with and without padding, by the fast kernel and by the
/// plain one.
#[test]
fn columns_are_gathered() {
    for_seeds(3, |rng| {
        let world = rng.pick(&[1, 2, 3, 8]);
        let shapes = [(1, 40, 0), (3, 7, 2), (70, 64, 8), (2, 1001, 5), (4, 1000, 4)];
        let region = Region::new(world, 1 << 16, rng.pick(&[0, u32::MAX - 2]));
        let value = |rank: usize, i: usize| (rank * 100_000 + i) as f32;
        let ranks: Vec<usize> = (0..world).collect();
        let gather = |device: &Device, group: &PeerGroup<'_>, buffers: &[(Memory, Memory); 5]| {
            for ((rows, part_cols, padding), (part, whole)) in shapes.into_iter().zip(buffers) {
                let whole_cols = group.world * part_cols - padding;
                let (part, whole) = (part.view(Elem::F32), whole.view(Elem::F32));
                all_gather(device, group, &AllGatherColumns { rows, part_cols, whole_cols, part, whole })
                    .unwrap();
            }
            device.synchronize().unwrap();
        };
        let buffers = |rank: usize| {
            shapes.map(|(rows, part_cols, _)| {
                let own: Vec<f32> = (0..rows * part_cols).map(|i| value(rank, i)).collect();
                (put(Elem::F32, &own), garbage(Elem::F32, rows * world * part_cols))
            })
        };
        let prepare = |device: &Device, rank: usize| {
            gather(device, &Region::new(1, 1 << 16, 0).group(0, long()), &buffers(rank));
            buffers(rank)
        };
        let all = as_ranks(&region, &ranks, prepare, |device, group, buffers| {
            gather(device, group, buffers);
            assert_eq!(group.missed(device).unwrap(), None);
            buffers.each_ref().map(|(_, whole)| get(whole.view(Elem::F32)))
        });
        for (at, (rows, part_cols, padding)) in shapes.into_iter().enumerate() {
            let whole_cols = world * part_cols - padding;
            let want: Vec<f32> = (0..rows * whole_cols)
                .map(|i| (i / whole_cols, i % whole_cols))
                .map(|(row, col)| value(col / part_cols, row * part_cols + col % part_cols))
                .collect();
            for of_rank in &all {
                assert_eq!(
                    of_rank[at][..rows * whole_cols],
                    want,
                    "{world} ranks, {rows} x {part_cols} less {padding}"
                );
            }
        }
    });
}

/// A rank that never arrives is named after the timeout, and the group does nothing more.
///
/// The timeout must expire, so nothing else may have to happen within it: the two ranks that arrive
/// do so one after the other, and the second one finds the flags of the first one.
#[test]
fn a_missing_rank_is_noticed() {
    for form in [AllReduceForm::OneShot, AllReduceForm::TwoShot] {
        for (first, second) in [(0, 2), (2, 0)] {
            let region = Region::new(3, 1 << 12, 0);
            let missed = missed_by(&region, first, form);
            assert!([Some(1), Some(second)].contains(&missed), "rank {first} misses {missed:?}");
            assert_eq!(missed_by(&region, second, form), Some(1));
        }
    }
}

/// Lets a rank of an incomplete group call until it gives up, and then once more. Returns the rank
/// that it has missed.
fn missed_by(region: &Region, rank: usize, form: AllReduceForm) -> Option<usize> {
    let prepare = |device: &Device, _rank: usize| {
        let (alone, x) = (Region::new(1, 1 << 12, 0), put(Elem::F32, &[1.0; 64]));
        all_reduce(device, &alone.group(0, long()), form, x.view(Elem::F32), 64).unwrap();
        device.synchronize().unwrap();
        x
    };
    let missed = as_ranks(region, &[rank], prepare, |device, group, x| {
        let group = PeerGroup { timeout: Duration::from_millis(50), ..*group };
        all_reduce(device, &group, form, x.view(Elem::F32), 64).unwrap();
        let missed = group.missed(device).unwrap();
        assert_eq!(get(x.view(Elem::F32)), [1.0; 64]);
        // A rank that took part again, and so waited again, would show the others its new values.
        let shown = region.bytes();
        device.write(x.view(Elem::F32), &2f32.to_le_bytes().repeat(64)).unwrap();
        all_reduce(device, &group, form, x.view(Elem::F32), 64).unwrap();
        device.synchronize().unwrap();
        assert!(region.bytes() == shown, "rank {} takes part again", group.rank);
        assert_eq!(get(x.view(Elem::F32)), [2.0; 64]);
        missed
    });
    missed[0]
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let region = Region::new(2, 64, 0);
    let group = region.group(0, long());
    let x = garbage(Elem::F32, 64);
    let view = x.view(Elem::F32);
    let one = AllReduceForm::OneShot;
    let text = |result: millrace_backend::Result<()>| result.unwrap_err().to_string();
    assert!(text(all_reduce(&DEVICE, &group, one, view, 17)).contains("68 bytes through halves of 64"));
    assert!(text(all_reduce(&DEVICE, &group, one, view.slice(1..64), 16)).contains("multiples of 16"));
    let columns =
        |whole_cols| AllGatherColumns { rows: 1, part_cols: 4, whole_cols, part: view, whole: view };
    assert!(text(all_gather(&DEVICE, &group, &columns(9))).contains("2 parts of 4 columns are not 9"));
    let ninth = PeerGroup { rank: 8, world: 9, ..group };
    assert!(text(all_reduce(&DEVICE, &ninth, one, view, 4)).contains("rank 8 of 9"));
}
