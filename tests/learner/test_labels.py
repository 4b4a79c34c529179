"""The log of events: what is in it stays, is durable, and no damage passes unnoticed."""

import json
import os
import random
import signal
import sqlite3
import threading
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from batchbalance import FileFormatError, Predictions
from batchbalance.learner.labels import EventLog, NewEvent, log, machines


def filled(path, count=6):
    """A log with some events; as after the last process has ended."""
    made = EventLog(path)
    with made.writing() as connection:
        made.append([NewEvent("labelled", row, row % 3, "zoë", 1.5, 0) for row in range(count)])
        rows = [(row, f"id-{row}", "x" * 50, "ff", 0) for row in range(40)]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
    made.close()
    return path


def changed(path, *statements):
    """Change a database behind the log's back."""
    connection = sqlite3.connect(path)
    for name in ("events_stay", "events_last"):
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_what_was_written_is_read_by_this_and_by_other_processes(tmp_path, durable):
    first, second = EventLog(tmp_path / "a.sqlite"), EventLog(tmp_path / "a.sqlite")
    new = NewEvent("labelled", 3, {"note": "ö\n😀"}, "Ann", 2.25, 7)
    with first.writing():
        first.append([new, NewEvent("skipped")])
    for each in (first, second, EventLog(tmp_path / "a.sqlite")):
        found = each.events()
        assert [event.number for event in found] == [1, 2]
        assert (found[0].kind, found[0].item, found[0].value, found[0].who) == ("labelled", 3, {"note": "ö\n😀"}, "Ann")
        assert (found[0].seconds, found[0].batch, found[0].time) == (2.25, 7, found[1].time)
    assert first.query("PRAGMA journal_mode") == [("delete",)]
    assert first.query("PRAGMA synchronous") == [(3,)]  # EXTRA: the folder is synced too
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]
    assert first.query("SELECT batch, questions FROM batches") == []
    assert first.check() == []


def test_the_hash_of_an_event_is_of_the_one_before_and_of_all_its_columns(tmp_path):
    """Computed here with nothing but hashlib and json."""
    import hashlib

    connection = sqlite3.connect(filled(tmp_path / "a.sqlite"))
    before = bytes(32)
    for number, moment, kind, who, item, value, seconds, batch, stored in connection.execute("SELECT * FROM events"):
        text = json.dumps([number, moment, kind, who, item, value, seconds, batch])
        before = hashlib.sha256(before + text.encode()).digest()
        assert stored == before
    assert connection.execute("SELECT number, hash FROM head").fetchall() == [(6, before)]
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET value = '0' WHERE number = 3",
        "UPDATE events SET who = 'Bob' WHERE number = 6",
        "UPDATE events SET who = NULL WHERE number = 1",
        "UPDATE events SET time = time + 0.001 WHERE number = 2",
        "UPDATE events SET item = 9 WHERE number = 2",
        "UPDATE events SET hash = zeroblob(32) WHERE number = 2",
        "UPDATE events SET kind = CAST('labelled' AS BLOB) WHERE number = 2",
        "DELETE FROM events WHERE number = 3",
        "DELETE FROM events WHERE number = 6",
        "DELETE FROM events",
        "UPDATE events SET number = 8 WHERE number = 6",
        "UPDATE head SET number = 5",
        "DELETE FROM head",
        "DROP TABLE events",
        "PRAGMA user_version = 99",
        "PRAGMA application_id = 7",
    ],
)
def test_whatever_is_changed_is_noticed(tmp_path, statement):
    path = filled(tmp_path / "a.sqlite")
    assert len(EventLog(path).events()) == 6
    changed(path, statement)
    with pytest.raises(FileFormatError, match=r"a\.sqlite (is damaged|must be a log of labels)") as told:
        EventLog(path)
    assert "\n" not in str(told.value)


