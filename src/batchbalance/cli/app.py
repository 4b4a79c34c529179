"""What all commands share: the application, the two consoles, and how mistakes are reported."""

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


RAY_ALONE = "any"  # what --ray means without a value

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: host:port, auto to find one, local to start one; alone: found or else started.",
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
def reported_errors(command: Callable[..., None] | None = None) -> Iterator[None]:
    """Turn a user's mistake into one line on standard error and exit code 2.

    In messages, arguments of the library are spelled as options of `command`. A command whose settings come from a
    file, where they have the names of the library, gives none.
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
            complain("error", "what was given is nested too deeply; flatten it")
            raise typer.Exit(2) from error
        except (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            complain("error", as_options(sentence(error), options))
            raise typer.Exit(2) from error


def options_of(command: Callable[..., None]) -> dict[str, str]:
    """The options of a command by the names of its parameters, as {"batch_size": "--batch-size"}."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                given = [str(each) for each in (option.default, *(option.param_decls or ())) if str(each)[:1] == "-"]
                spelled = [each for each in given if each.startswith("--")] or given
                found[name] = spelled[0] if spelled else f"--{name.replace('_', '-')}"
    return found


def as_options(message: str, options: Mapping[str, str]) -> str:
    """A message with `values` as --values, and so on for each option of a command."""
    for name, option in options.items():
        message = message.replace(f"{option} (`{name}=True`)", option).replace(f"`{name}=True`", option)
        message = re.sub(rf"`{name}='?([\w.-]+)'?`", rf"{option} \1", message).replace(f"`{name}`", option)
    return re.sub(r"use `from_\w+` or ", "use ", message) if options else message


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
