// Showing one item, large or small, and loading the next images ahead.

import { imageAddress } from "./api.js";
import { el } from "./dom.js";
import { Viewer } from "./viewer.js";

const loaded = new Map(); // images by item and version, decoded

const nameOf = (item) => `${item.id}\n${item.version}`;

function load(item) {
  const name = nameOf(item);
  if (!loaded.has(name)) {
    const image = el("img", { alt: `The image ${item.id}`, draggable: false, src: imageAddress(item) });
    loaded.set(name, { image, ready: image.decode().then(() => true, () => false) });
  }
  return loaded.get(name);
}

// Load the images that come next, and forget all others.
export function loadAhead(items, kept) {
  const wanted = items.filter((item) => item.kind === "image");
  wanted.forEach(load);
  const names = new Set([...wanted, ...kept].map(nameOf));
  for (const name of loaded.keys()) if (!names.has(name)) loaded.delete(name);
}

let viewer = null;

// Put an item on the stage; done once it can be seen. The earlier item stays there until then.
export async function show(stage, item, isStillWanted) {
  let content;
  let nextViewer = null;
  if (item.kind === "image") {
    const { image, ready } = load(item);
    const isFine = await ready;
    if (!isStillWanted()) return;
    if (isFine) {
      nextViewer = new Viewer(image);
      content = nextViewer.element;
    } else {
      loaded.delete(nameOf(item));
      content = broken(item);
    }
  } else {
    content = contentOf(item);
  }
  viewer?.close();
  viewer = nextViewer;
  stage.replaceChildren(content);
  delete stage.dataset.notice;
  viewer?.place();
  stage.dataset.item = item.id;
}

// A text, a row or a bare item in full.
export const contentOf = (item) => ({ text: textOf, row: tableOf, bare: nothingOf })[item.kind](item);

// An item in full, without zoom: in a dialog, or beside a list.
export function large(item) {
  if (item.kind !== "image") return contentOf(item);
  return el("img", { className: "large", alt: `The image ${item.id}`, src: imageAddress(item) });
}

export function zoom(factor) {
  viewer?.zoomBy(factor);
}

export const isEnlarged = () => Boolean(viewer && viewer.zoom > 1);

// Move what is on the stage: an enlarged image, or a text that is longer than there is room.
export function move(x, y) {
  viewer?.pan(-x, -y);
  document.querySelector("#stage .page")?.scrollBy(x, y);
}

function textOf(item) {
  const long = item.text.length > 600 ? " long" : "";
  const body = el("p", { className: "text", dir: "auto", textContent: item.text });
  return el("div", { className: `page${long}`, tabIndex: 0, role: "document", "aria-label": "Text" }, body);
}

function tableOf(item) {
  const rows = item.fields.map(([name, value]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", dir: "auto", textContent: name }),
      el("td", { dir: "auto", textContent: value === null ? "–" : value }),
    ),
  );
  return el("div", { className: "page", tabIndex: 0, role: "document", "aria-label": "Row" }, el("table", {}, el("tbody", {}, ...rows)));
}

function nothingOf(item) {
  return el(
    "div",
    { className: "notice" },
    el("h2", { dir: "auto", textContent: item.id }),
    el("p", { textContent: "This project has embeddings only, so there is nothing to look at but the id." }),
  );
}

function broken(item) {
  const why = el("p", { textContent: "It may be damaged, gone, or too large. Flag it (F), or skip it (Space)." });
  fetch(imageAddress(item)).then(async (response) => {
    if (!response.ok) why.textContent = `${await response.text()} Flag it (F), or skip it (Space).`;
  });
  return el(
    "div",
    { className: "notice", role: "alert" },
    el("h2", { textContent: "This image does not load" }),
    el("p", { className: "id", dir: "auto", textContent: item.id }),
    why,
  );
}

// A small picture of an item, or the beginning of its text.
export function small(item) {
  if (item.kind === "image") {
    return el("img", { className: "small", loading: "lazy", alt: "", src: imageAddress(item, "small") });
  }
  const text = item.kind === "row" ? item.fields.map(([name, value]) => `${name} ${value ?? "–"}`).join(" · ") : item.text;
  return el("span", { className: "small", dir: "auto", textContent: (text || item.id).slice(0, 160) });
}

export function titleOf(item) {
  if (item.kind === "text") return item.text.slice(0, 60);
  return item.kind === "image" ? item.id.split("/").at(-1) : item.id;
}
