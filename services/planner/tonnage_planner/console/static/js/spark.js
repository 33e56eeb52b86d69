// A small line of the last minutes; what was unknown is a gap.
import { h, s, say } from "./dom.js";
import { clock } from "./format.js";

const W = 240, H = 44;

/** {node, update(at, values)}; `format` puts the value under the pointer into words. */
export function spark(label, format) {
  const line = s("path", { class: "spark-line", "vector-effect": "non-scaling-stroke" });
  const area = s("path", { class: "spark-area" });
  const rule = s("line", { class: "spark-rule", y1: 0, y2: H, "vector-effect": "non-scaling-stroke" });
  const drawing = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" }, area, line, rule);
  const tip = h("span", { class: "spark-tip num" });
  const node = h("div", { class: "spark-box", role: "img", "aria-label": label }, drawing, tip);
  let at = [], values = [];
  node.addEventListener("pointermove", (event) => {
    if (!values.length) return;
    const box = node.getBoundingClientRect();
    const i = Math.max(0, Math.min(values.length - 1, Math.round(((event.clientX - box.left) / box.width) * (values.length - 1))));
    const x = values.length < 2 ? 0 : (i / (values.length - 1)) * W;
    rule.setAttribute("x1", x); rule.setAttribute("x2", x);
    node.classList.add("on");
    say(tip, `${format(values[i])} at ${clock(at[i])}`);
  });
  node.addEventListener("pointerleave", () => node.classList.remove("on"));
  return {
    node,
    update(times, series) {
      at = times; values = series;
      const known = values.filter((v) => v !== null);
      const top = Math.max(...known, 1e-9), n = Math.max(1, values.length - 1);
      let path = "", fill = "", open = null;
      values.forEach((v, i) => {
        const x = ((i / n) * W).toFixed(1);
        if (v === null) { if (open !== null) fill += `L${open.last},${H}Z`; open = null; return; }
        const y = (H - 2 - (v / top) * (H - 8)).toFixed(1);
        if (open === null) { path += `M${x},${y}`; fill += `M${x},${H}L${x},${y}`; open = { last: x }; }
        else { path += `L${x},${y}`; fill += `L${x},${y}`; open.last = x; }
      });
      if (open !== null) fill += `L${open.last},${H}Z`;
      line.setAttribute("d", path); area.setAttribute("d", fill);
      const first = known[0], last = known[known.length - 1];
      node.setAttribute("aria-label", known.length ? `${label}: ${format(last)} now, ${format(first)} at the start, ${format(top)} at most in the last ${Math.round((at[at.length - 1] - at[0]) / 60)} minutes` : `${label}: unknown`);
    },
  };
}
