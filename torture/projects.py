"""Projects under fire: killed between any two events, every page of their database flipped, disks that are full."""

import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from batchbalance.errors import FileFormatError
from batchbalance.learner.labels import EventLog
from batchbalance.project import Project
from torture.campaign import Finding, campaign

NUM_ITEMS = 40
PAGE = 4096


def begin(folder: Path) -> Project:
    """The project of the script; made if it is not there."""
    if (folder / "p" / "project.toml").is_file():
        return Project.open(folder / "p")
    rng = np.random.default_rng(0)
    if not (folder / "e.npy").is_file():
        np.save(folder / "part.npy", rng.normal(size=(NUM_ITEMS, 3)).astype(np.float32))
        np.save(folder / "more.npy", rng.normal(size=(6, 3)).astype(np.float32))
        (folder / "more.ids.txt").write_text("\n".join(f"n{i}" for i in range(6)))
        (folder / "part.npy").replace(folder / "e.npy")
    return Project.create(
        folder / "p",
        embeddings=folder / "e.npy",
        classes=["a", "b", "c"],
        audit=0.2,
        random_arm=0.2,
        model={"kind": "committee", "size": 2, "max_depth": 2},
    )


def label(name: str) -> str:
    """The answer to a question."""
    return "abc"[sum(name.encode()) % 3]


# What people do, in order; each writes one transaction at most.
STEPS: list[Callable[[Project], Any]] = [
    lambda p: p.ask(6),
    lambda p: p.tell({name: label(name) for name in p.open_questions()[:3]}, seconds=1.5),
    lambda p: p.skip(p.open_questions()[0]),
    lambda p: p.flag(p.open_questions()[0], "odd"),
    lambda p: p.undo(),
    lambda p: p.tell({name: label(name) for name in p.open_questions()}),
    lambda p: p.tell({sorted(p.labels)[0]: "c", sorted(p.labels)[1]: "b"}),
    lambda p: p.undo(n=2),
    lambda p: p.ask(5, "Ann"),
    lambda p: p.ask(5, "Bob"),
    lambda p: p.tell({name: label(name) for name in p.open_questions("Ann")}, "Ann"),
    lambda p: p.give_back(p.open_questions("Bob")[:2], "Bob"),
    lambda p: p.add_class("d"),
    lambda p: p.rename_class("a", "aa"),
    lambda p: p.comment(sorted(p.labels)[0], "why?", "Ann"),
    lambda p: p.tell(dict.fromkeys(p.open_questions("Bob"), "d"), "Bob"),
    lambda p: p.add_items(p.folder.parent / "more.npy"),
    lambda p: p.ask(12, again=True),
    lambda p: p.tell({name: "aa" if label(name) == "a" else label(name) for name in p.open_questions()}),
    lambda p: p.undo("Ann"),
]


def play(folder: Path, counts: list[int] | None = None) -> list[int]:
    """Do what is not done yet; the number of events after each step. `counts` are those of an undisturbed run."""
    project = begin(folder)
    found = []
    for number, step in enumerate(STEPS):
        if counts is None or len(project.events()) < counts[number]:
            step(project)
        found.append(len(project.events()))
    return found


def story(folder: Path) -> list[tuple[Any, ...]]:
    """What happened, without the times."""
    project = Project.open(folder / "p")
    return [(x.number, x.kind, x.who, x.item, str(x.value), x.seconds, x.batch) for x in project.events()]


@contextmanager
def deadly(at: int, before_commit: bool, acknowledged: int) -> Iterator[None]:
    """Kill this process at an event: before it is committed, or as soon as it is; `acknowledged` is a file handle."""
    append, writing = EventLog.append, EventLog.writing
    count = 0

    def dying(self: EventLog, new: Any) -> Any:
        nonlocal count
        found = append(self, new)
        count += len(new)
        if before_commit and count >= at:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    @contextmanager
    def acknowledging(self: EventLog) -> Iterator[Any]:
        with writing(self) as connection:
            yield connection
        os.write(acknowledged, f"{len(self.events())}\n".encode())
        if count >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    EventLog.append, EventLog.writing = dying, acknowledging  # type: ignore[method-assign]
    try:
        yield
    finally:
        EventLog.append, EventLog.writing = append, writing  # type: ignore[method-assign]


def child(work: Callable[[int], None]) -> tuple[int, list[int]]:
    """Run `work` in a process of its own; how it ended, and the numbers of events that it was told are kept."""
    reading, handle = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            import torch

            torch.set_num_threads(1)
            work(handle)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(handle)
    with os.fdopen(reading) as stream:
        told = [int(line) for line in stream]
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), told


