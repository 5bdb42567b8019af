//! The stages that a change must pass, and the longer ones of the night: `cargo xtask gate` and
//! `cargo xtask nightly`.

mod changes;
mod runner;
mod stages;

use std::time::Duration;

use changes::Change;
use stages::{Runs, SHARED, STAGES, Stage};

/// Whether a stage runs, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    runs: bool,
    reason: String,
}

/// Runs the stages that this checkout needs: `--list` only prints which and why, and `--all` runs
/// the optional stages whatever has changed. Returns whether all passed.
pub(crate) fn run(arguments: &[String]) -> bool {
    let is_known = |argument: &String| matches!(argument.as_str(), "--list" | "--all");
    if let Some(unknown) = arguments.iter().find(|argument| !is_known(argument)) {
        eprintln!("{unknown}: cargo xtask gate knows --list and --all");
        return false;
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let changes = changes::recent();
    let mut all: Vec<(&Stage, Choice)> = STAGES
        .iter()
        .filter(|stage| !matches!(stage.runs, Runs::Nightly))
        .map(|stage| (stage, choice(stage, changes.as_deref(), has("--all"))))
        .collect();
    leave_covered_out(&mut all);
    print!("{}", list(&all));
    let chosen: Vec<&Stage> = all.iter().filter(|(_, choice)| choice.runs).map(|(stage, _)| *stage).collect();
    has("--list") || runner::run(&chosen, budget())
}

/// Runs all stages of the gate and of the night, or those whose commands begin with `filter`.
/// Returns whether all passed.
pub(crate) fn nightly(filter: Option<&str>) -> bool {
    let chosen = chosen_nightly(filter);
    if chosen.is_empty() {
        let names: Vec<_> = STAGES.iter().map(|stage| stage.command).collect();
        eprintln!(
            "cargo xtask nightly [FILTER], with the beginning of one of these:\n  {}",
            names.join("\n  ")
        );
        return false;
    }
    runner::run(&chosen, None)
}

/// Returns the stages whose commands begin with `filter`, or all that no other stage covers.
fn chosen_nightly(filter: Option<&str>) -> Vec<&'static Stage> {
    let is_wanted = |stage: &&Stage| match filter {
        Some(filter) => stage.command.starts_with(filter),
        None => stage.covered_by.is_none(),
    };
    STAGES.iter().filter(is_wanted).collect()
}

/// Returns the time that the gate may take: so many minutes as the variable says, or any.
fn budget() -> Option<Duration> {
    let minutes: u64 = std::env::var("MILLRACE_GATE_MINUTES").ok()?.parse().ok()?;
    Some(Duration::from_secs(60 * minutes))
}

/// Decides whether a stage runs. Where the changes are not known, all stages run.
fn choice(stage: &Stage, changes: Option<&[Change]>, all: bool) -> Choice {
    let runs = |runs: bool, reason: String| Choice { runs, reason };
    let paths = match stage.runs {
        Runs::Always => return runs(true, "always".to_owned()),
        Runs::Nightly => return runs(false, "cargo xtask nightly runs it".to_owned()),
        Runs::IfTouched(paths) => paths,
    };
    let Some(changes) = changes else { return runs(true, "Git does not know the recent changes".to_owned()) };
    let below = |paths: &'static [&'static str]| {
        changes.iter().find(|change| paths.iter().any(|start| change.path.starts_with(start)))
    };
    match below(paths).or_else(|| below(SHARED)) {
        Some(Change { path, commit }) => runs(true, format!("{commit} touches {path}")),
        None if all => runs(true, "--all".to_owned()),
        None => runs(false, format!("nothing recent touches {}", paths.join(" "))),
    }
}

/// Leaves out what another stage that runs does as well.
fn leave_covered_out(all: &mut [(&Stage, Choice)]) {
    let running: Vec<&str> =
        all.iter().filter(|(_, choice)| choice.runs).map(|(stage, _)| stage.command).collect();
    for (stage, choice) in all {
        if let Some(cover) = stage.covered_by.filter(|cover| running.contains(cover)) {
            *choice = Choice { runs: false, reason: format!("{cover} does the same and more") };
        }
    }
}

