import os
import stat

import pytest

from batchbalance.page.app import Page, make_app
from batchbalance.page.guard import SECRET_FILE, Guard, cookie_name, host_of, kept_secret, token_of
from page_fakes import Client, FakeChooser, FakeDesk

SECRET = bytes(range(32))
FIRST, SECOND = token_of(SECRET, "first"), token_of(SECRET, "second")
COOKIE = cookie_name("my cats", 8420)
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"


@pytest.fixture
def desk():
    return FakeDesk({"first": ["a", "b"], "second": ["c"]})


@pytest.fixture
def client(desk):
    page = Page(desk, FakeChooser(), ["first", "second"])
    hosts = ["127.0.0.1", "localhost", "::1", "labels.example"]
    return Client(Guard(make_app(page), tokens={FIRST: "first", SECOND: "second"}, hosts=hosts, cookie=COOKIE))


@pytest.fixture
def first(client):
    return client.with_headers(cookie=f"other=1; {COOKIE}={FIRST}; more=2")


def test_the_address_with_a_token_serves_the_page_itself_and_sets_a_strict_cookie(client):
    answer = client.get("/", token=FIRST)
    assert answer.status == 200
    assert answer.text.startswith("<!doctype html>")
    name, *rest = answer.header("set-cookie").split("; ")
    assert name == f"{COOKIE}={FIRST}"
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} < set(rest)
    assert "Secure" not in rest
    assert "my-cats" in COOKIE
    assert COOKIE.endswith("-8420")


def test_the_cookie_is_for_tls_only_where_there_is_tls(desk):
    app = Guard(make_app(Page(desk, FakeChooser(), ["first"])), tokens={FIRST: "first"}, hosts=["127.0.0.1"],
                cookie=COOKIE, is_secure=True)  # fmt: skip
    assert "Secure" in Client(app).get("/", token=FIRST).header("set-cookie").split("; ")


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/situation", "/image", "/nothing"])
def test_nothing_without_a_token(client, path):
    for each in (client, client.with_headers(cookie=f"{COOKIE}=wrong"), client.with_headers(cookie=f"x={FIRST}")):
        answer = each.get(path)
        assert answer.status == 403
        assert answer.all("set-cookie") == []
        assert answer.header("content-security-policy") == POLICY
    assert client.get("/", token="wrong").status == 403
    assert client.get("/", token="").status == 403


def test_a_token_in_the_address_of_anything_else_does_not_count(client):
    assert client.get("/api/situation", token=FIRST).status == 403


def test_the_cookie_is_enough_for_everything(first):
    assert first.get("/").status == 200
    assert first.get("/static/style.css").status == 200
    assert first.get("/api/facts").json["annotator"] == "first"
    assert first.get("/api/situation").json["queue"][0]["id"] == "a"


def test_every_answer_has_the_headers_that_keep_it_safe(first):
    for path in ("/", "/static/main.js", "/api/facts", "/nothing"):
        answer = first.get(path)
        assert answer.header("content-security-policy") == POLICY
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("referrer-policy") == "no-referrer"
    assert first.get("/api/facts").header("cache-control") == "no-store"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "", "a@127.0.0.1", "127.0.0.1:1/x", "127.0.0.1:x"],
)
def test_a_foreign_host_is_refused_also_with_a_token(first, host):
    assert first.with_headers(host=host).get("/", token=FIRST).status == 403
    assert first.with_headers(host=host).get("/api/facts").status == 403


@pytest.mark.parametrize("host", ["localhost:8420", "LOCALHOST", "[::1]:8420", "127.0.0.1:9000", "labels.example"])
def test_own_names_are_taken_with_any_port(first, host):
    assert first.with_headers(host=host).get("/api/facts").status == 200


def test_the_host_of_a_header():
    assert host_of("[::1]:80") == "::1"
    assert host_of("Example.org.") == "example.org"
    assert host_of("a b") == "a b"  # and no such name is allowed
    assert host_of("x:99999") is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1"])
def test_a_foreign_origin_is_refused(first, desk, origin):
    answer = first.with_headers(origin=origin).post("/api/label", {"item": "a", "label": "cat"})
    assert answer.status == 403
    assert desk.log == []


def test_our_own_origin_is_taken(first, desk):
    own = first.with_headers(origin="http://127.0.0.1:8420", sec_fetch_site="same-origin")
    assert own.post("/api/label", {"item": "a", "label": "cat"}).status == 200
    assert desk.log == [("labelled", "a", "cat", "first")]


def test_a_request_from_another_site_is_refused_where_the_browser_says_so(first, desk):
    assert first.with_headers(sec_fetch_site="cross-site").post("/api/undo", {}).status == 403


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None])
def test_a_post_must_be_json(first, desk, kind):
    answer = first.with_headers(content_type=kind).post("/api/label", {"item": "a", "label": "cat"})
    assert answer.status == 403
    assert desk.log == []


def test_the_person_is_who_the_cookie_says_never_the_body(first, desk):
    body = {"item": "a", "label": "dog", "who": "second", "annotator": "second"}
    assert first.post("/api/label", body).status == 200
    assert desk.log == [("labelled", "a", "dog", "first")]


def test_tokens_differ_by_person_and_by_secret():
    tokens = {token_of(secret, who) for secret in (SECRET, bytes(32)) for who in (None, "first", "second", "nobody")}
    assert len(tokens) == 8
    assert token_of(SECRET, "first") == FIRST


def test_cookie_names_differ_by_project_and_port():
    names = {cookie_name(project, port) for project in ("a b", "a-b", "猫", "犬") for port in (1, 2)}
    assert len(names) == 8
    assert all(name.isascii() and "=" not in name and ";" not in name for name in names)


def test_the_secret_is_kept_and_for_the_owner_only(tmp_path):
    secret = kept_secret(tmp_path)
    assert len(secret) == 32
    assert kept_secret(tmp_path) == secret
    path = tmp_path / SECRET_FILE
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        with pytest.raises(PermissionError, match="owner only, got mode 0640; delete it"):
            kept_secret(tmp_path)
        path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(PermissionError, match="must hold 32 bytes, got 5"):
        kept_secret(tmp_path)
