"""`python results/machine/machine.py --embeddings FOLDER`: projects with and without machine labels (PLAN.md).

FOLDER holds `fashion-mnist.npz` and `banking77.npz`, as `results/suite/embeddings.py` writes them. Runs that are in
`records.jsonl` are not run again. The table is printed.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from batchbalance.project import Project

OWN = Path(__file__).parent
RECORDS = OWN / "records.jsonl"
SETS, SOURCES = ("fashion-mnist", "banking77"), (0.3, 0.6, 0.8, 0.95)
POOL, BATCHES, FIRST_SEED = 1500, (20, 20, 40, 80), 10
CLUSTERS, NEAR = 40, 3
T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # of n − 1 degrees of freedom


def suggestions(x: np.ndarray, y: np.ndarray, accuracy: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of which a share is right, and confidences; errors depend on the class and on the cluster."""
    random, num = np.random.default_rng(seed), int(y.max()) + 1
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cluster = (unit @ unit[random.choice(len(x), CLUSTERS, replace=False)].T).argmax(axis=1)
    hard = random.normal(size=num)[y] + random.normal(size=CLUSTERS)[cluster] + random.normal(0, 0.8, len(y))
    limit = np.quantile(hard, accuracy)
    means = np.stack([unit[y == c].mean(axis=0) if (y == c).any() else np.zeros(x.shape[1]) for c in range(num)])
    alike = means @ means.T - 9 * np.eye(num)
    other = np.argsort(-alike, axis=1)[:, :NEAR][y, random.integers(NEAR, size=len(y))]
    confidence = 1 / (1 + np.exp(-0.8 * (limit - hard) - random.normal(0, 0.8, len(y))))
    return np.where(hard > limit, other, y), confidence


def run(path: Path, name: str, seed: int, accuracy: float | None) -> dict:
    """Run a project; return its accuracy after each batch on items without a label."""
    held = np.load(path)
    rows = np.random.default_rng(seed).permutation(len(held["y"]))[:POOL]
    x, y = held["x"][rows].astype(np.float32), held["y"][rows]
    found, helped = [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        np.save(folder / "e.npy", x)
        project = Project.create(
            folder / "p", classes=range(int(held["y"].max()) + 1), embeddings=folder / "e.npy", seed=seed
        )
        if accuracy is not None:
            labels, sure = suggestions(x, y, accuracy, seed)
            lines = (f"{i},{labels[i]},{sure[i]:.4f}\n" for i in range(POOL))
            (folder / "gpt.csv").write_text("id,label,confidence\n" + "".join(lines), encoding="ascii")
            project.suggest(folder / "gpt.csv", "gpt")
        for size in BATCHES:
            project.tell({each: str(y[int(each)]) for each in project.ask(size)})
            left = [each for each in project.ids() if each not in project.labels]
            guessed = project.guess(left)
            assert guessed is not None
            found.append(float(np.mean([int(each.label) == y[int(each.id)] for each in guessed])))
            trained = project.model.trained(project.store.snapshot(), project.embeddings.array())
            helped.append(trained.mixture.weights.get("gpt", 0.0) if trained and trained.mixture else 0.0)
        project.close()
    return {"data": name, "seed": seed, "source": accuracy, "accuracy": found, "weights": helped}


def table(records: list[dict]) -> list[str]:
    """Return the means over seeds, the paired differences with their intervals, and labels saved."""
    counts = np.cumsum(BATCHES)
    lines = [
        "| data | source | labels | without | with | difference | worst | labels saved |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in SETS:
        of = {(each["source"], each["seed"]): each["accuracy"] for each in records if each["data"] == name}
        for source in SOURCES:
            seeds = [seed for kind, seed in of if kind == source and (None, seed) in of]
            if len(seeds) < 3:
                continue
            plain, other = (np.array([of[kind, seed] for seed in seeds]) for kind in (None, source))
            mean = plain.mean(axis=0)
            for i, count in enumerate(counts):
                gain = other[:, i] - plain[:, i]
                reach = T[len(seeds)] * gain.std(ddof=1) / np.sqrt(len(seeds))
                level = other[:, i].mean()
                saved = (
                    f"more than {counts[-1] - count}"
                    if level > mean.max()
                    else f"{max(0, np.interp(level, mean, counts) - count):.0f}"
                )
                lines.append(
                    f"| {name} | {100 * source:.0f} % | {count} | {100 * mean[i]:.1f} | {100 * level:.1f} | "
                    f"{100 * gain.mean():+.1f} ± {100 * reach:.1f} | {100 * gain.min():+.1f} | {saved} |"
                )
    return lines


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.is_file() else []
    done = {(each["data"], each["seed"], each["source"]) for each in records}
    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
        for name in SETS:
            for source in (None, *SOURCES):
                if (name, seed, source) not in done:
                    records.append(run(given.embeddings / f"{name}.npz", name, seed, source))
                    with RECORDS.open("a", encoding="ascii") as file:
                        file.write(json.dumps(records[-1]) + "\n")
    print("\n".join(table(records)))


if __name__ == "__main__":
    main()
