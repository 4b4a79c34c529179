// Labelling one item after another. The server's answer to every request is the situation: what is next, and what was last.

import { fetched, followed, sent } from "./api.js";
import { Picker } from "./classes.js";
import { button, byId, el, notice, number, plural, say } from "./dom.js";
import { isEnlarged, loadAhead, move, show, small, titleOf, zoom } from "./item.js";
import { fillWhy } from "./why.js";

const MOST_SECONDS = 600;
const ZOOM_STEP = 1.3;
const MOVE_PIXELS = 80;
const SWIPE_PIXELS = 60;
const SWIPE_MS = 700;

export class Label {
  // `shared` has the facts, and what views do for each other: trouble, failed, open, like.
  constructor(shared) {
    this.shared = shared;
    this.situation = null;
    this.history = []; // the newest answer first
    this.walked = -1; // the place in the history that is shown; -1 is the next item
    this.shown = null;
    this.shownAt = 0;
    this.isBusy = false;
    this.picker = new Picker(byId("classes"), shared.facts, (name) => this.label(name));
    byId("instructions").hidden = !shared.facts.instructions;
    byId("instructions-body").textContent = shared.facts.instructions;
    byId("why").addEventListener("toggle", () => this.whyOpened());
    byId("skip").onclick = () => this.skip();
    byId("undo").onclick = () => this.undo();
    byId("flag").onclick = () => this.askFlag();
    byId("guess").onclick = () => this.showGuess().catch(shared.failed);
    byId("like").onclick = () => this.like();
    this.actions = this.keys();
    onSwipe(byId("stage"), () => (this.walked < 0 ? this.skip() : this.walkTo(this.walked - 1)), () => this.walkTo(this.walked + 1));
  }

  get current() {
    return (this.walked >= 0 ? this.history[this.walked]?.item : this.situation?.queue[0]) ?? null;
  }

  get isWaiting() {
    return this.situation && !this.situation.queue.length && this.walked < 0;
  }

  open(isOpen) {
    if (!isOpen) return;
    byId("stage").focus({ preventScroll: true }); // else Space would press the button that led here
    this.refresh().catch(this.shared.failed);
  }

  // A situation from the server becomes what is shown.
  take(found) {
    this.situation = found;
    this.history = found.recent;
    this.walked = -1;
    const { annotator } = this.shared.facts;
    byId("counts").textContent = `${annotator ? `${annotator} · ` : ""}${number(found.today)} today · ${plural(found.total, "label")} in all`;
    loadAhead(found.queue, this.shown ? [this.shown] : []);
    this.drawStrip();
    this.draw();
  }

  async refresh() {
    const found = await fetched("/api/situation");
    if (this.walked < 0) this.take(found);
  }

  draw() {
    const item = this.current;
    const isPast = this.walked >= 0;
    byId("undo").disabled = !this.situation.canUndo;
    byId("why").hidden = !item;
    byId("item-head").hidden = !item;
    for (const id of ["skip", "flag", "guess"]) byId(id).disabled = !item || (isPast && id !== "flag");
    for (const each of byId("classes").querySelectorAll("button")) each.disabled = !item;
    this.drawReviewing();
    if (!item) {
      this.shown = null;
      this.drawWaiting();
      return;
    }
    const [place, of] = this.situation.place;
    byId("item-place").textContent = isPast ? "An earlier answer" : of > 1 ? `${number(place)} of ${number(of)}` : "";
    const name = item.kind === "image" ? item.id.split("/").at(-1) : item.id;
    Object.assign(byId("item-name"), { textContent: name, title: item.id });
    const isSame = this.shown?.id === item.id;
    this.shown = item;
    if (isSame) return;
    byId("guessed").hidden = true;
    byId("why").open = false;
    document.querySelector("#label-view aside").scrollTop = 0;
    show(byId("stage"), item, () => this.shown?.id === item.id).then(() => {
      this.shownAt = performance.now();
      performance.mark("shown");
    });
  }