def test_events_cannot_be_changed_or_deleted(tmp_path):
    connection = sqlite3.connect(filled(tmp_path / "a.sqlite"))
    for statement in ("UPDATE events SET value = '0'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="events are never"):
            connection.execute(statement)
    connection.close()


def test_an_error_leaves_everything_as_it_was(tmp_path):
    made = EventLog(tmp_path / "a.sqlite")

    def interrupted():
        with made.writing():
            made.append([NewEvent("labelled", 1, 2)])
            assert len(made.events()) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert made.events() == EventLog(tmp_path / "a.sqlite").events() == []
    with pytest.raises(ValueError, match="Out of range"), made.writing():
        made.append([NewEvent("labelled", 1, 2), NewEvent("labelled", 2, float("nan"))])
    assert made.events() == []
    with made.writing():
        made.append([NewEvent("labelled", 1, 2)])
    assert len(EventLog(tmp_path / "a.sqlite").events()) == 1


def test_transactions_do_not_nest_and_appending_needs_one(tmp_path):
    made = EventLog(tmp_path / "a.sqlite")
    with pytest.raises(RuntimeError, match="within `writing`"):
        made.append([NewEvent("labelled")])
    with pytest.raises(RuntimeError, match="must not begin within"), made.writing(), made.writing():
        pass


def test_threads_and_logs_write_at_once(tmp_path):
    logs = [EventLog(tmp_path / "a.sqlite") for _ in range(2)]

    def work(mine, who):
        for row in range(20):
            with mine.writing():
                mine.append([NewEvent("labelled", row, 0, who)])

    threads = [threading.Thread(target=work, args=(logs[i % 2], f"t{i}")) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = EventLog(tmp_path / "a.sqlite").events()
    assert len(found) == 80
    for i in range(4):
        assert [event.item for event in found if event.who == f"t{i}"] == list(range(20))


def interrupted(path):
    """A log whose process was killed in the middle of its 7th event: pages are half written, the journal is there."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        made = EventLog(path)
        made.query("PRAGMA cache_size = 0")
        made.query("PRAGMA cache_spill = 1")  # pages are written before the transaction ends
        with made.writing() as connection:
            made.append([NewEvent("labelled", 7, 1, "x" * 5000)])
            connection.execute("UPDATE items SET content = content || 'y'")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return path.with_name(f"{path.name}-journal")


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_transaction_that_was_killed_is_undone(tmp_path, durable):
    path = filled(tmp_path / "a.sqlite")
    before = path.read_bytes()
    assert interrupted(path).exists()
    assert path.read_bytes() != before
    assert len(EventLog(path).events()) == 6
    assert [each.name for each in tmp_path.iterdir()] == ["a.sqlite"]


@needs_fork
def test_a_copy_of_the_one_file_is_whole_or_refused(tmp_path, durable):
    """Whole at any time but in the middle of a transaction."""
    made = EventLog(tmp_path / "a.sqlite")
    for row in range(5):
        with made.writing():
            made.append([NewEvent("labelled", row, 1)])
        (tmp_path / "b.sqlite").write_bytes((tmp_path / "a.sqlite").read_bytes())  # `made` is still open
        assert EventLog(tmp_path / "b.sqlite").events() == made.events()
    path = filled(tmp_path / "c.sqlite")
    interrupted(path)
    (tmp_path / "d.sqlite").write_bytes(path.read_bytes())
    with pytest.raises(FileFormatError, match=r"d\.sqlite is damaged: .*; restore it from a copy"):
        EventLog(tmp_path / "d.sqlite")


@needs_fork
@pytest.mark.slow
def test_a_flipped_bit_in_the_journal_is_refused_or_changes_nothing(tmp_path, durable):
    path = filled(tmp_path / "a.sqlite")
    expected = EventLog(path).events()
    journal = interrupted(path)
    contents = path.read_bytes(), journal.read_bytes()
    choose, outcomes = random.Random(0), []
    places = [*range(28), *(choose.randrange(len(contents[1])) for _ in range(60))]  # its header has 28 bytes
    for at in places:
        flipped = bytearray(contents[1])
        flipped[at] ^= 1 << choose.randrange(8)
        path.write_bytes(contents[0])
        journal.write_bytes(flipped)
        try:
            assert EventLog(path).events() == expected, at
            outcomes.append("intact")
        except FileFormatError:
            outcomes.append("refused")
    assert set(outcomes) == {"intact", "refused"}


def test_an_empty_file_is_damage_and_not_a_new_log(tmp_path):
    (tmp_path / "a.sqlite").touch()
    with pytest.raises(FileFormatError, match="must be a log of labels of version 1, got another"):
        EventLog(tmp_path / "a.sqlite")


def test_a_log_that_another_process_makes_at_the_same_moment_stays(tmp_path, monkeypatch):
    path = filled(tmp_path / "a.sqlite")
    log._create(path)
    assert len(EventLog(path).events()) == 6

    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    assert EventLog(tmp_path / "b.sqlite").events() == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.sqlite", "b.sqlite"]


def test_a_log_that_cannot_be_written_to_can_be_read(tmp_path, monkeypatch):
    path = filled(tmp_path / "a.sqlite")
    real = log._connected
    monkeypatch.setattr(log, "_connected", lambda where: real(f"file:{where}?mode=ro"))
    real_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda where, **more: real_connect(where, uri=True, **more))
    monkeypatch.setattr(os, "access", lambda *_: False)
    made = EventLog(path)
    assert len(made.events()) == 6
    assert made.notes == (f"{tmp_path} is read-only: nothing can be added",)
    with pytest.raises(PermissionError, match=r"cannot write to .*readonly.*: copy it to such"), made.writing():
        made.append([NewEvent("labelled")])


@pytest.mark.parametrize("content", [b"hello, this is no database", b"SQLite format 3\0" + bytes(100)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(FileFormatError, match="is damaged"):
        EventLog(tmp_path / "a.sqlite")


def test_another_database_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.sqlite")
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    with pytest.raises(FileFormatError, match="must be a log of labels of version 1"):
        EventLog(tmp_path / "a.sqlite")


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with pytest.raises(PermissionError, match=r"cannot write to .*; its folder must exist and be writable"):
        EventLog(tmp_path / "nowhere" / "a.sqlite")
    made = EventLog(tmp_path / "a.sqlite")
    made.query("PRAGMA query_only = ON")  # as a read-only file system would
    with pytest.raises(PermissionError, match="readonly"), made.writing():
        made.append([NewEvent("labelled")])


def test_a_log_in_use_is_waited_for_and_then_told(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "BUSY_SECONDS", 0.05)
    first, second = EventLog(tmp_path / "a.sqlite"), EventLog(tmp_path / "a.sqlite")
    with first.writing():
        first.append([NewEvent("labelled")])
        assert second.events() == []  # reading needs no lock
        with pytest.raises(BlockingIOError, match="is in use by another process"), second.writing():
            pass
    assert len(second.events()) == 1


def test_too_many_open_files_are_no_damage(tmp_path):
    resource = pytest.importorskip("resource")
    path = filled(tmp_path / "a.sqlite")
    np.save(tmp_path / "a.npy", np.full((2, 2, 2), 0.5))
    made = EventLog(path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for read in (lambda: EventLog(path), lambda: written(made), lambda: Predictions.load(tmp_path / "a.npy")):
            with pytest.raises(OSError, match="Too many open files"):
                read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in held:
            os.close(each)
    written(made)
    assert len(EventLog(path).events()) == 7


def written(made):
    with made.writing():
        made.append([NewEvent("labelled", 1, 2)])


def test_a_closed_log_says_so(tmp_path):
    made = EventLog(tmp_path / "a.sqlite")
    made.close()
    with pytest.raises(ValueError, match="is closed; open it again"):
        made.events()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and limits of file sizes")
@pytest.mark.parametrize("limit", [30_000, 60_000, 90_000])
def test_on_a_full_disk_nothing_acknowledged_is_lost(tmp_path, limit):
    import resource

    path = tmp_path / "a.sqlite"
    child = os.fork()
    if child == 0:  # pragma: no cover
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        written = 0
        try:
            made = EventLog(path)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            while True:
                with made.writing():
                    made.append([NewEvent("commented", 1, "x" * 300)])
                written += 1
        except OSError as error:
            os._exit(written if "all earlier events are intact" in str(error) else 255)
        except BaseException:
            os._exit(254)
    written = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 0 < written < 254
    assert len(EventLog(path).events()) == written


def test_on_a_network_one_machine_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "is_on_network", lambda _: True)
    made = EventLog(tmp_path / "a.sqlite")
    assert "one machine at a time" in made.notes[0]
    with made.writing():
        made.append([NewEvent("labelled")])
    assert len(EventLog(tmp_path / "a.sqlite").events()) == 1
    (tmp_path / f".a.sqlite.{machines.socket.gethostname()}.999999999.open").touch()  # of a process that died
    EventLog(tmp_path / "a.sqlite")
    (tmp_path / ".a.sqlite.other-host.17.open").touch()
    with pytest.raises(BlockingIOError, match=r"in use on the machine 'other-host'.*delete .*other-host\.17\.open"):
        EventLog(tmp_path / "a.sqlite")
    del made


def test_which_file_systems_are_on_a_network(tmp_path, monkeypatch):
    def partitions(*found):
        def listed(all):  # noqa: A002
            assert all
            return [SimpleNamespace(mountpoint=m, fstype=f, opts=o) for m, f, o in found]

        monkeypatch.setattr(machines.psutil, "disk_partitions", listed)

    partitions(("/", "ext4", "rw"), (str(tmp_path), "nfs4", "rw"))
    assert machines.is_on_network(tmp_path / "inner")
    assert not machines.is_on_network(tmp_path.parent)
    partitions(("/", "NTFS", "rw,remote"))
    assert machines.is_on_network(tmp_path)
    partitions()
    assert not machines.is_on_network(tmp_path)


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path = filled(tmp_path / "a.sqlite", 60)
    content, expected = path.read_bytes(), EventLog(path).events()
    choose = random.Random(0)
    refused = 0
    for start in range(0, len(content), 4096):
        for _ in range(4):
            at = choose.randrange(start, start + 4096)
            flipped = bytearray(content)
            flipped[at] ^= 1 << choose.randrange(8)
            target = tmp_path / f"{at}.sqlite"
            target.write_bytes(flipped)
            try:
                assert EventLog(target).events() == expected, at
            except FileFormatError:
                refused += 1
    assert refused > 5
