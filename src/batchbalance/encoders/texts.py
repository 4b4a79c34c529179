"""Text encoders: WordLlama, sentence-transformers models, and TF-IDF with a truncated SVD."""

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from batchbalance.arguments.checks import check_device
from batchbalance.encoders.contract import Kind, Vectors, cut
from batchbalance.errors import FileFormatError, MissingExtraError, sentence
from batchbalance.system.sealed import tensors_digest

TFIDF_FEATURES = 256


class WordLlama:
    """The mean of learned word vectors, 256 numbers; weights and tokenizer are in the package `wordllama`.

    Its two files are read without importing the package. Versions before 0.3.7 find no tokenizer without a network, and
    later ones need NumPy 2. All versions configure logging for the whole process when imported, and pad a batch to its
    longest text.
    """

    name = "wordllama"
    kind: Kind = "texts"
    dim = 256

    def __init__(self) -> None:
        package = importlib.util.find_spec("wordllama")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            package = None
        if package is None or package.origin is None:
            raise MissingExtraError(f"the encoder {self.name!r}", "text")
        folder = Path(package.origin).parent
        weights = folder / "weights" / "l2_supercat_256.safetensors"
        tokens = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
        try:
            self._weights = safetensors.numpy.load_file(weights)["embedding.weight"].astype(np.float32)
            self._tokenizer = Tokenizer.from_file(str(tokens))
        except Exception as error:  # tokenizers raises plain exceptions
            raise OSError(f"{folder} must hold weights and a tokenizer, got: {error}; reinstall wordllama") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        digest = hashlib.sha256(self._weights.tobytes() + tokens.read_bytes())
        self.fingerprint = f"{self.name}/{digest.hexdigest()[:16]}"

    def encode(self, batch: Sequence[str]) -> Vectors:
        """Return the vectors of some texts; zeros for a text without tokens."""
        vectors = np.zeros((len(batch), self.dim), dtype=np.float32)
        for i, tokens in enumerate(self._tokenizer.encode_batch(list(batch), add_special_tokens=False)):
            if tokens.ids:
                vectors[i] = self._weights[np.minimum(tokens.ids, len(self._weights) - 1)].mean(axis=0)
        return vectors


class SentenceTransformers:
    """A sentence-transformers model by name; downloaded once unless it is a folder.

    Args:
        model: its name, such as "all-MiniLM-L6-v2", or its folder.
        device: where to compute; the CPU if omitted.
    """

    kind: Kind = "texts"

    def __init__(self, model: str, device: str | None = None) -> None:
        self.name = f"sentence-transformers:{model}"
        using = check_device("device", device or "cpu")
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(f"the encoder {self.name!r}", "sentence-transformers") from error
        try:
            self._model = SentenceTransformer(model, device=str(using))
        except Exception as error:  # the type depends on what is missing: the network, the model or a part of it
            raise OSError(
                f"the model {self.name!r} cannot be loaded ({sentence(error)}); check its name and the network, "
                "or use the encoder 'wordllama', which needs no download"
            ) from error
        self.dim = int(self._model.encode(["a"], show_progress_bar=False).shape[1])
        self.fingerprint = f"{self.name}/{tensors_digest(self._model.state_dict())[:16]}"

    def encode(self, batch: Sequence[str]) -> Any:
        """Return the vectors of some texts."""
        return self._model.encode(list(batch), show_progress_bar=False, convert_to_numpy=True)


class Tfidf:
    """TF-IDF of the words of all texts, reduced by a truncated SVD; fitted on all texts first.

    Args:
        num_features: the largest number of features; fewer if there are fewer words or texts.
    """

    name = "tfidf"
    kind: Kind = "texts"

    def __init__(self, num_features: int = TFIDF_FEATURES) -> None:
        self.dim: int | None = None
        self._most = num_features
        self._vectorizer: Any = None
        self._reduction: Any = None

    @property
    def fingerprint(self) -> str:
        """A hash of the fitted state."""
        digest = hashlib.sha256()
        if self.dim is not None:
            digest.update("\0".join(self._vectorizer.get_feature_names_out()).encode())
            digest.update(self._vectorizer.idf_.tobytes())
            digest.update(self._reduction.components_.tobytes())
        return f"{self.name}/{digest.hexdigest()[:16]}"

    def fit(self, inputs: Iterable[str]) -> None:
        """Learn the words, their weights and the directions of most variance; iterates once over the texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(sublinear_tf=True)
        try:
            counts = self._vectorizer.fit_transform(cut(text) for text in inputs)
        except ValueError as error:
            raise FileFormatError(f"the texts must contain words of at least two letters: {error}") from error
        dim = min(self._most, *counts.shape)
        self._reduction = TruncatedSVD(dim, random_state=0).fit(counts)
        self.dim = dim

    def encode(self, batch: Sequence[str]) -> Any:
        """Return the vectors of some texts."""
        return self._reduction.transform(self._vectorizer.transform(batch))
