"""Images of a published data set as embeddings: ``python make.py fashion-mnist DATA fashion-mnist.npz``.

The first 10,000 training and 2,000 test images, encoded by EfficientNet-Lite0 at 128 pixels.
Takes about ten minutes on one core.
"""

import sys

import numpy as np
from PIL import Image

from batchbalance.encoders import embed, encoder
from batchbalance.lab.data import load


def main(name: str, data_dir: str, output: str) -> None:
    """Write x, y, x_test and y_test."""
    data = load(name, data_dir=data_dir)
    parts = {"": (data.train_x[:10_000], data.train_y[:10_000]), "_test": (data.test_x[:2000], data.test_y[:2000])}
    arrays = {}
    lite = encoder("efficientnet-lite0", image_size=128)
    for part, (images, labels) in parts.items():
        pictures = [Image.fromarray(np.moveaxis(image.numpy(), 0, -1).squeeze()) for image in images]
        arrays[f"x{part}"] = np.asarray(embed(pictures, lite, progress=True).vectors)
        arrays[f"y{part}"] = labels.numpy()
    np.savez(output, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
