"""A project: items, people who label them, and a model that says which to label next; all in one folder."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

from batchbalance.arguments.checks import check_bytes, check_whole
from batchbalance.errors import NothingLeftError, UnknownNameError
from batchbalance.learner.labels import NewEvent
from batchbalance.project import sheets
from batchbalance.project.answers import Told, Undone, answer_events, as_answers, check_name, class_number, named_class
from batchbalance.project.batch import Batch
from batchbalance.project.items import VECTORS
from batchbalance.project.making import free_folder
from batchbalance.project.model import named_model
from batchbalance.project.opened import check_parts
from batchbalance.project.planning import Plan, Question, is_free, strategy_table, waiting
from batchbalance.project.reading import ReadableProject, seen_from
from batchbalance.project.settings import (
    SourceKind,
    as_settings,
    write_settings,
)
from batchbalance.project.state import FOUND, ItemView, State, Who

SOURCES: tuple[SourceKind, ...] = ("images", "texts", "table", "embeddings")


class Project(ReadableProject):
    """A project in a folder. Make one with ``Project.create``, go on with ``Project.open``.

    Everything told is on disk when a call returns. Several processes and threads may use one project at a time.

    Attributes:
        folder: where it is.
        settings: those of `project.toml`.
        notes: what is worth knowing about how it was opened.
    """

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
        test: str | os.PathLike[str] | None = None,
        seek: str | Iterable[Any] | None = None,
        seek_share: float | None = None,
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
            test: a CSV file of ids and labels to measure by. Its items are never asked nor trained on.
            seek: rare classes to look for: a name or several. The strategy is `seek` then.
            seek_share: of the strategy's questions that look for them; 0.5 if omitted.
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
            "kind": kind, "path": seen_from(target, path), "column": _as_list(column), "id": id, "drop": list(drop),
            "cost": seen_from(target, cost) if cost is not None and Path(cost).is_file() else cost,
            "ids": None if ids is None else seen_from(target, ids), "skip_bad": skip_bad,
        }  # fmt: skip
        if isinstance(settings.get("model"), str):
            settings["model"] = named_model(settings["model"])
        settings["strategy"] = strategy_table(settings.get("strategy"), seek, seek_share)
        known = {key: value for key, value in settings.items() if value is not None}
        made = as_settings({"classes": [named_class(each) for each in classes], "data": data, **known})
        if len(set(made.classes)) < len(made.classes):
            raise ValueError(f"`classes` must be distinct, got {', '.join(made.classes)}")
        check_parts(made)
        if (target / "project.toml").exists():
            raise FileExistsError(f"{target} already holds a project; continue with it, or name another folder")
        if (target / VECTORS).exists():
            raise FileExistsError(f"{target / VECTORS} exists, and a project keeps a file of that name; move it away")
        if test is not None:
            sheets.read_answers(test)  # a mistake is found before the work begins
        is_new = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        project = None
        try:
            write_settings(target, made)
            project = cls(target, allow_imports=True, progress=progress)
            if test is not None:
                project.set_test(test)
        except Exception:  # a mistake, not an interruption: the folder is free for another try
            if project is not None:
                project.close()
            free_folder(target, is_new)
            raise
        return project

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
        return cls(Path(folder), allow_imports=allow_imports, progress=progress)

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
            n: how many; the project's batch size if omitted. Fewer come if no more are left.
            annotator: who is asked.
            again: bring back what this person skipped.
            memory_budget: bytes, or a text such as "2GiB", that choosing may use besides the embeddings.

        Raises:
            NothingLeftError: if nothing is left to ask.
        """
        wanted = check_whole("n", self.settings.batch_size if n is None else n)
        who = check_name(annotator)
        if memory_budget is not None:
            check_bytes("memory_budget", memory_budget)
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
            raise NothingLeftError(f"nothing is left to ask: every item is labelled, asked of others, or skipped{hint}")
        if len(rows) < wanted:
            notes.append(f"{wanted} were asked for and {len(rows)} are left")
        return self._batch(rows, state.classes, who, tuple(notes), selection)

    def queue(self, ids: Any, annotator: str | None = None) -> list[str]:
        """Make questions of items that somebody found; those that became questions, or got answers, meanwhile are not.

        They are marked "found", are trained on like any other, and never measure the model.

        Raises:
            ValueError: if an item is of the audit set or of the test set.
        """
        who, rows = check_name(annotator), [self.row_of(each) for each in dict.fromkeys(_as_ids(ids))]
        with self._writing() as state:
            for row in rows:
                if self._store.is_audit[row] or row in state.tests:
                    name = self._store.ids([row])[0]
                    raise ValueError(f"items to ask must not be set aside to measure by, got {name!r}; leave it out")
            asked = [row for row in rows if is_free(state, row, who)]
            batch = state.num_batches
            self._store.log.append([NewEvent("asked", row, FOUND, who, batch=batch) for row in asked])
        return self._store.ids(asked)

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
        sample: str | None = None,
    ) -> Told:
        """Take in labels, all of them or, if one is not valid, none.

        Another label than the same person gave before corrects it. The same label again changes nothing.

        Args:
            answers: labels by id, or a CSV file with columns id and label, and maybe annotator and seconds; rows
                without a label are passed over. Items need not have been asked.
            annotator: who answers; where it is omitted, what the file says.
            seconds: how long an answer took, or that of each id.
            id_column: of the file; `id` if omitted.
            label_column: of the file; `label` if omitted.
            sample: how items that the project did not ask were chosen. "random": they are a random sample of all
                items, and those of the audit set measure the model at once. "chosen": they were chosen in another way;
                all of them train, and the accuracy is about the other items. If omitted, labels of audit items wait
                for their turn; `Told.set_aside` counts them.

        Raises:
            ValueError: if an id is not there, or `sample` is given for items that the project asked.
            UnknownNameError: if a label is none of the classes.
        """
        given = as_answers(answers, check_name(annotator), seconds, id_column, label_column)
        rows = [self._row_at(each.where, each.id) for each in given]
        with self._writing() as state:
            events, told = answer_events(state, rows, given, self._store.is_audit, sample)
            self._store.log.append(events)
        return told

    def correct(self, name: Any, label: Any, annotator: str | None = None) -> Told:
        """Change the label that a person gave an item.

        Raises:
            ValueError: if they gave none; `tell` takes new ones.
        """
        who = check_name(annotator)
        class_number(self.classes, str(label))
        answers = self.view(name).answers
        if who not in answers:
            by = ", ".join(other or "somebody without a name" for other in answers)
            whose = f"{str(name)!r} must have an answer{f' of {who}' if who else ''} to correct"
            raise ValueError(f"{whose}, got {f'one of {by}; say whose with `annotator`' if by else 'none; tell one'}")
        return self.tell({name: label}, who)

    def record(
        self,
        answers: Sequence[sheets.Answer],
        skips: Sequence[tuple[Any, str | None]] = (),
        note: Any = None,
        sample: str | None = None,
    ) -> Told:
        """Take in what another tool collected, all of it or, if something is not valid, nothing.

        Args:
            answers: as `tell` takes them.
            skips: ids, and who passed each over; one that was passed over or answered by that person already counts
                as known.
            note: what to remember with it, in the same transaction: an event of the kind "recorded".
            sample: as `tell` takes it.
        """
        rows = [self._row_at(each.where, each.id) for each in answers]
        passed = [(self.row_of(name), check_name(who)) for name, who in dict.fromkeys(skips)]
        with self._writing() as state:
            named = [replace(x, annotator=check_name(x.annotator)) for x in answers]
            events, told = answer_events(state, rows, named, self._store.is_audit, sample)
            views = {row: state.items.get(row, ItemView()) for row, _ in passed}
            new = [(row, who) for row, who in passed if who not in {*views[row].skipped, *views[row].answers}]
            events += [NewEvent("skipped", row, who=who) for row, who in new]
            if note is not None:
                events.append(NewEvent("recorded", value=note))
            self._store.log.append(events)
        return replace(told, skipped=len(new))

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
            if not last:
                raise ValueError(f"there is nothing to undo{f' of {who}' if who else ''}")
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

    def set_test(self, path: str | os.PathLike[str]) -> int:
        """Set items aside as a test set: a CSV file of ids and labels; how many there are.

        They are never asked nor trained on from now on.
        """
        given = as_answers(path, None, None, None, None)
        rows = [self._row_at(each.where, each.id) for each in given]
        with self._writing() as state:
            labels = [class_number(state.classes, each.label, each.where) for each in given]
            self._store.log.append([NewEvent("tested", row, label) for row, label in zip(rows, labels, strict=True)])
        return len(rows)

    def add_class(self, name: Any) -> None:
        """Add a class at the end; earlier labels stay."""
        new = named_class(name)
        with self._writing() as state:
            if new in state.classes:
                raise ValueError(f"the class {new!r} exists already")
            self._store.log.append([NewEvent("class added", value=new)])
        self._rewrite_classes()

    def rename_class(self, old: Any, new: Any) -> None:
        """Give a class another name; its labels stay with it."""
        before, after = named_class(old), named_class(new)
        with self._writing() as state:
            if before not in state.classes:
                raise UnknownNameError("class", before, state.classes)
            if after in state.classes:
                raise ValueError(f"the class {after!r} exists already")
            index = state.classes.index(before)
            self._store.log.append([NewEvent("class renamed", value={"class": index, "name": after})])
        self._rewrite_classes()

    def close(self) -> None:
        """Let go of the database; it is also done when the object goes."""
        self._store.log.close()

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
            events = [NewEvent("asked", each.row, each.reason, who, batch=batch) for each in asked]
            events += [NewEvent("drawn", each.row, each.reason, batch=batch) for each in drawn]
            self._store.log.append(events)

    def _is_drawn(self, state: State, question: Question) -> bool:
        view = state.items.get(question.row)
        return view is not None and question.reason in view.reasons

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


def _as_list(column: str | Sequence[str] | None) -> list[str]:
    return [] if column is None else [column] if isinstance(column, str) else list(column)


def _as_ids(ids: Any) -> list[Any]:
    """One id, or some."""
    return [ids] if isinstance(ids, str | int) else list(ids)
