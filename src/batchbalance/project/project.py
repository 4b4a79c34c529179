"""A project: items, people who label them, and a model that chooses which to label next; all in one folder."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.registry import check_paths
from batchbalance.learner.labels import Event, NewEvent
from batchbalance.project import answers as given
from batchbalance.project import export, opening
from batchbalance.project.accepting import Accepted
from batchbalance.project.answers import Told, Undone, as_ids, check_name
from batchbalance.project.batch import Batch
from batchbalance.project.embeddings import Embeddings, read_vectors
from batchbalance.project.facts import FactCollector, SuspectLabel
from batchbalance.project.insight import Found, Insight, insights
from batchbalance.project.label_errors import Agreement, agreements
from batchbalance.project.labelling import Labelling
from batchbalance.project.learning import Guess, ProjectModel, guesses_of
from batchbalance.project.machines import MachineLabels
from batchbalance.project.pages import project_fragment
from batchbalance.project.planning import Questions, strategy_table
from batchbalance.project.settings import FILE, NAMES, ProjectSettings, read_settings
from batchbalance.project.state import ItemView
from batchbalance.project.status import Status, status_of
from batchbalance.project.store import ProjectStore, ShownItem


class Project(MachineLabels):
    """A project in a folder. Create one with ``Project.create``; continue with ``Project.open``.

    All changes are on disk when a call returns. Several processes and threads may use a project at the same time.

    Attributes:
        folder: the project's folder.
        settings: the settings in `project.toml`.
        notes: remarks on how it was opened and its items were embedded.
        root: the folder that files are in; None if items are not files.
        store: its items and events, and the state that follows from them.
        embeddings: the embeddings of its items.
        model: its model, trained on demand.
        questions: chooses what to ask.
    """

    def __init__(self, folder: Path, *, allow_imports: bool, progress: bool) -> None:
        self.folder = folder
        self.settings: ProjectSettings = read_settings(folder)
        if not allow_imports:
            check_paths(self.settings.paths_named(), str(folder / FILE))
        opening.check_parts(self.settings)
        self.notes: list[str] = []
        self.store = ProjectStore(folder)
        try:
            opening.check_log(folder, self.store, self.settings)
            self.settings, self.notes = opening.check_classes(folder, self.store, self.settings)
            self.embeddings = Embeddings(folder, self.store, self.settings, self.notes, progress=progress)
            if not self.store.num_items:  # a new project, or one whose creation was interrupted
                self.embeddings.add(self.settings.data)
        except BaseException:
            self.close()
            raise
        self.root: Path | None = self.embeddings.root
        self.model = ProjectModel(folder, self.store, self.settings, show=progress)
        self.questions = Questions(self.settings, self.store, self.embeddings, self.model, progress=progress)
        self.notes += self.store.log.notes

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
        ids: str | os.PathLike[str] | None = None,
        test: str | os.PathLike[str] | None = None,
        seek: str | Iterable[Any] | None = None,
        seek_share: float | None = None,
        skip_bad: bool = False,
        progress: bool = False,
        **settings: Any,
    ) -> "Project":
        """Create a project.

        Args:
            folder: where to create it; the folder is created if necessary.
            classes: the labels, at least two. With ``multi_label=True`` an item may have several of them, or none.
            images: a folder of images. Give exactly one of this and the next three.
            texts: a CSV, TSV, JSONL, Parquet or text file, or a folder of ``.txt`` files.
            table: a CSV, TSV, JSONL or Parquet file; each row is an item.
            embeddings: a ``.npy`` file (N, D); ids are taken from ``e.ids.txt`` beside it.
            column: the column of the texts, or those of a table to use.
            id: the column of the ids; `id` if there is one, else rows are numbered from 0. Files use their paths.
            drop: columns of a table to omit, such as a label.
            ids: for embeddings, a file of ids, one per line.
            test: a CSV file of ids and labels to measure by. Its items are never asked and never trained on.
            seek: rare classes to look for: a name or several. The strategy is then `seek`.
            seek_share: the share of the strategy's questions that look for them; 0.5 if omitted.
            skip_bad: omit damaged files and empty texts.
            progress: show progress.
            settings: other settings, by their names in `project.toml`: `encoder`, `model`, `strategy`, `batch_size`,
                `audit` (0.1), `random_arm` (0.0), `annotators_per_item`, `target_accuracy`, `target_f1`, `budget`,
                `seed`, `instructions`, `image_size`, `multi_label`. `model` and `strategy` may be names.

        Raises:
            FileExistsError: if the folder already holds a project.
        """
        target = Path(folder)
        sources = {"images": images, "texts": texts, "table": table, "embeddings": embeddings}
        columns = [] if column is None else [column] if isinstance(column, str) else list(column)
        data = {"column": columns, "id": id, "drop": list(drop), "ids": ids, "skip_bad": skip_bad}
        settings["strategy"] = strategy_table(settings.get("strategy"), seek, seek_share)
        checked = opening.new_settings(target, sources, classes, data, settings)
        if test is not None:
            named = Labelling(checked.classes, checked.multi_label)
            given.as_answers(test, labelling=named)  # a mistake is found before the work begins
        with opening.new_folder(target, checked) as on_failure:
            project = cls(target, allow_imports=True, progress=progress)
            on_failure.callback(project.close)
            if test is not None:
                project.set_test(test)
        return project

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, allow_imports: bool = False, progress: bool = False) -> "Project":
        """Open a project.

        Args:
            folder: the project's folder.
            allow_imports: import code that `project.toml` names by path ("package.module:Name").
            progress: show the progress of slow steps.

        Raises:
            FileNotFoundError: if there is no project.
            FileFormatError: if something in it is damaged.
        """
        return cls(Path(folder), allow_imports=allow_imports, progress=progress)

    def close(self) -> None:
        """Close the database; this also happens when the object is deleted."""
        self.store.log.close()

    def __len__(self) -> int:
        return self.store.num_items

    def __repr__(self) -> str:
        kind = NAMES[self.settings.data.kind]
        return f"Project({str(self.folder)!r}: {len(self):,} {kind}, {len(self.labels):,} labels)"

    def _repr_html_(self) -> str:
        name, questions = self.folder.resolve().name, self.open_questions()
        return project_fragment(name, self.settings, len(self), self.labels, questions)

    # Questions

    def ask(
        self,
        n: SupportsIndex | None = None,
        annotator: str | None = None,
        again: bool = False,
        *,
        memory_budget: int | str | None = None,
    ) -> Batch:
        """Return the items to label next: this person's open questions first, then new ones.

        Choosing takes no lock. Before the questions are written, items that others were asked or answered meanwhile are
        replaced. Without labels the choice covers the data; an untrained model is never used.

        Args:
            n: how many; the project's batch size if omitted. Fewer are returned if no more are left.
            annotator: who is asked.
            again: ask skipped items again.
            memory_budget: bytes, or a text such as "2GiB", to use besides the embeddings.

        Raises:
            NothingLeftError: if nothing is left to ask.
        """
        count, who = check_whole("n", self.settings.batch_size if n is None else n), check_name(annotator)
        return self.questions.ask(who, count, again=again, memory_budget=memory_budget)

    def batch(self, annotator: str | None = None) -> Batch:
        """Return the open questions of a person as a batch."""
        return self.questions.open(check_name(annotator))

    def open_questions(self, annotator: str | None = None) -> list[str]:
        """Return the ids that a person was asked and has not answered, oldest first."""
        with self.store.reading() as state:
            return self.store.ids(state.open_questions(check_name(annotator), self.settings.annotators_per_item))

    def queue(self, ids: Any, annotator: str | None = None) -> list[str]:
        """Ask specific items; return the ids asked. Items that were asked or answered meanwhile are omitted.

        Their reason is "found". They are trained on like other items, and never measure the model, so items of the
        audit set or the test set are refused.
        """
        rows = self.store.rows_of(dict.fromkeys(as_ids(ids)))
        return self.store.ids(self.questions.queue(rows, check_name(annotator)))

    def give_back(self, ids: Iterable[Any], annotator: str | None = None) -> None:
        """Return a person's open questions to the pool, so that others can be asked."""
        self._append_each("returned", ids, annotator)

    def find(
        self,
        like: str | Iterable[Any] = (),
        *,
        text: str | None = None,
        n: SupportsIndex = 20,
        annotator: str | None = None,
    ) -> list[Found]:
        """Find items similar to others or to a text, by the distance between embeddings; the nearest first.

        Only items that this person can be asked are searched: not labelled, not asked, not in the audit set and not in
        the test set. ``queue`` asks them.

        Args:
            like: one id, or several; the distance to the nearest counts.
            text: in a project of texts, what to look for.
            n: how many.
            annotator: who will be asked.
        """
        rows = self.store.rows_of(as_ids(like))
        return self.questions.find(rows, text, check_whole("n", n), check_name(annotator))

    # Answers

    def tell(
        self,
        answers: Mapping[Any, Any] | str | os.PathLike[str],
        annotator: str | None = None,
        seconds: float | Mapping[Any, float] | None = None,
        *,
        id_column: str | None = None,
        label_column: str | None = None,
        sample: str | None = None,
    ) -> Told:
        """Add labels. If one is invalid, none is added.

        A different label by the same person corrects the earlier one. The same label again changes nothing.

        Args:
            answers: labels by id, or a CSV file with columns id and label, and optionally annotator and seconds; rows
                without a label are ignored. Items need not have been asked. In a project with several labels, a label
                is a list such as ``["a", "b"]`` or the text ``a;b``; ``[]`` and ``none`` say that the item has none of
                them. A file may also have a column of 0 and 1 for each label.
            annotator: who answers; taken from the file if omitted.
            seconds: how long each answer took: one number, or a number for each id.
            id_column: the file's column of ids; `id` if omitted.
            label_column: the file's column of labels; `label` if omitted.
            sample: how items that the project did not ask were chosen. "random": they are a random sample of all
                items, and those of the audit set measure the model at once. "chosen": they were chosen in another way;
                all of them train, and the accuracy is about the other items. If omitted, labels of audit items wait
                for their turn; `Told.set_aside` counts them.

        Raises:
            ValueError: if an id is unknown, or `sample` is given for items that the project asked.
            UnknownNameError: if a label is not one of the classes.
        """
        found = given.as_answers(answers, check_name(annotator), seconds, id_column, label_column, self.labelling)
        return given.record_answers(self.store, found, sample=sample)

    def correct(self, name: Any, label: Any, annotator: str | None = None) -> Told:
        """Change the label that a person gave an item; ValueError if they gave none."""
        return given.correct_answer(self.store, name, label, check_name(annotator))

    def skip(self, ids: Any, annotator: str | None = None) -> None:
        """Skip items: they are not asked of this person again, until `ask(again=True)`."""
        self._append_each("skipped", as_ids(ids), annotator)

    def flag(self, ids: Any, note: str = "", annotator: str | None = None) -> None:
        """Flag items that have a problem."""
        self._append_each("flagged", as_ids(ids), annotator, note)

    def comment(self, ids: Any, text: str, annotator: str | None = None) -> None:
        """Write a comment about items."""
        if not text.strip():
            raise ValueError("`text` must not be empty, got an empty comment")
        self._append_each("commented", as_ids(ids), annotator, text)

    def _append_each(self, kind: str, ids: Iterable[Any], annotator: str | None, value: Any = None) -> None:
        who, rows = check_name(annotator), self.store.rows_of(ids)
        with self.store.writing():
            self.store.append([NewEvent(kind, row, value, who) for row in rows])

    def undo(self, annotator: str | None = None, n: SupportsIndex = 1, *, anyone: bool = False) -> list[Undone]:
        """Undo the last answers, skips, flags and comments of a person, the latest first, including earlier sessions.

        Args:
            annotator: whose actions to undo; None for those without a name.
            n: how many.
            anyone: undo the latest actions of all people.
        """
        return given.undo_last(self.store, check_name(annotator), check_whole("n", n), anyone=anyone)

    # Labels and items

    @property
    def classes(self) -> list[str]:
        """The classes that items can be labelled with."""
        with self.store.reading() as state:
            return list(state.classes)

    @property
    def labelling(self) -> Labelling:
        """The classes, and whether an item may have several of them."""
        with self.store.reading() as state:
            return state.labelling

    @property
    def labels(self) -> dict[str, Any]:
        """The label of each id that has one: the majority of the latest answers. Items with a tie have none.

        It is the name of a class. In a project with several labels it is a list of names, which is empty if people
        answered that the item has none of them; the majority is taken label by label.
        """
        with self.store.reading() as state:
            found = state.labels()
            names = self.store.ids(list(found))
            return {name: state.labelling.natural(each) for name, each in zip(names, found.values(), strict=True)}

    def view(self, name: Any) -> ItemView:
        """Return the state of an item."""
        with self.store.reading() as state:
            return state.view(self.store.row_of(name))

    def views(self) -> dict[str, ItemView]:
        """Return the state of each item that has an event, by id, in the order of rows."""
        state = self.store.snapshot()
        rows = sorted(state.items)
        return {name: state.items[row] for name, row in zip(self.store.ids(rows), rows, strict=True)}

    def events(self) -> list[Event]:
        """Return all events, oldest first; `item` is a row, see `ids`."""
        with self.store.lock:
            return list(self.store.events())

    def agreements(self) -> list[Agreement]:
        """Return Cohen's κ of every pair of people who answered the same items."""
        with self.store.reading() as state:
            return agreements(state)

    def ids(self, rows: Sequence[int] | None = None) -> list[str]:
        """Return the ids of some rows, or of all items."""
        return self.store.ids(rows)

    def contents(self, ids: Iterable[Any]) -> list[str | None]:
        """Return the text of each item, its file's path within `root`, its row as JSON; None for a bare embedding."""
        return self.store.contents(self.store.rows_of(ids))

    def shown(self, ids: Iterable[Any]) -> list[ShownItem]:
        """Return items as a person sees them."""
        return self.store.shown(self.store.rows_of(ids), self.root)

    def is_audit(self, ids: Iterable[Any]) -> list[bool]:
        """Return which items belong to the audit set and must be shown without a prediction."""
        with self.store.reading() as state:
            views = ((row, state.view(row)) for row in self.store.rows_of(ids))
            return [bool(self.store.is_audit[row]) and not (view.is_chosen and view.answers) for row, view in views]

    # The model

    def train(self) -> bool:
        """Train the model on the labels so far if necessary; return False if there are too few."""
        return self.model.trained(self.store.snapshot(), self.embeddings.array()) is not None

    def guess(self, ids: Iterable[Any]) -> list[Guess] | None:
        """Return the model's predictions for items, with the votes of its draws; None before there is a model.

        With several labels, ``Guess.label`` is the list of all labels whose probability is above 1/2.
        """
        state, vectors, rows = self.store.snapshot(), self.embeddings.array(), self.store.rows_of(ids)
        trained = self.model.trained(state, vectors)
        names = self.store.ids(rows)
        return None if trained is None else guesses_of(trained, vectors[rows], names, rows)

    def explain(self, ids: Iterable[Any]) -> list[Insight] | None:
        """Explain why items are worth a label, with the model of all labels so far; None before there is one."""
        state, vectors, rows = self.store.snapshot(), self.embeddings.array(), self.store.rows_of(ids)
        return insights(self.model.trained(state, vectors), vectors, self.store, rows, self.settings.seed)

    def predict(
        self, source: str | os.PathLike[str], *, ids: str | os.PathLike[str] | None = None, skip_bad: bool = False
    ) -> list[Guess]:
        """Return the model's predictions for a file or folder of new data of the same kind; refuse without a model."""
        data = opening.like_ours(self.folder, self.settings, source, ids).model_copy(update={"skip_bad": skip_bad})
        state, vectors = self.store.snapshot(), self.embeddings.array()
        trained = self.model.required(state, vectors)
        names, new = self.embeddings.encoded(data, vectors.shape[1])
        return guesses_of(trained, new, names)

    def status(self) -> Status:
        """Return the model's accuracy, open questions, and advice on stopping."""
        return status_of(self._collector().facts(tuple(self.notes)))

    def suspects(self) -> list[SuspectLabel]:
        """Return labels that are probably wrong, by a model that has not seen them; the most probable errors first."""
        return list(self._collector().suspects())

    def _collector(self) -> FactCollector:
        return FactCollector(self.model, self.root, self.store.snapshot(), self.embeddings.array())

    def exported(self, *, predictions: bool = False) -> list[export.Exported]:
        """Return the items to export: those with an event, or all of them with the model's predictions."""
        return export.exported_items(self, predictions=predictions)

    def export(
        self, path: Any, *, predictions: bool = False, every: bool = False, accepted: Accepted | None = None
    ) -> int:
        """Write labelled items and `accepted` ones to a CSV file; `every`: all with an event; `predictions`: all."""
        return export.export_items(self, path, predictions=predictions, every=every, accepted=accepted)

    def export_suspects(self, path: str | os.PathLike[str]) -> int:
        """Write labels that are probably wrong, with suggestions, to a CSV file to correct and `tell`."""
        return export.write_suspects(path, self.suspects())

    # Changes

    def add_items(self, source: str | os.PathLike[str], *, ids: str | os.PathLike[str] | None = None) -> int:
        """Add items of the same kind, with the same columns; return their number. Labels do not change."""
        data = opening.like_ours(self.folder, self.settings, source, ids)
        with self.store.lock:
            self.embeddings.array()
            return self.embeddings.add(data)

    def set_test(self, path: str | os.PathLike[str]) -> int:
        """Read a test set from a CSV file; return its size. Its items are never asked or trained on."""
        return given.record_test(self.store, given.as_answers(path, labelling=self.labelling))

    def add_class(self, name: Any) -> None:
        """Add a class at the end; earlier labels are kept. Of several labels, items answered so far do not have it."""
        self.settings = opening.add_class(self.folder, self.store, name)

    def rename_class(self, old: Any, new: Any) -> None:
        """Rename a class; its labels are kept."""
        self.settings = opening.rename_class(self.folder, self.store, old, new)

    def check(self) -> list[str]:
        """Return the problems that SQLite's integrity check finds. Hashes are checked on opening.

        Raises:
            FileFormatError: if the embeddings do not match their hash.
        """
        read_vectors(self.folder, self.store.num_items, whole=True)
        return self.store.log.check()
