"""The settings of a run: read from TOML, validated and hashed.

A TOML file describes one comparison: settings that all its runs share, and a list of strategies. `Comparison.runs`
returns one `RunConfig` for each strategy. The extent of a run (trials, budget, target error) is not part of it, so that
a run can be extended later.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Set
from copy import deepcopy
from dataclasses import asdict, fields, replace
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from batchbalance.arguments.registry import check_paths, texts_in
from batchbalance.arguments.sections import (
    Flag,
    NotNegative,
    Section,
    Threads,
    Whole,
    check_fields,
    check_keys,
    fields_of,
    parsed,
)
from batchbalance.balance.edges import EdgeSettings
from batchbalance.encoders.embedding import metric_of, runs_own_code
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.lab.data import DATASETS, GENERATED, PAPER_SIZES, REPEATED_COPIES, OwnData, SplitSizes
from batchbalance.lab.data.own import is_own
from batchbalance.lab.data.splits import NOISE
from batchbalance.lab.records import changed_settings, settings_hash, strategy_label
from batchbalance.lab.strategies import lab_strategy
from batchbalance.posteriors import MCDropoutOptions, PosteriorFit, PosteriorOptions, posterior_options
from batchbalance.posteriors.training import Recipe
from batchbalance.posteriors.training.networks import NETWORKS, check_network, network_named, network_options
from batchbalance.strategies import AUTO, Random, Strategy
from batchbalance.strategies.probing import parts_read

MAX_TRIALS = 10_000
# Settings that were added after runs had been recorded. At these values, the earlier behaviour, they are omitted
# from the settings of a run, so that it is still found by its hash.
ADDED: dict[str, dict[str, Any]] = {
    "data": {
        **{"column": None, "encoder": None, "image_size": None, "labels": None},
        **{"skip_bad": False, "multi_label": False},
    },
    "model": {"head": [512, 512], "hidden": 128, "round_up": False},
    "training": {"augmentation": "none", "steps": None},
    "posterior.schedule": {
        "class_weighted": False,
        "samples_per_epoch": "labels",
        "noise_examples": "labels",
        "augmentation": "none",
    },
}


class DataSettings(Section):
    """The data set, and the options of `data.prepare`.

    Attributes:
        name: a name of `batchbalance.lab.data.DATASETS`, or the path of your own data.
        copies: how often each input occurs in the pool; 3 for `repeated-mnist` if omitted, else 1.
        noise: the standard deviation of the noise that is added to each copy.
        partial: accept a part of a published data set.
        label: the column of the labels in a file of rows.
        column: the column of the texts in a file of rows; they are embedded.
        encoder: embed your own data, as a project does; if omitted, `wordllama` for `column`, `table` for other rows,
            and none for images.
        image_size: pixels of the square that an encoder of images looks at.
        labels: for a `.npy` file of embeddings, the file with their labels.
        skip_bad: omit damaged files and empty texts.
        multi_label: an input has any number of labels; a cell holds `a;b`, a JSON list, or `none` for none of them.
    """

    table = "[data]"
    name: str
    copies: Whole | None = None
    noise: NotNegative = NOISE
    partial: Flag = False
    label: str = "label"
    column: str | None = None
    encoder: str | None = None
    image_size: Whole | None = None
    labels: str | None = None
    skip_bad: Flag = False
    multi_label: Flag = False

    @property
    def own(self) -> OwnData:
        """The options for reading a user's own data."""
        return OwnData(**{field.name: getattr(self, field.name) for field in fields(OwnData)})

    @property
    def metric(self) -> Literal["auto", "raw"]:
        """How to measure distances between inputs, as in ``select``."""
        is_named = self.name in (*DATASETS, *GENERATED)
        return metric_of(self.encoder if is_named else self.own.encoder_of(Path(self.name)))

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("copies") is None:
            return {**given, "copies": REPEATED_COPIES if given.get("name") == "repeated-mnist" else 1}
        return given


def _check_posterior(given: Any) -> Any:
    """Return the options of a kind of posterior; MC dropout by default."""
    if not isinstance(given, dict):
        return given
    kind = given.get("kind", "mc-dropout")
    if not isinstance(kind, str):
        raise ValueError(f"`kind` of [posterior] must be a name, got {kind!r}")
    return posterior_options(**{**given, "kind": kind})


