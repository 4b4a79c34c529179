"""Decision trees as plain arrays: what a saved committee of trees is made of, without scikit-learn or pickle."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[Any]


class StoredTree:
    """A decision tree as arrays.

    Attributes:
        left: (nodes,) the child taken where the feature is at most the threshold; −1 at a leaf.
        right: (nodes,) the other child.
        feature: (nodes,) the feature looked at.
        threshold: (nodes,) what it is compared with.
        missing_left: (nodes,) whether a missing value goes left.
        probs: (nodes, classes) class probabilities.
    """

    def __init__(
        self, left: Array, right: Array, feature: Array, threshold: Array, missing_left: Array, probs: Array
    ) -> None:
        self.left, self.right, self.feature, self.threshold = left, right, feature, threshold
        self.missing_left, self.probs = missing_left, probs

    def predict_proba(self, x: Any) -> Array:
        """(N, classes) probabilities of (N, features), dense or sparse."""
        x = (x.toarray() if sparse.issparse(x) else x).astype(np.float32)  # as scikit-learn's trees do
        node = np.zeros(len(x), dtype=np.int64)
        rows = np.arange(len(x))
        while len(rows):
            rows = rows[self.left[node[rows]] >= 0]
            at = node[rows]
            value = x[rows, self.feature[at]]
            goes_left = np.where(np.isnan(value), self.missing_left[at] > 0, value <= self.threshold[at])
            node[rows] = np.where(goes_left, self.left[at], self.right[at])
        return self.probs[node]


def is_tree(member: Any) -> bool:
    """Whether a fitted classifier can be stored as arrays."""
    from sklearn.tree import DecisionTreeClassifier

    return isinstance(member, StoredTree | DecisionTreeClassifier)


def stored(member: Any) -> StoredTree:
    """A tree of scikit-learn, or one stored before, as arrays."""
    if isinstance(member, StoredTree):
        return member
    tree = member.tree_
    left = np.asarray(tree.children_left, dtype=np.int64)
    missing = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(len(left))), dtype=np.uint8)
    right = np.asarray(tree.children_right, dtype=np.int64)
    return StoredTree(left, right, np.asarray(tree.feature), np.asarray(tree.threshold), missing, tree.value[:, 0, :])
