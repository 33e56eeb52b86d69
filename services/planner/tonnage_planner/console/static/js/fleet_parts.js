// The pieces of the Fleet page above its endpoints: parts, figures, pools, the replay, GPUs, starts.
import { h, keyed, say, toggleClass } from "./dom.js";
import { UNKNOWN, age, bytes, count, isKnown, share, trim, whole, word } from "./format.js";
import { spark } from "./spark.js";

const PART = { router: "router", agent: "GPU agent", coldstart: "cold start", fleet: "supervisor" };
const MARK = { up: "●", down: "✕", waiting: "◌" };

export function partStrip() {
  const list = h("ul", { class: "parts", "aria-label": "Parts of the fleet" });
  return {
    node: list,
    update(doc) {
      const parts = doc.parts.map((part) => ({ ...part, name: PART[part.kind] ?? part.kind }));
      keyed(list, [{ kind: "planner", url: "", state: "up", age_s: 0, name: "planner", problem: null }, ...parts], (p) => `${p.kind} ${p.url}`, () => {
        const mark = h("span", { class: "mark", "aria-hidden": "true" }), name = h("span"), state = h("span", { class: "muted num" });
        const node = h("li", { class: "part" }, mark, name, state);
        return {
          node,
          update(part) {
            say(mark, MARK[part.state]); say(name, part.name);
            const seen = part.age_s === null ? "never answered" : `last answered ${age(part.age_s)} ago`;
            say(state, part.state === "up" ? "up" : part.state === "waiting" ? "not asked yet" : `down, ${seen}`);
            node.className = `part is-${part.state}`;
            node.title = [part.url, part.problem].filter(Boolean).join("\n");
          },
        };
      });
    },
  };
}

const FIGURES = [
  ["serving", "Endpoints serving", "fresh", whole],
  ["running", "Requests running", "running", count],
  ["waiting", "Requests waiting", "waiting", count],
  ["kv_usage", "KV cache in use", "kv_usage", share],
  ["hit_rate", "Prompt tokens from cache", "hit_rate", share],
  ["output_tok_s", "Output tokens a second", "output_tok_s", count],
];

export function figures() {
  const tiles = FIGURES.map(([key, label, series, format]) => {
    const value = h("span", { class: "figure num" }), note = h("span", { class: "note small muted num" }), line = spark(`${label}, last minutes`, format);
    return { key, series, format, value, note, line, node: h("div", { class: "tile" }, h("h3", {}, label), h("p", {}, value, " ", note), line.node) };
  });
  const node = h("section", { class: "tiles", "aria-label": "The fleet now" }, tiles.map((tile) => tile.node));
  const show = (tile, text, note = "") => { say(tile.value, text); toggleClass(tile.value, "unknown", text === UNKNOWN); say(tile.note, note); };
  return {
    node,
    history(doc) { for (const tile of tiles) tile.line.update(doc.at, doc.series[tile.series] ?? []); },
    update(rows, doc, pool) {
      const sum = (field) => { const known = rows.filter((row) => isKnown(row[field])); return { known: known.length, value: known.length ? known.reduce((a, row) => a + row[field], 0) : null }; };
      const part = (got) => (got.known < rows.length && got.known ? `at ${whole(got.known)} of ${whole(rows.length)}` : "");
      const serving = rows.filter((row) => row.state === "serving").length;
      for (const tile of tiles) {
        if (tile.key === "serving") { show(tile, whole(serving), `of ${whole(rows.length)}`); continue; }
        if (tile.key === "hit_rate") {
          const known = rows.filter((row) => isKnown(row.hit_rate) && isKnown(row.prompt_tok_s));
          const weight = known.reduce((a, row) => a + row.prompt_tok_s, 0);
          show(tile, known.length ? share(weight ? known.reduce((a, row) => a + row.hit_rate * row.prompt_tok_s, 0) / weight : known.reduce((a, row) => a + row.hit_rate, 0) / known.length) : UNKNOWN, known.length ? "" : "no prompt lately");
          continue;
        }
        const got = sum(tile.key);
        if (tile.key === "kv_usage") { show(tile, share(got.value === null ? null : got.value / got.known), part(got)); continue; }
        let note = part(got);
        if (tile.key === "waiting") {
          const pools = doc.pools.filter((p) => !pool || p.pool === pool), queued = pools.map((p) => p.router_waiting).filter(isKnown);
          note = [note, queued.length ? `${count(queued.reduce((a, b) => a + b, 0))} in routers` : "routers' queue unknown"].filter(Boolean).join(", ");
        }
        show(tile, count(got.value), note);
      }
    },
  };
}

