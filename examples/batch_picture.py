"""Draw three batches of handwritten digits: at random, by coverage before any label, and with a model after that.

``python examples/batch_picture.py batch.png`` takes seconds and needs matplotlib (the extra ``report``).
"""

import sys

import matplotlib as mpl
from sklearn.datasets import load_digits

from batchbalance import Selection, select
from batchbalance.posteriors import BayesianHead

mpl.use("agg")
from matplotlib import pyplot as plt

BATCH_SIZE = 20


def batches() -> dict[str, list[int]]:
    """Three batches of the digits, with a line of text for each."""
    images, labels = load_digits(return_X_y=True)

    def titled(text: str, selection: Selection) -> tuple[str, list[int]]:
        rows = selection.indices.tolist()
        return f"{text} ({len(set(labels[rows]))} of 10 digits)", rows

    chance = select(embeddings=images, batch_size=BATCH_SIZE, strategy="random")
    first = select(embeddings=images, batch_size=BATCH_SIZE)
    known = first.indices.numpy()
    head = BayesianHead().fit(images[known], labels[known], num_classes=10, unlabelled=images)
    second = select(head.predict(images), BATCH_SIZE, embeddings=images, labelled=known)
    return dict(
        [
            titled("at random", chance),
            titled("first batch: before any label, it covers the pool", first),
            titled("second batch: where a model trained on the first is unsure", second),
        ]
    )


def draw(output: str) -> None:
    """Write the picture."""
    images = load_digits().images
    figure, rows = plt.subplots(3, BATCH_SIZE, figsize=(10, 3), dpi=120)
    for axes, (title, chosen) in zip(rows, batches().items(), strict=True):
        axes[0].set_title(title, loc="left", fontsize=11)
        for place, row in zip(axes, chosen, strict=True):
            place.imshow(images[row], cmap="gray_r", interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.9, wspace=0.1, hspace=0.5)
    figure.savefig(output, facecolor="white", metadata={"Software": None})


if __name__ == "__main__":
    draw(sys.argv[1])
