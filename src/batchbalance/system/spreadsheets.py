"""CSV files that are safe to open in a spreadsheet. Every CSV file is written here.

A spreadsheet evaluates a cell that begins with ``=``, ``+``, ``-`` or ``@``. In locales where ``;`` is the separator,
it splits a cell at every ``;``, and quotes do not prevent that. So the text after a ``;``, a tab or a line end may
become a cell. Each such part, in rows and in the header, is written with an apostrophe before it, which is removed
on reading.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Includes full-width forms, which East Asian spreadsheets treat alike; leading blanks and quotes are skipped.
FORMULA = re.compile(r"""'*[\s"\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]""")
SEPARATORS = re.compile(r"([;\t\r\n])")


def escaped(cell: str) -> str:
    """Return a cell that no spreadsheet evaluates, whatever its separator; numbers stay unchanged."""
    return "".join(f"'{part}" if _is_formula(part) else part for part in SEPARATORS.split(cell))


def meanings(cell: str) -> list[str]:
    """Return the possible meanings of a cell: first without the apostrophes that `escaped` adds, then unchanged."""
    parts = SEPARATORS.split(cell)
    plain = "".join(part[1:] if part[:1] == "'" and _is_formula(part[1:]) else part for part in parts)
    return [cell] if plain == cell else [plain, cell]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return the text of a CSV file; None becomes an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)  # line end \r\n by default; with another one, cells that contain \r would not be quoted
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
