"""What all commands share: the application, the two consoles, and how mistakes are reported."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from batchbalance import __version__

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Which of my unlabelled examples should I have labelled next?",
)  # fmt: skip
out = Console()
err = Console(stderr=True)


RAY_ALONE = "any"  # what --ray means without a value

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Work on a Ray cluster: its host:port, auto to find it, local to start one; alone: found or started.",
    ),
]


class RayCommand(TyperCommand):
    """A command whose option --ray may stand alone: at the end, or before another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a value after a --ray that has none."""
        given: list[str] = []
        for word, following in zip(args, [*args[1:], "--"], strict=True):
            given += [word, RAY_ALONE] if word == "--ray" and following.startswith("-") else [word]
        return super().parse_args(ctx, given)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn a user's mistake into one line on standard error and exit code 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_rest, **_more: complain("warning", message)
        try:
            yield
        except KeyboardInterrupt:
            complain("stopped", "nothing was written")
            raise typer.Exit(130) from None
        except (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError) as error:
            complain("error", str(error) or type(error).__name__)
            raise typer.Exit(2) from error
        except RuntimeError as error:  # torch has no better type for memory that it cannot get
            if "allocate" not in str(error) and "out of memory" not in str(error):
                raise
            complain("error", f"not enough memory: {str(error).splitlines()[0]}")
            raise typer.Exit(2) from error


def imports_done() -> None:
    """To be called by a command after its imports: collect garbage again, if `main` turned that off.

    What has been imported stays to the end. It is left out of all collections, the one at the exit too.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def complain(kind: str, message: object) -> None:
    """One line on standard error."""
    err.print(Text(f"{kind}: {message}"), soft_wrap=True)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Which of my unlabelled examples should I have labelled next?"""
    if version:
        out.print(f"batchbalance {__version__}")
        raise typer.Exit
