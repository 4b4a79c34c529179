"""`python -m benchmarks.long_text wordllama`: one text of 10 million characters among 99 short ones, cut and whole."""

import random
import sys
import time

from batchbalance.cli.app import out
from batchbalance.encoders import contract
from batchbalance.encoders.texts import Tfidf, WordLlama
from batchbalance.memory import peak_memory

CHARACTERS = 10_000_000


def made_texts(one_word: bool) -> list[str]:
    """The long text, of words or of one letter, and short ones behind it."""
    stream = random.Random(0)
    words = ["".join(stream.choices("abcdefghijklmnopqrstuvwxyz", k=stream.randint(2, 9))) for _ in range(20_000)]
    long = "x" * CHARACTERS if one_word else " ".join(stream.choices(words, k=2_000_000))[:CHARACTERS]
    return [long, *(" ".join(stream.choices(words, k=20)) for _ in range(99))]


def main(name: str, *options: str) -> None:
    """Print seconds and the peak of the process, with the limit and then without it."""
    texts = made_texts("--one-word" in options)
    encoder = WordLlama() if name == "wordllama" else Tfidf()
    for limit in (contract.MOST_CHARACTERS, CHARACTERS):
        contract.MOST_CHARACTERS = limit
        started = time.perf_counter()
        if isinstance(encoder, Tfidf):
            encoder.fit(texts)
        contract.encoded(encoder, texts)
        seconds = time.perf_counter() - started
        out.print(f"{name}, first {limit:,} characters: {seconds:.2f} s, peak {peak_memory() / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
