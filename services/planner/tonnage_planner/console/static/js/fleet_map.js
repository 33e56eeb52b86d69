// Every endpoint as a cell of one drawing: what a table of a thousand rows cannot show at a glance.
import { announce, h, say } from "./dom.js";
import { STATES, UNKNOWN, count, share } from "./format.js";

const RAMP = [[32, 58, 99], [68, 88, 127], [125, 124, 120], [184, 167, 92], [250, 228, 70]]; // Cividis, readable without red and green
const OF = {
  kv_usage: ["KV in use", (row) => row.kv_usage, share],
  hit_rate: ["prefix hits", (row) => row.hit_rate, share],
  running: ["running", (row) => row.running, count],
  waiting: ["waiting", (row) => row.waiting, count],
  load_tokens: ["work in flight", (row) => row.load_tokens, count],
};
export const METRICS = Object.entries(OF).map(([key, [label]]) => [key, label]);

function colour(part) {
  const at = Math.max(0, Math.min(1, part)) * (RAMP.length - 1), i = Math.min(RAMP.length - 2, Math.floor(at)), f = at - i;
  return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * f)).join(" ")})`;
}

/** {node, update(rows, metric, chosen)}. */
export function fleetMap(open) {
  const canvas = h("canvas", { class: "map", tabindex: 0, role: "img" });
  const tip = h("p", { class: "map-tip num", "aria-hidden": "true" });
  const ramp = h("canvas", { class: "ramp", width: 120, height: 8, "aria-hidden": "true" }), low = h("span"), high = h("span");
  const scale = h("div", { class: "map-scale small muted num" }, low, ramp, high);
  const ink = ramp.getContext("2d");
  for (let x = 0; x < 120; x += 1) { ink.fillStyle = colour(x / 119); ink.fillRect(x, 0, 1, 8); }
  const node = h("div", { class: "map-box" }, canvas, h("div", { class: "map-foot" }, tip, scale));
  let rows = [], metric = "kv_usage", size = 20, across = 1, active = -1, chosen = null, top = 1;

  const words = (row) => `${row.id}: ${OF[metric][2](OF[metric][1](row))} ${OF[metric][0]}, ${STATES[row.state]?.[1] ?? row.state}`;

  function draw() {
    const width = Math.max(200, (node.clientWidth || 900) - 32), ratio = devicePixelRatio || 1;
    size = rows.length > 2500 ? 10 : rows.length > 600 ? 15 : rows.length > 120 ? 22 : 40;
    across = Math.max(1, Math.floor(width / size));
    const height = Math.max(1, Math.ceil(rows.length / across)) * size;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const line = style.getPropertyValue("--line-2"), bad = style.getPropertyValue("--bad"), idle = style.getPropertyValue("--idle"), text = style.getPropertyValue("--text");
    pen.scale(ratio, ratio);
    const share01 = metric === "kv_usage" || metric === "hit_rate";
    top = share01 ? 1 : Math.max(1, ...rows.map((row) => OF[metric][1](row) ?? 0));
    rows.forEach((row, i) => {
      const x = (i % across) * size, y = Math.floor(i / across) * size, s = size - Math.max(2, size * 0.12);
      const value = OF[metric][1](row);
      if (value === null) { pen.strokeStyle = line; pen.lineWidth = 1; pen.strokeRect(x + 0.5, y + 0.5, s - 1, s - 1); pen.beginPath(); pen.moveTo(x, y + s); pen.lineTo(x + s, y); pen.stroke(); }
      else { pen.fillStyle = colour(value / top); pen.fillRect(x, y, s, s); }
      if (row.state === "down" || row.state === "stuck") { pen.strokeStyle = bad; pen.lineWidth = Math.max(2, size / 9); pen.beginPath(); pen.moveTo(x + 3, y + 3); pen.lineTo(x + s - 3, y + s - 3); pen.moveTo(x + s - 3, y + 3); pen.lineTo(x + 3, y + s - 3); pen.stroke(); }
      if (row.state === "draining") { pen.strokeStyle = idle; pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, s - 2, s - 2); }
      if (i === active || row.id === chosen) { pen.strokeStyle = text; pen.lineWidth = 2; pen.strokeRect(x - 1, y - 1, s + 2, s + 2); }
    });
    const known = rows.filter((row) => OF[metric][1](row) !== null).length;
    canvas.setAttribute("aria-label", `${rows.length} endpoints by ${OF[metric][0]}; ${known} known. Arrow keys move, Enter opens; the table has the same figures.`);
    say(low, `${OF[metric][0]}  0`); say(high, `${share01 ? "100%" : count(top)} · struck out: ${UNKNOWN} · crossed: down · framed: draining`);
  }
  const at = (event) => { const box = canvas.getBoundingClientRect(); const x = Math.floor((event.clientX - box.left) / size), y = Math.floor((event.clientY - box.top) / size); return x < across ? y * across + x : -1; };
  canvas.addEventListener("pointermove", (event) => { const row = rows[at(event)]; say(tip, row ? words(row) : ""); });
  canvas.addEventListener("click", (event) => { const row = rows[at(event)]; if (row) open(row); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (step !== undefined && rows.length) { active = Math.max(0, Math.min(rows.length - 1, active + step)); draw(); say(tip, words(rows[active])); announce(words(rows[active])); event.preventDefault(); }
    else if (event.key === "Enter" && rows[active]) open(rows[active]);
  });
  new ResizeObserver(() => draw()).observe(node);
  addEventListener("themechange", () => node.isConnected && draw());
  return { node, focus: () => canvas.focus({ preventScroll: true }), update(next, by, id) { rows = next; metric = Object.hasOwn(OF, by) ? by : "kv_usage"; chosen = id; draw(); } };
}
