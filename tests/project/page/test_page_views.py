"""Every view by keyboard, mouse and touch, on small projects that are served in a thread."""

import numpy as np
import pytest

from batchbalance.project.page.chooser import MAP_FOLDER
from batchbalance.project.page.page import COMPARED
from page_browser import Person, served
from page_fakes import FakeChooser, PageProject

pytestmark = pytest.mark.slow

TEN = [f"class {i}" for i in range(1, 11)]
NAMES = [f"n{i:02}" for i in range(40)]


ENTER_AT_ONCE = """() => new Promise((done) => {
  new MutationObserver((_, watch) => {
    if (!document.querySelector('.tile')) return;
    watch.disconnect();
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
    done();
  }).observe(document.querySelector('#grid-view'), { childList: true });
  document.querySelector('[data-view=grid]').click();
})"""


def project_of(tmp_path, asked=None, classes=("cat", "dog"), **more):
    return PageProject.make(tmp_path, asked or {None: NAMES[:6]}, others=NAMES, classes=classes, **more)


def seen(page, selector):
    """Whether all of these are whole on the screen, and not scrolled out of the column at the side."""
    return page.evaluate(
        """selector => [...document.querySelectorAll(selector)].every((each) => {
          const box = each.getBoundingClientRect();
          const room = each.closest('aside').getBoundingClientRect();
          return box.height > 0 && box.top >= room.top - 1 && box.bottom <= Math.min(room.bottom, innerHeight) + 1;
        })""",
        selector,
    )


def test_ten_classes_and_all_tools_fit_and_stay(tmp_path, new_context):
    project = project_of(tmp_path, classes=TEN)
    with served(project, FakeChooser()) as link:
        person = Person(new_context(1200, 800), link)
        page = person.page
        assert person.item() == "n00"
        assert page.inner_text("#item-place") == "1 of 6"
        assert page.inner_text("#item-name") == "n00"
        assert seen(page, "#classes .class, #tools button")
        page.keyboard.press("w")
        person.wait("document.querySelector('.sentence')")
        assert seen(page, "#classes .class, #tools button")  # the reasons are below the item, not in between
        person.press(" ")
        assert page.inner_text("#item-place") == "2 of 6"
        page.keyboard.press("ArrowLeft")
        person.see("You skipped this one.")
        box = page.locator("#reviewing").bounding_box()
        assert box["y"] + box["height"] <= page.locator("#stage").bounding_box()["y"]  # over the item
        assert page.locator("#strip [aria-current]").count() == 1
        page.keyboard.press("Escape")
        person.wait("document.querySelector('#reviewing').hidden")


def test_the_class_search_forgives(tmp_path, new_context):
    names = ["card_arrival", "card-swallowed", "exchange rate", "Überweisung", *(f"other {i}" for i in range(9))]
    with served(project_of(tmp_path, classes=names), FakeChooser()) as link:
        page = Person(new_context(), link).page
        page.wait_for_selector("#stage[data-item]")
        for typed, wanted in {
            "card arr": "card_arrival", "card_sw": "card-swallowed", "exchagne": "exchange rate",
            "swalowed": "card-swallowed", "uber": "Überweisung",
        }.items():  # fmt: skip
            page.fill("#classes .class-search", typed)
            assert page.locator("#classes .class.first").get_attribute("data-name") == wanted
        page.fill("#classes .class-search", "zebra")
        assert page.locator("#classes .class:visible").count() == 0


