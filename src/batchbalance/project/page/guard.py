"""Who may speak to a server of ours: the right Host, the right Origin, a token, and no more bytes than a request needs.

`Guard` checks every request, of the page and of the ML backend for Label Studio alike. Whose request it is, `Sessions`
tell for the page, and `Credentials` for the backend.

The address with ``?token=…`` serves the page itself and sets a cookie. A redirect would lose it: a Strict cookie does
not follow one that began on another site, such as webmail. The script then takes the token out of the address and
leaves ``?as=…``, the mark of the person, which goes with every request of the tab. So people who share a browser have
a cookie and a tab each.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECRET_FILE = ".page-secret"
SECRET_BYTES = 32
COOKIE_SECONDS = 30 * 24 * 3600
MOST_BYTES = 2**20  # of a request
SAFE_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NO_TOKEN = "This page needs its token: open the address that “batchbalance label” printed."
SEVERAL = "Several people use this browser: open your own link again, so that your answers are recorded as yours."
NO_CREDENTIALS = "This server needs the token that `batchbalance labelstudio serve` printed."
OTHER_NAME = "This server does not go by that name; the option --allow-host adds others."
OTHER_SITE = "This request comes from another site."
CLOSE = {"connection": "close"}  # what is left of a refused request is not read


def kept_secret(folder: Path) -> bytes:
    """Return the secret of a project, made at the first start; only its owner can read the file.

    Raises:
        PermissionError: if others can read the file, or it cannot be written.
    """
    path = folder / SECRET_FILE
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_secret(path)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
        file.flush()
        os.fsync(handle)
    return _read_secret(path)


def _read_secret(path: Path) -> bytes:
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        raise PermissionError(
            f"{path} must be readable by its owner only, got mode {mode:04o}; delete it: that ends all sessions "
            "and makes a new one"
        )
    found = path.read_bytes()
    if len(found) != SECRET_BYTES:
        raise PermissionError(f"{path} must hold {SECRET_BYTES} bytes, got {len(found)}; delete it to make a new one")
    return found


def token_of(secret: bytes, who: str | None) -> str:
    """Return the token of a person: their mark and a secret part; the same at every start."""
    return _token(secret, b"nobody" if who is None else b"person:" + who.encode())


def backend_token(secret: bytes) -> str:
    """Return the token of the ML backend; no person's token is like it."""
    return _token(secret, b"backend")


def _token(secret: bytes, named: bytes) -> str:
    mark, rest = (hmac.new(secret, purpose + named, hashlib.sha256).hexdigest() for purpose in (b"mark:", b""))
    return f"{mark[:12]}-{rest}"


def mark_of(token: str) -> str:
    """Return the part of a token that may be seen: it tells people apart, and opens nothing."""
    return token.partition("-")[0]


def cookie_name(project: str, port: int) -> str:
    """Return a name with project and port in it, since a browser sends cookies to all ports of a host."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", project).strip("-") or "project"
    mark = hashlib.sha256(project.encode()).hexdigest()[:8]
    return f"batchbalance-{plain[:40]}-{mark}-{port}"


def host_of(value: str) -> str | None:
    """Return the name in a Host header, without its port, in lower case; None if it is not a plain host and port."""
    try:
        parts = urlsplit(f"//{value}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != value or "@" in value or parts.hostname is None:
        return None
    return parts.hostname.lower().removesuffix(".")


class Refused(Exception):  # noqa: N818
    """A request that is not let through, and why."""

    def __init__(self, why: str, status: int = 403) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Visitor:
    """Somebody who may come in.

    Attributes:
        who: the name of the person; None for somebody without a name.
        cookie: to be set.
        address: where to go instead.
    """

    who: str | None = None
    cookie: str | None = None
    address: str | None = None


class Door(Protocol):
    """Tells whose request it is."""

    def admit(self, scope: Scope, headers: Headers) -> Visitor:
        """Return who sent a request; raise `Refused` if nobody knows."""


class Sessions:
    """People who label, each with a token, a cookie and tabs of their own.

    Args:
        tokens: the person of each token; None for somebody without a name.
        cookie: what names of cookies begin with.
        is_secure: whether the page is served by TLS.
    """

    def __init__(self, tokens: Mapping[str, str | None], cookie: str, *, is_secure: bool = False) -> None:
        self._tokens, self._cookie, self._is_secure = tokens, cookie, is_secure

    def admit(self, scope: Scope, headers: Headers) -> Visitor:
        """Return who sent a request: by the token of the link, else by the tab's mark and the cookie for it."""
        query, path = QueryParams(scope["query_string"]), scope["path"]
        if path == "/" and "token" in query:
            held = [known for known in self._tokens if _is_same(query["token"], known)]
        else:
            held = self._held(headers)
        if "as" in query:
            held = [known for known in held if mark_of(known) == query["as"]]
        if not held:
            raise Refused(NO_TOKEN)
        if path == "/" and len(held) > 1:
            raise Refused(SEVERAL)
        if path == "/":
            is_named = "as" in query or "token" in query
            return Visitor(self._tokens[held[0]], self._set(held[0]), None if is_named else f"/?as={mark_of(held[0])}")
        if "as" not in query and not path.startswith("/static/"):  # those are the same for everybody
            raise Refused(SEVERAL)
        return Visitor(self._tokens[held[0]])

    def _held(self, headers: Headers) -> list[str]:
        """Return the tokens in the cookies of a request that are ours."""
        pairs = [each.strip().partition("=") for each in headers.get("cookie", "").split(";")]
        given = {name: value for name, _, value in pairs}
        names = {known: f"{self._cookie}-{mark_of(known)}" for known in self._tokens}
        return [known for known, name in names.items() if name in given and _is_same(given[name], known)]

    def _set(self, token: str) -> str:
        secure = "; Secure" if self._is_secure else ""
        named = f"{self._cookie}-{mark_of(token)}={token}"
        return f"{named}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict{secure}"


