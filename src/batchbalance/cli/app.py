"""Shared parts of all commands: the application, the two consoles, and error reporting."""

import gc
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand
from typer.models import OptionInfo

from batchbalance import __version__
from batchbalance.errors import is_out_of_memory, sentence

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Which of my unlabelled examples should I have labelled next?",
)  # fmt: skip
out = Console()
err = Console(stderr=True)


RAY_ALONE = "any"  # the value of --ray if none is given

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: host:port, auto to find one, local to start one; no value finds or starts one.",
    ),
]


class RayCommand(TyperCommand):
    """A command whose option --ray may have no value: at the end, or before another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put a value after a --ray that has none."""
        given: list[str] = []
        for word, following in zip(args, [*args[1:], "--"], strict=True):
            given += [word, RAY_ALONE] if word == "--ray" and following.startswith("-") else [word]
        return super().parse_args(ctx, given)


@contextmanager
def reported_errors(command: Callable[..., None] | None = None) -> Iterator[None]:
    """Turn a user's mistake into one line on standard error and exit code 2.

    In messages, arguments of the library are written as options of `command`. A command whose settings come from a
    file, where they have the library's names, passes None.
    """
    options = options_of(command) if command else {}
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_rest, **_more: complain("warning", message)
        try:
            yield
        except KeyboardInterrupt:
            complain("stopped", "nothing was written")
            raise typer.Exit(130) from None
        except RecursionError as error:
            complain("error", "the input is nested too deeply; flatten it")
            raise typer.Exit(2) from error
        except (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            complain("error", as_options(sentence(error), options))
            raise typer.Exit(2) from error


def options_of(command: Callable[..., None]) -> dict[str, str]:
    """Return a command's options by parameter name, such as {"batch_size": "--batch-size"}."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                given = [str(each) for each in (option.default, *(option.param_decls or ())) if str(each)[:1] == "-"]
                spelled = [each for each in given if each.startswith("--")] or given
                found[name] = spelled[0] if spelled else f"--{name.replace('_', '-')}"
    return found


def as_options(message: str, options: Mapping[str, str]) -> str:
    """Replace `values` by --values in a message, and so on for each option of a command."""
    for name, option in options.items():
        message = message.replace(f"{option} (`{name}=True`)", option).replace(f"`{name}=True`", option)
        message = re.sub(rf"`{name}='?([\w.-]+)'?`", rf"{option} \1", message).replace(f"`{name}`", option)
    return re.sub(r"use `from_\w+` or ", "use ", message) if options else message


def imports_done() -> None:
    """Turn garbage collection on again after a command's imports, if `main` turned it off.

    Imported objects live until the end, so they are excluded from all collections, including the one at exit.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def complain(kind: str, message: object) -> None:
    """Print one line on standard error."""
    err.print(Text(f"{kind}: {message}"), soft_wrap=True)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Which of my unlabelled examples should I have labelled next?"""
    if version:
        out.print(f"batchbalance {__version__}")
        raise typer.Exit
