// How far the labels are, how good the model is, and whether to stop. Charts are SVG, made here.

import { fetched } from "./api.js";
import { button, el, number, percent, plural, svg, told } from "./dom.js";
import { bar } from "./why.js";

const EVERY_MS = 4000;
const LEAST_FOR_FIGURE = 10; // audit labels; below, only the range is shown
const HEIGHT = 260;
const SIDES = { left: 54, right: 12, top: 12, bottom: 34 };

const span = ({ low, high }) => `${percent(low)} to ${percent(high)}`;
const range = (found) => `${percent(found.value)} (${span(found.interval)})`;

export class Progress {
  constructor(box, shared) {
    this.box = box;
    this.shared = shared;
    this.isOpen = false;
    this.last = "";
    setInterval(() => this.isOpen && !document.hidden && this.load(), EVERY_MS);
    addEventListener("resize", () => this.isOpen && this.fitChart());
  }

  open(isOpen) {
    this.isOpen = isOpen;
    if (isOpen) this.load();
  }

  onKey() {
    return false;
  }

  async load() {
    let found;
    try {
      found = await fetched("/api/progress");
    } catch (error) {
      this.shared.failed(error);
      return;
    }
    if (found.isComputing) setTimeout(() => this.isOpen && this.load(), 700);
    const text = JSON.stringify(found);
    if (text === this.last) return;
    this.last = text;
    this.draw(found);
  }

  draw(found) {
    this.curve = found.status?.curve ?? [];
    this.compared = found.compared;
    const open = (view) => () => this.shared.open(view);
    this.box.replaceChildren(
      el("div", { className: "cards" }, verdictCard(found, open), stack(accuracyCard(found), classesCard(found)), stack(reasonsCard(found), labelsCard(found))),
    );
    this.fitChart();
  }

  // A chart as wide as there is room, so that its letters keep their size.
  fitChart() {
    const room = this.box.querySelector(".chart-room");
    if (room) room.replaceChildren(chart(this.curve, this.compared, room.clientWidth));
  }
}

// One column of cards; on a phone they all stand in one, in an order of their own.
const stack = (...cards) => el("div", { className: "stack" }, ...cards);

function card(title, className, ...children) {
  return el("section", { className: `card ${className}` }, title ? el("h2", { textContent: title }) : null, ...children);
}

// One sentence first.
function verdictCard({ status, isComputing, trouble }, open) {
  const computing = el("p", { className: "quiet-text computing", role: "status", textContent: status ? "Computing with the newest labels…" : "" });
  if (!status) {
    const text = trouble ? `The model could not be measured: ${trouble}` : "Computing: the model is trained and measured, which takes some seconds.";
    return card("", "overall", el("p", { className: "sentence", role: "status" }, ...told(text)));
  }
  const { verdict } = status;
  const action = verdict.verdict === "stop" ? button("Review doubtful labels", open("review")) : button("Go on labelling", open("label"), "primary");
  return card("", `overall ${verdict.verdict.replaceAll(" ", "-")}`, el("p", { className: "sentence" }, ...told(verdict.sentence)), action, ...(isComputing ? [computing] : []));
}

function labelsCard({ today, total, people }) {
  const rows = people.map((one) => bar(one.isMe && people.length > 1 ? `${one.name} (you)` : one.name, one.count / Math.max(1, total), `${number(one.count)}, ${number(one.today)} today`));
  return card(
    "Labels",
    "labels",
    el("p", { className: "figure", textContent: number(total) }),
    el("p", { className: "quiet-text", textContent: `in all, ${number(today)} of them today` }),
    ...(people.length > 1 ? [el("ul", { className: "bars" }, ...rows)] : []),
  );
}

function accuracyCard({ status, isComputing }) {
  const now = status?.accuracy;
  const warning = status?.model_warning ? [el("p", { className: "warning" }, ...told(`Warning: ${status.model_warning}.`))] : [];
  if (!now) {
    const later = isComputing ? "This is being computed." : "It is not known yet: it comes with the first audit labels.";
    const why = status && !isComputing ? (status.audit_share ? later : (status.unknown?.[0] ?? later)) : later;
    return card("Accuracy", "accuracy", el("p", {}, ...told(why)), ...warning, ...machines(status?.sources ?? []));
  }
  const isFew = now.total < LEAST_FOR_FIGURE;
  const of = `${now.correct} of ${plural(now.total, `${now.source} label`)} right${now.about && `; ${now.about}`}`;
  const sure = isFew ? `95 % sure; too few labels for a figure: ${of}` : `between ${percent(now.interval.low)} and ${percent(now.interval.high)}, 95 % sure (${now.valid}); ${of}`;
  return card(
    "Accuracy",
    "accuracy",
    el("p", { className: isFew ? "figure range" : "figure", textContent: isFew ? span(now.interval) : percent(now.value) }),
    el("p", { className: "quiet-text", textContent: sure }),
    ...warning,
    ...beside(status.quality),
    ...machines(status.sources),
    ...(status.curve.length > 1 ? [el("div", { className: "chart-room" })] : [el("p", { className: "quiet-text", textContent: "A curve comes with the next models." })]),
  );
}

