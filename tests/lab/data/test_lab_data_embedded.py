"""Texts, images by class, tables and vectors as data of a comparison."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from batchbalance.encoders import embed, encoder
from batchbalance.errors import FileFormatError
from batchbalance.lab.config import read_comparison
from batchbalance.lab.data import OwnData, load

TEXTS = [("lost my card", "card"), ("card is gone", "card"), ("send money", "pay"), ("pay a bill", "pay")] * 5


def write_csv(path, columns, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def parts(data):
    """All inputs and labels, whatever part they are in, as sorted rows."""
    x = torch.cat([data.train_x, data.test_x])
    y = torch.cat([data.train_y, data.test_y])
    return sorted(zip(x.tolist(), [data.class_names[i] for i in y.tolist()], strict=True))


def test_texts_become_the_embeddings_of_a_project(tmp_path):
    path = write_csv(tmp_path / "mails.csv", ["body", "intent"], TEXTS)
    own = OwnData(label="intent", column="body", encoder="tfidf")
    data = load(str(path), data_dir=tmp_path, own=own)
    vectors = embed([text for text, _ in TEXTS], encoder("tfidf")).vectors
    assert parts(data) == sorted(zip(vectors.tolist(), [label for _, label in TEXTS], strict=True))
    assert len(data.test_y) == 4
    assert len(list((tmp_path / "embedded").glob("*.npy"))) == 1


def test_rows_without_a_label_are_omitted_with_a_warning(tmp_path):
    rows = [(text, label if i % 4 else "") for i, (text, label) in enumerate(TEXTS)]
    path = write_csv(tmp_path / "mails.csv", ["text", "label"], rows)
    with pytest.warns(UserWarning, match="5 inputs have no label"):
        data = load(str(path), data_dir=tmp_path, own=OwnData(column="text", encoder="tfidf"))
    assert len(data.train_y) + len(data.test_y) == 15


def test_a_table_is_encoded_without_its_labels(tmp_path):
    rows = [(i, "red" if i % 3 else "blue", i % 2) for i in range(20)]
    path = write_csv(tmp_path / "t.csv", ["size", "colour", "kind"], rows)
    data = load(str(path), data_dir=tmp_path, own=OwnData(label="kind", encoder="table"))
    assert data.class_names == ("0", "1")
    expected = embed([{"size": str(i), "colour": colour} for i, colour, _ in rows], encoder("table")).vectors
    assert parts(data) == sorted(zip(expected.tolist(), [str(kind) for *_, kind in rows], strict=True))


@pytest.mark.parametrize("parted", [False, True])
def test_images_are_named_by_their_folder(tmp_path, parted):
    for part in ("train", "test") if parted else ("",):
        for name, grey in (("dark", 10), ("light", 240)):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for i in range(5):
                Image.new("L", (4 + i, 4), grey + i).save(folder / f"{i}.png")  # of different sizes
    data = load(str(tmp_path / "photos"), data_dir=tmp_path, own=OwnData(encoder="pixels", image_size=2))
    assert data.class_names == ("dark", "light")
    found = [(x[0], name) for x, name in parts(data)]
    middle = np.median([x for x, _ in found])
    assert all((x > middle) == (name == "light") for x, name in found)
    assert len(data.test_y) == (10 if parted else 2)


@pytest.mark.parametrize("kind", ["npy", "in order", "by id"])
def test_vectors_find_their_labels(tmp_path, kind):
    vectors = np.arange(40, dtype=np.float32).reshape(20, 2)
    names = [f"c{i % 3}" for i in range(20)]
    np.save(tmp_path / "e.npy", vectors)
    if kind == "npy":
        np.save(tmp_path / "y.npy", np.array(names))
        labels = tmp_path / "y.npy"
    elif kind == "in order":
        labels = write_csv(tmp_path / "y.csv", ["label"], [[name] for name in names])
    else:
        (tmp_path / "e.ids.txt").write_text("\n".join(f"i{i}" for i in range(20)))
        turned = [(f"i{i}", names[i]) for i in reversed(range(20))]
        labels = write_csv(tmp_path / "y.csv", ["id", "label"], turned)
    data = load(str(tmp_path / "e.npy"), own=OwnData(labels=str(labels)))
    assert parts(data) == sorted(zip(vectors.tolist(), names, strict=True))


def test_mistakes_are_one_sentence(tmp_path):
    path = write_csv(tmp_path / "mails.csv", ["text", "label"], TEXTS)
    with pytest.raises(FileFormatError, match=r"must have a column 'intent' .* got columns text, label"):
        load(str(path), data_dir=tmp_path, own=OwnData(label="intent", column="text"))
    np.save(tmp_path / "e.npy", np.zeros((3, 2)))
    with pytest.raises(ValueError, match="`labels` must name the file"):
        load(str(tmp_path / "e.npy"), own=OwnData())
    write_csv(tmp_path / "y.csv", ["label"], [["a"]])
    with pytest.raises(FileFormatError, match="one label for each of 3 rows"):
        load(str(tmp_path / "e.npy"), own=OwnData(labels=str(tmp_path / "y.csv")))
    Image.new("L", (4, 4)).save(tmp_path / "loose.png")
    with pytest.raises(FileFormatError, match="must be in a folder named after its class"):
        load(str(tmp_path), data_dir=tmp_path, own=OwnData(encoder="pixels"))


def test_a_file_does_not_import_an_encoder(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('batch_size = 2\nbudget = 4\nstrategies = ["random"]\n[data]\nname = "./x"\nencoder = "mine:f"\n')
    with pytest.raises(ValueError, match="names the encoder 'mine:f', which would import code"):
        read_comparison(config)
    config.write_text(config.read_text().replace("mine:f", "timm:resnet18"))
    assert read_comparison(config).posterior.kind == "bayesian-head"


def test_a_table_is_encoded_as_in_a_project(tmp_path):
    (tmp_path / "own.csv").write_text(
        "\ufeffa,kind,b\n1, yes,2\n3,no ,4.5\n,yes,1\n2,no,x\n7,yes,8\n", encoding="utf-8"
    )
    data = load(str(tmp_path / "own.csv"), data_dir=tmp_path, own=OwnData(label="kind"))
    same = load(str(tmp_path / "own.csv"), data_dir=tmp_path, own=OwnData(label="kind", encoder="table"))
    assert data.class_names == ("no", "yes")
    assert torch.equal(data.train_x, same.train_x)


@pytest.mark.parametrize("blank", ["", "  ", "nan", "NA"])
def test_rows_of_a_table_without_a_label_are_omitted(tmp_path, blank):
    rows = "".join(f"{i},{'xy'[i % 2]}\n" for i in range(10))
    (tmp_path / "own.csv").write_text(f"a,kind\n{rows}\n2,{blank}\n")
    with pytest.warns(UserWarning, match="1 inputs have no label"):
        data = load(str(tmp_path / "own.csv"), data_dir=tmp_path, own=OwnData(label="kind"))
    assert len(data.train_y) + len(data.test_y) == 10


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ("", "empty file"),
        ("a,b\n1,2\n", "got columns a, b"),
        ("a,kind\n1,x,3\n", "line 2 must have 2 cells, got 3"),
        ("kind,a,kind\nx,1,x\n", "'kind' more than once"),
    ],
)
def test_tables_that_are_refused(tmp_path, raw, complaint):
    (tmp_path / "own.csv").write_text(raw)
    with pytest.raises(FileFormatError, match=complaint):
        load(str(tmp_path / "own.csv"), data_dir=tmp_path, own=OwnData(label="kind"))
