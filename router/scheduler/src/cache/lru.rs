//! A linked list of nodes in the order in which they lost their last user.
//!
//! Adding a node, removing one and finding the oldest take constant time and do not allocate: the
//! links are in an arena that is indexed like the arena of the nodes.

use super::ids::NodeId;

#[derive(Debug)]
pub(super) struct LruList {
    /// The links of each node, by its id.
    links: Vec<Links>,
    oldest: Option<NodeId>,
    newest: Option<NodeId>,
    len: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Links {
    older: Option<NodeId>,
    newer: Option<NodeId>,
}

impl LruList {
    /// An empty list for nodes with ids below `capacity`.
    pub(super) fn new(capacity: usize) -> Self {
        LruList { links: vec![Links::default(); capacity], oldest: None, newest: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<NodeId> {
        self.oldest
    }

    /// Adds a node that is not in the list; it becomes the newest.
    pub(super) fn push(&mut self, node: NodeId) {
        self.links[node.index()] = Links { older: self.newest, newer: None };
        match self.newest {
            Some(newest) => self.links[newest.index()].newer = Some(node),
            None => self.oldest = Some(node),
        }
        self.newest = Some(node);
        self.len += 1;
    }

    /// Removes a node that is in the list.
    pub(super) fn remove(&mut self, node: NodeId) {
        let Links { older, newer } = std::mem::take(&mut self.links[node.index()]);
        match older {
            Some(older) => self.links[older.index()].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.links[newer.index()].older = older,
            None => self.newest = older,
        }
        self.len -= 1;
    }

    /// Number of bytes that the list has allocated.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.links.capacity() * size_of::<Links>()
    }

    /// Iterates over the nodes, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.oldest, |node| self.links[node.index()].newer)
    }
}
