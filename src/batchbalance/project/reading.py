"""What a project can be asked without changing it: labels, questions, the model's guesses, exports, its status."""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from batchbalance.arguments.checks import check_whole
from batchbalance.errors import UnknownNameError
from batchbalance.learner.labels import Event
from batchbalance.project import sheets
from batchbalance.project.agreement import Agreement, agreements
from batchbalance.project.answers import check_name, class_number
from batchbalance.project.batch import Batch, shown
from batchbalance.project.exporting import COLUMNS, MORE_COLUMNS, Exported, exported
from batchbalance.project.finding import Found, nearest
from batchbalance.project.gathering import Gathering
from batchbalance.project.insight import Insight, insights
from batchbalance.project.items import vectors_of
from batchbalance.project.learning import Guess, guesses_of
from batchbalance.project.model import class_probs
from batchbalance.project.opened import OpenProject
from batchbalance.project.pages import project_fragment
from batchbalance.project.planning import free_rows
from batchbalance.project.settings import NAMES, Data
from batchbalance.project.state import ItemView, Who
from batchbalance.project.status import Shown, Status, SuspectLabel, status_of


class ReadableProject(OpenProject):
    """A project and all that it can tell."""

    def __len__(self) -> int:
        return self._store.num_items

    def __repr__(self) -> str:
        labels = self.labels
        return f"Project({str(self.folder)!r}: {len(self):,} {NAMES[self.settings.data.kind]}, {len(labels):,} labels)"

    def _repr_html_(self) -> str:
        rows = [(name, ", ".join(value) if isinstance(value, list) else str(value)) for name, value in self._facts()]
        return project_fragment(self.folder.resolve().name, rows)

    def _facts(self) -> list[tuple[str, Any]]:
        """What a notebook shows."""
        settings = self.settings
        return [
            ("items", f"{len(self):,} {NAMES[settings.data.kind]} from {settings.data.path}"),
            ("classes", self.classes),
            ("labels", f"{len(self.labels):,}"),
            ("open questions", f"{len(self.open_questions()):,}"),
            ("model", settings.model.get("kind", "")),
            ("strategy", settings.strategy.get("name", "")),
        ]

    @property
    def classes(self) -> list[str]:
        """The classes that items can be labelled with."""
        return list(self._now().classes)

    @property
    def labels(self) -> dict[str, str]:
        """The label of each id that has one: the majority of the latest answers. Ties have none."""
        with self._lock:
            state = self._now()
            found = state.labels()
            names = self._store.ids(list(found))
            return {name: state.classes[label] for name, label in zip(names, found.values(), strict=True)}

    def class_counts(self) -> dict[str, int]:
        """How many items have each label."""
        with self._lock:
            state = self._now()
            return {name: state.tallies.labels[number] for number, name in enumerate(state.classes)}

    def answer_counts(self) -> dict[str | None, int]:
        """How many labels each person gave; corrections are not counted again."""
        with self._lock:
            return {who: count for who, count in self._now().tallies.answers.items() if count}

    def num_today(self) -> int:
        """How many labels were given since midnight."""
        with self._lock:
            return self._now().tallies.num_today()

    def open_questions(self, annotator: str | None = None) -> list[str]:
        """What was asked of a person and has no answer yet, oldest first."""
        with self._lock:
            return self._store.ids(self._now().open_questions(check_name(annotator), self._rules.wanted))

    def batch(self, annotator: str | None = None) -> Batch:
        """The open questions of a person, as a batch."""
        state, who = self._snapshot(), check_name(annotator)
        return self._batch(state.open_questions(who, self._rules.wanted), state.classes, who, (), None)

    def skipped(self, annotator: str | None = None) -> list[str]:
        """What a person skipped and that still wants an answer; ``ask(again=True)`` brings it back."""
        with self._lock:
            return self._store.ids(self._now().skipped(check_name(annotator), self._rules.wanted))

    def num_skipped(self, annotator: str | None = None) -> int:
        """How many items a person skipped that still want an answer."""
        with self._lock:
            return self._now().num_skipped(check_name(annotator), self._rules.wanted)

    def num_open(self) -> int:
        """How many questions are open, of all people together."""
        with self._lock:
            return self._now().num_open(self._rules.wanted)

    def view(self, name: Any) -> ItemView:
        """All that is known of one item."""
        with self._lock:
            return self._now().items.get(self.row_of(name), ItemView())

    def views(self) -> dict[str, ItemView]:
        """All that is known of each item that anything happened to, by id, in the order of rows."""
        state = self._snapshot()
        rows = sorted(state.items)
        return {name: state.items[row] for name, row in zip(self._store.ids(rows), rows, strict=True)}

    def events(self) -> list[Event]:
        """Everything that ever happened, oldest first; `item` is a row, see `ids`."""
        with self._lock:
            return list(self._store.events())

    def num_events(self) -> int:
        """How many events there are by now."""
        with self._lock:
            return self._now().num_events

    def history(self, annotator: str | None = None, *, anyone: bool = False) -> list[Event]:
        """What a person did and did not undo, the latest first."""
        with self._lock:
            return list(self._now().undoable(check_name(annotator), anyone=anyone))

    def latest(self, annotator: str | None, skip: int, count: int) -> list[Event]:
        """The last answer, skip or flag of a person on each item, the latest first; some of them."""
        with self._lock:
            return list(islice(self._now().latest(check_name(annotator)), skip, skip + count))

    def agreements(self) -> list[Agreement]:
        """Cohen's κ of every two people who answered the same items."""
        with self._lock:
            return agreements(self._now())

    def ids(self, rows: Sequence[int] | None = None) -> list[str]:
        """The ids of some rows, or of all items."""
        return self._store.ids(rows)

    def contents(self, ids: Iterable[Any]) -> list[str | None]:
        """The text of each item, the path of its file within `root`, its row as JSON; None for a bare embedding."""
        return self._store.contents([self.row_of(name) for name in ids])

    def shown(self, ids: Iterable[Any]) -> list[Shown]:
        """Items as a person sees them."""
        rows = [self.row_of(name) for name in ids]
        pairs = zip(self._store.ids(rows), self._store.contents(rows), strict=True)
        return [shown(self.settings.data.kind, name, content, self.root) for name, content in pairs]

    def is_audit(self, ids: Iterable[Any]) -> list[bool]:
        """Which items are set aside to measure by: to be asked without a guess."""
        views = ((self.row_of(name), self.view(name)) for name in ids)
        return [bool(self._store.is_audit[row]) and not (view.is_chosen and view.answers) for row, view in views]

    def is_told(self, name: Any, label: Any, annotator: str | None = None) -> bool:
        """Whether this is a person's latest answer."""
        try:
            number = class_number(self.classes, str(label))
        except UnknownNameError:
            return False
        return self.view(name).answers.get(check_name(annotator)) == number

    def guess(self, ids: Iterable[Any]) -> list[Guess] | None:
        """What the model says about items, and how its draws vote; None before there is a model."""
        rows = [self.row_of(name) for name in ids]
        return self._learning.guesses(self._snapshot(), self._embeddings().array, rows)

    def train(self) -> bool:
        """Train the model on the labels so far, unless that was done before; False if they are too few.

        `ask`, `guess`, `status` and the like do so by themselves; this is for doing it beforehand.
        """
        return self._learning.trained(self._snapshot(), self._embeddings().array) is not None

    def status(self) -> Status:
        """How good the model is by now, what is open, and whether to stop."""
        return status_of(self._gathering().facts(self._snapshot(), self._embeddings().array, self.notes))

    def find(
        self,
        like: str | Iterable[Any] = (),
        *,
        text: str | None = None,
        n: SupportsIndex = 20,
        annotator: str | None = None,
    ) -> list[Found]:
        """Find items like some others, or like a text, by the encoder's numbers; the nearest first.

        Items that this person can be asked as new ones are looked at: not labelled, not asked, not of the audit set,
        not of the test set. ``queue`` makes questions of them.

        Args:
            like: one id, or several; near to any of them counts.
            text: in a project of texts, what to look for.
            n: how many.
            annotator: who is to be asked.
        """
        count, who = check_whole("n", n), check_name(annotator)
        rows = [self.row_of(each) for each in ([like] if isinstance(like, str | int) else like)]
        if not rows and text is None:
            raise ValueError("`like` or `text` must be given, got neither; name an item or say what to look for")
        state, vectors = self._snapshot(), self._embeddings().array
        queries = [vectors[rows]] if rows else []
        if text is not None:
            queries.append(self._maker().encoded_text(text))
        free = free_rows(state, len(self), who) & ~self._store.is_audit
        free[rows] = False
        is_table = self.settings.data.kind == "table"
        found = nearest(vectors, np.concatenate(queries), np.flatnonzero(free), count, is_table=is_table)
        names = self._store.ids([row for row, _ in found])
        return [Found(name, apart) for name, (_, apart) in zip(names, found, strict=True)]

    def check(self) -> list[str]:
        """What SQLite's integrity check finds beside the hashes, which are checked on opening; empty if all is well.

        Raises:
            FileFormatError: if the embeddings, however many, do not match their hash.
        """
        vectors_of(self.folder, self._store.num_items, whole=True)
        return self._store.log.check()

    def explain(self, ids: Iterable[Any]) -> list[Insight] | None:
        """Why items are worth a label, by the model of all labels so far; None before there is one."""
        rows, state, vectors = [self.row_of(name) for name in ids], self._snapshot(), self._embeddings().array
        model = self._learning.trained(state, vectors)
        if model is None:
            return None
        labelled = self._store.ids(model.rows.tolist())
        return insights(model, vectors, rows, self._store.ids(rows), state.classes, labelled, self.settings.seed)

    def predict(
        self, source: str | os.PathLike[str], *, ids: str | os.PathLike[str] | None = None, skip_bad: bool = False
    ) -> list[Guess]:
        """What the model says about new data like those of the project: a file or a folder.

        Raises:
            ValueError: if there is no model yet.
        """
        data = self._like_ours(source, ids, None).model_copy(update={"skip_bad": skip_bad})
        state, vectors = self._snapshot(), self._embeddings().array
        model = self._learning.trained(state, vectors)
        if model is None:
            raise ValueError("there is no model yet: labels of at least two classes are needed; tell some first")
        names, new = self._maker().encoded(data)
        if new.shape[1:] != vectors.shape[1:]:
            raise ValueError(f"new data must have {vectors.shape[1]} numbers each, got {new.shape[1]}")
        return guesses_of(model, new, names, state.classes)

    def exported(self, *, predictions: bool = False) -> list[Exported]:
        """What is known of items: of those that anything happened to, or of all with the model's predictions."""
        state = self._snapshot()
        rows = list(range(len(self))) if predictions else sorted(state.items)
        probs = None
        if predictions:
            vectors = self._embeddings().array
            model = self._learning.trained(state, vectors)
            if model is None:
                raise ValueError("there is no model yet: labels of at least two classes are needed; tell some first")
            probs = class_probs(model.posterior, vectors)
        return list(exported(state, rows, self._store.ids(rows), probs))

    def export(self, path: str | os.PathLike[str], *, predictions: bool = False) -> int:
        """Write labels to a CSV file: id, label, state, annotators, flags, comments; the number of rows.

        Args:
            path: the file.
            predictions: all items, with the columns prediction and probability too.
        """
        found = self.exported(predictions=predictions)
        columns = (*COLUMNS, *(MORE_COLUMNS if predictions else ()))
        sheets.write_sheet(path, columns, (each.cells(predictions=predictions) for each in found))
        return len(found)

    def suspects(self) -> list[SuspectLabel]:
        """Labels that are probably wrong, the most probable errors first; none before there is a model.

        Training labels are judged by models that have not seen them, audit labels by the model.
        """
        state, vectors = self._snapshot(), self._embeddings().array
        model = self._learning.trained(state, vectors)
        return [] if model is None else list(self._gathering().suspects(state, vectors, model))

    def export_suspects(self, path: str | os.PathLike[str]) -> int:
        """Write labels that are probably wrong to a CSV file, with what the model suggests; the number of rows.

        Labels that are corrected in the file can be told with it.
        """
        found = self.suspects()
        rows = ([x.item.id, x.label, x.suggested, f"{x.wrong:.4f}", "yes" if x.is_audit else "no"] for x in found)
        sheets.write_sheet(path, (*COLUMNS[:2], "suggested", "probability_wrong", "audit"), rows)
        return len(found)

    def _batch(
        self, rows: Sequence[int], classes: Sequence[str], who: Who, notes: tuple[str, ...], selection: Any
    ) -> Batch:
        names, contents = self._store.ids(rows), self._store.contents(rows)
        kind = self.settings.data.kind
        return Batch(tuple(names), tuple(contents), kind, tuple(classes), who, self.root, notes, selection)

    def _gathering(self) -> Gathering:
        return Gathering(self.folder, self._store, self.settings, self._learning, self.root)

    def _like_ours(self, source: str | os.PathLike[str], ids: Any, cost: str | None) -> Data:
        """A source of items like those of the project."""
        if not Path(source).exists():
            raise FileNotFoundError(f"no such data: {source} is neither a file nor a folder")
        changed = {
            "path": seen_from(self.folder, source),
            "ids": None if ids is None else seen_from(self.folder, ids),
            "cost": self.settings.data.cost if cost is None else cost,
        }
        return self.settings.data.model_copy(update=changed)


def seen_from(folder: Path, path: str | os.PathLike[str]) -> str:
    """A path as seen from a folder, with `/`; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:
        return Path(path).resolve().as_posix()
