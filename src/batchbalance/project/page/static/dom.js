// Making elements. Text goes in as text: nothing from a project is ever parsed as HTML.

export const byId = (id) => document.getElementById(id);

// An element with properties, attributes ("aria-…", "data-…", role, for) and children.
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const kbd = (key) => el("kbd", { textContent: key });

export const button = (text, onclick, className = "", key = "") =>
  el("button", { type: "button", className, onclick }, key ? `${text} ` : text, key ? kbd(key) : null);

// A sentence of the server, in which `x` is something to type.
export const told = (text) => text.split("`").map((part, place) => (place % 2 ? el("code", { textContent: part }) : part));

// What is so, and what to do next: for views that are empty, waiting, finished or in trouble.
export const notice = (title, text, ...actions) =>
  el("div", { className: "notice", role: "status" }, el("h2", { textContent: title }), el("p", {}, ...told(text)), ...(actions.length ? [el("div", { className: "row" }, ...actions)] : []));

const SAID_MS = 4000;
let hiding = 0;

// For screen readers; `isSeen` shows it to everybody for a moment.
export function say(text, isSeen = false) {
  const place = byId("said");
  place.textContent = text;
  place.classList.toggle("seen", isSeen);
  clearTimeout(hiding);
  if (isSeen) hiding = setTimeout(() => place.classList.remove("seen"), SAID_MS);
}

// Whether keys belong to what has the focus: a field, or anything in an open dialog.
export function isTyping(target) {
  if (target.closest("dialog")) return true;
  if (target.isContentEditable) return true;
  return Boolean(target.closest("input, textarea, select"));
}

export const NONE = "none"; // the label of an item without any of the classes, where it may have several

// The key of each class: its name if all are digits; else by its place 1 to 9, then 0, and none from the eleventh on. With
// several labels 0 stands for none of them.
export function classKeys(classes, isMulti) {
  const isDigits = !isMulti && classes.every((name) => /^[0-9]$/.test(name));
  return isDigits ? classes : classes.map((_, place) => (place < (isMulti ? 9 : 10) ? String((place + 1) % 10) : ""));
}

export function classOfKey(classes, key, isMulti) {
  if (isMulti && key === "0") return NONE;
  return key ? classes[classKeys(classes, isMulti).indexOf(key)] : undefined;
}

// Move the focus among tiles: to the side the next one; up and down the nearest in the row above or below.
export function moveFocus(box, selector, key, focused) {
  const all = [...box.querySelectorAll(selector)];
  if (!focused) return all[0]?.focus();
  const at = all.indexOf(focused);
  if (key === "ArrowRight" || key === "ArrowLeft") return all[at + (key === "ArrowRight" ? 1 : -1)]?.focus();
  const down = key === "ArrowDown" ? 1 : -1;
  const here = focused.getBoundingClientRect();
  const beyond = all.filter((each) => down * (each.getBoundingClientRect().top - here.top) > 4);
  const apart = (each) => {
    const place = each.getBoundingClientRect();
    return Math.abs(place.top - here.top) * 1000 + Math.abs(place.left - here.left);
  };
  beyond.sort((one, other) => apart(one) - apart(other))[0]?.focus();
}

export const number = (count) => count.toLocaleString("en");
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const percent = (share) => `${Math.round(100 * share)} %`;
