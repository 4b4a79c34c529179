"""People's answers, and the events recorded for them."""

import csv
import io
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.arguments.checks import check_real
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.learner.labels import NewEvent, plain
from batchbalance.project.labelling import Labelling, Value, as_text
from batchbalance.project.state import AUDIT, State, Who, as_value
from batchbalance.project.store import ProjectStore
from batchbalance.system.files import check_is_file, replacing
from batchbalance.system.ids import mended
from batchbalance.system.spreadsheets import csv_text, meanings

DELIMITERS = (",", ";", "\t")
ID, LABEL, ANNOTATOR, SECONDS = "id", "label", "annotator", "seconds"
ONES = {"1": True, "1.0": True, "true": True, "yes": True, "0": False, "0.0": False, "false": False, "no": False}
OURS = (ID, LABEL, ANNOTATOR, SECONDS)  # columns that `tell` reads; case is ignored


@dataclass(frozen=True)
class Answer:
    """An answer as it was given.

    Attributes:
        where: the row of a file, for messages.
        id: the id as written there.
        label: the label, or several, as written there; None if the item was skipped.
        annotator: who gave it; None without such a column.
        seconds: how long it took; None without such a column.
    """

    where: str
    id: str
    label: str | None
    annotator: str | None = None
    seconds: float | None = None


def beside_ours(names: Iterable[str]) -> dict[str, str]:
    """Map each column of a user's table to its name in a batch file; an underscore avoids a clash with OURS."""
    found = dict.fromkeys(names, "")
    for name in found:
        new = name
        while new.strip().lower() in OURS or (new != name and new in found):
            new += "_"
        found[name] = new
    return found


def write_sheet(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Sequence[str]], *, mark: bool = False
) -> None:
    """Write a CSV file atomically.

    With `mark`, a file that is not plain ASCII begins with a byte order mark, so that spreadsheets detect UTF-8.
    """
    text = mended(csv_text(columns, rows))  # a folder's name may be in any encoding
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8-sig" if mark and not text.isascii() else "utf-8"))


def read_answers(
    path: str | os.PathLike[str],
    id_column: str | None = None,
    label_column: str | None = None,
    labelling: Labelling | None = None,
) -> list[Answer]:
    """Return the rows of a CSV file whose label is filled in.

    Args:
        path: the file, separated by commas, semicolons or tabs.
        id_column: the column of the ids; `id` if omitted.
        label_column: the column of the labels; `label` if omitted.
        labelling: the project's. If it has several labels for an item, a file without a column `label` may have one
            column for each label, with 0 and 1.

    Raises:
        FileFormatError: if it is not such a file.
    """
    path = Path(path)
    id_column, named = _column(id_column or ID), _column(label_column or LABEL)
    rows = list(_rows(path, id_column))
    header = [_column(name.strip()) for name in rows[0][1]] if rows else []
    several = labelling.classes if labelling is not None and labelling.is_multi and label_column is None else ()
    wide = several if {*several} & {*header} and LABEL not in map(str.lower, header) else ()
    places = _places(path, header, {ID: id_column, **({name: name for name in wide} or {LABEL: named})})
    answers = []
    for line, row in rows[1:]:
        cells = row + [""] * (len(header) - len(row))
        if any(cell.strip() for cell in cells[len(header) :]):
            raise FileFormatError(
                f"{path} line {line} must have {len(header)} cells, got {len(row)}; quote cells that hold the separator"
            )
        label = _wide_label({name: cells[places[name]] for name in wide}, line, path) if wide else cells[places[LABEL]]
        if not label.strip():
            continue
        name = cells[places[ID]]
        if not name:
            raise FileFormatError(f"{path} line {line} must have an id, got a label without one")
        who = cells[places[ANNOTATOR]].strip() or None if ANNOTATOR in places else None
        took = _seconds(cells[places[SECONDS]], f"{path} line {line}") if SECONDS in places else None
        answers.append(Answer(f"{path} line {line}", name, label, who, took))
    return answers


def _column(name: str) -> str:
    return unicodedata.normalize("NFC", meanings(name)[0])


