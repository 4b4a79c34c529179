"""Runs made up for tests of reports: no training, records as `batchbalance run` writes them."""

import hashlib
import json

import numpy as np

from batchbalance.lab.records import Run
from batchbalance.system.sealed import write_sealed

RATES = {"random": 0.010, "bald": 0.008, "batch-bald": 0.013, "batch-balance": 0.016, "power-balance": 0.014}


def made_records(seed, rate=0.01, counts=range(20, 140, 10), validation=100, noise=0.01):
    """Rising accuracies; the seed shifts all strategies alike, so that pairing matters."""
    rng = np.random.default_rng([seed, int(rate * 10_000)])
    shift = np.random.default_rng(seed).normal() * 0.02
    counts = list(counts)
    records = []
    for number, count in enumerate(counts):
        wrong = 0.75 * np.exp(-rate * count * 1.5) + 0.02
        accuracy = float(np.clip(1 - wrong + shift + noise * rng.normal(), 0, 1))
        last = number == len(counts) - 1
        records.append(
            {
                "round": number,
                "trial": seed,
                "num_labelled": count,
                "num_validation": validation,
                "metrics": {
                    "accuracy": accuracy,
                    "macro_auc": 1 - (1 - accuracy) / 4,
                    "macro_f1": accuracy - 0.01,
                    "nll": 3 * (1 - accuracy),
                    "calibration_error": 0.05 + abs(noise * rng.normal()),
                },
                "validation_error": 1 - accuracy,
                "indices": [] if last else list(range(count, count + 10)),
                "labels_per_class": [count // 10] * 10,
                "threshold": None,
                "num_edges": None,
                "num_pairs": None,
                "coverage": None,
                "random_coverage": None,
                "null_coverage": None,
                "certificate": None,
                "seconds": {"train": 1.5, "predict": 0.5, "select": 0.0 if last else rate * 10, "evaluate": 0.1},
                "peak_memory": 400_000_000 + int(rate * 1e9),
            }
        )
    return records


def made_run(folder, label="random", seeds=range(6), **options):
    options = {"rate": RATES.get(label.split("(")[0], 0.01)} | options
    config = {"strategy": {"name": label.split("(")[0]}, "data": {"name": "digits"}}
    return Run(folder / label, label, config, {seed: made_records(seed, **options) for seed in seeds})


def journal_of(records):
    """The content of a journal with these records."""
    content = b""
    for number, record in enumerate(records, start=1):
        line = json.dumps(record)
        checksum = hashlib.sha256(content + line.encode()).hexdigest()[:16]
        content += f'[{number}, "{checksum}", {line}]\n'.encode()
    return content


def write_run(run):
    """Put a run on disk as `read_runs` expects it."""
    run.path.mkdir(parents=True)
    write_sealed(run.path / "config.json", run.config)
    for seed, records in run.trials.items():
        (run.path / f"trial-{seed}.jsonl").write_bytes(journal_of(records))
    return run.path


def write_runs(folder, seeds=range(6), labels=tuple(RATES)):
    for label in labels:
        write_run(made_run(folder, label, seeds))
    return folder
