"""The run directory: the settings of a run, and one durable record for each round of each trial.

    <runs>/<label>-<hash>/config.json        the settings, all of them, in a fixed order, and a checksum of them
    <runs>/<label>-<hash>/trial-<seed>.jsonl  one record a line, round after round; a `batchbalance.system.journal`

A record holds `round`, `trial`, `num_labelled`, `num_validation`, `metrics` and `validation_error` of the model trained
on that many labels. `training` holds the kept epoch, its steps and the training accuracy of each network. Then follow
the chosen batch (`indices`, empty in the last round), facts about it, and the `versions` of the software. Without
validation labels, `validation_error` is cross-validated if the threshold uses it, else null.
"""

import hashlib
import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from batchbalance import __version__
from batchbalance.errors import FileFormatError, UnknownNameError
from batchbalance.lab.strategies import LAB_STRATEGIES
from batchbalance.system.journal import Journal, read_journal, sync_folder
from batchbalance.system.sealed import read_checked, write_sealed

CONFIG = "config.json"
HASH_DIGITS = 10
NAMED_DIFFERENCES = 3  # settings that a label may name

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One strategy under one set of settings, and all its trials so far.

    Attributes:
        path: the run directory.
        label: the strategy and its options that are not defaults; distinct among the runs read together.
        config: the settings.
        trials: the records of each trial's seed, in the order of rounds.
    """

    path: Path
    label: str
    config: dict[str, Any]
    trials: dict[int, list[Record]]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run directories.

    Args:
        paths: run directories, or folders that contain some at any depth.

    Raises:
        FileNotFoundError: if a path is missing or contains no run.
        FileFormatError: if a file is damaged; a truncated last line is ignored.
    """
    folders: dict[Path, None] = {}
    for path in map(Path, paths):
        found = [path] if (path / CONFIG).is_file() else sorted(config.parent for config in path.rglob(CONFIG))
        if not found:
            what = "a folder without runs" if path.is_dir() else "a path that does not exist"
            raise FileNotFoundError(f"{path} must be a run directory or a folder of them, got {what}")
        folders.update(dict.fromkeys(folder.resolve() for folder in found))
    return _with_distinct_labels([_read_run(folder) for folder in folders])


def newest_settings(runs: Sequence[Run], named: Sequence[Path] = ()) -> tuple[list[Run], list[Run]]:
    """Split runs into those with the settings that were run last in their folder, and those with earlier ones.

    If a folder has one strategy under several settings, its config was edited. The settings in which these runs differ
    must then equal those of the run written last; runs without records are ignored for that.

    Args:
        runs: as `read_runs` returns them.
        named: run directories that are always kept.
    """
    kept = [run for run in runs if run.path in {Path(path).resolve() for path in named}]
    omitted: list[Run] = []
    folders: dict[Path, list[Run]] = {}
    for run in runs:
        if run not in kept:
            folders.setdefault(run.path.parent, []).append(run)
    for found in folders.values():
        settings = [
            {key: x for key, x in _flat(run.config).items() if not key.startswith("strategy.")} for run in found
        ]
        strategies = [run.config["strategy"] for run in found]
        edited = {
            key
            for (i, one), (j, other) in combinations(enumerate(settings), 2)
            if strategies[i] == strategies[j]
            for key in one | other
            if one.get(key) != other.get(key)
        }
        newest = max(range(len(found)), key=lambda i: (any(found[i].trials.values()), _last_change(found[i])))
        for run, own in zip(found, settings, strict=True):
            is_old = any(own.get(key) != settings[newest].get(key) for key in edited)
            (omitted if is_old else kept).append(run)
    order = {run.path: place for place, run in enumerate(runs)}
    plain = [replace(run, label=strategy_label(run.config["strategy"])) for run in kept]
    return _with_distinct_labels(sorted(plain, key=lambda run: order[run.path])), omitted


def _last_change(run: Run) -> int:
    paths = [run.path / CONFIG, *(trial_path(run.path, seed) for seed in run.trials)]
    return max(path.stat().st_mtime_ns for path in paths)


def only_labelled(runs: Sequence[Run], labels: Sequence[str]) -> list[Run]:
    """Return the runs with these labels, in their order; raise UnknownNameError for an unknown label."""
    by_label = {run.label: run for run in runs}
    for label in labels:
        if label not in by_label:
            raise UnknownNameError("run", label, by_label)
    return [by_label[label] for label in dict.fromkeys(labels)]


