// A grid of many rows of which only those in view exist. Arrow keys move, Enter opens.
import { h, say, setAttr } from "./dom.js";

const ROW = 38, SPARE = 6;

/**
 * `columns`: {key, label, title?, numeric?, width, cell(node, row)}; `rowKey(row)` names a row; `open(row)` opens it.
 * Returns {node, update(rows), sorted(key, down), selected(key)}.
 */
export function grid({ label, columns, rowKey, open, sort, empty }) {
  const template = columns.map((c) => c.width).join(" ");
  const id = `grid-${Math.random().toString(36).slice(2, 8)}`;
  const heads = columns.map((column) =>
    h("div", { role: "columnheader", class: column.numeric ? "gh right" : "gh", title: column.title },
      h("button", { type: "button", onclick: () => sort(column.key) }, column.label, h("span", { class: "arrow", "aria-hidden": "true" }))));
  const head = h("div", { role: "row", class: "grid-head", "aria-rowindex": 1, style: { "grid-template-columns": template } }, heads);
  const filler = h("div", { class: "grid-filler", role: "rowgroup" });
  const none = h("p", { class: "grid-none muted" }, empty);
  const body = h("div", { class: "grid-scroll", role: "grid", tabindex: 0, "aria-label": label, "aria-colcount": columns.length }, h("div", { role: "rowgroup", class: "grid-heads" }, head), filler);
  const node = h("div", { class: "grid" }, body, none);
  const pool = [];
  let rows = [], active = 0, chosen = null, queued = false, mapped = 0;

  function rowAt(slot) {
    if (pool[slot]) return pool[slot];
    const cells = columns.map((column) => h("div", { role: "gridcell", class: column.numeric ? "gc right num" : "gc" }));
    const line = h("div", { role: "row", class: "grid-row", style: { "grid-template-columns": template } }, cells);
    line.tonnageIndex = -1;
    line.addEventListener("click", () => { active = line.tonnageIndex; body.focus({ preventScroll: true }); if (rows[active]) open(rows[active]); draw(); });
    filler.append(line);
    return (pool[slot] = { line, cells });
  }

  function draw() {
    queued = false;
    const top = Math.max(0, Math.floor(body.scrollTop / ROW) - SPARE);
    const shown = Math.min(rows.length - top, Math.ceil(body.clientHeight / ROW) + 2 * SPARE);
    filler.style.height = `${rows.length * ROW}px`;
    // A row keeps its line while it is in view, so that scrolling fills only the lines of rows that come in.
    const lines = Math.max(pool.length, Math.ceil(body.clientHeight / ROW) + 2 * SPARE + 1);
    while (pool.length < Math.min(lines, rows.length)) rowAt(pool.length);
    if (lines !== mapped) { mapped = lines; for (const { line } of pool) line.tonnageIndex = -1; }
    for (let index = top; index < top + shown; index += 1) {
      const { line, cells } = rowAt(index % lines), row = rows[index];
      line.hidden = false;
      setAttr(line, "aria-selected", chosen !== null && rowKey(row) === chosen ? "true" : "false");
      line.classList.toggle("active", index === active);
      if (line.tonnageRow === row && line.tonnageIndex === index) continue;
      line.tonnageRow = row;
      line.tonnageIndex = index;
      line.style.transform = `translateY(${index * ROW}px)`;
      setAttr(line, "aria-rowindex", index + 2);
      setAttr(line, "id", `${id}-${index}`);
      columns.forEach((column, i) => column.cell(cells[i], row));
    }
    for (const { line } of pool) if (line.tonnageIndex < top || line.tonnageIndex >= top + shown) line.hidden = true;
    setAttr(body, "aria-activedescendant", active >= top && active < top + shown ? `${id}-${active}` : null);
  }

  const soon = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };
  body.addEventListener("scroll", soon, { passive: true });
  new ResizeObserver(soon).observe(body);

  body.addEventListener("keydown", (event) => {
    if (event.target !== body) return;
    const page = Math.max(1, Math.floor(body.clientHeight / ROW) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) {
      active = Math.max(0, Math.min(rows.length - 1, step === -Infinity ? 0 : step === Infinity ? rows.length - 1 : active + step));
      const y = active * ROW, view = body.clientHeight - ROW;
      if (y < body.scrollTop) body.scrollTop = y;
      else if (y + ROW > body.scrollTop + view) body.scrollTop = y + ROW - view;
      draw();
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === " ") && rows[active]) { open(rows[active]); event.preventDefault(); }
  });

  return {
    node,
    update(next) {
      rows = next;
      active = Math.min(active, Math.max(0, rows.length - 1));
      setAttr(body, "aria-rowcount", rows.length + 1);
      none.hidden = rows.length > 0;
      body.style.height = `${(Math.max(4, Math.min(16, rows.length)) + 1) * ROW + 2}px`;
      draw();
    },
    sorted(key, down) {
      columns.forEach((column, i) => {
        setAttr(heads[i], "aria-sort", column.key === key ? (down ? "descending" : "ascending") : "none");
        say(heads[i].querySelector(".arrow"), column.key === key ? (down ? " ↓" : " ↑") : "");
      });
    },
    selected(key) { chosen = key; const at = rows.findIndex((row) => rowKey(row) === key); if (at >= 0) active = at; draw(); },
    focus() { body.focus({ preventScroll: true }); },
  };
}

/** A bar with its figure in a cell: {node, set(share, text)}. */
export function barCell(cell, high = Infinity) {
  if (!cell.tonnageBar) {
    const fill = h("i"), text = h("span", { class: "num" });
    cell.replaceChildren(h("span", { class: "bar", "aria-hidden": "true" }, fill), text);
    cell.classList.add("with-bar");
    cell.tonnageBar = (value, words) => {
      fill.style.width = value === null ? "0" : `${Math.max(0, Math.min(1, value)) * 100}%`;
      fill.classList.toggle("high", value !== null && value >= high);
      text.classList.toggle("unknown", value === null);
      say(text, words);
    };
  }
  return cell.tonnageBar;
}
