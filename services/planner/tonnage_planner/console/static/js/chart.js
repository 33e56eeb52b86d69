// Charts as SVG: lines and dots on linear or logarithmic axes. Each point is reachable by keyboard and says its value.
import { h, s, say } from "./dom.js";
import { trim } from "./format.js";

const W = 560, H = 300, L = 62, R = 18, T = 14, B = 46;

function scale(values, log, from, to) {
  const positive = log ? values.filter((v) => v > 0) : values;
  let low = Math.min(...positive), high = Math.max(...positive);
  if (log) { low = 10 ** (Math.log10(low) - 0.06); high = 10 ** (Math.log10(high) + 0.06); if (high / low < 2) { low /= 2; high *= 2; } }
  else { low = Math.min(0, low); high = high > low ? high * 1.06 : low + 1; }
  const f = log ? Math.log10 : (v) => v, a = f(low), b = f(high);
  const place = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  const ticks = [];
  if (log) { for (let p = Math.ceil(a - 1e-9); p <= b + 1e-9; p += 1) ticks.push(10 ** p); if (ticks.length < 3) for (let p = Math.floor(a); p <= b; p += 1) for (const m of [2, 5]) if (m * 10 ** p >= low && m * 10 ** p <= high) ticks.push(m * 10 ** p); }
  else { const raw = (high - low) / 5, size = 10 ** Math.floor(Math.log10(raw)), step = size * [1, 2, 5, 10].find((m) => raw <= m * size); for (let v = Math.ceil(low / step) * step; v <= high + 1e-12; v += step) ticks.push(v); }
  return { place, ticks: ticks.sort((x, y) => x - y) };
}

/**
 * `series`: {label, tone, points: [{x, y, name?}], joined, dashed, dots, shape}; `x`, `y`: {label, log};
 * `limit`: {value, label} draws a line across. Returns a figure.
 */
export function chart({ title, note, series, x, y, limit, describe }) {
  const shown = series.map((one) => ({ ...one, points: one.points.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y) && (!x.log || p.x > 0) && (!y.log || p.y > 0)) })).filter((one) => one.points.length);
  const caption = h("figcaption", {}, h("h3", { class: "chart-title" }, title), note ? h("p", { class: "small muted" }, note) : "");
  const points = shown.flatMap((one) => one.points);
  if (!points.length) return h("figure", { class: "card chart" }, caption, h("p", { class: "muted empty" }, "Nothing to draw."));
  const across = scale(points.map((p) => p.x), x.log, L, W - R), up = scale([...points.map((p) => p.y), ...(limit && (!y.log || limit.value > 0) ? [limit.value] : [])], y.log, H - B, T);
  const tip = h("p", { class: "chart-tip small num", "aria-live": "polite" }, " ");
  const tell = (one, p) => say(tip, `${p.name ?? one.label}: ${trim(p.x)} ${x.short ?? x.label}, ${trim(p.y)} ${y.short ?? y.label}`);
  const marks = shown.flatMap((one) => {
    const path = one.points.map((p, i) => `${i ? "L" : "M"}${across.place(p.x).toFixed(1)},${up.place(p.y).toFixed(1)}`).join("");
    const line = one.joined === false ? null : s("path", { class: `line ${one.tone}`, d: path, "stroke-dasharray": one.dashed ? "5 4" : null });
    const dots = one.dots === false ? [] : one.points.map((p) => dot(one, p, across.place(p.x), up.place(p.y), tell));
    return [line, ...dots];
  });
  const words = describe ?? shown.map((one) => `${one.label}: ${one.points.length} points, ${y.label} ${trim(Math.min(...one.points.map((p) => p.y)))} to ${trim(Math.max(...one.points.map((p) => p.y)))}`).join("; ");
  const drawing = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "plot", role: "group", "aria-label": `${title}. ${words}` },
    up.ticks.map((v) => [s("line", { class: "tick", x1: L, x2: W - R, y1: up.place(v), y2: up.place(v) }), s("text", { x: L - 8, y: up.place(v) + 4, "text-anchor": "end" }, trim(v))]),
    across.ticks.map((v) => [s("line", { class: "tick", x1: across.place(v), x2: across.place(v), y1: T, y2: H - B }), s("text", { x: across.place(v), y: H - B + 17, "text-anchor": "middle" }, trim(v))]),
    s("text", { x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle", class: "axis-label" }, x.label),
    s("text", { x: 13, y: (T + H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(T + H - B) / 2})`, class: "axis-label" }, y.label),
    limit ? [s("line", { class: "limit", x1: L, x2: W - R, y1: up.place(limit.value), y2: up.place(limit.value) }), s("text", { class: "limit-label", x: L + 6, y: up.place(limit.value) - 5 }, limit.label)] : null,
    marks);
  const legend = h("p", { class: "legend small" }, shown.map((one) => h("span", { class: "key" }, swatch(one), one.label)));
  return h("figure", { class: "card chart" }, caption, drawing, legend, tip);
}

const swatch = (one) => s("svg", { width: 20, height: 12, viewBox: "0 0 20 12", "aria-hidden": "true" }, one.joined === false ? shape(one, 10, 6) : s("path", { class: `line ${one.tone}`, d: "M1,6L19,6", "stroke-dasharray": one.dashed ? "5 4" : null }));

function shape(one, x, y) {
  if (one.shape === "square") return s("rect", { class: `dot ${one.tone}`, x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  if (one.shape === "diamond") return s("path", { class: `dot ${one.tone}`, d: `M${x},${y - 5}L${x + 5},${y}L${x},${y + 5}L${x - 5},${y}Z` });
  if (one.shape === "ring") return s("circle", { class: `ring ${one.tone}`, cx: x, cy: y, r: 4 });
  return s("circle", { class: `dot ${one.tone}`, cx: x, cy: y, r: 4 });
}

function dot(one, p, px, py, tell) {
  const name = `${p.name ?? one.label}: ${trim(p.x)}, ${trim(p.y)}`;
  const node = s("g", { class: "point", tabindex: 0, role: "img", "aria-label": name }, s("circle", { class: "halo", cx: px, cy: py, r: 10 }), shape(one, px, py));
  node.addEventListener("pointerenter", () => tell(one, p));
  node.addEventListener("focus", () => tell(one, p));
  return node;
}
