//! Assignment of cores to the compute threads of a rank.
//!
//! A step takes as long as its slowest thread. So threads of different ranks, which wait for one
//! another in every layer, must not share cores; nor should two threads share a physical core.

mod cores;

/// The threads of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankThreads {
    /// The number of threads, if it is known: otherwise the backend decides.
    pub(super) count: Option<usize>,
    /// The core of each thread, where each is to stay on its own one.
    pub(super) cores: Vec<usize>,
}

/// The cores of this host, and how many of them one rank wants.
struct Host {
    /// One hardware thread of each physical core that this process may use, by NUMA node.
    physical: Vec<Vec<usize>>,
    /// All hardware threads that this process may use, by NUMA node.
    all: Vec<Vec<usize>>,
    /// Whether no quota limits the process to fewer cores.
    without_quota: bool,
}

/// The cores that a rank binds itself to.
#[derive(Debug, PartialEq, Eq)]
struct Binding {
    cores: Vec<usize>,
    /// Whether the cores belong to several NUMA nodes, so that memory is near some of them only.
    several_nodes: bool,
}

/// Binds this process to the cores of `rank` among the `ranks` of this host, and decides on its
/// threads: `threads` if given, else one for each physical core of its share.
///
/// A rank that is alone on its host is only bound if it uses all physical cores. Otherwise it would
/// compete for the first ones with other processes that count the same way.
pub(super) fn bind_rank(rank: usize, ranks: usize, threads: Option<usize>) -> RankThreads {
    let (physical, all) = (cores::physical(), cores::allowed());
    let without_quota = cores::without_quota(physical.len());
    let host = Host { physical: cores::by_node(&physical), all: cores::by_node(&all), without_quota };
    let (count, binding) = host.decide(rank, ranks, threads);
    let Some(Binding { cores, several_nodes }) = binding else {
        return RankThreads { count, cores: Vec::new() };
    };
    if !cores::bind(&cores) {
        tracing::warn!("the system does not allow rank {rank} to be bound to its own cores");
        return RankThreads { count, cores: Vec::new() };
    }
    // Within a node, the system may move threads.
    RankThreads { count, cores: if several_nodes { cores } else { Vec::new() } }
}

/// Returns the number of compute threads of all `ranks` of this host together, of which each has
/// `threads` if given.
pub fn compute_threads(ranks: usize, threads: Option<usize>) -> usize {
    let physical = cores::physical().len().max(1);
    threads.map_or(physical, |threads| threads.saturating_mul(ranks.max(1)))
}

impl Host {
    /// Returns the number of threads of a rank and the cores to bind it to.
    fn decide(&self, rank: usize, ranks: usize, threads: Option<usize>) -> (Option<usize>, Option<Binding>) {
        let physical = self.physical.iter().map(Vec::len).sum();
        if ranks <= 1 {
            let several_nodes = self.physical.len() > 1;
            let whole = || Binding { cores: self.physical.concat(), several_nodes };
            return match threads.unwrap_or(physical) {
                0 => (None, None),
                count if count == physical && self.without_quota => (Some(count), Some(whole())),
                count if threads.is_some() => (Some(count), None),
                // The backend counts the cores of the quota.
                _ => (None, None),
            };
        }
        // Whoever asks for more threads than there are physical cores gets the others too.
        let enough = threads.is_none_or(|threads| threads.saturating_mul(ranks) <= physical);
        let nodes = if enough { &self.physical } else { &self.all };
        match share(nodes, rank, ranks, threads) {
            Some(cores) => {
                let several_nodes = !nodes.iter().any(|node| cores.iter().all(|core| node.contains(core)));
                (Some(threads.unwrap_or(cores.len())), Some(Binding { cores, several_nodes }))
            }
            // There are more ranks than cores, or the cores are unknown. The system schedules the
            // threads.
            None => (threads.or(Some(1)), None),
        }
    }
}

