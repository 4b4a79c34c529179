// How far the labels are, how good the model is, and whether to stop. Charts are SVG, made here.

import { fetched } from "./api.js";
import { el, plural, svg } from "./dom.js";
import { bar } from "./why.js";

const EVERY_MS = 4000;
const COMPUTING = "This is being computed, which takes some seconds.";
const HEIGHT = 260;
const SIDES = { left: 54, right: 12, top: 12, bottom: 34 };

const percent = (share) => `${(100 * share).toFixed(0)} %`;
const range = (found) => `${percent(found.value)} (${percent(found.interval.low)} to ${percent(found.interval.high)})`;

export class Progress {
  constructor(box) {
    this.box = box;
    this.isOpen = false;
    this.last = "";
    setInterval(() => this.isOpen && !document.hidden && this.load(), EVERY_MS);
    addEventListener("resize", () => this.isOpen && this.fitChart());
  }

  open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen) this.load();
  }

  async load() {
    let found;
    try {
      found = await fetched("/api/progress");
    } catch {
      return; // the label view tells of trouble; the next look may work
    }
    const text = JSON.stringify(found);
    if (text === this.last) return;
    this.last = text;
    this.draw(found);
  }

  draw(found) {
    this.curve = found.status?.curve ?? [];
    this.box.replaceChildren(
      el("div", { className: "cards" }, labelsCard(found), accuracyCard(found), balanceCard(found), adviceCard(found)),
    );
    this.fitChart();
  }

  // A chart as wide as there is room, so that its letters keep their size.
  fitChart() {
    const room = this.box.querySelector(".chart-room");
    if (room) room.replaceChildren(chart(this.curve, room.clientWidth));
  }
}

function card(title, className, ...children) {
  return el("section", { className: `card ${className}` }, el("h2", { textContent: title }), ...children);
}

function labelsCard({ today, total, people }) {
  const names = people.length > 1 ? [el("ul", { className: "bars" }, ...people.map((one) => bar(one.name, one.count / Math.max(1, total), String(one.count))))] : [];
  return card(
    "Labels",
    "labels",
    el("p", { className: "figure", textContent: total.toLocaleString("en") }),
    el("p", { className: "quiet-text", textContent: `in all, ${today.toLocaleString("en")} of them today` }),
    ...names,
  );
}

function accuracyCard({ status }) {
  const now = status?.accuracy;
  const warning = status?.model_warning ? [el("p", { className: "warning", textContent: `Warning: ${status.model_warning}.` })] : [];
  if (!now) {
    const why = status ? (status.unknown?.[0] ?? "It is not known yet: it comes with the first audit labels.") : COMPUTING;
    return card("Accuracy", "accuracy", el("p", { textContent: why }), ...warning);
  }
  const between = `between ${percent(now.interval.low)} and ${percent(now.interval.high)}, 95 % sure (${now.valid}); ${now.correct} of ${plural(now.total, `${now.source} label`)} right${now.about && `; ${now.about}`}`;
  return card(
    "Accuracy",
    "accuracy",
    el("p", { className: "figure", textContent: percent(now.value) }),
    el("p", { className: "quiet-text", textContent: between }),
    ...warning,
    ...beside(status.quality),
    ...(status.curve.length > 1 ? [el("div", { className: "chart-room" })] : [el("p", { className: "quiet-text", textContent: "A curve comes with the next models." })]),
  );
}

// What an accuracy means: what one class alone would reach, and how good the model is at all classes alike.
function beside(quality) {
  if (!quality?.macro_f1) return [];
  const all = quality.classes.length;
  const over = quality.num_measured === all ? "classes" : `${quality.num_measured} of ${all} classes (the others have no label to measure by yet)`;
  const told = [`Always “${quality.majority}” would reach ${range(quality.majority_accuracy)}.`, `Macro F1, the mean over ${over}: ${range(quality.macro_f1)}.`];
  return told.map((textContent) => el("p", { className: "quiet-text", textContent }));
}

// Accuracy over labels, with its interval as a band.
function chart(curve, width) {
  const most = Math.max(...curve.map((one) => one.num_labels));
  const least = Math.min(...curve.map((one) => one.num_labels));
  const x = (count) => SIDES.left + ((count - least) / Math.max(1, most - least)) * (width - SIDES.left - SIDES.right);
  const y = (share) => HEIGHT - SIDES.bottom - share * (HEIGHT - SIDES.top - SIDES.bottom);
  const point = (one, share) => `${x(one.num_labels).toFixed(1)},${y(share).toFixed(1)}`;
  const upper = curve.map((one) => point(one, one.interval.high));
  const lower = curve.map((one) => point(one, one.interval.low)).reverse();
  const last = curve.at(-1);
  const told = `Accuracy from ${percent(curve[0].correct / curve[0].total)} with ${plural(least, "label")} to ${percent(last.correct / last.total)} with ${most}.`;
  const lines = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
    svg("line", { class: "rule", x1: SIDES.left, x2: width - SIDES.right, y1: y(share), y2: y(share) }),
    text(SIDES.left - 8, y(share) + 4, percent(share), "end"),
  ]);
  const ends = [
    text(x(least), HEIGHT - 12, String(least), "start"),
    text((SIDES.left + width - SIDES.right) / 2, HEIGHT - 12, "labels", "middle"),
    text(x(most), HEIGHT - 12, String(most), "end"),
  ];
  return svg(
    "svg",
    { class: "chart", width, height: HEIGHT, role: "img", "aria-label": told },
    ...lines,
    ...ends,
    svg("polygon", { class: "band", points: [...upper, ...lower].join(" ") }),
    svg("polyline", { class: "line", points: curve.map((one) => point(one, one.correct / one.total)).join(" ") }),
    svg("circle", { class: "dot", cx: x(last.num_labels), cy: y(last.correct / last.total), r: 5 }),
  );
}

function text(x, y, content, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = content;
  return made;
}

function balanceCard({ classes, status }) {
  const most = Math.max(1, ...classes.map((one) => one.count));
  const rows = classes.map((one) => bar(one.name, one.count / most, String(one.count)));
  const figures = { share: "share of all items", precision: "precision", recall: "recall", f1: "F1" };
  const told = (status?.quality?.classes ?? []).flatMap((one) => {
    const known = Object.keys(figures).filter((key) => one[key]).map((key) => `${figures[key]} ${range(one[key])}`);
    return known.length ? [el("li", {}, el("strong", { textContent: `${one.name}: ` }), known.join(", "))] : [];
  });
  return card(
    "Classes",
    "balance",
    el("ul", { className: "bars", tabIndex: 0, "aria-label": "Labels of each class" }, ...rows),
    ...(told.length ? [el("details", {}, el("summary", { textContent: "How good the model is at each" }), el("ul", { className: "quiet-text" }, ...told))] : []),
  );
}

function adviceCard({ status }) {
  const rules = status?.advice ?? [];
  if (!rules.length) return card("Stop or go on?", "advice", el("p", { textContent: status ? "Advice comes once a model has been trained." : COMPUTING }));
  const items = rules.map((one) =>
    el(
      "li",
      {},
      el("span", { className: `verdict ${one.verdict.replaceAll(" ", "-")}`, textContent: one.verdict }),
      el("p", {}, el("strong", { textContent: `${one.rule[0].toUpperCase()}${one.rule.slice(1)}. ` }), one.sentence),
    ),
  );
  const unknown = (status.unknown ?? []).map((one) => el("li", {}, el("span", { className: "verdict", textContent: "unknown" }), el("p", { textContent: one })));
  return card("Stop or go on?", "advice", el("ul", { className: "rules" }, ...items, ...unknown));
}