@campaign("kill project", "a project killed between any two events loses nothing, and ends as it would have", 2)
def kill_project(folder: Path, random: Random) -> Finding:
    """Kill a scripted sequence at random events until it is done, and compare with an undisturbed one."""
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir()
    killed.mkdir()
    counts = play(whole)
    kills, most = 0, 0
    while True:
        at, before = random.randint(1, 25), random.random() < 0.5

        def work(handle: int, at: int = at, before: bool = before) -> None:
            with deadly(at, before, handle):
                play(killed, counts)

        code, told = child(work)
        most = max([most, *told])
        if code not in (0, -signal.SIGKILL):
            return Finding("traceback", f"exit code {code} after {kills} kills")
        if (killed / "p" / "labels.sqlite").is_file() and len(story(killed)) < most:
            return Finding("lost", f"{most} events were acknowledged, {len(story(killed))} are there")
        if code == 0:
            break
        kills += 1
    if story(killed) != story(whole):
        return Finding("different", f"another story after {kills} kills")
    return Finding("intact", f"{kills} kills of a project")


@campaign("kill annotators", "two people at once, killed now and then, never get the same item nor lose a label")
def kill_annotators(folder: Path, random: Random) -> Finding:
    """Two processes ask and tell at once; each is killed a few times."""
    begin(folder).close()
    told: dict[str, int] = {}
    for _ in range(3):
        processes = []
        for who in ("Ann", "Bob"):
            at, before = random.randint(3, 14), random.random() < 0.5
            processes.append(_annotator(folder, who, at, before))
        for who, (process, stream) in zip(("Ann", "Bob"), processes, strict=True):
            with stream:
                told[who] = max([told.get(who, 0), *(int(line) for line in stream)])
            if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) not in (0, -signal.SIGKILL):
                return Finding("traceback", f"{who} ended with an error")
    project = Project.open(folder / "p")
    if len(project.events()) < max(told.values()):
        return Finding("lost", f"{max(told.values())} events were acknowledged, {len(project.events())} are there")
    for row, view in project.store.snapshot().items.items():
        if len(set(view.answers) | set(view.open)) > 1:
            return Finding("different", f"row {row} was asked of two people")
    wrong = [name for name, told_label in project.labels.items() if told_label != label(name)]
    return Finding("different", f"labels changed: {wrong}") if wrong else Finding("intact", "two annotators")


def _annotator(folder: Path, who: str, at: int, before: bool) -> tuple[int, Any]:
    reading, handle = os.pipe()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            import torch

            torch.set_num_threads(1)
            os.close(reading)
            with deadly(at, before, handle):
                project = Project.open(folder / "p")
                for _ in range(4):
                    project.tell({name: label(name) for name in project.ask(3, who).ids}, who)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(handle)
    return process, os.fdopen(reading)


@campaign("damaged project", "a project with a bit flipped in any page of its database is refused, or is as it was")
def damaged_project(folder: Path, random: Random) -> Finding:
    """Flip a bit in every page in turn, and open."""
    play(folder)
    expected, labels = story(folder), Project.open(folder / "p").labels
    path = folder / "p" / "labels.sqlite"
    content = path.read_bytes()
    refused = 0
    for start in range(0, len(content), PAGE):
        at, bit = random.randrange(start, start + PAGE), random.randrange(8)
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        path.write_bytes(flipped)
        what = f"bit {bit} of byte {at} of {len(content)}"
        try:
            project = Project.open(folder / "p")
            same = project.labels == labels and story(folder) == expected
            rows = [project.store.row_of(name) for name in project.ids()]
            project.close()
        except FileFormatError:
            refused += 1
        except Exception:
            return Finding("traceback", f"{what}: {traceback.format_exc()}")
        else:
            if not same or rows != list(range(NUM_ITEMS + 6)):
                return Finding("different", what)
        for beside in folder.glob("p/labels.sqlite-*"):
            beside.unlink()
    return Finding("refused" if refused else "intact", f"{len(content) // PAGE} pages, {refused} refused")


@campaign("full project", "on a full disk a project says so in one sentence, and keeps all that was acknowledged")
def full_project(folder: Path, random: Random) -> Finding:
    """Limit the size of files while labels are told."""
    project = begin(folder)
    project.close()
    size = (folder / "p" / "labels.sqlite").stat().st_size
    limit = size + random.randrange(0, 80_000)

    def work(handle: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        full = Project.open(folder / "p")
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            while True:
                for name in ("0", "1"):
                    full.comment(name, "x" * 200)
                    os.write(handle, f"{len(full.events())}\n".encode())
        except OSError as error:
            if "\n" in str(error) or "intact" not in str(error):
                raise

    code, told = child(work)
    if code:
        return Finding("traceback", f"exit code {code} with {limit} bytes")
    kept = len(Project.open(folder / "p").events())
    if kept < max(told, default=0):
        return Finding("lost", f"{max(told)} events were acknowledged, {kept} are there")
    return Finding("intact", f"a disk that is full after {limit} bytes")
