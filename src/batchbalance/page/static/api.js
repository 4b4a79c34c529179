// Requests to the server. Every one that changes something is JSON, and is answered once it is on disk.

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Error("The server does not answer. Your labels so far are safe. Start it again with `batchbalance label`.");
  }
  if (response.ok) return response.json();
  const said = await response.text();
  throw Object.assign(new Error(said || `The server says ${response.status}.`), { status: response.status });
}

export const fetched = (path, values = {}) => {
  const query = new URLSearchParams(values).toString();
  return asked(query ? `${path}?${query}` : path);
};

export const sent = (path, body) =>
  asked(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const imageAddress = (item, size = "full") =>
  `/image?${new URLSearchParams({ item: item.id, size, version: item.version })}`;

const PENDING_MS = 500;

// The same again until the server knows all about it; `take` is called each time, and says whether to go on.
export async function followed(path, values, take) {
  for (;;) {
    const found = await fetched(path, values);
    if (!take(found) || !found.isPending) return;
    await new Promise((done) => setTimeout(done, PENDING_MS));
  }
}