/// Returns a table of the stages and the reasons.
fn list(all: &[(&Stage, Choice)]) -> String {
    let mut text = String::new();
    for (stage, choice) in all {
        let runs = if choice.runs { "runs" } else { "----" };
        text += &format!("{runs}  {:<27} {:>3} min  {}\n", stage.command, stage.minutes, choice.reason);
    }
    let minutes: u32 = all.iter().filter(|(_, choice)| choice.runs).map(|(stage, _)| stage.minutes).sum();
    text + &format!("about {minutes} minutes on two cores, cold\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(changes: Option<&[(&str, &str)]>, all: bool) -> Vec<&'static str> {
        let changes = changes.map(|changes| {
            let change = |&(commit, path): &(&str, &str)| Change { path: path.into(), commit: commit.into() };
            changes.iter().map(change).collect::<Vec<_>>()
        });
        let runs = |stage: &&Stage| choice(stage, changes.as_deref(), all).runs;
        STAGES.iter().filter(runs).map(|stage| stage.command).collect()
    }

    #[test]
    fn stages_run_always_or_if_a_change_touches_their_paths() {
        let always = ["lint", "deny", "test", "sim one", "smoke"];
        assert_eq!(chosen(Some(&[]), false), always);
        assert_eq!(chosen(Some(&[("a", "docs/x.md"), ("b", "router/scheduler/src/lib.rs")]), false), always);
        let page = chosen(Some(&[("a", "router/src/web/ui/mod.rs")]), false);
        assert_eq!(page, ["lint", "deny", "test", "sim one", "smoke", "ui"]);
        let kernel = chosen(Some(&[("a", "kernels/cuda/kernels/norm.cu")]), false);
        assert_eq!(kernel, ["lint", "deny", "test", "sim one", "smoke", "cuda", "ptx", "sim"]);
    }

    #[test]
    fn all_optional_stages_run_if_asked_for_or_if_the_changes_are_not_known() {
        let every = STAGES.iter().filter(|stage| !matches!(stage.runs, Runs::Nightly)).count();
        assert_eq!(chosen(None, false).len(), every);
        assert_eq!(chosen(Some(&[]), true).len(), every);
        assert_eq!(chosen(Some(&[("a", "xtask/src/gate/stages.rs")]), false).len(), every);
    }

    #[test]
    fn a_stage_is_left_out_if_another_one_covers_it() {
        for (path, wanted) in [("docs/x.md", true), ("kernels/cuda/kernels/norm.cu", false)] {
            let change = [Change { path: path.into(), commit: "a".into() }];
            let mut all: Vec<_> =
                STAGES.iter().map(|stage| (stage, choice(stage, Some(&change), false))).collect();
            leave_covered_out(&mut all);
            let runs =
                |command: &str| all.iter().any(|(stage, choice)| stage.command == command && choice.runs);
            assert_eq!((runs("sim one"), runs("sim")), (wanted, !wanted));
        }
    }

    #[test]
    fn a_night_runs_what_nothing_covers_or_what_is_asked_for() {
        let commands = |filter| chosen_nightly(filter).iter().map(|stage| stage.command).collect::<Vec<_>>();
        assert_eq!(commands(Some("sim")), ["sim one", "sim", "simulation", "sim all-gpus"]);
        let all = commands(None);
        assert!(all.contains(&"sim") && !all.contains(&"sim one"), "{all:?}");
        assert_eq!(all.len() + 1, STAGES.len());
    }

    #[test]
    fn the_list_names_the_commit_and_the_path() {
        let ui = STAGES.iter().find(|stage| stage.command == "ui").unwrap();
        let change = Change { path: "router/src/web/ui/mod.rs".into(), commit: "abc".into() };
        let text = list(&[(ui, choice(ui, Some(&[change]), false)), (ui, choice(ui, Some(&[]), false))]);
        assert!(text.contains("abc touches router/src/web/ui/mod.rs"), "{text}");
        assert!(text.contains("----  ui"), "{text}");
        assert!(text.ends_with(&format!("about {} minutes on two cores, cold\n", ui.minutes)), "{text}");
    }
}
