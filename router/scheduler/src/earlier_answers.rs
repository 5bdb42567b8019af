//! Answers of sequences that have ended, in which the drafters of others look for what comes next.
//!
//! Agents get nearly the same answer again and again: a file that is edited once more, a form that
//! is filled in for the next customer (Oliaro et al., "SuffixDecoding", 2024). The answers of one
//! root of the prefix cache are found only by sequences with the same root, so a request with a
//! cache salt or an adapter neither reads from others nor writes for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::cache::BlockHash;

/// Number of tokens that must have stood together before, here or in a sequence itself.
pub(super) const GRAM: usize = 3;

/// A place in an answer.
#[derive(Debug, Clone)]
pub(super) struct EarlierPlace {
    answer: Arc<[u32]>,
    at: usize,
}

impl EarlierPlace {
    /// The tokens from this place to the end of the answer. There is at least one.
    pub(super) fn rest(&self) -> &[u32] {
        &self.answer[self.at..]
    }

    /// The place after the next token, unless the answer ends with it.
    pub(super) fn next(self) -> Option<EarlierPlace> {
        let next = EarlierPlace { at: self.at + 1, ..self };
        (next.at < next.answer.len()).then_some(next)
    }
}

/// The places after the last occurrence of some tokens.
type Places = HashMap<[u32; GRAM], EarlierPlace>;

/// The last answers, up to a number of tokens. They take at most about 60 bytes for each token.
#[derive(Debug, Default)]
pub(super) struct EarlierAnswers {
    /// Maximum number of tokens; 0 for none.
    most: usize,
    tokens: usize,
    /// The oldest answer first.
    answers: VecDeque<(BlockHash, Arc<[u32]>)>,
    places: HashMap<BlockHash, Places>,
    /// Number of answers, counted from the last one, that have no places yet, and the number of
    /// tokens of the first of them that have.
    unread: usize,
    read: usize,
}

impl EarlierAnswers {
    /// Keeps up to `most` tokens.
    pub(super) fn new(most: usize) -> Self {
        EarlierAnswers { most, ..EarlierAnswers::default() }
    }

