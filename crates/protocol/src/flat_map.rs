//! A map for few entries: they lie in order in one piece of memory, which is looked through faster than a tree. To insert or
//! remove one moves those behind it.

use smallvec::SmallVec;

/// Entries in the order of their keys; the first `N` lie in the map itself.
#[derive(Clone, Debug)]
pub(crate) struct FlatMap<K, V, const N: usize>(SmallVec<[(K, V); N]>);

impl<K, V, const N: usize> FlatMap<K, V, N> {
    pub(crate) fn new() -> Self {
        Self(SmallVec::new())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Copy + Ord, V, const N: usize> FlatMap<K, V, N> {
    /// Where the entry of a key is, or would be.
    fn search(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by_key(key, |(key, _)| *key)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.search(key).is_ok()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.search(key).ok().map(|at| &self.0[at].1)
    }

    /// The entry with the lowest key that is not below this one.
    pub(crate) fn from(&self, key: &K) -> Option<(&K, &V)> {
        let (Ok(at) | Err(at)) = self.search(key);
        self.0.get(at).map(|(key, value)| (key, value))
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.search(key).ok().map(|at| &mut self.0[at].1)
    }

    /// Inserts an entry; what was there under its key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.search(&key) {
            Ok(at) => Some(core::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.search(key).ok().map(|at| self.0.remove(at).1)
    }
}

impl<K: Copy + Ord, V, const N: usize> FromIterator<(K, V)> for FlatMap<K, V, N> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        entries.into_iter().for_each(|(key, value)| {
            map.insert(key, value);
        });
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_the_map_that_a_tree_is(steps in prop::collection::vec((0_u8..3, 0_u8..20, any::<u16>()), 0..100)) {
            let (mut flat, mut tree) = (FlatMap::<_, _, 4>::new(), BTreeMap::new());
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(flat.insert(key, value), tree.insert(key, value)),
                    1 => prop_assert_eq!(flat.remove(&key), tree.remove(&key)),
                    _ => prop_assert_eq!(flat.get_mut(&key), tree.get_mut(&key)),
                }
                prop_assert!(flat.iter().eq(tree.iter()) && flat.len() == tree.len());
                prop_assert_eq!(flat.contains_key(&key), tree.contains_key(&key));
            }
        }
    }
}