def _wide_label(cells: Mapping[str, str], line: int, path: Path) -> str:
    """Return the labels of a row with one cell for each as a JSON list; "" if all cells are empty."""
    given = {name: ONES.get(cell.strip().lower()) for name, cell in cells.items()}
    if not any(cell.strip() for cell in cells.values()):
        return ""
    bad = next((name for name, value in given.items() if value is None), None)
    if bad is not None:
        raise FileFormatError(
            f"{path} line {line} must have 0 or 1 for {bad!r}, got {cells[bad]!r}; empty all of an item's to skip it"
        )
    return json.dumps([name for name, value in given.items() if value], ensure_ascii=False)


def _places(path: Path, header: Sequence[str], wanted: dict[str, str]) -> dict[str, int]:
    """Return the positions of the columns; names match regardless of case."""
    lower = [name.lower() for name in header]
    found = {}
    for role, name in wanted.items():
        if name.lower() not in lower:
            raise FileFormatError(f"{path} must have a column {name!r}, got columns {', '.join(header) or 'none'}")
        found[role] = header.index(name) if name in header else lower.index(name.lower())
    # A column used for ids or labels cannot also hold the annotator.
    more = {role: lower.index(role) for role in (ANNOTATOR, SECONDS) if role in lower}
    found |= {role: place for role, place in more.items() if place not in found.values()}
    for place in found.values():
        if header.count(header[place]) > 1:
            raise FileFormatError(f"{path} must have one column {header[place]!r}, got several; rename the others")
    return found


