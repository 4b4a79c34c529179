import errno
import hashlib
import json
import os
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchbalance import FileFormatError
from batchbalance.system.journal import Journal, read_journal, sync_folder

RECORDS = [{"event": "J*", "ids": [1, 2], "x": -0.25}, {"round": 1, "text": "ü \n [1, {"}, {}]
# These look at what chance finds, so they take fresh examples; what failed is printed to be tried again.
fresh = settings(derandomize=False, print_blob=True, max_examples=50)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
journals = st.lists(st.dictionaries(st.text(max_size=6), values, max_size=3), min_size=1, max_size=5)


def written(path, records):
    """The bytes of a new journal with these records."""
    path.unlink(missing_ok=True)
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
    return path.read_bytes()


def read_or_refused(path, content):
    """The records of a file, or None if it is refused."""
    path.write_bytes(content)
    try:
        return read_journal(path)
    except FileFormatError:
        return None


def sealed(content, record):
    """One more line, spelled out."""
    number = content.count(b"\n") + 1
    checksum = hashlib.sha256(content + record.encode()).hexdigest()[:16]
    return content + f'[{number}, "{checksum}", {record}]\n'.encode()


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
    path.write_bytes(sealed(b"", '{"a": 1}') + half)
    assert read_journal(path) == [{"a": 1}]
    assert path.read_bytes().endswith(half)
    with Journal(path) as journal:
        journal.append({"b": 3})
    assert path.read_bytes() == sealed(sealed(b"", '{"a": 1}'), '{"b": 3}')


def test_the_form_of_a_line(path):
    assert written(path, [{"a": 1}, {"b": [0.5, "ü"]}]) == sealed(sealed(b"", '{"a": 1}'), r'{"b": [0.5, "\u00fc"]}')
    for line in path.read_text(encoding="ascii").splitlines():
        assert [type(part) for part in json.loads(line)] == [int, str, dict]


def test_every_flip_of_one_bit_is_found(path):
    content = written(path, RECORDS)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read_or_refused(path, flipped) is None, (bit, bytes(flipped))


@fresh
@given(journals, st.data())
def test_flips_of_bits_are_found(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("flips") / "journal.jsonl"
    content = written(path, records)
    whole = read_journal(path)
    assert whole[-len(records) :] == records
    for bit in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=40, unique=True)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read_or_refused(path, flipped) is None, (bit, bytes(flipped))
    # Flips in the last newline and before it make a line that was cut short.
    several = bytearray(content)
    for bit in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=2, max_size=5, unique=True)):
        several[bit // 8] ^= 1 << bit % 8
    assert read_or_refused(path, several) in (None, whole[:-1])


@fresh
@given(journals, st.data())
def test_a_cut_anywhere_leaves_whole_records(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("cuts") / "journal.jsonl"
    content = written(path, records)
    whole = read_journal(path)
    for size in data.draw(st.lists(st.integers(0, len(content)), min_size=1, max_size=20)):
        left = whole[: content[:size].count(b"\n")]
        assert read_or_refused(path, content[:size]) == left
    with Journal(path) as journal:
        journal.append({"next": 1})
    assert read_journal(path) == [*left, {"next": 1}]


FIRST, SECOND, THIRD = sealed(sealed(sealed(b"", '{"a": 1}'), '{"b": 2}'), '{"c": 3}').splitlines(keepends=True)
OTHERS = sealed(sealed(b"", '{"a": 0}'), '{"b": 2}').splitlines(keepends=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([FIRST, THIRD], "line 2 of .* must be number 2, got 3: lines are missing or moved"),
        ([SECOND, THIRD], "line 1 of .* must be number 1, got 2"),
        ([FIRST, THIRD, SECOND], "line 2 of .* must be number 2, got 3"),
        ([FIRST, SECOND, SECOND], "line 3 of .* must be number 3, got 2"),
        ([FIRST, b"\n", SECOND], "line 2 of .* must be its number, a checksum and a record in brackets, got b''"),
        ([FIRST, b'{"b": 2}\n'], "line 2 of .* must be its number, a checksum and a record"),
        ([FIRST, OTHERS[1]], "line 2 of .* must match its checksum, got another one: this line or one above it"),
        ([OTHERS[0], SECOND], "line 2 of .* must match its checksum"),
        ([FIRST, SECOND[:-1] + b"*"], r"line 2 of .* must end with a newline, got b'\*'"),
    ],
)
def test_lines_that_are_missing_moved_repeated_or_of_another_journal(path, lines, message):
    path.write_bytes(b"".join(lines))
    for read in (read_journal, Journal):
        with pytest.raises(FileFormatError, match=message + r".*; restore the file from a copy, or delete this line"):
            read(path)
    assert path.read_bytes() == b"".join(lines)


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


def test_a_killed_process_lets_go(path, parent):
    code = (
        "import sys, time; from pathlib import Path; from batchbalance.system.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r})); journal.append({{'a': 1}})\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    with parent.start(code) as process:
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
        assert path.read_bytes() == sealed(b"", '{"a": 1}')
        journal.append({"c": 3})
    assert read_journal(path) == [{"a": 1}, {"c": 3}]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of a file")
def test_a_real_limit_on_the_file_size(path, parent):
    code = (
        "import resource; from pathlib import Path; from batchbalance.system.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try:\n"
        "    for i in range(100): journal.append({'record': i, 'text': 'x' * 50})\n"
        "except OSError as error: print(error)\n"
    )
    _, out, err = parent.run(code)
    assert "all earlier records are intact" in out, err
    assert [entry["record"] for entry in read_journal(path)] == [0, 1]


def test_the_lock_file_is_hidden_and_may_be_deleted_in_between(path):
    written(path, [{"a": 1}])
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