export function poolCards(choose) {
  const list = h("div", { class: "pools" });
  const none = h("p", { class: "muted empty" }, "No pool yet: the planner lists no endpoint. Name some in TONNAGE_PLANNER_ENDPOINTS or its file.");
  const node = h("section", { "aria-labelledby": "pools-title" }, h("h2", { id: "pools-title" }, "Replicas and why"), list, none);
  return {
    node,
    update(doc, chosen) {
      none.hidden = doc.pools.length > 0;
      keyed(list, doc.pools, (pool) => pool.pool, (first) => poolCard(first, choose));
      for (const card of list.children) card.classList.toggle("chosen", card.dataset.pool === chosen);
    },
  };
}

function poolCard(first, choose) {
  const name = h("button", { type: "button", class: "link pool-name", onclick: () => choose(first.pool), title: "Show this pool alone" }, first.pool);
  const now = h("span", { class: "figure num" }), want = h("span", { class: "muted num" }), rail = h("div", { class: "rail", "aria-hidden": "true" });
  const reasons = h("ul", { class: "reasons" }), needs = h("div", { class: "needs" });
  const node = h("article", { class: "card pool", "data-pool": first.pool }, h("div", { class: "pool-top" }, name, h("p", {}, now, " ", want)), rail, reasons, needs);
  return {
    node,
    update(pool) {
      say(now, `${whole(pool.listed_endpoints - pool.starting_endpoints)} → ${whole(pool.desired_replicas)}`);
      const moved = pool.changed_age_s === null ? "" : `, changed ${age(pool.changed_age_s)} ago`;
      say(want, `replicas${pool.starting_endpoints ? `, ${pool.starting_endpoints} starting` : ""} (${pool.min_replicas} to ${pool.max_replicas})${moved}`);
      drawRail(rail, pool);
      keyed(reasons, pool.reasons.map((r, i) => ({ ...r, i })), (r) => `${r.i}`, () => { const line = h("li"); return { node: line, update: (r) => say(line, r.text) }; });
      keyed(needs, pool.needs, (need) => need.signal, (need) => needRow(need));
    },
  };
}

function drawRail(rail, pool) {
  const up = pool.listed_endpoints - pool.starting_endpoints, most = Math.max(pool.desired_replicas, pool.listed_endpoints), shown = Math.min(most, 48);
  const kinds = Array.from({ length: shown }, (_, i) => (i < up ? (i < pool.desired_replicas ? "on" : "over") : i < pool.listed_endpoints ? "soon" : "gap"));
  const text = kinds.join();
  if (rail.dataset.kinds === text) return;
  rail.dataset.kinds = text;
  rail.replaceChildren(...kinds.map((kind) => h("i", { class: kind })), most > shown ? h("b", {}, `+${most - shown}`) : "");
}

function needRow(first) {
  const label = h("span", {}, word(first.signal)), fill = h("i"), value = h("span", { class: "muted num" }), asks = h("span", { class: "num" });
  const node = h("div", { class: "need" }, label, h("span", { class: "bar", "aria-hidden": "true" }, fill), value, asks);
  return {
    node,
    update(need) {
      const per = need.target_per_replica, part = isKnown(need.value) && isKnown(per) && per > 0 && need.fits !== null ? need.value / (per * Math.max(1, need.replicas ?? 1)) : null;
      fill.style.width = part === null ? "0" : `${Math.min(1, part) * 100}%`;
      say(value, isKnown(need.value) ? `${trim(need.value)}${isKnown(per) ? ` at ${trim(per)} a replica` : ""}` : need.target_per_replica === null ? "not used" : UNKNOWN);
      say(asks, need.replicas === null ? (need.target_per_replica === null ? "–" : UNKNOWN) : `asks ${need.replicas}`);
    },
  };
}

export function replayCard() {
  const head = h("p", {}), fill = h("i"), counts = h("p", { class: "small muted num" });
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": "Replay", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const node = h("section", { class: "card replay", hidden: true }, h("h2", {}, "Live replay"), head, bar, counts);
  return {
    node,
    update(doc) {
      const run = doc.replay;
      node.hidden = !run;
      if (!run) return;
      const part = isKnown(run.done) && run.total ? run.done / run.total : null;
      say(head, `${run.trace ?? UNKNOWN} under ${run.policy ?? UNKNOWN}, ${isKnown(run.speed) ? `${trim(run.speed)}×` : UNKNOWN} speed: ${run.state === "running" ? "running" : "done"}`);
      fill.style.width = part === null ? "0" : `${part * 100}%`;
      bar.setAttribute("aria-valuenow", part === null ? "" : Math.round(part * 100));
      say(counts, `${whole(run.done)} of ${whole(run.total)} ended, ${whole(run.in_flight)} in flight, ${whole(run.errors)} errors`);
      node.classList.toggle("bad", run.errors > 0);
    },
  };
}

