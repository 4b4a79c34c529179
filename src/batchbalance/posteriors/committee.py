"""Committees as posteriors: fitted scikit-learn classifiers, each a draw."""

import os
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchbalance.posteriors.contract import Posterior, read_saved
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions, with_error
from batchbalance.predictions import check_weights
from batchbalance.sections import NumDraws, Whole

Array = NDArray[Any]


class Committee(Posterior):
    """Fitted classifiers as draws. Make one with ``from_sklearn``.

    Every member's classes are aligned to one list; a class that a member never saw gets probability 0. A committee has
    no hidden layer: ``embed`` gives the features themselves. Predictions are float32. Only decision trees can be saved.

    Attributes:
        classes: the C labels, in the order of the class axis.
    """

    kind: ClassVar[str] = "committee"

    def __init__(
        self,
        members: Sequence[Any],
        columns: Sequence[Array],
        features: Sequence[Array | None],
        classes: Sequence[Any],
        draw_ids: Sequence[str],
        weights: Any = None,
    ) -> None:
        self._members, self._columns, self._features = list(members), list(columns), list(features)
        self.classes = list(classes)
        self._draw_ids = tuple(draw_ids)
        self.weights = check_weights(weights, len(self._members))

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """Names made of the fitted members."""
        return self._draw_ids

    @classmethod
    def from_sklearn(cls, fitted: Any, classes: Sequence[Any] | None = None) -> "Committee":
        """A committee of a fitted forest, bagging or voting classifier, or of a list of fitted classifiers.

        Args:
            fitted: the ensemble, or the list. Weights of a voting classifier become draw weights.
            classes: the list of all labels; the ensemble's own, or the sorted union of the members', if left out.
        """
        import joblib  # type: ignore[import-untyped]

        members, encoded, features, weights = _members_of(fitted)
        own = [_classes_of(member) for member in members]
        if encoded is not None:
            own = [encoded[codes.astype(int)] for codes in own]
        union = np.unique(np.concatenate(own)).tolist() if encoded is None else encoded.tolist()
        listed = union if classes is None else np.asarray(classes).tolist()
        missing = [label for label in union if label not in listed]
        if missing or len(set(listed)) < len(listed):
            raise ValueError(
                f"`classes` must be distinct and hold every member's labels, got {listed} without {missing}"
            )
        columns = [np.array([listed.index(label) for label in labels.tolist()]) for labels in own]
        ids = [f"{joblib.hash(member)[:10]}-{draw}" for draw, member in enumerate(members)]
        return cls(members, columns, features, listed, ids, weights)

    @classmethod
    def loaded(cls, directory: str | os.PathLike[str], network: Any) -> "Posterior":
        """Read what ``save`` wrote; there is no network to give."""
        if network is not None:
            raise ValueError(f"`network` is not used by posteriors of kind {cls.kind!r}; leave it out")
        return cls.load(directory)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Committee":
        """Read what ``save`` wrote."""
        tensors, options = read_saved(directory, cls.kind)
        arrays: list[dict[str, Array]] = [{} for _ in options["draw_ids"]]
        for name, value in tensors.items():
            draw, _, key = name.partition("/")
            arrays[int(draw)][key] = value.numpy()
        columns = [tree.pop("columns") for tree in arrays]
        features = [tree.pop("features", None) for tree in arrays]
        members = [StoredTree(**tree) for tree in arrays]
        return cls(members, columns, features, options["classes"], options["draw_ids"], options["weights"])

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays: dict[str, Array] = {}
        for draw, member in enumerate(self._members):
            for name, array in vars(_stored(member)).items():
                arrays[f"{draw}/{name}"] = array
            arrays[f"{draw}/columns"] = self._columns[draw]
            chosen = self._features[draw]
            if chosen is not None:
                arrays[f"{draw}/features"] = np.asarray(chosen)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        weights = None if self.weights is None else self.weights.tolist()
        return tensors, {"classes": self.classes, "draw_ids": list(self._draw_ids), "weights": weights}

    def _logits(self, batch: Tensor) -> Tensor:
        if batch.ndim != 2:
            raise ValueError(f"`inputs` must be (N, features) for a committee, got shape {tuple(batch.shape)}")
        x = batch.cpu().numpy()
        probs = np.zeros((len(x), len(self._members), len(self.classes)), dtype=np.float32)
        for draw, member in enumerate(self._members):
            chosen = self._features[draw]
            probs[:, draw, self._columns[draw]] = _probs(member, x if chosen is None else x[:, chosen])
        return torch.from_numpy(probs).log()

    def _hidden(self, batch: Tensor) -> Tensor:
        return batch.flatten(1)