  // Over an earlier answer stands what it was, so that nobody changes it unknowingly.
  drawReviewing() {
    const answer = this.walked >= 0 ? this.history[this.walked] : null;
    byId("reviewing").hidden = !answer;
    byId("reviewing").replaceChildren(
      ...(answer ? [el("strong", { textContent: `${toldAnswer(answer)} ` }), "Choose a class to change it, or ", el("button", { type: "button", className: "link", textContent: "go back to the next item", onclick: () => this.back() }), "."] : []),
    );
    byId("stage").classList.toggle("past", Boolean(answer));
    const subject = JSON.stringify([this.current?.id, answer?.label]);
    if (subject !== this.subject) this.picker.set(answer?.label ?? null); // what is chosen of the item stays
    this.subject = subject;
    [...byId("strip").children].forEach((tile, place) => {
      if (place === this.walked) tile.setAttribute("aria-current", "true");
      else tile.removeAttribute("aria-current");
    });
  }

  // Nothing to label just now: what is being done, with a bar, or why nothing is, and what to do next.
  drawWaiting() {
    const stage = byId("stage");
    delete stage.dataset.item;
    const made = this.waiting();
    if (stage.dataset.notice === made.innerHTML) return; // what has the focus keeps it
    stage.dataset.notice = made.innerHTML;
    stage.replaceChildren(made);
  }

  waiting() {
    const { doing, done, total, trouble } = this.situation.choosing;
    const go = (text, view) => button(text, () => this.shared.open(view));
    if (trouble) {
      const again = button("Try again", () => this.act("/api/again", {}), "primary");
      return notice("The next items could not be chosen", `${trouble} Your labels are saved. If trying again does not help, look at what the server printed.`, again);
    }
    if (doing) {
      const made = notice(doing, "Your labels are saved. This page goes on by itself.", go("Look at the map", "map"), go("Look at Progress", "progress"));
      const bar = el("progress", { "aria-label": doing, max: total || 1 });
      if (total) bar.value = done;
      made.querySelector("h2").after(bar);
      return made;
    }
    const { taken, skipped } = this.situation;
    const actions = [go("Review doubtful labels", "review"), go("Look at Progress", "progress")];
    if (skipped) actions.unshift(button(`Ask me again what I skipped (${number(skipped)})`, () => this.act("/api/skipped", {}), "primary"));
    if (taken) return notice("Others have the items that are left", "An item that nobody answers comes back after ten minutes, and this page goes on by itself.", ...actions);
    return notice("All done", "There is nothing left to ask. `batchbalance export` writes the labels to a file.", ...actions);
  }

  drawStrip() {
    const tiles = this.situation.recent.map((answer, place) => {
      const name = answer.kind === "labelled" ? answer.label : answer.kind;
      return el(
        "button",
        { type: "button", className: `answer ${answer.kind}`, "aria-label": `${name}: ${titleOf(answer.item)}. Change it.`, onclick: () => this.walkTo(place) },
        small(answer.item),
        el("span", { className: "name", dir: "auto", textContent: name }),
      );
    });
    byId("strip").replaceChildren(...tiles);
  }