export function gpuPanel() {
  const list = h("ul", { class: "gpus" }), note = h("p", { class: "muted small" });
  const node = h("section", { class: "card", "aria-labelledby": "gpus-title" }, h("h2", { id: "gpus-title" }, "GPUs"), list, note);
  const MARKS = { OK: ["✓", "good"], WARN: ["▲", "warn"], FAIL: ["✕", "bad"], UNKNOWN: ["?", "faint"] };
  return {
    node,
    update(doc) {
      const asked = doc.parts.filter((part) => part.kind === "agent");
      keyed(list, doc.gpus, (gpu) => `${gpu.agent} ${gpu.node} ${gpu.index}`, () => {
        const mark = h("span", { "aria-hidden": "true" }), name = h("span", {}), facts = h("span", { class: "muted small num" });
        const line = h("li", { class: "gpu" }, mark, h("div", {}, name, facts));
        return {
          node: line,
          update(gpu) {
            const [sign, tone] = Object.hasOwn(MARKS, gpu.verdict ?? "") ? MARKS[gpu.verdict] : MARKS.UNKNOWN;
            say(mark, sign); mark.className = `mark ${tone}`;
            say(name, `${gpu.product ?? "GPU"} ${gpu.node ? `${gpu.node}/` : ""}${gpu.index ?? "?"}: ${gpu.verdict ?? "never probed"}`);
            say(facts, [gpu.hbm_gbps ? `${whole(gpu.hbm_gbps)} GB/s` : null, gpu.bf16_tflops ? `${whole(gpu.bf16_tflops)} TFLOP/s bf16` : null, gpu.state, ...gpu.verdict_reasons].filter(Boolean).join(" · "));
          },
        };
      });
      const reasons = doc.agents.filter((agent) => agent.reason).map((agent) => agent.reason);
      say(note, doc.gpus.length ? "" : !asked.length ? "No agent is configured: TONNAGE_PLANNER_AGENT_URLS names them." : doc.agents.length ? reasons[0] ?? "The agents see no GPU." : "No agent answers: verdicts are unknown.");
    },
  };
}

export function startPanel() {
  const list = h("ul", { class: "starts" }), note = h("p", { class: "muted small" });
  const node = h("section", { class: "card", "aria-labelledby": "starts-title" }, h("h2", { id: "starts-title" }, "Starts in flight"), list, note);
  return {
    node,
    update(doc) {
      const waiting = doc.endpoints.filter((row) => row.state === "starting" || row.state === "stuck").map((row) => ({ id: row.id, uri: row.id, state: row.state, phase: row.problem, pending: true }));
      const items = [...waiting, ...doc.starts.filter((job) => job.state === "running" || job.state === "waiting"), ...doc.starts.filter((job) => job.state === "failed" || job.state === "done").slice(0, 4)];
      keyed(list, items, (job) => `${job.service ?? ""} ${job.id}`, () => {
        const name = h("span", { class: "mono small cut" }), fill = h("i"), facts = h("span", { class: "muted small num" }), bar = h("div", { class: "progress thin", "aria-hidden": "true" }, fill);
        const line = h("li", {}, name, bar, facts);
        return {
          node: line,
          update(job) {
            say(name, job.uri ?? UNKNOWN);
            bar.hidden = Boolean(job.pending) || !job.total_bytes;
            fill.style.width = job.total_bytes ? `${(100 * (job.done_bytes ?? 0)) / job.total_bytes}%` : "0";
            say(facts, job.pending ? `endpoint ${job.state}${job.phase ? `: ${job.phase}` : ""}` : [job.state, job.state === "running" ? job.phase : null, job.total_bytes ? `${bytes(job.done_bytes)} of ${bytes(job.total_bytes)}` : null, job.state === "running" && job.bytes_per_s ? `${bytes(job.bytes_per_s)}/s` : null, job.state === "running" && job.eta_s ? `${age(job.eta_s)} left` : null, job.error].filter(Boolean).join(" · "));
            line.className = job.state === "failed" || job.state === "stuck" ? "bad" : "";
          },
        };
      });
      const asked = doc.parts.some((part) => part.kind === "coldstart");
      say(note, items.length ? "" : !asked ? "No cold-start service is configured: TONNAGE_PLANNER_COLDSTART_URLS names it." : doc.starts_known ? "Nothing starts." : "No cold-start service answers: what starts is unknown.");
    },
  };
}
