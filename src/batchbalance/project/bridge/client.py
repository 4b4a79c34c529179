"""A client for Label Studio's REST API: tokens, retries while a server restarts, and one-line errors."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from batchbalance.errors import MissingExtraError

if TYPE_CHECKING:
    import requests

PATIENCE = 300.0  # seconds to wait for a server that does not answer
LONGEST_PAUSE = 10.0
TIMEOUT = (10.0, 120.0)  # seconds to connect, and to wait for an answer
PAGE = 500  # tasks in one response
FIELDS = "id,data,predictions,annotations,result,completed_by,was_cancelled,updated_at,lead_time"  # also of annotations
AWAY = (502, 503, 504)  # what a proxy returns while the server behind it restarts


class InterruptedRequestError(ConnectionError):
    """The server stopped answering during a request that is not safe to repeat; its outcome is unknown."""


class NotThereError(ValueError):
    """The server has nothing at the requested address."""


class Server:
    """A Label Studio server.

    Args:
        url: its address, such as "http://127.0.0.1:8080".
        token: a personal access token, or a legacy token if the server allows these.
        patience: seconds to wait while it does not answer.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, url: str, token: str, *, patience: float = PATIENCE, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.username is not None:
            raise ValueError(f"`url` must be an address such as http://127.0.0.1:8080, without a password, got {url!r}")
        if not token.strip():
            raise ValueError("a token must be given; create one in Label Studio, Account & Settings")
        self.url = url.rstrip("/")
        self._token, self._patience, self._sleep = token.strip(), patience, sleep
        try:
            import requests
        except ImportError as error:
            raise MissingExtraError("a Label Studio server", "label") from error
        self._session = requests.Session()
        self._is_legacy = self._token.count(".") != 2  # a personal access token is a JSON Web Token
        self._access = ""

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def get(self, path: str, **params: Any) -> Any:
        """Return the content at a path; retry while the server does not answer."""
        return self._patiently("GET", path, params=params)

    def patch(self, path: str, values: Mapping[str, Any]) -> Any:
        """Send a PATCH request; retry while the server does not answer."""
        return self._patiently("PATCH", path, json=values)

    def post(self, path: str, values: Any, **params: Any) -> Any:
        """Send a POST request.

        Raises:
            InterruptedRequestError: if the server stopped answering; wait for it, then check what was created.
        """
        return self._once("POST", path, json=values, params=params)

    def upload(self, path: str, files: Sequence[tuple[str, bytes]], **params: Any) -> Any:
        """Upload files, which must have distinct names."""
        return self._once("POST", path, files={name: (name, content) for name, content in files}, params=params)

    def wait(self) -> None:
        """Wait until the server answers."""
        self.get("/api/version")

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Read the content of a response, which must have the expected shape.

        Raises:
            ValueError: if it does not have that shape.
        """
        try:
            yield
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise self._strange(path) from error

    def tasks(self, project: int) -> Iterator[dict[str, Any]]:
        """Yield all tasks of a project with their annotations and predictions.

        An export is not used, because the server would keep a copy of each.
        """
        seen, page, path = set[int](), 1, "/api/tasks"
        while True:
            content = self.get(path, project=project, fields="all", include=FIELDS, page=page, page_size=PAGE)
            with self.reading(path):
                tasks, total = [_checked_task(each) for each in content["tasks"]], int(content["total"])
            numbers = {task["id"] for task in tasks}
            if numbers and numbers <= seen:  # the server repeats the same page
                raise self._strange(path)
            yield from tasks
            seen, page = seen | numbers, page + 1
            if len(seen) >= total or not numbers:
                return

    def _patiently(self, method: str, path: str, **request: Any) -> Any:
        waited, pause = 0.0, 1.0
        while True:
            try:
                return self._once(method, path, **request)
            except InterruptedRequestError as error:
                if waited >= self._patience:
                    raise ConnectionError(
                        f"no answer from {self.url} in {waited:.0f} s; start it and run this again; nothing is lost"
                    ) from error
                pause = min(pause, LONGEST_PAUSE, self._patience - waited)
                self._sleep(pause)
                waited, pause = waited + pause, 2 * pause

    def _once(self, method: str, path: str, **request: Any) -> Any:
        """Send one request, with a new access token if the last one has expired after five minutes."""
        if not self._access:
            self._authorize()
        response = self._send(method, path, headers={"Authorization": self._access}, **request)
        if response.status_code == 401:
            self._authorize()
            response = self._send(method, path, headers={"Authorization": self._access}, **request)
        return self._content(response, path)

    def _authorize(self) -> None:
        if self._is_legacy:
            self._access = f"Token {self._token}"
            return
        path = "/api/token/refresh/"
        response = self._send("POST", path, json={"refresh": self._token})
        if response.status_code in (400, 401, 403):
            raise self._refused()
        content = self._content(response, path)
        with self.reading(path):
            self._access = f"Bearer {content['access']}"

    def _refused(self) -> PermissionError:
        return PermissionError(
            f"{self.url} refuses the token; create a personal access token there, in Account & Settings, and use it"
        )

    def _send(self, method: str, path: str, **request: Any) -> "requests.Response":
        import requests

        try:
            # Redirects are not followed: the token is for this address only.
            response = self._session.request(
                method, f"{self.url}{path}", timeout=TIMEOUT, allow_redirects=False, **request
            )
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise InterruptedRequestError(f"{self.url} stopped answering; run the command again") from error
        except requests.RequestException as error:
            raise self._strange(path) from error
        if response.status_code in AWAY:
            raise InterruptedRequestError(f"{self.url} is temporarily unavailable ({response.status_code})")
        return response

    def _content(self, response: "requests.Response", path: str) -> Any:
        """Return the content of a response, or raise the corresponding error."""
        status = response.status_code
        if status == 401:
            raise self._refused()
        if 300 <= status < 400:
            raise ValueError(f"`url` must be the address of Label Studio, got {self.url}, which redirects elsewhere")
        try:
            content = response.json() if response.content else None
        except (ValueError, RecursionError) as error:
            raise self._strange(path) from error
        if status == 404:
            raise NotThereError(f"{self.url} has no {path}")
        if status >= 400:
            raise ValueError(f"{self.url}{path} refused ({status}): {_reason(content)}")
        return content

    def _strange(self, path: str) -> ValueError:
        return ValueError(f"{self.url}{path} must answer as Label Studio does, got other content; check the address")


def _checked_task(given: Any) -> dict[str, Any]:
    """Return a task with the types that its readers rely on; raise one of the errors of `reading` for others."""
    annotations = [{**each, "id": int(each["id"]), "result": list(each["result"])} for each in given["annotations"]]
    predictions = [{**each} for each in given["predictions"]]
    made = {"id": int(given["id"]), "data": {**given["data"]}, "annotations": annotations, "predictions": predictions}
    return {**given, **made}


def _reason(content: Any) -> str:
    """Return why Label Studio refused a request, in one line."""
    if not isinstance(content, dict):
        return "no reason given"
    errors = content.get("validation_errors")
    if isinstance(errors, dict):
        pairs = ((name, texts if isinstance(texts, list) else [texts]) for name, texts in errors.items())
        said = "; ".join(f"{name}: {' '.join(map(str, texts))}" for name, texts in pairs)
    else:
        said = str(content.get("detail") or "no reason given")
    line = " ".join(said.split())
    return line if len(line) <= 300 else f"{line[:299]}…"


MOST_FILES = 100  # in one request; the server accepts no more
MOST_BYTES = 50_000_000


class Uploads:
    """The uploaded files of a project in Label Studio.

    Args:
        server: the server.
        project: the number of the project in Label Studio.
        root: the local folder that files are in.
    """

    def __init__(self, server: Server, project: int, root: Path | None) -> None:
        self._server, self._project, self._root = server, project, root
        self._places: dict[str, str] | None = None

    def need(self, contents: Sequence[str]) -> None:
        """Upload the files that are not on the server yet."""
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
        """Return the address of a file on the server."""
        inner = path.relative_to(self._root).as_posix() if self._root is not None else path.name
        return f"/data/{self._there()[_name(inner)]}"

    def _there(self) -> dict[str, str]:
        """Return the addresses of files by our names. The server adds a prefix of letters and a dash."""
        if self._places is None:
            path = f"/api/projects/{self._project}/file-uploads"
            found = self._server.get(path, all="true")
            with self._server.reading(path):
                places = [str(each["file"]) for each in found]
            self._places = {place.rpartition("/")[2].partition("-")[2]: place for place in places}
        return self._places

    def _parts(self, contents: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
        """Yield files in groups that fit into one request."""
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
    """Return a safe name for an uploaded file; the same item always gets the same name."""
    return hashlib.sha256(content.encode()).hexdigest()[:24] + Path(content).suffix.lower()