def open_trial(folder: Path, config: dict[str, Any], seed: int) -> Journal:
    """Create or open a run directory and open the records of one trial.

    Raises:
        BlockingIOError: if another process runs this trial.
        FileFormatError: if the directory belongs to another config, or a record is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / CONFIG).is_file():
        if _read_config(folder) != config:
            raise FileFormatError(f"{folder / CONFIG} must hold the settings of this run, got others; move it away")
    else:
        write_sealed(folder / CONFIG, config, indent=2)
        sync_folder(folder)
    return Journal(trial_path(folder, seed))


def settled(records: Iterable[Record], path: Path, seed: int) -> list[Record]:
    """Return one record for each round, in order.

    An extended run repeats its last round with a batch; the later record takes precedence.

    Raises:
        FileFormatError: if rounds are missing or of another trial.
    """
    rounds: list[Record] = []
    for line, record in enumerate(records, start=1):
        if rounds and record.get("round") == len(rounds) - 1 and not rounds[-1].get("indices"):
            rounds.pop()
        if record.get("round") != len(rounds) or record.get("trial") != seed:
            got = f"round {record.get('round')} of trial {record.get('trial')}"
            raise FileFormatError(f"line {line} of {path} must be round {len(rounds)} of trial {seed}, got {got}")
        rounds.append(record)
    return rounds


def check_records(records: Iterable[Record], path: Path) -> None:
    """Raise FileFormatError if records lack fields that reports and runs need."""
    kinds = {"num_labelled": int, "metrics": dict, "indices": list, "validation_error": float, "seconds": dict}
    for record in records:
        where = f"round {record.get('round')} in {path}"
        for name, kind in kinds.items():
            value = record.get(name, ...)
            optional = value is None and name in ("validation_error", "seconds", "metrics")
            if not isinstance(value, int | float if kind is float else kind) and not optional:
                got = "no such field" if value is ... else f"{value!r}"
                raise FileFormatError(f"{where} must hold `{name}`, got {got}; restore it, or run the trial again")
        trained = record.get("training", [])
        tables = trained if isinstance(trained, list) else [trained]
        accuracies = [each.get("training_accuracy") if isinstance(each, dict) else None for each in tables]
        if not all(isinstance(each, int | float) for each in accuracies):
            raise FileFormatError(f"{where} must hold `training`, one table for each network, got {trained!r}")
        named = {**(record["metrics"] or {}), **(record["seconds"] or {}), "peak_memory": record.get("peak_memory")}
        wrong = next((k for k, v in named.items() if v is not None and not isinstance(v, int | float)), None)
        if wrong is not None:
            raise FileFormatError(f"{where} must hold a number as `{wrong}`, got {named[wrong]!r}; restore it")


def versions() -> dict[str, str]:
    """Return the versions of batchbalance, torch, numpy and Python."""
    return {
        "batchbalance": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def settings_hash(config: dict[str, Any]) -> str:
    """Return the hash at the end of a run directory's name."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]


def trial_path(folder: Path, seed: int) -> Path:
    """Return the path of the records of a trial."""
    return folder / f"trial-{seed}.jsonl"


def strategy_label(strategy: dict[str, Any]) -> str:
    """Return the name of a strategy with its options that are not defaults, such as "power-balance(beta=2)"."""
    name: str = strategy["name"]
    options = {key: value for key, value in strategy.items() if key != "name"}
    fields = LAB_STRATEGIES[name].model_fields if name in LAB_STRATEGIES else {}
    changed = changed_settings(options, fields)
    return name + (f"({', '.join(changed)})" if changed else "")


def changed_settings(settings: dict[str, Any], fields: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ from the defaults of a model's `fields`, such as "beta=2"."""
    defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
    return [f"{key}={_short(x)}" for key, x in settings.items() if key not in defaults or x != defaults[key]]


def _read_run(folder: Path) -> Run:
    config = _read_config(folder)
    trials = {}
    for path in folder.glob("trial-*.jsonl"):
        match = re.fullmatch(r"trial-(\d+)", path.stem)
        if match is None:
            raise FileFormatError(f"{path} must be named trial-<seed>.jsonl")
        seed = int(match[1])
        trials[seed] = settled(read_journal(path), path, seed)
    return Run(folder, strategy_label(config["strategy"]), config, dict(sorted(trials.items())))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    config, is_sealed = read_checked(path)
    strategy = config.get("strategy")
    if not isinstance(strategy, dict) or not isinstance(strategy.get("name"), str):
        raise FileFormatError(f"{path} must hold the settings of a run, got no strategy in it")
    named = re.search(f"-([0-9a-f]{{{HASH_DIGITS}}})$", folder.name)
    if named is not None and named[1] != settings_hash(config):
        raise FileFormatError(
            f"{path} must hold the settings with the hash {named[1]} in its folder's name, got others; restore the "
            "file, or rename the folder if you named it"
        )
    if named is None and not is_sealed:
        raise FileFormatError(f"{path} must be unchanged, got other contents; restore it from a copy")
    return config


def _with_distinct_labels(runs: list[Run]) -> list[Run]:
    """Make labels distinct: equal ones get the settings in which they differ, or the name of the folder.

    A setting that more than half of the runs share is not named, and "edges.ratio" is shortened to "ratio" if that is
    unambiguous.
    """
    configs = [_flat(run.config) for run in runs]
    labels = []
    for run, config in zip(runs, configs, strict=True):
        rivals = [other for other, owner in zip(configs, runs, strict=True) if owner.label == run.label]
        ends = Counter(key.rpartition(".")[2] for key in config)
        named = []
        for key, value in config.items():
            differs = any(rival.get(key) != value for rival in rivals)
            if differs and 2 * sum(other.get(key) == value for other in configs) <= len(configs):
                last = key.rpartition(".")[2]
                named.append(f"{last if ends[last] == 1 else key}={_short(value)}")
        labels.append(run.label + (f" [{', '.join(named[:NAMED_DIFFERENCES])}]" if named else ""))
    counts = Counter(labels)
    return [
        replace(run, label=label if counts[label] == 1 else f"{label} [{run.path.parent.name}/{run.path.name}]")
        for run, label in zip(runs, labels, strict=True)
    ]


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"data.name": "digits"} for {"data": {"name": "digits"}}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
