// The classes as buttons with keys; more than ten also have a search box.

import { classKey, el, kbd } from "./dom.js";

const MOST_KEYS = 10;

// Fill a box with the classes. `choose(name)` is called with a click, or Enter in the search box.
export function fillClasses(box, classes, choose, idea = "class-search") {
  const buttons = classes.map((name, place) => classButton(name, classKey(place), choose));
  const list = el("div", { className: "class-list" }, ...buttons);
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

// Names that start with what was typed come before names that hold it.
function rank(name, typed) {
  const at = name.toLocaleLowerCase().indexOf(typed);
  if (at < 0) return -1;
  return at === 0 ? 0 : 1;
}

function filter(value, buttons, empty) {
  const typed = value.trim().toLocaleLowerCase();
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
  return found.find((button) => button.style.order === "0") ?? found[0];
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
