"""What a browser would find wrong with the built site: links and pictures that lead nowhere, and other hosts."""

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docsite import REPOSITORY, ROOT

# What a page fetches by itself, as opposed to links that a person follows.
FETCHED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}
LINKS = {"canonical", "prev", "next", "alternate", "edit"}  # of <link rel=…>: nothing is fetched


class Page(HTMLParser):
    """The links, fetched files and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag points to."""
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        for key, value in given.items():
            if (tag, key) in FETCHED and not LINKS & set(given.get("rel", "").split()):
                self.fetched.append(value)
            elif (tag, key) == ("a", "href"):
                self.links.append(value)


@cache
def read(path: Path) -> Page:
    """A page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def mistakes(site: Path) -> list[str]:
    """One line for each link or picture that leads nowhere, and for each file that another host would serve."""
    read.cache_clear()
    return [
        f"{path.relative_to(site)}: {text}"
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"  # its links start at the address of the site
        for text in _mistakes_of(path, site)
    ]


def _mistakes_of(path: Path, site: Path) -> Iterator[str]:
    page = read(path)
    for target in page.fetched:
        if urlsplit(target).netloc:
            yield f"{target} is fetched from another host"
        elif not target.startswith("data:") and not _file_of(target, path, site).is_file():
            yield f"{target} is not there"
    for target in page.links:
        parts = urlsplit(target)
        if target.startswith(f"{REPOSITORY}/"):
            if not in_repository(target):
                yield f"{target} is not in the repository"
        elif not parts.scheme and not parts.netloc:
            linked = _file_of(target, path, site)
            if not linked.is_file():
                yield f"{target} leads nowhere"
            elif parts.fragment and linked.suffix == ".html" and unquote(parts.fragment) not in read(linked).anchors:
                yield f"{target} names no part of that page"


def _file_of(target: str, path: Path, site: Path) -> Path:
    """The file that a relative address stands for."""
    name = unquote(urlsplit(target).path)
    found = (site / name.lstrip("/") if name.startswith("/") else path.parent / name).resolve() if name else path
    return found / "index.html" if found.is_dir() else found


def in_repository(url: str) -> bool:
    """Whether a full address of a file or folder on GitHub is there; other pages of the repository are taken to be."""
    kind, _, rest = url.removeprefix(f"{REPOSITORY}/").partition("/")
    if kind not in ("blob", "tree", "edit", "raw"):
        return True
    branch, _, path = unquote(urlsplit(rest).path).partition("/")
    return branch == "main" and (ROOT / path).exists()
