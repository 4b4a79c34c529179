"""Link a project to one on a Label Studio server."""

import re
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from batchbalance.project import Project
from batchbalance.project.bridge.client import NotThereError, Server
from batchbalance.project.bridge.tasks import CONTROL, shown_data
from batchbalance.project.labelling import NONE, Labelling
from batchbalance.project.settings import SourceKind
from batchbalance.system.sealed import read_sealed, write_sealed

FILE = "labelstudio.json"
TITLE = (3, 50)  # least and greatest length of a title there
OBJECTS: dict[SourceKind, tuple[str, ...]] = {  # tags that can show items, the default first
    "images": ("Image",),
    "texts": ("Text", "HyperText"),
    "table": ("Text", "HyperText"),
}


@dataclass(frozen=True)
class Link:
    """The link to a Label Studio project, stored in `labelstudio.json` without a token.

    Attributes:
        url: the address of the server.
        project: the number of the project there.
        control: the name of its choices.
        object: the name of the object that they are about.
        key: the key of the shown value in a task's data.
    """

    url: str
    project: int
    control: str
    object: str
    key: str

    def note(self, **values: Any) -> dict[str, Any]:
        """Return a note to record in the log."""
        return {"server": self.url, "project": self.project, **values}

    def notes(self, project: Project, key: str) -> list[Any]:
        """Return the notes in the log under a key for this server and project, oldest first."""
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
    """Link a project to one on a server after checking its labelling config; return the link and notes.

    Args:
        project: the local project.
        server: the server.
        number: the number of the project there; None creates one. A project without a labelling config gets a default.
    """
    shown_data(project, str)  # raises for items that cannot be shown
    config = proposed_config(project.settings.data.kind, project.labelling)
    path = "/api/projects/" if number is None else f"/api/projects/{number}/"
    if number is None:
        name = project.folder.resolve().name
        title = (name if len(name) >= TITLE[0] else f"{name} project")[: TITLE[1]]
        found = server.post(path, {"title": title, "label_config": config})
    else:
        found = _project(server, number)
        with server.reading(path):
            has_config = bool(found["parsed_label_config"])
        found = found if has_config else server.patch(path, {"label_config": config})
    linked, notes = _fitted(project, server, found)
    write_sealed(project.folder / FILE, asdict(linked), indent=2)
    return linked, notes


def check_config(project: Project, link: Link, server: Server) -> tuple[str, ...]:
    """Refuse a labelling config that no longer fits; return notes on it."""
    return _fitted(project, server, _project(server, link.project))[1]


def proposed_config(kind: SourceKind, labelling: Labelling) -> str:
    """Return a labelling config with one choice for each class, and one for none of them where several are allowed."""
    shown, several = "image" if kind == "images" else "text", "multiple" if labelling.is_multi else "single"
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in _choices(labelling))
    return (
        f'<View>\n  <{OBJECTS[kind][0]} name="{shown}" value="${shown}"/>\n'
        f'  <Choices name="{CONTROL}" toName="{shown}" choice="{several}" required="true" showInline="true">\n'
        f"{choices}\n  </Choices>\n</View>"
    )


def _choices(labelling: Labelling) -> list[str]:
    return [*labelling.classes, *([NONE] if labelling.is_multi else [])]


def _project(server: Server, number: int) -> Any:
    try:
        return server.get(f"/api/projects/{number}/")
    except NotThereError:
        raise ValueError(f"{server.url} has no project {number}, or not for the owner of this token") from None


def _fitted(project: Project, server: Server, found: Any) -> tuple[Link, tuple[str, ...]]:
    """Return the link to the choices with the project's classes, and a note on choices that are not classes.

    Raises:
        ValueError: if the labelling config has no such choices, or not for every class.
    """
    about, classes = OBJECTS[project.settings.data.kind], project.classes
    is_multi = project.labelling.is_multi
    shown, choices = dict[str, tuple[str, str]](), dict[str, list[str]]()
    with server.reading("/api/projects/"):
        number = int(found["id"])
        for name, control in found["parsed_label_config"].items():
            if control.get("type") == "Choices":
                choices[name] = list(map(str, control.get("labels", ())))
                for to_name, each in zip(control.get("to_name", ()), control.get("inputs", ()), strict=False):
                    if each.get("type") in about and "value" in each:
                        shown.setdefault(name, (str(to_name), each["value"].lstrip("$")))
    where = f"project {number} on {server.url}"
    if not shown:
        raise ValueError(
            f"the labelling config of {where} must have Choices about {about[0]} ${about[0].lower()}; change it in "
            "Settings, Labeling Interface, or link a project without a config"
        )
    name = max(shown, key=lambda each: len(set(choices[each]) & set(classes)))
    labels = choices[name]
    missing = [each for each in classes if each not in labels]
    if missing:
        raise ValueError(
            f"the choices {name!r} of {where} must have every class, got none for {', '.join(missing)}; add them in "
            "Settings, Labeling Interface"
        )
    tag = re.search(rf"<Choices\b[^>]*\bname={re.escape(quoteattr(name))}[^>]*>", str(found.get("label_config", "")))
    if is_multi and (tag is None or 'choice="multiple"' not in tag[0]):
        raise ValueError(
            f'the choices {name!r} of {where} must have choice="multiple", because an item may have several labels; '
            "change it in Settings, Labeling Interface"
        )
    unknown = ", ".join(each for each in labels if each not in _choices(project.labelling))
    note = f"choices there that are not classes here: {unknown}; add them with batchbalance add-class"
    return Link(server.url, number, name, *shown[name]), (note,) if unknown else ()
