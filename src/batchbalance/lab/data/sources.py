"""Where the files of published data sets come from and where they are put.

A file at hand is always used as it is; only a missing one is downloaded. Hashes guard downloads alone, because a
file may well be repacked. Published ones are those of TensorFlow Datasets, at github.com/tensorflow/datasets in
tensorflow_datasets/url_checksums. Where none is published, a warning says so, the hash of the first download is
written into the data directory, and every later download must have it, also after the data set's folder was deleted.
"""

import json
import os
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbalance.errors import FileFormatError, MissingExtraError
from batchbalance.system.files import replacing
from batchbalance.system.progress import DownloadBar

FOLDER_VARIABLE = "BATCHBALANCE_DATA"
TIMEOUT_SECONDS = (5, 60)  # to connect, and between two packets
CHUNK_BYTES = 2**18
HASHES = "downloads.json"
IDX_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class Download:
    """One file a publisher serves. `sha256` is None where no citable source gives a hash."""

    url: str
    sha256: str | None = None

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1].replace("+", "-")


@dataclass(frozen=True)
class DataSource:
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
    return tuple(Download(f"{base}{part}-ubyte.gz", sha256) for part, sha256 in zip(IDX_PARTS, hashes, strict=True))


MNIST = DataSource(
    ("mnist", "MNIST"),
    "https://yann.lecun.com/exdb/mnist/",
    _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)
FASHION_MNIST = DataSource(
    ("fashion-mnist", "FashionMNIST"),
    "https://github.com/zalandoresearch/fashion-mnist",
    _idx_files(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)
EMNIST = DataSource(
    ("emnist", "EMNIST"),
    "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    (
        Download(
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        ),
    ),
)
SVHN = DataSource(
    ("svhn", "SVHN"),
    "http://ufldl.stanford.edu/housenumbers/",
    (
        Download(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        Download(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    ),
)
CIFAR_10 = DataSource(
    ("cifar-10-batches-bin", "cifar-10"),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
)
CIFAR_100 = DataSource(
    ("cifar-100-binary", "cifar-100"),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)
CINIC_10 = DataSource(
    ("cinic-10", "CINIC-10"),
    "https://datashare.ed.ac.uk/handle/10283/3192",
    # No published hash that we could cite, as for the three UCI data sets below.
    (Download("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz"),),
)
HAR = DataSource(
    ("har", "UCI HAR Dataset"),
    "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    (Download("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"),),
)
DRIFT = DataSource(
    ("drift",),
    "https://archive.ics.uci.edu/dataset/224/gas+sensor+array+drift+dataset",
    (Download("https://archive.ics.uci.edu/static/public/224/gas+sensor+array+drift+dataset.zip"),),
)
DRY_BEAN = DataSource(
    ("dry-bean", "DryBeanDataset"),
    "https://archive.ics.uci.edu/dataset/602/dry+bean+dataset",
    (Download("https://archive.ics.uci.edu/static/public/602/dry+bean+dataset.zip"),),
)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the argument, the variable BATCHBALANCE_DATA, or a per-user cache folder."""
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE])
    return Path(_pooch("finding the default folder of data sets").os_cache("batchbalance"))


def find(source: DataSource, root: Path, name: str) -> Path | None:
    """Return a file or folder of a data set, plain or gzipped, at most one folder further down; None if missing."""
    for folder in source.folders:
        for pattern in (name, f"{name}.gz", f"*/{name}", f"*/{name}.gz"):
            found = sorted((root / folder).glob(pattern))
            if found:
                return found[0]
    return None


def missing_message(source: DataSource, root: Path, names: Sequence[str]) -> str:
    """Return a message that says where to get missing files and where to put them."""
    listed = ", ".join(names)
    return (
        f"data missing: put {listed} into {root / source.folders[0]} (plain or .gz); "
        f"get them from {', '.join(d.url for d in source.downloads)} (see {source.page})"
    )


def fetch(source: DataSource, root: Path, names: Sequence[str]) -> None:
    """Download the missing files of a data set.

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
        except MissingExtraError:
            raise
        except Exception as error:  # requests, pooch and the archive readers raise dozens of types
            raise FileNotFoundError(
                f"{missing_message(source, root, names)}. Downloading {download.url} failed: {error}"
            ) from error


def _pooch(feature: str) -> Any:
    try:
        import pooch
    except ImportError as error:
        raise MissingExtraError(feature, "data") from error
    return pooch


def _retrieve(download: Download, folder: Path) -> Path:
    pooch, root = _pooch("downloading a data set"), folder.parent
    expected = download.sha256 or _recorded(root).get(download.url)
    known = None if expected is None else f"sha256:{expected}"
    bar = DownloadBar(download.file_name) if sys.stderr.isatty() else None
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_SECONDS)
    try:
        path = Path(pooch.retrieve(download.url, known, fname=download.file_name, path=folder, downloader=downloader))
    finally:
        if bar is not None:
            bar.close()
    if expected is None:
        found = pooch.file_hash(str(path))
        _record(root, {**_recorded(root), download.url: found})
        warnings.warn(
            f"nobody publishes a hash of {download.url}: it is trusted as it came, with SHA-256 {found}; "
            f"{root / HASHES} keeps that, and a later download must have it",
            stacklevel=2,
        )
    return path


def _recorded(root: Path) -> dict[str, str]:
    """Return the SHA-256 of files that were downloaded before, by address."""
    path = root / HASHES
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} must hold the hashes of earlier downloads, got: {error}; delete it") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise FileFormatError(f"{path} must hold the hashes of earlier downloads, got something else; delete it")
    return content


def _record(root: Path, hashes: dict[str, str]) -> None:
    with replacing(root / HASHES) as temporary:
        temporary.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar.gz, and zips inside it, into `folder` without a single folder around it all.

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
