"""A project: items, people who label them, and a model that says which to label next; all in one folder."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex

from batchbalance.checks import check_whole
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.labels import Event, NewEvent
from batchbalance.project import items as sources
from batchbalance.project import sheets
from batchbalance.project.agreement import Agreement, agreements
from batchbalance.project.answers import Told, Undone, answer_events, as_answers, check_name, named_class
from batchbalance.project.batch import Batch
from batchbalance.project.exporting import COLUMNS, MORE_COLUMNS, Exported, exported
from batchbalance.project.items import Vectors, source_path, vectors_of
from batchbalance.project.learning import Guess, Learning, guesses_of
from batchbalance.project.making import Maker
from batchbalance.project.model import class_probs
from batchbalance.project.planning import Plan, Planner, Question, Rules, is_free, waiting
from batchbalance.project.settings import (
    Data,
    Settings,
    SourceKind,
    as_settings,
    read_settings,
    replace_classes,
    write_settings,
)
from batchbalance.project.state import ItemView, State, Who
from batchbalance.project.store import ProjectStore
from batchbalance.registry import check_paths

SOURCES: tuple[SourceKind, ...] = ("images", "texts", "table", "embeddings")


class Project:
    """A project in a folder. Make one with ``Project.create``, go on with ``Project.open``.

    Everything told is on disk when a call returns. Several processes and threads may use one project at a time.

    Attributes:
        folder: where it is.
        notes: what is worth knowing about how it was opened.
    """

    def __init__(self, folder: Path, *, allow_imports: bool, progress: bool, make: bool = False) -> None:
        self.folder = folder
        self.settings: Settings = read_settings(folder)
        if not allow_imports:
            check_paths(self.settings.paths_named(), str(folder / "project.toml"))
        self.notes: tuple[str, ...] = ()
        self._progress, self._lock = progress, threading.RLock()
        self._store = ProjectStore(folder, make=make)
        self._state = State()
        self._begin()
        settings = self.settings
        rules = Rules(settings.seed, settings.audit, settings.random_arm, settings.annotators_per_item)
        self._rules = rules
        self._planner = Planner(self._store, rules, settings.strategy)
        self._learning = Learning(folder, self._store, settings)
        self.notes += self._store.log.notes

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        classes: Iterable[Any],
        images: str | os.PathLike[str] | None = None,
        texts: str | os.PathLike[str] | None = None,
        table: str | os.PathLike[str] | None = None,
        embeddings: str | os.PathLike[str] | None = None,
        column: str | Sequence[str] | None = None,
        id: str | None = None,  # noqa: A002
        drop: Sequence[str] = (),
        cost: str | None = None,
        ids: str | os.PathLike[str] | None = None,
        skip_bad: bool = False,
        progress: bool = False,
        **settings: Any,
    ) -> "Project":
        """Make a project.

        Args:
            folder: where it is to be; made if it is not there.
            classes: the labels, at least two.
            images: a folder of images. Give one of these four.
            texts: a CSV, TSV, JSONL, Parquet or text file, or a folder of ``.txt`` files.
            table: a CSV, TSV, JSONL or Parquet file; each row is an item.
            embeddings: a ``.npy`` file (N, D); ids are taken from ``e.ids.txt`` beside it.
            column: of the texts, or those of a table to take.
            id: the column of the ids; `id` if there is one, else rows are numbered from 0. Files go by their paths.
            drop: columns of a table not to take, such as a label.
            cost: the column of what a label costs, or a CSV file of ids and costs.
            ids: a file of ids, one a line, for embeddings.
            skip_bad: leave out damaged files and empty texts.
            progress: show how far it is.
            settings: others, by their names in `project.toml`: `encoder`, `model`, `strategy`, `batch_size`,
                `audit` (0.1), `random_arm` (0.0), `annotators_per_item`, `target_accuracy`, `budget`, `seed`,
                `instructions`, `image_size`. `model` and `strategy` may be names.

        Raises:
            FileExistsError: if there is a project in the folder already.
        """
        given = {"images": images, "texts": texts, "table": table, "embeddings": embeddings}
        named = [(kind, path) for kind, path in given.items() if path is not None]
        if len(named) != 1:
            raise ValueError(
                f"one of `images`, `texts`, `table` and `embeddings` must be given, got "
                f"{', '.join(kind for kind, _ in named) or 'none'}"
            )
        kind, path = named[0]
        if not Path(path).exists():
            raise FileNotFoundError(f"no such data: {path} is neither a file nor a folder")
        target = Path(folder)
        data = {
            "kind": kind, "path": _seen_from(target, path), "column": _as_list(column), "id": id, "drop": list(drop),
            "cost": _seen_from(target, cost) if cost is not None and Path(cost).is_file() else cost,
            "ids": None if ids is None else _seen_from(target, ids), "skip_bad": skip_bad,
        }  # fmt: skip
        for key, name in (("model", "kind"), ("strategy", "name")):
            if isinstance(settings.get(key), str):
                settings[key] = {name: settings[key]}
        known = {key: value for key, value in settings.items() if value is not None}
        made = as_settings({"classes": [named_class(each) for each in classes], "data": data, **known})
        if len(set(made.classes)) < len(made.classes):
            raise ValueError(f"`classes` must be distinct, got {', '.join(made.classes)}")
        if (target / "project.toml").exists():
            raise FileExistsError(f"there is a project in {target} already; go on with it, or name another folder")
        target.mkdir(parents=True, exist_ok=True)
        write_settings(target, made)
        return cls(target, allow_imports=True, progress=progress, make=True)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, allow_imports: bool = False, progress: bool = False) -> "Project":
        """Open a project.

        Args:
            folder: where it is.
            allow_imports: import code that `project.toml` names by path ("package.module:Name").
            progress: show how far slow things are.

        Raises:
            FileNotFoundError: if there is no project.
            FileFormatError: if something in it is damaged.
        """
        return cls(Path(folder), allow_imports=allow_imports, progress=progress, make=True)

    # What is known.

    def __len__(self) -> int:
        return self._store.num_items

    def __repr__(self) -> str:
        labels = self.labels
        return f"Project({str(self.folder)!r}: {len(self):,} {self.settings.data.kind}, {len(labels):,} labels)"

    @property
    def classes(self) -> list[str]:
        """The labels."""
        return list(self._now().classes)

    @property
    def labels(self) -> dict[str, str]:
        """The label of each id that has one: the majority of the latest answers. Ties have none."""
        with self._lock:
            state = self._now()
            found = state.labels()
            names = self._store.ids(list(found))
            return {name: state.classes[label] for name, label in zip(names, found.values(), strict=True)}

    def open_questions(self, annotator: str | None = None) -> list[str]:
        """What was asked of a person and has no answer yet, oldest first."""
        with self._lock:
            return self._store.ids(self._now().open_questions(check_name(annotator), self._rules.wanted))

    def view(self, name: Any) -> ItemView:
        """All that is known of one item."""
        with self._lock:
            return self._now().items.get(self.row_of(name), ItemView())

    def events(self) -> list[Event]:
        """Everything that ever happened, oldest first; `item` is a row, see `ids`."""
        with self._lock:
            return list(self._store.events())

    def history(self, annotator: str | None = None, *, anyone: bool = False) -> list[Event]:
        """What a person did and did not undo, the latest first."""
        with self._lock:
            return list(self._now().undoable(check_name(annotator), anyone=anyone))

    def agreements(self) -> list[Agreement]:
        """Cohen's κ of every two people who answered the same items."""
        with self._lock:
            return agreements(self._now())

    def ids(self, rows: Sequence[int] | None = None) -> list[str]:
        """The ids of some rows, or of all items."""
        return self._store.ids(rows)

    def row_of(self, name: Any) -> int:
        """The row of an id. Whole numbers stand for their text."""
        for meaning in sheets.meanings(str(name)):
            row = self._store.row_of(sources.normal_id(meaning))
            if row is not None:
                return row
        raise ValueError(f"ids must be those of items in this project, got {str(name)!r}")

    def contents(self, ids: Iterable[Any]) -> list[str | None]:
        """The text of each item, the path of its file within `root`, its row as JSON; None for a bare embedding."""
        return self._store.contents([self.row_of(name) for name in ids])

    @property
    def root(self) -> Path | None:
        """The folder that files are in; None if items are no files."""
        if self.settings.data.kind != "images":
            return None
        path = source_path(self.settings.data, self.folder)
        return path if path.is_dir() else path.parent

    def is_audit(self, ids: Iterable[Any]) -> list[bool]:
        """Which items are set aside to measure by: to be asked without a guess."""
        return [bool(self._store.is_audit[self.row_of(name)]) for name in ids]

    # Questions.

    def ask(
        self,
        n: SupportsIndex | None = None,
        annotator: str | None = None,
        again: bool = False,
        *,
        memory_budget: int | str | None = None,
    ) -> Batch:
        """The items to label next: open questions of this person first, then new ones.

        Choosing takes no lock. What others were asked or told meanwhile is found out when the questions are written,
        and others are chosen instead. Without any label the choice covers the data; no untrained model is asked.

        Args:
            n: how many; the project's batch size if left out. Fewer come if no more are left.
            annotator: who is asked.
            again: bring back what this person skipped.
            memory_budget: bytes, or a text such as "2GiB", that choosing may take beside the embeddings.

        Raises:
            ValueError: if nothing is left to ask.
        """
        wanted = check_whole("n", self.settings.batch_size if n is None else n)
        who = check_name(annotator)
        selection, notes = None, list[str]()
        while True:
            state = self._snapshot()
            rows = state.open_questions(who, self._rules.wanted)[:wanted]
            if len(rows) == wanted:
                break
            plan = self._plan(state, who, wanted - len(rows), again, memory_budget)
            if not plan.questions:
                break
            selection, notes = plan.selection or selection, notes + [x for x in plan.notes if x not in notes]
            self._write(plan, who, state.num_batches)
        if not rows:
            hint = "; --again (`again=True`) brings skipped ones back" if state.skipped(who, self._rules.wanted) else ""
            raise ValueError(f"nothing is left to ask: every item is labelled, asked of others, or skipped{hint}")
        if len(rows) < wanted:
            notes.append(f"{wanted} were asked for and {len(rows)} are left")
        return self._batch(rows, state.classes, who, tuple(notes), selection)

    def batch(self, annotator: str | None = None) -> Batch:
        """The open questions of a person, as a batch."""
        state = self._snapshot()
        who = check_name(annotator)
        return self._batch(state.open_questions(who, self._rules.wanted), state.classes, who, (), None)

    def give_back(self, ids: Iterable[Any], annotator: str | None = None) -> None:
        """Take open questions back from a person, so that others can be asked."""
        self._append_each("returned", ids, annotator, None)

    # Answers.

    def tell(
        self,
        answers: Mapping[Any, Any] | str | os.PathLike[str],
        annotator: str | None = None,
        seconds: float | Mapping[Any, float] | None = None,
        *,
        id_column: str | None = None,
        label_column: str | None = None,
    ) -> Told:
        """Take in labels, all of them or, if one is not valid, none.

        Another label than the same person gave before corrects it. The same label again changes nothing.

        Args:
            answers: labels by id, or a CSV file with columns id and label, and maybe annotator and seconds; rows
                without a label are passed over. Items need not have been asked.
            annotator: who answers; where it is left out, what the file says.
            seconds: how long an answer took, or that of each id.
            id_column: of the file; `id` if left out.
            label_column: of the file; `label` if left out.

        Raises:
            ValueError: if an id is not there.
            UnknownNameError: if a label is none of the classes.
        """
        given = as_answers(answers, check_name(annotator), seconds, id_column, label_column)
        rows = [self._row_at(each.where, each.id) for each in given]
        with self._writing() as state:
            events, told = answer_events(state, rows, given)
            self._store.log.append(events)
        return told

    def skip(self, ids: Any, annotator: str | None = None) -> None:
        """Pass items over: they are not asked of this person again, until `ask(again=True)`."""
        self._append_each("skipped", _as_ids(ids), annotator, None)

    def flag(self, ids: Any, note: str = "", annotator: str | None = None) -> None:
        """Mark items that something is wrong with."""
        self._append_each("flagged", _as_ids(ids), annotator, note)

    def comment(self, ids: Any, text: str, annotator: str | None = None) -> None:
        """Write something about items."""
        if not text.strip():
            raise ValueError("`text` must say something, got an empty comment")
        self._append_each("commented", _as_ids(ids), annotator, text)

    def undo(self, annotator: str | None = None, n: SupportsIndex = 1, *, anyone: bool = False) -> list[Undone]:
        """Undo the last answers, skips, flags and comments of a person, the latest first, across restarts too.

        Args:
            annotator: whose; None for those without a name.
            n: how many.
            anyone: whosever came last.
        """
        who, count = check_name(annotator), check_whole("n", n)
        with self._writing() as state:
            last = [event for event, _ in zip(state.undoable(who, anyone=anyone), range(count), strict=False)]
            if len(last) < count:
                raise ValueError(f"`n` must be at most {len(last)}, what can be undone, got {count}")
            self._store.log.append([NewEvent("undone", each.item, each.number, who) for each in last])
            names = self._store.ids([each.item for each in last if each.item is not None])
            return [
                Undone(name, each.kind, state.classes[each.value] if isinstance(each.value, int) else each.value)
                for name, each in zip(names, last, strict=True)
            ]

    # Changes.

    def add_items(
        self, source: str | os.PathLike[str], *, ids: str | os.PathLike[str] | None = None, cost: str | None = None
    ) -> int:
        """Add items of the same kind, with the same columns; how many there were. Labels stay as they are."""
        data = self._like_ours(source, ids, cost)
        maker = self._maker()
        with self._lock:
            self._embeddings()
            count = maker.add(data)
        self.notes += tuple(maker.notes)
        return count

    def add_class(self, name: Any) -> None:
        """Add a class at the end; earlier labels stay."""
        new = named_class(name)
        with self._writing() as state:
            if new in state.classes:
                raise ValueError(f"there is a class {new!r} already")
            self._store.log.append([NewEvent("class added", value=new)])
        self._rewrite_classes()

    def rename_class(self, old: Any, new: Any) -> None:
        """Give a class another name; its labels stay with it."""
        before, after = named_class(old), named_class(new)
        with self._writing() as state:
            if before not in state.classes:
                raise UnknownNameError("class", before, state.classes)
            if after in state.classes:
                raise ValueError(f"there is a class {after!r} already")
            index = state.classes.index(before)
            self._store.log.append([NewEvent("class renamed", value={"class": index, "name": after})])
        self._rewrite_classes()

    # The model.

    def guess(self, ids: Iterable[Any]) -> list[Guess] | None:
        """What the model says about items, and how its draws vote; None before there is a model."""
        rows = [self.row_of(name) for name in ids]
        return self._learning.guesses(self._snapshot(), self._embeddings().array, rows)

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

    def close(self) -> None:
        """Let go of the database; it is also done when the object goes."""
        self._store.log.close()

    def _begin(self) -> None:
        """Write what a new project is about; notice what was edited; fetch what an interrupted start left undone."""
        settings = self.settings
        fixed = {"seed": settings.seed, "audit": settings.audit, "kind": settings.data.kind}
        with self._store.log.writing():
            if not self._store.events():
                self._store.log.append([NewEvent("begun", value={"classes": list(settings.classes), **fixed})])
        begun = self._store.events()[0].value
        for key, value in fixed.items():
            if begun.get(key) != value:
                raise FileFormatError(
                    f"{self.folder / 'project.toml'}: `{key}` must stay {begun.get(key)!r} for as long as a project "
                    f"lives, got {value!r}; put it back, or make another project"
                )
        self._notice_classes()
        if not self._store.num_items:
            maker = self._maker()
            maker.add(settings.data)
            self.notes += tuple(maker.notes)

    def _notice_classes(self) -> None:
        """Take in classes that were added to the file; refuse other changes."""
        known = self._now().classes
        wanted = list(self.settings.classes)
        if wanted == known:
            return
        if wanted[: len(known)] == known:
            added = [named_class(name) for name in wanted[len(known) :]]
            with self._store.log.writing():
                self._store.log.append([NewEvent("class added", value=name) for name in added])
            self.notes += (f"classes added by project.toml: {', '.join(wanted[len(known) :])}",)
        elif wanted in _class_lists(self._store.events()):  # a change was interrupted between log and file
            self._rewrite_classes()
        else:
            raise FileFormatError(
                f"{self.folder / 'project.toml'}: `classes` must begin with {', '.join(known)}, those of the labels "
                f"so far, got {', '.join(wanted)}; put them back, and use rename-class or add-class"
            )

    def _rewrite_classes(self) -> None:
        replace_classes(self.folder, self._now().classes)
        self.settings = read_settings(self.folder)

    def _now(self) -> State:
        """The state by now. Hold the lock while reading it."""
        with self._lock:
            self._state.update(self._store.events())
            return self._state

    def _snapshot(self) -> State:
        """The state by now, in a copy of its own."""
        state = State()
        with self._lock:
            state.update(list(self._store.events()))
        return state

    @contextmanager
    def _writing(self) -> Iterator[State]:
        """A transaction, and the state in it."""
        with self._lock:
            with self._store.log.writing():
                yield self._snapshot()
            self._now()

    def _plan(self, state: State, who: Who, count: int, again: bool, memory_budget: int | str | None) -> Plan:
        under_way = waiting(state, self._rules, who, count, again)
        if under_way:
            return Plan(tuple(under_way))
        learning, vectors = self._learning, self._embeddings().array
        return self._planner.new(
            state,
            who,
            count,
            vectors,
            lambda: learning.trained(state, vectors),
            lambda trained: learning.validation_error(state, vectors, trained),
            memory_budget=memory_budget,
            progress=self._progress,
        )

    def _write(self, plan: Plan, who: Who, batch: int) -> None:
        """Write questions that are still to be asked, now that nobody else writes."""
        with self._writing() as state:
            under_way = {question.row for question in waiting(state, self._rules, who, len(state.items), True)}
            asked = [each for each in plan.questions if each.row in under_way or is_free(state, each.row, who)]
            drawn = [each for each in plan.drawn if not self._is_drawn(state, each)]
            batch = max(batch, state.num_batches)
            self._store.log.append([NewEvent("asked", x.row, x.reason, who, batch=batch) for x in [*asked, *drawn]])

    def _is_drawn(self, state: State, question: Question) -> bool:
        view = state.items.get(question.row)
        return view is not None and question.reason in view.reasons

    def _batch(
        self, rows: Sequence[int], classes: Sequence[str], who: Who, notes: tuple[str, ...], selection: Any
    ) -> Batch:
        return Batch(
            tuple(self._store.ids(rows)),
            tuple(self._store.contents(rows)),
            self.settings.data.kind,
            tuple(classes),
            who,
            self.root,
            notes,
            selection,
        )

    def _row_at(self, where: str, name: str) -> int:
        try:
            return self.row_of(name)
        except ValueError as error:
            raise ValueError(f"{where}: {error}" if where else str(error)) from None

    def _append_each(self, kind: str, ids: Iterable[Any], annotator: str | None, value: Any) -> None:
        who = check_name(annotator)
        rows = [self.row_of(name) for name in ids]
        with self._writing():
            self._store.log.append([NewEvent(kind, row, value, who) for row in rows])

    def _maker(self) -> Maker:
        return Maker(self.folder, self._store, self.settings, progress=self._progress)

    def _embeddings(self) -> Vectors:
        """The embeddings; made anew if `project.toml` names another encoder than they were made with."""
        with self._lock:
            recorded = sources.recorded_encoder(self.folder)
            wanted = self.settings.encoder
            if self.settings.data.kind != "embeddings":
                if recorded is None or (wanted is not None and wanted != recorded["encoder"]):
                    maker = self._maker()
                    using = maker.encoder()
                    if recorded is not None:
                        self.notes += (f"the encoder was {recorded['encoder']} and is {using.name}: embedded anew",)
                    maker.embed_anew(using)
            elif wanted is not None:
                raise ValueError("bare embeddings have no encoder; leave `encoder` out of project.toml")
            return vectors_of(self.folder, self._store.num_items)

    def _like_ours(self, source: str | os.PathLike[str], ids: Any, cost: str | None) -> Data:
        """A source of items like those of the project."""
        if not Path(source).exists():
            raise FileNotFoundError(f"no such data: {source} is neither a file nor a folder")
        changed = {
            "path": _seen_from(self.folder, source),
            "ids": None if ids is None else _seen_from(self.folder, ids),
            "cost": self.settings.data.cost if cost is None else cost,
        }
        return self.settings.data.model_copy(update=changed)


def _seen_from(folder: Path, path: str | os.PathLike[str]) -> str:
    """A path as seen from a folder, with `/`; absolute if it is on another drive."""
    try:
        return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    except ValueError:
        return Path(path).resolve().as_posix()


def _as_list(column: str | Sequence[str] | None) -> list[str]:
    return [] if column is None else [column] if isinstance(column, str) else list(column)


def _as_ids(ids: Any) -> list[Any]:
    """One id, or some."""
    return [ids] if isinstance(ids, str | int) else list(ids)


def _class_lists(events: Sequence[Event]) -> list[list[str]]:
    """All lists of classes that there were."""
    state, found = State(), []
    for end, event in enumerate(events, start=1):
        if event.kind in ("begun", "class added", "class renamed"):
            state.update(events[:end])
            found.append(list(state.classes))
    return found
