"""Running the benchmark: cases, peers, memory and growth, into one report."""

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.errors import UnknownNameError
from batchbalance.system.progress import Bar, progress
from benchmarks.cases import CASES, Case, Size
from benchmarks.cover_cases import COVER_CASES
from benchmarks.growth import FULL, QUICK, Growth, measure_growth
from benchmarks.measure import ChildError, Side, call_child, peak_above, take_turns
from benchmarks.page_cases import PAGE_CASES
from benchmarks.peers import DEFAULT_FOLDER, PEER_CASES, PeerCase, PeerResult, run_peer
from benchmarks.posterior_cases import POSTERIOR_CASES
from benchmarks.project_cases import PROJECT_CASES
from benchmarks.report import Line, Measured, Report, environment

OWN_CASES = {case.name: case for case in [*CASES, *COVER_CASES, *POSTERIOR_CASES, *PAGE_CASES, *PROJECT_CASES]}
WITH_PEERS = {case.name: case for case in PEER_CASES}
NAMES = (*OWN_CASES, *WITH_PEERS, "growth")
MEMORY_WORKERS = 2  # peak memory does not mind company, times do


def run_benchmark(
    *,
    quick: bool = False,
    only: Sequence[str] | None = None,
    repeats: int | None = None,
    seed: int = 0,
    peers: Path | None = None,
    memory: bool | None = None,
    show_progress: bool = False,
) -> Report:
    """Time everything, in this order: cases, peers, growth, and then memory in fresh processes.

    Args:
        quick: smaller sizes.
        only: names of cases, or "growth"; all if left out.
        repeats: runs of each side after one that warms up; 5, or 3 if quick. Slow sides are run less often.
        seed: of all inputs.
        peers: the environment that other libraries are installed in; `.venv-bench` if left out.
        memory: measure the peak memory of both sides of every line, once more and in fresh processes; unless quick
            if left out.
        show_progress: show a bar.
    """
    names = _checked(only)
    runs = _checked_repeats(repeats, 3 if quick else 5)
    own = [(OWN_CASES[n], size) for n in names if n in OWN_CASES for size in _sizes(OWN_CASES[n], quick)]
    others = [(WITH_PEERS[n], size) for n in names if n in WITH_PEERS for size in _sizes(WITH_PEERS[n], quick)]
    curves = (QUICK if quick else FULL) if "growth" in names else {}
    total = len(own) + sum(1 + len(case.peers) for case, _ in others) + sum(len(v) for v in curves.values())
    memory = not quick if memory is None else memory
    measured = sum(case.has_memory for case, _ in own) if memory else 0
    with progress("bench", total + measured, show_progress) as bar:
        lines: list[Line] = []
        for case, size in own:
            lines += time_case(case if not quick else replace(case, target=None), size, seed, runs)
            bar.advance(note=case.name)
        results: list[PeerResult] = []
        for peer_case, size in others:
            wanted = peer_case if not quick else replace(peer_case, targets={})
            found, ran = time_peers(wanted, size, seed, runs, peers or DEFAULT_FOLDER, bar)
            lines += found
            results += ran
        growth: list[Growth] = []
        for letter, values in curves.items():
            growth.append(
                measure_growth(letter, values, seed=seed, repeats=runs, done=lambda: bar.advance(note="growth"))
            )
        if memory:
            lines = _with_memory(lines, seed, bar)
    versions = {result.peer: result.version for result in results if result.version}
    return Report({**environment(seed, quick, runs), "peers": versions}, tuple(lines), tuple(growth))


def time_case(case: Case, size: Size, seed: int, repeats: int) -> list[Line]:
    """The lines of one case at one size: all its sides take turns in one run."""
    sides = case.build(size, seed)
    times = take_turns(sides, repeats)
    found = [Measured(side.name, t.median, t.seconds, side.scaled) for side, t in zip(sides, times, strict=True)]
    if len(sides) == 1:
        return [Line(case.name, size, found[0])]
    agreements = [agreement(times[0].result, other.result) for other in times[1:]]
    targets = [case.target, *[None] * (len(sides) - 2)]
    return [
        Line(case.name, size, found[0], other, same, target)
        for other, same, target in zip(found[1:], agreements, targets, strict=True)
    ]


