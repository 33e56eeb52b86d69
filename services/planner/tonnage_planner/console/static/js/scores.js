// Every candidate of a decision: a bar of what each scorer adds to its total, and the raw scores.
import { h, s } from "./dom.js";
import { UNKNOWN, isKnown, trim, word } from "./format.js";

const W = 360;

export function scoreBoard() {
  const key = h("p", { class: "legend small" }), body = h("tbody"), head = h("tr");
  const more = h("button", { type: "button", class: "quiet", hidden: true });
  const node = h("div", { class: "board", hidden: true }, key, h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Candidates and scores" }, h("table", {}, h("thead", {}, head), body)), more);
  let all = false, last = null;
  more.addEventListener("click", () => { all = !all; draw(last); });

  function draw(decision) {
    last = decision;
    const names = [...new Set([...Object.keys(decision.weights ?? {}), ...decision.candidates.flatMap((one) => Object.keys(one.scores))])];
    const order = [...decision.candidates].sort((a, b) => (b.endpoint === decision.chosen) - (a.endpoint === decision.chosen) || (b.total ?? 0) - (a.total ?? 0) || (a.endpoint < b.endpoint ? -1 : 1));
    const up = Math.max(1e-9, ...order.map((one) => sum(one, (v) => v > 0))), down = Math.max(0, ...order.map((one) => -sum(one, (v) => v < 0)));
    const scored = order.some((one) => isKnown(one.total));
    key.replaceChildren(...names.map((name, i) => h("span", { class: "key" }, h("i", { class: `k${i % 8}`, "aria-hidden": "true" }), `${word(name)}${isKnown(decision.weights?.[name]) ? `, weight ${trim(decision.weights[name])}` : ""}`)));
    head.replaceChildren(h("th", { scope: "col" }, "Candidate"), scored ? h("th", { scope: "col" }, "What each scorer adds") : "", h("th", { scope: "col", class: "n" }, "Total"), ...names.map((name) => h("th", { scope: "col", class: "n", title: "raw score" }, word(name))));
    const shown = all ? order : order.slice(0, 24);
    body.replaceChildren(...shown.map((one) => h("tr", { class: one.endpoint === decision.chosen ? "won" : "" },
      h("th", { scope: "row", class: "mono" }, one.endpoint, one.endpoint === decision.chosen ? h("span", { class: "tag tag-1" }, "chosen") : ""),
      scored ? h("td", {}, stack(one, names, up, down)) : "",
      h("td", { class: "n" }, value(one.total)),
      ...names.map((name) => h("td", { class: "n" }, name in one.scores && one.scores[name] === null ? h("span", { class: "unknown" }, "no opinion") : value(one.scores[name]))))));
    more.hidden = order.length <= 24;
    more.textContent = all ? "Show the best 24" : `Show all ${order.length}`;
  }
  return { node, update: draw };
}

const sum = (one, keep) => Object.values(one.parts ?? {}).filter(keep).reduce((a, b) => a + b, 0);
const value = (number) => (isKnown(number) ? (Math.abs(number) >= 1000 ? Math.round(number).toLocaleString("en") : trim(number)) : h("span", { class: "unknown" }, UNKNOWN));

function stack(one, names, up, down) {
  const scale = W / (up + down), zero = down * scale;
  let right = zero, left = zero;
  const pieces = names.map((name, i) => {
    const part = one.parts?.[name] ?? 0, width = Math.abs(part) * scale;
    if (width < 0.3) return null;
    const x = part > 0 ? right : left - width;
    if (part > 0) right += width; else left -= width;
    return s("rect", { class: `k${i % 8}`, x: x.toFixed(1), y: 3, width: Math.max(0.5, width - 1).toFixed(1), height: 12, rx: 1.500 }, s("title", {}, `${word(name)}: ${trim(part)}`));
  });
  const words = names.filter((name) => one.parts?.[name]).map((name) => `${word(name)} ${trim(one.parts[name])}`).join(", ");
  return s("svg", { class: "stackbar", viewBox: `0 0 ${W} 18`, width: W, height: 18, role: "img", "aria-label": words || "nothing added" }, s("line", { class: "axis", x1: zero, x2: zero, y1: 0, y2: 18 }), pieces);
}
