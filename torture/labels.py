"""Labels under fire: a project is killed at any instant of a transaction, damaged or copied then, and opened again."""

import os
import signal
import traceback
import warnings
from pathlib import Path
from random import Random

from batchbalance.errors import FileFormatError
from batchbalance.project import Project
from batchbalance.project.stopping import read_rounds
from torture.campaign import Finding, campaign
from torture.projects import begin, child, label, play, story

NAMES = ("0", "1", "2")


def flipped(path: Path, random: Random) -> str:
    """Flip one bit of a file; what was done."""
    content = bytearray(path.read_bytes())
    at, bit = random.randrange(len(content)), random.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {len(content)} in {path.name} flipped"


def files_of(folder: Path) -> list[Path]:
    """All files in a folder that hold something."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def said(folder: Path) -> list[str]:
    """The comments of a project, in order."""
    project = Project.open(folder)
    found = [str(event.value) for event in project.events() if event.kind == "commented"]
    project.close()
    return found


@campaign(
    "kill and damage labels",
    "a project killed at any instant, then damaged or copied, is refused or has all that was acknowledged",
    2,
)
def kill_and_damage(folder: Path, random: Random) -> Finding:
    """Kill a process that writes by a timer; flip a bit in the database or the journal, or take the journal away."""
    begin(folder).close()
    path = folder / "p"
    seconds, length = random.uniform(0.001, 0.2), random.choice([10, 300, 6000])

    def work(handle: int) -> None:
        project = Project.open(path)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM is not handled: it ends the process wherever it is
        for number in range(10_000):
            project.comment(NAMES[number % 3], f"{number} " + "x" * length)
            os.write(handle, f"{number + 1}\n".encode())

    code, told = child(work)
    if code != -signal.SIGALRM:
        return Finding("traceback", f"exit code {code}")
    journal, acknowledged = path / "labels.sqlite-journal", max(told, default=0)
    what = f"killed after {acknowledged} comments, {'with' if journal.exists() else 'without'} a journal"
    choice = random.random()
    if choice < 0.2:
        journal.unlink(missing_ok=True)
        what += ", which was removed"
    elif choice < 0.9:
        held = [each for each in (journal, journal, path / "labels.sqlite") if each.exists() and each.stat().st_size]
        what += f"; {flipped(random.choice(held), random)}"
    try:
        found = said(path)
        if len(found) < acknowledged or any(not text.startswith(f"{i} ") for i, text in enumerate(found)):
            return Finding("lost", f"{what}: {len(found)} are there")
        project = Project.open(path)
        project.comment("0", f"{len(found)} more")
        project.close()
        if said(path) != [*found, f"{len(found)} more"]:
            return Finding("different", f"{what}, after another comment")
    except FileFormatError as error:
        remedied = "restore it from a copy" in str(error) and "\n" not in str(error)
        return Finding("refused" if remedied else "traceback", f"{what}: {error}")
    except Exception:
        return Finding("traceback", f"{what}: {traceback.format_exc()}")
    return Finding("intact", what)


@campaign("damaged files of a project", "with a bit flipped in any file a project is refused, or its labels stay")
def damaged_files(folder: Path, random: Random) -> Finding:
    """Flip a bit in every file in turn, open the project, and compare what people said and the models' records."""
    play(folder)
    path = folder / "p"
    project = Project.open(path)
    project.tell({name: "aa" if label(name) == "a" else label(name) for name in project.open_questions()})
    project.status()
    rows = project.model.fixed_rows(project.store.snapshot())
    expected, labels, records = story(folder), project.labels, str(read_rounds(path, rows))
    project.close()
    refused = 0
    files = files_of(path)
    for file in files:
        content = file.read_bytes()
        what = flipped(file, random)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opened = Project.open(path)
                opened.status()
                same = opened.labels == labels and str(read_rounds(path, rows)) == records
                opened.close()
            if not same or story(folder) != expected:
                return Finding("different", what)
        except (ValueError, OSError) as error:
            if "\n" in str(error):
                return Finding("traceback", f"{what}: {error}")
            refused += 1
        except Exception:
            return Finding("traceback", f"{what}: {traceback.format_exc()}")
        file.write_bytes(content)
    return Finding("refused" if refused else "intact", f"{len(files)} files, {refused} refused")
