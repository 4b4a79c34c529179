// Why an item was chosen, in words and bars.

import { followed } from "./api.js";
import { button, el, percent } from "./dom.js";
import { small } from "./item.js";

const PENDING = "The model is still thinking about it.";

const MOST_VOTES = 6;

export function fillWhy(box, item, isStillWanted, onMap) {
  return followed("/api/why", { item: item.id }, (found) => {
    if (isStillWanted()) draw(box, found, onMap);
    return isStillWanted();
  });
}

function draw(box, found, onMap) {
  const parts = [el("p", { className: "sentence", textContent: found.isPending ? PENDING : found.sentence })];
  if (found.votes?.length) parts.push(el("h2", { className: "part", textContent: "Votes of the model's draws" }), votes(found.votes));
  if (found.groups?.length === 2) parts.push(el("h2", { className: "part", textContent: "What your answer tells apart" }), groups(found));
  if (found.like?.length) parts.push(el("h2", { className: "part", textContent: "Labelled items most like it" }), like(found.like));
  const [sentence, ...rest] = parts;
  const sections = [];
  for (let i = 0; i < rest.length; i += 2) sections.push(el("section", {}, rest[i], rest[i + 1]));
  sentence.append(" ", button("Show it on the map, with the rest of its batch", onMap, "link"));
  box.replaceChildren(sentence, el("div", { className: "why-parts" }, ...sections));
}

export function bar(name, share, told) {
  const fill = el("span", { className: "fill" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el(
    "li",
    {},
    el("span", { className: "bar-name", dir: "auto", textContent: name, title: name }),
    el("span", { className: "bar" }, fill),
    el("span", { className: "bar-told", textContent: told }),
  );
}

function votes(found) {
  return el("ul", { className: "bars" }, ...found.slice(0, MOST_VOTES).map(([name, share]) => bar(name, share, percent(share))));
}

function groups(found) {
  const tiles = found.groups.map((group) =>
    el(
      "div",
      { className: "group" },
      el("strong", { dir: "auto", textContent: group.class }),
      el("span", { textContent: `${group.draws} of ${found.draws} draws` }),
    ),
  );
  const apart = found.apart
    ? el("p", { textContent: `These two groups disagree on ${percent(found.apart)} of all items.` })
    : null;
  return el("div", {}, el("div", { className: "groups" }, ...tiles), apart);
}

function like(items) {
  return el(
    "ul",
    { className: "like" },
    ...items.map(({ item, label }) =>
      el("li", {}, small(item), el("span", { className: "name", dir: "auto", textContent: label })),
    ),
  );
}
