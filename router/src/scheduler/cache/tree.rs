//! The radix tree of computed blocks.
//!
//! A node is one full block; the way from the root to it spells the tokens that its keys and values were computed
//! from, all of them, because a key depends on everything before it. Every salt has a root of its own, so a sequence
//! never finds a block of another salt.
//!
//! Whoever uses a node uses all nodes above it. So a node without users has only such nodes below it, and whoever
//! lets go of a path lets go of its end first: in the list of unused nodes everything stands after what hangs from
//! it, and the oldest is always a leaf. This is what makes eviction strictly least recently used and O(1).

use std::collections::HashMap;
use std::sync::Arc;

use super::lru::LruList;
use super::pool::BlockId;

/// Only sequences with the same salt share blocks.
pub(in crate::scheduler) type Salt = Option<Arc<str>>;

/// A place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::scheduler) struct NodeId(u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// By the tokens of the child's block.
type Children = HashMap<Box<[u32]>, NodeId>;

#[derive(Debug)]
pub(super) struct PrefixTree {
    /// The arena. It never holds more nodes than the pool has blocks.
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    roots: HashMap<Salt, Children>,
    /// Nodes without users.
    unused: LruList,
}

#[derive(Debug)]
struct Node {
    block: BlockId,
    tokens: Box<[u32]>,
    parent: Parent,
    children: Children,
    /// Running sequences whose path leads through here.
    users: usize,
    /// It can no longer be found, nor what hangs from it; it is evicted like any other.
    detached: bool,
}

/// What a node hangs from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parent {
    Root(Salt),
    Node(NodeId),
}

impl PrefixTree {
    /// An empty tree for the blocks of a pool of this size.
    pub(super) fn new(num_blocks: usize) -> Self {
        PrefixTree {
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: HashMap::new(),
            unused: LruList::new(num_blocks),
        }
    }

    /// Nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Nodes without users: all of them can be evicted.
    pub(super) fn unused(&self) -> usize {
        self.unused.len()
    }

    pub(super) fn block(&self, node: NodeId) -> BlockId {
        self.nodes[node.index()].block
    }

    pub(super) fn users(&self, node: NodeId) -> usize {
        self.nodes[node.index()].users
    }

    /// The node that continues `parent` by one block of `tokens`.
    pub(super) fn child(&self, parent: &Parent, tokens: &[u32]) -> Option<NodeId> {
        let children = match parent {
            Parent::Root(salt) => self.roots.get(salt)?,
            Parent::Node(node) => &self.nodes[node.index()].children,
        };
        children.get(tokens).copied()
    }

