"""Embedding into files: batch by batch, to the end after any interruption, and never of mixed parts."""

import json
import os
import signal
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from batchbalance.encoders import embed, open_items, read_ids
from batchbalance.encoders.embedding import Embeddings
from batchbalance.encoders.store import EmbeddingPaths, mapped_embeddings
from batchbalance.errors import FileFormatError
from batchbalance.project import Project

RESULTS = ("e.npy", "e.ids.txt", "e.embed.json")


def lengths(batch):
    return [[len(text), text.count("e"), text.count("a")] for text in batch]


class StoppedError(Exception):
    pass


class Counting:
    """Counts what it encodes; stops at some batch, like a killed process."""

    name, kind, dim = "counting", "texts", 3

    def __init__(self, stop_at=None, fingerprint="1"):
        self.seen, self.stop_at, self.fingerprint = 0, stop_at, fingerprint

    def encode(self, batch):
        if self.stop_at is not None and self.seen >= self.stop_at:
            raise StoppedError
        self.seen += len(batch)
        return lengths(batch)


def texts(num=50):
    return [f"text {i} " + "ea" * (i % 7) + "\n" for i in range(num)]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "text": text}) + "\n" for i, text in enumerate(texts())))
    return path


def contents(folder):
    return {name: (folder / name).read_bytes() for name in RESULTS}


