"""Linking a project to one on a Label Studio server."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from batchbalance.project import Project
from batchbalance.project.bridge.client import Control, LinkedProject, NotThereError, Server
from batchbalance.project.bridge.tasks import CONTROL, Names, shown_data
from batchbalance.project.settings import SourceKind
from batchbalance.system.sealed import read_sealed, write_sealed

OBJECTS: dict[SourceKind, tuple[str, ...]] = {  # what can show items, the one we propose first
    "images": ("Image",),
    "texts": ("Text", "HyperText"),
    "table": ("Text", "HyperText"),
}


@dataclass(frozen=True)
class Fitting:
    """The parts of a labelling config that fit a project.

    Attributes:
        names: of the choices and of what they are about.
        key: where a task's data hold what is shown.
        unknown: choices that are not classes of the project.
    """

    names: Names
    key: str
    unknown: tuple[str, ...]


def proposed_config(kind: SourceKind, classes: Sequence[str]) -> str:
    """Return a labelling config with one choice for each class."""
    shown = "image" if kind == "images" else "text"
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View>\n  <{OBJECTS[kind][0]} name="{shown}" value="${shown}"/>\n'
        f'  <Choices name="{CONTROL}" toName="{shown}" choice="single" required="true" showInline="true">\n'
        f"{choices}\n  </Choices>\n</View>"
    )


def fitting(parsed: Mapping[str, Control], kind: SourceKind, classes: Sequence[str], where: str) -> Fitting:
    """Return the part of an existing config that asks for the project's classes.

    Args:
        parsed: a project's `parsed_label_config`.
        kind: of the items.
        classes: of the project.
        where: the project there, for messages.

    Raises:
        ValueError: if it has no such part.
    """
    about = OBJECTS[kind]
    shown = {name: _shown(control, about) for name, control in parsed.items() if control.get("type") == "Choices"}
    found = [name for name, pair in shown.items() if pair is not None]
    if not found:
        raise ValueError(
            f"the labelling config of {where} must have Choices about {about[0]} ${about[0].lower()}; change it in "
            "Settings, Labeling Interface, or link a project without a config"
        )
    name = max(found, key=lambda each: len(set(parsed[each].get("labels", ())) & set(classes)))
    labels = parsed[name].get("labels", [])
    missing = [each for each in classes if each not in labels]
    if missing:
        raise ValueError(
            f"the choices {name!r} of {where} must have every class, got none for {', '.join(missing)}; add them in "
            "Settings, Labeling Interface"
        )
    unknown = tuple(each for each in labels if each not in classes)
    of, key = shown[name] or ("", "")
    return Fitting(Names(name, of), key, unknown)


def _shown(control: Control, about: Sequence[str]) -> tuple[str, str] | None:
    """Return the name of what a control is about, and the key of its data; None if it is about something else."""
    for name, each in zip(control.get("to_name", ()), control.get("inputs", ()), strict=False):
        if each.get("type") in about and "value" in each:
            return name, each["value"].lstrip("$")
    return None


FILE = "labelstudio.json"
TITLE = (3, 50)  # letters that a title may have there


@dataclass(frozen=True)
class Link:
    """Where a project is labelled; kept in `labelstudio.json`, without a token.

    Attributes:
        url: of the server.
        project: the number of the project there.
        control: the name of its choices.
        object: the name of what they are about.
        key: where a task's data hold what is shown.
    """

    url: str
    project: int
    control: str
    object: str
    key: str

    @property
    def names(self) -> Names:
        """Of the parts of the labelling config."""
        return Names(self.control, self.object)

    def note(self, **values: Any) -> dict[str, Any]:
        """Return what to remember in the log."""
        return {"server": self.url, "project": self.project, **values}

    def notes(self, project: Project, key: str) -> list[Any]:
        """Return what was remembered under a key about this server and project, oldest first."""
        events = [event.value for event in project.events() if event.kind == "recorded"]
        mine = [each for each in events if (each.get("server"), each.get("project")) == (self.url, self.project)]
        return [each[key] for each in mine if key in each]

    @classmethod
    def of(cls, project: Project) -> "Link":
        """Return the link of a project.

        Raises:
            FileNotFoundError: if there is none.
        """
        path = project.folder / FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{project.folder} is not linked yet; link it with: batchbalance labelstudio link {project.folder}"
            )
        return cls(**read_sealed(path, "link the project again"))


def link(project: Project, server: Server, number: int | None = None) -> tuple[Link, tuple[str, ...]]:
    """Link a project to one on a server, whose labelling config is checked; return the link and notes.

    Args:
        project: the project here.
        server: the server.
        number: of the project there; None makes one. One without a labelling config gets the one we propose.
    """
    kind, classes = project.settings.data.kind, project.classes
    shown_data(project, str)  # refuses what cannot be shown
    config = proposed_config(kind, classes)
    if number is None:
        made = server.post("/api/projects/", {"title": _title(project.folder), "label_config": config})
        found = _understood(server, made)
    else:
        found = _project(server, number)
        if not found["parsed_label_config"]:
            found = _understood(server, server.patch(f"/api/projects/{number}/", {"label_config": config}))
    fits = _fitting(project, server, found)
    linked = Link(server.url, found["id"], fits.names.control, fits.names.object, fits.key)
    write_sealed(project.folder / FILE, asdict(linked), indent=2)
    return linked, _about_unknown(fits.unknown)


def _title(folder: Path) -> str:
    name = folder.resolve().name
    return (name if len(name) >= TITLE[0] else f"{name} project")[: TITLE[1]]


def _project(server: Server, number: int) -> LinkedProject:
    try:
        return _understood(server, server.get(f"/api/projects/{number}/"))
    except NotThereError:
        raise ValueError(f"{server.url} has no project {number}, or not for the owner of this token") from None


def _understood(server: Server, content: Any) -> LinkedProject:
    return server.understood(content, LinkedProject, "/api/projects/")


def _fitting(project: Project, server: Server, found: LinkedProject) -> Fitting:
    where = f"project {found['id']} on {server.url}"
    return fitting(found["parsed_label_config"], project.settings.data.kind, project.classes, where)


def check_config(project: Project, link: Link, server: Server) -> tuple[str, ...]:
    """Refuse a labelling config that no longer fits; return notes on it."""
    return _about_unknown(_fitting(project, server, _project(server, link.project)).unknown)


def _about_unknown(unknown: Sequence[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    return (f"choices there that are not classes here: {', '.join(unknown)}; add them with batchbalance add-class",)
