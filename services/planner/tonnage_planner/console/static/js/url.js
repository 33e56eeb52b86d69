// The page's state is its address: links can be sent, and the back button works.
export const query = () => new URLSearchParams(location.search);

/** Change the address's parameters; empty ones leave it. `push` makes a step that the back button undoes. */
export function setQuery(changes, { push = false } = {}) {
  const now = query();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") now.delete(name);
    else now.set(name, String(value));
  }
  const text = now.toString();
  const to = location.pathname + (text ? `?${text}` : "");
  if (to === location.pathname + location.search) return;
  history[push ? "pushState" : "replaceState"](null, "", to);
}

export function pack(value) {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export function unpack(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch { return null; }
}
