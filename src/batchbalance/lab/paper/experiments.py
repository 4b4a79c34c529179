"""Every figure and table of the paper by name: one TOML file each, in the folder `settings`.

A file holds a title, what it shows, and one table for each preset:

    [paper]    all settings of the paper; where it does not specify one, that of its released code
    [released] settings of that code that differ; `script` names the file that values are read from
    [laptop]   changes for a laptop with two cores; `reduced` and `cost` describe what was cut and what it costs
    [smoke]    changes to finish in seconds, on generated data of the same shape
    [[parts]]  panels or rows that differ in some settings; each may have its own tables `laptop` and `smoke`

An experiment is one comparison for each part. Figures that are not learning curves are drawn by
`results/paper/analyse.py` of the repository.
"""

import tomllib
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from batchbalance.arguments.sections import check_keys
from batchbalance.errors import UnknownNameError
from batchbalance.lab.config import Comparison, comparison_of
from batchbalance.lab.strategies import LAB_STRATEGIES
from batchbalance.posteriors import MCDropoutOptions
from batchbalance.strategies import AUTO, ConnectedStrategy

PRESETS = ("paper", "released", "laptop", "smoke")
TEXTS = ("title", "shows", "reduced", "cost", "script")
SETTINGS = files(__package__ or "") / "settings"


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper.

    Attributes:
        name: the name to run it by.
        title: a short description.
        shows: the figure or table of the paper.
        reduced: what the laptop preset cuts.
        cost: the cost of the laptop preset, and how it was determined.
        script: the file of the paper's released code that values are read from, or None.
        presets: the table of each preset.
        parts: the tables of the parts, by name; one without changes, named "", if the file has none.
    """

    name: str
    title: str
    shows: str
    reduced: str
    cost: str
    script: str | None = None
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def settings(self, preset: str, part: str = "") -> dict[str, Any]:
        """Return the settings of one part: the paper's, overridden by the preset's, then by the part's own."""
        if preset not in PRESETS:
            raise UnknownNameError("preset", preset, PRESETS)
        if preset == "released" and not self.presets[preset]:
            raise ValueError(
                f"`preset` must not be 'released' for {self.name!r}: it has no known released script; use 'paper'"
            )
        own = self.parts[part]
        shared = {key: value for key, value in own.items() if key not in PRESETS}
        settings = merged(self.presets["paper"], self.presets[preset])
        return merged(merged(settings, shared), own.get(preset, {}))

    def comparisons(
        self, preset: str, changes: Iterable[str] = (), *, equal_draws: bool | None = None
    ) -> dict[str, Comparison]:
        """Return one comparison for each part, by the part's name.

        Args:
            preset: one of `PRESETS`.
            changes: settings that take precedence over the file's, as in `config.read_comparison`.
            equal_draws: give all strategies the same S = 2K draws of MC dropout. If False, strategies without edges
                have K of them, as in the paper (section 4.3, table 1). If omitted: False for "paper" and "released",
                else True.
        """
        changes = list(changes)
        found = {part: comparison_of(self.settings(preset, part), changes) for part in self.parts}
        if equal_draws is None:
            equal_draws = preset not in ("paper", "released")
        return found if equal_draws else {part: halved_draws(comparison) for part, comparison in found.items()}


def halved_draws(comparison: Comparison) -> Comparison:
    """Return the settings with half of the draws of MC dropout for strategies without edges.

    A strategy whose table gives `num_draws` keeps that number.
    """
    posterior = comparison.posterior
    if not isinstance(posterior, MCDropoutOptions):
        return comparison
    half = max(1, posterior.num_draws // 2)
    entries: list[Any] = []
    for entry in comparison.strategies:
        table = {"name": entry} if isinstance(entry, str) else dict(entry)
        joins = table["name"] != AUTO and issubclass(LAB_STRATEGIES.named(table["name"]), ConnectedStrategy)
        entries.append(entry if joins or "num_draws" in table else {**table, "num_draws": half})
    return comparison.model_copy(update={"strategies": entries})


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables key by key; `above` takes precedence."""
    result = deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else deepcopy(value)
    return result


def experiment_names() -> list[str]:
    """Return the names of all experiments, sorted."""
    return sorted(each.name.removesuffix(".toml") for each in SETTINGS.iterdir() if each.name.endswith(".toml"))


def experiment(name: str) -> Experiment:
    """Return the experiment with this name; the error for an unknown name suggests the nearest one."""
    names = experiment_names()
    if name not in names:
        raise UnknownNameError("experiment", name, names)
    return read_experiment(SETTINGS / f"{name}.toml")


def read_experiment(path: Traversable) -> Experiment:
    """Read the settings of an experiment; it has the name of its file."""
    name = path.name.removesuffix(".toml")
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    check_keys(f"the experiment {name!r}", content, (*TEXTS, "parts", *PRESETS))
    parts = {part["name"]: {k: v for k, v in part.items() if k != "name"} for part in content.get("parts", [])}
    return Experiment(
        name=name,
        **{key: content[key] for key in TEXTS if key in content},
        presets={preset: content.get(preset, {}) for preset in PRESETS},
        parts=parts or {"": {}},
    )
