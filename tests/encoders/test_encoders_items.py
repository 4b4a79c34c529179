"""What is found in folders and files: ids, order, damaged ones, columns."""

import gzip
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from batchbalance.encoders import open_items
from batchbalance.encoders.images import read_image
from batchbalance.errors import FileFormatError
from batchbalance.system.ids import id_of, ids_path, line_of, read_ids, repeated_id

SIZE = (6, 4)


def picture(path, mode="RGB", color=(200, 30, 60), size=SIZE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)
    return path


def values(items):
    return [(item.id, item.read()) for item in items]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, unique=True))
def test_any_id_comes_back_from_its_line(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("ids") / "e.ids.txt"
    path.write_bytes("".join(f"{line_of(name)}\n" for name in names).encode())
    assert read_ids(path) == names


def test_usual_ids_stand_as_they_are():
    for name in ("0", "a/b c.png", "C:\\new\\photo.png", "Größe.png", "it's 5\" long"):
        assert line_of(name) == name
    assert line_of('"quoted"') == '"\\"quoted\\""'
    assert line_of("two\nlines") == '"two\\nlines"'
    assert id_of('"not json') == '"not json'
    assert id_of("12") == "12"


def test_ids_lie_beside_the_embeddings(tmp_path):
    assert ids_path(tmp_path / "e.npy") == tmp_path / "e.ids.txt"


def test_repeated_ids_are_found():
    assert repeated_id(["a", "b", "c"]) is None
    assert repeated_id(["a", "b", "a", "b"]) == "a"


def test_images_of_a_folder_in_the_order_of_their_ids(tmp_path):
    name = unicodedata.normalize("NFD", "é.png")
    for path in ("b/2.png", "a.JPG", name, ".hidden.png", ".cache/x.png", "b/c/3.webp"):
        picture(tmp_path / path)
    (tmp_path / "labels.csv").write_text("id\n", encoding="utf-8")
    items = open_items(tmp_path)
    assert items.kind == "images"
    assert [item.id for item in items] == ["a.JPG", "b/2.png", "b/c/3.webp", unicodedata.normalize("NFC", name)]
    assert len(items) == 4
    assert items.notes == ("other files ignored: 1 × .csv",)
    assert all(image.mode == "RGB" and image.size == SIZE for _, image in values(items))


def test_links_are_followed_but_not_in_circles(tmp_path):
    picture(tmp_path / "data" / "a.png")
    picture(tmp_path / "elsewhere" / "b.png")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    assert [item.id for item in open_items(tmp_path / "data")] == ["a.png", "linked/b.png"]


def test_two_spellings_of_one_id_are_refused(tmp_path):
    for form in ("NFC", "NFD"):
        picture(tmp_path / unicodedata.normalize(form, "é.png"))
    if len(list(tmp_path.iterdir())) == 2:  # some file systems take them for one
        with pytest.raises(FileFormatError, match="distinct ids"):
            open_items(tmp_path)


def test_one_image_is_taken_by_its_name(tmp_path):
    assert [item.id for item in open_items(picture(tmp_path / "a.png"))] == ["a.png"]


def test_exif_rotation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    path = tmp_path / "a.jpg"
    image = Image.new("RGB", (40, 20), "black")
    image.paste("white", (0, 0, 10, 20))
    image.save(path, exif=exif, quality=95)
    pixels = np.asarray(read_image(path))
    assert pixels.shape == (40, 20, 3)
    assert pixels[2, 10].mean() > 250  # what was left is now at the top
    assert pixels[30, 10].mean() < 5


def test_images_of_any_mode_become_rgb(tmp_path):
    seen = {
        "grey": read_image(picture(tmp_path / "grey.png", "L", 77)),
        "palette": read_image(picture(tmp_path / "palette.gif", "P", 0)),
        "clear": read_image(picture(tmp_path / "clear.png", "RGBA", (255, 0, 0, 0))),
        "cmyk": read_image(picture(tmp_path / "cmyk.jpg", "CMYK", (0, 0, 0, 0))),
    }
    assert all(image.mode == "RGB" for image in seen.values())
    assert seen["grey"].getpixel((0, 0)) == (77, 77, 77)
    assert seen["clear"].getpixel((0, 0)) == (255, 255, 255)
    Image.fromarray(np.full((4, 6), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png").getpixel((0, 0)) == (40000 >> 8,) * 3
    Image.fromarray(np.zeros((4, 6), dtype=np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(FileFormatError, match=r"float\.tif must have 8 or 16 bits per channel, got mode F"):
        read_image(tmp_path / "float.tif")


@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_damaged_images_are_named(tmp_path, content):
    whole = picture(tmp_path / "a.png", size=(50, 50)).read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2] if content is None else content)
    (item,) = open_items(tmp_path)
    with pytest.raises(FileFormatError, match=r"image .*a\.png is damaged or of another format(: .+)?$") as caught:
        item.read()
    assert str(caught.value).count("a.png") == 1


def test_texts_of_a_folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.txt").write_text("one\ntwo\n", encoding="utf-8-sig")
    (tmp_path / "a.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    items = list(open_items(tmp_path))
    assert [item.id for item in items] == ["a.txt", "b/1.txt", "c.txt"]
    assert items[1].read() == "one\ntwo\n"
    with pytest.raises(FileFormatError, match=r"a\.txt must not be empty"):
        items[0].read()
    with pytest.raises(FileFormatError, match=r"c\.txt must be in UTF-8"):
        items[2].read()


def test_a_folder_with_both_asks_for_an_encoder(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a caption", encoding="utf-8")
    with pytest.raises(FileFormatError, match="got both; name an encoder"):
        open_items(tmp_path)
    assert [item.id for item in open_items(tmp_path, kind="texts")] == ["a.txt"]
    with pytest.raises(FileFormatError, match="a table is one file"):
        open_items(tmp_path, kind="rows")


def test_empty_and_missing_folders(tmp_path):
    with pytest.raises(FileFormatError, match="must hold images, got none in 0 files"):
        open_items(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such data"):
        open_items(tmp_path / "nowhere")
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(FileFormatError, match=r"must be a folder, an image, or end in .*\.csv.*got '.docx'"):
        open_items(tmp_path / "a.docx")


ROWS = [{"id": "x", "text": "one, two", "n": 1}, {"id": "y", "text": "drei\nvier", "n": 2}]


def write_rows(path, rows=ROWS):
    import pyarrow
    from pyarrow import parquet

    if path.name.startswith("a.parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if "jsonl" in path.name:
        content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    else:
        separator = "\t" if "tsv" in path.name else ","
        lines = [list(rows[0]), *([f'"{cell}"' for cell in row.values()] for row in rows)]
        content = "\r\n".join(separator.join(line) for line in lines) + "\r\n\r\n"
    raw = content.encode("utf-8-sig")
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_texts_of_a_column(tmp_path, name):
    items = open_items(write_rows(tmp_path / name))
    assert items.kind == "texts"
    assert values(items) == [("x", "one, two"), ("y", "drei\nvier")] == values(items)
    assert len(items) == 2
    assert values(open_items(tmp_path / name, id_column="n"))[1] == ("2", "drei\nvier")


def test_rows_without_ids_are_numbered_from_0(tmp_path):
    (tmp_path / "a.csv").write_text("query\nhello\n\nyou\n", encoding="utf-8")
    assert values(open_items(tmp_path / "a.csv", columns=["query"])) == [("0", "hello"), ("1", "you")]
    (tmp_path / "a.txt").write_text("hello\n\nyou", encoding="utf-8")
    assert values(open_items(tmp_path / "a.txt")) == [("0", "hello"), ("1", "you")]


def test_texts_longer_than_the_limit_of_the_csv_module(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "word " * 40_000 + "\n", encoding="utf-8")
    ((_, text),) = values(open_items(tmp_path / "a.csv"))
    assert len(text) == 200_000


def test_a_table_takes_all_columns_but_the_id_and_those_dropped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,size,colour,label\na,1,red,yes\nb,2,,no\n", encoding="utf-8")
    items = open_items(path, drop=["label"])
    assert items.kind == "rows"
    assert items.notes == ("columns taken: size, colour",)
    assert values(items) == [("a", {"size": "1", "colour": "red"}), ("b", {"size": "2", "colour": ""})]
    assert values(open_items(path, kind="rows", columns=["colour"]))[0] == ("a", {"colour": "red"})


def test_json_rows_need_not_have_all_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": true}\n', encoding="utf-8")
    assert values(open_items(tmp_path / "a.jsonl")) == [("0", {"a": 1, "b": None}), ("1", {"a": None, "b": True})]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text\n", {"columns": ["query"]}, "must have a column 'query', got columns text"),
        ("text\n", {"id_column": "key"}, "must have a column 'key', got columns text"),
        (
            "query,n\n",
            {"kind": "texts"},
            "must have a column 'text', got columns query, n; name the column .* --column",
        ),
        ("id,text\n1,a\n1,b\n", {}, "column 'id' of .*a.csv must have distinct ids, got '1' more than once"),
        ("id,text\n1,a\n,b\n", {}, "row 1 of .*a.csv must have an id in column 'id', got none"),
        ("text,text\n", {}, "distinct column names, got 'text'"),
        ("text,n\na,1\nb\n", {}, "line 3 must have 2 cells, got 1"),
        ('text\n"a\n', {}, "must be a CSV file, got damage"),
        ("", {}, "must start with a row of column names, got an empty file"),
        ("id\n", {}, "must have columns besides the id, got id"),
        ("text\n", {"kind": "images"}, "must be a folder of images or an image"),
    ],
)
def test_mistakes_in_rows(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    with pytest.raises(FileFormatError, match=message):
        open_items(tmp_path / "a.csv", **options)


def test_two_columns_of_texts_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,title\na,b\n", encoding="utf-8")
    with pytest.raises(ValueError, match="texts come from one column"):
        open_items(tmp_path / "a.csv", columns=["text", "title"])
    picture(tmp_path / "b" / "a.png")
    with pytest.raises(ValueError, match="columns are for files of rows"):
        open_items(tmp_path / "b", columns=["text"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text"', "line 2 must be JSON, got damage"),
        ("a.jsonl", b"[" * 200_000, "line 1 must be JSON, got damage"),
        ("a.jsonl", b'["a"]\n', "line 1 must be a JSON object, got list"),
        ("a.csv", b"text\n\xff\n", "must be a text file in UTF-8"),
        ("a.csv.gz", gzip.compress(b"text\na\n" * 99)[:-12], "truncated or damaged"),
        ("a.csv.gz", b"text\n", "truncated or damaged"),
        ("a.parquet", b"PAR1", "must be a Parquet file"),
    ],
)
def test_damaged_files_of_rows(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        open_items(tmp_path / name)


def test_empty_and_odd_texts_of_a_row_are_named(tmp_path):
    lines = ['{"text": " "}', '{"text": 5}', '{"n": 1}', '{"text": "\\ud800"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    first, second, third, fourth = open_items(tmp_path / "a.jsonl")
    with pytest.raises(FileFormatError, match=r"row 3 of .* must be valid Unicode"):
        fourth.read()
    for item, message in ((first, "row 0 of .* must not be empty"), (third, "row 2 of .* must not be empty, got None")):
        with pytest.raises(FileFormatError, match=message):
            item.read()
    with pytest.raises(FileFormatError, match=r"row 1 of .*, column 'text', must be a text, got int"):
        second.read()


def test_lists_in_memory():
    assert values(open_items(["a", "b"])) == [("0", "a"), ("1", "b")]
    assert open_items([{"a": 1}]).kind == "rows"
    assert open_items([Image.new("L", SIZE)]).kind == "images"
    with pytest.raises(TypeError, match="all of one kind, got rows, texts"):
        open_items(["a", {}])
    with pytest.raises(TypeError, match="got nothing"):
        open_items([])
    with pytest.raises(TypeError, match="got int"):
        open_items([5])
