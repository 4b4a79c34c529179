// Requests to the server. Every one that changes something is JSON, and is answered once it is on disk.

// The link that this tab was opened with says who sits here: its mark goes with every request, so that people who share a
// browser are told apart by their tabs.
const address = new URL(location.href);
const mark = address.searchParams.get("token")?.split("-")[0] ?? address.searchParams.get("as");
if (address.searchParams.has("token")) {
  address.searchParams.delete("token");
  address.searchParams.set("as", mark);
  window.history.replaceState(null, "", address.pathname + address.search + address.hash);
}

const GONE = "The server does not answer. Your labels so far are safe. Start it again with “batchbalance label”; this page then goes on by itself.";

const placed = (path, values = {}) => `${path}?${new URLSearchParams({ ...values, as: mark })}`;

async function answered(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Error(GONE);
  }
  if (response.ok) return response;
  const said = await response.text();
  throw Object.assign(new Error(said || `The server says ${response.status}.`), { status: response.status });
}

export const fetched = async (path, values = {}) => (await answered(placed(path, values))).json();

// A file of numbers; one that is named by its content may come from the browser's cache.
export const fetchedBytes = async (path, values = {}) =>
  (await answered(placed(path, values), values.name ? { cache: "default" } : {})).arrayBuffer();

export const sent = async (path, body) =>
  (await answered(placed(path), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

export const imageAddress = (item, size = "full") => placed("/image", { item: item.id, size, version: item.version });

const PENDING_MS = 500;

// The same again until the server knows all about it; `take` is called each time, and says whether to go on.
export async function followed(path, values, take) {
  for (;;) {
    const found = await fetched(path, values);
    if (!take(found) || !found.isPending) return;
    await new Promise((done) => setTimeout(done, PENDING_MS));
  }
}
