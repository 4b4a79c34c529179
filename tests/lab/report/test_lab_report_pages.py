"""The files of a report: all there, whole, self-contained, and the same each time."""

import csv
import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from batchbalance.lab.report import compare, tables, write_report
from batchbalance.lab.report.notes import conclusion
from batchbalance.lab.report.pages import as_html, as_markdown, escaped
from batchbalance.lab.report.tables import settings
from made_runs import made_records, made_run


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = [made_run(folder, label) for label in ("random", "batch-balance")]
    runs[1] = replace(runs[1], label="batch-balance(a|b=<1>)")
    report = compare(runs)
    return report, write_report(report, folder / "deep" / "report").parent


def test_all_files_are_there(written):
    _, folder = written
    figures = {"curves-accuracy", "curves-macro-auc", "curves-macro-f1", "curves-nll", "curves-calibration-error"}
    names = {f"{name}.{kind}" for name in (*figures, "differences") for kind in ("png", "svg")}
    names |= {"report.html", "report.md", "curves.csv", "trials.csv", "comparisons.csv"}
    assert {path.name for path in folder.iterdir()} == names
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


class Balance(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.rows, self.text = [], 0, ""

    def handle_starttag(self, tag, _attrs):
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_alone(written):
    report, folder = written
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    for address in re.findall(r'(?:src|srcset|href)="([^"]*)"', page):
        assert address.startswith("data:image/svg+xml;base64,")
    assert "url(" not in page
    assert "@import" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.rows == sum(1 + len(table.rows) for table in tables(report))
    assert "batch-balance(a|b=<1>)" in parser.text
    assert "<1>" not in page


def test_markdown_shows_every_table_and_figure(written):
    report, folder = written
    text = (folder / "report.md").read_text(encoding="utf-8")
    for table in tables(report):
        assert f"## {table.title}\n" in text
    assert r"batch-balance(a\|b=\<1\>)" in text
    for name in re.findall(r"\]\((.*?)\)", text):
        assert (folder / name).is_file()
    for line in text.splitlines():
        if line.startswith("| random"):
            assert len(re.split(r"(?<!\\)\|", line)) > 4


def test_a_report_begins_with_its_conclusion_and_tells_the_settings(written):
    report, folder = written
    said = conclusion(report)
    assert said.startswith(
        "In mean accuracy over 20 to 130 labels, batch-balance(a|b=<1>) is better than random by 0.1"
    )
    page, text = (
        (folder / "report.html").read_text(encoding="utf-8"),
        (folder / "report.md").read_text(encoding="utf-8"),
    )
    assert f"</h1>\n<p><strong>{html.escape(said)}</strong></p>" in page
    assert text.split("\n\n")[1] == escaped(said)
    assert "<h2>Settings</h2>" in page
    assert "| data | digits |" in text


HOSTILE = "a](x)|b*_`<img src=x onerror=alert(1)>\n# loud\\"


def test_any_label_and_metric_is_shown_as_it_is(tmp_path):
    runs = [made_run(tmp_path, label, seeds=range(2)) for label in ("random", "bald")]
    runs[1] = replace(runs[1], label=HOSTILE, config={**runs[1].config, "data": {"name": HOSTILE}})
    for run in runs:
        for records in run.trials.values():
            for record in records:
                value = record["metrics"]["accuracy"]
                record["metrics"] = {"top/1 $x^$": value, "top_1 _x": value, "..": value, HOSTILE: value}
    page = write_report(compare(runs, metric="top/1 $x^$", control="random"), tmp_path / "report")
    written = sorted(path.name for path in page.parent.glob("curves-*.png"))
    assert len(written) == 4
    assert {path.name for path in page.parent.parent.iterdir()} == {"report"}
    assert "<img src=x" not in page.read_text(encoding="utf-8")
    text = (page.parent / "report.md").read_text(encoding="utf-8")
    shown = text.replace("\\\\", "")  # escaped backslashes
    for mark in "`*<>[]#|_":
        assert not re.search(rf"(?<!\\){re.escape(mark)}", "".join(re.findall(r"onerror.*?loud", shown)))
    assert "\n# loud" not in text
    for name in re.findall(r"(?m)^!\[.*\]\(([^()]*)\)$", text):
        assert (page.parent / name).is_file()


SURE = "(Holm's correction, level 0.05, {} paired trials"


@pytest.mark.parametrize(
    ("labels", "num", "said"),
    [
        (("random", "batch-balance"), 3, "No strategy is statistically distinguishable from random in mean accuracy "
         f"over 20 to 130 labels {SURE.format(3)}, too few to distinguish any)."),
        (("random", "same"), 12, "No strategy is statistically distinguishable from random in mean accuracy over 20 to "
         f"130 labels {SURE.format(12)})."),
        (("random", "batch-balance", "same"), 12, "In mean accuracy over 20 to 130 labels, batch-balance is better "
         f"than random by 0.108; same is statistically indistinguishable from random {SURE.format(12)})."),
        (("batch-balance", "random", "bald", "power-balance"), 12, "In mean accuracy over 20 to 130 labels, "
         "batch-balance and power-balance are better than random; "
         f"bald is worse than random by 0.056 {SURE.format(12)})."),
    ],
)  # fmt: skip
def test_conclusions(tmp_path, labels, num, said):
    runs = [made_run(tmp_path, label, seeds=range(num)) for label in labels]
    runs = [same_as_random(run, num) if run.label == "same" else run for run in runs]
    assert conclusion(compare(runs)) == said


def same_as_random(run, num):
    """Trials that are those of random with noise of either sign in turn."""
    trials = {}
    for seed in range(num):
        trials[seed] = made_records(seed)
        for record in trials[seed]:
            record["metrics"]["accuracy"] += 0.001 * (-1) ** seed
    return replace(run, trials=trials)


def test_a_conclusion_counts_what_it_cannot_name(tmp_path):
    labels = ["random", *(f"power-balance(beta={beta})" for beta in range(1, 6))]
    said = conclusion(compare([made_run(tmp_path, label, seeds=range(12)) for label in labels]))
    assert said.startswith("In mean accuracy over 20 to 130 labels, 5 of 5 strategies are better than random (Holm")


def test_a_strategy_that_is_only_ahead_before_correction_is_not_called_better(tmp_path):
    report = compare([made_run(tmp_path, label, seeds=range(12)) for label in ("random", "batch-balance", "bald")])
    ahead = replace(report, comparisons=tuple(replace(c, p=0.03, corrected_p=0.06) for c in report.comparisons))
    assert conclusion(ahead).startswith("No strategy is statistically distinguishable from random")


def test_lower_is_better_in_a_conclusion(tmp_path):
    runs = [made_run(tmp_path, label, seeds=range(12)) for label in ("random", "batch-balance", "bald")]
    said = conclusion(compare(runs, metric="nll"))
    assert "batch-balance is better than random by 0.325; bald is worse than random by 0.167" in said


def test_without_a_control_nothing_is_called_better(tmp_path):
    runs = [made_run(tmp_path, label, seeds=range(12)) for label in ("batch-balance", "bald")]
    said = conclusion(compare(runs))
    assert re.fullmatch(
        r"No difference was tested; the highest mean accuracy over 20 to 130 labels is 0\.\d{3}, of batch-balance\.",
        said,
    )
    assert "the lowest mean NLL" in conclusion(compare(runs, metric="nll"))
    alone = conclusion(compare(runs[:1]))
    assert alone.startswith("The mean accuracy of batch-balance over 20 to 130 labels is 0.")
    assert alone.endswith("; there is nothing to compare it with.")


def test_runs_of_different_lengths_are_not_given_one_span(tmp_path):
    runs = [made_run(tmp_path, "random", seeds=range(12)), made_run(tmp_path, "batch-balance", seeds=range(12))]
    runs.append(made_run(tmp_path, "power-balance", seeds=range(12), counts=range(20, 90, 10)))
    said = conclusion(compare(runs))
    assert said.startswith("In mean accuracy over the labels that each shares with random, batch-balance and power-")


CAPTIONS = {"means": "Mean over trials; the band is Student", "medians": "Median over trials; the band reaches"}


@pytest.mark.parametrize("curves", ["means", "medians"])
def test_the_caption_says_what_is_drawn(tmp_path, curves):
    report = compare([made_run(tmp_path, label, seeds=range(2)) for label in ("random", "bald")], curves=curves)
    for text in (
        as_html(report, {"curves-accuracy": (b"<svg/>", b"<svg/>")}),
        as_markdown(report, ["curves-accuracy"]),
    ):
        assert [name for name, words in CAPTIONS.items() if words in text] == [curves]


def test_every_table_of_the_page_shows_that_it_scrolls_and_does_so_by_keys(written):
    report, folder = written
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count('<div class="scroll" tabindex="0"><table') == page.count("<table") == len(tables(report))
    assert re.search(r"\.scroll {[^}]*linear-gradient[^}]* local,[^}]*var\(--shade\)[^}]* scroll", page)


def test_settings_that_differ_are_told_with_their_runs(tmp_path):
    shared = {"data": {"name": "digits", "copies": 1, "noise": None}, "batch_size": 10, "split": {}}
    models = {"random": {"name": "tabular-mlp", "hidden": [16]}, "bald": {"name": "tabular-mlp", "hidden": [32]}}
    runs = [replace(made_run(tmp_path, label), config={**shared, "model": models[label]}) for label in models]
    assert settings(runs) == (
        ("data", "digits, copies = 1"),
        ("split", "defaults"),
        ("model", "tabular-mlp, hidden = (16) (random); tabular-mlp, hidden = (32) (bald)"),
        ("batch size", "10"),
    )


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_hold_the_numbers(written):
    report, folder = written
    trials = rows_of(folder / "trials.csv")
    assert len(trials) == 12
    areas = {(s.label, seed): area for s in report.summaries for seed, area in s.areas.items()}
    assert {(row["strategy"], int(row["seed"])): float(row["area"]) for row in trials} == areas
    curves = rows_of(folder / "curves.csv")
    assert len(curves) == 5 * 2 * 12
    first = report.summaries[0].bands("accuracy")[0]
    assert float(curves[0]["median"]) == first.median
    assert (float(curves[0]["mean_low"]), float(curves[0]["mean_high"])) == first.interval
    (comparison,) = rows_of(folder / "comparisons.csv")
    assert float(comparison["p_holm"]) == report.comparisons[0].corrected_p


def test_writing_again_gives_the_same_bytes(written, tmp_path):
    report, folder = written
    small = replace(report, metrics=("accuracy",))
    first, second = write_report(small, tmp_path / "a").parent, write_report(small, tmp_path / "b").parent
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    assert (first / "curves-accuracy.svg").read_bytes() == (folder / "curves-accuracy.svg").read_bytes()


def test_a_folder_that_cannot_be(written, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write a report"):
        write_report(written[0], tmp_path / "file" / "report")


def test_nothing_is_written_without_matplotlib(written, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'batchbalance\[report\]'"):
        write_report(written[0], tmp_path / "none")
    assert not (tmp_path / "none").exists()
