//! Assignment of cores to the ranks of one host.
//!
//! Ranks that wait for one another in every layer must not share cores.

/// Returns the cores of each NUMA node that this process may use, in the order of the nodes. The
/// list is empty if the system does not say.
#[cfg(target_os = "linux")]
fn nodes() -> Vec<Vec<usize>> {
    let allowed = allowed();
    let mut nodes: Vec<(usize, Vec<usize>)> = Vec::new();
    for entry in std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let list = std::fs::read_to_string(entry.path().join("cpulist"));
        if let (Some(number), Ok(list)) = (number, list) {
            let cores: Vec<usize> = parse(&list).into_iter().filter(|core| allowed.contains(core)).collect();
            nodes.push((number, cores));
        }
    }
    nodes.sort_unstable();
    let nodes: Vec<Vec<usize>> =
        nodes.into_iter().map(|(_, cores)| cores).filter(|cores| !cores.is_empty()).collect();
    if nodes.is_empty() && !allowed.is_empty() { vec![allowed] } else { nodes }
}

/// Returns the cores that this thread may use.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
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
fn pin(cores: &[usize]) -> bool {
    // SAFETY: the set is plain bits; `cores` come from such a set, so they are inside; the call
    // only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn nodes() -> Vec<Vec<usize>> {
    Vec::new()
}

#[cfg(not(target_os = "linux"))]
fn pin(_cores: &[usize]) -> bool {
    false
}

/// Binds this process to the share of cores of `rank` among the `ranks` of this host.
///
/// Returns the number of threads to compute with: `threads` if given, else the number of cores in
/// the share. A rank that is alone on its host is not bound.
pub(super) fn pin_rank(rank: usize, ranks: usize, threads: Option<usize>) -> Option<usize> {
    if ranks <= 1 {
        return threads;
    }
    match share(&nodes(), rank, ranks, threads) {
        Some(cores) => {
            if !pin(&cores) {
                tracing::warn!("the system does not allow rank {rank} to be bound to its own cores");
            }
            Some(threads.unwrap_or(cores.len()))
        }
        // There are more ranks than cores, or the cores are unknown. The system schedules the
        // threads.
        None => threads.or(Some(1)),
    }
}

/// Returns the cores of `rank`: neighbors, so that a rank uses as few nodes as possible. `None` if
/// there are too few.
fn share(nodes: &[Vec<usize>], rank: usize, ranks: usize, threads: Option<usize>) -> Option<Vec<usize>> {
    let cores: Vec<usize> = nodes.iter().flatten().copied().collect();
    let each = threads.unwrap_or(cores.len() / ranks);
    if each == 0 || each * ranks > cores.len() {
        return None;
    }
    // If the nodes can get equal numbers of ranks, the ranks are divided among the nodes first.
    if ranks.is_multiple_of(nodes.len()) {
        let on_node = ranks / nodes.len();
        let node = &nodes[rank / on_node];
        let each = threads.unwrap_or(node.len() / on_node);
        if each > 0 && each * on_node <= node.len() {
            return Some(node[rank % on_node * each..][..each].to_vec());
        }
    }
    Some(cores[rank * each..][..each].to_vec())
}

/// Parses a list of cores as the kernel writes it, such as `0-3,8`.
#[cfg(any(target_os = "linux", test))]
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

    #[test]
    fn ranks_share_the_cores_and_stay_on_a_node() {
        let one = [vec![0, 1, 2, 3, 4]];
        let shares = |nodes: &[Vec<usize>], ranks, threads| {
            (0..ranks).map(|rank| share(nodes, rank, ranks, threads)).collect::<Vec<_>>()
        };
        assert_eq!(shares(&one, 2, None), [Some(vec![0, 1]), Some(vec![2, 3])]);
        assert_eq!(shares(&one, 2, Some(1)), [Some(vec![0]), Some(vec![1])]);
        assert_eq!(shares(&one, 2, Some(3)), [None, None]);
        assert_eq!(share(&one, 5, 6, None), None);
        assert_eq!(share(&[], 0, 2, None), None);
        let two = [vec![0, 1, 4, 5], vec![2, 3, 6, 7]];
        assert_eq!(shares(&two, 2, None), [Some(vec![0, 1, 4, 5]), Some(vec![2, 3, 6, 7])]);
        assert_eq!(shares(&two, 2, Some(3)), [Some(vec![0, 1, 4]), Some(vec![2, 3, 6])]);
        assert_eq!(shares(&two, 4, None)[3], Some(vec![6, 7]));
        assert_eq!(shares(&two, 3, None)[1], Some(vec![4, 5]));
    }

    #[test]
    fn core_lists_of_the_kernel_are_parsed() {
        assert_eq!(parse("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(parse("\n").is_empty());
    }

    /// Runs on a thread of its own, so that the binding does not affect other tests.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_bound_to_its_share() {
        std::thread::spawn(|| {
            let cores = allowed();
            if cores.len() < 2 {
                return;
            }
            assert_eq!(pin_rank(0, 1, Some(7)), Some(7));
            assert_eq!(allowed(), cores, "a rank that is alone is not bound");
            assert_eq!(pin_rank(1, 2, Some(1)), Some(1));
            assert_eq!(allowed().len(), 1);
        })
        .join()
        .unwrap();
    }
}
