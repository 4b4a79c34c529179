"""The members of scikit-learn ensembles: fitted classifiers, their labels, and the steps before them.

Decision trees can also be stored as plain arrays, without scikit-learn or pickle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Member:
    """A fitted classifier.

    Attributes:
        classifier: the classifier.
        columns: (K,) the positions of its classes among those of the committee.
        features: the features that it reads; None for all.
        several: whether it predicts several labels of each row; K are then labels.
    """

    classifier: Any
    columns: Array
    features: Array | None = None
    several: bool = False

    def probs(self, x: Any) -> Array:
        """Return (n, K) class probabilities; without `predict_proba`, a vote counts as probability 1."""
        seen = x if self.features is None else x[:, self.features]
        if self.several:
            return label_probs(self.classifier, seen)[:, -len(self.columns) :]
        if not hasattr(self.classifier, "predict_proba"):
            labels = np.asarray(self.classifier.predict(seen))
            votes: Array = (labels[:, None] == classes_of(self.classifier)[None, :]).astype(np.float32)
            return votes
        probs = np.asarray(self.classifier.predict_proba(seen))
        if probs.ndim != 2 or probs.shape[1] != len(self.columns):
            raise ValueError(
                f"`predict_proba` of a {type(self.classifier).__name__} must be (n, {len(self.columns)}), one column "
                f"for each class that it was fitted on, got shape {probs.shape}"
            )
        return probs


@dataclass(frozen=True, eq=False)
class Preparation:
    """The preparation of inputs for all members.

    Attributes:
        transformers: fitted transformers, such as the steps of a pipeline before its last.
        names: the columns that a DataFrame must have; None if members check them.
        as_array: whether members were fitted on arrays, as in forests and bagging.
    """

    transformers: Sequence[Any] = ()
    names: list[str] | None = None
    as_array: bool = False

    def __call__(self, x: Any) -> Any:
        """Return the inputs prepared for the members."""
        if self.names is not None and hasattr(x, "columns") and list(x.columns) != self.names:
            raise ValueError(f"`inputs` must have the columns of the fit, {self.names}, got {list(x.columns)}")
        for transformer in self.transformers:
            x = transformer.transform(x)
        if not self.as_array:
            return x
        if sparse.issparse(x):
            return x.tocsr()
        array = np.asarray(x.to_numpy(na_value=np.nan) if hasattr(x, "iloc") else x)
        if array.ndim != 2:
            raise ValueError(f"`inputs` must be (N, features) for a committee, got shape {array.shape}")
        return array


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Fitted classifiers from any source.

    Attributes:
        members: the classifiers.
        own_labels: the labels of each member's columns.
        labels: the labels of all members together, sorted.
        features: the columns that each member reads, or None for all; None if every member reads all.
        weights: weights of the members; None for equal weights.
        preparation: the steps before all members.
        constant: (L,) the probabilities of labels that members do not predict, if rows may have several labels, which
            are then numbered; else None.
    """

    members: list[Any]
    own_labels: list[Array]
    labels: list[Any]
    features: list[Array | None] | None = None
    weights: list[float] | None = None
    preparation: Preparation = Preparation()
    constant: Array | None = None

    def aligned(self, classes: list[Any]) -> list[Member]:
        """Return the members, with their columns among those of `classes`."""
        columns = [np.array([classes.index(label) for label in own.tolist()]) for own in self.own_labels]
        features = self.features or [None] * len(columns)
        several = self.constant is not None
        return [Member(*each, several) for each in zip(self.members, columns, features, strict=True)]


def num_labels_of(fitted: Any) -> int | None:
    """Return the number of labels if a fitted classifier predicts several of each row; else None."""
    last = fitted.steps[-1][1] if hasattr(fitted, "steps") else fitted
    classes: Any = getattr(last, "classes_", None)
    return len(classes) if isinstance(classes, list) or getattr(last, "multilabel_", False) is True else None


def label_probs(classifier: Any, x: Any) -> Array:
    """Return the probability of each label, (n, L), from any form that scikit-learn uses; 0 for one never seen."""
    found = classifier.predict_proba(x)
    if not isinstance(found, list):  # of OneVsRestClassifier and ClassifierChain
        return np.asarray(found)
    pairs = zip(found, classifier.classes_, strict=True)
    return np.stack([p[:, list(own).index(1)] if 1 in own else np.zeros(len(p)) for p, own in pairs], axis=1)


def classes_of(member: Any) -> Array:
    """Return the classes of a fitted classifier."""
    if not hasattr(member, "classes_") or not hasattr(member, "predict"):
        raise ValueError(f"members must be fitted classifiers, got {type(member).__name__} without `classes_`")
    return np.asarray(member.classes_)


def names_of(fitted: Any) -> list[str] | None:
    """Return the columns of the DataFrame that an estimator was fitted on; None if it was not a DataFrame."""
    names = getattr(fitted, "feature_names_in_", None)
    return None if names is None else list(names)