def _rows(path: Path, id_column: str) -> Iterable[tuple[int, list[str]]]:
    """Return the rows that are not blank, each with the number of its line.

    The separator is the one that yields an id column and the most columns.
    """
    check_is_file(path)
    content = path.read_bytes()
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a text file in UTF-8, got other bytes; save it as CSV UTF-8") from error
    limit = csv.field_size_limit(2**31 - 1)  # texts may exceed the default limit
    try:
        headers = {each: next(csv.reader(io.StringIO(text, newline=""), delimiter=each), []) for each in DELIMITERS}
        names = {each: [meanings(cell.strip())[0].lower() for cell in row] for each, row in headers.items()}
        delimiter = max(DELIMITERS, key=lambda each: (id_column.lower() in names[each], len(names[each])))
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileFormatError(f"{path} must be a CSV file, got damaged content: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _seconds(cell: str, where: str) -> float | None:
    if not cell.strip():
        return None
    try:
        seconds = float(cell)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise FileFormatError(f"{where}: seconds must be a number of at least 0, got {cell!r}")
    return seconds


SAMPLES = ("random", "chosen")  # how the items of imported labels may have been chosen

MOST_LETTERS = 100  # in a person's name


@dataclass(frozen=True)
class Told:
    """The changes made by a call of `tell`.

    Attributes:
        labelled: new answers.
        corrected: answers that replaced earlier ones by the same person.
        unchanged: answers that were already recorded.
        skipped: items newly skipped by a person.
        set_aside: audit items that nobody was asked; they are not trained on, and measure the model only in their turn.
        measured: audit items of a random sample, which measure the model from now on.
    """

    labelled: int = 0
    corrected: int = 0
    unchanged: int = 0
    skipped: int = 0
    set_aside: int = 0
    measured: int = 0

    def sentence(self) -> str:
        """Return a sentence on the audit items among the labels; "" if there are none."""
        if self.set_aside:
            return (
                f"{self.set_aside:,} of these labels are of audit items, which the model never trains on. They measure "
                "it only once their turn comes. If the labels are a random sample of all items, tell them again with "
                '`--sample random` (`sample="random"`), and they measure at once; if the items were chosen in some '
                "other way, with `--sample chosen`, and all of them train."
            )
        return f"{self.measured:,} of these labels measure the model; the others train it." if self.measured else ""


@dataclass(frozen=True)
class Undone:
    """An event that was undone.

    Attributes:
        id: the item.
        kind: the kind of event, such as "labelled".
        value: the label, or the note.
    """

    id: str
    kind: str
    value: Any


def check_name(annotator: Any) -> Who:
    """Return a person's name after checking it, or None."""
    if annotator is None:
        return None
    name = unicodedata.normalize("NFC", annotator).strip() if isinstance(annotator, str) else ""
    if not name or not name.isprintable() or len(name) > MOST_LETTERS:
        got = repr(annotator if not isinstance(annotator, str) else annotator[: MOST_LETTERS + 1])
        raise ValueError(f"`annotator` must be a name of at most {MOST_LETTERS} printable letters, got {got}")
    return name


def named_class(label: Any) -> str:
    """Return a class name, given as text or as a whole number."""
    name = unicodedata.normalize("NFC", str(plain(label))).strip()
    if not name or not name.isprintable():
        raise ValueError(f"a class must be printable text or a whole number, got {label!r}")
    return name


def as_answers(
    answers: Mapping[Any, Any] | str | os.PathLike[str],
    who: Who = None,
    seconds: float | Mapping[Any, float] | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    labelling: Labelling | None = None,
) -> list[Answer]:
    """Return answers from a mapping or a CSV file."""
    if isinstance(answers, str | os.PathLike):
        read = read_answers(answers, id_column, label_column, labelling)
        if not read:
            raise ValueError(f"{answers} must have labels filled in, got none; fill in its column of labels")
        took = None if seconds is None else check_real("seconds", seconds)
        return [
            Answer(x.where, x.id, x.label, who or check_name(x.annotator), x.seconds if took is None else took)
            for x in read
        ]
    if not isinstance(answers, Mapping):
        raise TypeError(f"`answers` must be a dict of labels by id or a CSV file, got {type(answers).__name__}")
    found = []
    for name, label in answers.items():
        took = seconds.get(name) if isinstance(seconds, Mapping) else seconds
        found.append(
            Answer("", str(plain(name)), as_text(label), who, None if took is None else check_real("seconds", took))
        )
    return found


def as_ids(ids: Any) -> list[Any]:
    """Return one id or several as a list."""
    return [ids] if isinstance(ids, str | int) else list(ids)


def record_answers(store: ProjectStore, answers: Sequence[Answer], note: Any = None, sample: str | None = None) -> Told:
    """Write answers and a note in one transaction. If anything is invalid, nothing is written.

    Args:
        store: items and events.
        answers: the answers to write. Skips of items that this person already skipped or answered are ignored.
        note: stored as an event of the kind "recorded".
        sample: as in ``Project.tell``.
    """
    named = [(store.row_of(x.id, x.where), replace(x, annotator=check_name(x.annotator))) for x in answers]
    skips = dict.fromkeys((row, each.annotator) for row, each in named if each.label is None)
    with store.writing() as state:
        given = [(row, each) for row, each in named if each.label is not None]
        events, told = answer_events(state, given, store.is_audit, sample)
        new = [(row, who) for row, who in skips if who not in {*state.view(row).skipped, *state.view(row).answers}]
        events += [NewEvent("skipped", row, who=who) for row, who in new]
        if note is not None:
            events.append(NewEvent("recorded", value=note))
        store.append(events)
    return replace(told, skipped=len(new))


def correct_answer(store: ProjectStore, name: Any, label: Any, who: Who) -> Told:
    """Change the label that a person gave an item; ValueError if they gave none."""
    with store.reading() as state:
        state.labelling.read(as_text(label))
        answers = state.view(store.row_of(name)).answers
    if who not in answers:
        by = ", ".join(other or "an unnamed annotator" for other in answers)
        whose = f"{str(name)!r} must have an answer{f' of {who}' if who else ''} to correct"
        raise ValueError(f"{whose}, got {f'one of {by}; name one with `annotator`' if by else 'none; add one first'}")
    return record_answers(store, as_answers({name: label}, who))


def record_review(store: ProjectStore, name: Any, label: str | None, who: Who) -> None:
    """Record a person's decision about a doubtful item in a review.

    Args:
        store: items and events.
        name: the id of the item.
        label: its class from now on, whatever the answers say; the answer of this person if there is none yet. None
            to leave it as it is, with or without a label.
        who: the person who decided.
    """
    row = store.row_of(name)
    with store.writing() as state:
        view = state.view(row)
        number = view.label if label is None else state.labelling.read(label)
        is_first = label is not None and not view.answers
        events = [NewEvent("labelled", row, number, who)] if is_first else []
        store.append([*events, NewEvent("reviewed", row, None if is_first else number, who)])


def record_test(store: ProjectStore, answers: Sequence[Answer]) -> int:
    """Write the labels of a test set; return their number."""
    rows = [store.row_of(each.id, each.where) for each in answers]
    with store.writing() as state:
        labels = [state.labelling.read(each.label or "", each.where) for each in answers]
        store.append([NewEvent("tested", row, label) for row, label in zip(rows, labels, strict=True)])
    return len(rows)


def undo_last(store: ProjectStore, who: Who, count: int, *, anyone: bool) -> list[Undone]:
    """Undo the last `count` actions of a person, the latest first. Arguments as in ``Project.undo``."""
    with store.writing() as state:
        last = list(islice(state.undoable(who, anyone=anyone), count))
        if not last:
            raise ValueError(f"there is nothing to undo{f' by {who}' if who else ''}")
        if len(last) < count:
            raise ValueError(f"`n` must be at most {len(last)}, the number of actions that can be undone, got {count}")
        store.append([NewEvent("undone", each.item, each.number, who) for each in last])
        names = store.ids([each.item for each in last if each.item is not None])
        return [
            Undone(
                name,
                each.kind,
                each.value if isinstance(each.value, str | None) else state.labelling.text(as_value(each.value)),
            )
            for name, each in zip(names, last, strict=True)
        ]


def answer_events(
    state: State, given: Sequence[tuple[int, Answer]], is_audit: NDArray[np.bool_], sample: str | None = None
) -> tuple[list[NewEvent], Told]:
    """Return the events to record for answers, given the current state.

    Args:
        state: the project's current state.
        given: the rows of items, each with an answer.
        is_audit: (N,) which items are set aside.
        sample: "random" if the items are a random sample of all items: those of the audit set measure at once.
            "chosen" if they were chosen in another way: all of them train, and the audit is about the other items. None
            if unknown: those of the audit set measure once their turn comes.
    """
    events, counts = [], {"labelled": 0, "corrected": 0, "unchanged": 0}
    latest: dict[tuple[int, Who], Value] = {}
    for row, answer in given:
        label = state.labelling.read(answer.label or "", answer.where)
        if latest.get((row, answer.annotator), label) != label:
            raise ValueError(f"{answer.where}: {answer.id!r} must have one label, got two that differ")
        view = state.items.get(row)
        before = latest.get((row, answer.annotator), None if view is None else view.answers.get(answer.annotator))
        is_asked = view is not None and answer.annotator in view.open and (row, answer.annotator) not in latest
        is_same = before == label and (view is None or view.settled in (None, label))  # a review may say otherwise
        kind = "labelled" if before is None else "unchanged" if is_same else "corrected"
        counts[kind] += 1
        if kind != "unchanged" or is_asked:
            stored = "labelled" if kind == "unchanged" else kind
            events.append(NewEvent(stored, row, label, answer.annotator, answer.seconds))
        latest[row, answer.annotator] = label
    more, counts["set_aside"], counts["measured"] = _sample_events(state, [row for row, _ in given], is_audit, sample)
    return [*events, *more], Told(**counts)


def _sample_events(
    state: State, rows: Sequence[int], is_audit: NDArray[np.bool_], sample: str | None
) -> tuple[list[NewEvent], int, int]:
    """Return events that record how items were chosen, and the numbers of answers set aside and measuring."""
    if sample not in (None, *SAMPLES):
        raise UnknownNameError("sample", str(sample), SAMPLES)
    views = {row: state.view(row) for row in dict.fromkeys(rows)}
    aside = [row for row in views if is_audit[row] and not views[row].is_chosen]
    if sample is None:
        return [], sum(not (AUDIT in views[row].reasons or views[row].sampled_of) for row in aside), 0
    if all(view.reasons for view in views.values()):
        raise ValueError(f"`sample` must not be given for items that the project asked, got {sample!r}; omit it")
    if sample == "chosen":
        return [NewEvent("chosen", row) for row in views], 0, 0
    if any(view.is_chosen for view in views.values()):
        raise ValueError("`sample` must stay 'chosen' for items that were added as chosen, got 'random'; omit them")
    return [NewEvent("sampled", row, {"of": state.sizes[-1]}) for row in aside], 0, len(aside)
