"""How answers with several labels are written, read, counted and agreed on."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbalance import FileFormatError, UnknownNameError
from batchbalance.project.answers import read_answers
from batchbalance.project.labelling import Labelling, as_codes, as_text, check_names, is_same, majority

NAMES = ("art", "biology", "=cost", "-1")
MULTI, SINGLE = Labelling(NAMES, is_multi=True), Labelling(NAMES)
SETS = st.sets(st.integers(0, 3)).map(lambda found: tuple(sorted(found)))


@given(SETS)
def test_what_is_written_is_read(value):
    assert MULTI.read(MULTI.text(value)) == value
    assert MULTI.read(as_text(MULTI.natural(value))) == value
    assert MULTI.read(json.dumps(MULTI.natural(value))) == value
    assert MULTI.read(" ; ".join(MULTI.natural(value)[::-1]) or "None") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("biology;art", (0, 1)), ("art;art;", (0,)), ("none", ()), ("[]", ()), ('["-1"]', (3,)), ("[-1]", (3,)),
     ("art;'=cost", (0, 2)), ("'=cost", (2,))],
)  # fmt: skip
def test_several_labels_are_read(text, value):
    assert MULTI.read(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must not be empty; write none"),
        (";", "unknown label at row 3: ';'"),
        ("art;biologi", "unknown label at row 3: 'biologi'; did you mean 'biology'"),
        ("art,biology", "'art,biology' must have ';' between its classes"),
        ("art|biology", "must have ';' between"),
        ("[art", "unknown label at row 3"),
        ('{"art": 1}', "unknown label"),
        ("art;none", "unknown label at row 3: 'none'"),
    ],
)
def test_what_names_no_labels_is_refused(text, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        MULTI.read(text, "row 3")


@pytest.mark.parametrize("label", ["art;biology", '["art", "biology"]', ["art", "biology"]])
def test_one_class_for_each_item_names_the_other_kind_of_project(label):
    with pytest.raises(ValueError, match=r"must be one class, because .* `init --multi-label`"):
        SINGLE.read(as_text(label))
    assert SINGLE.read("art") == 0
    with pytest.raises(UnknownNameError, match="unknown label 'none'"):
        SINGLE.read("none")


@given(st.lists(SETS, max_size=6))
def test_arrays_and_codes_are_those_of_a_plain_loop(values):
    array = MULTI.array(values)
    assert array.shape == (len(values), 4)
    for row, value in zip(array, values, strict=True):
        for number in range(4):
            assert row[number] == (1 if number in value else 0)
    assert MULTI.values(array) == values
    codes = MULTI.codes(array)
    assert codes.tolist() == [sum(2**each for each in value) for value in values]
    np.testing.assert_array_equal(MULTI.of_codes(codes), array)
    assert MULTI.counts(values) == [sum(number in value for value in values) for number in range(4)]
    if values:
        said = np.roll(array, 1, axis=0)
        assert is_same(array, said).tolist() == [a == b for a, b in zip(values, values[-1:] + values[:-1], strict=True)]


def test_codes_of_many_labels_are_exact():
    many = Labelling(tuple(f"c{i}" for i in range(80)), is_multi=True)
    array = many.array([(0, 79), (), (63,)])
    assert many.codes(array).tolist() == [2**79 + 1, 0, 2**63]
    np.testing.assert_array_equal(many.of_codes(many.codes(array)), array)
    assert (as_codes([-1, 2**79]) != -1).tolist() == [False, True]


def test_what_a_model_predicts_is_each_label_above_one_half():
    probs = np.array([[0.9, 0.5, 0.6, 0.1], [0.2, 0.1, 0.0, 0.3]])
    assert MULTI.values(MULTI.predicted(probs)) == [(0, 2), ()]
    assert MULTI.confidence(probs).tolist() == pytest.approx([0.9 * 0.5 * 0.6 * 0.9, 0.8 * 0.9 * 1.0 * 0.7])
    assert SINGLE.predicted(probs).tolist() == [0, 3]
    assert SINGLE.confidence(probs).tolist() == [0.9, 0.3]


@given(st.lists(SETS, min_size=1, max_size=5))
def test_the_majority_is_of_each_label(values):
    found, expected = majority(values), []
    for number in range(4):
        votes = sum(number in value for value in values)
        if 2 * votes == len(values):
            assert found is None
            return
        expected += [number] if 2 * votes > len(values) else []
    assert found == tuple(expected)
    assert majority([]) is None
    assert majority([1, 1, 2]) == 1
    assert majority([1, 2]) is None


@pytest.mark.parametrize("name", ["a;b", "none", "None", "[x"])
def test_names_that_look_like_several_are_refused(name):
    with pytest.raises(ValueError, match="choose another name"):
        check_names(["ok", name])


def test_one_column_for_each_label_is_read(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("id,art,biology,'=cost,-1\nx,1,0,0,0\ny,0,0,0,0\nz,,,,\nw,true,0,1.0,no\n")
    found = {each.id: MULTI.read(each.label) for each in read_answers(path, labelling=MULTI)}
    assert found == {"x": (0,), "y": (), "w": (0, 2)}
    for content, message in (
        ("id,art,biology\nx,1,0\n", "must have a column '=cost'"),
        ("id,art,biology,=cost,-1\nx,1,0,0,\n", "line 2 must have 0 or 1 for '-1', got ''"),
        ("id,art,biology,=cost,-1\nx,1,0,0,0.5\n", "line 2 must have 0 or 1 for '-1', got '0.5'"),
        ("id,painting\nx,1\n", "must have a column 'label'"),
    ):
        path.write_text(content)
        with pytest.raises(FileFormatError, match=message):
            read_answers(path, labelling=MULTI)
    path.write_text("id,art,biology\nx,1,0\n")
    with pytest.raises(FileFormatError, match="must have a column 'label'"):
        read_answers(path, labelling=SINGLE)
