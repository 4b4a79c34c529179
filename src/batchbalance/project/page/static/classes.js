// The classes as buttons with keys; more than ten also have a search box.

import { classKeys, el, kbd } from "./dom.js";

const MOST_KEYS = 10;
const TWO_COLUMNS = 7;

// Fill a box with the classes. `choose(name)` is called with a click, or Enter in the search box.
export function fillClasses(box, classes, choose, idea = "class-search") {
  const keys = classKeys(classes);
  const buttons = classes.map((name, place) => classButton(name, keys[place], choose));
  const list = el("div", { className: classes.length >= TWO_COLUMNS ? "class-list two" : "class-list" }, ...buttons);
  if (classes.length <= MOST_KEYS) {
    box.replaceChildren(list);
    return;
  }
  list.classList.add("many");
  const empty = el("p", { className: "quiet-text", textContent: "No class of that name.", hidden: true });
  const search = el("input", {
    type: "search", id: idea, className: "class-search", placeholder: "Find a class", autocomplete: "off", spellcheck: false,
    "aria-describedby": `${idea}-hint`,
  });
  search.addEventListener("input", () => filter(search.value, buttons, empty));
  search.addEventListener("keydown", (event) => onSearchKey(event, search, buttons, empty, choose));
  box.replaceChildren(
    el("label", { for: idea, className: "unseen", textContent: "Find a class" }),
    el("div", { className: "search-row" }, search, kbd("/")),
    el("p", { id: `${idea}-hint`, className: "unseen", textContent: "Type a part of its name. Enter takes the first." }),
    list,
    empty,
  );
}

function classButton(name, key, choose) {
  const label = el("span", { dir: "auto", className: "name", textContent: name });
  const button = el("button", { type: "button", className: "class", onclick: () => choose(name) }, key ? kbd(key) : "", label);
  button.dataset.name = name;
  return button;
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
  } else if (event.key === "Escape") {
    event.preventDefault();
    event.stopPropagation();
    search.value = "";
    filter("", buttons, empty);
    search.blur();
  }
}
