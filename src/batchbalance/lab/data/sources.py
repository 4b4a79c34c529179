"""The sources and locations of the files of published data sets.

An existing file is always used unchanged; only missing files are downloaded. Hashes are checked for downloads only,
because users may repack files. Published hashes are those of TensorFlow Datasets, at github.com/tensorflow/datasets in
tensorflow_datasets/url_checksums. If none is published, a warning says that the download is trusted.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import product
from pathlib import Path
from urllib.request import urlopen

from batchbalance.errors import FileFormatError
from batchbalance.system.files import replacing

FOLDER_VARIABLE = "BATCHBALANCE_DATA"
TIMEOUT_SECONDS = 60  # between two packets


@dataclass(frozen=True)
class DataSource:
    """The folder, the web page and the files of one data set.

    Attributes:
        folders: accepted names of its folder in the data directory; the first one is created.
        page: its web page.
        downloads: the SHA-256 of each address, or None if no citable source gives one. Addresses are single files,
            stored unchanged, or one archive, unpacked into the folder.
    """

    folders: tuple[str, ...]
    page: str
    downloads: dict[str, str | None]


MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
UCI_URL = "https://archive.ics.uci.edu"

MNIST = DataSource(
    ("mnist", "MNIST"),
    "https://yann.lecun.com/exdb/mnist/",
    {
        f"{MNIST_URL}/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        f"{MNIST_URL}/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        f"{MNIST_URL}/t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        f"{MNIST_URL}/t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)
FASHION_MNIST = DataSource(
    ("fashion-mnist", "FashionMNIST"),
    "https://github.com/zalandoresearch/fashion-mnist",
    {
        f"{FASHION_URL}/train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        f"{FASHION_URL}/train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        f"{FASHION_URL}/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        f"{FASHION_URL}/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
)
EMNIST = DataSource(
    ("emnist", "EMNIST"),
    "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    {
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip": (
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
        )
    },
)
SVHN = DataSource(
    ("svhn", "SVHN"),
    f"{SVHN_URL}/",
    {
        f"{SVHN_URL}/train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        f"{SVHN_URL}/test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    },
)
CIFAR_10 = DataSource(
    ("cifar-10-batches-bin", "cifar-10"),
    f"{CIFAR_URL}/cifar.html",
    {f"{CIFAR_URL}/cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
)
CIFAR_100 = DataSource(
    ("cifar-100-binary", "cifar-100"),
    f"{CIFAR_URL}/cifar.html",
    {f"{CIFAR_URL}/cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
)
# No published hash that we could cite for CINIC-10 and the three UCI data sets.
CINIC_10 = DataSource(
    ("cinic-10", "CINIC-10"),
    "https://datashare.ed.ac.uk/handle/10283/3192",
    {"https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz": None},
)
HAR = DataSource(
    ("har", "UCI HAR Dataset"),
    f"{UCI_URL}/dataset/240/human+activity+recognition+using+smartphones",
    {f"{UCI_URL}/static/public/240/human+activity+recognition+using+smartphones.zip": None},
)
DRIFT = DataSource(
    ("drift",),
    f"{UCI_URL}/dataset/224/gas+sensor+array+drift+dataset",
    {f"{UCI_URL}/static/public/224/gas+sensor+array+drift+dataset.zip": None},
)
DRY_BEAN = DataSource(
    ("dry-bean", "DryBeanDataset"),
    f"{UCI_URL}/dataset/602/dry+bean+dataset",
    {f"{UCI_URL}/static/public/602/dry+bean+dataset.zip": None},
)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory: the argument, the variable BATCHBALANCE_DATA, or a per-user cache folder."""
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "batchbalance"


@dataclass(frozen=True)
class Files:
    """The files of one data set: existing ones, and downloads of missing ones.

    Attributes:
        source: the data set.
        root: the data directory.
        partial: accept some of the files of `need_some`.
        download: fetch missing files.
    """

    source: DataSource
    root: Path
    partial: bool = False
    download: bool = True

    def need(self, *names: str) -> list[Path]:
        """Return the paths of all these files; raise FileNotFoundError if some are unavailable."""
        missing = [name for name in names if self.have(name) is None]
        if self.download and missing:
            self.fetch(missing)
        paths = [path for path in map(self.have, names) if path is not None]
        if len(paths) < len(names):
            raise FileNotFoundError(self.missing_message([name for name in names if self.have(name) is None]))
        return paths

    def need_some(self, *names: str) -> list[Path]:
        """Return the paths of all these files; with `partial`, of those that exist, at least one."""
        here = [name for name in names if self.have(name)]
        if self.partial and here:
            return self.need(*here)
        try:
            return self.need(*names)
        except FileNotFoundError as error:
            hint = f". To work on {', '.join(here)} alone, pass `partial=True`" if here else ""
            raise FileNotFoundError(f"{error}{hint}") from error

    def have(self, name: str) -> Path | None:
        """Return a file or folder, plain or gzipped, at most two folders further down; None if missing."""
        for folder in self.source.folders:
            for above, ending in product(("", "*/", "*/*/"), ("", ".gz")):
                found = sorted((self.root / folder).glob(f"{above}{name}{ending}"))
                if found:
                    return found[0]
        return None

    def missing_message(self, names: Sequence[str]) -> str:
        """Return a message with the source of missing files and the folder for them."""
        return (
            f"data missing: put {', '.join(names)} into {self.root / self.source.folders[0]} (plain or .gz); "
            f"get them from {', '.join(self.source.downloads)} (see {self.source.page})"
        )

    def fetch(self, names: Sequence[str]) -> None:
        """Download the data set because these files are missing.

        Raises:
            FileNotFoundError: if a download fails; the message names the files, the folder and the address.
        """
        folder = self.root / self.source.folders[0]
        for url, sha256 in self.source.downloads.items():
            packed = url.endswith((".zip", ".tar.gz"))
            if not packed and self.have(url.rsplit("/", 1)[-1].removesuffix(".gz")):
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path = retrieve(url, sha256, folder)
                if packed:
                    unpack(path)
            except (OSError, EOFError, HTTPException, FileFormatError, tarfile.TarError, zipfile.BadZipFile) as error:
                message = f"{self.missing_message(names)}. Downloading {url} failed: {error}"
                raise FileNotFoundError(message) from error


def retrieve(url: str, sha256: str | None, folder: Path) -> Path:
    """Download a file into a folder and check its hash; without a published one, warn that the file is trusted."""
    path = folder / url.rsplit("/", 1)[-1].replace("+", "-")
    with replacing(path) as temporary, urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
        with temporary.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with temporary.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 not in (None, found):
            raise FileFormatError(f"{url} must have the SHA-256 hash {sha256}, got {found}")
    if sha256 is None:
        warnings.warn(f"no hash of {url} is published: the download is trusted, with SHA-256 {found}", stacklevel=2)
    return path


def unpack(archive: Path) -> None:
    """Replace a zip or tar.gz by the folder `unpacked` beside it, with the contents of zips inside it.

    Unpacking happens in a temporary folder, so an interrupted run leaves nothing that looks complete.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as temporary:
        top = Path(temporary) / "files"
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, top)
        else:
            shutil.unpack_archive(archive, top, filter="data")  # refuses members outside of the folder
        for inner in sorted(top.glob("*.zip")):
            shutil.unpack_archive(inner, top)
        unpacked = archive.parent / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        top.rename(unpacked)
    archive.unlink()
