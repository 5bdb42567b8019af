//! `millrace env`: version, machine and settings for a bug report.

use std::fmt::{Display, Formatter};
use std::process::Command;

use anyhow::Result;

/// Parts of the names of variables whose values are secrets.
const SECRET: &[&str] = &["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// Prefixes of the names of variables that affect Millrace.
const OURS: &[&str] = &[
    "MILLRACE_",
    "CUDA_",
    "NVIDIA_VISIBLE",
    "NCCL_",
    "HF_",
    "HUGGINGFACE_",
    "AIP_",
    "LWS_",
    "OTEL_",
    "OTLP_",
    "RUST_",
    "MODEL_ID",
    "PORT",
    "HOSTNAME",
    "NUM_SHARD",
    "DEVICE",
    "ALL_REDUCE",
    "MAX_",
    "DTYPE",
    "QUANTIZE",
    "LOG_LEVEL",
    "JSON_OUTPUT",
    "API_KEY",
];

/// The program, the machine, and the environment variables that affect Millrace.
pub(crate) struct Environment(Vec<(String, String)>);

impl Environment {
    /// Collects the facts.
    pub(crate) fn new() -> Self {
        let mut lines = vec![
            ("millrace".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("built for".to_owned(), format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)),
            ("build".to_owned(), if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned()),
            ("system".to_owned(), system()),
            ("cpu".to_owned(), cpu()),
            ("cores".to_owned(), std::thread::available_parallelism().map_or(0, usize::from).to_string()),
            ("memory".to_owned(), memory()),
            ("open files".to_owned(), limit("Max open files")),
            ("container".to_owned(), container().to_owned()),
            ("gpus".to_owned(), gpus()),
        ];
        let mut variables: Vec<_> = std::env::vars_os()
            .filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            })
            .filter(|(name, _)| OURS.iter().any(|ours| name.starts_with(ours)))
            .map(|(name, value)| {
                let secret = SECRET.iter().any(|word| name.contains(word)) && !name.contains("TOKENS");
                (format!("${name}"), if secret { "(set, not shown)".into() } else { value })
            })
            .collect();
        variables.sort();
        lines.append(&mut variables);
        Environment(lines)
    }
}

impl Display for Environment {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name:width$}  {value}"))
    }
}

/// Prints the environment.
pub(crate) fn run() -> Result<()> {
    print!("{}", Environment::new());
    Ok(())
}

fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn unknown(text: Option<&str>) -> String {
    text.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
}

/// Returns the value of the first line `name: value` with this name.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))
}

fn system() -> String {
    let release = file("/etc/os-release");
    let name =
        release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).map(|name| name.trim_matches('"'));
    format!("{}, kernel {}", unknown(name), unknown(Some(&file("/proc/sys/kernel/osrelease"))))
}

fn cpu() -> String {
    let info = file("/proc/cpuinfo");
    let flags = field(&info, "flags").or_else(|| field(&info, "Features")).unwrap_or_default();
    let known = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "bf16"];
    let has: Vec<_> = known.into_iter().filter(|flag| flags.split_whitespace().any(|f| f == *flag)).collect();
    format!("{} ({})", unknown(field(&info, "model name")), has.join(", "))
}

fn memory() -> String {
    let info = file("/proc/meminfo");
    format!("{}, {} available", unknown(field(&info, "MemTotal")), unknown(field(&info, "MemAvailable")))
}

fn limit(name: &str) -> String {
    let limits = file("/proc/self/limits");
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    unknown(line.and_then(|line| line.split_whitespace().next()))
}

fn container() -> &'static str {
    let marks = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];
    match marks.into_iter().find(|(path, _)| std::path::Path::new(path).exists()) {
        Some((_, name)) => name,
        None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => "kubernetes",
        None => "none detected",
    }
}

/// Returns the GPUs that the driver's tool `nvidia-smi` lists.
fn gpus() -> String {
    let query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"];
    match Command::new("nvidia-smi").args(query).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
        }
        _ => "none listed by nvidia-smi".into(),
    }
}
