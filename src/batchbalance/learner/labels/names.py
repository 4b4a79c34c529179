"""Names of points and of classes: whole numbers or text. In CSV files both are text."""

from typing import Any

import numpy as np
from torch import Tensor

from batchbalance.system.ids import check_unicode

Id = int | str
Label = int | str
BLANKS = ("", "nan", "na", "n/a", "#n/a", "<na>", "null")  # in any case: missing values of spreadsheets and pandas


def is_blank(label: str) -> bool:
    """Return whether a text stands for a missing label."""
    return label.strip().lower() in BLANKS


def plain(value: Any) -> Any:
    """Return a value, which may be a NumPy or torch scalar, as a Python int or str."""
    found = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise ValueError(f"ids and labels must be whole numbers or text, got {value!r}")
    return check_unicode("an id or a label", found) if isinstance(found, str) else found


def other(name: Id | Label) -> Id | Label:
    """Return the text of a whole number, or the whole number of a text that is one; else the name itself."""
    if isinstance(name, str):
        return int(name) if name.isascii() and name.lstrip("-").isdecimal() and str(int(name)) == name else name
    return str(name)
