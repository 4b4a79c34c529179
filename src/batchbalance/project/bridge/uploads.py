"""Image files on a Label Studio server: uploaded once, found again by their names."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchbalance.project.bridge.client import InterruptedRequestError, Server
from batchbalance.project.bridge.shapes import Upload

MOST_FILES = 100  # of one request; the server takes no more
MOST_BYTES = 50_000_000


class Uploads:
    """The files of a project there.

    Args:
        server: the server.
        project: the number of the project there.
        root: the folder that files are in here.
    """

    def __init__(self, server: Server, project: int, root: Path | None) -> None:
        self._server, self._project, self._root = server, project, root
        self._places: dict[str, str] | None = None

    def need(self, contents: Sequence[str]) -> None:
        """Upload the files that are not there yet."""
        missing = [each for each in contents if _name(each) not in self._there()]
        while missing:
            for part in self._parts(missing):
                try:
                    self._server.upload(f"/api/projects/{self._project}/import", part, commit_to_project="false")
                except InterruptedRequestError:
                    self._server.wait()
            self._places, before = None, len(missing)
            missing = [each for each in missing if _name(each) not in self._there()]
            if len(missing) == before:
                raise ValueError(f"{self._server.url} must keep files that are uploaded, got none of {before} there")

    def address(self, path: Path) -> str:
        """Return where a file is on the server."""
        inner = path.relative_to(self._root).as_posix() if self._root is not None else path.name
        return f"/data/{self._there()[_name(inner)]}"

    def _there(self) -> dict[str, str]:
        """Return where files are, by our names for them. The server puts letters of its own and a dash before each."""
        if self._places is None:
            path = f"/api/projects/{self._project}/file-uploads"
            found = self._server.understood(self._server.get(path, all="true"), list[Upload], path)
            places = [each["file"] for each in found]
            self._places = {place.rpartition("/")[2].partition("-")[2]: place for place in places}
        return self._places

    def _parts(self, contents: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
        """Yield files, as many as one request takes."""
        part: list[tuple[str, bytes]] = []
        for each in contents:
            content = (self._root / each if self._root is not None else Path(each)).read_bytes()
            if part and (len(part) == MOST_FILES or sum(len(x) for _, x in part) + len(content) > MOST_BYTES):
                yield part
                part = []
            part.append((_name(each), content))
        if part:
            yield part


def _name(content: str) -> str:
    """Return our name for a file there: safe, and the same for the same item."""
    return hashlib.sha256(content.encode()).hexdigest()[:24] + Path(content).suffix.lower()
