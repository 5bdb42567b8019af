//! An engine that runs workloads and measures their steps.

use std::time::{Duration, Instant};

use millrace_cpu::limits::{self, Instruction};
use millrace_cpu::{Activations, Cpu, Isa};
use millrace_model::memory_plan::UnpaddedDevice;
use millrace_model::{LayerSlot, ShardLimits, WeightSlot, WeightStorage};
use millrace_numbers::WeightFormat;
use millrace_proto::{Ready, Step, StepOutput};

use super::workload::BenchWorkload;
use crate::Error;
use crate::options::{DeviceKind, RankPlacement, RouterAddress, ShardOptions};
use crate::platform::{HostPlatform, Platform, cuda};
use crate::process::{self, OpenModel, Started};
use crate::step_engine::StepEngine;
use crate::worker::Worker;

/// A model that was loaded in this process, and that computes workloads on one device.
pub struct OfflineEngine {
    engine: Box<dyn StepEngine>,
    ready: Ready,
    limits: ShardLimits,
    /// None for a device other than the CPU.
    cpu: Option<CpuInUse>,
    next_step: u64,
    /// The number of the adapter of all sequences.
    adapter: Option<u32>,
}

/// The part of the CPU that an engine computes with.
#[derive(Debug, Clone, Copy)]
struct CpuInUse {
    threads: usize,
    isa: Isa,
    instruction: Instruction,
}

/// The times of one run of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTimes {
    /// Time to compute all prompts.
    pub prefill: Duration,
    /// Time of each decode step.
    pub decode: Vec<Duration>,
}

/// A step of a workload that the engine has computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadStep {
    /// A step of prompts, with the number of its tokens.
    Prefill(usize),
    /// A decode step.
    Decode,
}

/// The limits of the machine at the moment of the measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineLimits {
    /// Name of the instruction that the products of the layers consist of.
    pub instruction: &'static str,
    /// Operations per second of that instruction on registers, on all threads.
    pub peak: f64,
    /// Bytes per second of a stream of reads, on all threads.
    pub bandwidth: f64,
}

impl OfflineEngine {
    /// Loads a model on one device, and the first adapter of the options, if there is one. All
    /// sequences are computed with it. `open` finds the model.
    ///
    /// # Errors
    /// If the device does not compute or cannot be used, or the model or the adapter cannot be
    /// loaded.
    pub fn load(options: &ShardOptions, open: OpenModel<'_>) -> Result<Self, Error> {
        let placement = RankPlacement {
            // Without a router there is nothing to connect to.
            address: RouterAddress::Tcp(String::new()),
            secret: None,
            rank: 0,
            world_size: 1,
            previous_pool: None,
            lifeline: false,
        };
        match &options.device {
            DeviceKind::Cpu => {
                let platform = HostPlatform(|| process::open_cpu(&placement, options));
                Self::start(&platform, &placement, options, open, |cpu: &Cpu, format| {
                    let instruction = match cpu.activations() {
                        Activations::Exact => Instruction::MultiplyAdd(cpu.isa()),
                        Activations::Rounded => Instruction::of(cpu.isa(), format),
                    };
                    Some(CpuInUse { threads: cpu.threads(), isa: cpu.isa(), instruction })
                })
            }
            DeviceKind::Cuda => {
                let platform = cuda::gpus(&placement, options);
                Self::start(&platform, &placement, options, open, |_, _| None)
            }
            #[cfg(feature = "cpu-sim")]
            DeviceKind::CudaSim => {
                let platform = cuda::simulated(&placement, options);
                Self::start(&platform, &placement, options, open, |_, _| None)
            }
            DeviceKind::Null(_) => Err(Error::Unsupported(
                "the device `null` computes nothing that could be measured; give --device cpu or cuda".into(),
            )),
        }
    }

    /// Loads the model on a device of `platform`. `in_use` describes the backend, given the format
    /// of the layers' matrices.
    fn start<P: Platform>(
        platform: &P,
        placement: &RankPlacement,
        options: &ShardOptions,
        open: OpenModel<'_>,
        in_use: impl FnOnce(&P::Backend, WeightFormat) -> Option<CpuInUse>,
    ) -> Result<Self, Error>
    where
        Worker<P::Backend>: StepEngine + 'static,
    {
        let mut format = None;
        let open = Box::new(|| {
            let opened = open()?;
            let model = &opened.model;
            let dtype = options.dtype.unwrap_or(model.dtype);
            let storage = WeightStorage::choose(dtype, options.quantize_request(), model, &UnpaddedDevice)?;
            let slot = WeightSlot::Layer(0, LayerSlot::GateUp);
            format = Some(storage.matrix(slot, model.spec.shape(slot).1));
            Ok(opened)
        });
        let Started { mut worker, ready, mut adapters } =
            process::start(platform, None, placement, options, open)?;
        let cpu = format.and_then(|format| in_use(worker.backend(), format));
        let adapter = (!options.adapters.folders.is_empty()).then_some(0);
        if let Some(adapter) = adapter {
            adapters.load_now(&mut worker, adapter)?;
        }
        let limits = worker.limits();
        Ok(OfflineEngine { limits, engine: Box::new(worker), ready, cpu, next_step: 1, adapter })
    }

