"""Synchronization with a Label Studio server: push the batch in its order, and pull the answers.

Questions are asked of the annotator "label-studio", which stands for everybody who labels there. Imported annotations
are recorded in the project's log, in the same transaction. So nothing is imported twice, and later corrections here are
kept. Existing tasks are looked up on the server, so none is created twice.
"""

import hashlib
import json
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from filelock import FileLock

from batchbalance.errors import NothingLeftError
from batchbalance.project import Project
from batchbalance.project.answers import Told, record_answers
from batchbalance.project.bridge.client import InterruptedRequestError, Server, Uploads
from batchbalance.project.bridge.link import Link, check_config
from batchbalance.project.bridge.tasks import ITEM, Annotation, annotations_of, choice, shown_data
from batchbalance.project.labelling import NONE

ASKER = "label-studio"
BLOCK = 500  # tasks created, or scores written, per request
MOST_TRIES = 5  # to create tasks or write scores while the server keeps restarting
SAMPLING = "Uncertainty sampling"


@dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Attributes:
        ids: the batch, in its order.
        created: the number of new tasks.
        version: the version of the order on the server.
        notes: remarks, one sentence each.
    """

    ids: tuple[str, ...]
    created: int
    version: str
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return a summary in words."""
        return f"{len(self.ids)} items are asked there, {self.created} of them new"


@dataclass(frozen=True)
class Pulled:
    """The result of a pull.

    Attributes:
        told: the numbers of answers.
        left: the number of questions still open on the server.
        notes: remarks, one sentence each.
    """

    told: Told
    left: int
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return a summary in words; "" if nothing was pulled."""
        told = self.told
        if not (told.labelled or told.corrected or told.skipped):
            return ""
        return f"{told.labelled} labelled, {told.corrected} corrected, {told.skipped} skipped; {self.left} open"


def push(
    project: Project, link: Link, server: Server, n: int | None = None, *, guesses: bool = False, every: bool = False
) -> Pushed:
    """Send the batch to the server: its open questions, or a new batch if none is open.

    Args:
        project: the local project.
        link: which project it is on the server.
        server: the server.
        n: the number of questions; new ones are chosen if fewer are open.
        guesses: show the model's predictions, except for audit items.
        every: create tasks for all items, not only for those of the batch.
    """
    with _alone(project):
        notes = [*check_config(project, link, server)]
        there = _tasks_by_item(server, link)
        notes += _skip_deleted(project, link, there)
        is_new = n is not None or not project.open_questions(ASKER)
        batch = project.ask(n, ASKER) if is_new else project.batch(ASKER)
        wanted = dict.fromkeys([*batch.ids, *(project.ids() if every else ())])
        created = _create(project, link, server, list(wanted), there)
        before = _had_tasks(project, link)
        new = [name for name in wanted if name not in before]
        if new:
            record_answers(project.store, [], note=link.note(tasks=new))
        guessed = guesses_of(project, batch.ids) if guesses else {}
        content = json.dumps([[name, guessed.get(name)] for name in batch.ids])
        version = f"batchbalance {hashlib.sha256(content.encode()).hexdigest()[:12]}"  # equal orders, equal versions
        _order(link, server, batch.ids, guessed, version, there)
        changes: dict[str, Any] = {"model_version": version, "sampling": SAMPLING}
        if project.settings.annotators_per_item > 1:
            changes["maximum_annotations"] = project.settings.annotators_per_item
        server.patch(f"/api/projects/{link.project}/", changes)
    return Pushed(batch.ids, created, version, (*notes, *batch.notes))


def pull(project: Project, link: Link, server: Server) -> Pulled:
    """Add labels, corrections and skips from the server, with who gave them and how long each took."""
    with _alone(project):
        tasks = list(server.tasks(link.project))
        people = server.get("/api/users/")
        with server.reading("/api/users/"):
            users = {int(each["id"]): str(each["email"]) for each in people}
        seen = {key: moment for each in link.notes(project, "annotations") for key, moment in each.items()}
        ours = [task for task in tasks if _item(task) is not None]
        found = [
            each
            for each in annotations_of(ours, users, f"project {link.project}", link.control)
            if seen.get(str(each.key)) != each.moment
        ]
        new, notes = _sorted_out(project, found)
        latest = {(each.item, each.who): each for each in sorted(new, key=lambda each: (each.moment, each.key))}
        answers = [each.answer(is_multi=project.labelling.is_multi) for each in latest.values()]
        skips = [replace(each, annotator=ASKER) for each in answers if each.label is None]  # who was asked
        note = link.note(annotations={str(each.key): each.moment for each in new})
        told = record_answers(project.store, [*answers, *skips], note) if new else Told()
        notes += _reopen_disputed(project, server, ours) + _skip_deleted(project, link, {_item(task) for task in ours})
    left = len(project.open_questions(ASKER))
    return Pulled(replace(told, skipped=len(skips)), left, tuple(notes))


def sync(
    project: Project,
    link: Link,
    server: Server,
    *,
    every: float = 30.0,
    rounds: int | None = None,
    guesses: bool = False,
    say: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Pull repeatedly, and push the next batch whenever one is done.

    Args:
        project: the local project.
        link: the link to the Label Studio project.
        server: the server.
        every: seconds between pulls.
        rounds: the number of batches to complete; None continues until nothing is left to ask.
        guesses: as in `push`.
        say: called with each message.
        sleep: waits for a number of seconds.
    """
    done, is_pushed, said = 0, False, set[str]()

    def once(notes: Iterable[str]) -> None:
        for note in notes:
            if note not in said:
                said.add(note)
                say(note)

    while True:
        try:
            pulled = pull(project, link, server)
            if pulled.sentence():
                say(pulled.sentence())
            once(pulled.notes)
            if is_pushed and not pulled.left:
                done, is_pushed = done + 1, False
                say(f"batch {done} is done")
                if done == rounds:
                    return
            if not is_pushed:
                if not is_anything_left(project):
                    say("nothing is left to ask")
                    return
                pushed = push(project, link, server, guesses=guesses)
                say(pushed.sentence())
                once(pushed.notes)
                is_pushed = True
        except ConnectionError as error:
            say(str(error))
        sleep(every)


