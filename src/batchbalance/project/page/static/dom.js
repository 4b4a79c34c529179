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

// For screen readers.
export function say(text) {
  byId("said").textContent = text;
}

// Whether keys belong to what has the focus: a field, or anything in an open dialog.
export function isTyping(target) {
  if (target.closest("dialog")) return true;
  if (target.isContentEditable) return true;
  return Boolean(target.closest("input, textarea, select"));
}

// The key of a class by its place: 1 to 9, then 0; none from the eleventh on.
export function classKey(place) {
  if (place < 9) return String(place + 1);
  return place === 9 ? "0" : "";
}

export function keyPlace(key) {
  return /^[0-9]$/.test(key) ? (Number(key) + 9) % 10 : -1;
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
