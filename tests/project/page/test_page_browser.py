"""Labelling in a real browser: on real projects, and on small ones."""

import threading

import pytest
from PIL import Image

from batchbalance.project import Project
from batchbalance.project.page.chooser import ChoiceProgress
from batchbalance.project.store import ShownItem
from made_projects import FOREST
from page_browser import PATIENCE, Person, Server, served
from page_fakes import INSIGHT, FakeChooser, PageProject

pytestmark = pytest.mark.slow

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 80, 230)}
KEYS = {"red": "1", "green": "2", "blue": "3"}
BEFORE = {"80": "good", "81": "bad <b>", "82": "good", "83": "bad <b>"}
SCRIPT = "<script>window.hit = true</script><img src=x onerror='window.hit = true'>"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A project of 60 small images; their names say what they are."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "files").mkdir()
    for i in range(60):
        name = list(COLOURS)[i % 3]
        shade = tuple(min(255, value + i % 7) for value in COLOURS[name])
        Image.new("RGB", (24, 16 + i % 5), shade).save(folder / "files" / f"{i:02}-{name}.png")
    Project.create(
        folder / "p", images=folder / "files", classes=list(COLOURS), batch_size=8, image_size=32, model=FOREST
    )
    return folder / "p"


@pytest.fixture(scope="module")
def mails(tmp_path_factory):
    """A project of 90 texts, each with a script in it."""
    folder = tmp_path_factory.mktemp("mails")
    lines = [f'"{SCRIPT} {("good fine nice", "bad poor awful")[i % 2]} {i}"' for i in range(90)]
    (folder / "t.csv").write_text("text\n" + "\n".join(lines) + "\n", encoding="utf-8")
    project = Project.create(folder / "p", texts=folder / "t.csv", classes=["good", "bad <b>"], encoder="tfidf",
                             model=FOREST, batch_size=8, audit=0.25, instructions=SCRIPT)  # fmt: skip
    project.tell(BEFORE)  # so that there is a model
    return folder / "p"


@pytest.fixture(scope="module")
def mail_server(parent, mails):
    with Server(parent, mails, "--annotators", "first,second") as server:
        yield server
        assert server.interrupt() == 0


def colour(name):
    return name.split("-")[1].removesuffix(".png")


def test_label_images_undo_skip_flag_correct_reload_and_survive_a_kill(parent, photos, new_context):
    with Server(parent, photos) as server:
        person = Person(new_context(), server.links[0])
        assert "token" not in person.page.url
        expected = {}
        for _ in range(20):
            name = person.press(KEYS[colour(person.item())])
            expected[name] = colour(name)
        store = Project.open(photos)
        assert store.labels == expected

        undone = [person.press("Backspace") and person.item() for _ in range(5)]
        assert undone == list(expected)[:-6:-1]
        assert store.labels == {name: label for name, label in expected.items() if name not in undone}
        for name in reversed(undone):
            assert person.press(KEYS[colour(name)]) == name
        assert store.labels == expected

        skipped = person.press(" ")
        flagged = person.item()
        person.page.keyboard.press("f")
        person.page.keyboard.type("2 of them, f 1 g")  # keys do nothing in a field
        person.press("Enter")
        assert None in store.view(skipped).skipped
        assert [note.text for note in store.view(flagged).flags] == ["2 of them, f 1 g"]
        assert None in store.view(flagged).skipped
        assert store.labels == expected

        person.page.click("#strip button:nth-child(4)")
        corrected = person.item()
        assert "You answered" in person.page.inner_text("#reviewing")
        person.press("3" if expected[corrected] != "blue" else "1")
        expected[corrected] = "blue" if expected[corrected] != "blue" else "red"
        assert store.labels == expected

        following = person.item()
        person.press("ArrowLeft")
        person.press("ArrowLeft")
        person.press("Escape")
        assert person.item() == following
        person.page.reload()
        assert person.item() == following
        person.page.focus("#undo")
        person.press(" ", changes=False)  # a focused button is pressed, nothing is skipped
        person.wait("document.querySelector('#said').textContent === 'Undone.'")
        assert person.item() == following
        expected[corrected] = colour(corrected)
        assert store.labels == expected

        server.kill()
        person.press("1", changes=False)
        person.see("The server does not answer. Your labels so far are safe.")
    with Server(parent, photos, port=server.port) as server:
        person.wait("document.querySelector('#trouble').hidden")
        name = person.press(KEYS[colour(person.item())])
        expected[name] = colour(name)
        assert Project.open(photos).labels == expected
        person.press("Backspace")
        assert person.item() == name
        person.press("Backspace")  # of what was done before the server was killed
        assert person.item() == flagged
        assert [text for text in person.said if "ERR_CONNECTION_REFUSED" not in text] == []
        assert server.interrupt() == 0


