"""Every value of the paper's presets names its source, and the source is held against what it states.

`paper_statements.toml` lists, by section, what the paper states; `released_scripts.toml`, script by script, what its
released code has, under the names of the scripts.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchbalance.lab.paper.experiments import SETTINGS, read_experiment

TAG = re.compile(
    r"(paper, (?P<where>(?:section|appendix|table|figure) [A-Z0-9][0-9.]*)|"
    r"released code(?:, (?P<file>[\w./-]+\.(?:py|sh)))?|ours)(?![\w-])"
)
ABOUT = ("title", "shows", "reduced", "cost", "script", "name")  # keys at the top of a file or of a part
ROOT = Path(__file__).parents[3]
ANALYSES = ROOT / "results" / "paper" / "analyses" / "settings"
FILES = {Path(path.name).stem: path for path in (*SETTINGS.iterdir(), *ANALYSES.iterdir())}
SUPPORT = ROOT / "tests" / "support"
STATEMENTS = tomllib.loads((SUPPORT / "paper_statements.toml").read_text(encoding="utf-8"))["paper"]
SCRIPTS = tomllib.loads((SUPPORT / "released_scripts.toml").read_text(encoding="utf-8"))
AS_IN_PAPER = "as in [paper]"
FACTS = {  # the names of the scripts, our keys for them, and what their values are with us
    "sample_num": (("posterior.num_draws",), lambda pairs: [2 * pairs]),
    "al_num": (("trials",), lambda trials: [trials]),
    "patience": (("training.patience",), lambda epochs: [epochs, epochs + 1]),  # as it is called, and what is done
    "B": (("batch_size",), lambda size: [size]),
    "batch_size": (("training.batch_size", "posterior.schedule.batch_size"), lambda size: [size]),
    "lr": (("training.learning_rate",), lambda rate: [rate]),
    "learning_rate": (("training.learning_rate",), lambda rate: [rate]),
    "momentum": (("training.momentum",), lambda momentum: [momentum]),
    "epochs": (("training.max_epochs",), lambda epochs: [epochs]),
    "epoch_num": (("training.max_epochs", "posterior.schedule.epochs"), lambda epochs: [epochs]),
    "samples": (("training.samples_per_epoch",), lambda samples: [samples]),
    "budget": (("budget",), lambda labels: [labels]),
    "divisor": (("edges.ratio",), lambda divisor: [1 / divisor]),
    "anneal_ratio": (("edges.ratio",), lambda ratio: [ratio]),
    "hamming_dis_threshold": (("edges.threshold",), lambda threshold: [threshold]),
    "hidden": (("model.hidden",), lambda units: [units]),
    "head": (("model.head",), lambda units: [units]),
    "augmentation": (("training.augmentation", "posterior.schedule.augmentation"), lambda name: [name]),
    "K": (("split.initial_per_class",), lambda labels: [labels]),
    "temperature": (("posterior.schedule.temperature",), lambda value: [value]),
    "weight_decay": (("posterior.schedule.weight_decay",), lambda value: [value]),
    "noise_epochs": (("posterior.schedule.noise_epochs",), lambda epochs: [epochs]),
    "train_set_size": (
        ("posterior.schedule.samples_per_epoch", "posterior.schedule.noise_examples"), lambda number: [number],
    ),
    "class_weighted": (("posterior.schedule.class_weighted",), lambda weighted: [weighted]),
}  # fmt: skip


def experiment(name):
    """The experiment or analysis of this name."""
    return read_experiment(FILES[name])


@dataclass(frozen=True)
class Setting:
    """One value of a settings file.

    Attributes:
        experiment: the name of the file.
        part: the number of the part from 0 it is set for, or None.
        preset: paper, laptop or smoke.
        key: as "split.validation"; "strategies" for each entry of that list.
        value: as TOML has it.
        comment: what stands behind it.
    """

    experiment: str
    part: int | None
    preset: str
    key: str
    value: Any
    comment: str

    @property
    def source(self):
        found = TAG.match(self.comment)
        assert found, f"{self} must name its source"
        return found[1].split(",")[0]

    @property
    def where(self):
        return TAG.match(self.comment)["where"].rstrip(".")

    @property
    def file(self):
        """The released file that the value is said to be from: the tag names it, or the experiment."""
        return TAG.match(self.comment)["file"] or experiment(self.experiment).script

    @property
    def has_released_value(self):
        """Whether the file has this value, "this", another one, "another", or none of it, ""."""
        found = [
            value
            for name, fact in SCRIPTS.get(self.file, {}).items()
            if self.key in FACTS.get(name, ((), None))[0]
            for value in FACTS[name][1](fact)
        ]
        return "this" if self.value in found else "another" if found else ""


def settings_of(name):
    """All settings of a file, with their comments, which a TOML reader drops."""
    text = FILES[name].read_text(encoding="utf-8")
    table, part, found = "", None, []
    lines = iter(text.splitlines())
    for line in lines:
        code, _, comment = line.partition("#")
        code = code.strip()
        if code == "[[parts]]":
            table, part = "", 0 if part is None else part + 1
        elif code.startswith("["):
            table = code.strip("[]")
        elif code:
            key, _, value = (piece.strip() for piece in code.partition("="))
            pieces = [(value, comment.strip())]
            while sum(piece.count("[") - piece.count("]") for piece, _ in pieces):  # a list over several lines
                code, _, comment = next(lines).partition("#")
                pieces.append((code.strip(), comment.strip()))
            found += spread(name, part, table, key, pieces)
    return found


def spread(name, part, table, key, pieces):
    """The settings of one key: one for each entry of `strategies`, and for each key of a table in one line."""
    preset, _, prefix = table.partition(".")
    if not table and (part is None or key in ABOUT):
        assert key in ABOUT, f"{name}: {key}"
        return
    if not table:
        preset, prefix = "paper", ""
        if key in ("released", "laptop", "smoke"):
            preset, key = key, ""
    if key == "strategies":
        for text, comment in pieces:
            entries = text.removeprefix("[").removesuffix("]")
            for entry in tomllib.loads(f"x = [{entries}]")["x"]:
                yield Setting(name, part, preset, f"{prefix}.strategies".strip("."), entry, comment)
        return
    value = tomllib.loads("x = " + "".join(text for text, _ in pieces))["x"]
    for inner, each in flat(value):
        path = ".".join(step for step in (prefix, key, inner) if step)
        yield Setting(name, part, preset, path, each, pieces[-1][1])


def flat(value, prefix=""):
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from flat(inner, f"{prefix}.{key}".strip("."))


ALL = [setting for name in FILES for setting in settings_of(name)]
PAPER = [setting for setting in ALL if setting.preset == "paper"]
RELEASED = [setting for setting in ALL if setting.preset == "released"]


@cache
def subject(name, part):
    """Parts, experiment, data and posteriors of an experiment, or of one of its parts."""
    found = experiment(name)
    parts = list(found.parts) if part is None else [list(found.parts)[part]]
    settings = [found.settings("paper", each) for each in parts]
    return set(parts), {
        "experiments": {name},
        "data": {each["data"]["name"] for each in settings if "data" in each},
        "kinds": {each["posterior"]["kind"] for each in settings if "posterior" in each},
    }


def holds_for(statement, setting):
    """Whether a statement speaks about the experiment of a setting."""
    parts, limits = subject(setting.experiment, setting.part)
    if "parts" in statement and not parts <= set(statement["parts"]):
        return False
    return all(limits[key] & set(statement[key]) for key in limits if key in statement)


def states(statement, setting):
    """Whether a statement gives a value for this key: "this", "another", or "" if it gives none."""
    if setting.key.endswith("strategies"):
        entries = [entry for entry in statement.get("strategies", []) if is_entry(entry, setting)]
        return "this" if entries else ""
    values = statement.get("values", {})
    if setting.key not in values:
        return ""
    stated = values[setting.key]
    return "this" if setting.value in (stated if isinstance(stated, list) else [stated]) else "another"


def is_entry(stated, setting):
    """Whether this is the strategy stated. Options beyond those stated are ours, and the comment must say so."""
    stated, given = ({"name": each} if isinstance(each, str) else each for each in (stated, setting.value))
    more = set(given) - set(stated)
    return all(given.get(key) == value for key, value in stated.items()) and (
        not more or ("ours" in setting.comment and setting.source == "paper")
    )


def applying(setting):
    return [statement for statement in STATEMENTS if holds_for(statement, setting)]


@pytest.mark.parametrize("name", FILES)
def test_the_reader_finds_what_a_toml_reader_finds(name):
    for part, own in experiment(name).parts.items():
        index = None if part == "" else list(experiment(name).parts).index(part)
        found = {}
        for setting in PAPER:
            if setting.experiment == name and setting.part in (None, index):
                if setting.key.endswith("strategies"):
                    found.setdefault(setting.key, []).append(setting.value)
                else:
                    found[setting.key] = setting.value
        assert found == dict(flat(experiment(name).settings("paper", part))), own


@pytest.mark.parametrize("setting", PAPER, ids=lambda setting: f"{setting.experiment} {setting.key}")
def test_the_source_of_each_value_is_where_it_is_said_to_be(setting):
    source = setting.source
    stated = [(statement, states(statement, setting)) for statement in applying(setting)]
    if source == "paper":
        places = [statement["where"] for statement, says in stated if says == "this"]
        assert setting.where in places, f"{setting}: the paper states it in {places or 'no section'}"
        return
    places = [statement["where"] for statement, says in stated if says]
    assert not places, f"{setting} is called {source}, but the paper states a value in {places}"
    if source == "released code":
        assert setting.file in SCRIPTS, f"{setting} must name a script"
        assert setting.has_released_value == "this", f"{setting} must be what {setting.file} has"
    elif experiment(setting.experiment).presets["released"]:  # it has a script of its own
        known = setting.has_released_value
        assert not known or "released code has" in setting.comment, (
            f"{setting} is called ours, but a script has a value"
        )


@pytest.mark.parametrize("setting", RELEASED, ids=lambda setting: f"{setting.experiment} {setting.key}")
def test_the_released_preset_is_what_scripts_have_and_the_text_has_not(setting):
    paper = experiment(setting.experiment).settings(
        "paper", list(experiment(setting.experiment).parts)[setting.part or 0]
    )
    if setting.comment.startswith(AS_IN_PAPER):
        assert setting.value in paper["strategies"]
        return
    assert setting.source == "released code"
    if setting.key == "strategies":
        facts = SCRIPTS[setting.file]
        if setting.value["name"] == "batch-balance":
            assert setting.value["subset"] == facts["downsample_num"] / paper["batch_size"]
        else:
            assert setting.value["exact"] == facts["sampling_index"]
        return
    if setting.key == "edges.ratio" and "hamming_dis_threshold" in SCRIPTS[setting.file]:
        return  # the default, so that the threshold takes its place
    assert setting.has_released_value == "this", f"{setting} must be what {setting.file} has"
    table = dict(flat(paper))
    assert setting.value != table.get(setting.key), f"{setting} is the text's value too"


@pytest.mark.parametrize("name", FILES)
def test_released_presets_can_be_run_or_are_refused(name):
    found = experiment(name)
    assert (found.script is None) <= (not found.presets["released"])
    if found.presets["released"]:
        assert all(comparison.runs() for comparison in found.comparisons("released").values())
    else:
        with pytest.raises(ValueError, match="it has no known released script; use 'paper'"):
            found.settings("released", next(iter(found.parts)))


def test_every_statement_is_kept():
    for statement in STATEMENTS:
        entries = [("values", key) for key in statement.get("values", {})]
        entries += [("strategies", entry) for entry in statement.get("strategies", [])]
        for what, entry in entries:
            one = {**statement, "values": {}, "strategies": []}
            one[what] = {entry: statement["values"][entry]} if what == "values" else [entry]
            kept = [s for s in PAPER if s.source == "paper" and holds_for(one, s) and states(one, s) == "this"]
            kept = [s for s in kept if s.where == statement["where"]]
            assert kept, f"no preset keeps {entry} of {statement}"


def test_every_script_is_used():
    used = {setting.file for setting in (*PAPER, *RELEASED) if not setting.comment.startswith(AS_IN_PAPER)
            if setting.source == "released code"}  # fmt: skip
    assert used == set(SCRIPTS) - {"commit"}


def test_what_a_laptop_cuts_is_ours():
    for setting in ALL:
        if setting.preset == "laptop":
            if setting.source == "paper":
                assert any(states(each, setting) == "this" for each in applying(setting)), setting
            else:
                assert setting.source == "ours", setting


@pytest.mark.parametrize(
    ("comment", "source", "where"),
    [
        ("paper, section 4.1: one chain", "paper", "section 4.1"),
        ("paper, table 2", "paper", "table 2"),
        ("paper, appendix C.1", "paper", "appendix C.1"),
        ("released code: 1 / 50,000", "released code", None),
        ("ours; the paper gives none", "ours", None),
    ],
)
def test_tags(comment, source, where):
    setting = Setting("mnist", None, "paper", "trials", 6, comment)
    assert setting.source == source
    assert where is None or setting.where == where


@pytest.mark.parametrize("comment", ["", "paper", "paper, somewhere", "the paper, section 4.1", "theirs"])
def test_comments_that_are_no_tags(comment):
    with pytest.raises(AssertionError, match="must name its source"):
        Setting("mnist", None, "paper", "trials", 6, comment).source  # noqa: B018


@pytest.mark.parametrize(
    ("key", "value", "comment", "message"),
    [
        ("trials", 7, "paper, section 4.1", "no section"),
        ("trials", 6, "paper, section 4.2", "section 4.1"),
        ("trials", 6, "ours", "called ours, but the paper"),
        ("training.batch_size", 64, "ours", "called ours, but a script has a value"),
        (
            "training.batch_size",
            32,
            "released code",
            "must be what Misc/BALanCe_MNIST/main_batch_mc_eced_anneal.py has",
        ),
        ("training.samples_per_epoch", 20_224, "released code", "must be what Misc/BALanCe_MNIST"),
        ("training.max_epochs", 500, "released code, somewhere/else.py", "must name a script"),
        ("split.pool", 5, "paper, appendix C.1", "no section"),
        ("strategies", "epig", "paper, section 4.1", "no section"),
        ("strategies", "random", "ours", "called ours, but the paper"),
    ],
)
def test_wrong_tags_are_caught(key, value, comment, message):
    with pytest.raises(AssertionError, match=message):
        test_the_source_of_each_value_is_where_it_is_said_to_be(Setting("mnist", None, "paper", key, value, comment))
