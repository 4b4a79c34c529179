"""The embeddings that a project keeps: checked against their hash, whoever added to them."""

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from batchbalance.cli import app
from batchbalance.errors import FileFormatError
from batchbalance.project import Project, embeddings
from batchbalance.project.embeddings import LOCK, VECTORS


def vectors(num, seed):
    return np.random.default_rng(seed).normal(size=(num, 3)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """A project of forty embeddings, and two files of six more."""
    np.save(tmp_path / "e.npy", vectors(40, 0))
    for seed in (1, 2):
        np.save(tmp_path / f"more{seed}.npy", vectors(6, seed))
        (tmp_path / f"more{seed}.ids.txt").write_text("\n".join(f"m{seed} {i}" for i in range(6)))
    Project.create(tmp_path / "p", embeddings=tmp_path / "e.npy", classes=["a", "b"], audit=0.0).close()
    return tmp_path / "p"


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [-1, 300])
def test_a_flipped_bit_in_the_embeddings_is_noticed(folder, at):
    project = Project.open(folder)
    project.ask(3)
    flip(folder / VECTORS, at)
    says = r"embeddings\.npy is damaged: it does not match its checksum in embeddings\.json; restore it from a copy, or"
    for act in (lambda: project.ask(5), project.check, lambda: project.add_items(folder.parent / "more1.npy")):
        with pytest.raises(FileFormatError, match=says):
            act()
    result = CliRunner().invoke(app, ["status", str(folder), "--check"])
    assert result.exit_code == 2
    assert "is damaged: it does not match its checksum" in result.stderr
    flip(folder / VECTORS, at)
    project.add_items(folder.parent / "more1.npy")
    assert project.check() == []


def test_large_embeddings_are_checked_on_request(folder, monkeypatch):
    monkeypatch.setattr(embeddings, "CHECKED_BYTES", 100)
    flip(folder / VECTORS, -1)
    project = Project.open(folder)
    project.ask(3)
    with pytest.raises(FileFormatError, match=r"embeddings\.npy is damaged"):
        project.check()


def test_items_that_two_processes_add_keep_their_embeddings(folder):
    first, second = Project.open(folder), Project.open(folder)
    first.add_items(folder.parent / "more1.npy")
    second.add_items(folder.parent / "more2.npy")
    assert len(second) == 52
    expected = np.concatenate([vectors(40, 0), vectors(6, 1), vectors(6, 2)])
    np.testing.assert_array_equal(np.load(folder / VECTORS), expected)
    first.ask(3)  # it has not heard of the second one yet
    with (
        FileLock(folder / LOCK),
        pytest.raises(BlockingIOError, match=r"another process is embedding items of .*; try again when"),
    ):
        first.add_items(folder.parent / "e.npy")


def test_a_kill_between_the_embeddings_and_their_items_is_mended(folder, monkeypatch):
    project = Project.open(folder)
    for name in ("write_sealed", "append_vectors"):
        with monkeypatch.context() as patched:
            patched.setattr(embeddings, name, lambda *_: exec("raise KeyboardInterrupt"))
            with pytest.raises(KeyboardInterrupt):
                project.add_items(folder.parent / "more1.npy")
        assert Project.open(folder).check() == []
    with monkeypatch.context() as patched:
        patched.setattr(type(project.store), "add_items", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            project.add_items(folder.parent / "more1.npy")
    assert Project.open(folder).check() == []
    project.add_items(folder.parent / "more1.npy")
    np.testing.assert_array_equal(np.load(folder / VECTORS), np.concatenate([vectors(40, 0), vectors(6, 1)]))
    assert Project.open(folder).check() == []
