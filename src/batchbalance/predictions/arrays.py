"""Validation of arrays of predictions: no missing numbers, and every row is a distribution."""

import math
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from batchbalance.arguments.checks import as_tensor, compute_dtype
from batchbalance.errors import DrawMismatchError

Values = Literal["probs", "logits", "log-probs", "label-probs", "label-logits"]
LABEL_VALUES = ("label-probs", "label-logits")  # (N, S, L): one number for each label instead of one for each class
Label = str | int | float | bool  # the name of a class

AXES = {"n": "points", "s": "draws", "c": "classes", "l": "labels"}
SUM_TOLERANCE = 1e-4
SUM_TOLERANCE_16_BIT = 1e-2


def as_nsc(tensor: Tensor, axes: str, *, of_labels: bool = False) -> tuple[Tensor, int | None]:
    """Return the (N, S, C) view of a tensor whose axes are in the order `axes`, and the number of labels or None.

    With an axis "l", items have several labels: (N, L, S, 2) becomes (N·L, S, 2). With `of_labels` the class axis is
    that of labels, whose numbers stand for two classes each.
    """
    wanted = ("nsl", "nl") if of_labels else ("nsc", "nc", "nlsc")
    if sorted(axes) not in [sorted(each) for each in wanted]:
        raise ValueError(f"`axes` must be a permutation of {' or '.join(map(repr, wanted))}, got {axes!r}")
    if tensor.ndim != len(axes):
        raise ValueError(
            f"predictions must have {len(axes)} axes ({axes}), got shape {tuple(tensor.shape)}; "
            "set `axes` to the order of its axes: n points, s draws, c classes, l labels"
        )
    if "s" not in axes:
        tensor, axes = tensor.unsqueeze(1), axes[0] + "s" + axes[1]
    order = "nsl" if of_labels else "nlsc" if "l" in axes else "nsc"
    tensor = tensor.permute(*(axes.index(axis) for axis in order))
    if 0 in tensor.shape:
        sizes = ", ".join(f"{size} {AXES[axis]}" for size, axis in zip(tensor.shape, order, strict=True))
        raise ValueError(f"predictions must not be empty, got {sizes}")
    if of_labels:
        return tensor, tensor.shape[2]
    if tensor.shape[-1] < 2:
        raise ValueError(
            "predictions must be of at least two classes, got one; for the probability p of one of two classes, give "
            "(1 − p, p)"
        )
    if order == "nsc":
        return tensor, None
    if tensor.shape[-1] != 2:
        raise ValueError(f"each label must have the two classes 'no' and 'yes', got {tensor.shape[-1]} classes")
    return tensor.flatten(end_dim=1), tensor.shape[1]


def over_answers(log_probs: Float[Tensor, "q S C"], num_questions: int) -> Float[Tensor, "n S A"]:
    """Return sums over the questions of each item for all C^L answers, the first question varying slowest."""
    by_question = log_probs.reshape(-1, num_questions, *log_probs.shape[1:])
    total = by_question[:, 0]
    for question in range(1, num_questions):
        total = (total.unsqueeze(-1) + by_question[:, question].unsqueeze(-2)).flatten(start_dim=-2)
    return total


def check_draw_ids(draw_ids: Any, num_draws: int) -> tuple[str, ...] | None:
    """Return S distinct names as strings, or None."""
    if draw_ids is None:
        return None
    given = draw_ids.tolist() if isinstance(draw_ids, np.ndarray | Tensor) else draw_ids
    if not isinstance(given, list | tuple | range) or not all(
        isinstance(draw_id, str | int) and not isinstance(draw_id, bool) for draw_id in given
    ):
        raise ValueError(f"`draw_ids` must be a list of {num_draws} names or whole numbers, got {draw_ids!r}")
    ids = tuple(str(draw_id) for draw_id in given)
    if len(ids) != num_draws or len(set(ids)) != num_draws:
        raise ValueError(f"`draw_ids` must be {num_draws} distinct names, got {len(ids)} with {len(set(ids))} distinct")
    return ids


def check_classes(classes: Any, num_classes: int) -> tuple[Label, ...] | None:
    """Return C distinct labels as plain strings and numbers, or None."""
    if classes is None:
        return None
    listed = classes.tolist() if isinstance(classes, np.ndarray | Tensor) else classes
    if not isinstance(listed, list | tuple | range):
        raise ValueError(f"`classes` must be a list of {num_classes} labels, got {classes!r}")
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in listed)
    for label in labels:
        if not isinstance(label, Label) or (isinstance(label, float) and not math.isfinite(label)):
            raise ValueError(f"`classes` must be labels of text or finite numbers, got {label!r}")
    if len(labels) != num_classes or len(set(labels)) != num_classes:
        raise ValueError(
            f"`classes` must be {num_classes} distinct labels, got {len(labels)} with {len(set(labels))} distinct"
        )
    return labels


