//! Measures one launch at a time with cold caches, and prints it beside the GPU's limits.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use super::cost::Cost;
use millrace_cuda::{Device, Elem, Gpu, Memory};

/// An error ends the module that it occurs in. A case that cannot be launched is only reported.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The number of measurements of each case, of which the median counts.
const REPEATS: usize = 15;

/// The device, its limits, and the table so far.
pub(crate) struct Bench {
    pub(crate) device: Device,
    simulated: bool,
    /// The only module that runs.
    module: Option<String>,
    /// A part of the names of all cases that run.
    filter: Option<String>,
    /// Bytes per second that a copy of memory reads and writes.
    copy: f64,
    /// Operations per second that a large product of bf16 matrices reaches, where there is a
    /// library to measure it by.
    peak: Option<f64>,
    /// Written before each measurement so that nothing of the last one is left in the cache.
    flush: Memory,
    /// The file that `MILLRACE_BENCH_JSON` names gets a line per case as soon as it is measured.
    rows: Option<File>,
    failures: usize,
}

impl Bench {
    /// Opens the device. An argument that is one of `modules` selects this module, and any other
    /// one the cases with it in their names.
    pub(crate) fn from_arguments(modules: &[&str]) -> Result<Bench> {
        let mut simulated = false;
        let (mut module, mut filter) = (None, None);
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--simulate" => simulated = true,
                // Cargo passes this argument to every benchmark.
                "--bench" => {}
                name if modules.contains(&name) => module = Some(argument),
                _ => filter = Some(argument),
            }
        }
        let device = if simulated { simulated_device()? } else { Device::new(Arc::new(Gpu::new(0)?)) };
        let flush = device.allocate(Elem::U8, 2 * device.properties().l2_bytes)?;
        let append = |file| OpenOptions::new().create(true).append(true).open(file);
        let rows = std::env::var_os("MILLRACE_BENCH_JSON").map(append).transpose()?;
        let (copy, peak, failures) = (0.0, None, 0);
        let mut bench = Bench { device, simulated, module, filter, copy, peak, flush, rows, failures };
        println!("{}", bench.device.name());
        bench.copy = bench.measure_copy()?;
        if !simulated {
            bench.peak = crate::peak::measure(&bench.device)?;
        }
        println!("copy {:.0} GB/s", bench.copy / 1e9);
        match bench.peak {
            Some(peak) => println!("bf16 product {:.0} TFLOP/s\n", peak / 1e12),
            None => println!("no cuBLASLt: nothing to compare products with\n"),
        }
        println!(
            "{:<56} {:>11} {:>9} {:>9} {:>9} {:>9}",
            "kernel", "time", "GB/s", "of copy", "TFLOP/s", "of peak"
        );
        Ok(bench)
    }

    /// Whether sizes should be small, because a simulation runs them.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Whether the module of this name runs.
    pub(crate) fn is_wanted(&self, module: &str) -> bool {
        self.module.as_ref().is_none_or(|wanted| wanted == module)
    }

    /// Prints and counts the error of a module or case.
    pub(crate) fn report(&mut self, name: &str, result: Result<()>) {
        if let Err(e) = result {
            println!("{name:<56} FAILED: {e}");
            self.failures += 1;
        }
    }

    /// Runs and prints one case. `cost` is its least cost.
    pub(crate) fn measure(
        &mut self,
        name: &str,
        cost: Cost,
        mut work: impl FnMut(&Device) -> millrace_backend::Result<()>,
    ) -> Result<()> {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return Ok(());
        }
        let seconds = match self.median(&mut work) {
            Ok(seconds) => seconds,
            Err(e) => {
                self.report(name, Err(e));
                return Ok(());
            }
        };
        if self.simulated {
            println!("{name:<56} launched");
            return Ok(());
        }
        let bandwidth = cost.bytes / seconds;
        println!(
            "{name:<56} {:>8.2} us {:>9.0} {:>8.1}% {:>9.1} {:>8}",
            seconds * 1e6,
            bandwidth / 1e9,
            100.0 * bandwidth / self.copy,
            cost.flops / seconds / 1e12,
            self.peak.map_or_else(|| "-".to_owned(), |p| format!("{:.1}%", 100.0 * cost.flops / seconds / p))
        );
        if let Some(rows) = &mut self.rows {
            writeln!(
                rows,
                "{{\"kernel\":{name:?},\"seconds\":{seconds:e},\"bytes\":{:e},\"flops\":{:e},\"copy\":{:e},\"peak\":{}}}",
                cost.bytes,
                cost.flops,
                self.copy,
                self.peak.map_or_else(|| "null".to_owned(), |peak| format!("{peak:e}"))
            )?;
        }
        Ok(())
    }

    /// # Errors
    /// If a module or case failed.
    pub(crate) fn finish(self) -> Result<()> {
        match self.failures {
            0 => Ok(()),
            failures => Err(format!("{failures} modules or cases failed").into()),
        }
    }

    fn median(&self, work: &mut impl FnMut(&Device) -> millrace_backend::Result<()>) -> Result<f64> {
        let repeats = if self.simulated { 1 } else { REPEATS };
        let mut times = Vec::new();
        for _ in 0..repeats {
            if !self.simulated {
                self.device.fill(self.flush.view(Elem::U8), 0)?;
            }
            times.push(self.device.time(|| work(&self.device))?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn measure_copy(&self) -> Result<f64> {
        if self.simulated {
            return Ok(1.0);
        }
        let bytes = 1 << 30;
        let from = self.device.allocate(Elem::U8, bytes)?;
        let to = self.device.allocate(Elem::U8, bytes)?;
        let seconds =
            self.median(&mut |device: &Device| device.copy(from.view(Elem::U8), to.view(Elem::U8)))?;
        Ok(2.0 * bytes as f64 / seconds)
    }
}

#[cfg(feature = "cpu-sim")]
fn simulated_device() -> Result<Device> {
    Ok(Device::new(Arc::new(millrace_cuda::Simulated::new()?)))
}

#[cfg(not(feature = "cpu-sim"))]
fn simulated_device() -> Result<Device> {
    Err("--simulate needs the feature cpu-sim".into())
}
