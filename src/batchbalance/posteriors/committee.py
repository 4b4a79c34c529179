"""Committees as posteriors: each fitted classifier is a draw."""

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from batchbalance.arguments.sections import NumDraws, Whole
from batchbalance.errors import FileFormatError, MissingExtraError, sentence
from batchbalance.posteriors.bootstrap import as_new, bootstrapped
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.inputs import described_rows, row_batches
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.members import (
    Array,
    Ensemble,
    Member,
    Preparation,
    StoredTree,
    ensemble_of,
    gives_members,
    is_tree,
    names_of,
    stored,
)
from batchbalance.posteriors.saved import read_saved, refuse_network
from batchbalance.predictions import CHUNK_NUMBERS, Label, check_classes, check_weights


class Committee(Posterior):
    """Fitted classifiers as draws, created by ``from_sklearn`` or ``bootstrap``.

    Inputs are passed to the classifiers unchanged: arrays, DataFrames, sparse matrices, lists of texts. Tensors,
    Datasets and DataLoaders become arrays. Every member's classes are aligned to one list; a class that a member did
    not see gets probability 0. A committee has no hidden layer: ``embed`` returns the features after the transformers
    that all members share, or after those of the first member if each is a pipeline. Predictions are float32.

    Members may predict several labels of each row: `MultiOutputClassifier`, `OneVsRestClassifier`, `ClassifierChain`
    and other classifiers that scikit-learn fits on (N, L) labels of 0 and 1.

    Attributes:
        classes: the C labels, in the order of the class axis.
    """

    kind: ClassVar[str] = "committee"
    classes: list[Label]

    def __init__(
        self,
        members: Sequence[Member],
        classes: Sequence[Label],
        draw_ids: Sequence[str],
        weights: Any = None,
        preparation: Preparation | None = None,
        constant: Array | None = None,
    ) -> None:
        self._members, self._draw_ids = list(members), tuple(draw_ids)
        self.classes = list(check_classes(list(classes), len(classes)) or ())
        self.weights = check_weights(weights, len(self._members))
        self._preparation, self._constant = preparation or Preparation(), constant
        self._values = "log-probs" if constant is None else "label-probs"

    @property
    def batch_size(self) -> int:
        """The number of rows per chunk of predictions; large, because every call of an estimator has a fixed cost."""
        return max(64, CHUNK_NUMBERS // (len(self._members) * len(self.classes)))

    @classmethod
    def from_sklearn(cls, fitted: Any, classes: Any = None) -> "Committee":
        """Return a committee of a fitted forest, bagging or voting classifier, or of a list of fitted classifiers.

        Args:
            fitted: the ensemble, a pipeline that ends in one and whose transformers are kept, a search whose best
                estimator is one of these, or the list. Weights of a voting classifier become draw weights.
            classes: the list of all labels; if omitted, those of the ensemble, or the sorted union over members. For
                several labels of each row, their names in the order of the columns.
        """
        import joblib  # type: ignore[import-untyped]

        found, ids = ensemble_of(fitted), []
        for draw, member in enumerate(found.members):
            try:
                digest = str(joblib.hash(member))[:10]  # changes with the fitted state
            except Exception:  # hashing fails in many ways
                digest = f"{id(member):x}"
            ids.append(f"{digest}-{draw}")
        return cls._of(found, classes, ids)

    @classmethod
    def _of(cls, found: Ensemble, classes: Any, draw_ids: Sequence[str]) -> "Committee":
        """Return a committee over `classes`, which must include every label seen; over these labels if None."""
        given = classes.tolist() if hasattr(classes, "tolist") else classes
        listed = found.labels if given is None else list(check_classes(given, len(given)) or ())
        if found.constant is not None:
            names = listed if given is None else list(check_classes(given, len(found.labels)) or ())
            return cls(found.aligned(found.labels), names, draw_ids, None, found.preparation, found.constant)
        missing = [label for label in found.labels if label not in listed]
        if missing:
            raise ValueError(f"`classes` must hold every member's labels, got {listed} without {missing}")
        return cls(found.aligned(listed), listed, draw_ids, found.weights, found.preparation)

    @classmethod
    def bootstrap(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        size: SupportsIndex = 20,
        *,
        seed: SupportsIndex = 0,
        classes: Any = None,
        jobs: SupportsIndex | None = None,
        progress: bool = False,
    ) -> "Committee":
        """Fit any classifier on `size` resamples of the labelled rows; each fit is a member.

        A label that all rows have, or none, is not fitted: with n rows its probability is (n + 1) / (n + 2), or
        1 / (n + 2).

        Rows are drawn with replacement. A class with too few rows is filled up from its own rows, so that no class is
        lost. Every random state in the estimator is set from `seed`. Each member is fitted on one thread.

        Args:
            estimator: any object with ``fit`` and ``predict_proba``, also a pipeline; of a fitted search, its best
                estimator is used. It is not changed.
            X: n rows: an array, DataFrame, sparse matrix, or list of texts.
            y: (n,) labels, text or numbers; or (n, L) of 0 and 1 for rows that may have several labels, or none.
            size: S, the number of members.
            seed: random seed; the same seed gives the same members for any `jobs`.
            classes: the list of all labels, also of those not seen yet; the sorted labels of `y` if omitted.
            jobs: number of processes. If omitted, all cores if fitting takes several seconds, else none.
            progress: show progress.
        """
        found, name = bootstrapped(estimator, X, y, size=size, seed=seed, jobs=jobs, progress=progress)
        return cls._of(found, classes, [f"{name}-{draw}" for draw in range(len(found.members))])

    @classmethod
    def load(
        cls, directory: str | os.PathLike[str], network: Any = None, *, trusted: Sequence[str] = ()
    ) -> "Committee":
        """Read a saved committee; nothing is unpickled.

        Args:
            directory: the folder.
            network: must be None.
            trusted: for classifiers saved by skops: names of the types to trust besides those that skops trusts by
                default. The error names the missing types.
        """
        refuse_network(network, cls.kind)
        tensors, options = read_saved(directory, cls.kind)
        arrays: list[dict[str, Array]] = [{} for _ in options["draw_ids"]]
        written = tensors.pop("skops", None)
        for name, value in tensors.items():
            draw, _, key = name.partition("/")
            arrays[int(draw)][key] = value.numpy()
        columns = [each.pop("columns") for each in arrays]
        features = [each.pop("features", None) for each in arrays]
        transformers: list[Any] = []
        if written is None:
            classifiers: list[Any] = [StoredTree(**tree) for tree in arrays]
        else:
            classifiers, transformers = _from_skops(written.numpy().tobytes(), trusted, directory)
        constant = None if options["constant"] is None else np.array(options["constant"])
        several = constant is not None
        members = [Member(*each, several) for each in zip(classifiers, columns, features, strict=True)]
        preparation = Preparation(transformers, options["names"], options["as_array"])
        return cls(members, options["classes"], options["draw_ids"], options["weights"], preparation, constant)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        classifiers, before = [member.classifier for member in self._members], self._preparation
        arrays: dict[str, Array] = {}
        for draw, member in enumerate(self._members):
            arrays[f"{draw}/columns"] = member.columns
            if member.features is not None:
                arrays[f"{draw}/features"] = np.asarray(member.features)
        if before.transformers or not all(map(is_tree, classifiers)):
            arrays["skops"] = np.frombuffer(_as_skops(classifiers, before.transformers), dtype=np.uint8)
        else:
            for draw, tree in enumerate(classifiers):
                arrays |= {f"{draw}/{name}": array for name, array in vars(stored(tree)).items()}
            before = Preparation(names=before.names or names_of(classifiers[0]), as_array=True)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        return tensors, {
            "classes": self.classes,
            "draw_ids": list(self._draw_ids),
            "weights": None if self.weights is None else self.weights.tolist(),
            "names": before.names,
            "as_array": before.as_array,
            "constant": None if self._constant is None else self._constant.tolist(),
        }

    def _batches(self, inputs: Any, batch_size: int | None) -> Iterator[Any]:
        for batch in row_batches(inputs, self.batch_size if batch_size is None else batch_size):
            yield batch.cpu().numpy() if isinstance(batch, Tensor) else batch

    def _pass_flops(self, batch: Any) -> float:  # noqa: ARG002
        return 0.0  # estimators do not run in torch

    def _logits(self, batch: Any) -> Tensor:
        probs: Array | None = None
        try:
            x = self._preparation(batch)
            with warnings.catch_warnings():
                # members fitted on a DataFrame warn about plain arrays
                warnings.filterwarnings("ignore", message="X does not have valid feature names")
                for draw, member in enumerate(self._members):
                    own = member.probs(x)
                    if probs is None:
                        probs = np.zeros((len(own), len(self._members), len(self.classes)), dtype=np.float32)
                        probs += 0 if self._constant is None else self._constant
                    probs[:, draw, member.columns] = own
        except (AttributeError, KeyError, TypeError) as error:  # texts instead of numbers, or a missing column
            raise ValueError(
                f"`inputs` must be like those of the fit, got {described_rows(batch)}: {sentence(error)}"
            ) from error
        found = torch.from_numpy(probs)
        return found.log_() if self._constant is None else found

    def _hidden(self, batch: Any) -> Tensor:
        x = batch
        for transformer in self._preparation.transformers:
            x = transformer.transform(x)
        first = self._members[0]
        if hasattr(first.classifier, "steps") and len(first.classifier.steps) > 1 and first.features is None:
            x = first.classifier[:-1].transform(x)
        x = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
        if x.dtype.kind not in "fiub":
            raise ValueError(
                f"a committee embeds numbers, got {described_rows(batch)}; choose a strategy without embeddings, or "
                "pass embeddings from `batchbalance embed` to `select`"
            )
        return torch.from_numpy(np.ascontiguousarray(x)).flatten(1)


@dataclass(frozen=True)
class EstimatorFit:
    """A `Fit` that fits an estimator on all labels.

    A forest or bagging classifier, also at the end of a pipeline, provides its members; others are bootstrapped.

    Attributes:
        estimator: the classifier.
        classes: the C labels.
        size: number of members of a bootstrap.
        jobs: as in ``Committee.bootstrap``.
    """

    estimator: Any
    classes: Sequence[Label]
    size: int = 20
    jobs: int | None = None

    def __call__(self, inputs: Any, labels: Tensor, seed: int) -> Committee | None:
        """Fit on rows and the numbers of their classes; return None while all labels are of one class."""
        several = labels.ndim == 2
        if len(labels.unique(dim=0)) < 2:
            return None
        y = labels.numpy() if several else np.array(self.classes)[labels.numpy()]
        x = inputs.numpy() if isinstance(inputs, Tensor) else inputs
        last = self.estimator.steps[-1][1] if hasattr(self.estimator, "steps") else self.estimator
        if gives_members(last) and not several:
            fitted = as_new(self.estimator, seed % 2**32).fit(x, y)
            return Committee.from_sklearn(fitted, self.classes)
        return Committee.bootstrap(self.estimator, x, y, self.size, seed=seed, classes=self.classes, jobs=self.jobs)


def _as_skops(classifiers: list[Any], transformers: Sequence[Any]) -> bytes:
    what = " and ".join(sorted({type(each).__name__ for each in [*transformers, *classifiers]}))
    try:
        from skops.io import dumps, get_untrusted_types, loads
    except ImportError:
        raise MissingExtraError(f"saving a committee of {what} without pickle", "skops") from None
    try:
        written: bytes = dumps({"classifiers": classifiers, "transformers": list(transformers)})
        loads(written, trusted=get_untrusted_types(data=written))  # skops cannot always read its own output
    except Exception as error:  # skops and the saved types raise many types of errors
        raise ValueError(
            f"a committee of {what} must be of types that skops can write and read, got: {sentence(error)}; keep the "
            "fitted classifiers by other means and call `from_sklearn` again, or save their predictions"
        ) from error
    return written


def _from_skops(
    written: bytes, trusted: Sequence[str], directory: str | os.PathLike[str]
) -> tuple[list[Any], list[Any]]:
    try:
        from skops.io import get_untrusted_types, loads
    except ImportError:
        raise MissingExtraError(f"loading the committee in {directory}", "skops") from None
    try:
        unknown = [name for name in get_untrusted_types(data=written) if name not in trusted]
        if unknown:
            raise FileFormatError(
                f"the committee in {directory} holds types that must be trusted first; if you know its origin, call "
                f"Committee.load({str(directory)!r}, trusted={unknown})"
            )
        found = loads(written, trusted=list(trusted))
    except FileFormatError:
        raise
    except Exception as error:  # an undefined type, or a file that skops did not write
        raise FileFormatError(
            f"cannot read the committee in {directory}: {sentence(error)}; define or import its types first"
        ) from error
    return found["classifiers"], found["transformers"]


class CommitteeOptions(PosteriorOptions):
    """Trees of a scikit-learn forest; inputs are flattened.

    Attributes:
        classifier: the kind of forest.
        size: S, the number of trees.
        max_depth: maximum depth of a tree; no limit if omitted.
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
        return self.fitted(Committee.from_sklearn(forest, classes=range(context.num_classes)), context)
