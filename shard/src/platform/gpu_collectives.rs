//! Collectives over the memory of GPUs.

use millrace_backend::{DeviceTypes, ModelLoading, Norm, OpenStep, TransferOps};
use millrace_cuda::{Cuda, DeviceCollectives};

use crate::Error;
use crate::collective::{Aborter, HostCollective};
use crate::decoder::Collective;

/// The collectives of GPUs. Everything that a step exchanges goes from GPU to GPU.
pub(super) struct GpuCollectives {
    gpus: DeviceCollectives,
    /// Connects the same ranks over host memory. It serves to end a group that has lost a rank, and
    /// carries the hidden states of a pipeline.
    host: Box<dyn HostCollective>,
    /// Description of the method that carries the activations.
    method: String,
    /// The parts of all ranks, one after the other.
    gathered: Option<<Cuda as DeviceTypes>::Buf>,
    /// Columns of hidden states.
    cols: usize,
    /// Hidden states that are passed on: as f32, and in the type of the GPU.
    states: Vec<f32>,
    scratch: Vec<u8>,
}

impl GpuCollectives {
    /// Creates the collectives of the ranks that `gpus` and `host` both connect. `method` describes
    /// to the operator how the GPUs exchange activations.
    pub(super) fn new(gpus: DeviceCollectives, host: Box<dyn HostCollective>, method: String) -> Self {
        GpuCollectives {
            gpus,
            host,
            method,
            gathered: None,
            cols: 0,
            states: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

impl Collective<Cuda> for GpuCollectives {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn world_size(&self) -> usize {
        self.host.world_size()
    }

    fn reserve_states(&mut self, rows: usize, cols: usize) {
        self.cols = cols;
        self.states = vec![0.0; rows * cols];
        self.scratch = Vec::with_capacity(rows * cols * size_of::<f32>());
    }

    /// The states travel through the memory of the hosts.
    fn pass_on(
        &mut self,
        backend: &Cuda,
        n: usize,
        from: usize,
        buf: &mut <Cuda as DeviceTypes>::Buf,
    ) -> Result<(), Error> {
        let GpuCollectives { host, states, scratch, cols, .. } = self;
        let states = &mut states[..n * *cols];
        if host.rank() == from {
            backend.download(buf, n, scratch, states)?;
        }
        host.pass_on(from, states)?;
        if host.rank() != from {
            backend.upload(n, states, scratch, buf)?;
        }
        Ok(())
    }

    fn all_reduce(
        &mut self,
        backend: &Cuda,
        n: usize,
        buf: &mut <Cuda as DeviceTypes>::Buf,
    ) -> Result<(), Error> {
        Ok(backend.all_reduce(&self.gpus, n, buf)?)
    }

    fn all_reduce_norm(
        &mut self,
        backend: &Cuda,
        n: usize,
        residual: &mut <Cuda as DeviceTypes>::Buf,
        branch: &mut <Cuda as DeviceTypes>::Buf,
        norm: &Norm<<Cuda as DeviceTypes>::Vector>,
        out: &mut <Cuda as DeviceTypes>::Buf,
    ) -> Result<(), Error> {
        Ok(backend.all_reduce_norm(&self.gpus, n, residual, branch, norm, out)?)
    }

    fn all_gather(
        &mut self,
        backend: &Cuda,
        n: usize,
        part: &<Cuda as DeviceTypes>::Buf,
        whole: &mut <Cuda as DeviceTypes>::Buf,
    ) -> Result<(), Error> {
        let gathered = self.gathered.as_mut().expect("the decoder calls `reserve` before any all-gather");
        Ok(backend.all_gather(&self.gpus, n, part, gathered, whole)?)
    }

    fn reserve(&mut self, backend: &Cuda, rows: usize, cols: usize) -> Result<(), Error> {
        self.gathered = Some(backend.logits(rows * self.gpus.world_size(), cols)?);
        Ok(())
    }

    fn broadcast_sampled(
        &mut self,
        backend: &Cuda,
        step: &mut OpenStep<'_, <Cuda as DeviceTypes>::Queue>,
    ) -> Result<(), Error> {
        Ok(backend.broadcast_sampled(&self.gpus, step)?)
    }

    fn check(&self) -> Result<(), Error> {
        Ok(self.gpus.check()?)
    }

    fn aborter(&self) -> Aborter {
        let (host, gpus) = (self.host.aborter(), self.gpus.aborter());
        Aborter::of(move || {
            host.abort();
            if let Some(gpus) = &gpus {
                gpus.abort();
            }
        })
    }

    fn describe(&self) -> String {
        self.method.clone()
    }
}