def test_one_escape_closes_a_dialog_with_a_search_box(tmp_path, new_context):
    names = [f"class {i}" for i in range(14)]
    chooser = FakeChooser(FakeChooser().found | {"guess": "class 3"})
    with served(project_of(tmp_path, classes=names), chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.click("[data-view=grid]")
        page.locator(".tile").first.click()
        person.wait("document.activeElement.id === 'pick-search'")
        page.keyboard.type("13")
        page.keyboard.press("Escape")  # empties the field
        assert page.evaluate("document.querySelector('#pick-dialog').open")
        page.keyboard.press("Escape")
        person.wait("!document.querySelector('#pick-dialog').open")


def test_the_grid_accepts_what_is_sure_and_one_undo_takes_a_confirmation_back(tmp_path, new_context):
    project = project_of(tmp_path)
    chooser = FakeChooser()
    chooser.insight = lambda name: chooser.found | {"confidence": 0.97 if name < "n03" else 0.4}
    chooser.least = 0.9
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.evaluate(ENTER_AT_ONCE)  # a key that was meant for the screen before
        person.see("Accepted from a confidence of 90 %: there, 40 of 41 guesses on audit labels were right.")
        assert page.locator(".tile.accepted").count() == 3
        page.wait_for_timeout(800)
        assert project.log == []
        page.keyboard.press(" ")  # the first is left open
        assert page.locator(".tile.accepted").count() == 2
        page.keyboard.press("Enter")
        person.wait("document.querySelectorAll('.tile').length === 4")
        assert [each[1] for each in project.log] == ["n01", "n02"]
        page.keyboard.press("Backspace")
        person.see("Undone: 2 labels that were confirmed together.")
        person.wait("document.querySelectorAll('.tile').length === 6")
        assert project.log == []


def test_an_empty_grid_says_why_and_what_to_do(tmp_path, new_context):
    project = project_of(tmp_path, audit=NAMES[:6])
    with served(project, FakeChooser()) as link:
        person = Person(new_context(), link)
        person.item()
        person.page.click("[data-view=grid]")
        person.see("The 6 open items measure the model")
        person.page.click("text=Go to Label")
        assert person.item() == "n00"


def test_review_by_keyboard(tmp_path, new_context, check_access):
    project = project_of(tmp_path, {"Ann": NAMES[:4], "Bob": NAMES[4:8]})
    project.tell(dict.fromkeys(NAMES[:3], "cat"), "Ann")
    project.tell({"n01": "dog"}, "Bob")
    project.flag("n04", "which one?", "Bob")
    chooser = FakeChooser()
    chooser.replies["suspects"] = {"suspects": [["n00", "cat", "dog", 0.93]]}
    with served(project, chooser, ["Ann", "Bob"]) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.keyboard.press("Shift+Digit3")
        person.see("The label “cat” is probably wrong (93 %). A model that has not seen it would say “dog”.")
        check_access(page)
        page.keyboard.press("2")
        person.see("Ann says “cat”, Bob says “dog”.")
        assert project.labels["n00"] == "dog"
        page.keyboard.press("Backspace")
        person.see("3 items to review.")
        assert project.labels["n00"] == "cat"
        page.select_option("[aria-label='Filter by kind']", "flag")
        person.see("Bob flagged it: which one?")
        page.select_option("[aria-label='Filter by kind']", "")
        page.select_option("[aria-label='Filter by person']", "Bob")
        person.see("2 items to review.")
        page.locator(".review-item").focus()
        page.keyboard.press("n")
        person.see("Bob flagged it: which one?")
        page.keyboard.press("k")
        person.see("1 item to review.")
        assert project.view("n04").num_seen == 1


def test_suggestions_of_a_machine_by_keyboard(tmp_path, new_context, check_access):
    project = project_of(tmp_path)
    (tmp_path / "gpt.csv").write_text("id,label\n" + "".join(f"{name},dog\n" for name in NAMES))
    project.suggest(tmp_path / "gpt.csv", "gpt")
    chooser = FakeChooser()
    chooser.replies["suspects"] = {"suspects": []}
    chooser.replies["doubtful"] = {"doubtful": [[name, "gpt", "dog", 0.9] for name in NAMES[10:13]]}
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.click("[data-view=review]")
        person.see("gpt suggests “dog”. The probability that this is wrong is 90 %")
        check_access(page)
        page.keyboard.press("k")  # accepts it
        person.see("2 items to review.")
        page.keyboard.press("1")  # changes the next one
        person.see("1 item to review.")
        assert project.labels == {"n10": "dog", "n11": "cat"}
        page.keyboard.press("Backspace")
        person.see("2 items to review.")
        assert project.labels == {"n10": "dog"}
        page.select_option("[aria-label='Filter by kind']", "flag")
        person.see("Nothing matches")
        page.select_option("[aria-label='Filter by kind']", "suggestion")
        person.see("Accept “dog”")


def test_search_labels_in_place_and_queues(tmp_path, new_context):
    project = project_of(tmp_path)
    chooser = FakeChooser()
    chooser.replies = {"search": {"ids": NAMES[:10]}, "find": {"ids": NAMES[20:24]}}
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.keyboard.press("m")
        person.see("Items most like")
        assert page.locator(".found .tile").count() == 4
        page.keyboard.press("2")
        person.wait("document.querySelector('.found .tile').textContent.includes('dog')")
        assert project.labels == {"n20": "dog"}
        page.keyboard.press("ArrowRight")
        page.keyboard.press("q")
        person.see("1 queued")
        assert "n21" in project.open_questions()
        page.keyboard.press("/")
        page.keyboard.type("n0")
        page.keyboard.press("Enter")
        person.see("10 of all items have “n0”.")
        page.keyboard.press("Enter")
        person.wait("document.querySelector('#pick-dialog').open")
        page.keyboard.press("1")
        person.wait("!document.querySelector('#pick-dialog').open")
        person.wait("document.querySelector('.found .tile').textContent.includes('cat')")
        assert project.labels == {"n20": "dog", "n00": "cat"}
        chooser.replies["search"] = {"ids": []}
        page.keyboard.press("/")
        page.fill("#search-text", "nothing")
        page.keyboard.press("Enter")
        person.see("No item has “nothing”")


def map_of(project, chooser):
    """A map on which the items lie in a row, from left to right."""
    count = len(project)
    (project.folder / MAP_FOLDER).mkdir()
    places = np.stack([np.linspace(3000, 62000, count), np.full(count, 32768)], axis=1).astype("<u2")
    for name in ("pca-1.bin", "tsne-1.bin"):
        (project.folder / MAP_FOLDER / name).write_bytes(places.tobytes())
    opinions = np.ones(count, dtype="<u2").tobytes() + np.full(count, 200, dtype=np.uint8).tobytes()
    (project.folder / MAP_FOLDER / "model-1.bin").write_bytes(opinions)
    chooser.replies = {
        "map": {"file": "pca-1.bin"}, "layout": {"file": "tsne-1.bin"}, "opinions": {"file": "model-1.bin"},
        "find": {"ids": NAMES[20:24]},
    }  # fmt: skip


def test_the_map_by_mouse_and_keyboard(tmp_path, new_context, check_access):
    project = project_of(tmp_path, audit=["n39"])
    chooser = FakeChooser()
    map_of(project, chooser)
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.keyboard.press("Shift+Digit5")
        page.wait_for_selector(".map-item")
        assert page.locator(".map-item").count() == 6  # the last batch, as a list
        person.see("chosen in the last batch")
        check_access(page)
        box = page.locator("#map-canvas").bounding_box()
        count = len(project)
        where = {row: (box["x"] + box["width"] / 2 + (row / (count - 1) - 0.5) * 0.94 * box["width"],
                       box["y"] + box["height"] / 2) for row in range(count)}  # fmt: skip
        page.mouse.move(*where[10])
        page.locator(".map-tip", has_text="n10").wait_for()
        page.mouse.click(*where[10])
        person.wait("document.querySelector('#pick-dialog').open")
        page.keyboard.press("2")
        person.wait("!document.querySelector('#pick-dialog').open")
        person.wait("document.querySelector('.legend').textContent.includes('dog')")
        assert project.labels == {"n10": "dog"}

        page.keyboard.press("l")
        corners = [(where[19][0] + 2, -60), (where[29][0] + 2, -60), (where[29][0] + 2, 60), (where[19][0] + 2, 60)]
        for place, (x, dy) in enumerate([*corners, corners[0]]):
            page.mouse.move(x, where[0][1] + dy, steps=3)
            if place == 0:
                page.mouse.down()
        page.mouse.up()
        person.see("10 items selected.")
        page.keyboard.press("q")
        person.see("10 queued")
        assert project.open_questions()[-10:] == NAMES[20:30]

        page.mouse.move(5, 5)
        page.focus("#map-canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        person.wait("/^n1[1-3]/.test(document.querySelector('#said').textContent)")
        page.keyboard.press("v")
        person.see(f"{count} items selected.")
        for mode in ("prediction", "uncertainty", "source"):
            page.select_option(".map-tools select >> nth=0", mode)
        person.see("e.npy")
        page.focus("#map-canvas")
        page.keyboard.press("m")
        person.see("Items most like")
        assert person.said == []


def test_a_phone_by_touch(tmp_path, new_context, check_access):
    project = project_of(tmp_path, classes=TEN[:4])
    chooser = FakeChooser()
    map_of(project, chooser)
    phone = new_context(400, 800, has_touch=True, is_mobile=True)
    with served(project, chooser) as link:
        person = Person(phone, link)
        page = person.page
        person.item()
        for place in range(2):
            boxes = [each.bounding_box() for each in page.locator("#classes .class").all()]
            assert all(each["height"] >= 48 and each["y"] + each["height"] <= 800 for each in boxes)
            page.locator("#classes .class").nth(place).tap()
            person.wait(f"document.querySelector('#stage').dataset.item === 'n{place + 1:02}'")
        page.locator("#undo").tap()
        person.wait("document.querySelector('#stage').dataset.item === 'n01'")
        assert project.labels == {"n00": "class 1"}
        for view in ("grid", "review", "search", "map", "progress"):
            page.locator(f"[data-view={view}]").tap()
            page.wait_for_timeout(300)
            check_access(page)
            if view == "map":
                page.wait_for_selector(".map-item")
                page.locator(".map-item").first.tap()
                person.wait("document.querySelector('#pick-dialog').open")
                page.locator("#pick-dialog .class").nth(2).tap()
                person.wait("document.querySelector('#said').textContent === 'class 3.'")
        assert project.labels == {"n00": "class 3"}


SWIPE = """([from, to]) => {
  const stage = document.querySelector('#stage');
  const at = (type, x) => stage.firstChild.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: 200, pointerType: 'touch', isPrimary: true, bubbles: true }));
  at('pointerdown', from);
  at('pointerup', to);
}"""  # noqa: E501


def test_a_swipe_skips_or_goes_back(tmp_path, new_context):
    project = project_of(tmp_path)
    with served(project, FakeChooser()) as link:
        person = Person(new_context(400, 800, "dark", has_touch=True, is_mobile=True), link)
        page = person.page
        person.item()
        person.see("Swipe the item to the left to skip it")
        page.evaluate(SWIPE, [200, 170])  # too short
        page.evaluate(SWIPE, [300, 100])
        person.wait("document.querySelector('#stage').dataset.item === 'n01'")
        assert project.log == [("skipped", "n00", None, None)]
        page.evaluate(SWIPE, [100, 300])
        person.see("You skipped this one.")
        assert person.item() == "n00"
        page.evaluate(SWIPE, [300, 100])  # back to the next item, and nothing is skipped
        person.wait("document.querySelector('#stage').dataset.item === 'n01'")
        assert len(project.log) == 1
        box = page.locator("#tools").bounding_box()
        assert box["y"] + box["height"] <= 800  # always in reach


def test_why_leads_to_the_place_on_the_map(tmp_path, new_context):
    project = project_of(tmp_path)
    chooser = FakeChooser()
    map_of(project, chooser)
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        person.item()
        person.page.keyboard.press("w")
        person.page.click("text=Show it on the map")
        person.page.wait_for_selector(".map-item")
        person.page.keyboard.press("Enter")  # opens the item, which is marked
        person.wait("document.querySelector('#pick-dialog').open")
        assert person.page.inner_text("#pick-dialog .id") == "n00"


def test_a_shared_link_works_by_another_name_of_the_server(tmp_path, new_context):
    """As from a phone on the same network: by a name that is not this machine's own, and with the token."""
    project = project_of(tmp_path)
    with served(project, FakeChooser(), hosts=["127.0.0.1", "phone.test"]) as link:
        there = link.replace("127.0.0.1", "phone.test")
        person = Person(new_context(400, 800, has_touch=True, is_mobile=True), there)
        assert person.item() == "n00"
        person.page.locator("#classes .class").nth(1).tap()
        person.wait("document.querySelector('#stage').dataset.item === 'n01'")
        assert project.labels == {"n00": "dog"}
        page = new_context().new_page()
        assert page.goto(there.partition("?")[0]).status == 403


def test_classes_that_are_digits_have_their_own_keys(tmp_path, new_context):
    project = project_of(tmp_path, classes=["0", "1", "2"])
    with served(project, FakeChooser()) as link:
        person = Person(new_context(), link)
        name = person.item()
        assert person.page.inner_text("#classes .class >> nth=0").split() == ["0", "0"]
        person.press("2")
        person.press("9", changes=False)
        assert project.labels == {name: "2"}


def test_several_labels_toggle_and_enter_confirms(tmp_path, new_context, check_access):
    project = project_of(tmp_path, classes=["cat", "dog", "bird"], multi_label=True)
    chooser = FakeChooser(FakeChooser().found | {"guess": "cat;bird", "confidence": 0.7})
    map_of(project, chooser)
    chooser.replies["suspects"] = {"suspects": [["n00", "cat;dog", "dog", 0.9]]}
    with served(project, chooser) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        page.keyboard.press("Enter")
        person.see("Choose the classes first, or 0 for none of these.")
        for key in "2313":
            page.keyboard.press(key)  # 3 is taken out again
        check_access(page)
        person.press("Enter")
        person.press("0", changes=False)
        assert page.locator("#classes .chosen").all_inner_texts() == ["0\nNone of these"]
        person.press("Enter")
        assert project.labels == {"n00": ["cat", "dog"], "n01": []}
        page.keyboard.press("g")
        person.see("The model would say “cat;bird”, and is 70 % sure.")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        person.see("You answered “cat;dog”.")
        page.click("#classes [data-name=dog]")
        page.keyboard.press("3")
        person.press("Enter")
        assert project.labels == {"n00": ["cat", "bird"], "n01": []}

        page.click("[data-view=grid]")
        page.wait_for_selector("[aria-label='cat;bird']")  # tiles are grouped by their labels
        person.wait("document.activeElement.classList.contains('tile')")
        page.keyboard.press("3")  # takes the bird out of one of them
        page.wait_for_selector(".group-of-tiles[aria-label='cat']")
        page.wait_for_timeout(800)
        page.keyboard.press("Enter")
        person.see("labels saved")
        assert sorted(map(len, project.labels.values())) == [0, 1, 2, 2, 2, 2]

        page.click("[data-view=review]")
        person.see("The label “cat;bird” is probably wrong (90 %).")
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        person.wait("document.querySelector('#said').textContent === 'Changed to bird.'")
        assert project.labels["n00"] == ["bird"]

        page.click("[data-view=map]")
        person.see("several classes")
        person.see("none of the classes")
        page.locator(".map-item").first.click()
        person.wait("document.querySelector('#pick-dialog').open")
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        person.wait("!document.querySelector('#pick-dialog').open")
        person.wait("document.querySelector('#said').textContent === 'cat;bird.'")
        assert project.labels["n00"] == ["cat", "bird"]
        assert person.said == []


def test_progress_says_one_thing_first(tmp_path, new_context):
    project = project_of(tmp_path, {"Ann": NAMES[:3], "Bob": NAMES[3:6]})
    project.tell(dict.fromkeys(NAMES[:3], "cat"), "Ann")
    project.tell({"n03": "dog"}, "Bob")
    (project.folder / COMPARED).write_text("[[2, 0.4], [9, 0.6]]")
    chooser = FakeChooser()
    with served(project, chooser, ["Bob", "Ann"]) as link:
        person = Person(new_context(), link)
        page = person.page
        person.item()
        assert page.inner_text("#counts") == "Bob · 1 today · 4 labels in all"
        page.click("[data-view=progress]")
        person.see("Computing: the model is trained and measured")
        figure = {"value": 1.0, "interval": {"low": 0.16, "high": 1.0}, "correct": 2, "total": 2, "source": "audit",
                  "about": "", "valid": "for one look", "num_labels": 2}  # fmt: skip
        estimate = {"value": 0.5, "interval": {"low": 0.1, "high": 0.9}}
        each = {"labels": 2, "share": None, "precision": estimate, "recall": None, "f1": None}
        chooser.replies["status"] = {"status": {
            "verdict": {"verdict": "go on", "sentence": "Go on: accuracy is between 16 and 100 %; 18 more say more."},
            "accuracy": figure, "curve": [figure], "audit_share": 0.1, "model_warning": None,
            "advice": [{"rule": "forecast", "verdict": "cannot tell", "sentence": "A forecast needs `20` labels."}],
            "unknown": [], "sources": [],
            "quality": {"macro_f1": estimate, "classes": [each | {"name": "cat"}, each | {"name": "dog"}],
                        "num_measured": 2, "majority": "cat", "majority_accuracy": estimate},
        }}  # fmt: skip
        person.see("Go on: accuracy is between 16 and 100 %; 18 more say more.")
        assert page.inner_text(".accuracy .figure") == "16 % to 100 %"  # no figure below ten labels
        assert page.inner_text(".card h2 >> nth=0").lower() == "accuracy"
        person.see("Always “cat”, the most frequent class, would reach 50 %")
        assert page.inner_text(".classes tbody tr:first-child").split("\t")[2:] == ["50 % (10 % to 90 %)", "–"]
        assert "`" not in page.inner_text("body")
        person.see("Bob (you)")
        chooser.replies["status"]["status"]["curve"] = [figure, figure | {"num_labels": 4}]
        person.see("random questions")
        (left, right), (first, last) = ([each.split(",") for each in page.get_attribute(name, "points").split()]
                                        for name in (".line:not(.random)", ".line.random"))  # fmt: skip
        assert (left[0], float(right[0]) < float(last[0])) == (first[0], True)  # at 2, and at 4 of 9 labels
        assert float(first[1]) > float(last[1]) > float(right[1])  # 40 %, 60 % and 100 % from below
