// The page: its views, and which of them gets a key.

import { fetched } from "./api.js";
import { byId, el, isTyping } from "./dom.js";
import { Grid } from "./grid.js";
import { Label } from "./label.js";
import { MapView } from "./map.js";
import { Progress } from "./progress.js";
import { Review } from "./review.js";
import { Search } from "./search.js";

const POLL_MS = 700;

const KEYS = [
  ["1 – 9, 0", "the class with that number; with several labels it is added or taken out, 0 is none of them, and Enter confirms"],
  ["/", "find a class by its name; in Search, the search field"],
  ["Space", "skip: not asked again in this round; in Grid, accept a tile or leave it open"],
  ["Backspace", "undo, as often as you like; in Grid, a whole confirmation"],
  ["F", "flag, with a note"],
  ["G", "show the model's guess"],
  ["W", "why this one?"],
  ["M", "more like this"],
  ["← →", "walk through earlier answers"],
  ["Escape", "back to the item that is next"],
  ["+ −", "zoom; or the wheel, and drag to move"],
  ["↑ ↓", "scroll a long text, or move an enlarged image; Shift with ← → moves it sideways"],
  ["Enter", "in Grid: confirm what is accepted; in Search and Map: open the item"],
  ["K, N, P", "in Review: keep the label, next, previous"],
  ["Q", "in Search and Map: queue"],
  ["L", "in Map: draw a lasso"],
  ["Shift + 1 – 6", "Label, Grid, Review, Search, Map, Progress"],
  ["H", "this list"],
];

const views = {};
const NAMES = ["label", "grid", "review", "search", "map", "progress"];
const VIEW_KEYS = Object.fromEntries(NAMES.map((name, place) => [`Digit${place + 1}`, name]));
let view = "label";
let isLost = false; // whether the server did not answer

const shared = {
  facts: null,
  open,
  trouble,
  failed,
  take: (found) => views.label.take(found),
  onMap: (item) => {
    open("map");
    views.map.reveal(item.row);
  },
  like: (item) => {
    open("search");
    views.search.like(item);
  },
};

async function start() {
  shared.facts = await fetched("/api/facts");
  document.title = `${shared.facts.project} · batchbalance`;
  byId("project").textContent = shared.facts.project;
  byId("keys-list").append(...KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", { textContent: key })), el("dd", { textContent: what })]));
  views.label = new Label(shared);
  views.grid = new Grid(byId("grid-view"), shared);
  views.review = new Review(byId("review-view"), shared);
  views.search = new Search(byId("search-view"), shared);
  views.map = new MapView(byId("map-view"), shared);
  views.progress = new Progress(byId("progress-view"), shared);
  views.label.take(await fetched("/api/situation"));
  setInterval(poll, POLL_MS);
}

// Tell of an error; one without a status is a server that does not answer, which `poll` looks for.
function failed(error) {
  trouble(error.message);
  isLost = error.status === undefined;
}

function trouble(text) {
  byId("trouble").hidden = !text;
  byId("trouble").textContent = text;
}

// Look again while there is nothing to label, and while the server does not answer.
async function poll() {
  const { label } = views;
  if (label.isBusy || document.hidden || !(label.isWaiting || isLost)) return;
  try {
    await label.refresh();
    if (isLost) trouble("");
    isLost = false;
  } catch (error) {
    failed(error);
  }
}

function open(name) {
  view = name;
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-current", button.dataset.view === name ? "page" : "false");
  }
  document.querySelector(`[data-view=${name}]`).scrollIntoView({ block: "nearest", inline: "nearest" });
  for (const each of NAMES) byId(`${each}-view`).hidden = each !== name;
  for (const each of NAMES) views[each].open(each === name);
}

function showKeys() {
  byId("keys-dialog").showModal();
  byId("keys-dialog").scrollTop = 0;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event.target)) return;
  const onControl = event.target.closest("button, summary, a");
  const isPress = event.key === " " || event.key === "Enter"; // they activate what has the focus
  const isView = event.shiftKey && VIEW_KEYS[event.code] && !/^[0-9]$/.test(event.key); // some keyboards need Shift for a digit
  if (isView) open(VIEW_KEYS[event.code]);
  else if (event.key.toLowerCase() === "h") showKeys();
  else if (!views[view].onKey(event, Boolean(onControl && isPress))) return;
  event.preventDefault();
}

// A click leaves the focus on a button, where Space would press it again; after a click with the mouse it goes to the item.
function afterClick(event) {
  if (event.detail > 0 && event.target.closest("#classes .class, #tools button, #strip button")) byId("stage").focus({ preventScroll: true });
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", afterClick);
byId("show-keys").onclick = showKeys;
for (const button of document.querySelectorAll("[data-view]")) button.onclick = () => open(button.dataset.view);
start().catch((error) => trouble(error.message));