/// Returns the cores of `rank`: neighbors, so that a rank uses as few nodes as possible. `None` if
/// there are too few.
fn share(nodes: &[Vec<usize>], rank: usize, ranks: usize, threads: Option<usize>) -> Option<Vec<usize>> {
    let cores: Vec<usize> = nodes.iter().flatten().copied().collect();
    let each = threads.unwrap_or(cores.len() / ranks);
    if each == 0 || each.saturating_mul(ranks) > cores.len() {
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
        assert_eq!(share(&one, 0, 2, Some(usize::MAX)), None);
        assert_eq!(share(&one, 5, 6, None), None);
        assert_eq!(share(&[], 0, 2, None), None);
        let two = [vec![0, 1, 4, 5], vec![2, 3, 6, 7]];
        assert_eq!(shares(&two, 2, None), [Some(vec![0, 1, 4, 5]), Some(vec![2, 3, 6, 7])]);
        assert_eq!(shares(&two, 2, Some(3)), [Some(vec![0, 1, 4]), Some(vec![2, 3, 6])]);
        assert_eq!(shares(&two, 4, None)[3], Some(vec![6, 7]));
        assert_eq!(shares(&two, 3, None)[1], Some(vec![4, 5]));
    }

    /// A host of two nodes, on each of which two physical cores have two hardware threads.
    fn host(without_quota: bool) -> Host {
        Host {
            physical: vec![vec![0, 1], vec![2, 3]],
            all: vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]],
            without_quota,
        }
    }

    #[test]
    fn a_rank_alone_takes_all_physical_cores() {
        let whole = || Some(Binding { cores: vec![0, 1, 2, 3], several_nodes: true });
        assert_eq!(host(true).decide(0, 1, None), (Some(4), whole()));
        assert_eq!(host(true).decide(0, 1, Some(4)), (Some(4), whole()));
        assert_eq!(host(true).decide(0, 1, Some(3)), (Some(3), None), "some cores are left to others");
        assert_eq!(host(true).decide(0, 1, Some(8)), (Some(8), None));
        assert_eq!(host(false).decide(0, 1, None), (None, None), "the quota counts");
        assert_eq!(host(false).decide(0, 1, Some(4)), (Some(4), None));
        let unknown = Host { physical: vec![], all: vec![], without_quota: true };
        assert_eq!(unknown.decide(0, 1, None), (None, None));
    }

    #[test]
    fn ranks_take_second_hardware_threads_only_if_they_must() {
        let binding = |cores: &[usize], several_nodes| Some(Binding { cores: cores.to_vec(), several_nodes });
        assert_eq!(host(true).decide(1, 2, None), (Some(2), binding(&[2, 3], false)));
        assert_eq!(host(true).decide(1, 2, Some(2)), (Some(2), binding(&[2, 3], false)));
        assert_eq!(host(true).decide(1, 2, Some(3)), (Some(3), binding(&[2, 3, 6], false)));
        assert_eq!(host(true).decide(0, 2, Some(5)), (Some(5), None));
        assert_eq!(host(true).decide(4, 5, None), (Some(1), None), "more ranks than cores");
        let nodes = vec![vec![0, 1, 2], vec![3, 4, 5]];
        let host = Host { physical: nodes.clone(), all: nodes, without_quota: true };
        assert_eq!(host.decide(1, 3, Some(2)), (Some(2), binding(&[2, 3], true)));
    }

    /// Runs on a thread of its own, so that the binding does not affect other tests.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_bound_to_its_share() {
        std::thread::spawn(|| {
            let cores = cores::allowed();
            if cores::physical().len() < 2 {
                return;
            }
            assert_eq!(bind_rank(0, 1, Some(cores.len() + 1)).count, Some(cores.len() + 1));
            assert_eq!(cores::allowed(), cores, "more threads than cores are not bound");
            assert_eq!(bind_rank(1, 2, Some(1)).count, Some(1));
            assert_eq!(cores::allowed().len(), 1);
        })
        .join()
        .unwrap();
    }
}
