// One endpoint in full, beside the list; with a token it can be drained.
import { call } from "./api.js";
import { announce, h, keyed, say } from "./dom.js";
import { STATES, UNKNOWN, age, count, isKnown, share, whole } from "./format.js";

const rate = (value) => (isKnown(value) ? `${count(value)}/s` : UNKNOWN);
const unknown = (value) => (value === null || value === undefined || value === "" ? UNKNOWN : value);
const FACTS = [
  ["State", (row) => [STATES[row.state]?.[1] ?? row.state, row.problem].filter(Boolean).join(": ")],
  ["URL", (row) => row.url],
  ["Models", (row) => row.models.join(", ") || UNKNOWN],
  ["Engine", (row) => unknown(row.engine)],
  ["Role", (row) => unknown(row.role)],
  ["Running, waiting", (row) => `${count(row.running)}, ${count(row.waiting)}`],
  ["Routers have there", (row) => `${count(row.in_flight)} requests, ${count(row.load_tokens)} tokens of work`],
  ["KV in use", (row) => share(row.kv_usage, 1)],
  ["Prefix hits", (row) => (row.hit_rate === null && isKnown(row.prompt_tok_s) ? "no prompt lately" : share(row.hit_rate, 1))],
  ["Prompt tokens", (row) => rate(row.prompt_tok_s)],
  ["Output tokens", (row) => rate(row.output_tok_s)],
  ["Requests ended", (row) => rate(row.requests_s)],
  ["Preemptions", (row) => rate(row.preemptions_s)],
  ["Sent, failed", (row) => `${whole(row.requests_total)}, ${whole(row.failures_total)}`],
  ["Breaker", (row) => unknown(row.breaker)],
  ["GPU", (row) => `${unknown(row.gpu)}, verdict ${unknown(row.verdict)}`],
  ["GPU speed", (row) => (isKnown(row.gpu_speed) ? share(row.gpu_speed) : UNKNOWN)],
  ["Context", (row) => (row.max_model_len === null ? UNKNOWN : `${whole(row.max_model_len)} tokens`)],
  ["Adapters", (row) => (row.routers ? `${row.adapters.join(", ") || "none"}${row.adapter_slots === null ? "" : ` of ${row.adapter_slots} slots`}` : UNKNOWN)],
  ["Prefixes", (row) => (row.exact_prefixes === null ? UNKNOWN : row.exact_prefixes ? "as the engine tells them" : `estimated, ${whole(row.index_blocks)} blocks`)],
  ["Restarts seen", (row) => (row.restarts === null ? UNKNOWN : whole(row.restarts))],
  ["Metrics read", (row) => (row.age_s === null ? "never" : `${age(row.age_s)} ago`)],
];

export function detail(ctx, close, refresh) {
  const title = h("h3", { class: "detail-title mono" }), list = h("dl", { class: "facts" });
  const why = h("a", { href: "decisions" }, "Decisions that chose it");
  const drain = h("button", { type: "button" }), note = h("p", { class: "small muted", role: "status" });
  const node = h("aside", { class: "detail", hidden: true, "aria-label": "Endpoint" },
    h("div", { class: "detail-top" }, title, h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: close }, "✕")),
    list, h("p", {}, why), h("div", { class: "detail-act" }, drain, note));
  let row = null;

  async function act() {
    if (ctx.actions !== "allowed") { ctx.openToken(); return; }
    const undo = row.state === "draining", name = row.id;
    drain.disabled = true;
    try {
      const done = await call(`console/endpoints/${encodeURIComponent(name)}/drain${undo ? "?undo=true" : ""}`, { method: "POST" });
      say(note, `${done.draining ? "Drains" : "Takes requests again"}: ${done.routers} ${done.routers === 1 ? "router" : "routers"} told.`);
      announce(note.textContent);
    } catch (error) { say(note, error.message); }
    drain.disabled = false;
    refresh();
  }
  drain.addEventListener("click", act);

  function draw() {
    node.hidden = !row;
    if (!row) return;
    say(title, row.id);
    drain.hidden = why.hidden = Boolean(row.gone);
    if (row.gone) { keyed(list, [], () => "", () => null); say(note, "No such endpoint is listed now."); return; }
    keyed(list, FACTS.map(([name, of]) => ({ name, value: of(row) })), (fact) => fact.name, (fact) => {
      const value = h("dd", { class: "num" });
      return { node: h("div", {}, h("dt", {}, fact.name), value), update(now) { say(value, now.value); value.classList.toggle("unknown", String(now.value).startsWith(UNKNOWN)); } };
    });
    why.href = `decisions?endpoint=${encodeURIComponent(row.id)}`;
    say(drain, row.state === "draining" ? "Take requests again" : "Drain");
    drain.disabled = row.routers === 0 || ctx.actions === "off";
    if (!note.textContent || note.dataset.of !== row.id) { note.dataset.of = row.id; say(note, ctx.actions === "off" ? "Actions are off here." : row.routers === 0 ? "No router lists it." : ctx.actions === "token" ? "Needs the action token." : ""); }
  }
  ctx.listeners.add(draw);
  return { node, update(next) { row = next; draw(); }, leave() { ctx.listeners.delete(draw); } };
}