def stopped(source, folder, stop_at, **options):
    """Start and be interrupted."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(StoppedError):
        embed(
            source, Counting(stop_at, options.pop("fingerprint", "1")), output=folder / "e.npy", batch_size=8, **options
        )


def test_vectors_and_ids_in_files(table, tmp_path):
    made = embed(table, lengths, output=tmp_path / "e.npy", batch_size=8)
    assert isinstance(made, Embeddings)
    expected = np.array(lengths(texts()), dtype=np.float32)
    stored = np.load(tmp_path / "e.npy")
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, expected)
    np.testing.assert_array_equal(made.vectors, expected)
    assert read_ids(tmp_path / "e.ids.txt") == made.ids == [f"t{i}" for i in range(50)]
    assert {path.name for path in tmp_path.iterdir()} == {*RESULTS, "texts.jsonl"}
    np.testing.assert_array_equal(embed(table, lengths).vectors, expected)


@pytest.mark.parametrize("stop_at", [8, 16, 48])
def test_an_interrupted_start_goes_on_to_the_same_bytes(table, tmp_path, stop_at):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    whole.mkdir()
    embed(table, Counting(), output=whole / "e.npy", batch_size=8)
    stopped(table, parted, stop_at)
    assert not (parted / "e.npy").exists()
    counting = Counting()
    made = embed(table, counting, output=parted / "e.npy", batch_size=8)
    assert counting.seen == 50 - stop_at
    assert made.num_resumed == stop_at
    assert contents(parted) == contents(whole)
    assert {path.name for path in parted.iterdir()} == set(RESULTS)


def test_what_is_up_to_date_is_left_alone(table, tmp_path):
    embed(table, Counting(), output=tmp_path / "e.npy")
    before = (tmp_path / "e.npy").stat().st_mtime_ns
    counting = Counting()
    made = embed(table, counting, output=tmp_path / "e.npy")
    assert (counting.seen, made.num_resumed) == (0, 50)
    assert (tmp_path / "e.npy").stat().st_mtime_ns == before
    assert embed(table, Counting(fingerprint="2"), output=tmp_path / "e.npy").num_resumed == 0
    (tmp_path / "e.npy").write_bytes((tmp_path / "e.npy").read_bytes()[:-4])
    assert embed(table, Counting(fingerprint="2"), output=tmp_path / "e.npy").num_resumed == 0
    table.write_text(table.read_text().replace("text 49", "text fifty"))
    assert embed(table, Counting(fingerprint="2"), output=tmp_path / "e.npy").num_resumed == 0
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy")[49], lengths([texts()[49].replace("49", "fifty")])[0])


def changed_text(path):
    path.write_text(path.read_text().replace("text 3 ", "text three "))


def changed_id(path):
    path.write_text(path.read_text().replace('"t3"', '"t-three"'))


def shortened(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:10]))


@pytest.mark.parametrize("change", [changed_text, changed_id, shortened])
def test_a_changed_input_is_noticed_and_said(table, tmp_path, change):
    stopped(table, tmp_path / "parted", 24)
    change(table)
    with pytest.warns(
        UserWarning, match=r"e\.npy are made again from the start: .*texts\.jsonl has changed since they were started"
    ):
        made = embed(table, Counting(), output=tmp_path / "parted" / "e.npy", batch_size=8)
    assert made.num_resumed == 0
    whole = tmp_path / "whole"
    whole.mkdir()
    embed(table, Counting(), output=whole / "e.npy", batch_size=8)
    assert contents(tmp_path / "parted") == contents(whole)


def test_a_changed_encoder_or_batch_size_is_noticed_and_said(table, tmp_path):
    for options, what in (({"encoder": Counting(fingerprint="2"), "batch_size": 8}, "the encoder"),
                          ({"encoder": Counting(), "batch_size": 9}, "the batch size")):  # fmt: skip
        folder = tmp_path / what.replace(" ", "-")
        stopped(table, folder, 24)
        with pytest.warns(UserWarning, match=f"made again from the start: {what} has changed"):
            made = embed(table, output=folder / "e.npy", **options)
        assert made.num_resumed == 0
        np.testing.assert_array_equal(np.load(folder / "e.npy"), lengths(texts()))


def test_a_change_after_what_is_done_does_not_matter(table, tmp_path):
    stopped(table, tmp_path / "parted", 24)
    table.write_text(table.read_text().replace("text 40 ", "text forty ") + '{"id": "new", "text": "one more"}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = embed(table, Counting(), output=tmp_path / "parted" / "e.npy", batch_size=8)
    assert made.num_resumed == 24
    assert made.ids[-1] == "new"
    expected = [text.replace("text 40 ", "text forty ") for text in texts()] + ["one more"]
    np.testing.assert_array_equal(np.load(tmp_path / "parted" / "e.npy"), lengths(expected))


def test_damaged_parts_start_over(table, tmp_path):
    stopped(table, tmp_path / "parted", 24)
    part = EmbeddingPaths(tmp_path / "parted" / "e.npy", tmp_path / "parted" / "e.ids.txt").part
    part.write_bytes(part.read_bytes()[:200])
    with pytest.warns(UserWarning, match="made again from the start: they were damaged in the meantime"):
        embed(table, Counting(), output=tmp_path / "parted" / "e.npy", batch_size=8)
    np.testing.assert_array_equal(np.load(tmp_path / "parted" / "e.npy"), lengths(texts()))


def test_old_results_stay_until_new_ones_are_whole(table, tmp_path):
    embed(table, Counting(), output=tmp_path / "e.npy", batch_size=8)
    before = contents(tmp_path)
    stopped(table, tmp_path, 24, fingerprint="2")
    assert contents(tmp_path) == before


def test_only_one_process_at_a_time(table, tmp_path):
    def meanwhile(batch):
        with pytest.raises(BlockingIOError, match="in use by another process"):
            embed(table, Counting(), output=tmp_path / "e.npy")
        return lengths(batch)

    embed(table, meanwhile, output=tmp_path / "e.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), lengths(texts()))


@pytest.fixture
def some_bad(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(20):
        Image.new("RGB", (9, 9 + i)).save(folder / f"{i:02d}.png")
    for name in ("03.png", "04.png", "05.png", "17.png"):
        (folder / name).write_bytes(b"broken")
    return folder


def sizes(batch):
    return [image.size for image in batch]


def test_bad_files_are_refused_or_left_out(some_bad, tmp_path):
    output = tmp_path / "e.npy"
    with pytest.raises(FileFormatError, match=r"03\.png is damaged .*; repair or remove it, or .* `skip_bad=True`"):
        embed(some_bad, sizes, output=output, batch_size=3)
    made = embed(some_bad, sizes, output=output, batch_size=3, skip_bad=True)
    good = [i for i in range(20) if i not in (3, 4, 5, 17)]
    assert made.ids == [f"{i:02d}.png" for i in good]
    assert made.num_resumed == 3
    np.testing.assert_array_equal(np.load(output), [[9, 9 + i] for i in good])
    assert [name for name, _ in made.skipped] == ["03.png", "04.png", "05.png", "17.png"]
    assert [name for name, _ in json.loads((tmp_path / "e.embed.json").read_text())["skipped"]] == [
        name for name, _ in made.skipped
    ]
    in_memory = embed(some_bad, sizes, batch_size=3, skip_bad=True)
    assert (in_memory.ids, in_memory.skipped) == (made.ids, made.skipped)
    np.testing.assert_array_equal(in_memory.vectors, made.vectors)


def test_what_was_left_out_earlier_is_refused_without_skip_bad(some_bad, tmp_path):
    calls = []

    def stopping(batch):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sizes(batch)

    with pytest.raises(KeyboardInterrupt):
        embed(some_bad, stopping, output=tmp_path / "e.npy", batch_size=3, skip_bad=True)
    with pytest.raises(FileFormatError, match=r"03\.png is damaged"):
        embed(some_bad, stopping, output=tmp_path / "e.npy", batch_size=3)


def test_a_mended_file_goes_on_from_there(some_bad, tmp_path):
    output = tmp_path / "e.npy"
    with pytest.raises(FileFormatError):
        embed(some_bad, sizes, output=output, batch_size=3)
    for name in ("03.png", "04.png", "05.png", "17.png"):
        Image.new("RGB", (5, 5)).save(some_bad / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert embed(some_bad, sizes, output=output, batch_size=3).num_resumed == 3
    assert np.load(output)[3].tolist() == [5, 5]


def test_a_changed_file_is_noticed(some_bad, tmp_path):
    with pytest.raises(FileFormatError):
        embed(some_bad, sizes, output=tmp_path / "e.npy", batch_size=3)
    Image.new("RGB", (4, 4)).save(some_bad / "01.png")
    with pytest.warns(UserWarning, match="photos has changed"):
        embed(some_bad, sizes, output=tmp_path / "e.npy", batch_size=3, skip_bad=True)
    assert np.load(tmp_path / "e.npy")[1].tolist() == [4, 4]


def test_nothing_good_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("text\n''\n \n".replace("''", " "), encoding="utf-8")
    for output in (None, tmp_path / "e.npy"):
        with pytest.raises(FileFormatError, match="at least one item that can be embedded, got none"):
            embed(tmp_path / "a.csv", lengths, skip_bad=True, output=output)
    (tmp_path / "b.csv").write_text("text\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"b\.csv must hold at least one item, got none"):
        embed(tmp_path / "b.csv", lengths)


def test_fitted_encoders_see_the_good_items_only(tmp_path):
    (tmp_path / "a.csv").write_text("text\none word\n \ntwo words\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"row 1 of .*a\.csv, column 'text', must not be empty.*`skip_bad=True`"):
        embed(tmp_path / "a.csv", "tfidf")
    made = embed(tmp_path / "a.csv", "tfidf", skip_bad=True, output=tmp_path / "e.npy")
    assert (made.ids, [name for name, _ in made.skipped]) == (["0", "2"], ["1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "e.csv"}, r"--output must end in \.npy, got 'e\.csv'"),
        ({"output": "nowhere/e.npy"}, "cannot write nowhere/e.npy: nowhere must be a folder"),
        ({"output": "e.npy", "ids_output": "nowhere/ids.txt"}, "cannot write nowhere/ids.txt"),
        ({"ids_output": "ids.txt"}, "`ids_output` needs `output`"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1, got 0"),
    ],
)
def test_mistakes_are_refused_before_any_work(table, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    counting = Counting()
    with pytest.raises((ValueError, OSError), match=message):
        embed(table, counting, **options)
    assert counting.seen == 0


def test_an_encoder_that_changes_its_mind_is_refused(table, tmp_path):
    with pytest.raises(ValueError, match="must return 5 numbers for every item, got 6"):
        embed(
            table,
            lambda batch: np.zeros((len(batch), 5 + ("text 8 " in batch[0]))),
            output=tmp_path / "e.npy",
            batch_size=8,
        )


def test_a_full_disk_is_said_at_the_start(table, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"cannot write .*e\.npy\.part of 1 KiB: No space left on device; free space"):
        embed(table, lengths, output=tmp_path / "e.npy")


def test_columns_by_open_items(tmp_path):
    (tmp_path / "a.csv").write_text("key,query\nx,hello\ny,me\n", encoding="utf-8")
    items = open_items(tmp_path / "a.csv", columns=["query"], id_column="key")
    made = embed(items, lengths, output=tmp_path / "e.npy", ids_output=tmp_path / "names.txt")
    assert read_ids(tmp_path / "names.txt") == made.ids == ["x", "y"]
    assert not (tmp_path / "e.ids.txt").exists()


SLOW = """
import time
def slow(batch):
    time.sleep(0.05)
    return [[hash_of(text), len(text)] for text in batch]
