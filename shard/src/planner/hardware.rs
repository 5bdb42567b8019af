//! What devices and the links between them can do.

use millrace_kernels::DType;

/// The part of a memory's bandwidth that kernels are taken to reach.
pub const MEMORY_FRACTION: f64 = 0.8;

/// The part of a device's peak that matrix products are taken to reach.
pub const COMPUTE_FRACTION: f64 = 0.6;

/// The part of a link's bandwidth that collectives are taken to reach.
pub const LINK_FRACTION: f64 = 0.8;

/// The part of a device's memory that weights, workspace and KV cache may take; the driver and its libraries need the rest.
pub const MEMORY_SHARE: f64 = 0.9;

/// Seconds per collective when nothing is known about the link.
pub const DEFAULT_LINK_LATENCY: f64 = NVLINK_LATENCY;

/// Seconds that a small all-reduce is taken to need over NVLink, its launch included. No vendor publishes it.
const NVLINK_LATENCY: f64 = 10e-6;

/// The same over PCIe.
const PCIE_LATENCY: f64 = 30e-6;

/// A device and its link, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hardware {
    /// Bytes of memory.
    pub memory: Option<usize>,
    /// Bytes per second that the memory delivers at best.
    pub memory_bandwidth: Option<f64>,
    /// Floating-point operations per second at best, in the element type of the weights.
    pub compute: Option<f64>,
    /// Bytes per second that the link to the other devices carries in one direction at best.
    pub link_bandwidth: Option<f64>,
    /// Seconds that a collective takes beside the transfer of its bytes.
    pub link_latency: Option<f64>,
}

impl Hardware {
    /// Takes what is not known here from `other`.
    #[must_use]
    pub fn or(self, other: Hardware) -> Hardware {
        Hardware {
            memory: self.memory.or(other.memory),
            memory_bandwidth: self.memory_bandwidth.or(other.memory_bandwidth),
            compute: self.compute.or(other.compute),
            link_bandwidth: self.link_bandwidth.or(other.link_bandwidth),
            link_latency: self.link_latency.or(other.link_latency),
        }
    }
}

/// How devices of one host are connected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Its name.
    pub name: &'static str,
    /// 10⁹ bytes per second in one direction; vendors often quote the sum of both.
    pub gigabytes: f64,
    /// Seconds per collective.
    pub latency: f64,
}

const fn nvlink(name: &'static str, gigabytes: f64) -> Link {
    Link { name, gigabytes, latency: NVLINK_LATENCY }
}

const fn pcie(name: &'static str, gigabytes: f64) -> Link {
    Link { name, gigabytes, latency: PCIE_LATENCY }
}

const NVLINK_3: Link = nvlink("NVLink 3", 300.0);
const NVLINK_4: Link = nvlink("NVLink 4", 450.0);
const NVLINK_5: Link = nvlink("NVLink 5", 900.0);
const PCIE_4: Link = pcie("PCIe 4.0 x16", 32.0);
const PCIE_5: Link = pcie("PCIe 5.0 x16", 64.0);

/// A GPU by published numbers, none of which was measured here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// The name on the command line.
    pub name: &'static str,
    /// Whole GiB of memory that are about what its driver reports, which is not the round number of the name.
    pub gibibytes: usize,
    /// 10⁹ bytes per second of its memory.
    pub gigabytes: f64,
    /// 10¹² operations per second on 16-bit numbers that are summed in single precision, without sparsity.
    pub teraflops: f64,
    /// The link to its neighbours.
    pub link: Link,
}

const fn gpu(name: &'static str, gibibytes: usize, gigabytes: f64, teraflops: f64, link: Link) -> Gpu {
    Gpu { name, gibibytes, gigabytes, teraflops, link }
}

/// The GPUs that are known by name. Bandwidths and peaks are those of NVIDIA's data sheets, halved where these count sparsity; cards with NVLink only
/// by a bridge of pairs (H100 PCIe) are taken to be connected by PCIe.
pub static GPUS: [Gpu; 11] = [
    gpu("b200", 178, 8000.0, 2250.0, NVLINK_5),
    gpu("h200", 140, 4800.0, 989.0, NVLINK_4),
    gpu("h100-sxm", 79, 3350.0, 989.0, NVLINK_4),
    gpu("h100-pcie", 79, 2000.0, 756.0, PCIE_5),
    gpu("a100-80g", 79, 2039.0, 312.0, NVLINK_3),
    gpu("a100-40g", 39, 1555.0, 312.0, NVLINK_3),
    gpu("l40s", 44, 864.0, 362.0, PCIE_4),
    gpu("l4", 22, 300.0, 121.0, PCIE_4),
    gpu("a10", 22, 600.0, 125.0, PCIE_4),
    gpu("rtx-5090", 31, 1792.0, 209.5, PCIE_5),
    gpu("rtx-4090", 23, 1008.0, 165.2, PCIE_4),
];

impl Gpu {
    /// What it can do with weights of this type. Its peak is known for 16-bit types only.
    pub fn hardware(&self, dtype: DType) -> Hardware {
        let of_16_bits = dtype.size() == 2;
        Hardware {
            memory: Some(self.gibibytes << 30),
            memory_bandwidth: Some(self.gigabytes * 1e9),
            compute: of_16_bits.then_some(self.teraflops * 1e12),
            link_bandwidth: Some(self.link.gigabytes * 1e9),
            link_latency: Some(self.link.latency),
        }
    }
}
