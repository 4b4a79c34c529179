"""Where files come from: folders, downloads (from a local server), archives, and messages without a network."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import published_files as files
from batchbalance.lab.data import load, published, sources
from batchbalance.lab.data.sources import DataSource, Files

ALL = [value for value in vars(sources).values() if isinstance(value, DataSource)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_every_hash_is_a_sha256_and_every_source_has_a_page() -> None:
    assert len(ALL) == 10
    urls = [url for source in ALL for url in source.downloads]
    # The publisher of SVHN has no https; its hashes are known.
    assert {url.split("/")[2] for url in urls if not url.startswith("https://")} == {"ufldl.stanford.edu"}
    for source in ALL:
        assert source.page.startswith("http")
        for sha256 in source.downloads.values():
            assert sha256 is None or re.fullmatch("[0-9a-f]{64}", sha256)
            assert sha256 or source in (sources.CINIC_10, sources.HAR, sources.DRIFT, sources.DRY_BEAN)


def test_data_folder_order(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BATCHBALANCE_DATA", str(tmp_path / "variable"))
    assert sources.data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert sources.data_folder() == tmp_path / "variable"
    monkeypatch.delenv("BATCHBALANCE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert sources.data_folder().name == "batchbalance"


def test_find_looks_one_folder_down_and_at_gz(tmp_path: Path) -> None:
    source = DataSource(("har", "UCI HAR Dataset"), "http://page", {})
    assert Files(source, tmp_path).have("train/X.txt") is None
    deep = files.write(tmp_path / "UCI HAR Dataset" / "inner" / "train" / "X.txt", b"1", packed=True)
    assert Files(source, tmp_path).have("train/X.txt") == deep
    plain = files.write(tmp_path / "har" / "train" / "X.txt", b"1")
    assert Files(source, tmp_path).have("train/X.txt") == plain


def test_missing_data_without_download_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist", data_dir=tmp_path, download=False)
    message = str(caught.value)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        assert f"{name}-ubyte" in message
    assert str(tmp_path / "mnist") in message
    assert next(iter(sources.MNIST.downloads)) in message


def test_a_failing_download_names_file_folder_and_address(tmp_path: Path, monkeypatch) -> None:
    nowhere = DataSource(("mnist",), "http://page", {"http://127.0.0.1:9/train-images-idx3-ubyte.gz": None})
    monkeypatch.setitem(published.PUBLISHED, "mnist", _with_source("mnist", nowhere))
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist", data_dir=tmp_path)
    for part in ("train-images-idx3-ubyte", str(tmp_path / "mnist"), "http://127.0.0.1:9/", "failed"):
        assert part in str(caught.value)


def test_single_files_are_downloaded_and_checked(tmp_path: Path, served, monkeypatch) -> None:
    folder, address = served
    files.write_mnist(folder, packed=True)
    downloads = {
        address + path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())
    }
    monkeypatch.setitem(published.PUBLISHED, "mnist", _with_source("mnist", DataSource(("mnist",), address, downloads)))
    # A file at hand stays as it is, even if the publisher packs it otherwise.
    own = files.write(tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte", files.idx(files.labels(30, 10)))
    before = own.stat().st_mtime_ns
    with pytest.warns(UserWarning, match="60 of 60,000 training inputs"):
        data = load("mnist", data_dir=tmp_path / "data", partial=True)
    assert len(data.train_y) == 60
    assert own.stat().st_mtime_ns == before
    assert not (own.parent / "t10k-labels-idx1-ubyte.gz").exists()


def test_a_wrong_hash_is_refused(tmp_path: Path, served, monkeypatch) -> None:
    folder, address = served
    files.write_mnist(folder, packed=True)
    wrong = DataSource(("mnist",), address, {address + "train-images-idx3-ubyte.gz": "0" * 64})
    monkeypatch.setitem(published.PUBLISHED, "mnist", _with_source("mnist", wrong))
    with pytest.raises(FileNotFoundError, match="hash"):
        load("mnist", data_dir=tmp_path / "data")
    assert not list((tmp_path / "data" / "mnist").glob("train*"))


def test_a_file_without_a_published_hash_is_trusted_with_a_warning(tmp_path: Path, served) -> None:
    folder, address = served
    files.write(folder / "train.mat", b"first")
    found = hashlib.sha256(b"first").hexdigest()
    with pytest.warns(UserWarning, match=f"no hash of .*train.mat is published: the download is trusted, .*{found}"):
        Files(DataSource(("own",), address, {address + "train.mat": None}), tmp_path).fetch(["train.mat"])
    assert (tmp_path / "own" / "train.mat").read_bytes() == b"first"


def test_an_address_without_a_file_is_an_error(tmp_path: Path, served) -> None:
    source = DataSource(("own",), served[1], {served[1] + "train.mat": None})
    with pytest.raises(FileNotFoundError, match=r"Downloading .*train.mat failed: HTTP Error 404"):
        Files(source, tmp_path).fetch(["train.mat"])
    assert not list((tmp_path / "own").iterdir())


def test_an_archive_is_downloaded_and_unpacked(tmp_path: Path, served, monkeypatch) -> None:
    folder, address = served
    files.write_cifar_10(tmp_path / "cifar-10-batches-bin")
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", arcname="cifar-10-batches-bin")
    source = DataSource(("cifar-10-batches-bin",), address, {address + "cifar.tar.gz": None})
    monkeypatch.setitem(published.PUBLISHED, "cifar-10", _with_source("cifar-10", source))
    with pytest.warns(UserWarning, match="20 of 50,000"), pytest.warns(UserWarning, match="the download is trusted"):
        data = load("cifar-10", data_dir=tmp_path / "data", partial=True)
    assert data.train_x.shape == (20, 3, 32, 32)
    made = tmp_path / "data" / "cifar-10-batches-bin"
    assert [path.name for path in made.iterdir()] == ["unpacked"]  # the archive is gone
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"cifar-10-batches-bin"}


def test_unpack_opens_inner_zips_and_keeps_own_files(tmp_path: Path) -> None:
    own = files.write(tmp_path / "data" / "har" / "train" / "y.txt", b"own")
    inner = files.write_zip(tmp_path / "inner.zip", {"UCI HAR Dataset/train/y.txt": b"new", "UCI HAR Dataset/a": b"a"})
    outer = files.write_zip(
        tmp_path / "data" / "har" / "outer.zip", {"UCI HAR Dataset.zip": inner.read_bytes(), "names.txt": b"n"}
    )
    sources.unpack(outer)
    found = Files(sources.HAR, tmp_path / "data")
    assert found.have("train/y.txt") == own
    assert found.have("a").read_bytes() == b"a"
    assert not outer.exists()


def test_unpack_refuses_to_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "evil.tar.gz"
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("../../evil")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(tarfile.FilterError):
        sources.unpack(path)
    assert not list(tmp_path.rglob("evil"))


def _with_source(name: str, source: DataSource) -> published.Published:
    return dataclasses.replace(published.PUBLISHED[name], source=source)
