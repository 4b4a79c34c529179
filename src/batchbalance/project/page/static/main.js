// Labelling by keyboard. The server's answer to every request is the situation: what is next, and what was last.

import { fetched, followed, sent } from "./api.js";
import { fillClasses } from "./classes.js";
import { byId, el, isTyping, keyPlace, plural, say } from "./dom.js";
import { Grid } from "./grid.js";
import { loadAhead, move, show, small, titleOf, zoom } from "./item.js";
import { Progress } from "./progress.js";
import { fillWhy } from "./why.js";

const POLL_MS = 700;
const MOST_SECONDS = 600;
const ZOOM_STEP = 1.3;
const MOVE_PIXELS = 80;

const KEYS = [
  ["1 – 9, 0", "the class with that number"],
  ["/", "find a class by its name"],
  ["Space", "skip: not asked again in this round"],
  ["Backspace", "undo, as often as you like"],
  ["F", "flag, with a note"],
  ["G", "show the model's guess"],
  ["W", "why this one?"],
  ["← →", "walk through earlier answers"],
  ["Escape", "back to the item that is next"],
  ["+ −", "zoom; or the wheel, and drag to move"],
  ["↑ ↓", "scroll a long text, or move an enlarged image; Shift with ← → moves it sideways"],
  ["Enter", "in the grid: confirm all"],
  ["H", "this list"],
];

let facts = null;
let situation = null;
let history = []; // the newest answer first
let walked = -1; // the place in the history that is shown; -1 is the next item
let shown = null;
let shownAt = 0;
let isBusy = false;
let isLost = false; // whether the server did not answer
let view = "label";
let grid = null;
let progress = null;

const current = () => (walked >= 0 ? history[walked]?.item : situation?.queue[0]) ?? null;

