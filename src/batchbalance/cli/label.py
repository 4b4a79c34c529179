"""`batchbalance label`."""

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from batchbalance.cli.app import app, complain, imports_done, out, reported_errors

if TYPE_CHECKING:
    from batchbalance.project.page.serving import Serving


@app.command("label")
def label_command(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")] = 8420,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    annotators: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="People who label; each gets a personal link.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another accepted host name of this server, such as that of a proxy.")
    ] = None,
    certfile: Annotated[Path | None, typer.Option(help="A TLS certificate, to serve over HTTPS.")] = None,
    keyfile: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    allow_imports: Annotated[
        bool, typer.Option("--allow-imports", help="Import code that project.toml names as package.module:Name.")
    ] = False,
) -> None:
    """Label a project in the browser, with one key per item. Every answer is saved at once; Ctrl-C stops."""
    with reported_errors(label_command):
        from batchbalance.project.page.serving import Serving, checked_people

        for file in (certfile, keyfile):
            if file is not None and not file.is_file():
                raise FileNotFoundError(f"no such file: {file}")
        if keyfile is not None and certfile is None:
            raise ValueError("`keyfile` must be given together with `certfile`")
        names = [name for name in (annotators or "").split(",") if name.strip()]
        if annotators is not None and not names:
            raise ValueError(f"`annotators` must be names separated by commas, got {annotators!r}")
        serving = Serving(host, port, checked_people(names), tuple(allow_host or ()), certfile, keyfile)
        imports_done()
        serve_page(project, serving, no_open=no_open, allow_imports=allow_imports)


def serve_page(project: Path, serving: "Serving", *, no_open: bool, allow_imports: bool = False) -> None:
    """Serve the page of a project until Ctrl-C; print its address, and open it unless `no_open`."""
    from batchbalance.project.page.serving import serve

    def ready(addresses: dict[str | None, str]) -> None:
        if not serving.is_local:
            is_open = serving.certificate is None
            how = ", and its traffic is not encrypted: use --certfile or an SSH tunnel" if is_open else ""
            complain(
                "warning", f"other machines can reach this server{how}; give each link only to the person it is for"
            )
        for who, address in addresses.items():
            if who is not None:
                out.print(Text(f"{who}:"), soft_wrap=True)
            out.print(Text(address), soft_wrap=True)
        if not no_open:
            threading.Timer(0.5, webbrowser.open, [next(iter(addresses.values()))]).start()

    serve(project, serving, ready, allow_imports=allow_imports)
    complain("ended", "every answer is saved; the same command continues")