class StoredTree:
    """A decision tree as arrays: what a saved committee is made of.

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

    def predict_proba(self, x: Array) -> Array:
        """(N, classes) probabilities of (N, features)."""
        x = x.astype(np.float32)  # as scikit-learn's trees do
        node = np.zeros(len(x), dtype=np.int64)
        rows = np.arange(len(x))
        while len(rows):
            rows = rows[self.left[node[rows]] >= 0]
            at = node[rows]
            value = x[rows, self.feature[at]]
            goes_left = np.where(np.isnan(value), self.missing_left[at] > 0, value <= self.threshold[at])
            node[rows] = np.where(goes_left, self.left[at], self.right[at])
        return self.probs[node]


def _stored(member: Any) -> StoredTree:
    if isinstance(member, StoredTree):
        return member
    from sklearn.tree import DecisionTreeClassifier

    if not isinstance(member, DecisionTreeClassifier):
        raise ValueError(
            f"only committees of decision trees can be saved without pickle, got a {type(member).__name__}; keep the "
            "fitted classifiers with your own tools and call `from_sklearn` again"
        )
    tree = member.tree_
    left = np.asarray(tree.children_left, dtype=np.int64)
    missing = np.asarray(getattr(tree, "missing_go_to_left", np.zeros(len(left))), dtype=np.uint8)
    right = np.asarray(tree.children_right, dtype=np.int64)
    return StoredTree(left, right, np.asarray(tree.feature), np.asarray(tree.threshold), missing, tree.value[:, 0, :])


def _members_of(fitted: Any) -> tuple[list[Any], Array | None, list[Array | None], Any]:
    """Members, the labels behind their encoded classes (None if not encoded), their features, their weights."""
    from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier, VotingClassifier

    if isinstance(fitted, list | tuple):
        if not fitted:
            raise ValueError("a committee must have at least one member, got an empty list")
        return list(fitted), None, [None] * len(fitted), None
    if not isinstance(fitted, BaggingClassifier | ExtraTreesClassifier | RandomForestClassifier | VotingClassifier):
        raise ValueError(
            "a committee must come from a forest, bagging or voting classifier or a list of classifiers, "
            f"got {type(fitted).__name__}{_advice(fitted)}"
        )
    if not hasattr(fitted, "estimators_"):
        raise ValueError(f"the {type(fitted).__name__} must be fitted first; call its `fit`")
    members, labels = list(fitted.estimators_), fitted.classes_
    if isinstance(labels, list):
        raise ValueError(f"a committee must predict one label, got a forest for {len(labels)} outputs")
    features: list[Array | None] = list(getattr(fitted, "estimators_features_", [None] * len(members)))
    weights = None
    if isinstance(fitted, VotingClassifier) and fitted.weights is not None:
        used = [float(w) for (_, kind), w in zip(fitted.estimators, fitted.weights, strict=True) if kind != "drop"]
        weights = [weight / sum(used) for weight in used]
    return members, np.asarray(labels), features, weights


def _advice(fitted: Any) -> str:
    """What to do with a classifier that is no committee."""
    from sklearn.pipeline import Pipeline

    if isinstance(fitted, Pipeline):  # its members alone would never see what the steps before them do
        return "; transform the inputs by pipeline[:-1], and hand over pipeline[-1] if that is one"
    return "; hand over a list of several fitted classifiers"


def _classes_of(member: Any) -> Array:
    if not hasattr(member, "classes_") or not hasattr(member, "predict"):
        raise ValueError(f"members must be fitted classifiers, got {type(member).__name__} without `classes_`")
    return np.asarray(member.classes_)


def _probs(member: Any, x: Array) -> Array:
    """A member's class probabilities; a vote counts as 1 where it has none."""
    with warnings.catch_warnings():
        # members fitted on a data frame complain about plain arrays
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        if hasattr(member, "predict_proba"):
            probs: Array = member.predict_proba(x)
            return probs
        votes: Array = (np.asarray(member.predict(x))[:, None] == _classes_of(member)[None, :]).astype(np.float32)
        return votes


class CommitteeOptions(PosteriorOptions):
    """Trees of a scikit-learn forest; inputs are flattened.

    Attributes:
        classifier: the kind of forest.
        size: S, the number of trees.
        max_depth: of a tree; None for no limit.
    """

    flat_inputs: ClassVar[bool] = True

    kind: str = "committee"
    classifier: Literal["random-forest", "extra-trees"] = "random-forest"
    size: NumDraws = 100
    max_depth: Whole | None = None

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Grow the forest; ε is the error of the mean prediction."""
        from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

        grow = {"random-forest": RandomForestClassifier, "extra-trees": ExtraTreesClassifier}[self.classifier]
        forest = grow(self.size, max_depth=self.max_depth, random_state=context.seed % 2**32, n_jobs=1)
        forest.fit(inputs.numpy(), labels.numpy())
        return with_error(Committee.from_sklearn(forest, classes=range(context.num_classes)), context.validation)
