"""Damage: files that the project wrote, truncated or with one bit flipped, are refused or read as they were."""

import hashlib
import json
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from batchbalance import FileFormatError, Learner, Predictions
from batchbalance.lab.records import open_trial, read_runs
from batchbalance.posteriors import CommitteeOptions, MCDropout, load_posterior
from batchbalance.system.journal import Journal, read_journal
from torture.campaign import Finding, campaign

REFUSALS = (FileFormatError, ValueError, FileNotFoundError)


def damaged(path: Path, random: Random) -> str:
    """Truncate a file, or flip one of its bits; what was done."""
    content = bytearray(path.read_bytes())
    if random.random() < 0.3:
        length = random.randrange(len(content))
        path.write_bytes(content[:length])
        return f"{path.name} truncated from {len(content)} to {length} bytes"
    at, bit = random.randrange(len(content)), random.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {len(content)} in {path.name} flipped"


def judged(what: str, read: Callable[[], Any], same: Callable[[Any], bool]) -> Finding:
    """What reading a damaged file comes to."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read()
    except REFUSALS:
        return Finding("refused", what)
    except Exception:
        return Finding("traceback", f"{what}: {traceback.format_exc()}")
    return Finding("intact" if same(found) else "different", what)


def pool(seed: int = 0) -> Predictions:
    """A few predictions with draw ids and weights."""
    logits = np.random.default_rng(seed).normal(size=(12, 4, 3)).astype(np.float32)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    return Predictions.from_logits(logits, draw_ids=["a", "b", "c", "d"], weights=weights)


def _same_predictions(expected: Predictions, found: Predictions) -> bool:
    return (
        torch.equal(expected.log_probs(), found.log_probs())
        and found.draw_ids == expected.draw_ids
        and torch.equal(expected.draw_weights, found.draw_weights)
    )


@campaign("damaged predictions", "a damaged .npy, .npz or .safetensors of ours is refused, or reads as it was")
def damaged_predictions(folder: Path, random: Random) -> Finding:
    """Save predictions, damage one of the files written, load them."""
    path = folder / f"pool{random.choice(['.npy', '.npz', '.safetensors'])}"
    expected = pool(random.randrange(100))
    expected.save(path)
    what = damaged(random.choice(sorted(folder.iterdir())), random)
    return judged(what, lambda: Predictions.load(path), lambda found: _same_predictions(expected, found))


@campaign("damaged posterior", "a damaged saved posterior is refused, or predicts as it did")
def damaged_posterior(folder: Path, random: Random) -> Finding:
    """Save a posterior, damage one of its files, load it."""
    torch.manual_seed(random.randrange(100))
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3))
    posterior, x = MCDropout(network, 3), torch.ones(2, 3)
    posterior.save(folder / "posterior")
    what = damaged(random.choice(sorted((folder / "posterior").iterdir())), random)

    def same(found: MCDropout) -> bool:
        return _same_predictions(posterior.predict(x), found.predict(x))

    return judged(what, lambda: load_posterior(folder / "posterior", network), same)


@campaign("damaged records", "damaged records are refused, or are the records without the last one")
def damaged_records(folder: Path, random: Random) -> Finding:
    """Write a run directory, damage one of its files, read it as `report` does."""
    config = {"strategy": {"name": "random"}, "data": {"name": "digits"}, "batch_size": 3}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:10]
    run = folder / random.choice([f"random-{digest}", "mine"])  # as `run` names it, or as a person does
    expected = [
        {
            "round": i,
            "trial": 0,
            "num_labelled": 10 + 3 * i,
            "indices": [i, i + 1],
            "metrics": {"accuracy": 0.5 + i / 100},
        }
        for i in range(5)
    ]
    with open_trial(run, config, 0) as journal:
        for record in expected:
            journal.append(record)
    before = read_runs([folder])[0]
    path = random.choice([each for each in sorted(run.iterdir()) if each.stat().st_size])
    what = damaged(path, random)

    def same(found: list[Any]) -> bool:
        trials = found[0].trials.get(0, [])
        shorter = path.suffix == ".jsonl" and "truncated" in what
        prefix = trials == before.trials[0][: len(trials)]
        return found[0].config == before.config and prefix and (shorter or len(trials) >= len(expected) - 1)

    return judged(what, lambda: read_runs([folder]), same)


@campaign("damaged labels", "the damaged labels of a learner are refused, or are what was told")
def damaged_labels(folder: Path, random: Random) -> Finding:
    """Tell labels, damage the database, open it again."""
    x = np.zeros((20, 2), dtype=np.float32)

    def opened() -> Learner:
        return Learner(x, 3, CommitteeOptions(size=2), directory=folder / "labels")

    learner = opened()
    for row in range(6):
        learner.tell([row], [row % 3])
    expected = learner.labels
    del learner
    path = folder / "labels" / "labels.sqlite"
    what = damaged(path, random)
    is_empty = not path.stat().st_size  # as if it had never been written
    return judged(what, opened, lambda found: found.labels == ({} if is_empty else expected))


@campaign("full disk", "on a full disk the error is one sentence, and all earlier records are intact")
def full_disk(folder: Path, random: Random) -> Finding:
    """Let the size of a file be limited in the middle of writing records."""
    limit = random.randrange(60, 900)
    path = folder / "records.jsonl"
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        written = 0
        try:
            with Journal(path) as journal:
                while True:
                    journal.append({"round": written, "text": "x" * 40})
                    written += 1
        except OSError as error:
            os._exit(written if "all earlier records are intact" in str(error) else 255)
        except BaseException:
            os._exit(254)
    written = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    what = f"a disk that is full after {limit} bytes"
    if written >= 254:
        return Finding("traceback", f"{what}: exit code {written}")
    found = read_journal(path) if path.exists() else []
    if len(found) != written:
        return Finding("lost", f"{what}: {written} records were acknowledged, {len(found)} are there")
    return Finding("intact", what)
