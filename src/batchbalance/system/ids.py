"""Ids of points in a text file, one per line; ``e.ids.txt`` holds those of ``e.npy``.

An id is written unchanged if it can be read back. One with a line break or another unprintable character, with blanks
at its ends, or with a quotation mark at its start is written as a JSON string.

A lone surrogate (half a character) comes from JSON or from a file name in another encoding. UTF-8 cannot encode it,
so it cannot be written to a file, database or page. Such text is refused on input.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from batchbalance.errors import FileFormatError

HALVES = re.compile("[\ud800-\udfff]")


def check_unicode(name: str, text: str) -> str:
    """Return a text unchanged; raise FileFormatError if it has a lone surrogate, which UTF-8 cannot encode."""
    found = None if text.isascii() else HALVES.search(text)
    if found is not None:
        near = ascii(text[max(found.start() - 30, 0) : found.end() + 30])
        raise FileFormatError(
            f"{name} must be valid Unicode, got half a character (a lone surrogate) in {near}; replace that character"
        )
    return text


def mended(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD."""
    return HALVES.sub("\ufffd", text)


def ids_path(embeddings: Path) -> Path:
    """Return the path of the ids of a file of embeddings: ``e.ids.txt`` beside ``e.npy``."""
    return embeddings.with_name(f"{embeddings.stem}.ids.txt")


def line_of(name: str) -> str:
    """Return the line, without its end, that encodes an id."""
    plain = name.isprintable() and name.strip() == name and not name.startswith('"')
    return name if plain else json.dumps(name)


def id_of(line: str) -> str:
    """Return the id that a line encodes."""
    if line.startswith('"'):
        try:
            name = json.loads(line)
        except ValueError:
            return line
        if isinstance(name, str):
            return name
    return line


def read_ids(path: str | os.PathLike[str]) -> list[str]:
    """Read the ids of a file, in order.

    Raises:
        FileFormatError: if it is not a text file in UTF-8.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} must be a UTF-8 text file with one id per line") from error
    return [check_unicode(f"an id in {path}", id_of(line.strip())) for line in lines]


def repeated_id(names: Iterable[str]) -> str | None:
    """Return an id that occurs more than once, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
