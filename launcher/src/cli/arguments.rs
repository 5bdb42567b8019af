//! Command lines that name no subcommand.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::neighbours::translated;

/// Name of TGI's launcher. Images have it as another name of this program, for deployments that
/// name the program.
const TGI_LAUNCHER: &str = "text-generation-launcher";

/// Flags of the program itself.
const OWN: &[&str] = &["-h", "--help", "-V", "--version"];

/// Inserts the subcommand `serve` if the arguments begin with a flag, as those of TGI's image do,
/// or if the program was started by the name of TGI's launcher.
pub(crate) fn with_subcommand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).and_then(|first| first.to_str());
    let is_own = first.is_some_and(|first| OWN.contains(&first));
    let begins_with_flag = first.is_some_and(|first| first.starts_with('-'));
    let named_as_tgis = arguments.first().is_some_and(|name| is_named(name, TGI_LAUNCHER));
    if !is_own && (begins_with_flag || named_as_tgis) {
        arguments.insert(1, "serve".into());
    }
    arguments
}

/// Returns the arguments of a server as the command line of another process has them. An init
/// program, such as that of `docker run --init`, may stand before them.
pub(crate) fn of_server(command_line: &[OsString]) -> Option<Vec<OsString>> {
    let is_ours = |name: &OsString| is_named(name, "millrace") || is_named(name, TGI_LAUNCHER);
    let start = command_line.iter().position(is_ours)?;
    let (arguments, _) = translated(with_subcommand(command_line[start..].to_vec())).ok()?;
    (arguments.get(1).is_some_and(|command| command == "serve")).then_some(arguments)
}

fn is_named(path: &OsStr, name: &str) -> bool {
    Path::new(path).file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn flags_alone_serve() {
        for (line, wanted) in [
            ("millrace --model-id org/name -p 80", "millrace serve --model-id org/name -p 80"),
            ("millrace -c 64", "millrace serve -c 64"),
            ("/bin/text-generation-launcher", "/bin/text-generation-launcher serve"),
            ("text-generation-launcher --json-output", "text-generation-launcher serve --json-output"),
            ("millrace", "millrace"),
            ("millrace --help", "millrace --help"),
            ("millrace -V", "millrace -V"),
            ("millrace serve --help", "millrace serve --help"),
            ("millrace org/name", "millrace org/name"),
            ("millrace quantize --help", "millrace quantize --help"),
        ] {
            assert_eq!(with_subcommand(split(line)), split(wanted), "{line}");
        }
    }

    #[test]
    fn the_arguments_of_a_server_are_found() {
        for (line, wanted) in [
            ("millrace serve --port 80", Some("millrace serve --port 80")),
            ("/sbin/docker-init -- /usr/bin/millrace --port 80", Some("/usr/bin/millrace serve --port 80")),
            ("text-generation-launcher", Some("text-generation-launcher serve")),
            ("millrace serve -np 4 --jinja --port 80", Some("millrace serve --parallel 4 --port 80")),
            ("millrace quantize a b", None),
            ("/sbin/init splash", None),
            ("millrace", None),
            ("", None),
        ] {
            assert_eq!(of_server(&split(line)), wanted.map(split), "{line}");
        }
    }
}