class Credentials:
    """One token in the header Authorization: the password of Basic, or after Bearer or Token.

    Args:
        token: what it must be.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def admit(self, scope: Scope, headers: Headers) -> Visitor:  # noqa: ARG002
        """Let a request with the token in."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode("latin-1").partition(":")[2]
            except ValueError:
                given = ""
        elif scheme.lower() not in ("bearer", "token"):
            given = ""
        if not _is_same(given.strip(), self._token):
            raise Refused(NO_CREDENTIALS, 401)
        return Visitor()


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


class Guard:
    """Lets requests through that are meant for this server and come from a known person; adds headers to all answers.

    The name of the person goes into ``scope["state"]["who"]``. A request that is too large is refused before its body
    is read if it says so, and where the limit is crossed if it does not.

    Args:
        app: what to guard.
        door: tells whose request it is.
        hosts: names and addresses that this server goes by.
        most_bytes: of a request's body.
    """

    def __init__(self, app: ASGIApp, door: Door, hosts: Sequence[str], most_bytes: int = MOST_BYTES) -> None:
        self._app, self._door, self._most_bytes = app, door, most_bytes
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        visitor = Visitor()

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if visitor.cookie is not None:
                    headers.append("set-cookie", visitor.cookie)
            await send(message)

        app = self._app
        try:
            headers = Headers(scope=scope)
            self._check(scope, headers)
            visitor = self._door.admit(scope, headers)
        except Refused as refusal:
            app = PlainTextResponse(str(refusal), refusal.status, CLOSE)
        if visitor.address is not None:
            app = RedirectResponse(visitor.address)
        scope.setdefault("state", {})["who"] = visitor.who
        await app(scope, self._limited(receive), guarded_send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse what is not for this server, what another site sent, and what is not JSON or too large."""
        host = headers.get("host", "")
        if host_of(host) not in self._hosts:
            raise Refused(OTHER_NAME)
        try:
            origin = urlsplit(headers.get("origin", f"//{host}")).netloc.lower()
        except ValueError as error:
            raise Refused("The header Origin must be an address.", 400) from error
        if origin != host.lower():
            raise Refused(OTHER_SITE)
        if scope["method"] in ("GET", "HEAD"):
            return
        if headers.get("sec-fetch-site") == "cross-site":
            raise Refused(OTHER_SITE)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused("A request that changes something must be JSON.")
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > self._most_bytes):
            raise Refused(self._too_large, 413)

    @property
    def _too_large(self) -> str:
        return f"A request must have at most {self._most_bytes:,} bytes."

    def _limited(self, receive: Receive) -> Receive:
        """Receive a body as long as it is not too large."""
        count = 0

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._most_bytes:
                raise HTTPException(413, self._too_large, CLOSE)
            return message

        return counted


async def json_content(request: Request) -> Any:
    """Return what the body of a request holds; the answer is 400 if that is not JSON, or nested too deeply."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "The request must be JSON, and not nested deeply.") from error
