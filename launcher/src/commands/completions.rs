//! `millrace completions` and `millrace man`: files for shells and for `man`, from the definition
//! of the command line.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// The program and its version, at the foot of each page.
const SOURCE: &str = concat!("millrace ", env!("CARGO_PKG_VERSION"));

/// Prints the completions of a shell.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "millrace", &mut text);
    // The reader may be `head`: an end of the pipe is no error of ours.
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write the completions"),
    }
}

/// Writes a manual page for each command that help shows.
pub(crate) fn manual(args: &ManArgs) -> Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let pages: Vec<_> = subcommands.map(|subcommand| (subcommand.clone(), "millrace-")).collect();
    for (command, prefix) in [(command, "")].into_iter().chain(pages) {
        page(command, prefix, folder)?;
    }
    Ok(())
}

/// Writes the page of a command.
fn page(command: clap::Command, prefix: &str, folder: &Path) -> Result<()> {
    let name = format!("{prefix}{}", command.get_name());
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    // The title is the name that `man` finds the page by.
    let man = clap_mangen::Man::new(command).title(name.to_uppercase()).source(SOURCE);
    man.render(&mut text)
        .and_then(|()| std::fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}
