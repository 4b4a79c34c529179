// Items by words, and items like another one. What is found can be labelled in place or queued.

import { followed } from "./api.js";
import { button, classOfKey, el, kbd, moveFocus, notice, say } from "./dom.js";
import { labelEntry, openEntry, queueRows, toldEntry } from "./entry.js";
import { small, titleOf } from "./item.js";

export class Search {
  constructor(box, shared) {
    this.box = box;
    this.shared = shared;
    this.entries = [];
    this.moment = 0; // tells one search from the next
    this.field = el("input", { type: "search", id: "search-text", placeholder: "Words of a text, or a part of an id or file name", autocomplete: "off", dir: "auto" });
    const form = el("form", { role: "search" }, el("label", { for: "search-text", className: "unseen", textContent: "Search texts and ids" }), el("div", { className: "search-row" }, this.field, kbd("/"), el("button", { className: "primary", textContent: "Search" })));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.byText(this.field.value);
    };
    this.told = el("div", { className: "search-told", role: "status" });
    this.tiles = el("div", { className: "tiles found" });
    box.append(form, this.told, this.tiles);
    this.field.onkeydown = (event) => {
      if (event.key === "ArrowDown") this.tiles.querySelector(".tile")?.focus();
      else if (event.key === "Escape") this.field.blur();
    };
    this.start();
  }

  start() {
    this.told.replaceChildren(
      notice("Find items", "Type words to search all texts and ids. Or press M at any item to find more like it. You can label what is found at once, or queue it. It trains the model, and never measures it."),
    );
  }

  open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen && !this.entries.length) this.field.focus();
  }

  byText(text) {
    if (!text.trim()) return this.start();
    return this.run("/api/search", { text }, (found) => (found.isMore ? `The first ${found.entries.length} items with “${text}”.` : `${found.entries.length} of all items have “${text}”.`), `No item has “${text}”`);
  }

  like(item) {
    this.field.value = "";
    return this.run("/api/like", { item: item.id }, (found) => el("div", { className: "like-told" }, small(found.like), el("p", {}, "Items most like ", el("strong", { dir: "auto", textContent: titleOf(item) }), " that nobody has been asked yet, the nearest first.")), "Nothing is left that is like it");
  }

  async run(path, values, tell, empty) {
    this.moment = Math.max(this.moment + 1, Date.now() % 1e9);
    const { moment } = this;
    this.entries = [];
    this.draw();
    this.told.replaceChildren(notice("Searching", "Results come by themselves."));
    await followed(path, { ...values, at: moment }, (found) => {
      if (this.moment !== moment) return false;
      if (found.isPending) return true;
      this.entries = found.entries.filter((entry) => entry.item);
      if (found.trouble) this.told.replaceChildren(notice("The search failed", `${found.trouble} Search again.`));
      else if (!this.entries.length) this.told.replaceChildren(notice(empty, "Try fewer words, or a part of one. Items that measure the model, and those that others are asked, are not shown."));
      else this.told.replaceChildren(el("div", { className: "grid-head" }, el("div", {}, tell(found), el("p", { className: "quiet-text by-keys", textContent: "A class key labels an item in place, Q queues it, M finds more like it, Enter opens it." })), this.queueAll()));
      this.draw();
      if (this.isOpen) this.tiles.querySelector(".tile")?.focus({ preventScroll: true });
      return true;
    }).catch(this.shared.failed);
  }

  queueAll() {
    const open = () => this.entries.filter((entry) => entry.canQueue);
    return open().length ? button(`Queue all ${open().length}`, () => this.queue(open())) : el("span", {});
  }

  draw() {
    const focused = this.tiles.contains(document.activeElement) ? document.activeElement.dataset.item : null;
    this.tiles.replaceChildren(...this.entries.map((entry) => this.tile(entry)));
    if (focused) this.tiles.querySelector(`[data-item="${CSS.escape(focused)}"]`)?.focus();
  }

  tile(entry) {
    const looks = ["tile", entry.item.kind === "image" ? "" : "wide", entry.label ? "accepted" : ""].join(" ");
    const made = el(
      "button",
      { type: "button", className: looks, "aria-label": `${titleOf(entry.item)}: ${toldEntry(entry)}.`, onclick: () => openEntry(this.shared, entry, () => this.draw()) },
      small(entry.item),
      el("span", { className: "tile-foot", dir: "auto" }, el("span", { className: "id", textContent: entry.item.id.split("/").at(-1) }), el("span", { textContent: toldEntry(entry) })),
    );
    made.dataset.item = entry.item.id;
    return made;
  }

  async queue(entries) {
    try {
      if (!(await queueRows(this.shared, entries.map((entry) => entry.row)))) return;
      for (const entry of entries) Object.assign(entry, { state: "queued", canQueue: false });
      this.draw();
    } catch (error) {
      this.shared.failed(error);
    }
  }

  onKey(event, isPress) {
    if (event.key === "/") {
      this.field.focus();
      return true;
    }
    const focused = event.target.closest?.(".tile");
    if (event.key.startsWith("Arrow")) {
      if (focused && event.key === "ArrowUp" && focused === this.tiles.firstChild) this.field.focus();
      else moveFocus(this.tiles, ".tile", event.key, focused);
      return true;
    }
    const entry = focused && this.entries.find((each) => each.item.id === focused.dataset.item);
    if (!entry || isPress || event.repeat) return false;
    const { classes, isMulti } = this.shared.facts;
    const name = classOfKey(classes, event.key, isMulti);
    const key = event.key.toLowerCase();
    if (name && entry.canLabel && isMulti) openEntry(this.shared, entry, () => this.draw());
    else if (name && entry.canLabel) labelEntry(this.shared, entry, name).then(() => this.draw(), this.shared.failed);
    else if (name) say("Somebody else has this item. Review changes labels of others.", true);
    else if (key === "q") this.queue([entry]);
    else if (key === "m") this.like(entry.item);
    else return false;
    return true;
  }
}