def test_two_people_label_texts_at_once_and_never_the_same(mail_server, mails, new_context):
    people = {
        name: Person(new_context(), link) for name, link in zip(["first", "second"], mail_server.links, strict=True)
    }
    done = {name: {} for name in people}
    for turn in range(20):
        for name, person in people.items():
            if name == "second" and turn % 2:
                continue
            text = person.page.inner_text("#stage .text") if person.item() else ""
            assert text.startswith(SCRIPT)
            item = person.press("1" if "good" in text else "2")
            done[name][item] = "good" if "good" in text else "bad <b>"
    assert (len(done["first"]), len(done["second"])) == (20, 10)
    assert not set(done["first"]) & set(done["second"])
    store = Project.open(mails)
    assert store.labels == BEFORE | done["first"] | done["second"]
    for name, items in done.items():
        assert all(list(store.view(item).answers) == [name] for item in items)

    first, second = people.values()
    theirs = second.item()
    assert first.item() != theirs
    assert first.fetch("/api/label", {"item": theirs, "label": "good", "annotator": "second"}) == 403
    assert first.fetch(f"/api/why?item={theirs}") == 403
    assert [first.fetch(f"/image?item={name}") for name in ("../p/project.toml", "..%2Fp", theirs)] == [403, 403, 403]
    assert [first.fetch(path) for path in ("/static/..%2fapp.py", "/../project.toml")] == [404, 404]
    assert first.page.evaluate("[window.hit, document.cookie]") == [None, ""]
    assert SCRIPT in first.page.inner_text("#instructions-body")
    assert store.labels == BEFORE | done["first"] | done["second"]


def test_the_grid_on_a_real_project(mail_server, mails, new_context):
    person = Person(new_context(), mail_server.links[0])
    person.item()
    before = Project.open(mails).labels
    person.page.click("[data-view=grid]")
    person.page.wait_for_selector(".tile", timeout=PATIENCE)
    tiles = person.page.eval_on_selector_all(".tile", "all => all.map((each) => each.dataset.item)")
    store = Project.open(mails)
    assert tiles
    assert not any(store.is_audit(tiles))
    person.wait("document.activeElement.classList.contains('tile')")
    changed = person.page.evaluate("document.activeElement.dataset.item")
    person.page.keyboard.press("1")
    person.page.keyboard.press("2")
    assert person.page.evaluate("document.activeElement.dataset.item") == changed
    accepted = person.page.eval_on_selector_all(".tile.accepted", "all => all.map((each) => each.dataset.item)")
    assert changed in accepted
    person.page.wait_for_timeout(800)  # a new screen ignores Enter for a moment
    person.page.keyboard.press("Enter")
    person.wait(f"""!document.querySelector('.tile[data-item="{changed}"]')""")
    labels = Project.open(mails).labels
    assert set(labels) - set(before) == set(accepted)  # what was not accepted stays open
    assert labels[changed] == "bad <b>"
    assert {who for item in accepted for who in store.view(item).answers} == {"first"}
    person.page.keyboard.press("Backspace")  # one undo takes all of them back
    person.wait(f"""document.querySelector('.tile[data-item="{changed}"]')""")
    assert Project.open(mails).labels == before


def test_two_people_in_one_browser_keep_their_own_tabs(tmp_path, new_context):
    project = PageProject.make(tmp_path, {"Ann": ["a", "b", "c", "d"], "Bob": ["x", "y", "z"]})
    with served(project, FakeChooser(), ["Ann", "Bob"]) as link:
        shared = new_context()
        ann = Person(shared, link)
        ann.press("1")
        bob = Person(shared, link.replace("Ann", "Bob"))
        bob.press("2")
        ann.press("1")
        ann.page.reload()
        ann.see("Ann · 2 today · 3 labels in all")
        ann.press("2")
        bob.press("1")
    assert [each[1::2] for each in project.log] == [
        ("a", "Ann"),
        ("x", "Bob"),
        ("b", "Ann"),
        ("c", "Ann"),
        ("y", "Bob"),
    ]


