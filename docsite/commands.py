"""`reference/cli.md`: every command and option with its help, from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from batchbalance.cli import app
from docsite.tables import NOTE, code, paragraph, plain, table

# What an option takes, as help says it, in the words of this page.
VALUES = {
    "<str>": "TEXT",
    "<path>": "PATH",
    "<int>": "NUMBER",
    "<int range>": "NUMBER",
    "<float>": "NUMBER",
    "<list[str]>": "TEXT",
    "<list[Path]>": "PATH",
}
LISTS = ("<list[str]>", "<list[Path]>")


def commands_page() -> str:
    """The page as Markdown."""
    found = list(walked(typer.main.get_command(app), "batchbalance", None))
    listing = table(
        ["command", "what it does"],
        ([f"[{name}](#{name.replace(' ', '-')})", first_sentence(command.help)] for name, command, _ in found[1:]),
    )
    parts = [
        NOTE,
        "# Command line",
        paragraph(
            "`batchbalance COMMAND --help` prints the same in the terminal. A mistake is one line on standard error "
            "and exit code 2; Ctrl-C is exit code 130."
        ),
        listing,
        *(section(*each) for each in found[1:]),
    ]
    return "\n\n".join(parts) + "\n"


def walked(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, command and context of a command and of all below it."""
    context = command.context_class(command, info_name=name.split()[-1], parent=parent)
    yield name, command, context
    for below, each in getattr(command, "commands", {}).items():
        yield from walked(each, f"{name} {below}", context)


def section(name: str, command: Any, context: Any) -> str:
    """One command: what it does, how it is called, its arguments and options."""
    parts = [f"## {name}", paragraph(plain(command.help or ""))]
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    words: list[str] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or record[0] == "--help":
            continue
        if parameter.param_type_name == "argument":
            arguments.append(row(*record))
            words.append(arguments[-1][0].strip("`") if parameter.required else f"[{arguments[-1][0].strip('`')}]")
        else:
            options.append(row(*record))
    if not hasattr(command, "commands"):
        parts.append(f"```text\n{' '.join([name, *words, '[OPTIONS]'])}\n```")
    if arguments:
        parts.append(table(["argument", "meaning"], arguments))
    if options:
        parts.append(table(["option", "meaning"], options))
    return "\n\n".join(parts)


def row(names: str, text: str) -> tuple[str, str]:
    """The two cells of an argument or option, from the two parts of its line in the help."""
    spelled, value = split(r" (<.*>|\S*[A-Z\[]\S*)$", names)
    text, extra = split(r"  \[([^\]]*)\]$", text)
    is_option = spelled.startswith("-")
    named = (f"{spelled} {VALUES.get(value, value)}" if value else spelled) if is_option else spelled.upper()
    meaning = [plain(text)]
    for part in filter(None, extra.split("; ")):
        if part.startswith("default: "):
            meaning.append(f"Default {code(part.removeprefix('default: '))}.")
        elif part != "required":
            meaning.append(f"Must be {range_of(part)}.")
        elif is_option:
            meaning.append("**Required.**")
    if is_option and value in LISTS and "repeat" not in text:
        meaning.append("Repeatable.")
    return code(named), " ".join(meaning)


def split(pattern: str, text: str) -> tuple[str, str]:
    """The text before a pattern, and the group of the pattern; nothing if it is not there."""
    found = re.search(pattern, text)
    return (text[: found.start()], found[1]) if found else (text, "")


def range_of(text: str) -> str:
    """`x>=1` and `0<=x<=9` in words."""
    both = re.fullmatch(r"(-?\d+)<=x<=(-?\d+)", text)
    if both:
        return f"from {both[1]} to {both[2]}"
    return text.replace("x>=", "at least ").replace("x<=", "at most ")


def first_sentence(text: str | None) -> str:
    """Up to the first full stop."""
    return plain((text or "").split(". ")[0].rstrip(".") + ".")
