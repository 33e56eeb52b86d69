// Elements are made from names and texts alone: nothing that a server sends is ever read as markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else if (name === "text") element.textContent = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element; `on…` props are listeners, the rest attributes; children are nodes or texts. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Set a text only where it differs, so that selections and screen readers are left in peace. */
export function say(element, text) {
  const now = String(text);
  if (element.textContent !== now) element.textContent = now;
}

export function toggleClass(element, name, on) {
  if (element.classList.contains(name) !== on) element.classList.toggle(name, on);
}

export function setAttr(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Keep `parent`'s children in step with `items`: `make(item)` gives {node, update}, kept by `key(item)`. */
export function keyed(parent, items, key, make) {
  const known = parent.tonnageKeyed ?? (parent.tonnageKeyed = new Map());
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    if (seen.has(name)) continue;
    seen.add(name);
    let part = known.get(name);
    if (!part) known.set(name, (part = make(item)));
    part.update?.(item);
    if (part.node === place) place = place.nextSibling;
    else parent.insertBefore(part.node, place);
  }
  for (const [name, part] of known) if (!seen.has(name)) { part.node.remove(); known.delete(name); }
}

/** Tell a screen reader once. */
export function announce(text) {
  const live = document.getElementById("said");
  if (live) live.textContent = text;
}
