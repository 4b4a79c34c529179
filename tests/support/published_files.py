"""Small files in the formats publishers ship, written with nothing of the library."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np


def write(path: Path, raw: bytes, *, packed: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path = path.with_name(path.name + ".gz")
        raw = gzip.compress(raw)
    path.write_bytes(raw)
    return path


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def images(num: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8)


def labels(num: int, num_classes: int) -> np.ndarray:
    return (np.arange(num) * 11 + 3) % num_classes


def cifar(x: np.ndarray, *label_columns: np.ndarray) -> bytes:
    return b"".join(
        bytes(int(column[i]) for column in label_columns) + x[i].astype(np.uint8).tobytes() for i in range(len(x))
    )


def write_mnist(
    folder: Path, num_train: int = 60, num_test: int = 30, *, packed: bool = False
) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": images(num_train, (28, 28), 1),
        "train-labels-idx1-ubyte": labels(num_train, 10),
        "t10k-images-idx3-ubyte": images(num_test, (28, 28), 2),
        "t10k-labels-idx1-ubyte": labels(num_test, 10),
    }
    for name, array in arrays.items():
        write(folder / name, idx(array), packed=packed)
    return arrays


def write_emnist(folder: Path, variant: str, num_classes: int, *, packed: bool = False) -> dict[str, np.ndarray]:
    arrays = {}
    for seed, part in enumerate(("train", "test")):
        arrays[part] = images(20, (28, 28), seed)
        write(folder / f"emnist-{variant}-{part}-images-idx3-ubyte", idx(arrays[part]), packed=packed)
        write(
            folder / f"emnist-{variant}-{part}-labels-idx1-ubyte",
            idx(labels(20, num_classes)),
            packed=packed,
        )
    return arrays


def write_cifar_10(folder: Path, batches: range = range(1, 6), *, packed: bool = False) -> list[np.ndarray]:
    arrays = []
    for batch in (*batches, 0):
        arrays.append(images(4, (3, 32, 32), batch))
        name = f"data_batch_{batch}.bin" if batch else "test_batch.bin"
        write(folder / name, cifar(arrays[-1], labels(4, 10)), packed=packed)
    return arrays


def write_har(folder: Path, *, packed: bool = False) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(12, 561))
    for part in ("train", "test"):
        lines = "\n".join(" " + " ".join(f"{value: .7e}" for value in row) for row in x)
        write(folder / part / f"X_{part}.txt", lines.encode() + b"\n", packed=packed)
        write(
            folder / part / f"y_{part}.txt",
            "\n".join(str(label + 1) for label in labels(12, 6)).encode(),
            packed=packed,
        )
    return x


def drift_lines(batch: int, *, amounts: bool = False) -> str:
    x = np.random.default_rng(batch).normal(size=(3, 128))
    return "\n".join(
        f"{label + 1}{';10.000000' if amounts else ''} " + " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(row))
        for label, row in zip(labels(3, 6), x, strict=True)
    )


BEANS = ("SEKER", "BARBUNYA", "BOMBAY", "CALI", "HOROZ", "SIRA", "DERMASON")


def bean_rows(num: int = 21) -> list[list[object]]:
    x = np.random.default_rng(0).normal(loc=5, size=(num, 16))
    return [[*map(float, row), BEANS[label]] for row, label in zip(x, labels(num, 7), strict=True)]


def arff(rows: list[list[object]]) -> str:
    attributes = "\n".join(f"@ATTRIBUTE f{i}\tREAL" for i in range(16))
    body = "\n".join(",".join(str(cell) for cell in row) for row in rows)
    return f"% beans\n@RELATION beans\n{attributes}\n@ATTRIBUTE Class\t{{{', '.join(BEANS)}}}\n\n@DATA\n{body}\n"


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return path