async function start() {
  facts = await fetched("/api/facts");
  document.title = `${facts.project} · batchbalance`;
  byId("project").textContent = facts.project;
  fillClasses(byId("classes"), facts.classes, label);
  byId("instructions").hidden = !facts.instructions;
  byId("instructions-body").textContent = facts.instructions;
  byId("keys-list").append(...KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", { textContent: key })), el("dd", { textContent: what })]));
  grid = new Grid(byId("grid-view"), facts.classes, take, failed);
  progress = new Progress(byId("progress-view"));
  take(await fetched("/api/situation"));
  setInterval(poll, POLL_MS);
}

// A situation from the server becomes what is shown.
function take(found) {
  situation = found;
  history = found.recent;
  walked = -1;
  const name = facts.annotator ? `${facts.annotator} · ` : "";
  byId("counts").textContent = `${name}${found.today.toLocaleString("en")} today · ${plural(found.total, "label")} in all`;
  loadAhead(found.queue, shown ? [shown] : []);
  drawStrip();
  draw();
}

function draw() {
  const item = current();
  byId("undo").disabled = !situation.canUndo;
  byId("why").hidden = !item;
  for (const id of ["skip", "flag", "guess"]) byId(id).disabled = !item || (walked >= 0 && id !== "flag");
  for (const button of byId("classes").querySelectorAll("button")) button.disabled = !item;
  drawReviewing();
  if (!item) {
    shown = null;
    drawWaiting();
    return;
  }
  const isSame = shown?.id === item.id;
  shown = item;
  if (isSame) return;
  byId("guessed").hidden = true;
  byId("why").open = false;
  const isWanted = () => shown?.id === item.id;
  show(byId("stage"), item, isWanted).then(() => {
    shownAt = performance.now();
    performance.mark("shown");
  });
}

function drawReviewing() {
  const answer = walked >= 0 ? history[walked] : null;
  byId("reviewing").hidden = !answer;
  byId("reviewing").replaceChildren(
    ...(answer ? [toldAnswer(answer), " Choose a class to change it. ", el("button", { type: "button", className: "link", textContent: "Back", onclick: back })] : []),
  );
  for (const button of byId("classes").querySelectorAll("button.class")) {
    const isChosen = answer?.label === button.dataset.name;
    button.classList.toggle("chosen", isChosen);
    if (answer) button.setAttribute("aria-pressed", String(isChosen));
    else button.removeAttribute("aria-pressed");
  }
}

function toldAnswer(answer) {
  if (answer.kind === "labelled") return `You answered “${answer.label}”.`;
  return answer.kind === "skipped" ? "You skipped this one." : `You flagged this one: ${answer.note || "no note"}.`;
}

// Nothing to label just now: what is being done, with a bar, or why nothing is.
function drawWaiting() {
  const stage = byId("stage");
  const { doing, done, total, trouble } = situation.choosing;
  delete stage.dataset.item;
  const notice = el("div", { className: "notice", role: "status" });
  if (trouble) {
    notice.append(
      el("h2", { textContent: "The next items could not be chosen" }),
      el("p", { textContent: trouble }),
      el("button", { type: "button", className: "primary", textContent: "Try again", onclick: () => act("/api/again", {}) }),
    );
  } else if (doing) {
    const bar = el("progress", { "aria-label": doing, max: total || 1 });
    if (total) bar.value = done;
    notice.append(el("h2", { textContent: doing }), bar, el("p", { textContent: "Your labels are saved. This page goes on by itself." }));
  } else {
    notice.append(
      el("h2", { textContent: situation.taken ? "Others have the items that are left" : "All done" }),
      el("p", { textContent: situation.taken ? "An item that nobody answers comes back after ten minutes." : "There is nothing left to ask." }),
    );
    if (situation.skipped) {
      const told = `Ask me again what I skipped (${situation.skipped.toLocaleString("en")})`;
      notice.append(el("button", { type: "button", className: "primary", textContent: told, onclick: () => act("/api/skipped", {}) }));
    }
  }
  if (stage.dataset.notice === notice.innerHTML) return; // what has the focus keeps it
  stage.dataset.notice = notice.innerHTML;
  stage.replaceChildren(notice);
}

function drawStrip() {
  const tiles = situation.recent.map((answer, place) => {
    const told = answer.kind === "labelled" ? answer.label : answer.kind;
    return el(
      "button",
      { type: "button", className: `answer ${answer.kind}`, "aria-label": `${told}: ${titleOf(answer.item)}. Change it.`, onclick: () => walkTo(place) },
      small(answer.item),
      el("span", { className: "name", dir: "auto", textContent: told }),
    );
  });
  byId("strip").replaceChildren(...tiles);
}

// Send something; the situation comes back once it is on disk. One at a time: nobody answers an item not seen yet.
async function act(path, body, told = "") {
  if (isBusy) return;
  isBusy = true;
  try {
    take(await sent(path, body));
    trouble("");
    if (told) say(told);
  } catch (error) {
    failed(error);
    if (!isLost) await refresh();
  } finally {
    isBusy = false;
  }
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

async function refresh() {
  const found = await fetched("/api/situation");
  if (walked < 0) take(found);
}

// Look again while there is nothing to label, and while the server does not answer.
async function poll() {
  const isWaiting = situation && !situation.queue.length && walked < 0;
  if (isBusy || document.hidden || !(isWaiting || isLost)) return;
  try {
    await refresh();
    if (isLost) trouble("");
    isLost = false;
  } catch (error) {
    isLost = true;
    trouble(error.message);
  }
}

const seconds = () => Math.min(MOST_SECONDS, (performance.now() - shownAt) / 1000);

// What is on the screen is what is answered, never an item that is still loading.
const onStage = () => {
  const item = current();
  return item && byId("stage").dataset.item === item.id ? item : null;
};

function label(name) {
  const item = onStage();
  if (item && name) return act("/api/label", { item: item.id, label: name, seconds: seconds() }, `${name}.`);
}

function skip() {
  const item = onStage();
  if (item && walked < 0) return act("/api/skip", { item: item.id, seconds: seconds() }, "Skipped.");
}

function undo() {
  if (situation.canUndo) return act("/api/undo", {}, "Undone.");
}

function askFlag() {
  const item = onStage();
  if (!item) return;
  const dialog = byId("flag-dialog");
  const note = byId("flag-note");
  note.value = "";
  dialog.querySelector("[value=skip]").hidden = walked >= 0; // an earlier answer stays
  dialog.querySelector("[value=flag]").textContent = walked >= 0 ? "Flag" : "Flag, then label";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (!dialog.returnValue) return;
    const alsoSkip = dialog.returnValue === "skip" && walked < 0;
    act("/api/flag", { item: item.id, note: note.value, skip: alsoSkip, seconds: seconds() }, "Flagged.");
  };
  dialog.showModal();
  note.focus();
}

async function showGuess() {
  const item = onStage();
  if (!item || walked >= 0) return;
  await followed("/api/guess", { item: item.id }, (found) => {
    if (shown?.id !== item.id) return false;
    byId("guessed").hidden = false;
    byId("guessed").textContent = found.isPending ? "The model is still thinking about it." : found.sentence;
    return true;
  });
}

function whyOpened() {
  const item = current();
  if (!byId("why").open || !item) return;
  byId("why-body").replaceChildren(el("p", { className: "quiet-text", textContent: "…" }));
  fillWhy(byId("why-body"), item, () => shown?.id === item.id && byId("why").open)
    .then(() => toSee(byId("why")))
    .catch((error) => trouble(error.message));
}

// Scroll the column at the side, and nothing else, until a part of it is seen; from its beginning if it is too long.
function toSee(part) {
  const column = part.closest("aside");
  const top = part.offsetTop - column.offsetTop;
  const below = top + part.offsetHeight - column.clientHeight;
  if (below > column.scrollTop) column.scrollTop = Math.min(top, below);
}

async function walkTo(place) {
  if (place >= history.length && place >= 0) {
    const more = await fetched("/api/history", { skip: history.length });
    history = [...history, ...more.answers];
  }
  if (place >= history.length) return say("This was your first answer.");
  walked = Math.max(-1, place);
  draw();
  if (walked >= 0) say(toldAnswer(history[walked]));
}

function back() {
  walked = -1;
  draw();
}

function open(name) {
  view = name;
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-current", button.dataset.view === name ? "page" : "false");
  }
  for (const each of ["label", "grid", "progress"]) byId(`${each}-view`).hidden = each !== name;
  grid.open(name === "grid");
  progress.open(name === "progress");
  if (name !== "label") return;
  byId("stage").focus({ preventScroll: true }); // else Space would press the button that led here
  refresh().catch((error) => trouble(error.message));
}

