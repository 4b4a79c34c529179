"""Two rounds of labelling through Label Studio's API, as an annotator would.

`make test-labelstudio` runs them on a real server and prints what came out, the fast suite on a small imitation.
"""

import csv
import functools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from batchbalance.project import Project
from batchbalance.project.bridge import link, pull, push
from batchbalance.project.bridge.client import NotThereError
from batchbalance.project.bridge.labelstudio import ASKER

NUM_TEXTS = 60
BATCH = 8
ANIMALS = {"cat": "cats purr and sleep in the sun", "dog": "dogs bark and run after sticks"}


def make_project(folder, **settings):
    """A project of texts whose ids tell their labels: "cat, 7 é" or "dog, 9 é"; a copy of one that is made once."""
    shutil.copytree(made_once(tuple(settings.items())).name, folder, dirs_exist_ok=True)
    return Project.open(folder / "pets")


@functools.cache
def made_once(settings):
    kept = tempfile.TemporaryDirectory()
    sheet = Path(kept.name) / "mails.csv"
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "body"])
        for i in range(NUM_TEXTS):
            name = "cat" if i % 3 else "dog"
            writer.writerow([f"{name}, {i} é", f"{ANIMALS[name]}, number {i}"])
    options = {"encoder": "tfidf", "batch_size": BATCH, "seed": 3, "audit": 0.25, **dict(settings)}
    made = Project.create(Path(kept.name) / "pets", texts=sheet, column="body", classes=["cat", "dog"], **options)
    made.close()
    return kept


def make_pictures(folder):
    """A project of four images."""
    photos = folder / "photos" / "a b"
    photos.mkdir(parents=True)
    for i in range(4):
        Image.new("RGB", (8, 8), (60 * i, 0, 0)).save(photos / f"{i} é.PNG")
    return Project.create(folder / "pics", images=photos.parent, classes=["x", "y"], audit=0.0, image_size=32)


def truth(name):
    return name.split(",")[0]


@dataclass
class Annotator:
    """Somebody who labels what is served, in the order it is served."""

    server: object
    project: int
    served: list = field(default_factory=list)

    def next_task(self):
        try:
            return self.server.get(f"/api/projects/{self.project}/next/")
        except NotThereError:
            return None

    def answer(self, task, label, seconds=2.5):
        """Submit a label, or skip if there is none; the number of the annotation."""
        result = [] if label is None else [self.choice(label)]
        values = {"result": result, "lead_time": seconds, "was_cancelled": label is None}
        self.served.append(task["data"]["item_id"])
        return self.server.post(f"/api/tasks/{task['id']}/annotations/", values)["id"]

    def correct(self, number, label):
        self.server.patch(f"/api/annotations/{number}/", {"result": [self.choice(label)], "lead_time": 4.0})

    def choice(self, label):
        return {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": [label]}}


def first_round(project, server, restart, say):
    """Link, push, label with a restart in the middle, pull, correct, pull; the link."""
    linked, notes = link(project, server)
    assert notes == ()
    say(f"linked to project {linked.project}")
    pushed = push(project, linked, server)
    assert (len(pushed.ids), pushed.created) == (BATCH, BATCH)
    someone = Annotator(server, linked.project)
    numbers = {}
    while (task := someone.next_task()) is not None:
        item = task["data"]["item_id"]
        is_second = len(someone.served) == 1
        numbers[item] = someone.answer(task, None if is_second else truth(item))
        if len(someone.served) == BATCH // 2:
            half = pull(project, linked, server)
            assert (half.told.labelled, half.told.skipped, half.left) == (BATCH // 2 - 1, 1, BATCH // 2)
            restart()
            again = push(project, linked, server)
            assert (again.ids, again.created) == (pushed.ids[BATCH // 2 :], 0)
            say(f"restarted after {BATCH // 2} answers; pushed again: {again.created} tasks created")
    say(f"round 1: pushed {' | '.join(pushed.ids)}")
    say(f"round 1: served {' | '.join(someone.served)}")
    assert tuple(someone.served) == pushed.ids
    rest = pull(project, linked, server)
    assert (rest.told.labelled, rest.left, rest.notes) == (BATCH // 2, 0, ())
    first, skipped = pushed.ids[:2]
    someone.correct(numbers[first], "dog" if truth(first) == "cat" else "cat")
    after = pull(project, linked, server)
    assert (after.told.labelled, after.told.corrected, after.told.skipped) == (0, 1, 0)
    assert project.labels[first] != truth(first)
    assert skipped not in project.labels
    nothing = pull(project, linked, server)
    assert (nothing.told.labelled, nothing.told.corrected, nothing.told.skipped) == (0, 0, 0)
    say(f"round 1: {len(project.labels)} labels, 1 skipped, 1 corrected; the same pull again brought nothing")
    return linked


def second_round(project, linked, server, say):
    """Push with guesses, delete a task, label the rest, pull. Somebody imported the tasks before, in another order."""
    asked = project.ask(None, ASKER)
    backwards = list(zip(asked.ids, asked.contents, strict=True))[::-1]
    data = [{"data": {"item_id": name, "text": text}} for name, text in backwards]
    server.post(f"/api/projects/{linked.project}/import", data, return_task_ids="true")
    pushed = push(project, linked, server, guesses=True)
    assert (pushed.ids, pushed.created) == (asked.ids, 0)
    is_audit = dict(zip(pushed.ids, project.is_audit(pushed.ids), strict=True))
    assert set(is_audit.values()) == {True, False}
    tasks = {task["data"]["item_id"]: task for task in server.tasks(linked.project)}
    for name in pushed.ids:
        (order,) = [x for x in tasks[name]["predictions"] if x["model_version"] == pushed.version]
        assert (order["result"] == []) == is_audit[name]
    num_audit = sum(is_audit.values())
    say(f"round 2: guesses on {BATCH - num_audit} items, none on {num_audit} audit items")
    gone = pushed.ids[3]
    delete_task(server, tasks[gone]["id"])
    someone = Annotator(server, linked.project)
    while (task := someone.next_task()) is not None:
        someone.answer(task, truth(task["data"]["item_id"]))
    say(f"round 2: pushed {' | '.join(pushed.ids)}; deleted there {gone}")
    say(f"round 2: served {' | '.join(someone.served)}")
    assert tuple(someone.served) == tuple(name for name in pushed.ids if name != gone)
    pulled = pull(project, linked, server)
    assert (pulled.told.labelled, pulled.left) == (BATCH - 1, 0)
    assert pulled.notes == ("1 task was deleted there; its item counts as skipped, and labels are kept",)
    assert gone not in project.labels
    who, seconds = {(event.who, event.seconds) for event in project.events() if event.kind == "labelled"}.pop()
    say(f"round 2: {len(project.labels)} labels in all, by {who}, {seconds} s each; {pulled.notes[0]}")


def pictures(project, server, download, say):
    """Upload images, and look at what is there."""
    linked, _ = link(project, server)
    pushed = push(project, linked, server)
    for task in server.tasks(linked.project):
        assert download(task["data"]["image"]) == (project.root / task["data"]["item_id"]).read_bytes()
    again = push(project, linked, server)
    files = server.get(f"/api/projects/{linked.project}/file-uploads", all="true")
    assert (pushed.created, again.created, len(files)) == (4, 0, 4)
    say(f"images: {len(files)} uploaded, each the same there; pushed again: {again.created} tasks created")


def delete_task(server, number):
    server._once("DELETE", f"/api/tasks/{number}/")
