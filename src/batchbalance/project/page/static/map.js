// All items in two dimensions. Hover shows an item, a click opens it, a lasso queues a region; a list has the same items.

import { fetched, fetchedBytes } from "./api.js";
import { button, el, notice, number, plural, say } from "./dom.js";
import { openEntry, queueRows, toldEntry } from "./entry.js";
import { small, titleOf } from "./item.js";
import { colouring, MODES } from "./palette.js";
import { Plot } from "./plot.js";

const EVERY_MS = 2500;
const PER_LIST = 30;
const HOVER_MS = 60;
const STEP = 1.5;
const HINT = "Arrows go from item to item, Enter opens one, Q queues it or the selection, L draws a lasso, V selects what is in view, plus and minus zoom, 0 shows all.";
const RINGS = "A ring is a question of the last batch. The rings of a good batch are spread: each stands for the items around it, where labels were missing.";
const LISTS = { batch: "Last batch", selected: "Selected", seen: "In view" };
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class MapView {
  constructor(box, shared) {
    Object.assign(this, { box, shared, found: null, files: {}, mode: "label", layout: null, row: -1, selected: [], listed: "batch", page: 0 });
    this.known = new Map(); // entries by row
    this.isLasso = false;
    this.build();
    this.plot = new Plot(this.canvas);
    this.watch();
    setInterval(() => this.isOpen && !document.hidden && this.load(), EVERY_MS);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colour());
    new ResizeObserver(() => this.isOpen && this.plot.draw()).observe(this.canvas);
  }

  build() {
    this.canvas = el("canvas", { id: "map-canvas", tabIndex: 0, role: "application", "aria-label": "Map of all items", "aria-describedby": "map-hint" });
    this.tip = el("div", { className: "map-tip", hidden: true });
    this.message = el("div", { className: "map-message" });
    this.modes = this.select("Colour by", MODES, (value) => ((this.mode = value), this.colour()));
    this.layouts = this.select("Layout", { pca: "principal components", tsne: "neighbours (t-SNE)" }, (value) => ((this.layout = value), this.place(true)));
    this.lassoButton = button("Lasso", () => this.setLasso(!this.isLasso), "", "L");
    this.queueButton = button("Queue", () => this.queue(), "primary", "Q");
    this.legend = el("ul", { className: "legend", "aria-label": "Colours" });
    this.lists = el("div", { className: "row", role: "group", "aria-label": "Which items to list" });
    this.list = el("ul", { className: "map-list", "aria-label": "Items of the map" });
    this.pages = el("div", { className: "row" });
    const zooms = el("div", { className: "zoom", role: "group", "aria-label": "Zoom" }, ...[["−", "Zoom out", () => this.plot.zoomBy(1 / STEP)], ["All", "Show all", () => this.showAll()], ["+", "Zoom in", () => this.plot.zoomBy(STEP)]].map(([text, label, onclick]) => el("button", { type: "button", textContent: text, "aria-label": label, onclick })));
    this.box.append(
      el("div", { className: "map-tools" }, this.modes.label, this.layouts.label, this.lassoButton, button("Select view", () => this.selectView(), "", "V"), this.queueButton),
      el("div", { className: "map-room" }, this.canvas, this.tip, this.message, zooms),
      el("aside", { className: "map-side" }, this.legend, this.lists, this.list, this.pages, el("p", { className: "quiet-text", textContent: RINGS }), el("p", { id: "map-hint", className: "quiet-text by-keys", textContent: HINT })),
    );
  }

  select(name, options, changed) {
    const field = el("select", {}, ...Object.entries(options).map(([value, textContent]) => el("option", { value, textContent })));
    field.onchange = () => changed(field.value);
    return { field, label: el("label", {}, el("span", { textContent: name }), field) };
  }

  open(isOpen) {
    this.isOpen = isOpen;
    if (!isOpen) return;
    this.load();
    this.canvas.focus({ preventScroll: true });
  }

  // Ask what there is, and fetch what is new: coordinates, labels, and what the model says.
  async load() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      const found = await fetched("/api/map");
      const before = this.found;
      this.found = found;
      this.tell();
      const isNewPlace = (await this.take("pca", found.pca)) | (await this.take("tsne", found.better));
      const isNewModel = await this.take("model", found.model);
      const isNewLabel = before?.change !== found.change;
      if (isNewLabel) this.labels = new Uint16Array(await fetchedBytes("/map/labels"));
      if (isNewPlace) this.place(Boolean(before));
      if (isNewLabel || isNewModel || isNewPlace) {
        this.known.clear();
        this.colour();
      }
      if (String(before?.batch) !== String(found.batch) || isNewLabel || isNewPlace) this.drawList();
    } catch (error) {
      this.shared.failed(error);
    } finally {
      this.isLoading = false;
    }
  }

  async take(name, file) {
    if (!file || this.files[name]?.file === file) return false;
    this.files[name] = { file, bytes: await fetchedBytes("/map/file", { name: file }) };
    return true;
  }

  tell() {
    const { pca, trouble, better, isPending, count } = this.found;
    this.layouts.field.options[1].disabled = !better;
    if (pca) this.message.replaceChildren(...(better || !isPending ? [] : ["A better layout is being computed, and replaces this one by itself."]));
    else if (trouble) this.message.replaceChildren(notice("There is no map", `${trouble} Labelling goes on without it.`));
    else this.message.replaceChildren(notice("Laying out the map", `${plural(count, "item")} are placed by their embeddings. The map comes by itself.`));
  }

  // Place the points by the layout that was chosen; by the best one if none was.
  place(isMoving) {
    const name = this.layout ?? (this.files.tsne ? "tsne" : "pca");
    const file = this.files[name] ?? this.files.pca;
    if (!file) return;
    this.layouts.field.value = name;
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.plot.setPlaces(new Uint16Array(file.bytes), isMoving && !isCalm);
    this.draw();
  }

  colour() {
    if (!this.files.pca || !this.labels) return;
    const made = colouring(this.mode, this.found, this.labels, this.files.model?.bytes);
    Object.assign(this.plot, { colours: made.colours, palette: made.palette, isLarge: this.mode === "label" });
    this.legend.replaceChildren(
      ...made.legend.map(({ css, name, count }) => {
        const swatch = el("span", { className: "swatch" });
        swatch.style.background = css;
        return el("li", {}, swatch, el("span", { dir: "auto", className: "name", textContent: name }), el("span", { className: "quiet-text", textContent: count === undefined ? "" : number(count) }));
      }),
      el("li", {}, el("span", { className: "swatch ring" }), el("span", { textContent: "chosen in the last batch" }), el("span", { className: "quiet-text", textContent: number(this.found.batch.length) })),
    );
    this.draw();
  }

  draw() {
    if (!this.found) return;
    const css = getComputedStyle(document.documentElement);
    const [ink, accent] = ["--ink", "--focus"].map((name) => css.getPropertyValue(name).trim());
    this.plot.lineColour = accent;
    this.plot.rings = [
      { rows: this.selected.length <= 5000 ? this.selected : [], colour: accent, width: 1, radius: 4 },
      { rows: this.found.batch, colour: ink, width: 2, radius: 7 },
      { rows: this.row >= 0 ? [this.row] : [], colour: accent, width: 4, radius: 10 },
    ];
    this.queueButton.disabled = !(this.selected.length || this.row >= 0);
    this.plot.draw();
  }

  // The pointer: hover shows, click opens, drag moves or draws a lasso, the wheel and two fingers zoom.
  watch() {
    const { canvas, plot } = this;
    const at = (event) => [event.offsetX, event.offsetY];
    const pointers = new Map();
    let isDragged = false;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      plot.zoomBy(Math.exp(-event.deltaY / 300), ...at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, at(event));
      isDragged = pointers.size > 1;
      if (this.isLasso || event.shiftKey) plot.line = [at(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      const now = at(event);
      if (!before) return this.hover(...now);
      if (Math.hypot(now[0] - before[0], now[1] - before[1]) < 3) return;
      isDragged = true;
      this.tip.hidden = true;
      if (pointers.size > 1) {
        plot.line = null;
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const apart = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
        plot.zoomBy(apart(now) / apart(before), ...other);
      } else if (plot.line) {
        plot.line.push(now);
        plot.draw();
      } else plot.pan(now[0] - before[0], now[1] - before[1]);
      pointers.set(event.pointerId, now);
    });
    canvas.addEventListener("pointerup", (event) => {
      pointers.delete(event.pointerId);
      const { line } = plot;
      plot.line = null;
      if (line?.length > 2) {
        this.setLasso(false);
        this.takeIn(plot.inside(line));
      } else if (!isDragged) this.clicked(...at(event));
    });
    canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  setLasso(isLasso) {
    this.isLasso = isLasso;
    this.lassoButton.setAttribute("aria-pressed", String(isLasso));
    this.canvas.classList.toggle("lasso", isLasso);
    if (isLasso) say("Draw around items. V selects what is in view without a pointer.", true);
  }

  takeIn(rows) {
    this.selected = rows;
    this.show("selected");
    this.draw();
    say(`${plural(rows.length, "item")} selected. Q queues them.`, true);
  }

  selectView() {
    this.takeIn(this.plot.inView);
  }

  // Show where an item lies, among the rings of its batch.
  reveal(row) {
    this.row = row;
    this.showAll();
    this.draw();
  }

  showAll() {
    this.plot.fit();
    this.plot.draw();
  }

  hover(x, y) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      const row = this.found ? this.plot.nearest(x, y) : -1;
      this.tip.hidden = row < 0;
      if (row < 0) return;
      const [entry] = await this.entries([row]);
      this.tip.replaceChildren(...(entry.item ? [small(entry.item), el("strong", { dir: "auto", textContent: toldEntry(entry) }), el("span", { className: "id", dir: "auto", textContent: entry.item.id })] : [entry.state]));
      const [px, py] = this.plot.at(row);
      const isRight = px > this.canvas.clientWidth / 2;
      Object.assign(this.tip.style, { left: isRight ? "auto" : `${px + 14}px`, right: isRight ? `${this.canvas.clientWidth - px + 14}px` : "auto", top: `${Math.min(py, this.canvas.clientHeight - 150)}px` });
    }, HOVER_MS);
  }

  clicked(x, y) {
    const row = this.found ? this.plot.nearest(x, y, 20) : -1;
    if (row >= 0) this.openRow(row);
  }

  async openRow(row) {
    this.row = row;
    this.draw();
    const [entry] = await this.entries([row]);
    if (entry.item) openEntry(this.shared, entry, () => this.load());
    else say(entry.state, true);
  }

  // Entries of rows, asked of the server once.
  async entries(rows) {
    const missing = rows.filter((row) => !this.known.has(row));
    if (missing.length) {
      const { entries } = await fetched("/api/items", { rows: missing.join(",") });
      for (const entry of entries) this.known.set(entry.row, entry);
    }
    return rows.map((row) => this.known.get(row));
  }

  async queue() {
    const rows = this.selected.length ? this.selected : this.row >= 0 ? [this.row] : [];
    if (!rows.length) return say("Select items first: draw a lasso, or press V for what is in view.", true);
    const most = 100_000; // a request has a limit, and no more than a hundred are asked at a time
    const some = rows.length <= most ? rows : rows.filter((_, place) => place % Math.ceil(rows.length / most) === 0);
    try {
      await queueRows(this.shared, some);
      this.selected = [];
      await this.load();
      this.show("batch");
    } catch (error) {
      this.shared.failed(error);
    }
  }

  show(name) {
    this.listed = name;
    this.page = 0;
    this.drawList();
  }

  // The same items as a list, for screen readers and whoever prefers one.
  async drawList() {
    if (!this.files.pca) return;
    const rows = { batch: () => this.found.batch, selected: () => this.selected, seen: () => this.plot.inView }[this.listed]();
    const shown = rows.slice(this.page * PER_LIST, (this.page + 1) * PER_LIST);
    const entries = await this.entries(shown).catch(() => []);
    this.lists.replaceChildren(...Object.entries(LISTS).map(([name, text]) => el("button", { type: "button", textContent: text, "aria-pressed": String(name === this.listed), onclick: () => this.show(name) })));
    this.list.replaceChildren(...entries.map((entry) => el("li", {}, this.listItem(entry))));
    const step = (by) => () => ((this.page += by), this.drawList());
    const last = Math.ceil(rows.length / PER_LIST);
    this.pages.replaceChildren(el("span", { className: "quiet-text", textContent: plural(rows.length, "item") }), ...(last > 1 ? [button("Previous", step(-1), "quiet"), button("Next", step(1), "quiet")] : []));
    const [previous, next] = this.pages.querySelectorAll("button");
    if (previous) Object.assign(previous, { disabled: this.page === 0 });
    if (next) Object.assign(next, { disabled: this.page + 1 >= last });
  }

  listItem(entry) {
    if (!entry.item) return el("p", { className: "quiet-text", textContent: entry.state });
    const show = () => {
      this.row = entry.row;
      this.plot.reveal(entry.row);
      this.draw();
    };
    return el("button", { type: "button", className: "map-item", onfocus: show, onclick: () => this.openRow(entry.row) }, small(entry.item), el("span", { className: "name", dir: "auto", textContent: titleOf(entry.item) }), el("span", { className: "quiet-text", textContent: toldEntry(entry) }));
  }

  async go(dx, dy) {
    const { width, height } = this.plot.frame;
    this.row = this.row < 0 ? this.plot.nearest(width / 2, height / 2, width) : this.plot.beside(this.row, dx, dy);
    if (this.row < 0) return;
    this.plot.reveal(this.row);
    this.draw();
    const { row } = this;
    const [entry] = await this.entries([row]);
    if (this.row === row) say(entry.item ? `${titleOf(entry.item)}: ${toldEntry(entry)}` : entry.state);
    const [x, y] = this.plot.at(row);
    this.hover(x, y);
  }

  onKey(event, isPress) {
    if (isPress || !this.found) return false;
    const key = event.key.toLowerCase();
    const way = DIRECTIONS[event.key];
    const isOnMap = event.target === this.canvas || event.target === document.body;
    if (way && !isOnMap) return false; // they scroll what has the focus
    if (way && event.shiftKey) this.plot.pan(-80 * way[0], -80 * way[1]);
    else if (way) this.go(...way).catch(this.shared.failed);
    else if (event.key === "Enter" && isOnMap && this.row >= 0) this.openRow(this.row);
    else if (key === "q") this.queue();
    else if (key === "l") this.setLasso(!this.isLasso);
    else if (key === "v") this.selectView();
    else if (key === "m" && this.row >= 0) this.entries([this.row]).then(([entry]) => entry.item && this.shared.like(entry.item));
    else if (key === "+" || key === "=") this.plot.zoomBy(STEP);
    else if (key === "-") this.plot.zoomBy(1 / STEP);
    else if (key === "0") this.showAll();
    else if (key === "escape") this.takeIn([]);
    else return false;
    return true;
  }
}