def _check_model(given: Any) -> Any:
    """Return the name of a network and all its options."""
    if given is None:
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError('[model] must give the name of a network, as name = "mnist-cnn"')
    options = network_options(network_named(given["name"]))
    check_keys(f"the model {given['name']!r}", given, ["name", *options])
    for key, value in given.items():
        # 1 and 1.0 must have the same hash
        options[key] = float(value) if isinstance(options.get(key), float) and type(value) is int else value
    missing = next((key for key, value in options.items() if value is Parameter.empty), None)
    if missing is not None:
        raise ValueError(f"`{missing}` of the model {given['name']!r} must be given, got none")
    check_network(given["name"], {key: value for key, value in options.items() if key != "name"})
    return {"name": given["name"], **options}


def _check_device(given: str) -> str:
    """Return the name of a device that torch accepts, whether or not this machine has it."""
    try:
        torch.device(given)
    except RuntimeError:
        raise ValueError(f"`device` must be a name such as 'cpu', 'cuda', 'cuda:1' or 'mps', got {given!r}") from None
    return given


def _check_strategy(given: Any) -> Any:
    """Return the name of a strategy and all its options; None if none is given."""
    if given is None:
        return None
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError('a strategy must be its name, or a table as {name = "power-balance", beta = 2}')
    options = {key: value for key, value in given.items() if key != "name"}
    if given["name"] == AUTO:
        return check_keys("the strategy 'auto'", given, ["name"])
    return {"name": given["name"], **lab_strategy(given["name"], options).model_dump(mode="json")}


def _check_split(given: Any) -> Any:
    if isinstance(given, dict):
        tupled = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        SplitSizes(**check_fields("[split]", tupled, SplitSizes))
    return given


class RunSettings(Section):
    """The settings that all runs of a comparison share.

    Attributes:
        data: the data set.
        split: the sizes of the sets; omitted ones are the paper's, or the defaults for your own data.
        model: the name of a network, and its options, for posteriors that have one.
        training: how networks are trained.
        posterior: the kind of posterior, and its options.
        edges: the pairs of draws to compare.
        batch_size: labels to request in a round.
        cold_start: the strategy of all but `random` while there is no label; if omitted, each uses its own.
        candidates: the size of a new random sample of the pool to choose from in every round; all if omitted.
        threads: threads of each process; part of the settings, because they can change the last digits.
        device: where to compute, such as `cpu`, `cuda`, `cuda:1` or `mps`.
    """

    table = "a run"
    data: DataSettings
    split: Annotated[dict[str, Any], BeforeValidator(_check_split)] = Field(default_factory=dict)
    model: Annotated[dict[str, Any] | None, BeforeValidator(_check_model)] = None
    training: Annotated[Recipe, fields_of("[training]", Recipe)] | None = None
    posterior: Annotated[SerializeAsAny[PosteriorOptions], BeforeValidator(_check_posterior)] = Field(
        default_factory=MCDropoutOptions
    )
    edges: EdgeSettings = Field(default_factory=EdgeSettings)
    batch_size: Whole
    cold_start: Annotated[dict[str, Any] | None, BeforeValidator(_check_strategy)] = None
    candidates: Whole | None = None
    threads: Threads = 1
    device: Annotated[str, AfterValidator(_check_device)] = "cpu"

    @model_validator(mode="before")
    @classmethod
    def _without_network(cls, given: Any) -> Any:
        """Use a Bayesian head if neither a posterior nor a network is named."""
        if isinstance(given, dict) and given.get("model") is None and given.get("posterior") in (None, {}):
            return {**given, "posterior": {"kind": "bayesian-head"}}
        return given

    @model_validator(mode="after")
    def _fits_posterior(self) -> "RunSettings":
        kind = self.posterior.kind
        if self.posterior.has_network and self.model is None:
            raise ValueError(
                f"[model] must be given for posterior {kind!r}, got none; add a table with the name of a network "
                f"({', '.join(NETWORKS)}), or omit [posterior] for a Bayesian head"
            )
        if not self.posterior.has_network and self.model is not None:
            raise ValueError(f"[model] is not used by posterior {kind!r}; omit it")
        if self.training is not None and not self.posterior.uses_recipe:
            raise ValueError(f"[training] is not used by posterior {kind!r} as configured; omit it")
        if self.candidates is not None and self.candidates < self.batch_size:
            raise ValueError(f"`candidates` must be at least the batch size {self.batch_size}, got {self.candidates}")
        return self

    @property
    def flat_inputs(self) -> bool:
        """Whether inputs are flattened to one row of features each."""
        if self.posterior.flat_inputs or self.model is None:
            return True
        return bool(getattr(network_named(self.model["name"]), "flat_inputs", False))

    def posterior_fit(self, num_classes: int, validation: Any) -> PosteriorFit:
        """Return the fit of the posterior; `validation` as in `PosteriorFit`."""
        options = dict(self.model or {})
        name = options.pop("name", None)
        return PosteriorFit(self.posterior, num_classes, name, options, self.training, validation, self.device)