def check_same_classes(own: tuple[Label, ...] | None, other: tuple[Label, ...] | None, name: str) -> None:
    """Raise DrawMismatchError if both name their classes and the names differ."""
    if own is not None and other is not None and own != other:
        a, b = next((a, b) for a, b in zip(own, other, strict=True) if a != b)
        raise DrawMismatchError(
            f"`{name}` must name the classes as the pool does, in the same order, got {b!r} where the pool has {a!r}"
        )


def check_weights(weights: Any, num_draws: int) -> Tensor | None:
    """Return S normalised weights as float64, or None."""
    if weights is None:
        return None
    w = as_tensor(weights, "`weights`").to("cpu", torch.float64, copy=True)
    if w.shape != (num_draws,):
        raise ValueError(f"`weights` must have one number for each of {num_draws} draws, got shape {tuple(w.shape)}")
    total = float(w.sum())
    if not torch.isfinite(w).all() or bool((w < 0).any()) or abs(total - 1) > SUM_TOLERANCE:
        raise ValueError(
            f"`weights` must be non-negative and sum to 1, got smallest {float(w.min()):g} and sum {total:g}; "
            "divide them by their sum"
        )
    return w / total


def check_rows(stored: Tensor, values: Values, spans: Iterable[slice]) -> float:
    """Raise unless every row of (N, S, C) is a distribution of the stated kind; warn if logits look like probabilities.

    `spans` covers the points; spans are read one at a time, so a memory-mapped array need not fit in memory.

    Returns:
        The largest deviation of the sum of a row from 1; 0 for logits.
    """
    furthest = 0.0
    of_labels = values in LABEL_VALUES
    looks_like_probs = values == "logits" and stored.shape[2] > 1
    tolerance = SUM_TOLERANCE_16_BIT if stored.dtype in (torch.float16, torch.bfloat16) else SUM_TOLERANCE
    for rows in spans:
        chunk = stored[rows].to(compute_dtype(stored.dtype))
        _reject(torch.isnan(chunk) | (chunk == torch.inf), rows, "must be finite, got NaN or +inf")
        if of_labels:
            outside = (chunk == -torch.inf) if values == "label-logits" else (chunk < 0) | (chunk > 1)
            _reject(outside, rows, f"must be {'finite' if values == 'label-logits' else 'probabilities in [0, 1]'}")
            continue
        if values != "probs":
            _reject(chunk.amax(dim=-1) == -torch.inf, rows, "must have a finite entry in every row, got only -inf")
        slack = tolerance / 100  # averaged or renormalised probabilities may leave [0, 1] by rounding
        outside = (chunk < -slack) | (chunk > 1 + slack) if values == "probs" else chunk > tolerance
        if values != "logits" and bool(outside.any()):
            _reject(outside, rows, _range_complaint(chunk, values))
        if values == "logits":
            near_one = (chunk.sum(dim=-1) - 1).abs() <= tolerance
            looks_like_probs = looks_like_probs and bool((near_one & (chunk >= 0).all(dim=-1)).all())
            continue
        sums = (chunk if values == "probs" else chunk.exp()).sum(dim=-1)
        furthest = max(furthest, float((sums - 1).abs().max()))
        off = (sums - 1).abs() > tolerance
        if bool(off.any()):
            total = float(sums[off][0])
            _reject(
                off,
                rows,
                f"must be distributions: rows sum to 1 within {tolerance:g}, got a sum of {total:g}",
            )
    if looks_like_probs:
        warnings.warn(
            "logits lie in [0, 1] and every row sums to 1: these look like probabilities; "
            "if they are, use `from_probs` or `values='probs'`",
            stacklevel=4,
        )
    return furthest


def looks_like_probs(outputs: Tensor) -> bool:
    """Return whether every row is non-negative and sums to 1."""
    sums = outputs.detach().sum(dim=-1)
    return bool((outputs.detach() >= 0).all()) and bool(((sums - 1).abs() <= SUM_TOLERANCE).all())


def _range_complaint(chunk: Tensor, values: Values) -> str:
    def hint(kind: Values) -> str:
        return f"these look like {kind}: use `from_{kind.replace('-', '_')}` or `values='{kind}'`"

    if values == "log-probs":
        like_probs = bool(((chunk >= 0) & (chunk <= 1)).all())
        found = f"must be log-probabilities, at most 0, got {float(chunk.max()):g}"
        return f"{found}; {hint('probs' if like_probs else 'logits')}"
    if bool((chunk <= 0).all()):
        return f"must be probabilities, got negative numbers only; {hint('log-probs')}"
    worst = float(chunk.max()) if bool((chunk > 1).any()) else float(chunk.min())
    return f"must be probabilities in [0, 1], got {worst:g}; {hint('logits')}"


def _reject(bad: Tensor, rows: slice, complaint: str) -> None:
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        names = ("point", "draw", "class")
        place = ", ".join(f"{name} {i}" for name, i in zip(names, [at[0] + rows.start, *at[1:]], strict=False))
        raise ValueError(f"predictions {complaint} (first at {place})")