// What an accuracy means: what one class alone would reach, and how good the model is at all classes alike.
function beside(quality) {
  if (!quality?.macro_f1) return [];
  const all = quality.classes.length;
  const over = quality.num_measured === all ? "classes" : `${quality.num_measured} of ${all} classes (the others have no label to measure by yet)`;
  const { micro_f1: micro } = quality; // only with several labels, where an answer is right if all its labels are
  const what = micro ? "answer" : "class";
  const lines = [...(micro ? [`An item counts as right if all its labels are. Micro F1, of all labels together: ${range(micro)}.`] : []), `Always “${quality.majority}”, the most frequent ${what}, would reach ${range(quality.majority_accuracy)}.`, `Macro F1, the mean over ${over}: ${range(quality.macro_f1)}.`];
  return lines.map((textContent) => el("p", { className: "quiet-text", textContent }));
}

// A line for each source of machine labels.
function machines(sources) {
  const known = (one) => (one.accuracy ? `${range(one.accuracy)} right, at any look (${one.right} of ${plural(one.total, "audit label")})` : "accuracy not known before people label audit items");
  return sources.map((one) => el("p", { className: "quiet-text source", textContent: `${one.name}: ${plural(one.num_items, "suggestion")}, ${known(one)}.` }));
}

// Accuracy over labels, with its interval as a band. `compared` is the curve of random questions, in a demo.
function chart(curve, compared, width) {
  const counts = [...curve.map((one) => one.num_labels), ...compared.map(([count]) => count)];
  const most = Math.max(...counts);
  const least = Math.min(...counts);
  const x = (count) => SIDES.left + ((count - least) / Math.max(1, most - least)) * (width - SIDES.left - SIDES.right);
  const y = (share) => HEIGHT - SIDES.bottom - share * (HEIGHT - SIDES.top - SIDES.bottom);
  const point = (one, share) => `${x(one.num_labels).toFixed(1)},${y(share).toFixed(1)}`;
  const upper = curve.map((one) => point(one, one.interval.high));
  const lower = curve.map((one) => point(one, one.interval.low)).reverse();
  const last = curve.at(-1);
  const random = compared.map(([count, share]) => `${x(count).toFixed(1)},${y(share).toFixed(1)}`);
  const told = compared.map(([count, share]) => ` Random questions: ${percent(share)} with ${count}.`).join("");
  const name = `Accuracy from ${percent(curve[0].correct / curve[0].total)} with ${plural(curve[0].num_labels, "label")} to ${percent(last.correct / last.total)} with ${last.num_labels}.${told}`;
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
    { class: "chart", width, height: HEIGHT, role: "img", "aria-label": name },
    ...lines,
    ...ends,
    svg("polygon", { class: "band", points: [...upper, ...lower].join(" ") }),
    svg("polyline", { class: "line random", points: random.join(" ") }),
    ...compared.slice(-1).map(([count, share]) => text(x(count), y(share) + 20, "random questions", "end")),
    svg("polyline", { class: "line", points: curve.map((one) => point(one, one.correct / one.total)).join(" ") }),
    svg("circle", { class: "dot", cx: x(last.num_labels), cy: y(last.correct / last.total), r: 5 }),
  );
}

function text(x, y, content, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = content;
  return made;
}

// Labels of each class, and how good the model is at each.
function classesCard({ classes, status }) {
  const known = Object.fromEntries((status?.quality?.classes ?? []).map((one) => [one.name, one]));
  const most = Math.max(1, ...classes.map((one) => one.count));
  const cell = (found) => (found ? el("td", {}, `${percent(found.value)} `, el("span", { className: "range", textContent: `(${span(found.interval)})` })) : el("td", { textContent: "–" }));
  const rows = classes.map((one) => {
    const fill = el("span", { className: "fill" });
    fill.style.width = `${(100 * one.count) / most}%`;
    return el(
      "tr",
      {},
      el("th", { scope: "row", dir: "auto", textContent: one.name }),
      el("td", {}, el("span", { className: "count", textContent: number(one.count) }), el("span", { className: "bar" }, fill)),
      cell(known[one.name]?.precision),
      cell(known[one.name]?.recall),
    );
  });
  const head = ["Class", "Labels", "Precision", "Recall"].map((name) => el("th", { scope: "col", textContent: name }));
  return card(
    "Classes",
    "classes",
    el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Classes" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))),
    el("p", { className: "quiet-text", textContent: "Precision and recall by audit or test labels, with 95 % intervals; – where there are none." }),
  );
}

function reasonsCard({ status, isComputing }) {
  const rules = status?.advice ?? [];
  if (!rules.length) return card("Reasons", "advice", el("p", { textContent: isComputing ? "These are being computed." : "Reasons come once a model has been trained." }));
  const line = (chip, ...children) => el("li", {}, el("span", { className: `verdict ${chip.replaceAll(" ", "-")}`, textContent: chip }), el("p", {}, ...children));
  const items = rules.map((one) => line(one.verdict, el("strong", { textContent: `${one.rule[0].toUpperCase()}${one.rule.slice(1)}. ` }), ...told(one.sentence)));
  const unknown = (status.unknown ?? []).map((one) => line("unknown", ...told(one)));
  return card("Reasons", "advice", el("ul", { className: "rules" }, ...items, ...unknown));
}
