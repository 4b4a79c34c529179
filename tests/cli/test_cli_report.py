"""`batchbalance report` as a stranger would use it."""

import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from batchbalance.cli import app
from made_runs import made_run, write_run, write_runs


def run(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_and_the_path_of_the_page(tmp_path):
    write_runs(tmp_path / "runs", labels=("random", "bald"))
    code, out, err = run(tmp_path / "runs", "--output", tmp_path / "out", "--at", "50,100", "--target", 0.7)
    assert code == 0
    assert "note: With 6 paired trials" in err
    for word in ("strategy", "random", "bald", "at 100", "to 0.7", "p (Holm)", str(tmp_path / "out" / "report.html")):
        assert word in out.replace("\n", "") or word in out
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take seconds, and the test above and those of figures draw them."""
    monkeypatch.setattr("batchbalance.lab.report.pages.figures", lambda _: {})


def test_options_reach_the_report(tmp_path, no_figures):
    write_runs(tmp_path / "runs", seeds=[0], labels=("random", "bald"))
    code, out, _ = run(tmp_path / "runs", "--output", tmp_path, "--control", "bald", "--metric", "nll",
                       "--curves", "medians")  # fmt: skip
    assert code == 0
    assert "against bald" in out
    assert "## Against bald" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "# digits: 2 strategies compared by NLL" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_only_the_runs_asked_for_are_shown(tmp_path, no_figures):
    write_runs(tmp_path / "runs", labels=("random", "bald", "entropy"))
    code, out, _ = run(tmp_path / "runs", "--output", tmp_path, "--only", "entropy", "--only", "random")
    assert (code, "bald" in out) == (0, False)
    assert "# digits: 2 strategies compared" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Against random" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "fifty"], "--at must be label counts such as 50,100, got 'fifty'"),
        (["--at", ""], "--at must be"),
        (["--metric", "acuracy"], "did you mean 'accuracy'"),
        (["--only", "rondom"], "unknown run 'rondom'; did you mean 'random'"),
        (["--control", "rondom"], "did you mean 'random'"),
        (["--target", "90"], "from 0 to 1"),
        (["--curves", "meadians"], "unknown curves 'meadians'; did you mean 'medians'"),
    ],
)
def test_mistakes_exit_with_2_and_write_nothing(tmp_path, arguments, message):
    path = write_run(made_run(tmp_path / "runs", seeds=[0]))
    code, out, err = run(path, "--output", tmp_path / "out", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_empty_and_missing_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        code, _, err = run(path, "--output", tmp_path / "out")
        assert code == 2
        assert str(path) in err.replace("\n", "")
    code, _, err = run(write_run(made_run(tmp_path / "runs", seeds=[])), "--output", tmp_path / "out")
    assert (code, "finished round" in err) == (2, True)


def test_a_missing_extra_names_the_command(tmp_path, monkeypatch):
    path = write_run(made_run(tmp_path / "runs", seeds=[0]))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, _, err = run(path, "--output", tmp_path / "out")
    assert (code, "batchbalance[report]" in err) == (2, True)


def test_an_edited_config_shows_the_newest_settings(tmp_path, no_figures):
    """Old, new and failed runs in one folder: the new ones are compared, the old ones named."""
    moment = 1_000_000_000

    def run(name, size, seeds=range(6)):
        nonlocal moment
        made = made_run(tmp_path / "runs", name, seeds)
        path = made.path.parent / f"{name}-size{size}"
        write_run(replace(made, path=path, config=made.config | {"batch_size": size}))
        for file in path.iterdir():
            moment += 10
            os.utime(file, (moment, moment))

    for name in ("random", "bald", "batch-bald"):
        run(name, 10)
    for name in ("random", "batch-balance"):
        run(name, 20)
    run("random", 40, seeds=())  # failed before its first record
    arguments = ["report", str(tmp_path / "runs"), "--output", str(tmp_path / "r")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "nothing is tested" not in said
    assert "Omitted, because other settings were run last in their folder:" in said
    assert "`--all` includes them" in said
    names = [line.split(",")[0] for line in (tmp_path / "r" / "trials.csv").read_text().splitlines()[1:]]
    assert set(names) == {"random", "batch-balance"}
    assert "bald" in (tmp_path / "r" / "report.md").read_text()
    result = CliRunner().invoke(app, [*arguments, "--all"])
    assert result.exit_code == 0, result.output
    assert "run last" not in result.output
    named = [str(tmp_path / "runs" / name) for name in ("random-size10", "bald-size10")]
    result = CliRunner().invoke(app, ["report", *named, "--output", str(tmp_path / "r")])
    assert "run last" not in result.output
