// The batch as tiles grouped by the model's guess: click what is wrong, then confirm all.

import { followed, sent } from "./api.js";
import { fillClasses } from "./classes.js";
import { byId, el, kbd, keyPlace, plural, say } from "./dom.js";
import { small, titleOf } from "./item.js";

const LEFT_OUT = "";

export class Grid {
  constructor(box, classes, take, failed) {
    this.box = box;
    this.classes = classes;
    this.take = take; // what the server answers
    this.failed = failed; // an error
    this.tiles = []; // {item, label, guess}
    this.isOpen = false;
    this.isBusy = false;
  }

  async open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen) await this.load().catch(this.failed);
  }

  async load() {
    await followed("/api/grid", {}, (found) => {
      if (!this.isOpen) return false;
      this.tiles = found.tiles.map(({ item, guess }) => ({ item, guess, label: guess }));
      this.note = found.isPending ? "The model is still thinking about the next items." : found.note;
      this.openedAt = performance.now();
      this.draw();
      this.box.querySelector(".tile")?.focus({ preventScroll: true }); // so that Enter confirms at once
      return true;
    });
  }

  draw() {
    if (!this.tiles.length) {
      this.box.replaceChildren(el("div", { className: "notice" }, el("h2", { textContent: "Nothing for the grid now" }), el("p", { textContent: this.note })));
      return;
    }
    const guessed = this.tiles.map((tile) => tile.guess); // may be a class that was added since the page was opened
    const groups = [...new Set([...this.classes, ...guessed, LEFT_OUT])]
      .map((name) => [name, this.tiles.filter((tile) => tile.label === name)])
      .filter(([, tiles]) => tiles.length);
    const counted = this.tiles.filter((tile) => tile.label !== LEFT_OUT).length;
    const confirm = el("button", { type: "button", className: "primary", onclick: () => this.confirm() }, `Confirm ${plural(counted, "label")} `, kbd("Enter"));
    this.box.replaceChildren(
      el(
        "div",
        { className: "grid-head" },
        el("p", { textContent: "Grouped by the model's guess. Click what is wrong, or choose it with the arrows and press the key of its class." }),
        confirm,
      ),
      el("div", { className: "groups-of-tiles" }, ...groups.map(([name, tiles]) => this.group(name, tiles))),
    );
  }

  group(name, tiles) {
    const title = name === LEFT_OUT ? "Left for one by one" : name;
    const heading = el("h2", { dir: "auto" }, title, el("span", { className: "quiet-text", textContent: ` ${tiles.length}` }));
    return el("section", { className: "group-of-tiles", "aria-label": title }, heading, el("div", { className: "tiles" }, ...tiles.map((tile) => this.tile(tile))));
  }

  tile(tile) {
    const told = tile.label === LEFT_OUT ? "left out" : tile.label;
    const isImage = tile.item.kind === "image";
    const looks = ["tile", isImage ? "" : "wide", tile.label === tile.guess ? "" : "changed"].join(" ");
    const button = el(
      "button",
      { type: "button", className: looks, "aria-label": `${titleOf(tile.item)}: ${told}. Change it.`, onclick: () => this.pick(tile) },
      small(tile.item),
    );
    button.dataset.item = tile.item.id;
    return button;
  }

  pick(tile) {
    const dialog = byId("pick-dialog");
    const choose = (name) => {
      dialog.close();
      this.change(tile, name);
    };
    const classes = el("div", {});
    fillClasses(classes, this.classes, choose, "pick-search");
    byId("pick-body").replaceChildren(
      small(tile.item),
      classes,
      el("div", { className: "row" }, el("button", { type: "button", textContent: "Not sure: leave it out", onclick: () => choose(LEFT_OUT) }), el("button", { type: "button", className: "quiet", textContent: "Cancel", onclick: () => dialog.close() })),
    );
    dialog.onkeydown = (event) => {
      const name = this.classes[keyPlace(event.key)];
      if (name && !event.target.closest("input") && !event.ctrlKey && !event.metaKey && !event.altKey) choose(name);
    };
    dialog.showModal();
  }

  change(tile, name) {
    tile.label = name;
    this.draw();
    this.box.querySelector(`[data-item="${CSS.escape(tile.item.id)}"]`)?.focus();
    say(name === LEFT_OUT ? "Left out." : `${name}.`);
  }

  // True if the key was one of the grid's.
  onKey(event, place) {
    const focused = event.target.closest?.(".tile");
    const tile = focused && this.tiles.find((each) => each.item.id === focused.dataset.item);
    const isElsewhere = !focused && event.target.closest?.("button"); // which Enter presses
    if (event.key === "Enter" && !event.repeat && !isElsewhere) this.confirm();
    else if (tile && place >= 0 && this.classes[place]) this.change(tile, this.classes[place]);
    else if (event.key.startsWith("Arrow")) this.move(event.key, focused);
    else return false;
    event.preventDefault();
    return true;
  }

  // The next tile to the side; up and down the nearest one in the row above or below.
  move(key, focused) {
    const all = [...this.box.querySelectorAll(".tile")];
    if (!focused) return all[0]?.focus();
    const at = all.indexOf(focused);
    if (key === "ArrowRight" || key === "ArrowLeft") return all[at + (key === "ArrowRight" ? 1 : -1)]?.focus();
    const down = key === "ArrowDown" ? 1 : -1;
    const here = focused.getBoundingClientRect();
    const beyond = all.filter((each) => down * (each.getBoundingClientRect().top - here.top) > 4);
    const apart = (each) => {
      const box = each.getBoundingClientRect();
      return Math.abs(box.top - here.top) * 1000 + Math.abs(box.left - here.left);
    };
    beyond.sort((one, other) => apart(one) - apart(other))[0]?.focus();
  }

  async confirm() {
    const kept = this.tiles.filter((tile) => tile.label !== LEFT_OUT);
    if (this.isBusy || !kept.length) return;
    this.isBusy = true;
    try {
      const each = (performance.now() - this.openedAt) / 1000 / kept.length;
      const answers = kept.map((tile) => ({ item: tile.item.id, label: tile.label }));
      this.take(await sent("/api/confirm", { answers, seconds: Math.min(600, each) }));
      say(`${plural(kept.length, "label")} saved.`);
      await this.load();
    } catch (error) {
      this.failed(error);
      if (error.status !== undefined) await this.load(); // what is shown may be somebody else's by now
    } finally {
      this.isBusy = false;
    }
  }
}
