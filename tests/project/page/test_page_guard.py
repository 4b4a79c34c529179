import json
import os
import stat

import pytest
from starlette.responses import PlainTextResponse

from batchbalance.project.page.app import make_app
from batchbalance.project.page.guard import (
    MOST_BYTES,
    SECRET_FILE,
    Credentials,
    Guard,
    Sessions,
    backend_token,
    cookie_name,
    host_of,
    kept_secret,
    mark_of,
    token_of,
)
from batchbalance.project.page.page import Page
from page_fakes import Client, FakeChooser, PageProject

SECRET = bytes(range(32))
FIRST, SECOND = token_of(SECRET, "first"), token_of(SECRET, "second")
COOKIE = cookie_name("my cats", 8420)
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"


@pytest.fixture
def project(tmp_path):
    return PageProject.make(tmp_path, {"first": ["a", "b"], "second": ["c"]})


@pytest.fixture
def client(project):
    page = Page(project, FakeChooser(), ["first", "second"])
    hosts = ["127.0.0.1", "localhost", "::1", "labels.example"]
    return Client(Guard(make_app(page), Sessions({FIRST: "first", SECOND: "second"}, COOKIE), hosts))


@pytest.fixture
def first(client):
    return client.with_headers(cookie="other=1; more=2").in_tab_of(FIRST, COOKIE)


def test_the_address_with_a_token_serves_the_page_itself_and_sets_a_strict_cookie(client):
    answer = client.get("/", token=FIRST)
    assert answer.status == 200
    assert answer.text.startswith("<!doctype html>")
    name, *rest = answer.header("set-cookie").split("; ")
    assert name == f"{COOKIE}-{mark_of(FIRST)}={FIRST}"
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} < set(rest)
    assert "Secure" not in rest
    assert "my-cats" in COOKIE
    assert COOKIE.endswith("-8420")


def test_the_cookie_is_for_tls_only_where_there_is_tls(project):
    sessions = Sessions({FIRST: "first"}, COOKIE, is_secure=True)
    app = Guard(make_app(Page(project, FakeChooser(), ["first"])), sessions, ["127.0.0.1"])
    assert "Secure" in Client(app).get("/", token=FIRST).header("set-cookie").split("; ")


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/situation", "/image", "/nothing"])
def test_nothing_without_a_token(client, path):
    wrong = f"{mark_of(FIRST)}-wrong"
    for each in (client, client.in_tab_of(wrong, COOKIE), client.in_tab_of(FIRST, "x"), client.in_tab_of("", COOKIE)):
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
def test_a_foreign_origin_is_refused(first, project, origin):
    answer = first.with_headers(origin=origin).post("/api/label", {"item": "a", "label": "cat"})
    assert answer.status == 403
    assert project.log == []


def test_our_own_origin_is_taken(first, project):
    own = first.with_headers(origin="http://127.0.0.1:8420", sec_fetch_site="same-origin")
    assert own.post("/api/label", {"item": "a", "label": "cat"}).status == 200
    assert project.log == [("labelled", "a", "cat", "first")]


@pytest.mark.parametrize("origin", ["http://[::1", "http://[::g]", "http://[", "http://a\xaa]"])
def test_an_origin_that_is_no_address_is_a_bad_request(first, project, origin):
    answer = first.with_headers(origin=origin).post("/api/label", {"item": "a", "label": "cat"})
    assert answer.status == 400
    assert project.log == []


