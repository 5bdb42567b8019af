//! The crates in a binary: a bill of materials in CycloneDX's format, and the texts of their
//! licenses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::cargo::cargo_path;

/// A crate of the registry that is part of the binary.
pub(super) struct Dependency {
    name: String,
    version: String,
    license: String,
    description: String,
    repository: Option<String>,
    /// SHA-256 of the package, from `Cargo.lock`.
    checksum: Option<String>,
    /// Name and version of the crates that this one uses.
    uses: Vec<String>,
    /// Name and contents of the files with its licenses and notices.
    texts: Vec<(String, String)>,
}

/// Returns the crates in the binary of `target`, sorted by name and version. The first list is that
/// of the crates which the workspace itself uses.
///
/// # Errors
/// If Cargo fails, or a file cannot be read.
pub(super) fn of_target(repository: &Path, target: &str) -> Result<(Vec<String>, Vec<Dependency>), String> {
    let mut cargo = Command::new(cargo_path());
    cargo.current_dir(repository).args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        target,
    ]);
    let done = cargo.output().map_err(|e| format!("cargo metadata: {e}"))?;
    let metadata: Value = serde_json::from_slice(&done.stdout)
        .map_err(|e| format!("cargo metadata: {e}: {}", String::from_utf8_lossy(&done.stderr)))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let by_id = |all: Vec<Value>| -> BTreeMap<String, Value> {
        all.into_iter().map(|value| (text(&value["id"]), value)).collect()
    };
    let packages = by_id(list(&metadata["packages"]));
    let nodes = by_id(list(&metadata["resolve"]["nodes"]));
    // Crates that only tests or build scripts use are not in the binary.
    let uses = |id: &str| -> Vec<String> {
        let normal = |dep: &&Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        nodes.get(id).map_or(Vec::new(), |node| {
            list(&node["deps"]).iter().filter(normal).map(|dep| text(&dep["pkg"])).collect()
        })
    };
    let root = packages.iter().find(|(_, package)| package["name"] == "millrace");
    let mut waiting = vec![root.ok_or("there is no package millrace")?.0.clone()];
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if reached.insert(id.clone()) {
            waiting.extend(uses(&id));
        }
    }
    let checksums = checksums(&repository.join("Cargo.lock"))?;
    let is_ours = |id: &str| packages[id]["source"].is_null();
    let name = |id: &String| reference(&text(&packages[id]["name"]), &text(&packages[id]["version"]));
    let mut own = BTreeSet::new();
    let mut all = Vec::new();
    for id in &reached {
        let used: BTreeSet<String> = uses(id).iter().filter(|id| !is_ours(id)).map(name).collect();
        if is_ours(id) {
            own.extend(used);
        } else {
            all.push(dependency(&packages[id], &checksums, used.into_iter().collect())?);
        }
    }
    all.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok((own.into_iter().collect(), all))
}

fn dependency(
    package: &Value,
    checksums: &BTreeMap<String, String>,
    uses: Vec<String>,
) -> Result<Dependency, String> {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let manifest = text(&package["manifest_path"]);
    Ok(Dependency {
        checksum: checksums.get(&reference(&name, &version)).cloned(),
        license: package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR ").replace("  ", " "),
        description: text(&package["description"]).trim().to_owned(),
        repository: package["repository"].as_str().map(str::to_owned),
        texts: texts(Path::new(&manifest).parent().unwrap_or(Path::new("/")))?,
        name,
        version,
        uses,
    })
}

