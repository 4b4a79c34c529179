"""`reference/api.md`: the public names, each with its first sentence, and what mkdocstrings makes of its docstring."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import batchbalance
from batchbalance.strategies import STRATEGIES
from docsite import ADDRESS
from docsite.tables import NOTE, code, paragraph, plain, table

STRATEGY_NAMES = [cls.__name__ for cls in STRATEGIES.values()]
PACKAGE = "batchbalance"
# Title, module and names; a module's own list of public names, if no names are given.
GROUPS: list[tuple[str, str, list[str] | None]] = [
    ("Choosing a batch", PACKAGE, ["select", "Selection", "Predictions", "Cover", "evaluate_batch", "BatchEvaluation",
                                    "token_weights"]),
    ("Learning and labelling", PACKAGE, ["Learner", "Project"]),
    ("Batches of a project", "batchbalance.project", ["Batch"]),
    ("Strategies", PACKAGE, ["STRATEGIES", "Strategy", *STRATEGY_NAMES]),
    ("Strategies of your own", "batchbalance.strategies", ["Pool", "Choice", "auto_strategy", "strategy_named"]),
    ("Posteriors", "batchbalance.posteriors", None),
    ("Training", "batchbalance.posteriors.training", ["Recipe", "fit", "TrainedNetwork", "KeptWeights"]),
    ("Encoders", "batchbalance.encoders", None),
    ("Scores", "batchbalance.scores", None),
    (
        "Edges and the closed form",
        PACKAGE,
        ["connect", "Edges", "annealed_threshold", "hamming_distances", "balance_scores", "joint_balance",
         "information"],
    ),
    ("Ray", "batchbalance.cluster", ["RayExecutor"]),
    ("Other labelling tools", "batchbalance.project.bridge", None),
    ("Data of comparisons", "batchbalance.lab.data", None),
    ("Records of runs", "batchbalance.lab.records", ["read_runs"]),
    ("Reports", "batchbalance.lab.report", None),
    (
        "Errors",
        PACKAGE,
        ["BatchBalanceError", "DrawMismatchError", "FileFormatError", "MissingExtraError", "NothingLeftError",
         "UnknownNameError"],
    ),
]  # fmt: skip


def names_page() -> str:
    """The page as Markdown."""
    return "\n\n".join(_parts()) + "\n"


def _parts() -> Iterator[str]:
    yield NOTE
    yield "# Python API"
    yield paragraph(
        f"Every public name, by what it is for. [The site]({ADDRESS}reference/api/) adds signatures, arguments and "
        "methods, from the docstrings."
    )
    for title, module, names in GROUPS:
        listed = public_names(module) if names is None else names
        yield f"## {title}"
        yield f"From `{module}`:"
        yield table(["name", "what"], ([code(name), summary(getattr(import_module(module), name))] for name in listed))
        for name in listed:
            if is_documented(getattr(import_module(module), name)):
                yield directive(f"{module}.{name}", getattr(import_module(module), name))


def directive(path: str, value: Any) -> str:
    """What mkdocstrings reads. Strategies are their options; what other classes inherit is shown with them."""
    if any(value is each for each in STRATEGIES.values()):
        return f"::: {path}\n    options:\n      members: []"
    has_parents = inspect.isclass(value) and any(parent.__module__.startswith(PACKAGE) for parent in value.__mro__[1:])
    return f"::: {path}\n    options:\n      inherited_members: true" if has_parents else f"::: {path}"


def public_names(module: str) -> list[str]:
    """What a module lists as public, else the functions and classes that are defined in it."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return sorted(found.__all__, key=lambda name: (name.isupper(), name.lower()))
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module and inspect.isfunction(value)
    ]


def is_documented(value: Any) -> bool:
    """Whether there is a docstring of its own: constants and aliases of types have none."""
    return inspect.isclass(value) or inspect.isfunction(value)


def summary(value: Any) -> str:
    """The first sentence of the docstring; what a constant is."""
    if is_documented(value):
        return plain(inspect.cleandoc(value.__doc__ or "").split("\n\n")[0])
    return f"A {type(value).__name__} of {len(value)} names." if hasattr(value, "__len__") else "A type."


def undocumented() -> set[str]:
    """Public names of the package that no group has."""
    return set(batchbalance.__all__) - {
        name for _, module, names in GROUPS if module == PACKAGE for name in names or ()
    }
