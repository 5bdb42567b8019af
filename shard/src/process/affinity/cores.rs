//! The cores of this machine that the process may use.

use std::path::Path;

/// The folder in which Linux describes cores.
const CORES: &str = "/sys/devices/system/cpu";
/// The folder in which Linux describes NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// Returns one hardware thread of each physical core that this thread may use. The list is empty if
/// the system does not say.
pub(super) fn physical() -> Vec<usize> {
    one_per_core(&allowed(), Path::new(CORES))
}

/// Returns whether the process may use all of its cores all of the time: its control group has no
/// quota below `cores` cores.
pub(super) fn without_quota(cores: usize) -> bool {
    std::thread::available_parallelism().is_ok_and(|available| available.get() >= cores)
}

/// Returns the first of these hardware threads on each physical core. A second thread on a core
/// shares its multipliers and its caches. `root` is the folder that describes the cores. A core
/// without a description counts as one of its own.
fn one_per_core(cores: &[usize], root: &Path) -> Vec<usize> {
    let mut siblings = Vec::new();
    let mut found = Vec::new();
    for &core in cores {
        if !siblings.contains(&core) {
            found.push(core);
            let path = root.join(format!("cpu{core}/topology/thread_siblings_list"));
            siblings.extend(parse(&std::fs::read_to_string(path).unwrap_or_default()));
        }
    }
    found
}

/// Returns those of the `cores` that each NUMA node has, in the order of the nodes. Nodes without
/// any of them are left out.
pub(super) fn by_node(cores: &[usize]) -> Vec<Vec<usize>> {
    nodes(cores, Path::new(NODES))
}

fn nodes(cores: &[usize], root: &Path) -> Vec<Vec<usize>> {
    let mut nodes: Vec<(usize, Vec<usize>)> = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let list = std::fs::read_to_string(entry.path().join("cpulist"));
        if let (Some(number), Ok(list)) = (number, list) {
            nodes.push((number, parse(&list).into_iter().filter(|core| cores.contains(core)).collect()));
        }
    }
    nodes.sort_unstable();
    let nodes: Vec<Vec<usize>> =
        nodes.into_iter().map(|(_, cores)| cores).filter(|cores| !cores.is_empty()).collect();
    if nodes.is_empty() && !cores.is_empty() { vec![cores.to_vec()] } else { nodes }
}

/// Returns the cores that this thread may use.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Vec<usize> {
    // SAFETY: the set is plain bits, and the call writes no more than the size that it is given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => set,
            _ => return Vec::new(),
        }
    };
    // SAFETY: `core` is below the number of bits in the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Binds this thread, and all threads that it starts from now on, to these cores. Returns whether
/// the system allowed it.
#[cfg(target_os = "linux")]
pub(super) fn bind(cores: &[usize]) -> bool {
    // SAFETY: the set is plain bits; `cores` come from such a set, so they are inside; the call
    // only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Vec<usize> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn bind(_cores: &[usize]) -> bool {
    false
}

/// Parses a list of cores as the kernel writes it, such as `0-3,8`.
fn parse(list: &str) -> Vec<usize> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a folder of this test's own.
    fn write(test: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("millrace-{test}-{}", std::process::id()));
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        root
    }

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let siblings = ["0,4", "1,5", "2-3", "2-3", "0,4", "1,5"];
        let names: Vec<String> =
            (0..6).map(|core| format!("cpu{core}/topology/thread_siblings_list")).collect();
        let files: Vec<_> = names.iter().map(String::as_str).zip(siblings).collect();
        let root = write("topology", &files);
        assert_eq!(one_per_core(&[0, 1, 2, 3, 4, 5], &root), [0, 1, 2]);
        // Only the second thread of a core may be allowed.
        assert_eq!(one_per_core(&[3, 4, 5], &root), [3, 4, 5]);
        assert_eq!(one_per_core(&[6, 7], &root), [6, 7], "cores that are not described");
        assert!(one_per_core(&[], &root).is_empty());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn cores_are_grouped_by_node() {
        let root = write("nodes", &[("node1/cpulist", "2-3"), ("node0/cpulist", "0-1"), ("has_cpu", "0-1")]);
        assert_eq!(nodes(&[0, 1, 2, 3], &root), [vec![0, 1], vec![2, 3]]);
        assert_eq!(nodes(&[3], &root), [vec![3]], "a node of which no core is allowed");
        assert_eq!(nodes(&[7], &root), [vec![7]], "a core of no node");
        assert_eq!(nodes(&[4, 5], Path::new("/nonexistent")), [vec![4, 5]]);
        assert!(nodes(&[], &root).is_empty());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn core_lists_of_the_kernel_are_parsed() {
        assert_eq!(parse("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(parse("\n").is_empty());
    }
}
