"""Markdown that the generated pages share."""

import re
import textwrap
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `python -m docsite reference`; edit the code that it is made from. -->"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """Text in lines as short as those that people write here."""
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def code(text: str) -> str:
    """Text in the type of code."""
    return f"`{text}`"


def plain(text: str) -> str:
    """Text of help or of a docstring as Markdown: what would be HTML or emphasis stays as it is written."""
    parts = re.split(r"(`+[^`]*`+)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts)


def sentence(text: str) -> str:
    """The text with a capital letter at its start, unless it starts with a symbol, and a full stop at its end."""
    if re.match(r"[a-z]{2}|a ", text):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", ".)", "?", "…")) else f"{text}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