  // Send something; the situation comes back once it is on disk. One at a time: nobody answers an item not seen yet.
  async act(path, body, told = "") {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      const found = await sent(path, body);
      this.take(found);
      this.shared.trouble("");
      if (found.told ?? told) say(found.told ?? told, Boolean(found.told));
    } catch (error) {
      this.shared.failed(error);
      if (error.status !== undefined) await this.refresh();
    } finally {
      this.isBusy = false;
    }
  }

  get seconds() {
    return Math.min(MOST_SECONDS, (performance.now() - this.shownAt) / 1000);
  }

  // What is on the screen is what is answered, never an item that is still loading.
  get onStage() {
    const item = this.current;
    return item && byId("stage").dataset.item === item.id ? item : null;
  }

  label(name) {
    const item = this.onStage;
    if (item && name) return this.act("/api/label", { item: item.id, label: name, seconds: this.seconds }, `${name}.`);
  }

  skip() {
    const item = this.onStage;
    if (item && this.walked < 0) return this.act("/api/skip", { item: item.id, seconds: this.seconds }, "Skipped.");
  }

  undo() {
    if (this.situation.canUndo) return this.act("/api/undo", {});
  }

  like() {
    if (this.onStage) this.shared.like(this.onStage);
  }

  askFlag() {
    const item = this.onStage;
    if (!item) return;
    const dialog = byId("flag-dialog");
    const note = byId("flag-note");
    const isPast = this.walked >= 0;
    note.value = "";
    dialog.querySelector("[value=skip]").hidden = isPast; // an earlier answer stays
    dialog.querySelector("[value=flag]").textContent = isPast ? "Flag" : "Flag, then label";
    dialog.returnValue = "";
    dialog.onclose = () => {
      if (!dialog.returnValue) return;
      const alsoSkip = dialog.returnValue === "skip" && !isPast;
      this.act("/api/flag", { item: item.id, note: note.value, skip: alsoSkip, seconds: this.seconds }, "Flagged.");
    };
    dialog.showModal();
    note.focus();
  }

  async showGuess() {
    const item = this.onStage;
    if (!item || this.walked >= 0) return;
    await followed("/api/guess", { item: item.id }, (found) => {
      if (this.shown?.id !== item.id) return false;
      byId("guessed").hidden = false;
      byId("guessed").textContent = found.isPending ? "The model is still thinking about it." : found.sentence;
      return true;
    });
  }

  whyOpened() {
    const item = this.current;
    const isOpen = byId("why").open;
    if (!isOpen || !item) return;
    byId("why-body").replaceChildren(el("p", { className: "quiet-text", textContent: "…" }));
    byId("why-body").scrollTop = 0;
    fillWhy(byId("why-body"), item, () => this.shown?.id === item.id && byId("why").open, () => this.shared.onMap(item)).catch(this.shared.failed);
  }

  async walkTo(place) {
    if (place >= this.history.length && place >= 0) {
      const more = await fetched("/api/history", { skip: this.history.length });
      this.history = [...this.history, ...more.answers];
    }
    if (place >= this.history.length) return say("This was your first answer.", true);
    this.walked = Math.max(-1, place);
    this.draw();
    if (this.walked >= 0) say(toldAnswer(this.history[this.walked]));
  }

  back() {
    this.walked = -1;
    this.draw();
  }

  keys() {
    return {
      " ": () => this.skip(),
      Backspace: () => this.undo(),
      f: () => this.askFlag(),
      g: () => this.showGuess(),
      m: () => this.like(),
      w: () => (byId("why").open = !byId("why").open),
      ArrowUp: () => move(0, -MOVE_PIXELS),
      ArrowDown: () => move(0, MOVE_PIXELS),
      ArrowLeft: () => this.walkTo(this.walked + 1),
      ArrowRight: () => this.walked >= 0 && this.walkTo(this.walked - 1),
      Escape: () => this.back(),
      "/": () => document.querySelector("#classes .class-search")?.focus(),
      "+": () => zoom(ZOOM_STEP),
      "=": () => zoom(ZOOM_STEP),
      "-": () => zoom(1 / ZOOM_STEP),
    };
  }

  // True if the key was one of this view; `isPress` if it activates a button that has the focus.
  onKey(event, isPress) {
    if (isPress) return false;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const isUpOrDown = key === "ArrowUp" || key === "ArrowDown";
    if (isUpOrDown && event.target !== document.body && !event.target.closest("#stage")) return false; // they scroll what has the focus
    const sideways = { ArrowLeft: -MOVE_PIXELS, ArrowRight: MOVE_PIXELS }[key];
    let action = this.actions[key];
    if (!event.repeat && this.onStage && this.picker.key(key)) return true;
    if (event.shiftKey && sideways) action = () => move(sideways, 0);
    if (!action) return false;
    if (event.repeat && !key.startsWith("Arrow")) return true; // a key held down answers one item
    Promise.resolve(action()).catch(this.shared.failed);
    return true;
  }
}

// A quick stroke of one finger to the left or to the right, unless it moves an enlarged image.
function onSwipe(stage, left, right) {
  let from = null;
  let fingers = 0;
  stage.addEventListener("pointerdown", (event) => {
    fingers = event.isPrimary ? 1 : 2;
    from = event.pointerType === "touch" && fingers === 1 && !isEnlarged() ? event : null;
  });
  stage.addEventListener("pointerup", (event) => {
    const [x, y] = from ? [event.clientX - from.clientX, event.clientY - from.clientY] : [0, 0];
    if (fingers === 1 && Math.abs(x) > SWIPE_PIXELS && Math.abs(x) > 2 * Math.abs(y) && event.timeStamp - from.timeStamp < SWIPE_MS) (x < 0 ? left : right)();
    from = null;
  });
}

function toldAnswer(answer) {
  if (answer.kind === "labelled") return `You answered “${answer.label}”.`;
  return answer.kind === "skipped" ? "You skipped this one." : `You flagged this one: ${answer.note || "no note"}.`;
}