/// Reads the files of a package that contain licenses or notices.
fn texts(folder: &Path) -> Result<Vec<(String, String)>, String> {
    const BEGINNINGS: [&str; 5] = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let about = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(about)? {
        let entry = entry.map_err(about)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_text = BEGINNINGS.iter().any(|beginning| name.to_uppercase().starts_with(beginning));
        if is_text && entry.path().is_file() {
            let bytes = fs::read(entry.path()).map_err(about)?;
            found.push((name, String::from_utf8_lossy(&bytes).replace("\r\n", "\n")));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads the checksums of `Cargo.lock`, which has one `[[package]]` after the other.
fn checksums(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let lock = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(lock
        .split("[[package]]")
        .filter_map(|package| {
            let field = |name: &str| {
                let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")));
                line.map(|line| line.trim_end_matches('"').to_owned())
            };
            Some((reference(&field("name")?, &field("version")?), field("checksum")?))
        })
        .collect())
}

/// Returns the package URL of a crate.
fn reference(name: &str, version: &str) -> String {
    // A plus sign stands for a space in URLs.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the bill of materials in CycloneDX 1.5. It contains neither a time nor a random number,
/// so that the same commit gives the same bytes.
pub(super) fn bill(version: &str, target: &str, own: &[String], all: &[Dependency]) -> String {
    let ours = reference("millrace", version);
    let components: Vec<Value> = all.iter().map(component).collect();
    let mut uses = vec![json!({"ref": ours, "dependsOn": own})];
    uses.extend(all.iter().map(|dependency| {
        json!({"ref": reference(&dependency.name, &dependency.version), "dependsOn": dependency.uses})
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": ours, "name": "millrace", "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}], "purl": ours,
            },
            "properties": [{"name": "cargo:target", "value": target}],
        },
        "components": components,
        "dependencies": uses,
    });
    format!("{bill:#}\n")
}

fn component(dependency: &Dependency) -> Value {
    let purl = reference(&dependency.name, &dependency.version);
    let mut component = json!({
        "type": "library", "bom-ref": purl, "name": dependency.name, "version": dependency.version,
        "description": dependency.description, "licenses": [{"expression": dependency.license}],
        "purl": purl, "scope": "required",
    });
    if let Some(checksum) = &dependency.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &dependency.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    component
}

/// Returns the texts of all licenses. A text that many crates share is printed once.
///
/// # Errors
/// If a crate has neither a text nor a license whose text is known: MIT, or Apache-2.0, whose text
/// is `apache`.
pub(super) fn licenses(all: &[Dependency], apache: &str) -> Result<String, String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut out = String::from("The millrace binary contains these packages of crates.io.\n\n");
    for dependency in all {
        let name = format!("{} {}", dependency.name, dependency.version);
        out += &format!("{name}: {}\n", dependency.license);
        for (_, text) in &dependency.texts {
            texts.entry(text.trim_end().to_owned()).or_default().push(name.clone());
        }
        if dependency.texts.is_empty() {
            let (mit, by_apache) =
                (dependency.license.contains("MIT"), dependency.license.contains("Apache-2.0"));
            let text = match (by_apache, mit) {
                (true, _) => apache.trim_end().to_owned(),
                (false, true) => format!("Copyright: the authors of {}\n\n{MIT}", dependency.name),
                (false, false) => {
                    return Err(format!("{name} has no text of its license {}", dependency.license));
                }
            };
            texts.entry(text).or_default().push(format!("{name} (the package has no text)"));
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    for (text, names) in texts {
        out += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    Ok(out)
}

/// The text of the MIT license after its copyright lines.
const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the \"Software\"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_every_crate_of_the_binary_and_of_no_test() {
        let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let (own, all) =
            of_target(repository, "aarch64-unknown-linux-gnu").unwrap_or_else(|why| panic!("{why}"));
        let has = |name| all.iter().any(|dependency| dependency.name == name);
        assert!(has("tokio") && has("clap_builder") && !has("proptest") && !has("millrace-router"));
        assert!(!has("windows-sys"), "crates of other systems are not in the binary");

        let bill: Value = serde_json::from_str(&bill("1.2.3", "a-target", &own, &all)).unwrap_or_default();
        let components = bill["components"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(components.len(), all.len());
        let known: BTreeSet<&str> =
            components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
        let uses = bill["dependencies"].as_array().into_iter().flatten();
        let used: Vec<&str> =
            uses.filter_map(|one| one["dependsOn"].as_array()).flatten().filter_map(Value::as_str).collect();
        assert!(used.len() > all.len() && used.iter().all(|used| known.contains(used)));
        for component in components {
            let sum = component["hashes"][0]["content"].as_str().unwrap_or_default();
            assert_eq!(sum.len(), 64, "{component}");
            assert!(!component["licenses"][0]["expression"].as_str().unwrap_or_default().contains('/'));
        }

        let texts = licenses(&all, "text of Apache-2.0").unwrap_or_else(|why| panic!("{why}"));
        let tokio = all.iter().find(|dependency| dependency.name == "tokio");
        assert!(tokio.is_some_and(|tokio| texts.contains(&format!("tokio {}: MIT", tokio.version))));
        assert!(texts.contains("text of Apache-2.0") && texts.contains("WITHOUT WARRANTY OF ANY KIND"));
    }
}
