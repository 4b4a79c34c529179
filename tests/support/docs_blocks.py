"""The blocks of code on a page of the docs, and how each is run.

A block of Python runs with the names that blocks above it have left. A block of commands runs in bash, where a batch
that is asked is filled in at once, as a person would, `label` serves only until it can be reached, and `make` only says
what it would do. A block below a paragraph that begins with the name of a file, as "`own.toml`: …", becomes that file.
A block that cannot run says why in its first line: ``# not run in the tests: …``.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASON = "# not run in the tests: "
PROMPT = "$ "
RESULT = "  # → "  # behind a statement that prints; what follows is a line of its output
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.S | re.M)
PERSON = Path(__file__).with_name("docs_person.py")
PLAIN = [sys.executable, "-m", "batchbalance.cli"]
COMMANDS = f"""\
set -euo pipefail
batchbalance() {{
    if [ "$1" = label ]; then label "$@"; else "${{command[@]}}" "$@"; fi
    if [ "$1" = ask ]; then "{sys.executable}" "{PERSON}" "$2"; fi
}}
label() {{  # the server runs until it says where it is; then a batch is answered
    : > label.log
    "${{command[@]}}" "$@" --no-open --port 0 >> label.log 2>&1 &
    until grep -q http:// label.log; do kill -0 $! || {{ cat label.log >&2; return 1; }}; sleep 0.2; done
    kill $!
    wait $! || true
    batchbalance ask "$2"
    batchbalance tell "$2" "$2/batch.csv"
}}
python() {{ "{sys.executable}" "$@"; }}
pip() {{ [ "$1" = install ]; }}  # everything is installed
make() {{ command make -C "{ROOT}" --dry-run "$@" > make.log; }}  # the targets are there
"""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    file: str | None

    @property
    def reason(self):
        """Why it is not run, or None."""
        first = self.text.lstrip().splitlines()[0]
        return first.removeprefix(REASON) if first.startswith(REASON) else None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    """The blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        above = text[: match.start()].rstrip("\n").rpartition("\n\n")[2]
        named = re.match(r"`([\w-]+\.\w+)`:", above)
        line = text.count("\n", 0, match.start()) + 1
        code = re.sub(f"^{match[1]}", "", match[3], flags=re.M)
        found.append(Block(page, line, match[2], code, named and named[1]))
    return found


def run(block, names, folder, command=PLAIN):
    """Run a block in a folder, with the names that Python blocks share; `command` is what runs as `batchbalance`."""
    if block.reason is not None:
        assert len(block.reason.split()) >= 3, f"{block}: say why it is not run"
    elif block.file is not None:
        parse(block)
        (folder / block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        run_python(block, names)
    elif block.language in {"console", "bash"}:
        run_commands(block, folder, command)
    else:
        parse(block)


def parse(block):
    """A block that is data must at least be valid."""
    if block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert block.language in {"text", "python", "csv"}, f"{block} has the unknown language {block.language!r}"


def run_python(block, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)
    lines = iter(printed.getvalue().splitlines())
    for expected in re.findall(rf"{RESULT}(.*)$", block.text, re.M):
        assert expected in lines, f"{block} does not print {expected!r}: {printed.getvalue()!r}"


def run_commands(block, folder, command):
    code = "\n".join(commands(block.text))
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", f"command=({shlex.join(command)})\n" + COMMANDS + code],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{block}:\n{code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def commands(text):
    """The lines to run: all of them, or those behind a prompt, with the lines that continue them."""
    lines = text.splitlines()
    if not any(line.startswith(PROMPT) for line in lines):
        return lines
    kept, continued = [], False
    for line in lines:
        if continued or line.startswith(PROMPT):
            kept.append(line.removeprefix(PROMPT))
            continued = line.endswith("\\")
    return kept
