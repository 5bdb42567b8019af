//! The repository's everyday tasks: `cargo xtask TASK`.

mod arm64;
mod attack;
mod book;
mod browser;
mod cargo;
mod clients;
mod container;
mod cuda;
mod deny;
mod deploy;
mod features;
mod fuzz;
mod gate;
mod gpu_pack;
mod gpu_root;
mod install;
mod lint;
mod mutate;
mod prose;
mod ptx;
mod pytest;
mod release;
mod resources;
mod sanitize;
mod sass;
mod simulated;
mod smoke;
mod steady;
mod structure;
mod suites;
mod test_report;
mod toolkit;

use std::process::ExitCode;

/// A task of `cargo xtask`.
struct Task {
    /// The name on the command line.
    name: &'static str,
    /// Arguments, as the help shows them.
    arguments: &'static str,
    /// One or more lines of help.
    help: &'static str,
    /// Runs the task with the arguments after its name. Returns whether it succeeded.
    run: fn(&[String]) -> bool,
}

const TASKS: &[Task] = &[
    Task {
        name: "gate",
        arguments: "[--list] [--all]",
        help: "what CI runs: always lint, deny, test, sim and smoke, and the other stages if a commit of\n\
               the last two days touches paths that can break them; --list prints which and why",
        run: gate::run,
    },
    Task {
        name: "lint",
        arguments: "",
        help: "formatting, clippy with warnings as errors, module cycles, the rules of language, and\n\
               the links and the table of contents of the documentation",
        run: |_| lint::run(),
    },
    Task {
        name: "test",
        arguments: "",
        help: "every test of the workspace, among them tests of the real binary over HTTP; a test that\n\
               fails runs once more, alone, and is named UNSTEADY if it passes then",
        run: |_| suites::test(),
    },
    Task {
        name: "attack",
        arguments: "",
        help: "the tests that attack the real binary, and all attacks at once on a release build;\n\
               prints what a client experiences meanwhile",
        run: |_| attack::run(),
    },
    Task {
        name: "structure",
        arguments: "",
        help: "finds cycles between the modules of a crate (part of lint)",
        run: |_| structure::check(),
    },
    Task {
        name: "prose",
        arguments: "[--fix]",
        help: "finds words, spellings and wide lines that break the rules of language (part of lint);\n\
               --fix wraps the wide lines",
        run: |arguments| prose::run(arguments),
    },
    Task {
        name: "cuda",
        arguments: "",
        help: "compiles the CUDA kernels for every architecture with a pinned compiler, which it\n\
               installs below target/, and checks their machine code against kernels/cuda/sass.txt",
        run: |_| cuda::run(),
    },
    Task {
        name: "ptx",
        arguments: "[FILTER]",
        help: "the kernels' tests on the PTX interpreter, for sm_80 and sm_90a, and planted mistakes\n\
               in the kernel for Hopper; `all` runs all tests in both orders, `mutations` the\n\
               planted mistakes alone",
        run: |arguments| ptx::run(arguments.first().map(String::as_str)),
    },
    Task {
        name: "gpu-pack",
        arguments: "",
        help: "builds tests, kernel benchmarks and the server for a machine with a GPU and without\n\
               Rust, in target/gpu and target/gpu.tar.xz",
        run: |_| gpu_pack::run(),
    },
    Task {
        name: "gpu-root",
        arguments: "",
        help: "starts the programs of target/gpu in an empty root file system with a stand-in for\n\
               NVIDIA's driver, and runs integration-tests/gpu/check.sh without a GPU",
        run: |_| gpu_root::run(),
    },
    Task {
        name: "sim",
        arguments: "[one|all-gpus|FILTER]",
        help: "the CUDA kernels' tests on the simulated GPU with all four fiber schedules, each with\n\
               the limits of another GPU, and every benchmark once; `one` uses one schedule, and\n\
               `all-gpus` every schedule with the limits of every GPU",
        run: |arguments| match arguments.first().map(String::as_str) {
            Some("one") => simulated::one_order(),
            Some("all-gpus") => simulated::all_orders_on_all_gpus(),
            Some(filter) => simulated::all_orders(Some(filter)),
            None => simulated::all_orders(None) && simulated::bench(),
        },
    },
    Task {
        name: "arm64",
        arguments: "[all]",
        help: "tests of the kernels for 64-bit ARM under an emulator, with all NEON instruction\n\
               sets; `all` tries all cases and the shard's tests, and builds everything; as root, in a Debian\n\
               root of two gigabytes that it makes below target/",
        run: |arguments| match arguments.first().map(String::as_str) {
            Some("all") => arm64::all(),
            _ => arm64::run(),
        },
    },
    Task {
        name: "sanitize",
        arguments: "[FILTER]",
        help: "the same tests with one schedule under AddressSanitizer and UndefinedBehaviorSanitizer",
        run: |arguments| sanitize::run(arguments.first().map(String::as_str)),
    },
    Task {
        name: "mutate",
        arguments: "[third|MODULE]",
        help: "plants every mistake of kernels/cuda/kernels/mutations, and fails if the tests miss one;\n\
               `third` takes a third of the modules, another one each day",
        run: |arguments| mutate::run(arguments.first().map(String::as_str)),
    },
    Task {
        name: "clients",
        arguments: "",
        help: "other projects' client libraries and schemathesis against the real server; installs\n\
               them below target/",
        run: |_| clients::run(),
    },
    Task {
        name: "agents",
        arguments: "[PYTEST ARGUMENTS]",
        help: "coding agents and large libraries (Claude Code, Codex, opencode, aider, LangChain,\n\
               litellm, lm-eval, AI SDK) against the real server with a scripted model and without\n\
               a network; installs three gigabytes below target/",
        run: |arguments| clients::agents(arguments),
    },
    Task {
        name: "deploy",
        arguments: "[PYTEST ARGUMENTS]",
        help: "renders the Helm chart with Helm's engine and checks it, the Compose file and the\n\
               systemd unit against schemas and the real server; installs 400 megabytes below\n\
               target/",
        run: |arguments| deploy::run(arguments),
    },
    Task {
        name: "deny",
        arguments: "[advisories]",
        help: "licenses, sources and forbidden crates among all dependencies, as deny.toml says, with\n\
               cargo-deny, which it installs below target/; `advisories` needs their database, too",
        run: |arguments| match arguments.first() {
            Some(_) => deny::advisories(),
            None => deny::run(),
        },
    },
    Task {
        name: "release",
        arguments: "[twice|BINARY...]",
        help: "archives and Debian packages for x86-64 and 64-bit ARM in target/release-pack, with\n\
               sums, bills of materials and licenses; packs twice, and installs the package in a\n\
               Debian root; as root. Packs these binaries instead of building; `twice` builds\n\
               everything two times and compares before it packs",
        run: release::run,
    },
    Task {
        name: "container",
        arguments: "[FLAGS] [PYTEST ARGUMENTS]",
        help: "builds the container images with a private Docker engine below target/ and tests\n\
               them; needs root, and installs docker.io, mmdebstrap, docker-compose and haproxy\n\
               with apt if they are missing. --release-binary takes the binary of this machine,\n\
               --machine-code compiles one for GPUs, --cpu-only leaves the CUDA image out",
        run: |arguments| container::run(arguments),
    },
    Task {
        name: "book",
        arguments: "",
        help: "builds docs/ into a book in target/book with mdBook, which it installs below target/",
        run: |_| book::run(),
    },
    Task {
        name: "compatibility",
        arguments: "",
        help: "writes docs/compatibility.md from the server's answers",
        run: |_| suites::compatibility(),
    },
    Task {
        name: "models",
        arguments: "",
        help: "writes docs/models.md from the families, the golden checkpoints and the templates, and docs/features.md",
        run: |_| suites::models(),
    },
    Task {
        name: "ui",
        arguments: "[PYTEST ARGUMENTS]",
        help: "tests the page /ui in a headless Chromium, which it installs if it is missing",
        run: |arguments| browser::run(arguments),
    },
    Task {
        name: "smoke",
        arguments: "",
        help: "the README's first command: serves the demo model and streams an answer from it",
        run: |_| smoke::run(),
    },
    Task {
        name: "fuzz",
        arguments: "[TARGET] [SECONDS]",
        help: "libFuzzer on the parsers of untrusted input; one minute for each target",
        run: |arguments| {
            let target = arguments.first().map(String::as_str).filter(|&target| target != "all");
            fuzz::run(target, arguments.get(1).map_or("60", String::as_str))
        },
    },
    Task {
        name: "cost",
        arguments: "[SECONDS]",
        help: "the cost fuzzer: looks for untrusted input whose cost grows faster than its size; more\n\
               than ten minutes try other inputs each day",
        run: |arguments| suites::cost(arguments.first().map_or("60", String::as_str)),
    },
    Task {
        name: "properties",
        arguments: "[SEED]",
        help: "every property test with other random cases, by default those of the day",
        run: |arguments| suites::properties(arguments.first().map(String::as_str)),
    },
    Task {
        name: "checkpoints",
        arguments: "",
        help: "the real server with every golden checkpoint: in pieces, in batches, from the prefix cache,\n\
               by two shards, and after its shard was killed",
        run: |_| suites::checkpoints(),
    },
    Task {
        name: "simulation",
        arguments: "",
        help: "20 million steps of the scheduler under random traffic, shortages and lost shards",
        run: |_| suites::simulation(),
    },
    Task {
        name: "soak",
        arguments: "[MINUTES]",
        help: "random traffic with random kills of the shard, for ten minutes",
        run: |arguments| suites::soak(arguments.first().map_or("10", String::as_str)),
    },
    Task {
        name: "bench",
        arguments: "",
        help: "benchmarks of the kernels and of the whole server on this machine's CPU",
        run: |_| suites::bench(),
    },
    Task {
        name: "nightly",
        arguments: "[FILTER]",
        help: "all stages of the gate and the long checks, for some hours; goes on after a failure",
        run: |arguments| gate::nightly(arguments.first().map(String::as_str)),
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("help", String::as_str);
    if name == "help" {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("unknown task `{name}`\n\n{}", help());
        return ExitCode::FAILURE;
    };
    if (task.run)(&arguments[1..]) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the list of tasks, as `cargo xtask help` prints it.
fn help() -> String {
    let mut text = String::from("cargo xtask TASK\n\n");
    for task in TASKS {
        let usage = format!("{} {}", task.name, task.arguments);
        let help = task.help.replace('\n', "\n                             ");
        text += &format!("  {usage:<26} {help}\n");
    }
    text
}