def is_anything_left(project: Project) -> bool:
    """Return whether a question is open on the server, or can be asked."""
    if project.open_questions(ASKER):
        return True
    try:
        project.ask(None, ASKER)
    except NothingLeftError:
        return False
    return True


def _alone(project: Project) -> FileLock:
    """Return a lock for one push or pull at a time, so that no two create the same task."""
    return FileLock(project.folder / ".labelstudio.lock")


def _item(task: Mapping[str, Any]) -> str | None:
    found = task["data"].get(ITEM)
    return None if found is None else str(found)


def _tasks_by_item(server: Server, link: Link) -> dict[str, dict[str, Any]]:
    """Return the tasks on the server by item; the first, if an item has several."""
    found: dict[str, dict[str, Any]] = {}
    for task in server.tasks(link.project):
        item = _item(task)
        if item is not None:
            found.setdefault(item, task)
    return found


def _had_tasks(project: Project, link: Link) -> set[str]:
    """Return the items that had a task at an earlier push."""
    return {name for names in link.notes(project, "tasks") for name in names}


def _skip_deleted(project: Project, link: Link, there: Container[str | None]) -> list[str]:
    """Skip open questions whose tasks were deleted on the server."""
    before = _had_tasks(project, link)
    gone = [name for name in project.open_questions(ASKER) if name in before and name not in there]
    if not gone:
        return []
    project.skip(gone, ASKER)
    what = _counted(len(gone), "task was deleted there; its item counts", "tasks were deleted there; their items count")
    return [f"{what} as skipped, and labels are kept"]


def _send_missing(
    server: Server, link: Link, there: dict[str, Any], missing: Callable[[], Any], send: Callable[[Any], None]
) -> None:
    """Send what is missing, part by part; if the server restarts meanwhile, look what arrived, and send the rest."""
    tried = 0
    while part := missing():
        try:
            send(part)
        except InterruptedRequestError:
            tried += 1
            if tried == MOST_TRIES:
                raise
            server.wait()
            there |= _tasks_by_item(server, link)


