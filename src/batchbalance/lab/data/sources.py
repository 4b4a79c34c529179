"""Where the files of published data sets come from and where they are put.

A file at hand is always used as it is; only a missing one is downloaded. Hashes guard downloads alone, because a
file may well be repacked, and each is taken from a source that is named beside it.
"""

import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "BATCHBALANCE_DATA"
TIMEOUT_SECONDS = (5, 60)  # to connect, and between two packets
CHUNK_BYTES = 2**18
IDX_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class Download:
    """One file a publisher serves. `md5` is None where no citable source gives a hash."""

    url: str
    md5: str | None = None

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1].replace("+", "-")


@dataclass(frozen=True)
class Source:
    """Where one data set lives.

    Attributes:
        folders: names of its folder in the data directory; the first is the one we make.
        page: where a person finds it.
        downloads: single files, stored as they are, or one archive, unpacked into the folder.
    """

    folders: tuple[str, ...]
    page: str
    downloads: tuple[Download, ...]


def _idx_files(base: str, hashes: Sequence[str]) -> tuple[Download, ...]:
    return tuple(Download(f"{base}{part}-ubyte.gz", md5) for part, md5 in zip(IDX_PARTS, hashes, strict=True))


MNIST = Source(
    ("mnist", "MNIST"),
    "https://yann.lecun.com/exdb/mnist/",
    _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        # From torchvision/datasets/mnist.py of github.com/pytorch/vision, class MNIST.
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)
FASHION_MNIST = Source(
    ("fashion-mnist", "FashionMNIST"),
    "https://github.com/zalandoresearch/fashion-mnist",
    _idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        # From torchvision/datasets/mnist.py of github.com/pytorch/vision, class FashionMNIST.
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)
EMNIST = Source(
    ("emnist", "EMNIST"),
    "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    # From torchvision/datasets/mnist.py of github.com/pytorch/vision, class EMNIST.
    (Download("https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),),
)
SVHN = Source(
    ("svhn", "SVHN"),
    "http://ufldl.stanford.edu/housenumbers/",
    # From torchvision/datasets/svhn.py of github.com/pytorch/vision.
    (
        Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
)
CIFAR_10 = Source(
    ("cifar-10-batches-bin", "cifar-10"),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    # The publisher's own page (the address above) lists the md5 of each archive.
    (Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
)
CIFAR_100 = Source(
    ("cifar-100-binary", "cifar-100"),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    # The publisher's own page (the address above) lists the md5 of each archive.
    (Download("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
)
CINIC_10 = Source(
    ("cinic-10", "CINIC-10"),
    "https://datashare.ed.ac.uk/handle/10283/3192",
    # No hash: we know no source for one that we could cite.
    (Download("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"),),
)
# No hashes for the three UCI data sets: the repository publishes none.
HAR = Source(
    ("har", "UCI HAR Dataset"),
    "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    (Download("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"),),
)
DRIFT = Source(
    ("drift",),
    "https://archive.ics.uci.edu/dataset/224/gas+sensor+array+drift+dataset",
    (Download("https://archive.ics.uci.edu/static/public/224/gas+sensor+array+drift+dataset.zip"),),
)
DRY_BEAN = Source(
    ("dry-bean", "DryBeanDataset"),
    "https://archive.ics.uci.edu/dataset/602/dry+bean+dataset",
    (Download("https://archive.ics.uci.edu/static/public/602/dry+bean+dataset.zip"),),
)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: the argument, else the variable BATCHBALANCE_DATA, else a per-user cache folder."""
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE])
    import pooch

    return Path(pooch.os_cache("batchbalance"))


def find(source: Source, root: Path, name: str) -> Path | None:
    """A file or folder of a data set, plain or gzipped, in its folder or one folder further down; None if missing."""
    for folder in source.folders:
        for pattern in (name, f"{name}.gz", f"*/{name}", f"*/{name}.gz"):
            found = sorted((root / folder).glob(pattern))
            if found:
                return found[0]
    return None


def missing_message(source: Source, root: Path, names: Sequence[str]) -> str:
    """What to do about files that are not there."""
    listed = ", ".join(names)
    return (
        f"data missing: put {listed} into {root / source.folders[0]} (plain or .gz); "
        f"get them from {', '.join(d.url for d in source.downloads)} (see {source.page})"
    )


def fetch(source: Source, root: Path, names: Sequence[str]) -> None:
    """Download what a data set lacks.

    Raises:
        FileNotFoundError: if a download fails; the message names the files, the folder and the address.
    """
    folder = root / source.folders[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileNotFoundError(f"{missing_message(source, root, names)}. Cannot make the folder: {error}") from error
    for download in source.downloads:
        packed = download.file_name.endswith((".zip", ".tar.gz"))
        if not packed and find(source, root, download.file_name.removesuffix(".gz")):
            continue
        try:
            path = _retrieve(download, folder)
            if packed:
                unpack(path, folder)
                path.unlink()
        except Exception as error:  # requests, pooch and the archive readers raise dozens of types
            raise FileNotFoundError(
                f"{missing_message(source, root, names)}. Downloading {download.url} failed: {error}"
            ) from error


def _retrieve(download: Download, folder: Path) -> Path:
    import pooch

    known = None if download.md5 is None else f"md5:{download.md5}"
    bar = Bar(download.file_name) if sys.stderr.isatty() else None
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_SECONDS)
    try:
        return Path(pooch.retrieve(download.url, known, fname=download.file_name, path=folder, downloader=downloader))
    finally:
        if bar is not None:
            bar.close()


class Bar:
    """A progress bar on the terminal, with the names pooch calls one by."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    @property
    def total(self) -> int | float | None:
        """Bytes to come; None as long as nobody knows."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, num_bytes: int) -> None:
        self._progress.update(self._task, total=num_bytes or None)

    def update(self, num_bytes: int) -> None:
        """Add bytes that have come."""
        self._progress.advance(self._task, num_bytes)

    def reset(self) -> None:
        """Start from 0 again."""
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar.gz, zips inside it too, into `folder`; a single folder around it all is left out.

    Files that are there already are kept. The work is done beside `folder`, so an interrupted run leaves no part.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as temporary:
        top = Path(temporary)
        _extract(archive, top)
        for inner in sorted(top.glob("*.zip")):
            _extract(inner, top)
            inner.unlink()
        inside = [path for path in top.iterdir() if not path.name.startswith((".", "__MACOSX"))]
        while len(inside) == 1 and inside[0].is_dir():
            top = inside[0]
            inside = list(top.iterdir())
        for path in inside:
            _move(path, folder / path.name)


def _move(path: Path, target: Path) -> None:
    if not target.exists():
        path.replace(target)
    elif path.is_dir() and target.is_dir():
        for inner in path.iterdir():
            _move(inner, target / inner.name)


def _extract(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
        return
    with tarfile.open(archive) as opened_tar:
        opened_tar.extractall(folder, filter="data")
