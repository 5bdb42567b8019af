//! Cycles of a graph of modules, as its strongly connected components.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::Edge;

/// Returns the edges inside each strongly connected component of two modules or more.
pub(super) fn find(edges: &[Edge]) -> Vec<Vec<Edge>> {
    let mut onward: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        onward.entry(&edge.from).or_default().insert(&edge.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        onward.keys().map(|&from| (from, reachable(&onward, from))).collect();
    let meets = |a: &str, b: &str| {
        reached.get(a).is_some_and(|r| r.contains(b)) && reached.get(b).is_some_and(|r| r.contains(a))
    };
    let (mut cycles, mut seen) = (Vec::new(), BTreeSet::new());
    for &module in onward.keys() {
        if seen.contains(module) || !meets(module, module) {
            continue;
        }
        let members: BTreeSet<&str> = onward.keys().copied().filter(|other| meets(module, other)).collect();
        let is_inside =
            |edge: &&Edge| members.contains(edge.from.as_str()) && members.contains(edge.to.as_str());
        cycles.push(edges.iter().filter(is_inside).cloned().collect());
        seen.extend(members);
    }
    cycles
}

fn reachable<'a>(onward: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = onward.get(from).into_iter().flatten().copied().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(onward.get(module).into_iter().flatten().copied());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::{Edge, find};

    #[test]
    fn only_modules_that_reach_each_other_are_a_cycle() {
        let edge = |from: &str, to: &str| Edge { from: from.into(), to: to.into(), names: vec![] };
        let edges = [edge("a", "b"), edge("b", "c"), edge("c", "b"), edge("c", "d")];
        assert_eq!(find(&edges), [vec![edge("b", "c"), edge("c", "b")]]);
        assert!(find(&edges[..2]).is_empty());
    }
}
