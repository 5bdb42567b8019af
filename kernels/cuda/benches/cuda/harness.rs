//! Measures one launch at a time with cold caches, and prints it beside the GPU's limits.

use std::sync::Arc;

use millrace_cuda::{Cost, Device, Elem, Gpu, Memory};

/// Every error ends the benchmark.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The number of measurements of each case, of which the median counts.
const REPEATS: usize = 15;

/// The device, its limits, and the table so far.
pub(crate) struct Bench {
    pub(crate) device: Device,
    simulated: bool,
    filter: Option<String>,
    /// Bytes per second that a copy of memory reads and writes.
    copy: f64,
    /// Operations per second that a large product of bf16 matrices reaches, where there is a
    /// library to measure it by.
    peak: Option<f64>,
    /// Written before each measurement so that nothing of the last one is left in the cache.
    flush: Memory,
    rows: Vec<String>,
}

impl Bench {
    pub(crate) fn from_arguments() -> Result<Bench> {
        let mut simulated = false;
        let mut filter = None;
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--simulate" => simulated = true,
                // Cargo passes this argument to every benchmark.
                "--bench" => {}
                _ => filter = Some(argument),
            }
        }
        let device = if simulated { simulated_device()? } else { Device::new(Arc::new(Gpu::new(0)?)) };
        let flush = device.allocate(Elem::U8, 2 * device.properties().l2_bytes)?;
        let mut bench = Bench { device, simulated, filter, copy: 0.0, peak: None, flush, rows: Vec::new() };
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
        let seconds = self.median(&mut work)?;
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
        self.rows.push(format!(
            "{{\"kernel\":{name:?},\"seconds\":{seconds:e},\"bytes\":{:e},\"flops\":{:e},\"copy\":{:e},\"peak\":{}}}",
            cost.bytes,
            cost.flops,
            self.copy,
            self.peak.map_or_else(|| "null".to_owned(), |peak| format!("{peak:e}"))
        ));
        Ok(())
    }

    /// Writes the measurements to the file that `MILLRACE_BENCH_JSON` names.
    pub(crate) fn finish(self) -> Result<()> {
        if let Some(file) = std::env::var_os("MILLRACE_BENCH_JSON") {
            std::fs::write(file, format!("[\n{}\n]\n", self.rows.join(",\n")))?;
        }
        Ok(())
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
