"""The labels of a project: one class for each item or, with `init --multi-label`, any number of classes.

An answer is a class number; with several labels, the sorted numbers of the item's classes, () for none of them. All
that computes with answers asks ``Labelling`` for arrays: (n,) class numbers, or (n, L) of 0 and 1.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.errors import UnknownNameError
from batchbalance.learner.labels import plain
from batchbalance.system.spreadsheets import meanings

Value = int | tuple[int, ...]  # an answer

NONE = "none"  # written for an item without any of the classes
SEPARATOR = ";"


@dataclass(frozen=True)
class Labelling:
    """The classes, and how an answer names them.

    Attributes:
        classes: the names of the classes, by number.
        is_multi: whether an item may have several labels, or none.
    """

    classes: tuple[str, ...]
    is_multi: bool = False

    def read(self, label: str, where: str = "") -> Value:
        """Return the answer that a text names: a class; with several labels `a;b`, `["a", "b"]` or `none`.

        Args:
            label: the text.
            where: the line of a file that has it, for messages.
        """
        what = f"label at {where}:" if where else "label"
        for meaning in meanings(label.strip()):
            if not self.is_multi:
                name = unicodedata.normalize("NFC", meaning)
                if name in self.classes:
                    return self.classes.index(name)
            elif set(parts := listed(meaning)) <= set(self.classes):
                return tuple(sorted({self.classes.index(part) for part in parts}))
        parts = listed(label)
        if not self.is_multi and len(parts) > 1 and set(parts) <= set(self.classes):
            raise ValueError(
                f"{what} {label!r} must be one class, because this project holds one class for each item; keep one, "
                "or create a project with `init --multi-label`"
            )
        if self.is_multi and not label.strip():
            raise ValueError(f"{what} must not be empty; write {NONE} for an item without any of the classes")
        if self.is_multi and {part.strip() for part in re.split("[|,]", label)} <= set(self.classes):
            raise ValueError(f"{what} {label!r} must have {SEPARATOR!r} between its classes; replace the separator")
        unknown = next((part for part in parts if part not in self.classes), label) if self.is_multi else label
        raise UnknownNameError(what, unknown, [*self.classes, NONE] if self.is_multi else self.classes)

    def is_read(self, label: str, value: Value) -> bool:
        """Return whether a text names this answer."""
        try:
            return self.read(label) == value
        except ValueError:
            return False

    def text(self, value: Value) -> str:
        """Return an answer as text that `read` reads."""
        if isinstance(value, int):
            return self.classes[value]
        return SEPARATOR.join(self.classes[each] for each in value) or NONE

    def natural(self, value: Value) -> str | list[str]:
        """Return an answer as Python code gives it: the name of the class, or a list of names."""
        return self.classes[value] if isinstance(value, int) else [self.classes[each] for each in value]

    def array(self, values: Iterable[Value]) -> NDArray[np.int64]:
        """Return answers as (n,) class numbers, or as (n, L) of 0 and 1."""
        given = list(values)
        if not self.is_multi:
            return np.array(given, dtype=np.int64)
        found = np.zeros((len(given), len(self.classes)), dtype=np.int64)
        for row, value in enumerate(given):
            found[row, list(value)] = 1  # type: ignore[arg-type]
        return found

    def values(self, array: NDArray[Any]) -> list[Value]:
        """Return the answers in an array of `array`."""
        return [tuple(np.flatnonzero(each).tolist()) if self.is_multi else int(each) for each in array]

    def codes(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return (n,) one number for each answer in an array: its class, or the sum of 2^l over its labels l."""
        if not self.is_multi:
            return array
        return as_codes([sum(1 << each for each in np.flatnonzero(row).tolist()) for row in array])

    def of_codes(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the array of answers that have these codes."""
        if not self.is_multi:
            return codes.astype(np.int64)
        bits = [[(code >> each) & 1 for each in range(len(self.classes))] for code in codes.tolist()]
        return np.array(bits, dtype=np.int64).reshape(len(codes), len(self.classes))

    def predicted(self, probs: NDArray[Any]) -> NDArray[Any]:
        """Return what a model predicts with these probabilities (n, C): the largest, or all labels above 1/2."""
        return predicted(probs, is_multi=self.is_multi)

    def confidence(self, probs: NDArray[Any]) -> NDArray[Any]:
        """Return (n,) the probability of what is predicted; labels are taken as independent."""
        found: NDArray[Any] = np.maximum(probs, 1 - probs).prod(axis=1) if self.is_multi else probs.max(axis=1)
        return found

    def counts(self, values: Iterable[Value]) -> list[int]:
        """Return how many answers have each class."""
        found = Counter(each for value in values for each in ((value,) if isinstance(value, int) else value))
        return [found[each] for each in range(len(self.classes))]


def as_codes(codes: Sequence[int]) -> NDArray[Any]:
    """Return codes of answers as an array, whatever their size: with 63 labels or more they exceed 64 bits."""
    return np.array(codes, dtype=np.int64 if max(codes, default=0) < 2**62 else object)


def predicted(probs: NDArray[Any], *, is_multi: bool) -> NDArray[Any]:
    """Return the most probable class, (n,), or (n, L) the labels that are more likely than not."""
    return (probs > 0.5).astype(np.int64) if is_multi else probs.argmax(axis=1)


def is_same(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.bool_]:
    """Return (n,) whether two arrays of answers agree, in all labels if there are several."""
    found: NDArray[np.bool_] = (first == second).reshape(len(first), math.prod(first.shape[1:])).all(axis=1)
    return found


def listed(text: str) -> list[str]:
    """Return the names in a text: a JSON list, or separated by `;`; no names for `none` and `[]`."""
    given: Any = text.split(SEPARATOR)
    if text.lstrip().startswith("["):
        try:
            given = json.loads(text)
        except ValueError:
            return [text]
        if not isinstance(given, list) or not all(isinstance(each, str | int) for each in given):
            return [text]
    elif text.strip().lower() == NONE:
        given = []
    names = [unicodedata.normalize("NFC", str(each)).strip() for each in given]
    found = [name for name in names if name]
    return found if found or not given else [text]


def as_text(label: Any) -> str:
    """Return a label given in Python, or several in a list, as text."""
    several = isinstance(label, list | tuple | set | frozenset | np.ndarray)
    return json.dumps([str(plain(each)) for each in label], ensure_ascii=False) if several else str(plain(label))


def majority(values: Sequence[Value]) -> Value | None:
    """Return the answer of most people, label by label if there are several; None without answers or for a tie."""
    if values and isinstance(values[0], tuple):
        counts = Counter(each for value in values for each in value)  # type: ignore[union-attr]
        if any(2 * count == len(values) for count in counts.values()):
            return None
        return tuple(sorted(each for each, count in counts.items() if 2 * count > len(values)))
    ranked = Counter(values).most_common(2)
    return None if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


def check_names(names: Sequence[str]) -> None:
    """Refuse names of classes that could not be told apart in a cell with several labels."""
    for name in names:
        if SEPARATOR in name or name.lower() == NONE or name.startswith("["):
            raise ValueError(
                f"with several labels, a class must not contain {SEPARATOR!r}, begin with '[' or be {NONE!r}, which "
                f"stands for no class at all; got {name!r}; choose another name"
            )
