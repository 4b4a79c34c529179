"""`batchbalance labelstudio`: label a project's items in Label Studio."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchbalance.cli.app import app, complain, reported_errors
from batchbalance.cli.project import Folder, Imports, opened, say, tell_notes

if TYPE_CHECKING:
    from batchbalance.project import Project
    from batchbalance.project.bridge import Link
    from batchbalance.project.bridge.client import Server

TOKEN = "LABEL_STUDIO_API_KEY"  # the name that Label Studio's own tools use
UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}

labelstudio = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None,
    help="Label a project's items in Label Studio: link the project once, then push, pull or sync. "
    f"The token is read from the environment variable {TOKEN}, or prompted for; it is never written to a file.",
)  # fmt: skip
app.add_typer(labelstudio, name="labelstudio")

Guesses = Annotated[
    bool, typer.Option("--guesses", help="Show the model's prediction for each item, except for audit items.")
]


@labelstudio.command("link")
def link_command(
    folder: Folder,
    url: Annotated[str, typer.Option(help="The address of Label Studio, such as http://127.0.0.1:8080.")],
    project_number: Annotated[
        int | None, typer.Option("--project", help="The project's number there; if omitted, a project is created.")
    ] = None,
) -> None:
    """Link a project to one in Label Studio; its labelling config is checked, or made from the classes."""
    with reported_errors(link_command):
        from batchbalance.project.bridge import link
        from batchbalance.project.bridge.client import Server

        project = opened(folder)
        made, notes = link(project, Server(url, token()), project_number)
        tell_notes(notes)
        say(f"{folder} is linked to {made.url}/projects/{made.project}/")
        say(f"next: batchbalance labelstudio push {folder}")


@labelstudio.command("push")
def push_command(
    folder: Folder,
    n: Annotated[
        int | None, typer.Option("-n", help="How many items; default: those open there, or else the batch size.")
    ] = None,
    guesses: Guesses = False,
    every: Annotated[bool, typer.Option("--all", help="Create tasks for all items, not only for the batch.")] = False,
    allow_imports: Imports = False,
) -> None:
    """Send the next batch to Label Studio, to be labelled in its order. Existing tasks are not created again."""
    with reported_errors(push_command):
        from batchbalance.project.bridge import push

        project, link, server = linked(folder, allow_imports=allow_imports)
        with interruptible():
            pushed = push(project, link, server, n, guesses=guesses, every=every)
        tell_notes(pushed.notes)
        say(f"{len(pushed.ids)} items are to be labelled at {link.url}/projects/{link.project}/")
        say(f"{pushed.created:,} tasks are new; the order is that of {pushed.version!r}")


@labelstudio.command("pull")
def pull_command(folder: Folder) -> None:
    """Import labels, corrections and skips from Label Studio, with annotators and times."""
    with reported_errors(pull_command):
        from batchbalance.project.bridge import pull

        project, link, server = linked(folder)
        with interruptible():
            pulled = pull(project, link, server)
        tell_notes(pulled.notes)
        told = pulled.told
        say(f"{told.labelled:,} labelled, {told.corrected:,} corrected, {told.skipped:,} skipped")
        say(f"{len(project.labels):,} labels in all, {pulled.left:,} open questions there")


@labelstudio.command("sync")
def sync_command(
    folder: Folder,
    every: Annotated[str, typer.Option(help="How often to check, such as 30s, 5min or 1h.")] = "30s",
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after this many batches.")] = None,
    guesses: Guesses = False,
    allow_imports: Imports = False,
) -> None:
    """Keep pulling, and push the next batch whenever one is done. Ctrl-C stops; nothing is lost."""
    with reported_errors(sync_command):
        from batchbalance.project.bridge import sync

        seconds = as_seconds(every)
        project, link, server = linked(folder, allow_imports=allow_imports)
        say(f"syncing with {link.url}/projects/{link.project}/ every {seconds:g} s; Ctrl-C stops")
        with interruptible():
            sync(project, link, server, every=seconds, rounds=rounds, guesses=guesses, say=say)


@labelstudio.command("serve")
def serve_command(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 9090,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name that Label Studio uses for this server.")
    ] = None,
    guesses: Guesses = False,
    allow_imports: Imports = False,
) -> None:
    """Run as an ML backend for Label Studio until Ctrl-C. For most teams, sync is simpler."""
    with reported_errors(serve_command):
        from batchbalance.errors import MissingExtraError
        from batchbalance.project.bridge.backend import Backend, backend_app
        from batchbalance.project.page.serving import Serving, bound_socket, own_names

        try:
            from batchbalance.project.page.connections import run_server
            from batchbalance.project.page.guard import backend_token, kept_secret
        except ImportError as error:
            raise MissingExtraError("an ML backend for Label Studio", "label") from error
        project, link, server = linked(folder, allow_imports=allow_imports)
        backend = Backend(project, link, server, guesses=guesses, say=say)
        serving = Serving(host, port, allowed_hosts=tuple(allow_host or ()))
        secret = backend_token(kept_secret(folder))
        at = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def ready() -> None:
            say(f"an ML backend for {link.url}/projects/{link.project}/ at {at}; Ctrl-C stops")
            say(f"token: {secret}")
            say(
                f"there, in Settings: Model, Connect Model, {at}, Basic Authentication, any user, the token as password"
            )
            say(f"and Webhooks, Add Webhook, {at}/webhook, with the header Authorization: Bearer TOKEN")
            say("on the same machine or network, start Label Studio with ML_BLOCK_LOCAL_IP=false")
            say("and SSRF_PROTECTION_ENABLED=false: otherwise it refuses such addresses")

        with bound_socket(serving) as listening:
            run_server(backend_app(backend, secret, own_names(serving)), serving, listening, ready)


@contextmanager
def interruptible() -> Iterator[None]:
    """Print what was kept if Ctrl-C interrupts an exchange with a server."""
    try:
        yield
    except KeyboardInterrupt:
        complain("stopped", "what is done is kept; the same command continues from there")
        raise typer.Exit(130) from None


def token() -> str:
    """Return the token from the environment, or prompt for it without echo."""
    given = os.environ.get(TOKEN, "")
    if given.strip():
        return given
    if not sys.stdin.isatty():
        raise ValueError(f"a token must be given in the environment variable {TOKEN}; create one in Label Studio")
    return str(typer.prompt("Personal access token of Label Studio", hide_input=True))


def linked(folder: Path, *, allow_imports: bool = False) -> tuple["Project", "Link", "Server"]:
    """Return a project, its link, and the server."""
    from batchbalance.project.bridge import Link
    from batchbalance.project.bridge.client import Server

    project = opened(folder, allow_imports=allow_imports)
    link = Link.of(project)
    return project, link, Server(link.url, token())


def as_seconds(text: str) -> float:
    """Return the seconds of a text such as 30s, 5min or 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", text.strip())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"`every` must be a time such as 30s, 5min or 1h, got {text!r}")
    return float(found[1]) * UNITS[found[2]]
