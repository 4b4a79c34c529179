"""Progress: silent by default, lines where there is no terminal, a line with a bar where there is one."""

import io

from batchbalance.system import progress as module
from batchbalance.system.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream, show=True):
    with progress("work", 3, show, stream) as bar:
        for step in range(3):
            bar.advance(note=f"step {step}")
    return stream.getvalue()


def test_silent_unless_asked():
    assert run(io.StringIO(), show=False) == ""


def test_plain_lines_elsewhere(monkeypatch):
    assert run(io.StringIO()).splitlines() == ["work: 3 of 3, 0 s, step 2"]
    monkeypatch.setattr(module, "LINE_SECONDS", 0)
    lines = run(io.StringIO()).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("work: 1 of 3, 0 s, 0 s left")


def test_a_bar_on_a_terminal():
    shown = run(Terminal())
    assert shown == f"[{'=' * 20}] work: 3 of 3, 0 s, step 2\n"