def hash_of(text):
    return sum(map(ord, text)) % 997 / 7
"""


def test_killed_in_the_middle_again_and_again(table, tmp_path, parent):
    """kill -9 at random moments, and start again until it ends: the bytes of a start that was left alone."""
    (tmp_path / "slow_encoder.py").write_text(SLOW, encoding="utf-8")

    run = "import sys; from batchbalance.cli import main; sys.argv = ['batchbalance', *sys.argv[1:]]; main()"
    command = [run, "embed", table, "--encoder", "slow_encoder:slow", "--batch-size", "2", "--output"]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    whole.mkdir()
    parted.mkdir()
    ended, _, error = parent.run(*command, whole / "e.npy", cwd=tmp_path)
    assert ended == 0, error
    kills = 0
    for _ in range(30):
        journal, before = parted / "e.npy.journal", len(journal_lines(parted))
        with parent.start(*command, parted / "e.npy", cwd=tmp_path) as process:
            while process.poll() is None and len(journal_lines(parted)) < before + 6:
                time.sleep(0.005)
            if process.poll() is None and journal.exists():
                process.send_signal(signal.SIGKILL)
                kills += 1
            ended, error = process.wait(), process.stderr.read()
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, error
    assert kills >= 2
    assert contents(parted) == contents(whole)


def journal_lines(folder):
    try:
        return (folder / "e.npy.journal").read_bytes().splitlines()
    except FileNotFoundError:
        return []


def test_long_texts_are_cut_and_said(tmp_path):
    seen = []

    def lengths(batch):
        seen.extend(map(len, batch))
        return np.array([[len(text), 1.0] for text in batch])

    texts = ["short", "x" * 100_000, "y " * 5_000_000]
    made = embed(texts, lengths)
    assert seen == [5, 100_000, 100_000]
    assert made.cut == ("2",)
    assert made.notes == ("only the first 100,000 characters were read of 1 texts, e.g. '2'",)
    assert embed(texts[:2], lengths).notes == ()
    assert embed(texts, lengths, output=tmp_path / "e.npy").cut == ("2",)
    (tmp_path / "t.txt").write_text("one two three\nfour five six\n" + "seven eight " * 1_000_000 + "\n")
    project = Project.create(tmp_path / "p", texts=tmp_path / "t.txt", classes=["a", "b"], encoder="tfidf", audit=0)
    assert "only the first 100,000 characters were read of 1 texts, e.g. '2'" in project.notes
    assert len(project.contents(["2"])[0]) > 10_000_000


def flip(path, at):
    """Flip the lowest bit of a byte, counted from the end if `at` is negative."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "at"), [("e.npy", -1), ("e.npy", 200), ("e.ids.txt", 1)])