const ACTIONS = {
  " ": skip,
  Backspace: undo,
  f: askFlag,
  g: showGuess,
  w: () => (byId("why").open = !byId("why").open),
  h: () => byId("keys-dialog").showModal(),
  ArrowUp: () => move(0, -MOVE_PIXELS),
  ArrowDown: () => move(0, MOVE_PIXELS),
  ArrowLeft: () => walkTo(walked + 1),
  ArrowRight: () => walked >= 0 && walkTo(walked - 1),
  Escape: back,
  "/": () => document.querySelector("#classes .class-search")?.focus(),
  "+": () => zoom(ZOOM_STEP),
  "=": () => zoom(ZOOM_STEP),
  "-": () => zoom(1 / ZOOM_STEP),
};
const WITH_SHIFT = {
  ...ACTIONS,
  ArrowLeft: () => move(-MOVE_PIXELS, 0),
  ArrowRight: () => move(MOVE_PIXELS, 0),
};
const EVERYWHERE = ["h"];

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event.target)) return;
  if (view === "grid" && grid.onKey(event, keyPlace(event.key))) return;
  const onControl = event.target.closest("button, summary, a");
  if (onControl && (event.key === " " || event.key === "Enter")) return; // they activate what has the focus
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (view !== "label" && !EVERYWHERE.includes(key)) return;
  const isUpOrDown = key === "ArrowUp" || key === "ArrowDown";
  if (isUpOrDown && event.target !== document.body && !event.target.closest("#stage")) return; // they scroll what has the focus
  const place = keyPlace(key);
  const action = place >= 0 ? () => label(facts.classes[place]) : (event.shiftKey ? WITH_SHIFT : ACTIONS)[key];
  if (!action) return;
  event.preventDefault();
  if (event.repeat && !key.startsWith("Arrow")) return; // a key held down answers one item
  Promise.resolve(action()).catch((error) => trouble(error.message));
}

// A click leaves the focus on a button, where Space would press it again; after a click with the mouse it goes to the item.
function afterClick(event) {
  if (event.detail > 0 && event.target.closest("#classes .class, #tools button, #strip button")) byId("stage").focus({ preventScroll: true });
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", afterClick);
byId("why").addEventListener("toggle", whyOpened);
byId("skip").onclick = skip;
byId("undo").onclick = undo;
byId("flag").onclick = askFlag;
byId("guess").onclick = () => showGuess().catch((error) => trouble(error.message));
byId("show-keys").onclick = () => byId("keys-dialog").showModal();
for (const button of document.querySelectorAll("[data-view]")) button.onclick = () => open(button.dataset.view);
start().catch((error) => trouble(error.message));
