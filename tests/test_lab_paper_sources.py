"""Every value of the paper's presets names its source, and the source is held against what the paper states.

`paper_statements.toml` lists, by section, what the paper states, and what its released code has where the paper is
silent.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from batchbalance.lab.paper.experiments import experiment, experiment_names

TAG = re.compile(r"(paper, (?P<where>(?:section|appendix|table|figure) [A-Z0-9][0-9.]*)|released code|ours)(?![\w-])")
ABOUT = ("title", "shows", "reduced", "cost", "analysis", "name")  # keys at the top of a file or of a part
STATEMENTS = tomllib.loads((Path(__file__).parent / "paper_statements.toml").read_text(encoding="utf-8"))


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


def settings_of(name):
    """All settings of a file, with their comments, which a TOML reader drops."""
    text = (files("batchbalance.lab.paper") / "settings" / f"{name}.toml").read_text(encoding="utf-8")
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
        if key in ("laptop", "smoke"):
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


ALL = [setting for name in experiment_names() for setting in settings_of(name)]
PAPER = [setting for setting in ALL if setting.preset == "paper"]


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


def applying(kind, setting):
    return [statement for statement in STATEMENTS[kind] if holds_for(statement, setting)]


@pytest.mark.parametrize("name", experiment_names())
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
    stated = [(statement, states(statement, setting)) for statement in applying("paper", setting)]
    released = [states(statement, setting) for statement in applying("released", setting)]
    if source == "paper":
        places = [statement["where"] for statement, says in stated if says == "this"]
        assert setting.where in places, f"{setting}: the paper states it in {places or 'no section'}"
    elif source == "released code":
        assert "this" in released, f"{setting} must be in the table of the released code"
    else:
        places = [statement["where"] for statement, says in stated if says]
        assert not places, f"{setting} is called ours, but the paper states a value in {places}"
        assert not any(released), f"{setting} is called ours, but the released code has a value"


def test_what_a_preset_takes_from_the_released_code_the_paper_leaves_open():
    for setting in PAPER:
        if setting.source == "released code":
            wheres = [s["where"] for s in applying("paper", setting) if states(s, setting)]
            assert not wheres, f"{setting}: the paper states a value in {wheres}"


@pytest.mark.parametrize("kind", ["paper", "released"])
def test_every_statement_is_kept(kind):
    tag = "paper" if kind == "paper" else "released code"
    for statement in STATEMENTS[kind]:
        entries = [("values", key) for key in statement.get("values", {})]
        entries += [("strategies", entry) for entry in statement.get("strategies", [])]
        for what, entry in entries:
            one = {**statement, "values": {}, "strategies": []}
            one[what] = {entry: statement["values"][entry]} if what == "values" else [entry]
            kept = [s for s in PAPER if s.source == tag and holds_for(one, s) and states(one, s) == "this"]
            if kind == "paper":
                kept = [s for s in kept if s.where == statement["where"]]
            assert kept, f"no preset keeps {entry} of {statement}"


def test_what_a_laptop_cuts_is_ours():
    for setting in ALL:
        if setting.preset == "laptop":
            if setting.source == "paper":
                assert any(states(each, setting) == "this" for each in applying("paper", setting)), setting
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
        ("training.batch_size", 64, "ours", "called ours, but the released code"),
        ("training.batch_size", 32, "released code", "must be in the table"),
        ("split.pool", 5, "paper, appendix C.1", "no section"),
        ("strategies", "epig", "paper, section 4.1", "no section"),
        ("strategies", "random", "ours", "called ours, but the paper"),
    ],
)
def test_wrong_tags_are_caught(key, value, comment, message):
    with pytest.raises(AssertionError, match=message):
        test_the_source_of_each_value_is_where_it_is_said_to_be(Setting("mnist", None, "paper", key, value, comment))