def _create(
    project: Project, link: Link, server: Server, wanted: Sequence[str], there: dict[str, dict[str, Any]]
) -> int:
    """Create the missing tasks and add them to `there`; return their number."""
    new = [name for name in wanted if name not in there]
    uploads, path = Uploads(server, link.project, project.root), f"/api/projects/{link.project}/import"

    def send(names: list[str]) -> None:
        made = server.post(path, _data(project, link, uploads, names), return_task_ids="true")
        with server.reading(path):
            numbers = [int(number) for number in made["task_ids"]]
        there.update({name: {"id": key, "predictions": []} for name, key in zip(names, numbers, strict=False)})
        if len(numbers) < len(names):
            fewer = len(names) - len(numbers)
            raise ValueError(f"{server.url} must create a task for each item, got {fewer} fewer; check the tasks there")

    _send_missing(server, link, there, lambda: [name for name in new if name not in there][:BLOCK], send)
    return len(new)


def _data(project: Project, link: Link, uploads: Uploads, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return tasks to create."""
    contents = project.contents(names)
    if project.settings.data.kind == "images":
        uploads.need([content or "" for content in contents])
    shown = shown_data(project, lambda path: uploads.address(path))
    return [
        {"data": {ITEM: name, link.key: next(iter(shown(content).values()))}}
        for name, content in zip(names, contents, strict=True)
    ]


def guesses_of(project: Project, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the choices that the model predicts for items outside the audit set; none before there is a model."""
    asked = [name for name, is_audit in zip(names, project.is_audit(names), strict=True) if not is_audit]
    found = project.guess(asked) or []
    return {each.id: [each.label] if isinstance(each.label, str) else each.label or [NONE] for each in found}


def _order(
    link: Link,
    server: Server,
    names: Sequence[str],
    guessed: Mapping[str, Sequence[str]],
    version: str,
    there: dict[str, dict[str, Any]],
) -> None:
    """Write the order as scores of predictions of this version, where they are missing."""
    predictions = {
        name: {
            "score": rank / len(names),
            "model_version": version,
            "result": choice(link.control, link.object, guessed[name]) if name in guessed else [],
        }
        for rank, name in enumerate(names)
    }

    def missing() -> list[str]:
        known = {name: [each.get("model_version") for each in there[name]["predictions"]] for name in names}
        return [name for name in names if version not in known[name]]

    def send(part: list[str]) -> None:
        scores = [{"task": there[name]["id"], **predictions[name]} for name in part]
        server.post(f"/api/projects/{link.project}/import/predictions", scores)
        for name in part:
            there[name]["predictions"].append(predictions[name])

    _send_missing(server, link, there, missing, send)


def _sorted_out(project: Project, found: Iterable[Annotation]) -> tuple[list[Annotation], list[str]]:
    """Return the annotations that can be added, and a sentence about each kind that cannot."""
    is_multi, known = project.labelling.is_multi, set(project.ids())
    classes = {*project.classes, *([NONE] if is_multi else [])}
    new, strange, several, others = [], dict[str, int](), 0, 0
    for each in found:
        if each.item not in known:
            others += 1
        elif len(each.choices or ()) > 1 and (NONE in (each.choices or ()) or not is_multi):
            several += 1
        elif unknown := [name for name in each.choices or () if name not in classes]:
            strange[unknown[0]] = strange.get(unknown[0], 0) + 1
        else:
            new.append(each)
    notes = [
        f"{_counted(count, 'answer is', 'answers are')} {name!r}, which is not a class here; add it with batchbalance "
        "add-class, and pull again"
        for name, count in strange.items()
    ]
    if several:
        what = _counted(several, "answer has", "answers have")
        too_many = f"{NONE!r} among other choices" if is_multi else "more than one choice"
        notes.append(f"{what} {too_many}: left there; let people choose one")
    if others:
        what = _counted(others, "answer is", "answers are")
        notes.append(f"{what} about items that are not in this project: left there")
    return new, notes


def _reopen_disputed(project: Project, server: Server, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Let one more person answer where answers disagree.

    The question does not hold up the batch: Label Studio serves such a task after it, to people who have not answered.
    """
    wanted = project.settings.annotators_per_item
    views = project.views()
    ties = {name: view for name, view in views.items() if view.is_disputed and len(view.answers) >= wanted}
    still = [name for name, view in ties.items() if ASKER in view.open]
    for task in tasks:
        if _item(task) in still:
            more = {"overlap": len(task["annotations"]) + 1, "is_labeled": False}
            server.patch(f"/api/tasks/{task['id']}/", more)
    if still:
        project.skip(still, ASKER)
    if not ties:
        return []
    what = _counted(len(ties), "item has answers that disagree, and is", "items have answers that disagree, and are")
    return [f"{what} not trained on until one more person answers"]


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
