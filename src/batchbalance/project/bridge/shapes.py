"""What Label Studio answers, as far as we look at it: `Server.understood` refuses what has another shape."""

from typing import Any

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic, which brings it, takes that of typing from Python 3.12 on

open_ended = with_config(ConfigDict(extra="allow"))  # what we do not look at is kept as it is


class Access(TypedDict):
    """An access token."""

    access: str


class User(TypedDict):
    """A person who may label."""

    id: int
    email: str


class ConfigInput(TypedDict, total=False):
    """What a labelling config shows."""

    type: str
    value: str


class Control(TypedDict, total=False):
    """A part of a labelling config that asks for something."""

    type: str
    to_name: list[str]
    inputs: list[ConfigInput]
    labels: list[str]


class LinkedProject(TypedDict):
    """A project there."""

    id: int
    parsed_label_config: dict[str, Control]


class Upload(TypedDict):
    """A file there."""

    file: str


class Imported(TypedDict):
    """The numbers of tasks that were created."""

    task_ids: list[int]


@open_ended
class Given(TypedDict):
    """An annotation."""

    id: int
    result: list[dict[str, Any]]


@open_ended
class Task(TypedDict):
    """A task with its annotations and predictions."""

    id: int
    data: dict[str, Any]
    annotations: list[Given]
    predictions: list[dict[str, Any]]


class Tasks(TypedDict):
    """A page of tasks."""

    tasks: list[Task]
    total: int
