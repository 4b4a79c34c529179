"""Encoders of texts: WordLlama, models of sentence-transformers, and TF-IDF with a truncated SVD."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from batchbalance.encoders.contract import Kind, Vectors, state_digest, usable_device
from batchbalance.errors import FileFormatError, MissingExtraError

LONG_TEXT = 2000  # characters; a batch is padded to its longest text, so that long ones go alone
TFIDF_FEATURES = 256


class WordLlama:
    """The mean of learned word vectors, 256 numbers; weights and tokenizer come with the package `wordllama`."""

    name = "wordllama"
    kind: Kind = "texts"
    dim = 256

    def __init__(self) -> None:
        with _quiet_root_logger():
            try:
                import wordllama
            except ImportError as error:
                raise MissingExtraError("the encoder 'wordllama'", "text") from error
            # Its own look-up misses the tokenizer that lies in its folder, and would download it.
            folder = Path(wordllama.__file__).parent
            self._model = wordllama.WordLlama.load(cache_dir=folder, dim=self.dim, disable_download=True)
        weights = hashlib.sha256(self._model.embedding.data)
        weights.update(self._model.tokenizer.to_str().encode())
        self.fingerprint = f"{self.name}/{weights.hexdigest()[:16]}"

    def encode(self, batch: Sequence[str]) -> Vectors:
        """The vectors of some texts."""
        vectors = np.empty((len(batch), self.dim), dtype=np.float32)
        short = [i for i, text in enumerate(batch) if len(text) <= LONG_TEXT]
        if short:
            vectors[short] = self._model.embed([batch[i] for i in short])
        for i in set(range(len(batch))) - set(short):
            vectors[i] = self._model.embed([batch[i]])[0]
        return vectors


class SentenceTransformers:
    """A model of sentence-transformers by name; downloaded once unless it is a folder.

    Args:
        model: its name or folder, as "all-MiniLM-L6-v2".
        device: where to compute; the CPU if left out.
    """

    kind: Kind = "texts"

    def __init__(self, model: str, device: str | None = None) -> None:
        self.name = f"sentence-transformers:{model}"
        device = usable_device(device)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(f"the encoder {self.name!r}", "sentence-transformers") from error
        try:
            self._model = SentenceTransformer(model, device=device)
        except Exception as error:  # a dozen types, by what is missing: the network, the model, a part of it
            raise OSError(
                f"the model {self.name!r} cannot be loaded ({_first_line(error)}); check its name and the network, "
                "or use the encoder 'wordllama', which needs none"
            ) from error
        self.dim = int(self._model.encode(["a"], show_progress_bar=False).shape[1])
        self.fingerprint = f"{self.name}/{state_digest(self._model.state_dict())}"

    def encode(self, batch: Sequence[str]) -> Any:
        """The vectors of some texts."""
        return self._model.encode(list(batch), show_progress_bar=False, convert_to_numpy=True)


class Tfidf:
    """TF-IDF of the words of all texts, reduced by a truncated SVD; looks at all texts first.

    Args:
        num_features: the most numbers a text gets; fewer if there are fewer words or texts.
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
        """Hash of all that was learned."""
        digest = hashlib.sha256()
        if self.dim is not None:
            digest.update("\0".join(self._vectorizer.get_feature_names_out()).encode())
            digest.update(self._vectorizer.idf_.tobytes())
            digest.update(self._reduction.components_.tobytes())
        return f"{self.name}/{digest.hexdigest()[:16]}"

    def fit(self, inputs: Iterable[str]) -> None:
        """Learn the words, their weights and the directions of most variance; goes once through the texts."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(sublinear_tf=True)
        try:
            counts = self._vectorizer.fit_transform(inputs)
        except ValueError as error:
            raise FileFormatError(f"the texts must hold words of two letters or more: {error}") from error
        dim = min(self._most, *counts.shape)
        self._reduction = TruncatedSVD(dim, random_state=0).fit(counts)
        self.dim = dim

    def encode(self, batch: Sequence[str]) -> Any:
        """The vectors of some texts."""
        return self._reduction.transform(self._vectorizer.transform(batch))


@contextmanager
def _quiet_root_logger() -> Iterator[None]:
    """Undo that importing wordllama sets up logging for the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