    /// Adds the node that continues `parent`, with one user. The parent has a user, or is a root.
    pub(super) fn insert(&mut self, parent: Parent, tokens: &[u32], block: BlockId) -> NodeId {
        let node = Node {
            block,
            tokens: tokens.into(),
            parent: parent.clone(),
            children: Children::new(),
            users: 1,
            detached: false,
        };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id.index()] = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId(self.nodes.len() as u32 - 1)
            }
        };
        let children = match parent {
            Parent::Root(salt) => self.roots.entry(salt).or_default(),
            Parent::Node(node) => &mut self.nodes[node.index()].children,
        };
        children.insert(tokens.into(), id);
        id
    }

    /// Adds a user. On the way down.
    pub(super) fn acquire(&mut self, node: NodeId) {
        let users = &mut self.nodes[node.index()].users;
        *users += 1;
        if *users == 1 {
            self.unused.remove(node);
        }
    }

    /// Takes a user off. On the way up.
    pub(super) fn release(&mut self, node: NodeId) {
        let users = &mut self.nodes[node.index()].users;
        *users -= 1;
        if *users == 0 {
            self.unused.push(node);
        }
    }

    /// Gives a node another block with the same content, and returns the old one.
    pub(super) fn exchange(&mut self, node: NodeId, block: BlockId) -> BlockId {
        std::mem::replace(&mut self.nodes[node.index()].block, block)
    }

    /// Makes a node impossible to find, and all that hang from it. Another one may take its place.
    pub(super) fn detach(&mut self, node: NodeId) {
        if !std::mem::replace(&mut self.nodes[node.index()].detached, true) {
            self.unlink(node);
        }
    }

    /// Removes the node that has been without users for longest, and returns its block.
    pub(super) fn evict(&mut self) -> Option<BlockId> {
        let id = self.unused.oldest()?;
        self.unused.remove(id);
        self.vacant.push(id);
        debug_assert!(self.nodes[id.index()].children.is_empty(), "the oldest unused node is a leaf");
        if !std::mem::take(&mut self.nodes[id.index()].detached) {
            self.unlink(id);
        }
        let node = &mut self.nodes[id.index()];
        (node.tokens, node.parent) = (Box::default(), Parent::Root(None));
        Some(node.block)
    }

    /// Takes a node out of its parent's children.
    fn unlink(&mut self, id: NodeId) {
        let Node { parent, tokens, .. } = &self.nodes[id.index()];
        let (parent, tokens) = (parent.clone(), tokens.clone());
        match parent {
            Parent::Node(parent) => {
                self.nodes[parent.index()].children.remove(&tokens);
            }
            Parent::Root(salt) => {
                if let Some(children) = self.roots.get_mut(&salt) {
                    children.remove(&tokens);
                    if children.is_empty() {
                        self.roots.remove(&salt);
                    }
                }
            }
        }
    }
}

/// The invariants, checked whole.
impl PrefixTree {
    /// Whether a node can be found from its root.
    pub(super) fn is_reachable(&self, node: NodeId) -> bool {
        let Node { parent, detached, .. } = &self.nodes[node.index()];
        !detached && if let Parent::Node(above) = parent { self.is_reachable(*above) } else { true }
    }

    /// All nodes, if links, users and the list of the unused fit together.
    pub(super) fn check_integrity(&self) -> Result<Vec<NodeId>, String> {
        let all = (0..self.nodes.len() as u32).map(NodeId);
        let mut reached: Vec<NodeId> = all.filter(|node| self.nodes[node.index()].detached).collect();
        let detached = reached.iter().map(|&id| (Parent::Node(id), &self.nodes[id.index()].children));
        let mut open: Vec<(Parent, &Children)> =
            self.roots.iter().map(|(salt, children)| (Parent::Root(salt.clone()), children)).collect();
        if open.iter().any(|(_, children)| children.is_empty()) {
            return Err("a root without children".into());
        }
        open.extend(detached.collect::<Vec<_>>());
        let unused: Vec<NodeId> = self.unused.iter().collect();
        let age: HashMap<NodeId, usize> = unused.iter().enumerate().map(|(age, &node)| (node, age)).collect();
        while let Some((parent, children)) = open.pop() {
            for (tokens, &id) in children {
                let node = &self.nodes[id.index()];
                if node.parent != parent || node.tokens != *tokens {
                    return Err(format!("{id:?} is not where it believes to be: {node:?}"));
                }
                if (node.users == 0) != age.contains_key(&id) {
                    return Err(format!("{id:?} is among the unused nodes: {}", age.contains_key(&id)));
                }
                if let Parent::Node(above) = parent {
                    if self.users(above) < node.users {
                        return Err(format!("{id:?} has users that its parent has not"));
                    }
                    if age.get(&above).is_some_and(|above| *above < age[&id]) {
                        return Err(format!("{id:?} would be evicted after its parent"));
                    }
                }
                reached.push(id);
                open.push((Parent::Node(id), &node.children));
            }
        }
        if reached.len() != self.len() || unused.len() != self.unused.len() || age.len() != unused.len() {
            return Err(format!("{} of {} nodes reached, {unused:?} unused", reached.len(), self.len()));
        }
        Ok(reached)
    }
}
