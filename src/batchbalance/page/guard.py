"""Who may speak to the server: the right Host, the right Origin, and a token that names a person.

The address with ``?token=…`` serves the page itself and sets a cookie. A redirect would lose it: a Strict cookie does
not follow one that began on another site, such as webmail. The script then takes the token out of the address.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECRET_FILE = ".page-secret"
SECRET_BYTES = 32
COOKIE_SECONDS = 30 * 24 * 3600
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFE_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NO_TOKEN = "This page needs its token: open the address that `batchbalance label` printed."


def kept_secret(folder: Path) -> bytes:
    """The secret of a project, made at the first start; only its owner can read the file.

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
    """The token of a person: the same at every start, and of no use to another person."""
    named = b"nobody" if who is None else b"person:" + who.encode()
    return hmac.new(secret, named, hashlib.sha256).hexdigest()


def cookie_name(project: str, port: int) -> str:
    """A name with project and port in it, since a browser sends cookies to all ports of a host."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", project).strip("-") or "project"
    mark = hashlib.sha256(project.encode()).hexdigest()[:8]
    return f"batchbalance-{plain[:40]}-{mark}-{port}"


def host_of(value: str) -> str | None:
    """The name in a Host header, without its port, in lower case; None if it is not a plain host and port."""
    try:
        parts = urlsplit(f"//{value}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != value or "@" in value or parts.hostname is None:
        return None
    return parts.hostname.lower().removesuffix(".")


class Guard:
    """Lets requests through that are meant for this server and come from a known person; adds headers to all answers.

    The name of the person goes into ``scope["state"]["who"]``.

    Args:
        app: what to guard.
        tokens: the person of each token; None for somebody without a name.
        hosts: names and addresses that this server goes by.
        cookie: the name of the cookie.
        is_secure: whether it is served by TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Mapping[str, str | None],
        hosts: Sequence[str],
        cookie: str,
        is_secure: bool = False,
    ) -> None:
        self._app, self._tokens, self._cookie, self._is_secure = app, tokens, cookie, is_secure
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        new_cookie: list[str] = []

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                for each in new_cookie:
                    headers.append("set-cookie", each)
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        token = None if refusal else self._token(scope, headers)
        if refusal or token is None:
            await PlainTextResponse(refusal or NO_TOKEN, 403)(scope, receive, guarded_send)
            return
        if scope["path"] == "/":
            new_cookie.append(self._set_cookie(token))
        scope.setdefault("state", {})["who"] = self._tokens[token]
        await self._app(scope, receive, guarded_send)

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        host = headers.get("host", "")
        name = host_of(host)
        if name is None or name not in self._hosts:
            return "This server does not go by that name; `batchbalance label --allow-host` lists others."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "This request comes from another site."
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] != "GET":
            return "This request comes from another site."
        is_json = headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
        if scope["method"] not in ("GET", "HEAD") and not is_json:
            return "A request that changes something must be JSON."
        return None

    def _token(self, scope: Scope, headers: Headers) -> str | None:
        """The token that the address or the cookie holds, if it is one of ours."""
        given = [QueryParams(scope["query_string"]).get("token", "")] if scope["path"] == "/" else []
        pairs = [each.strip().partition("=") for each in headers.get("cookie", "").split(";")]
        given += [value for name, _, value in pairs if name == self._cookie]
        for each in given:
            for known in self._tokens:
                if hmac.compare_digest(each.encode(), known.encode()):
                    return known
        return None

    def _set_cookie(self, token: str) -> str:
        secure = "; Secure" if self._is_secure else ""
        return f"{self._cookie}={token}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict{secure}"
