"""Labelling configs of Label Studio: one proposed from a project's classes, an existing one checked against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from batchbalance.project.bridge.shapes import Control
from batchbalance.project.bridge.tasks import CONTROL, Names
from batchbalance.project.settings import SourceKind

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
