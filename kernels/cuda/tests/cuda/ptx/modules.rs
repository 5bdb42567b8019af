//! The modules of a folder, parsed when they are used.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use millrace_backend::{Error, Result};
use millrace_ptx_interpreter::{Arrival, Module, WarpOrder};

/// The modules, and how their kernels run.
#[derive(Debug)]
pub(super) struct Modules {
    folder: PathBuf,
    /// Major and minor compute capability that the modules were compiled for.
    pub(super) capability: (u32, u32),
    pub(super) order: WarpOrder,
    pub(super) arrival: Arrival,
    parsed: Mutex<HashMap<&'static str, Arc<Module>>>,
    /// The file that lists the kernels that were launched, if the environment names one.
    log: Option<PathBuf>,
    launched: Mutex<HashSet<&'static str>>,
}

impl Modules {
    /// The modules and the orders that the environment names.
    pub(super) fn from_environment() -> Modules {
        let folder = std::env::var_os("MILLRACE_PTX").map(PathBuf::from);
        let folder = folder.expect("MILLRACE_PTX must name a folder that `cargo xtask ptx` has made");
        let text = std::fs::read_to_string(folder.join("norm.ptx")).expect("the folder has norm.ptx");
        let order = match std::env::var("MILLRACE_SIM_ORDER").as_deref() {
            Ok("reverse") => WarpOrder::Reverse,
            Ok("forward") | Err(_) => WarpOrder::Forward,
            Ok(other) => panic!("MILLRACE_SIM_ORDER is {other}: it must be forward or reverse"),
        };
        let arrival = match std::env::var("MILLRACE_PTX_ARRIVAL").as_deref() {
            Ok("early") => Arrival::Early,
            Ok("late") | Err(_) => Arrival::Late,
            Ok(other) => panic!("MILLRACE_PTX_ARRIVAL is {other}: it must be late or early"),
        };
        Modules {
            folder,
            capability: capability(&text),
            order,
            arrival,
            parsed: Mutex::default(),
            log: std::env::var_os("MILLRACE_PTX_LAUNCHED").map(PathBuf::from),
            launched: Mutex::default(),
        }
    }

    /// Notes that a kernel has run.
    pub(super) fn note(&self, kernel: &'static str) {
        if let Some(log) = &self.log
            && self.launched.lock().unwrap().insert(kernel)
        {
            let file = OpenOptions::new().create(true).append(true).open(log);
            writeln!(file.unwrap(), "{kernel}").unwrap();
        }
    }

    pub(super) fn find(&self, name: &'static str) -> Result<Arc<Module>> {
        let mut parsed = self.parsed.lock().unwrap();
        if let Some(module) = parsed.get(name) {
            return Ok(module.clone());
        }
        let file = self.folder.join(format!("{name}.ptx"));
        let refuse = |why: String| Error::Unsupported(format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(&file).map_err(|e| refuse(e.to_string()))?;
        let module = Arc::new(Module::parse(&text).map_err(|e| refuse(e.to_string()))?);
        parsed.insert(name, module.clone());
        Ok(module)
    }
}

/// The compute capability in `.target sm_90a`.
fn capability(text: &str) -> (u32, u32) {
    let target = text.lines().find_map(|line| line.strip_prefix(".target sm_")).expect("a target");
    let number: u32 = target.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
    (number / 10, number % 10)
}
