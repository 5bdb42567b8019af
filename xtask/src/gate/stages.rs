//! The table of all stages: what runs, when, and how long it takes.

/// A check that the gate or the nightly run makes: one call of `cargo xtask`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    /// The task and its arguments, with spaces between them.
    pub(super) command: &'static str,
    pub(super) runs: Runs,
    /// Minutes on two cores, cold, after the stages before it.
    pub(super) minutes: u32,
    /// The command of a stage that does the same and more. If that one runs, this one does not.
    pub(super) covered_by: Option<&'static str>,
}

const fn stage(command: &'static str, runs: Runs, minutes: u32) -> Stage {
    Stage { command, runs, minutes, covered_by: None }
}

/// When a stage runs in the gate. The nightly run has all stages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Runs {
    Always,
    /// If a change touches a path that begins with one of these.
    IfTouched(&'static [&'static str]),
    /// In the nightly run only.
    Nightly,
}

use Runs::{Always, IfTouched, Nightly};

/// The stages in their order: first those that find most faults in a second.
pub(super) const STAGES: &[Stage] = &[
    stage("lint", Always, 4),
    stage("deny", Always, 1),
    stage("test", Always, 22),
    Stage { covered_by: Some("sim"), ..stage("sim one", Always, 2) },
    stage("clients", IfTouched(CLIENTS), 2),
    stage("deploy", IfTouched(DEPLOY), 2),
    stage("smoke", Always, 6),
    // Those below share the binary of `smoke`.
    stage("ui", IfTouched(UI), 3),
    stage("container --release-binary", IfTouched(CONTAINER), 4),
    stage("cuda", IfTouched(CUDA), 6),
    stage("ptx", IfTouched(CUDA), 6),
    stage("sim", IfTouched(CUDA), 2),
    stage("arm64", IfTouched(ARM64), 9),
    stage("book", Nightly, 5),
    stage("attack", Nightly, 20),
    stage("properties", Nightly, 10),
    stage("checkpoints", Nightly, 10),
    stage("simulation", Nightly, 20),
    stage("sim all-gpus", Nightly, 25),
    stage("ptx all", Nightly, 30),
    stage("gpu-pack", Nightly, 10),
    stage("gpu-root", Nightly, 5),
    stage("agents", Nightly, 20),
    stage("container --machine-code", Nightly, 40),
    stage("deny advisories", Nightly, 1),
    stage("arm64 all", Nightly, 90),
    stage("release twice", Nightly, 50),
    stage("fuzz all 120", Nightly, 30),
    stage("cost 900", Nightly, 20),
    stage("soak 15", Nightly, 20),
    stage("sanitize", Nightly, 30),
    stage("mutate third", Nightly, 60),
    stage("bench", Nightly, 30),
];

/// Paths that every optional stage depends on, beside its own.
pub(super) const SHARED: &[&str] = &[
    ".ci/",
    "xtask/src/gate/",
    "xtask/src/install.rs",
    "xtask/src/pytest.rs",
    "xtask/src/steady.rs",
    "xtask/src/test_report.rs",
];

const CLIENTS: &[&str] = &[
    "formats/src/",
    "integration-tests/clients/",
    "integration-tests/src/",
    "integration-tests/tests/server/clients.rs",
    "integration-tests/tests/server/model_formats.rs",
    "launcher/src/hub/",
    "router/answers/src/reasoning/",
    "router/answers/src/tools/",
    "router/src/chat/",
    "router/src/http/",
    "router/src/kv_events/",
    "router/src/service/",
    "shard/convert/src/convert/",
    "xtask/src/clients.rs",
];

const DEPLOY: &[&str] = &[
    "deploy/",
    "integration-tests/deploy/",
    "launcher/src/cli/",
    "launcher/src/commands/",
    "xtask/src/deploy.rs",
];

const UI: &[&str] =
    &["integration-tests/browser/", "router/src/http/", "router/src/web/", "xtask/src/browser.rs"];

const CONTAINER: &[&str] = &[
    ".dockerignore",
    "Dockerfile",
    "deploy/compose/",
    "integration-tests/container/",
    "kernels/cuda/libraries.txt",
    "launcher/src/cli/",
    "launcher/src/commands/",
    "launcher/src/init.rs",
    "xtask/src/container/",
];

const CUDA: &[&str] = &[
    "kernels/cuda/",
    "kernels/ptx-interpreter/",
    "xtask/src/cuda.rs",
    "xtask/src/ptx/",
    "xtask/src/resources.rs",
    "xtask/src/sass.rs",
    "xtask/src/simulated.rs",
    "xtask/src/toolkit.rs",
];

const ARM64: &[&str] =
    &["kernels/backend/", "kernels/cpu/", "kernels/numbers/", "kernels/suite/", "xtask/src/arm64/"];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_path_of_the_table_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let optional = STAGES.iter().filter_map(|stage| match stage.runs {
            IfTouched(paths) => Some(paths),
            Always | Nightly => None,
        });
        for path in optional.flatten().chain(SHARED) {
            assert!(root.join(path).exists(), "{path}");
        }
    }

    #[test]
    fn the_gate_fits_its_minutes() {
        let minutes = |wanted: fn(&Runs) -> bool| -> u32 {
            STAGES.iter().filter(|stage| wanted(&stage.runs)).map(|stage| stage.minutes).sum()
        };
        // More than these would be cut off on a machine that is half as fast.
        assert!(minutes(|runs| matches!(runs, Always)) <= 35);
        assert!(minutes(|runs| !matches!(runs, Nightly)) <= 69);
    }
}
