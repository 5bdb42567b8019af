//! The host memory that is available to this process.

use std::fs;
use std::path::Path;

/// Returns the bytes of memory that are available to this process: the available memory of the
/// system, or the remaining memory of the process's control groups, whichever is less. Returns
/// `None` if the system does not say.
pub(crate) fn free_host_bytes() -> Option<usize> {
    let available = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(headrooms(&groups, Path::new("/sys/fs/cgroup")).into_iter().fold(available, usize::min))
}

/// Parses `MemAvailable` of `/proc/meminfo`. The result is in bytes.
fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Returns the remaining memory of each control group with a limit: of the groups in
/// `/proc/self/cgroup` and their parents, below the mount point `root`.
fn headrooms(groups: &str, root: &Path) -> Vec<usize> {
    let mut headrooms = Vec::new();
    for line in groups.lines() {
        // A line is hierarchy-ID:controllers:path. Version 2 has the ID 0 and no controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, files) = if id == "0" && controllers.is_empty() {
            (root.to_path_buf(), &V2)
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), &V1)
        } else {
            continue;
        };
        let group = Path::new(path.trim_start_matches('/'));
        headrooms.extend(group.ancestors().filter_map(|group| files.headroom(&mount.join(group))));
    }
    headrooms
}

/// The names of the files of a version of control groups.
struct CgroupFiles {
    /// The limit beyond which processes are killed, and the one beyond which they are slowed down
    /// so much that they might as well be.
    limits: &'static [&'static str],
    usage: &'static str,
    /// The lines of `memory.stat` with the numbers of bytes that the kernel drops when memory is
    /// needed: the pages of files, which count as used because they were read or written, and
    /// caches of the kernel. `MemAvailable` counts them as available, too.
    reclaimable: &'static [&'static str],
}

const V2: CgroupFiles = CgroupFiles {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};
const V1: CgroupFiles = CgroupFiles {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};

impl CgroupFiles {
    /// Returns the limit minus the memory that is in use and cannot be dropped. Returns `None` if
    /// there is no limit.
    fn headroom(&self, group: &Path) -> Option<usize> {
        let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<usize>().ok();
        let limit = self.limits.iter().filter_map(|file| number(file)).min()?;
        let usage = number(self.usage).unwrap_or(0);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let reclaimable = lines.filter(|(name, _)| self.reclaimable.contains(name));
        let reclaimable = reclaimable.filter_map(|(_, bytes)| bytes.parse::<usize>().ok()).sum();
        Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   23050900 kB\nCached: 9 kB\n";
        assert_eq!(available(text), Some(23_050_900 * 1024));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_limits_of_a_group_and_its_parents_are_read() {
        let root = std::env::temp_dir().join(format!("millrace-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/b/memory.high", "max\n");
        write("d/memory.max", "1000\n");
        write("d/memory.high", "800\n");
        write("d/memory.current", "900\n");
        write("d/memory.stat", "file 650\nactive_file 300\ninactive_file 200\nslab_reclaimable 50\n");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 500\ninactive_file 200\n");
        write("memory/c/memory.limit_in_bytes", "900\n");
        write("memory/c/memory.usage_in_bytes", "100\n");
        let found = |groups: &str| headrooms(groups, &root);
        assert_eq!(found("0::/a/b\n"), [500]);
        assert_eq!(found("5:cpuset,memory:/c\n4:cpu:/a\n0::/a/b\n"), [800, 500]);
        // The softer limit, and 350 bytes that cannot be dropped.
        assert_eq!(found("0::/d\n"), [450]);
        assert!(found("0::/nowhere\nnonsense\n").is_empty());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        assert!(free_host_bytes().unwrap() > 1 << 20);
    }
}
