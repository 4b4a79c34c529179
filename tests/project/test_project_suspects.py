"""Labels of a project that are probably wrong: in `status`, in Python and in a file."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits

from batchbalance.project import Project
from made_projects import points


@pytest.fixture
def project(tmp_path):
    """200 labels of digits, of which a tenth is wrong, also among audit items."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = {str(row) for row in rng.permutation(200)[:20]}
    np.save(tmp_path / "e.npy", pixels[:300].astype(np.float32))
    made = Project.create(
        tmp_path / "p", embeddings=tmp_path / "e.npy", classes=range(10), audit=0.3, model={"num_draws": 4}
    )
    names = [str(row) for row in range(200)]
    made.tell({name: (digits[int(name)] + (name in wrong)) % 10 for name in names}, sample="random")
    return made, wrong, dict(zip(names, made.is_audit(names), strict=True))


@pytest.mark.slow
def test_they_are_counted_listed_and_written(project, tmp_path):
    made, wrong, aside = project
    found = made.suspects()
    names = {each.item.id for each in found}
    assert len(names & wrong) >= 10
    assert any(each.is_audit for each in found)
    assert all(each.is_audit == aside[each.item.id] for each in found)
    expected = sum(each.wrong for each in found) / len(found)
    told = str(made.status())
    assert f"{len(found)} of 200 labels judged" in told
    assert f"about {100 * expected:.0f} % of them are expected to be wrong" in told
    assert [name for name, _ in made.status().rows()].count("likely label error") == min(10, len(found))
    path = tmp_path / "suspects.csv"
    assert made.export_suspects(path) == len(found)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [each.item.id for each in found]
    assert set(rows[0]) == {"id", "label", "suggested", "probability_wrong", "audit"}
    path.write_text(
        path.read_text().replace(f"{rows[0]['id']},{rows[0]['label']},", f"{rows[0]['id']},{rows[0]['suggested']},")
    )
    assert made.tell(path).corrected == 1  # labels that were corrected in the file


@pytest.mark.slow
def test_right_labels_are_not_listed(tmp_path):
    x, y = points(200)
    np.save(tmp_path / "e.npy", x)
    made = Project.create(tmp_path / "p", embeddings=tmp_path / "e.npy", classes="abc", model={"num_draws": 4})
    assert made.suspects() == []
    made.tell({str(row): "abc"[y[row]] for row in range(150)})
    assert made.suspects() == []
    assert "none of 150 labels judged by a model that has not seen them" in str(made.status())