    /// Returns the description of the model, its device and its memory.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Returns the number of threads that compute, or `None` if the device is not the CPU.
    pub fn threads(&self) -> Option<usize> {
        self.cpu.map(|cpu| cpu.threads)
    }

    /// Measures the limits of the machine with the threads of the engine. Returns `None` if the
    /// device is not the CPU.
    pub fn measure_limits(&self) -> Option<MachineLimits> {
        let CpuInUse { threads, isa, instruction } = self.cpu?;
        Some(MachineLimits {
            instruction: instruction.name(),
            peak: 1e9 * limits::peak(threads, instruction),
            bandwidth: 1e9 * limits::bandwidth(threads, isa),
        })
    }

    /// Computes a workload. Its sequences have ended afterwards.
    ///
    /// # Errors
    /// If the workload exceeds the limits that the engine was loaded for, if the device fails, or
    /// if the model computes numbers that are not finite.
    pub fn run(&mut self, workload: &BenchWorkload) -> Result<BatchTimes, Error> {
        self.run_with(workload, &mut |_| {})
    }

    /// Computes a workload as [`run`](Self::run) does, and calls `on_step` after each step.
    ///
    /// # Errors
    /// If the workload exceeds the limits that the engine was loaded for, if the device fails, or
    /// if the model computes numbers that are not finite.
    pub fn run_with(
        &mut self,
        workload: &BenchWorkload,
        on_step: &mut dyn FnMut(WorkloadStep),
    ) -> Result<BatchTimes, Error> {
        self.check(workload)?;
        let prompts = workload.prefill_steps(&self.limits, self.ready.vocab_size as usize);
        let since = Instant::now();
        let tokens = |step: &Step| step.rows.iter().map(|row| row.count as usize).sum();
        let mut computed = prompts.iter().map(tokens).collect::<Vec<usize>>().into_iter();
        self.compute(prompts, &mut || {
            computed.next().into_iter().for_each(|n| on_step(WorkloadStep::Prefill(n)))
        })?;
        let prefill = since.elapsed();
        let limits = self.limits;
        let decode = self.compute(
            (0..workload.generate).map(|index| workload.decode_step(&limits, index)),
            &mut || {
                on_step(WorkloadStep::Decode);
            },
        )?;
        self.compute([workload.release_step()], &mut || {})?;
        Ok(BatchTimes { prefill, decode })
    }

    fn check(&self, workload: &BenchWorkload) -> Result<(), Error> {
        let ShardLimits { max_sequences, max_sequence_tokens, block_size, num_blocks, .. } = self.limits;
        let tokens = workload.sequence_tokens();
        let blocks = tokens.div_ceil(block_size).saturating_mul(workload.batch);
        let fits = (1..=max_sequences).contains(&workload.batch)
            && workload.prompt > 0
            && tokens <= max_sequence_tokens
            && blocks <= num_blocks;
        if fits {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "{} sequences of {tokens} tokens: the engine has memory for {max_sequences} sequences of up to \
             {max_sequence_tokens} tokens in {num_blocks} blocks of {block_size}",
            workload.batch
        )))
    }

    /// Computes steps, as many ahead as the device allows, and calls `on_step` after each. Returns
    /// the time from the answer to one step to the answer to the next.
    fn compute(
        &mut self,
        steps: impl IntoIterator<Item = Step>,
        on_step: &mut dyn FnMut(),
    ) -> Result<Vec<Duration>, Error> {
        let mut times = Vec::new();
        let mut in_flight = 0;
        let mut last = Instant::now();
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() || in_flight > 0 {
            if in_flight < self.engine.steps_ahead()
                && let Some(mut step) = steps.next()
            {
                step.admit.iter_mut().for_each(|admission| admission.adapter = self.adapter);
                self.engine.submit(&Step { id: self.next_step, ..step })?;
                in_flight += 1;
                self.next_step += 1;
                continue;
            }
            let output = self.engine.collect()?;
            in_flight -= 1;
            let now = Instant::now();
            times.push(now - last);
            last = now;
            check_rows(&output)?;
            on_step();
        }
        Ok(times)
    }
}

/// Refuses an answer in which a row has no result.
fn check_rows(output: &StepOutput) -> Result<(), Error> {
    match output.errors.first() {
        Some(error) => Err(Error::BrokenRow(error.message.clone())),
        None => Ok(()),
    }
}
