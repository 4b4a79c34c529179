// Colours of points: by label, prediction, uncertainty or source; told apart in light and in dark.

export const MODES = { label: "label", prediction: "prediction", uncertainty: "uncertainty", source: "source" };

const LIGHT = ["#1b6554", "#c2410c", "#1d4ed8", "#a21caf", "#a16207", "#be123c", "#0e7490", "#4d7c0f", "#6d28d9", "#374151"];
const DARK = ["#5fd6b3", "#fb923c", "#7fb0ff", "#e879f9", "#facc15", "#fb7185", "#22d3ee", "#a3e635", "#b49bff", "#e5e7eb"];
const MOST_LISTED = 20;
const SHADES = 8; // of uncertainty
const NOT_KNOWN = 255;

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const none = () => (isDark() ? "#4b5259" : "#c3c0b8");

// The colour of the n-th class; from the eleventh on hues go round by the golden angle.
function colourOf(place) {
  const known = (isDark() ? DARK : LIGHT)[place];
  return known ?? `hsl(${Math.round((place * 137.5) % 360)} 65% ${isDark() ? 68 : 38}%)`;
}

const mixed = (share) => {
  const [from, to] = isDark() ? [[75, 82, 89], [250, 204, 21]] : [[205, 215, 210], [150, 30, 10]];
  return `rgb(${from.map((value, i) => Math.round(value + share * (to[i] - value))).join(" ")})`;
};

// The colour of each point, the palette as numbers, and the legend.
export function colouring(mode, found, labels, model) {
  if (mode === "uncertainty") return byUncertainty(found.count, model);
  const names = mode === "source" ? found.sources : found.classes;
  const numbers = mode === "source" ? sources(found) : mode === "label" ? labels : model ? new Uint16Array(model, 0, found.count) : new Uint16Array(found.count);
  return byName(names, numbers, { label: "no label", prediction: "no prediction", source: "unknown" }[mode]);
}

function byName(names, numbers, empty) {
  const counts = new Uint32Array(names.length + 1);
  for (const value of numbers) counts[value] += 1;
  const all = [{ css: none(), name: empty, count: counts[0] }, ...names.map((name, place) => ({ css: colourOf(place), name, count: counts[place + 1] }))];
  // A point has 8 bits for its colour: classes beyond share the last one.
  const colours = Uint8Array.from(numbers, (value) => Math.min(value, 255));
  const listed = all.filter((each) => each.count).sort((one, other) => other.count - one.count);
  return { colours, palette: asNumbers(all.slice(0, 256)), legend: listed.slice(0, MOST_LISTED) };
}

function byUncertainty(count, model) {
  const doubts = model ? new Uint8Array(model, 2 * count, count) : new Uint8Array(count).fill(NOT_KNOWN);
  const shades = Array.from({ length: SHADES }, (_, i) => ({ css: mixed(i / (SHADES - 1)), name: i === 0 ? "sure" : i === SHADES - 1 ? "unsure" : "" }));
  const colours = Uint8Array.from(doubts, (doubt) => (doubt === NOT_KNOWN ? 0 : 1 + Math.min(SHADES - 1, Math.floor((doubt / 255) * SHADES * 1.3))));
  const legend = [{ css: none(), name: "not known" }, shades[0], { ...shades[SHADES >> 1], name: "rather unsure" }, shades[SHADES - 1]];
  return { colours, palette: asNumbers([{ css: none() }, ...shades]), legend };
}

// The place of the addition that each item came with, plus one.
function sources({ sizes, count }) {
  const found = new Uint16Array(count);
  sizes.forEach((size, place) => found.fill(place + 1, place ? sizes[place - 1] : 0, size));
  return found;
}

// Colours as the canvas stores them: alpha, blue, green, red.
function asNumbers(all) {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  return Uint32Array.from(all, ({ css }) => {
    context.fillStyle = css;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
}