    /// Adds what a sequence has generated behind its prompt. The last tokens of the prompt come
    /// along, so that the first ones of the answer can be found. Of a very long answer the last
    /// tokens are kept.
    pub(super) fn add(&mut self, root: BlockHash, tokens: &[u32], prompt_len: usize) {
        let begin = prompt_len.saturating_sub(GRAM).max(tokens.len().saturating_sub(self.most));
        if self.most == 0 || tokens.len() <= prompt_len || tokens.len() - begin <= GRAM {
            return;
        }
        let answer: Arc<[u32]> = tokens[begin..].into();
        self.tokens += answer.len();
        self.answers.push_back((root, answer));
        self.unread += 1;
        while self.tokens > self.most {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((root, answer)) = self.answers.pop_front() else { return };
        self.tokens -= answer.len();
        if self.unread > self.answers.len() {
            (self.unread, self.read) = (self.answers.len(), 0);
        }
        let Some(places) = self.places.get_mut(&root) else { return };
        for gram in answer.windows(GRAM) {
            // Later answers may have the same tokens.
            if places.get(gram).is_some_and(|place| Arc::ptr_eq(&place.answer, &answer)) {
                places.remove(gram);
            }
        }
        if places.is_empty() {
            self.places.remove(&root);
        }
    }

    /// Reads up to `most` tokens of answers that cannot be found yet, and returns their number.
    pub(super) fn read(&mut self, most: usize) -> usize {
        let mut left = most;
        while left > 0 && self.unread > 0 {
            let (root, answer) = &self.answers[self.answers.len() - self.unread];
            let places = self.places.entry(*root).or_default();
            let end = answer.len().min(self.read + left);
            // The last tokens have no token after them.
            for at in self.read.max(GRAM)..end {
                let gram = answer[..at].last_chunk::<GRAM>();
                gram.map(|gram| places.insert(*gram, EarlierPlace { answer: answer.clone(), at }));
            }
            left -= end - self.read;
            self.read = end;
            if end == answer.len() {
                (self.unread, self.read) = (self.unread - 1, 0);
            }
        }
        most - left
    }

    /// The place after the last occurrence of the last of these tokens, in an answer with this
    /// root.
    pub(super) fn find(&self, root: BlockHash, tokens: &[u32]) -> Option<EarlierPlace> {
        self.places.get(&root)?.get(tokens.last_chunk::<GRAM>()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockHashes;

    fn root(salt: Option<&str>) -> BlockHash {
        BlockHashes::new(None, salt.map(Arc::from).as_ref(), None).root()
    }

    fn rest(earlier: &EarlierAnswers, salt: Option<&str>, tokens: &[u32]) -> Option<Vec<u32>> {
        Some(earlier.find(root(salt), tokens)?.rest().to_vec())
    }

    #[test]
    fn answers_are_found_with_their_salt_alone() {
        let mut earlier = EarlierAnswers::new(100);
        earlier.add(root(None), &[9, 9, 1, 2, 3, 4, 5], 5);
        assert_eq!(rest(&earlier, None, &[1, 2, 3]), None, "it has not been read");
        assert_eq!(earlier.read(100), 5);
        assert_eq!(rest(&earlier, None, &[7, 1, 2, 3]), Some(vec![4, 5]));
        assert_eq!(rest(&earlier, None, &[2, 3, 4]), Some(vec![5]));
        assert_eq!(rest(&earlier, None, &[3, 4, 5]), None, "nothing came after them");
        assert_eq!(rest(&earlier, None, &[9, 1, 2]), None, "the prompt is not kept");
        assert_eq!(rest(&earlier, Some("a"), &[1, 2, 3]), None);
        earlier.add(root(Some("a")), &[1, 2, 3, 8], 3);
        earlier.read(100);
        assert_eq!(rest(&earlier, Some("a"), &[1, 2, 3]), Some(vec![8]));
        assert_eq!(rest(&earlier, None, &[1, 2, 3]), Some(vec![4, 5]));
        let place = earlier.find(root(None), &[1, 2, 3]).unwrap();
        assert_eq!(place.clone().next().unwrap().rest(), [5]);
        assert!(place.next().unwrap().next().is_none());
    }

    #[test]
    fn the_last_answers_are_kept() {
        let mut earlier = EarlierAnswers::new(10);
        earlier.add(root(None), &[1, 2, 3, 4, 5], 3);
        earlier.add(root(None), &[1, 2, 3, 6, 7], 3);
        earlier.read(7);
        assert_eq!(rest(&earlier, None, &[1, 2, 3]), Some(vec![4, 5]), "the second is not read to its end");
        earlier.read(7);
        assert_eq!(rest(&earlier, None, &[1, 2, 3]), Some(vec![6, 7]), "the last one");
        earlier.add(root(None), &[5, 6, 7, 8], 3);
        assert_eq!(rest(&earlier, None, &[2, 3, 4]), None, "the first is forgotten");
        assert_eq!(rest(&earlier, None, &[2, 3, 6]), Some(vec![7]));
        // An answer that is longer than all that is kept.
        earlier.add(root(None), &(0..30).collect::<Vec<u32>>(), 1);
        earlier.read(100);
        assert_eq!(rest(&earlier, None, &[25, 26, 27]), Some(vec![28, 29]));
        assert_eq!((earlier.tokens, earlier.answers.len(), earlier.places.len()), (10, 1, 1));
        // Answers that are forgotten before they are read.
        for number in 0..20 {
            earlier.add(root(Some("b")), &[1, 2, 3, number], 3);
        }
        assert_eq!((earlier.tokens, earlier.unread, earlier.places.len()), (8, 2, 0));
        assert_eq!((earlier.read(100), earlier.places.len()), (8, 1));
    }

    #[test]
    fn nothing_is_kept_without_room_or_without_an_answer() {
        let mut off = EarlierAnswers::default();
        off.add(root(None), &[1, 2, 3, 4, 5], 3);
        let mut earlier = EarlierAnswers::new(10);
        earlier.add(root(None), &[1, 2, 3, 4, 5], 5);
        earlier.add(root(None), &[1, 2], 0);
        assert_eq!((off.answers.len(), earlier.answers.len()), (0, 0));
    }
}
