"""CSV files that went through people's hands and spreadsheets."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbalance import FileFormatError
from batchbalance.project import Project
from batchbalance.project.answers import read_answers, write_sheet
from batchbalance.system.spreadsheets import csv_text, escaped, meanings
from made_projects import ODD, write_texts

FORMULAS = ("=", "+", "-", "@", "\uff1d")
PIECES = st.sampled_from(["=", "+", "-", "@", "'", '"', ";", ",", "\t", "\r", "\n", " ", "1", "a", "\uff1d", "\ufeff"])


def cells_of_any_spreadsheet(text):
    """All that a spreadsheet may take for a cell, whatever separates, with and without an eye for quotes."""
    for separator in (",", ";", "\t"):
        yield from (cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) for cell in row)
        for line in re.split("[\r\n]", text):
            yield from line.split(separator) if separator != "," else ()


@given(st.lists(st.lists(st.lists(PIECES).map("".join), min_size=2, max_size=2), min_size=1, max_size=3))
def test_no_cell_is_a_formula_whatever_separates_and_every_one_is_taken_back(rows):
    text = csv_text(rows[0], rows[1:])
    found = [[meanings(cell)[0] for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
    assert found == rows
    for cell in cells_of_any_spreadsheet(text):
        bare = cell.lstrip('" \ufeff')
        assert not bare.startswith(("=", "+", "-", "@", "\uff1d")) or is_number(cell) or is_number(bare.rstrip('"')), (
            cell
        )


def is_number(text):
    first = text.partition(",")[0]  # a line of our own that a spreadsheet did not cut
    try:
        return float(first) is not None
    except ValueError:
        return False


@given(st.text())
def test_what_is_escaped_is_taken_back(cell):
    assert meanings(escaped(cell))[0] == cell
    assert meanings(escaped(escaped(cell)))[0] == escaped(cell)


def test_formulas_are_escaped_and_numbers_are_not():
    assert [escaped(cell) for cell in ("=1+1", "+x", "-x", "@f", " =1", "'=1")] == [
        "'=1+1", "'+x", "'-x", "'@f", "' =1", "''=1",
    ]  # fmt: skip
    for cell in ("\tx", "'x", "-5", "+1.5", "-1e3", "x=", ""):
        assert escaped(cell) == cell
    assert escaped("a;=1+1;-5;b\n@c\t\uff0bd") == "a;'=1+1;-5;b\n'@c\t'\uff0bd"
    assert escaped('x;"=1"') == 'x;\'"=1"'


def test_column_names_are_escaped_and_found_again(tmp_path):
    write_sheet(tmp_path / "a.csv", ("=id", "+label", "a;=cmd()"), [("x", "y", "z")])
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[0] == "'=id,'+label,a;'=cmd()"
    for names in (("=id", "+label"), ("'=id", "'+label")):
        assert [(each.id, each.label) for each in read_answers(tmp_path / "a.csv", *names)] == [("x", "y")]


def test_odd_ids_survive_out_and_in(tmp_path):
    write_texts(tmp_path / "t.csv", names=ODD)
    given = {"texts": tmp_path / "t.csv", "column": "body", "classes": ["-1", "=b"], "encoder": "tfidf"}
    project = Project.create(tmp_path / "p", **given)
    names = project.ids()
    assert set(ODD) <= set(names)
    project.tell(dict.fromkeys(names[::2], "=b") | dict.fromkeys(names[1::2], -1))
    project.export(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(cell.startswith(("=", "@")) for cell in cells)
    other = Project.create(tmp_path / "q", **given)
    assert other.tell(tmp_path / "out.csv").labelled == len(names)
    assert other.labels == project.labels
    batch = Project.create(tmp_path / "r", **given).ask(30)
    batch.to_csv(tmp_path / "batch.csv")
    content = (tmp_path / "batch.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")  # it is not plain ASCII, and spreadsheets need to be told
    rows = list(csv.DictReader(content.decode("utf-8-sig").splitlines(keepends=True)))
    assert {meanings(row["id"])[0] for row in rows} == set(names)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"id,label\na,x\nb,\n", [("a", "x")]),
        (b"\xef\xbb\xbfid;label;text\r\na;x;1,2\r\n", [("a", "x")]),
        (b"id\tlabel\na\tx\n", [("a", "x")]),
        ("id,label\na,x\n".encode("utf-16"), [("a", "x")]),
        (b'text,Label,ID\n"one\ntwo",x,"a,b"\n\n,,\n', [("a,b", "x")]),
        (b"id,label,text\na,x\n", [("a", "x")]),  # a spreadsheet left the last cell out
        (b"id,label,annotator,seconds\na,x,Ann,2.5\nb,y,,\n", [("a", "x", "Ann", 2.5), ("b", "y", None, None)]),
    ],
)
def test_files_of_spreadsheets_are_read(tmp_path, content, expected):
    (tmp_path / "a.csv").write_bytes(content)
    found = [(each.id, each.label, each.annotator, each.seconds) for each in read_answers(tmp_path / "a.csv")]
    assert found == [(*row, *(None, None))[:4] for row in expected]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must have a column 'id', got columns none"),
        (b"a,b\n1,2\n", "must have a column 'id', got columns a, b"),
        (b"id,text\n1,2\n", "must have a column 'label', got columns id, text"),
        (b"id,label\n1,x,oops\n", "line 2 must have 2 cells, got 3"),
        (b"id,label\n,x\n", "line 2 must have an id"),
        (b'id,label\n"1,x\n', "must be a CSV file, got damage"),
        (b"id,label\n\xff\xff,x\n", "must be a text file in UTF-8"),
        (b"id,label,seconds\n1,x,soon\n", "seconds must be a number of at least 0, got 'soon'"),
        (b"id,label,label\n1,x,y\n", "must have one column 'label', got several; rename the others"),
    ],
)
def test_files_that_are_none(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_answers(tmp_path / "a.csv")


def test_other_columns_can_be_named(tmp_path):
    write_sheet(tmp_path / "a.csv", ("name", "id", "verdict"), [("a", "9", "x")])
    (found,) = read_answers(tmp_path / "a.csv", "name", "verdict")
    assert (found.id, found.label) == ("a", "x")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_answers(tmp_path / "b.csv")


def test_columns_of_a_table_are_never_taken_for_ours(tmp_path):
    theirs = ["id", "id_", "Annotator", "SECONDS", " annotator", "seconds", "annotator_", "label", "weight"]
    write_sheet(
        tmp_path / "t.csv",
        theirs,
        [[str(i), f"n{i}", "vendor", "7", "x", "soon", "b", "y", str(i % 5)] for i in range(12)],
    )
    project = Project.create(
        tmp_path / "p", table=tmp_path / "t.csv", id="id_", classes=["x", "y"], encoder="table", audit=0
    )
    batch = project.ask(4)
    batch.to_csv(tmp_path / "batch.csv")
    with (tmp_path / "batch.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "id", "label", "id_", "Annotator_", "SECONDS_", " annotator_", "seconds_", "annotator_", "label_", "weight",
    ]  # fmt: skip
    assert (rows[0]["id_"], rows[0]["Annotator_"], rows[0]["annotator_"]) == (rows[0]["id"][1:], "vendor", "b")
    filled = [{**row, "label": "x"} for row in rows[:2]] + [
        {**row, "label": "y", "annotator": "Ann", "seconds": "2.5"} for row in rows[2:]
    ]
    columns = [*rows[0], "annotator", "seconds"]
    write_sheet(tmp_path / "batch.csv", columns, [[row.get(name, "") for name in columns] for row in filled])
    assert project.tell(tmp_path / "batch.csv").labelled == 4
    told = [(event.who, event.seconds) for event in project.events() if event.kind == "labelled"]
    assert told == [(None, None), (None, None), ("Ann", 2.5), ("Ann", 2.5)]


def test_a_column_named_for_labels_is_nothing_else(tmp_path):
    write_sheet(tmp_path / "a.csv", ("id", "annotator", "seconds"), [("a", "x", "y")])
    (found,) = read_answers(tmp_path / "a.csv", "annotator", "seconds")
    assert (found.id, found.label, found.annotator, found.seconds) == ("x", "y", None, None)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    write_sheet(tmp_path / "a.csv", ("id",), [("a",)])

    def broken():
        yield ("b",)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_sheet(tmp_path / "a.csv", ("id",), broken())
    assert (tmp_path / "a.csv").read_bytes() == b"id\r\na\r\n"
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]
