"""What pages of the docs assume that a reader has: files in the folder, and names in Python."""

import numpy as np
from PIL import Image

from batchbalance import Predictions
from made_runs import write_runs


def photos(folder):
    """Sixteen small images of four colours."""
    (folder / "photos").mkdir()
    colours = [(200, 60, 40), (40, 90, 200), (60, 160, 70), (230, 220, 90)]
    for number in range(16):
        noise = np.random.default_rng(number).integers(-30, 30, size=(32, 32, 3))
        pixels = np.clip(np.array(colours[number % 4]) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number:02d}.png")


def for_encoders(folder):
    photos(folder)
    queries = ["where is my card", "card still missing", "what is the exchange rate", "send money"]
    (folder / "queries.csv").write_text("\n".join(["id,text", *(f"q{i},{text}" for i, text in enumerate(queries))]))
    beans = [f"{size},{colour},{size % 2}" for size in range(1, 9) for colour in ("red", "white")]
    (folder / "beans.csv").write_text("\n".join(["size,colour,Class", *beans]))


def for_strategies(folder):
    """A pool of two classes in two clusters, and labels of a part of it."""
    rng = np.random.default_rng(0)
    embeddings = np.concatenate([rng.normal(size=(60, 8)), rng.normal(size=(60, 8)) + 2]).astype(np.float32)
    np.save(folder / "embeddings.npy", embeddings)
    labelled = [0, 1, 2, 3, 4, 60, 61, 62, 63, 64]
    rows = [f"{row},{'first' if row < 60 else 'second'}" for row in labelled]
    (folder / "labels.csv").write_text("\n".join(["id,label", *rows]))
    predictions = Predictions.from_probs(rng.dirichlet(np.ones(2), size=(120, 10)))
    return {"embeddings": embeddings, "predictions": predictions, "rows_with_labels": labelled}


def for_scale(folder):
    """A pool in one file and in three, with names."""
    pool = Predictions.from_probs(np.random.default_rng(0).dirichlet(np.ones(3), size=(60, 10)))
    pool.save(folder / "pool.npy")
    for part in range(3):
        rows = range(20 * part, 20 * part + 20)
        pool.subset(list(rows)).save(folder / f"part-{part}.npy")
        (folder / f"names-{part}.txt").write_text("".join(f"point-{row}\n" for row in rows))


def for_data(folder):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'setosa' if a > b else 'virginica'}" for a, b in rng.normal(size=(600, 2))]
    (folder / "my.csv").write_text("\n".join(["length,width,species", *rows]))


def for_runs(folder):
    """A data set, and run directories as `batchbalance run` leaves them."""
    for_data(folder)
    write_runs(folder / "runs", labels=["random", "batch-balance"])


def for_readme(folder):
    """Images, and predictions in a file."""
    photos(folder)
    rng = np.random.default_rng(0)
    np.save(folder / "probs.npy", rng.dirichlet(np.ones(3), size=(50, 10)))
    return {}


STAND_INS = {
    "encoders.md": for_encoders,
    "project.md": photos,
    "runs.md": for_runs,
    "scale.md": for_scale,
    "strategies.md": for_strategies,
}