class RunConfig(RunSettings):
    """The settings of one run: a strategy and its settings, with one run directory."""

    strategy: Annotated[dict[str, Any], BeforeValidator(_check_strategy)]

    @property
    def chosen_strategy(self) -> Strategy | str:
        """The strategy with its options, or "auto"; records name the strategy used in each round."""
        return _strategy_of(self.strategy)

    @property
    def first_strategy(self) -> Strategy | str | None:
        """The strategy while there is no label; None if it is the same."""
        return None if self.cold_start is None else _strategy_of(self.cold_start)

    @property
    def canonical(self) -> dict[str, Any]:
        """The settings as written into the run directory and hashed; equal settings give equal text.

        They include all defaults except those of `ADDED`. Edge settings that the strategy does not use have their
        defaults. Options of the strategy that are None are omitted, so that a new option does not change the hash of
        older runs.
        """
        content = self.model_dump(mode="json", include=set(RunSettings.model_fields))
        if self.data.name in PAPER_SIZES:
            content["split"] = {**asdict(PAPER_SIZES[self.data.name]), **self.split}
        if self.posterior.uses_recipe and self.training is None:
            content["training"] = asdict(Recipe())
        content = json.loads(json.dumps(content))
        if self.cold_start is None:
            del content["cold_start"]
        for path, defaults in ADDED.items():
            table: Any = content
            for key in path.split("."):
                table = (table or {}).get(key)
            for key in [key for key, value in defaults.items() if table and table.get(key) == value]:
                del table[key]
        used = _edge_settings_used(self.chosen_strategy)
        for key in content["edges"].keys() - used:
            content["edges"][key] = EdgeSettings.model_fields[key].default
        return {**content, "strategy": {key: value for key, value in self.strategy.items() if value is not None}}

    @property
    def label(self) -> str:
        """The strategy with its options and [edges] that are not defaults, such as "batch-balance [ratio=0.5]"."""
        edges = changed_settings(self.canonical["edges"], EdgeSettings.model_fields)
        return strategy_label(self.strategy) + (f" [{', '.join(edges)}]" if edges else "")

    @property
    def folder_name(self) -> str:
        """The label and a hash of all settings."""
        return f"{re.sub(r'[^a-z0-9.=_-]+', '-', self.label.lower()).strip('-')}-{settings_hash(self.canonical)}"

    def folder(self, runs_dir: Path) -> Path:
        """Return the run directory: the one with this hash, whatever its label, or a new one."""
        found = sorted(runs_dir.glob(f"*-{settings_hash(self.canonical)}"))
        return found[0] if found else runs_dir / self.folder_name

    def split_sizes(self, default: SplitSizes) -> SplitSizes:
        """Return the sizes of the split; those that the config omits are taken from `default`."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in self.split.items()}
        return replace(default, **given)


class Comparison(RunSettings):
    """A TOML file: shared settings, the strategies, and how far to go.

    Attributes:
        strategies: names, or tables such as `{name = "power-balance", beta = 2}` with options of the strategy, keys of
            `[edges]` and `num_draws`.
        trials: seeds 0 to trials − 1.
        budget: training labels at the end, including the initial set; this or `target_error` must be given.
        target_error: stop once the validation error is this low.
    """

    table = "the config"
    strategies: Annotated[list[Any], Field(min_length=1)]
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS, strict=True)] = 1
    budget: Whole | None = None
    target_error: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = None

    @model_validator(mode="after")
    def _ends(self) -> "Comparison":
        if self.budget is None and self.target_error is None:
            raise ValueError("`budget` (training labels at the end) or `target_error` must be given, got neither")
        if self.data.name not in (*DATASETS, *GENERATED) and not is_own(self.data.name):
            raise UnknownNameError("data set or file", self.data.name, DATASETS)
        return self

    def runs(self) -> list[RunConfig]:
        """Return one run for each strategy. Its table may set keys of [edges] and `num_draws` for its own run."""
        shared = {name: getattr(self, name) for name in RunSettings.model_fields}
        runs = [parsed(partial(self._run, shared, entry)) for entry in self.strategies]
        names = [run.folder_name for run in runs]
        twice = next((run.label for run in runs if names.count(run.folder_name) > 1), None)
        if twice is not None:
            raise ValueError(f"`strategies` must be distinct, got {twice!r} more than once")
        return runs

    def _run(self, shared: dict[str, Any], entry: Any) -> RunConfig:
        if isinstance(entry, dict) and "num_draws" in entry:
            shared = {**shared, "posterior": with_draws(self.posterior, entry["num_draws"])}
            entry = {key: value for key, value in entry.items() if key != "num_draws"}
        own = {key: entry[key] for key in EdgeSettings.model_fields if key in entry} if isinstance(entry, dict) else {}
        strategy = {key: value for key, value in entry.items() if key not in own} if own else entry
        if strategy in (Random.name, {"name": Random.name}):
            shared = {**shared, "cold_start": None}  # the baseline is random from the start
        edges = self.edges.model_dump(exclude_unset=True)
        if "ratio" in own or "threshold" in own:  # one of them replaces the shared setting
            edges = {key: value for key, value in edges.items() if key not in ("ratio", "threshold")}
        run = RunConfig(**{**shared, "edges": EdgeSettings(**{**edges, **own}), "strategy": strategy})
        unused = next((key for key in own if key not in _edge_settings_used(run.chosen_strategy)), None)
        if unused is not None:
            raise ValueError(f"`{unused}` is not used by strategy {run.strategy['name']!r}; omit it")
        return run


def with_draws(posterior: PosteriorOptions, num_draws: int) -> PosteriorOptions:
    """Return the same posterior with another number of draws; `test_draws` is kept if set."""
    if "num_draws" not in type(posterior).model_fields:
        raise ValueError(f"`num_draws` of a strategy is not used by posterior {posterior.kind!r}; omit it")
    content = {**posterior.model_dump(), "num_draws": num_draws}
    if content.get("test_draws") is not None and isinstance(num_draws, int):
        content["test_draws"] = min(content["test_draws"], num_draws)
    return type(posterior)(**content)


def _strategy_of(table: dict[str, Any]) -> Strategy | str:
    options = {key: value for key, value in table.items() if key != "name"}
    return AUTO if table["name"] == AUTO else lab_strategy(table["name"], options)


def _edge_settings_used(strategy: Strategy | str) -> Set[str]:
    if isinstance(strategy, str):
        return frozenset()  # auto uses coverage strategies only
    return parts_read(strategy) & {"max_reference", "ratio", "threshold", "pairs"}


def read_comparison(path: Path, changes: Iterable[str] = (), *, allow_imports: bool = False) -> Comparison:
    """Read a TOML file.

    Args:
        path: the file.
        changes: settings that take precedence over the file's, such as "posterior.num_draws=20"; the value is TOML, and
            text that is not valid TOML is used as a string.
        allow_imports: import the user's own strategies, posteriors and networks that the file names by path. Paths in
            `changes` are always imported.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a TOML file that describes a comparison, but it does not exist")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} must be a TOML file, got: {error}") from error
    except RecursionError as error:
        raise FileFormatError(f"{path} must be a TOML file that describes a comparison, got deep nesting") from error
    if not allow_imports:
        kinds = {
            "cold_start": "strategy",
            "posterior": "kind of posterior",
            "model": "network",
            "strategies": "strategy",
        }
        named = {text: kind for key, kind in kinds.items() for text in texts_in(content.get(key))}
        data = content.get("data")
        encoders = texts_in(data.get("encoder") if isinstance(data, dict) else None)
        check_paths({**named, **{name: "encoder" for name in encoders if runs_own_code(name)}}, str(path))
    return comparison_of(content, changes)


def comparison_of(content: dict[str, Any], changes: Iterable[str] = ()) -> Comparison:
    """Return a comparison from the content of a TOML file; `changes` as in `read_comparison`."""
    content = changed(content, changes)
    return parsed(lambda: Comparison(**check_keys("the config", content, Comparison.model_fields)))


def changed(content: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the content of a TOML file with some settings changed, as in `read_comparison`."""
    result = deepcopy(content)
    for change in changes:
        key, equals, text = change.partition("=")
        *tables, name = key.strip().split(".")
        if not equals or not name:
            raise ValueError(f"a change must look like posterior.num_draws=20, got {change!r}")
        inner = result
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{table!r} in {change!r} must be a table, got {inner!r}")
        try:
            inner[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            inner[name] = text.strip()
        except RecursionError as error:
            raise ValueError(f"{key.strip()!r} must be a TOML value, got deep nesting") from error
    return result