def test_nobody_gets_in_without_a_token(mail_server, new_context):
    page = new_context().new_page()
    answer = page.goto(mail_server.links[0].partition("?")[0])
    assert answer.status == 403
    assert "needs its token" in page.inner_text("body")


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits(mail_server, new_context, check_access, scheme, width):
    person = Person(new_context(width, 800, scheme), mail_server.links[1])
    person.item()

    def check():
        check_access(person.page)

    person.page.keyboard.press("w")
    person.wait("document.querySelector('.sentence')")
    check()
    for key in ("h", "f"):
        person.page.keyboard.press(key)
        person.wait("document.querySelector('dialog[open]')")
        check()
        person.page.keyboard.press("Escape")
        person.wait("!document.querySelector('dialog[open]')")
    person.page.click("[data-view=grid]")
    person.wait("document.querySelector('#grid-view').childElementCount")
    check()
    for view, sight in {"progress": ".rules", "review": "#review-view .notice, .review-detail"}.items():
        person.page.click(f"[data-view={view}]")
        person.page.wait_for_selector(sight, timeout=PATIENCE)
        check()
    person.page.click("[data-view=search]")
    person.page.fill("#search-text", "fine")
    person.page.keyboard.press("Enter")
    person.page.wait_for_selector(".found .tile", timeout=PATIENCE)
    check()
    person.page.keyboard.press("Enter")
    person.wait("document.querySelector('dialog[open]')")
    check()
    person.page.keyboard.press("Escape")
    person.page.click("[data-view=map]")
    person.page.wait_for_selector(".map-list li", timeout=PATIENCE)
    check()


@pytest.fixture
def project(tmp_path):
    """Images, a text from right to left, a row, a bare item; twelve classes."""
    Image.new("RGB", (60, 30), "teal").save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    made = PageProject.make(
        tmp_path, {None: []}, tmp_path, ["a.png", "broken.png"], others=["rtl", "row", "bare", "long"],
        classes=[f"class {i}" for i in range(1, 12)] + ["twelfth"],
    )  # fmt: skip
    made.items["rtl"] = ShownItem("rtl", "שלום עולם 😀 hello")
    made.items["row"] = ShownItem("row", fields=(("size", "3"), ("<b>", "")))
    made.items["bare"] = ShownItem("bare")
    made.items["long"] = ShownItem("long", "A long text. " * 500)
    return made


def test_all_kinds_of_items_and_many_classes(project, new_context):
    project.give(None, ["a.png", "broken.png", "rtl", "row", "bare"])
    with served(project, FakeChooser()) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        size = (
            "(() => { const box = document.querySelector('.frame img').getBoundingClientRect(); return box.width; })()"
        )
        assert page.evaluate(size) == 256  # a small image is not blown up
        page.click("text=Fill")  # unless asked
        person.wait(f"{size} > 400")
        fitted = page.evaluate(size)
        page.keyboard.press("+")
        assert page.evaluate(size) == pytest.approx(1.3 * fitted, abs=0.5)
        page.set_viewport_size({"width": 900, "height": 700})
        person.wait(f"{size} < {1.25 * fitted}")  # still zoomed, within less room
        page.set_viewport_size({"width": 1200, "height": 800})
        person.wait(f"Math.abs({size} - {1.3 * fitted}) < 1")
        page.mouse.move(400, 300)
        page.mouse.wheel(0, -300)
        person.wait(f"{size} > {1.35 * fitted}")

        page.keyboard.press("/")
        page.keyboard.type("twel")
        person.press("Enter")
        person.see("This image does not load")
        page.keyboard.press("Escape")
        person.press("0")
        assert page.evaluate("getComputedStyle(document.querySelector('.text')).direction") == "rtl"
        page.keyboard.press("g")
        person.see("The model would say")
        person.press("2")
        assert page.locator("#stage th, #stage td").all_inner_texts() == ["size", "3", "<b>", "–"]
        person.press(" ")
        person.see("embeddings only")
        page.click("#classes button:nth-child(3)")
        person.wait("document.activeElement.id === 'stage'")  # so that Space skips, and does not press it again
        person.see("All done")
        assert [each[:3] for each in project.log] == [
            ("labelled", "a.png", "twelfth"), ("labelled", "broken.png", "class 10"), ("labelled", "rtl", "class 2"),
            ("skipped", "row", None), ("labelled", "bare", "class 3"),
        ]  # fmt: skip
        page.keyboard.press("Tab")
        person.wait("document.activeElement.textContent === 'Ask me again what I skipped (1)'")
        page.wait_for_timeout(1000)  # the page looks again meanwhile, and the focus stays
        page.keyboard.press("Enter")
        assert person.item() == "row"
        page.keyboard.press("ArrowLeft")
        person.wait("document.querySelector('#stage').dataset.item === 'bare'")
        page.keyboard.press("f")
        person.wait("document.querySelector('dialog[open]')")
        assert page.locator("#flag-dialog button:visible").all_inner_texts() == ["Flag", "Cancel"]
        page.keyboard.type("odd")
        page.keyboard.press("Enter")
        person.wait("!document.querySelector('dialog[open]')")
        person.wait("document.querySelector('#said').textContent === 'Flagged.'")
        assert project.log[-1] == ("flagged", "bare", "odd", None)
        assert "bare" not in project.open_questions(None)
        page.click("[data-view=progress]")
        page.focus("[data-view=label]")
        page.keyboard.press("Enter")
        person.wait("document.activeElement.id === 'stage'")
        page.keyboard.press(" ")  # skips, and does not press the button of the view
        person.see("All done")


