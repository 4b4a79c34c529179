// The batch as tiles grouped by the model's guess. Only sure guesses start accepted; what is not accepted stays open.

import { followed, sent } from "./api.js";
import { labelOf, namesOf, Picker, toggled } from "./classes.js";
import { button, byId, classOfKey, el, kbd, moveFocus, NONE, notice, percent, plural, say } from "./dom.js";
import { small, titleOf } from "./item.js";

const DEAF_MS = 700; // a new screen ignores Enter for so long

export class Grid {
  constructor(box, shared) {
    this.box = box;
    this.shared = shared;
    this.classes = shared.facts.classes;
    this.tiles = []; // {item, guess, confidence, label, isAccepted}
    this.isOpen = false;
    this.isBusy = false;
  }

  async open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen) await this.load().catch(this.shared.failed);
  }

  async load() {
    await followed("/api/grid", {}, (found) => {
      if (!this.isOpen) return false;
      this.tiles = (found.isPending ? [] : found.tiles).map((tile) => ({ ...tile, label: tile.guess, isAccepted: tile.isSure }));
      this.note = found.isPending ? "The model is still thinking about the next items. They come by themselves." : found.note;
      this.threshold = found.threshold;
      this.openedAt = performance.now();
      this.draw();
      this.box.querySelector(".tile")?.focus({ preventScroll: true });
      return true;
    });
  }

  get accepted() {
    return this.tiles.filter((tile) => tile.isAccepted);
  }

  draw() {
    if (!this.tiles.length) {
      this.box.replaceChildren(notice("Nothing for the grid now", this.note, button("Go to Label", () => this.shared.open("label"), "primary")));
      return;
    }
    const labels = this.tiles.map((tile) => tile.label); // may be a class that was added since the page was opened
    const groups = [...new Set([...this.classes, ...labels])]
      .map((name) => [name, this.tiles.filter((tile) => tile.label === name)])
      .filter(([, tiles]) => tiles.length);
    const count = this.accepted.length;
    const confirm = el("button", { type: "button", className: "primary confirm", disabled: !count, onclick: () => this.confirm() }, count ? `Confirm ${plural(count, "label")} ` : "Nothing is accepted ", kbd("Enter"));
    this.box.replaceChildren(
      el(
        "div",
        { className: "grid-head" },
        el("div", {}, el("p", { className: "threshold", textContent: this.toldThreshold() }), el("p", { className: "quiet-text by-keys", textContent: "Space accepts a tile or leaves it open, a class key or a click changes it. What is not accepted stays open." }), el("p", { className: "quiet-text by-touch", textContent: "Tap a tile to accept it, change it or leave it open. What is not accepted stays open." })),
        el("div", { className: "row" }, button("Undo", () => this.undo(), "", "⌫"), confirm),
      ),
      el("div", { className: "groups-of-tiles" }, ...groups.map(([name, tiles]) => this.group(name, tiles))),
    );
  }

  // Which guesses start accepted, and how that was measured.
  toldThreshold() {
    const found = this.threshold;
    if (!found) return "Nothing starts accepted: the model has not been measured yet.";
    const of = `${found.right} of ${plural(found.total, "guess", "guesses")} on ${found.source}`;
    if (found.value === null) return `Nothing starts accepted: at no confidence are 95 % of guesses right (${of} are).`;
    return `Accepted from a confidence of ${percent(found.value)}: there, ${of} were right.`;
  }

  group(name, tiles) {
    const isAll = tiles.every((tile) => tile.isAccepted);
    const change = button(isAll ? "Leave all open" : "Accept all", () => this.acceptAll(tiles, !isAll), "link");
    const heading = el("h2", { dir: "auto" }, name, el("span", { className: "quiet-text", textContent: ` ${tiles.length}` }));
    return el("section", { className: "group-of-tiles", "aria-label": name }, el("div", { className: "group-head" }, heading, change), el("div", { className: "tiles" }, ...tiles.map((tile) => this.tile(tile))));
  }

  tile(tile) {
    const state = tile.isAccepted ? "accepted" : "open";
    const looks = ["tile", tile.item.kind === "image" ? "" : "wide", state].join(" ");
    const sure = tile.label === tile.guess ? percent(tile.confidence) : "changed";
    const made = el(
      "button",
      { type: "button", className: looks, "aria-pressed": String(tile.isAccepted), "aria-label": `${titleOf(tile.item)}: ${tile.label}, ${sure}, ${state}.`, onclick: () => this.pick(tile) },
      small(tile.item),
      el("span", { className: "tile-foot" }, el("span", { className: "mark", textContent: tile.isAccepted ? "✓" : "?" }), sure),
    );
    made.dataset.item = tile.item.id;
    return made;
  }

  pick(tile) {
    const dialog = byId("pick-dialog");
    const choose = (name) => {
      dialog.close();
      this.change(tile, name, true);
    };
    const classes = el("div", {});
    const picker = new Picker(classes, this.shared.facts, choose, "pick-search");
    if (picker.isMulti) picker.set(tile.label);
    const leave = () => {
      dialog.close();
      this.change(tile, tile.guess, false);
    };
    byId("pick-body").replaceChildren(small(tile.item), classes, el("div", { className: "row" }, button("Not sure: leave it open", leave), button("Cancel", () => dialog.close(), "quiet")));
    dialog.onkeydown = (event) => void picker.inDialog(event); // a returned false would prevent the default
    dialog.showModal();
  }

  change(tile, name, isAccepted) {
    Object.assign(tile, { label: name, isAccepted });
    this.draw();
    this.box.querySelector(`[data-item="${CSS.escape(tile.item.id)}"]`)?.focus();
    say(isAccepted ? `${name}, accepted.` : "Left open.");
  }

  acceptAll(tiles, isAccepted) {
    for (const tile of tiles) tile.isAccepted = isAccepted;
    this.draw();
    say(isAccepted ? `${plural(tiles.length, "tile")} accepted.` : `${plural(tiles.length, "tile")} left open.`);
  }

  // True if the key was one of the grid's.
  onKey(event, isPress) {
    const focused = event.target.closest?.(".tile");
    const tile = focused && this.tiles.find((each) => each.item.id === focused.dataset.item);
    const { isMulti } = this.shared.facts;
    const name = classOfKey(this.classes, event.key, isMulti);
    if (isPress && !focused) return false;
    if (event.key === "Enter") {
      if (!event.repeat) this.confirm();
    } else if (event.key === "Backspace") {
      if (!event.repeat) this.undo();
    } else if (tile && event.key === " ") this.change(tile, tile.label, !tile.isAccepted);
    else if (tile && name) this.change(tile, isMulti ? labelOf(toggled(namesOf(tile.label, true), name), this.classes) || NONE : name, true);
    else if (tile && event.key.toLowerCase() === "m") this.shared.like(tile.item);
    else if (event.key.startsWith("Arrow")) moveFocus(this.box, ".tile", event.key, focused);
    else return false;
    return true;
  }

  async confirm() {
    const kept = this.accepted;
    if (performance.now() - this.openedAt < DEAF_MS) return; // a key that was meant for the screen before
    if (!kept.length) return say("Nothing is accepted. Accept tiles with Space, or label one by one.", true);
    const each = (performance.now() - this.openedAt) / 1000 / kept.length;
    const answers = kept.map((tile) => ({ item: tile.item.id, label: tile.label }));
    await this.send("/api/confirm", { answers, seconds: Math.min(600, each) }, `${plural(kept.length, "label")} saved. Backspace takes all of them back.`);
  }

  async undo() {
    await this.send("/api/undo", {}, "Undone.");
  }

  async send(path, body, told) {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      const found = await sent(path, body);
      this.shared.take(found);
      this.shared.trouble("");
      say(found.told ?? told, true);
      await this.load();
    } catch (error) {
      this.shared.failed(error);
      if (error.status !== undefined) await this.load(); // what is shown may be somebody else's by now
    } finally {
      this.isBusy = false;
    }
  }
}
