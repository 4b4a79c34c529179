"""CSV files that a spreadsheet may open: the only place that writes them.

A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@``. In countries where ``;`` separates it cuts our
cells at every ``;``, and quotes in the middle of what it takes for a cell do not protect them: a part after ``;``, a
tab or the end of a line is a cell of its own. So each such part, in rows and in the header, is written with an
apostrophe before it, and read without it again.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

# With full-width forms, which spreadsheets of East Asia take for the same; blanks and quotes before them are skipped.
FORMULA = re.compile(r"""'*[\s"\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]""")
SEPARATORS = re.compile(r"([;\t\r\n])")


def escaped(cell: str) -> str:
    """Return a cell that no spreadsheet runs, whatever it takes for the separator; numbers stay as they are."""
    return "".join(f"'{part}" if _is_formula(part) else part for part in SEPARATORS.split(cell))


def meanings(cell: str) -> list[str]:
    """Return what a cell may stand for: first without the apostrophes that `escaped` put there, then as it is."""
    parts = SEPARATORS.split(cell)
    plain = "".join(part[1:] if part[:1] == "'" and _is_formula(part[1:]) else part for part in parts)
    return [cell] if plain == cell else [plain, cell]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV file; None is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)  # lines end with \r\n; with another end, cells that hold \r would not be quoted
    for row in (columns, *rows):
        writer.writerow([escaped(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def _is_formula(part: str) -> bool:
    return FORMULA.match(part) is not None and not _is_number(part)


def _is_number(part: str) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return part.strip() == part