def test_everything_can_be_seen_by_keyboard_alone(project, new_context):
    Image.new("RGB", (400, 300), "teal").save(project.embeddings.roots[0] / "a.png")
    project.give(None, ["a.png", "long"])
    with served(project, FakeChooser()) as link:
        person = Person(new_context(1200, 600), link)
        page = person.page
        person.item()
        place = "['left', 'top'].map((side) => parseFloat(document.querySelector('.frame img').style[side]))"
        for _ in range(4):
            page.keyboard.press("+")
        left, top = page.evaluate(place)
        for key in ("ArrowDown", "Shift+ArrowRight"):
            page.keyboard.press(key)
        assert page.evaluate(place) == pytest.approx([left - 80, top - 80], abs=1)
        for key in ("ArrowUp", "Shift+ArrowLeft"):
            page.keyboard.press(key)
        assert page.evaluate(place) == pytest.approx([left, top], abs=1)
        assert person.item() == "a.png"

        page.keyboard.press("w")  # in a drawer below the item, whatever the classes take
        person.wait("document.querySelector('.sentence')")
        person.wait("document.querySelector('#why summary').getBoundingClientRect().top >= 0")
        person.wait("document.querySelector('.sentence').getBoundingClientRect().bottom <= innerHeight")

        person.press("1")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.querySelector('#stage .page').scrollTop") == 80
        assert person.item() == "long"


def test_the_grid_tells_of_trouble_and_waits_for_the_next_batch(project, new_context):
    project.give(None, ["rtl", "row"])
    chooser = FakeChooser(INSIGHT | {"guess": "class 1"})
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.click("[data-view=grid]")
        page.wait_for_selector(".tile")
        page.route("**/api/confirm*", lambda route: route.abort())
        page.keyboard.press("ArrowRight")
        page.keyboard.press("3")  # changed by hand, and kept while the server is away
        page.wait_for_timeout(800)
        page.keyboard.press("Enter")
        person.see("The server does not answer.")
        assert project.log == []
        assert page.locator("text=changed").count() == 1
        page.unroute("**/api/confirm*")
        person.wait("document.querySelector('#trouble').hidden")

        project.give_back(["row"])  # meanwhile
        page.keyboard.press("Enter")
        person.see("You cannot answer this item")
        person.wait("document.querySelectorAll('.tile').length === 1")
        chooser.now = ChoiceProgress("Choosing what to ask next")
        page.wait_for_timeout(800)
        page.keyboard.press("Enter")
        person.see("The model is still thinking about the next items.")
        assert [each[:2] for each in project.log] == [("labelled", "rtl")]
        chooser.now = ChoiceProgress()
        project.give(None, ["bare"])
        page.wait_for_selector(".tile[data-item=bare]")


class SlowChooser(FakeChooser):
    """Chooses when it is told to."""

    def __init__(self, project):
        super().__init__()
        self.now, self._project = ChoiceProgress("Looking at the items for the first time", 3, 12), project
        self.go = threading.Event()

    def choosing(self, _who):
        if self.go.is_set() and not self._project.log:
            if not self._project.open_questions():
                self._project.give(None, ["rtl"])
            self.now = ChoiceProgress()
        return self.now

    def try_again(self):
        self.now = ChoiceProgress("Choosing what to ask next")


def test_waiting_says_what_is_done_and_trouble_can_be_tried_again(project, new_context):
    chooser = SlowChooser(project)
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        person.see("Looking at the items for the first time")
        assert person.page.get_attribute("progress", "max") == "12"
        assert person.page.evaluate("document.querySelector('progress').value") == 3
        chooser.now = ChoiceProgress(trouble="There is not enough memory.")
        person.see("There is not enough memory.")
        person.page.click("text=Try again")
        person.see("Choosing what to ask next")
        chooser.go.set()
        assert person.item() == "rtl"