def test_people_who_share_a_browser_keep_their_tabs(client, project):
    tab = client.in_tab_of(FIRST, COOKIE)
    both = f"{tab.headers['cookie']}; {client.in_tab_of(SECOND, COOKIE).headers['cookie']}"
    tab, other = tab.with_headers(cookie=both), client.in_tab_of(SECOND, COOKIE).with_headers(cookie=both)
    assert tab.get("/api/facts").json["annotator"] == "first"
    assert other.get("/api/facts").json["annotator"] == "second"
    assert tab.post("/api/label", {"item": "a", "label": "cat"}).status == 200
    assert other.post("/api/label", {"item": "c", "label": "dog"}).status == 200
    assert [each[3] for each in project.log] == ["first", "second"]
    assert tab.get("/").status == other.get("/").status == 200  # as after a reload
    nobody = Client(client.app, tab.headers)
    for answer in (nobody.get("/"), nobody.get("/api/facts"), nobody.post("/api/undo", {})):
        assert (answer.status, "Several people use this browser" in answer.text) == (403, True)
    assert nobody.get("/static/main.js").status == 200
    assert len(project.log) == 2


def test_a_link_that_is_none_is_not_taken_for_the_person_whose_cookie_is_there(client, first):
    wrong = f"{mark_of(SECOND)}-{'0' * 64}"
    assert Client(client.app, first.headers).get("/", token=wrong).status == 403
    assert first.get("/api/facts", **{"as": mark_of(SECOND)}).status == 403


def test_the_bare_address_leads_to_the_one_person_of_a_browser(client, first):
    answer = Client(client.app, first.headers).get("/")
    assert (answer.status, answer.header("location")) == (307, f"/?as={mark_of(FIRST)}")


def test_a_request_that_is_too_large_is_refused_before_it_is_read(first, project):
    for length in (MOST_BYTES + 1, 10**40):
        answer = first.with_headers(content_length=str(length)).post("/api/undo", {})
        assert (answer.status, answer.header("connection")) == (413, "close")
    kind = {"content-type": "application/json"}
    answer = first.send("POST", "/api/undo", {}, [b" " * (MOST_BYTES // 4) for _ in range(8)], kind)
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert answer.text == "A request must have at most 1,048,576 bytes."
    assert answer.header("content-security-policy") == POLICY
    small = json.dumps({"item": "a", "label": "cat"}).encode()
    assert first.send("POST", "/api/label", {}, small + b" " * (MOST_BYTES - len(small)), kind).status == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401), ("", 401), ("Bearer wrong", 401), ("Bearer", 401), ("Basic ???", 401), ("Digest t-o", 401),
        ("t-o", 401), ("Basic dC1v", 401), ("Basic dC1vOg==", 401), ("Bearer t-o", 200), ("token t-o", 200),
        ("Basic YW55Ym9keTp0LW8=", 200),
    ],
)  # fmt: skip
def test_credentials_are_a_password_or_a_bearer(header, status):
    async def app(scope, receive, send):
        await PlainTextResponse("in")(scope, receive, send)

    client = Client(Guard(app, Credentials("t-o"), ["127.0.0.1"])).with_headers(authorization=header)
    assert client.post("/webhook", {}).status == status
    assert client.with_headers(origin="http://evil.example").post("/webhook", {}).status == 403
    assert client.with_headers(host="evil.example").get("/health").status == 403


def test_a_request_from_another_site_is_refused_where_the_browser_says_so(first, project):
    assert first.with_headers(sec_fetch_site="cross-site").post("/api/undo", {}).status == 403


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None])
def test_a_post_must_be_json(first, project, kind):
    answer = first.with_headers(content_type=kind).post("/api/label", {"item": "a", "label": "cat"})
    assert answer.status == 403
    assert project.log == []


def test_the_person_is_who_the_cookie_says_never_the_body(first, project):
    body = {"item": "a", "label": "dog", "who": "second", "annotator": "second"}
    assert first.post("/api/label", body).status == 200
    assert project.log == [("labelled", "a", "dog", "first")]


def test_tokens_differ_by_person_and_by_secret():
    names = (None, "first", "second", "nobody", "backend")
    tokens = {token_of(secret, who) for secret in (SECRET, bytes(32)) for who in names}
    tokens |= {backend_token(SECRET), backend_token(bytes(32))}
    assert len(tokens) == len({mark_of(token) for token in tokens}) == 12
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
