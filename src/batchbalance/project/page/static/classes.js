// The classes as buttons with keys; more than ten also have a search box. With several labels they toggle, and Enter confirms.

import { button, classKeys, classOfKey, el, kbd, NONE, say } from "./dom.js";

const MOST_KEYS = 10;
const TWO_COLUMNS = 7;
const MOST_LETTERS = 16; // of a name in one of two columns

// The names in a label, which is one class, or with several labels "a;b" or "none".
export const namesOf = (label, isMulti) => (label === null || label === undefined ? [] : isMulti && label !== NONE ? label.split(";") : [label]);

export class Picker {
  // Fill a box with the classes of `facts`. `choose(label)` is called with a click or a key, or once several labels are confirmed.
  constructor(box, { classes, isMulti }, choose, idea = "class-search") {
    Object.assign(this, { classes, isMulti, choose, chosen: new Set() });
    const keys = classKeys(classes, isMulti);
    const pick = (name) => this.pick(name);
    this.buttons = classes.map((name, place) => classButton(name, keys[place], pick));
    const list = el("div", { className: classes.length >= TWO_COLUMNS && Math.max(...classes.map((name) => name.length)) <= MOST_LETTERS ? "class-list two" : "class-list" }, ...this.buttons);
    box.replaceChildren(...(classes.length > MOST_KEYS ? searchable(list, this.buttons, idea, pick) : [list]));
    if (!isMulti) return;
    const none = classButton("None of these", "0", () => pick(NONE));
    none.dataset.name = NONE;
    this.buttons.push(none);
    box.append(el("div", { className: "confirm-row" }, none, button("Confirm", () => this.confirm(), "primary", "Enter")));
    this.draw();
  }

  // Show an answer as chosen; null for none yet.
  set(label) {
    this.chosen = new Set(namesOf(label, this.isMulti));
    this.draw();
  }

  draw() {
    for (const each of this.buttons) {
      const isChosen = this.chosen.has(each.dataset.name);
      each.classList.toggle("chosen", isChosen);
      if (this.isMulti || this.chosen.size) each.setAttribute("aria-pressed", String(isChosen));
      else each.removeAttribute("aria-pressed");
    }
  }

  pick(name) {
    if (!this.isMulti) return this.choose(name);
    const next = toggled([...this.chosen], name);
    this.chosen = new Set(next);
    this.draw();
    say(next.length ? next.join(", ") : "Nothing is chosen.");
  }

  confirm() {
    const label = labelOf([...this.chosen], this.classes);
    if (label) this.choose(label);
    else say("Choose the classes first, or 0 for none of these.", true);
  }

  // True if a key is one of a class, or confirms.
  key(key) {
    const name = classOfKey(this.classes, key, this.isMulti);
    if (name) this.pick(name);
    else if (this.isMulti && key === "Enter") this.confirm();
    else return false;
    return true;
  }

  // Handle the keys of a dialog that holds the classes; true if it was one.
  inDialog(event) {
    const isOther = event.key === "Enter" && event.target.closest("button:not(.class)");
    if (isOther || event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey || !this.key(event.key)) return false;
    event.preventDefault();
    return true;
  }
}

// Names with one of them added or taken out; "none" stands alone.
export function toggled(names, name) {
  if (names.includes(name)) return names.filter((each) => each !== name);
  return name === NONE ? [NONE] : [...names.filter((each) => each !== NONE), name];
}

// The label that has some names, in the order of the classes; "" for no names.
export const labelOf = (names, classes) => (names.includes(NONE) ? NONE : classes.filter((each) => names.includes(each)).join(";"));

// The list with a search box above it.
function searchable(list, buttons, idea, choose) {
  buttons = [...buttons]; // the one for none of the classes is not searched
  list.classList.add("many");
  const empty = el("p", { className: "quiet-text", textContent: "No class of that name.", hidden: true });
  const search = el("input", {
    type: "search", id: idea, className: "class-search", placeholder: "Find a class", autocomplete: "off", spellcheck: false,
    "aria-describedby": `${idea}-hint`,
  });
  search.addEventListener("input", () => filter(search.value, buttons, empty));
  search.addEventListener("keydown", (event) => onSearchKey(event, search, buttons, empty, choose));
  return [
    el("label", { for: idea, className: "unseen", textContent: "Find a class" }),
    el("div", { className: "search-row" }, search, kbd("/")),
    el("p", { id: `${idea}-hint`, className: "unseen", textContent: "Type a part of its name. Enter takes the first." }),
    list,
    empty,
  ];
}

function classButton(name, key, choose) {
  const label = el("span", { dir: "auto", className: "name", textContent: name });
  const made = el("button", { type: "button", className: "class", onclick: () => choose(name) }, key ? kbd(key) : "", label);
  made.dataset.name = name;
  return made;
}

// Letters without case and accents; a space, _ and - are alike.
export const plainName = (text) =>
  text.normalize("NFD").replace(/\p{M}/gu, "").toLocaleLowerCase().replace(/[\s_-]+/g, " ").trim();

// How many letters are missing, added, changed or swapped with their neighbour; more than `most` is not counted.
function typos(one, other, most) {
  if (Math.abs(one.length - other.length) > most) return most + 1;
  let before = null;
  let row = Array.from({ length: other.length + 1 }, (_, i) => i);
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1) {
      const change = row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1);
      next[j] = Math.min(change, row[j] + 1, next[j - 1] + 1);
      if (before && i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
    }
    [before, row] = [row, next];
  }
  return row[other.length];
}

// 0 for names that start with what was typed, 1 for names that have it, 2 for a typo or two; -1 for others.
export function rank(name, typed) {
  const plain = plainName(name);
  const at = plain.indexOf(typed);
  if (at >= 0) return at === 0 ? 0 : 1;
  const most = typed.length >= 7 ? 2 : 1;
  if (typed.length < 3) return -1;
  const starts = [0, ...[...plain.matchAll(/ /g)].map((found) => found.index + 1)];
  const isNear = starts.some((start) =>
    [-1, 0, 1].some((more) => typos(typed, plain.slice(start, start + typed.length + more), most) <= most),
  );
  return isNear ? 2 : -1;
}

function filter(value, buttons, empty) {
  const typed = plainName(value);
  for (const button of buttons) {
    const place = typed ? rank(button.dataset.name, typed) : 1;
    button.hidden = place < 0;
    button.style.order = place;
  }
  const first = firstFound(buttons);
  for (const button of buttons) button.classList.toggle("first", Boolean(typed) && button === first);
  empty.hidden = Boolean(first);
}

function firstFound(buttons) {
  const found = buttons.filter((button) => !button.hidden);
  return ["0", "1", "2"].map((order) => found.find((button) => button.style.order === order)).find(Boolean);
}

function onSearchKey(event, search, buttons, empty, choose) {
  if (event.key === "Enter" && search.value.trim()) {
    event.preventDefault();
    const first = firstFound(buttons);
    if (!first) return;
    search.value = "";
    filter("", buttons, empty);
    choose(first.dataset.name);
  } else if (event.key === "/" && !search.value) {
    event.preventDefault(); // the key that leads here
  } else if (event.key === "Escape" && (search.value || !search.closest("dialog"))) {
    event.preventDefault();
    event.stopPropagation();
    search.value = "";
    filter("", buttons, empty);
    search.blur();
  }
}
