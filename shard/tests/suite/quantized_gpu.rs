//! Loads the quantized checkpoints of `quantized.rs` on the GPU under test, and compares their
//! logits with those of the dense checkpoints of the same weights.

use std::path::Path;
use std::thread;

use millrace_backend::reference::Reference;
use millrace_backend::{DeviceTypes, OpenStep, TransferOps};
use millrace_cuda::{Cuda, Device};
use millrace_model::WeightStorage;
use millrace_model::split::Split;
use millrace_numbers::DType;
use millrace_shard::Error;
use millrace_shard::collective::{self, Aborter, HostCollective, Transport};
use millrace_shard::decoder::Collective;

use crate::common::{Harness, long};
use crate::quantized::{LIMITS, by_one, cases, folder, load, logits, worst};

type Buf = <Cuda as DeviceTypes>::Buf;

/// The collectives of GPUs whose activations are copied to the host for each exchange, so that the
/// test needs no peer memory.
struct CopiedCollectives(Box<dyn HostCollective>);

impl CopiedCollectives {
    /// Replaces the first `n` rows of `buf` by what `exchange` makes of them.
    fn replace(
        &mut self,
        gpu: &Cuda,
        n: usize,
        buf: &mut Buf,
        exchange: impl FnOnce(&mut dyn HostCollective, &mut [f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rows = gpu.read(buf, n)?;
        exchange(&mut *self.0, &mut rows)?;
        Ok(gpu.upload(n, &rows, &mut Vec::new(), buf)?)
    }
}

impl Collective<Cuda> for CopiedCollectives {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&mut self, gpu: &Cuda, n: usize, buf: &mut Buf) -> Result<(), Error> {
        self.replace(gpu, n, buf, |host, rows| Ok(host.all_reduce(rows)?))
    }

    fn all_gather(&mut self, gpu: &Cuda, n: usize, part: &Buf, whole: &mut Buf) -> Result<(), Error> {
        let part = gpu.read(part, n)?;
        let part_cols = part.len() / n;
        self.replace(gpu, n, whole, |host, whole| {
            let cols = whole.len() / n;
            let mut take = |rank: usize, offset: usize, chunk: &[f32]| {
                for (at, value) in (offset..).zip(chunk) {
                    let col = rank * part_cols + at % part_cols;
                    // Columns beyond the width are padding.
                    if col < cols {
                        whole[at / part_cols * cols + col] = *value;
                    }
                }
            };
            Ok(host.all_gather(&part, &mut take)?)
        })
    }

    fn pass_on(&mut self, gpu: &Cuda, n: usize, from: usize, buf: &mut Buf) -> Result<(), Error> {
        self.replace(gpu, n, buf, |host, rows| Ok(host.pass_on(from, rows)?))
    }

    /// The tests read logits and sample nothing.
    fn broadcast_sampled(
        &mut self,
        _gpu: &Cuda,
        _step: &mut OpenStep<'_, <Cuda as DeviceTypes>::Queue>,
    ) -> Result<(), Error> {
        unreachable!("nothing is sampled")
    }

    fn aborter(&self) -> Aborter {
        self.0.aborter()
    }
}

fn gpu() -> Cuda {
    Cuda::new(Device::under_test().unwrap(), DType::F32)
}

/// Computes the logits on two ranks.
fn by_two(folder: &Path) -> Vec<Vec<f32>> {
    let lead = collective::lead(Transport::Shm, 2, long()).unwrap();
    let address = lead.address();
    let mut lead = Some(lead);
    let mut found: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let (address, lead) = (&address, lead.take());
                scope.spawn(move || {
                    let group = match lead {
                        Some(lead) => lead.wait(),
                        None => collective::join(address, rank, 2, long()),
                    };
                    let share = Split { rank, world_size: 2 }.apply(load(folder.to_owned())).unwrap();
                    let (gpu, ranks) = (gpu(), Some(Box::new(CopiedCollectives(group.unwrap())) as _));
                    let storage = WeightStorage::choose(DType::F32, None, &share, &gpu).unwrap();
                    let weights = &*share.weights;
                    logits(&mut Harness::among(&gpu, &share.spec, weights, storage, &LIMITS, ranks))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(found[0], found[1]);
    found.swap_remove(0)
}

/// The GPU multiplies by the groups as they are stored where its kernels can hold them exactly, and
/// converts the other matrices. In single precision its logits are those of the dequantized
/// weights, on one rank and on two.
#[test]
fn a_gpu_gives_the_logits_of_the_dequantized_weights() {
    let Some(folder) = folder() else { return };
    let mut kept = Vec::new();
    for case in cases(folder) {
        let (quantized, dense) = (folder.join(&case).join("quantized"), folder.join(&case).join("dense"));
        let (expected, _) = by_one(&Reference, &load(dense));
        let model = load(quantized.clone());
        let (found, storage) = by_one(&gpu(), &model);
        let error = worst(&found, &expected);
        let of_two = worst(&by_two(&quantized), &expected);
        println!("{case}: {error:.2e} on one rank, {of_two:.2e} on two");
        assert!(error < 1e-4 && of_two < 1e-4, "{case}: {error:e}, {of_two:e}");
        if storage.warnings(&model.spec).is_empty() {
            kept.push(case);
        }
    }
    println!("kept as they are stored: {kept:?}");
    for case in [
        "gptq-4-32-sym",
        "gptq-4-32-desc-act",
        "awq-gemm-32",
        "packed-4-32-actorder",
        "packed-8-row",
        "int-row",
        "fp8-block",
        "fp8-row",
    ] {
        assert!(kept.iter().any(|kept| kept == case), "{case} is converted");
    }
}
