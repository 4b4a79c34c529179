"""Arguments of `select` that are of another type altogether; not a part of the pass in which types are checked."""

import pytest

from batchbalance import Predictions, select
from conftest import random_probs


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"threshold": [0.1, 0.2]}, r"`threshold` must be a number from 0 to 1, got \[0\.1, 0\.2\]"),
        ({"labelled": 3}, "`labelled` must be a list of whole numbers"),
    ],
)
def test_other_types_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        select(Predictions.from_probs(random_probs(20, 4, 3)), 3, **kwargs)
