// What to look at again: suspected labels, disagreements and flags, one after another, with keys to keep or change.

import { fetched, sent } from "./api.js";
import { namesOf, Picker } from "./classes.js";
import { button, el, notice, percent, plural, say, told } from "./dom.js";
import { large, small, titleOf } from "./item.js";

const EVERY_MS = 1500;
const KINDS = { suspect: "Suspected labels", disagreement: "Disagreements", flag: "Flags", suggestion: "Machine labels" };
const SHORT = { suspect: "suspected", disagreement: "people disagree", flag: "flagged", suggestion: "by a machine" };

export class Review {
  constructor(box, shared) {
    this.box = box;
    this.shared = shared;
    this.found = null;
    this.current = null; // the id of the item that is shown
    this.chosen = { kind: "", class: "", person: "" };
    this.isOpen = false;
    this.isBusy = false;
    setInterval(() => this.isOpen && !document.hidden && this.found?.isPending && this.load(), EVERY_MS);
  }

  open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen) this.load();
  }

  async load() {
    try {
      this.found = await fetched("/api/review");
      this.draw();
    } catch (error) {
      this.shared.failed(error);
    }
  }

  get entries() {
    const { kind, class: name, person } = this.chosen;
    return (this.found?.entries ?? []).filter(
      (entry) =>
        (!kind || entry.reasons.includes(kind)) &&
        (!name || [entry.label, entry.suggested, ...entry.answers.map((one) => one.label)].some((label) => namesOf(label, this.shared.facts.isMulti).includes(name))) &&
        (!person || [...entry.answers, ...entry.notes].some((one) => one.who === person)),
    );
  }

  draw() {
    if (!this.isOpen) return;
    const { entries } = this;
    if (!entries.some((entry) => entry.item.id === this.current)) this.current = entries[0]?.item.id ?? null;
    const text = JSON.stringify([this.found, this.chosen, this.current]);
    if (text === this.drawn) return;
    this.drawn = text;
    const list = el("ul", { className: "review-list", "aria-label": "To review" }, ...entries.map((entry) => el("li", {}, this.row(entry))));
    this.box.replaceChildren(this.head(entries), entries.length ? el("div", { className: "review-panes" }, this.detail(entries), list) : this.empty());
    this.box.querySelector(".review-item")?.focus({ preventScroll: true });
  }

  head(entries) {
    const all = this.found.entries;
    const people = [...new Set(all.flatMap((entry) => [...entry.answers, ...entry.notes].map((one) => one.who)))];
    const pending = this.found.isPending ? " Suspected labels are being computed." : this.found.trouble ? ` ${this.found.trouble}` : "";
    return el(
      "div",
      { className: "grid-head" },
      el("p", { role: "status", textContent: `${plural(entries.length, "item")} to review.${pending}` }),
      el("div", { className: "row filters" }, this.filter("kind", "All reasons", Object.entries(KINDS)), this.filter("class", "All classes", this.shared.facts.classes.map((name) => [name, name])), people.length > 1 ? this.filter("person", "Everybody", people.map((name) => [name, name])) : null),
    );
  }

  filter(name, all, options) {
    const made = el("select", { "aria-label": `Filter by ${name}` }, el("option", { value: "", textContent: all }), ...options.map(([value, textContent]) => el("option", { value, textContent })));
    made.value = this.chosen[name];
    made.onchange = () => {
      this.chosen[name] = made.value;
      this.draw();
      this.box.querySelector(`[aria-label="Filter by ${name}"]`)?.focus();
    };
    return made;
  }

  empty() {
    if (this.found.isPending) return notice("Looking for suspected labels", "A model that has not seen a label judges it. This takes some seconds, and goes on by itself.");
    if (this.found.entries.length) return notice("Nothing matches", "Choose another filter.", button("Show all", () => this.showAll(), "primary"));
    return notice("Nothing to review", "No label is suspected, nobody disagrees, and nothing is flagged. Suspected labels need a model and 20 labels.", button("Go on labelling", () => this.shared.open("label"), "primary"));
  }

  showAll() {
    this.chosen = { kind: "", class: "", person: "" };
    this.draw();
  }

  row(entry) {
    const isCurrent = entry.item.id === this.current;
    return el(
      "button",
      { type: "button", className: "review-row", "aria-current": String(isCurrent), onclick: () => this.show(entry.item.id) },
      small(entry.item),
      el("span", { className: "review-row-told" }, el("strong", { dir: "auto", textContent: entry.label ?? (entry.by ? `${entry.suggested}?` : "no label") }), el("span", { className: "quiet-text", textContent: entry.reasons.map((one) => SHORT[one]).join(", ") })),
    );
  }

  detail(entries) {
    const at = entries.findIndex((entry) => entry.item.id === this.current);
    const entry = entries[at];
    const classes = el("div", { role: "group", "aria-label": "Change to" });
    this.picker = new Picker(classes, this.shared.facts, (name) => this.decide(name), "review-search");
    this.picker.set(entry.label);
    for (const each of classes.querySelectorAll("button.class")) {
      if (namesOf(entry.suggested, this.shared.facts.isMulti).includes(each.dataset.name)) each.append(el("span", { className: "verdict", textContent: "suggested" }));
    }
    return el(
      "div",
      { className: "review-detail" },
      el("div", { className: "review-item", tabIndex: -1, role: "region", "aria-label": `${titleOf(entry.item)}, ${at + 1} of ${entries.length}` }, large(entry.item)),
      el(
        "div",
        { className: "review-side" },
        el("p", { className: "quiet-text" }, `${at + 1} of ${entries.length} · `, el("span", { className: "id", dir: "auto", textContent: entry.item.id })),
        el("ul", { className: "reasons" }, ...reasons(entry).map((text) => el("li", {}, ...told(text)))),
        el("div", { className: "row" }, button(entry.by ? `Accept “${entry.suggested}”` : entry.label ? `Keep “${entry.label}”` : "Leave it as it is", () => this.decide(null), "primary", "K"), button("Next", () => this.step(1), "", "N"), button("Undo", () => this.undo(), "", "⌫")),
        el("h2", { className: "part", textContent: "Or change it to" }),
        classes,
      ),
    );
  }

  show(id) {
    this.current = id;
    this.draw();
  }

  step(by) {
    const { entries } = this;
    const at = entries.findIndex((entry) => entry.item.id === this.current);
    const next = entries[at + by];
    if (next) this.show(next.item.id);
    else say(by > 0 ? "This was the last one." : "This is the first one.", true);
  }

  // Write a decision, then show the next one.
  async decide(label) {
    const { entries } = this;
    const at = entries.findIndex((entry) => entry.item.id === this.current);
    if (at < 0) return;
    const { by, suggested } = entries[at];
    const path = by ? "/api/found" : "/api/decide"; // a suggestion becomes an answer of this person
    await this.send(path, { item: this.current, label: by ? (label ?? suggested) : label }, label ? `Changed to ${label}.` : "Kept.", () => {
      this.found.entries = this.found.entries.filter((entry) => entry !== entries[at]);
      this.current = (entries[at + 1] ?? entries[at - 1])?.item.id ?? null;
    });
  }

  async undo() {
    await this.send("/api/undo", {}, "Undone.", () => {});
    await this.load();
  }

  async send(path, body, text, done) {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      const found = await sent(path, body);
      this.shared.take(found);
      done();
      say(found.told ?? text, true);
      this.draw();
    } catch (error) {
      this.shared.failed(error);
    } finally {
      this.isBusy = false;
    }
  }

  onKey(event, isPress) {
    if (isPress || event.repeat) return false;
    const key = event.key.toLowerCase();
    const entry = this.entries.find((one) => one.item.id === this.current);
    if (key === "backspace") this.undo();
    else if (key === "n" || key === "arrowdown") this.step(1);
    else if (key === "p" || key === "arrowup") this.step(-1);
    else if (entry && key === "k") this.decide(null);
    else if (entry && key === "m") this.shared.like(entry.item);
    else if (entry && this.picker.key(event.key)) return true;
    else if (key === "/") this.box.querySelector(".class-search")?.focus();
    else return false;
    return true;
  }
}

// Why an item is in the list, in sentences.
function reasons(entry) {
  const name = (one) => (one.who === "no name" ? "Somebody" : one.who);
  const by = entry.answers.map((one) => `${name(one)} says “${one.label}”`).join(", ");
  const found = [];
  if (entry.reasons.includes("suspect")) found.push(`The label “${entry.label}” is probably wrong (${percent(entry.wrong)}). A model that has not seen it would say “${entry.suggested}”.`);
  if (entry.by) found.push(`${entry.by} suggests “${entry.suggested}”. The probability that this is wrong is ${percent(entry.wrong)}, by a model of people's labels only.`);
  if (by) found.push(`${by}.`);
  for (const note of entry.notes) found.push(`${name(note)} flagged it: ${note.text || "no note"}`);
  return found;
}