def test_a_flipped_bit_in_finished_embeddings_is_noticed(table, tmp_path, name, at):
    embed(table, Counting(), output=tmp_path / "e.npy", batch_size=8)
    before = contents(tmp_path)
    assert mapped_embeddings(tmp_path / "e.npy").shape == (50, 3)
    flip(tmp_path / name, at)
    says = rf"{name} must match the hash in e\.embed\.json, got other contents; embed again .*, or delete e\.emb"
    with pytest.raises(FileFormatError, match=says):
        mapped_embeddings(tmp_path / "e.npy")
    with pytest.warns(UserWarning, match=r"e\.npy is made again: it or its ids were changed"):
        made = embed(table, Counting(), output=tmp_path / "e.npy", batch_size=8)
    assert made.num_resumed == 0
    assert contents(tmp_path) == before
    flip(tmp_path / "e.embed.json", 30)
    with pytest.raises(FileFormatError, match=r"e\.embed\.json is damaged: .*; embed again with the same command"):
        mapped_embeddings(tmp_path / "e.npy")
    assert embed(table, Counting(), output=tmp_path / "e.npy", batch_size=8).num_resumed == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("name", "at"), [("e.npy.part", 128), ("e.npy.part", 400)])
def test_a_flipped_bit_in_unfinished_embeddings_starts_over(table, tmp_path, name, at):
    stopped(table, tmp_path / "parted", 24)
    flip(tmp_path / "parted" / name, at)
    with pytest.warns(UserWarning, match="made again from the start: they were damaged in the meantime"):
        embed(table, Counting(), output=tmp_path / "parted" / "e.npy", batch_size=8)
    np.testing.assert_array_equal(np.load(tmp_path / "parted" / "e.npy"), lengths(texts()))
    assert read_ids(tmp_path / "parted" / "e.ids.txt") == [f"t{i}" for i in range(50)]