def ensemble_of(fitted: Any) -> Ensemble:
    """Return the members of a fitted forest, bagging or voting classifier, or of a list of classifiers."""
    from sklearn.ensemble import VotingClassifier
    from sklearn.pipeline import Pipeline

    if isinstance(fitted, list | tuple):
        if not fitted:
            raise ValueError("a committee must have at least one member, got an empty list")
        members = [getattr(member, "best_estimator_", member) for member in fitted]
        counts = {num_labels_of(member) for member in members}
        if counts != {None}:
            if len(counts) > 1 or not all(hasattr(member, "predict_proba") for member in members):
                raise ValueError("members must all predict the same number of labels, with `predict_proba`")
            num_labels = int(counts.pop())  # type: ignore[arg-type]
            own = [np.arange(num_labels)] * len(members)
            return Ensemble(members, own, list(range(num_labels)), constant=np.zeros(num_labels))
        own = [classes_of(member) for member in members]
        kinds = {isinstance(label, str): label for labels in own for label in labels.tolist()}
        if len(kinds) > 1:
            raise ValueError(
                f"members must have labels of one type, got text ({kinds[True]!r}) and numbers ({kinds[False]!r}); fit "
                "them on the same labels"
            )
        return Ensemble(members, own, np.unique(np.concatenate(own)).tolist())
    outer, before = getattr(fitted, "best_estimator_", fitted), []
    while isinstance(outer, Pipeline) and outer.steps:
        before += [outer[:-1]] if len(outer.steps) > 1 else []
        outer = getattr(outer.steps[-1][1], "best_estimator_", outer.steps[-1][1])
    if not gives_members(outer, votes=True):
        inside = "" if outer is fitted else f" at the end of the {type(fitted).__name__}"
        raise ValueError(
            "a committee must come from a forest, bagging or voting classifier or a list of classifiers, got "
            f"{type(outer).__name__}{inside}; pass a list of several fitted ones, or create them with "
            "`Committee.bootstrap(estimator, X, y)`"
        )
    if not hasattr(outer, "estimators_"):
        raise ValueError(f"the {type(outer).__name__} must be fitted first; call `fit`")
    if isinstance(outer.classes_, list):
        raise ValueError(
            f"the trees of a forest for {len(outer.classes_)} outputs must not be members; pass a list of forests, or "
            "`Committee.bootstrap(forest, X, Y)`"
        )
    is_voting = isinstance(outer, VotingClassifier)
    names = None if is_voting or before else names_of(outer)
    preparation = Preparation(before, names, as_array=not is_voting)
    members, labels = list(outer.estimators_), np.asarray(outer.classes_)
    own = [labels[classes_of(member).astype(int)] for member in members]  # members are fitted on class numbers
    features, weights = getattr(outer, "estimators_features_", None), None
    if is_voting and outer.weights is not None:
        used = [float(w) for (_, kind), w in zip(outer.estimators, outer.weights, strict=True) if kind != "drop"]
        weights = [weight / sum(used) for weight in used]
    return Ensemble(members, own, labels.tolist(), None if features is None else list(features), weights, preparation)


def gives_members(estimator: Any, *, votes: bool = False) -> bool:
    """Return whether an estimator becomes a committee when fitted: a forest or bagging, or voting with `votes`."""
    from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier, VotingClassifier

    kinds = (BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier)
    return isinstance(estimator, (*kinds, VotingClassifier) if votes else kinds)


@dataclass(frozen=True, eq=False)
class StoredTree:
    """A decision tree as arrays.

    Attributes:
        left: (nodes,) the child taken where the feature is at most the threshold; −1 at a leaf.
        right: (nodes,) the other child.
        feature: (nodes,) the feature that is compared.
        threshold: (nodes,) the threshold that it is compared with.
        missing_left: (nodes,) whether a missing value goes left.
        probs: (nodes, classes) class probabilities.
    """

    left: Array
    right: Array
    feature: Array
    threshold: Array
    missing_left: Array
    probs: Array

    def predict_proba(self, x: Any) -> Array:
        """Return (N, classes) probabilities of (N, features), dense or sparse."""
        x = (x.toarray() if sparse.issparse(x) else x).astype(np.float32)  # like scikit-learn's trees
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
    """Return whether a fitted classifier can be stored as arrays."""
    from sklearn.tree import DecisionTreeClassifier

    single = getattr(member, "n_outputs_", 1) == 1
    return isinstance(member, StoredTree) or (isinstance(member, DecisionTreeClassifier) and single)


def stored(member: Any) -> StoredTree:
    """Return a scikit-learn tree as arrays."""
    if isinstance(member, StoredTree):
        return member
    tree = member.tree_
    left = np.asarray(tree.children_left, dtype=np.int64)
    missing = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(len(left))), dtype=np.uint8)
    right = np.asarray(tree.children_right, dtype=np.int64)
    return StoredTree(left, right, np.asarray(tree.feature), np.asarray(tree.threshold), missing, tree.value[:, 0, :])