def time_peers(
    case: PeerCase, size: Size, seed: int, repeats: int, folder: Path, bar: Bar
) -> tuple[list[Line], list[PeerResult]]:
    """The lines of ours against each peer, and what the peers found."""
    work = case.build(size, seed)
    times = take_turns(work.ours, repeats)
    bar.advance(note=case.name)
    lines, results = [], []
    for peer in case.peers:
        result = run_peer(peer, case.name, work, size, folder=folder, repeats=repeats)
        bar.advance(note=peer)
        results.append(result)
        for side, ours in zip(work.ours, times, strict=True):
            measured = Measured(side.name, ours.median, ours.seconds)
            if result.absent:
                other = None
            else:
                median = statistics.median(result.seconds)
                other = Measured(peer, median, result.seconds, work.scaled, result.peak_mib)
            # Different objectives choose different batches, and say nothing about each other.
            same = agreement(ours.result, torch.tensor(result.indices)) if side.name == "batch-bald" else ""
            target = case.targets.get((side.name, peer))
            lines.append(Line(case.name, size, measured, other, "" if other is None else same, target, result.absent))
    return lines, results


def agreement(ours: object, other: object) -> str:
    """How two results compare: the points that two batches share, or the largest difference of two scores."""
    if not isinstance(ours, Tensor) or not isinstance(other, Tensor) or ours.shape != other.shape:
        return ""
    if ours.is_floating_point() != other.is_floating_point():
        return ""
    if ours.is_floating_point():
        return f"differ by {float((ours.double() - other.double()).abs().max()):.0e}"
    if torch.equal(ours, other):
        return "same batch"
    return f"{len(set(ours.tolist()) & set(other.tolist()))} of {len(ours)} points the same"


def _with_memory(lines: Sequence[Line], seed: int, bar: Bar) -> list[Line]:
    """The lines with the peak memory of each side; a peer has measured its own."""
    wanted: dict[str, tuple[Line, str]] = {}
    for line in lines:
        if line.case in OWN_CASES and OWN_CASES[line.case].has_memory:
            for side in (line.ours, line.other):
                if side is not None:
                    wanted.setdefault(_memory_key(line, side), (line, side.name))
    with ThreadPoolExecutor(MEMORY_WORKERS) as executor:
        futures = {
            key: executor.submit(peak_memory, line.case, line.size, side, seed) for key, (line, side) in wanted.items()
        }
        peaks = {}
        for key, future in futures.items():
            peaks[key] = future.result()
            if wanted[key][0].ours.name == wanted[key][1]:
                bar.advance(note=f"memory of {wanted[key][0].case}")

    def filled(line: Line, side: Measured) -> Measured:
        key = _memory_key(line, side)
        return replace(side, peak_mib=peaks[key]) if key in peaks else side

    return [
        replace(line, ours=filled(line, line.ours), other=None if line.other is None else filled(line, line.other))
        for line in lines
    ]


def _memory_key(line: Line, side: Measured) -> str:
    return f"{line.case}/{line.size}/{side.name}"


def peak_memory(case: str, size: Size, side: str, seed: int) -> float | None:
    """MiB that one run of a side holds above its input, in a fresh process; None if that process fails."""
    request = {"case": case, "size": size, "side": side, "seed": seed, "threads": torch.get_num_threads()}
    try:
        return float(call_child("benchmarks.runner:peak_child", request)["peak_mib"])
    except ChildError:  # the times of all other lines are worth more than this number
        return None


def peak_child(request: dict[str, Any]) -> dict[str, Any]:
    """What runs in the fresh process."""
    torch.set_num_threads(request["threads"])
    sides: list[Side] = OWN_CASES[request["case"]].build(request["size"], request["seed"])
    side = next(side for side in sides if side.name == request["side"])
    return {"peak_mib": peak_above(side.run)}


def _sizes(case: Case | PeerCase, quick: bool) -> tuple[Size, ...]:
    return case.quick if quick else case.full


def _checked(only: Sequence[str] | None) -> Sequence[str]:
    if only is None:
        return NAMES
    for name in only:
        if name not in NAMES:
            raise UnknownNameError("case", name, NAMES)
    return only


def _checked_repeats(repeats: int | None, default: int) -> int:
    return default if repeats is None else check_whole("repeats", repeats)
