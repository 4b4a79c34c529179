// An item that was found, in a dialog: label it in place, queue it, or find more like it.

import { sent } from "./api.js";
import { Picker } from "./classes.js";
import { button, byId, el, say } from "./dom.js";
import { large } from "./item.js";

// What is known about an entry, in words.
export function toldEntry(entry) {
  if (entry.label) return entry.mine === entry.label ? `${entry.label} (by you)` : entry.label;
  return { queued: "in your queue", disputed: "people disagree" }[entry.state] ?? "no label";
}

// Label an entry. It is asked first, so that the log says how it was chosen; then the label is written.
export async function labelEntry(shared, entry, label) {
  shared.take(await sent("/api/found", { item: entry.item.id, label }));
  Object.assign(entry, { label, mine: label, state: "labelled", canQueue: false });
  say(`${label}.`);
}

// Queue entries or rows of the map as questions; says how many could be.
export async function queueRows(shared, rows) {
  const found = await sent("/api/queue", { rows });
  shared.take(found);
  const why = found.queued < found.of ? ` Of ${found.of.toLocaleString("en")} items, the others are labelled, asked or set aside, or are more than fit.` : "";
  say(found.queued ? `${found.queued} queued: they come after your open questions.${why}` : "None of these can be asked: they are labelled, asked of others, or measure the model.", true);
  return found.queued;
}

// Open an entry; `changed` is called after each change.
export function openEntry(shared, entry, changed) {
  const dialog = byId("pick-dialog");
  const run = (action) => action().then(changed, shared.failed);
  const choose = (name) => {
    dialog.close();
    run(() => labelEntry(shared, entry, name));
  };
  const box = el("div", {});
  const picker = entry.canLabel ? new Picker(box, shared.facts, choose, "pick-search") : null;
  if (picker) picker.set(entry.label ?? entry.mine);
  else box.append(el("p", { className: "quiet-text", textContent: entry.label ? "Somebody else labelled this item. Review changes labels of others." : "This item cannot be labelled here: it is asked of somebody else." }));
  const queue = () => {
    dialog.close();
    run(async () => {
      if (await queueRows(shared, [entry.row])) Object.assign(entry, { state: "queued", canQueue: false });
    });
  };
  const like = () => {
    dialog.close();
    shared.like(entry.item);
  };
  byId("pick-body").replaceChildren(
    el("div", { className: "entry-item" }, large(entry.item)),
    el("p", { className: "entry-told" }, el("span", { className: "id", dir: "auto", textContent: entry.item.id }), el("strong", { textContent: ` ${toldEntry(entry)}` })),
    box,
    el("div", { className: "row" }, entry.canQueue ? button("Queue it", queue, "", "Q") : null, button("More like this", like, "", "M"), button("Close", () => dialog.close(), "quiet")),
  );
  dialog.onkeydown = (event) => {
    if (event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey || picker?.inDialog(event)) return;
    if (event.key.toLowerCase() === "q" && entry.canQueue) queue();
    else if (event.key.toLowerCase() === "m") like();
    else return;
    event.preventDefault();
  };
  dialog.showModal();
}
