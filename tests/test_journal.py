import errno
import json
import os
import subprocess
import sys
import threading

import pytest

from batchbalance import FileFormatError
from batchbalance.journal import Journal, read_journal, sync_folder


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_what_was_appended_is_there_after_closing(path):
    with Journal(path) as journal:
        journal.append({"a": 1})
        journal.append({"b": [1.5, None, "ü"]})
        assert list(journal) == [{"a": 1}, {"b": [1.5, None, "ü"]}]
    assert read_journal(path) == [{"a": 1}, {"b": [1.5, None, "ü"]}]
    with Journal(path) as journal:
        assert len(journal) == 2
        journal.append({"c": 2})
    assert [list(entry) for entry in read_journal(path)] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("half", [b"{", b'{"b": 2}', b"\0\0\0"])
def test_a_last_line_cut_short_is_ignored_and_dropped(path, half):
    path.write_bytes(b'{"a": 1}\n' + half)
    assert read_journal(path) == [{"a": 1}]
    assert path.read_bytes().endswith(half)
    with Journal(path) as journal:
        journal.append({"b": 3})
    assert path.read_bytes() == b'{"a": 1}\n{"b": 3}\n'


@pytest.mark.parametrize("damage", [b'{"a"\n{"b": 2}\n', b'{"a": 1}\n[]\n', b"\n"])
def test_other_damage_is_an_error_that_names_the_line(path, damage):
    path.write_bytes(damage)
    for read in (read_journal, Journal):
        with pytest.raises(FileFormatError, match=r"line \d of .*journal.jsonl must be"):
            read(path)
    assert path.read_bytes() == damage


def test_not_a_number_is_refused(path):
    with Journal(path) as journal, pytest.raises(ValueError, match="JSON"):
        journal.append({"a": float("nan")})
    assert path.read_bytes() == b""


def test_a_second_one_is_refused_until_the_first_is_closed(path):
    with Journal(path), pytest.raises(BlockingIOError, match="in use by another process"):
        Journal(path)
    with Journal(path) as journal:
        journal.append({"a": 1})


def test_waiting_for_a_busy_journal(path):
    first = Journal(path)
    entries = []
    waiting = threading.Thread(target=lambda: entries.extend(Journal(path, wait=True)))
    waiting.start()
    first.append({"a": 1})
    first.close()
    waiting.join(20)
    assert entries == [{"a": 1}]


def test_a_killed_process_lets_go(path):
    code = (
        "import sys, time; from pathlib import Path; from batchbalance.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r})); journal.append({{'a': 1}})\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(BlockingIOError):
            Journal(path)
        process.kill()
    with Journal(path) as journal:
        assert list(journal) == [{"a": 1}]


def test_a_full_disk_leaves_earlier_records_intact(path, monkeypatch):
    with Journal(path) as journal:
        journal.append({"a": 1})
        write = os.write

        def full(handle, data):
            if len(data) < 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(handle, data[:-5])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"No space left on device; all earlier records are intact"):
            journal.append({"b": "long enough to be written in part"})
        monkeypatch.undo()
        assert path.read_bytes() == b'{"a": 1}\n'
        journal.append({"c": 3})
    assert read_journal(path) == [{"a": 1}, {"c": 3}]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of a file")
def test_a_real_limit_on_the_file_size(path):
    code = (
        "import resource; from pathlib import Path; from batchbalance.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try:\n"
        "    for i in range(100): journal.append({'record': i, 'text': 'x' * 50})\n"
        "except OSError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "all earlier records are intact" in result.stdout, result.stderr
    assert [entry["record"] for entry in map(json.loads, path.read_text().splitlines())] == [0, 1, 2]


def test_the_lock_file_is_hidden_and_may_be_deleted_in_between(path):
    with Journal(path) as journal:
        journal.append({"a": 1})
    assert sorted(each.name for each in path.parent.iterdir()) == [".journal.jsonl.lock", "journal.jsonl"]
    (path.parent / ".journal.jsonl.lock").unlink()
    with Journal(path) as journal:
        assert list(journal) == [{"a": 1}]


def test_reading_writes_nothing_and_needs_no_lock(path):
    with Journal(path) as journal:
        journal.append({"a": 1})
        (path.parent / ".journal.jsonl.lock").unlink()
        assert read_journal(path) == [{"a": 1}]
    assert [each.name for each in path.parent.iterdir()] == ["journal.jsonl"]


def test_a_folder_that_cannot_be_opened_is_no_error(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")  # as Windows answers

    monkeypatch.setattr(os, "open", refused)
    sync_folder(tmp_path)
    monkeypatch.undo()
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")
