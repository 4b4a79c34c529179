"""Suggestions that are reviewed: the most doubtful ones, spread, and none of the audit set."""

import numpy as np
import pytest
from test_suggestions import invoke, source_file

from batchbalance.errors import NothingLeftError
from batchbalance.project.learning import class_probs
from made_projects import CLASSES, answered, make, points


def test_doubtful_suggestions_are_offered_and_asked(tmp_path):
    project = make(tmp_path, num=200, audit=0.3, model={"num_draws": 4})
    said, sure = source_file(tmp_path / "gpt.csv", 200)
    project.suggest(tmp_path / "gpt.csv", "gpt")
    before = project.review("gpt", 5)
    assert [each.guess for each in before] == [""] * 5
    assert [each.wrong for each in before] == pytest.approx([1 - sure[int(each.id)] for each in before], abs=1e-6)
    for _ in range(2):
        answered(project, 20, 200)
    found = project.review("gpt", 12)
    state, vectors = project.store.snapshot(), project.embeddings.array()
    trained = project.model.trained(state, vectors)
    probs, combined = class_probs(trained.posterior, vectors), trained.probs(vectors)
    left = [i for i in range(200) if not project.store.is_audit[i] and i not in state.labels()]
    for each in found:
        row = int(each.id)
        assert row in left
        assert (each.suggestion, each.guess) == (CLASSES[said[row]], CLASSES[combined[row].argmax()])
        assert each.wrong == pytest.approx(1 - probs[row, said[row]])
        assert each.confidence == pytest.approx(sure[row], abs=1e-6)
    y = points(200)[1]
    assert np.mean([said[int(each.id)] != y[int(each.id)] for each in found]) > np.mean(said != y)
    assert invoke("ask", tmp_path / "p", "--review", "gpt", "-n", "12").exit_code == 0
    assert project.open_questions() == [each.id for each in found]
    assert not {each.id for each in project.review("gpt", 5)} & {each.id for each in found}


def test_nothing_is_left_to_review(tmp_path):
    project = make(tmp_path, audit=1.0)
    source_file(tmp_path / "gpt.csv")
    project.suggest(tmp_path / "gpt.csv", "gpt")
    with pytest.raises(NothingLeftError, match="no suggestion by gpt is left to review"):
        project.review("gpt")
