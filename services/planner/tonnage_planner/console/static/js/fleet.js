// Fleet: what serves, how loaded it is, how many replicas there should be and why.
import { call, poll } from "./api.js";
import { h, say, setAttr, toggleClass } from "./dom.js";
import { detail } from "./fleet_detail.js";
import { METRICS, fleetMap } from "./fleet_map.js";
import { figures, gpuPanel, partStrip, poolCards, replayCard, startPanel } from "./fleet_parts.js";
import { STATES, UNKNOWN, age, count, isKnown, share, whole } from "./format.js";
import { barCell, grid } from "./grid.js";
import { query, setQuery } from "./url.js";

const EVERY = 2000;
const ORDER = ["unknown", "serving", "draining", "starting", "stale", "stuck", "down"];

function text(cell, words, title) {
  say(cell, words);
  toggleClass(cell, "unknown", words === UNKNOWN);
  if (title !== undefined) setAttr(cell, "title", title);
}

function stateCell(cell, row) {
  if (!cell.tonnageMark) { cell.tonnageMark = h("span", { "aria-hidden": "true" }); cell.tonnageWord = h("span"); cell.replaceChildren(cell.tonnageMark, cell.tonnageWord); }
  const [mark, word, tone] = STATES[row.state] ?? STATES.unknown;
  say(cell.tonnageMark, mark); say(cell.tonnageWord, ` ${word}`);
  cell.tonnageMark.className = `mark ${tone}`;
  setAttr(cell, "title", row.problem);
}

const COLUMNS = [
  { key: "state", label: "State", width: "98px", cell: stateCell, value: (row) => ORDER.indexOf(row.state) },
  { key: "id", label: "Endpoint", width: "minmax(150px, 1.4fr)", cell: (c, row) => text(c, row.id, row.url), value: (row) => row.id },
  { key: "pool", label: "Pool", width: "minmax(110px, 1.2fr)", cell: (c, row) => text(c, row.pool ?? UNKNOWN, row.models.join(", ")), value: (row) => row.pool },
  { key: "running", label: "Running", numeric: true, width: "70px", cell: (c, row) => text(c, count(row.running)), value: (row) => row.running },
  { key: "waiting", label: "Waiting", numeric: true, width: "70px", cell: (c, row) => text(c, count(row.waiting)), value: (row) => row.waiting },
  { key: "kv_usage", label: "KV", title: "Share of KV blocks in use", width: "116px", cell: (c, row) => barCell(c, 0.9)(row.kv_usage, share(row.kv_usage)), value: (row) => row.kv_usage },
  { key: "hit_rate", label: "Hits", title: "Share of prompt tokens lately that the prefix cache held", width: "124px", cell: (c, row) => barCell(c)(row.hit_rate, row.hit_rate === null && isKnown(row.prompt_tok_s) ? "no prompt" : share(row.hit_rate)), value: (row) => row.hit_rate },
  { key: "output_tok_s", label: "Out tok/s", numeric: true, width: "80px", cell: (c, row) => text(c, count(row.output_tok_s)), value: (row) => row.output_tok_s },
  { key: "load_tokens", label: "Work", title: "Work the routers have there, in prompt tokens", numeric: true, width: "70px", cell: (c, row) => text(c, count(row.load_tokens)), value: (row) => row.load_tokens },
  { key: "verdict", label: "GPU", width: "76px", cell: (c, row) => text(c, row.verdict ?? UNKNOWN, row.gpu ?? "no GpuProfile is named for it"), value: (row) => row.verdict },
  { key: "failures_total", label: "Failed", title: "Failed of all requests sent", numeric: true, width: "60px", cell: (c, row) => text(c, count(row.failures_total), `of ${whole(row.requests_total)}`), value: (row) => row.failures_total },
  { key: "age_s", label: "Read", title: "Since its metrics were read", numeric: true, width: "60px", cell: (c, row) => text(c, row.age_s === null ? UNKNOWN : age(row.age_s)), value: (row) => row.age_s },
];
const BY = Object.fromEntries(COLUMNS.map((column) => [column.key, column]));

/** Rows that the filters keep, in order; unknown values come last either way. */
export function arrange(rows, { text: wanted = "", pool = "", state = "", sort = "state", down = true }) {
  const needle = wanted.toLowerCase(), column = Object.hasOwn(BY, sort) ? BY[sort] : BY.state;
  const kept = rows.filter((row) => (!pool || row.pool === pool) && (!state || row.state === state) && (!needle || row.id.toLowerCase().includes(needle) || (row.pool ?? "").toLowerCase().includes(needle) || row.models.some((m) => m.toLowerCase().includes(needle))));
  const sign = down ? -1 : 1;
  return kept.sort((a, b) => {
    const x = column.value(a), y = column.value(b);
    if (x === y) return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * sign;
  });
}

export function mount(root, ctx) {
  const state = () => { const q = query(); const asked = q.get("sort") ?? "", sort = Object.hasOwn(BY, asked.replace(/^-/, "")) ? asked : "-state", by = q.get("by"); return { text: q.get("q") ?? "", pool: q.get("pool") ?? "", state: q.get("state") ?? "", sort: sort.replace(/^-/, ""), down: sort.startsWith("-"), view: q.get("view") === "map" ? "map" : "table", metric: METRICS.some(([key]) => key === by) ? by : "kv_usage", endpoint: q.get("endpoint") }; };
  let doc = null, first = true;

  const strip = partStrip(), tiles = figures(), pools = poolCards((pool) => change({ pool: state().pool === pool ? "" : pool }));
  const replay = replayCard(), gpus = gpuPanel(), starts = startPanel();
  const opened = detail(ctx, () => shut(), () => polling.now());
  const shut = () => { change({ endpoint: "" }); (state().view === "map" ? map : table).focus(); };
  const open = (row) => { change({ endpoint: row.id }); };
  const table = grid({ label: "Endpoints", columns: COLUMNS, rowKey: (row) => row.id, open, empty: "No endpoint matches.", sort(key) { const now = state(); change({ sort: now.sort === key && now.down ? key : `-${key}` }); } });
  const map = fleetMap(open);

  const search = h("input", { type: "search", placeholder: "Filter by name, pool or model", "aria-label": "Filter endpoints", oninput: () => change({ q: search.value }) });
  const poolPick = h("select", { "aria-label": "Pool", onchange: () => change({ pool: poolPick.value }) });
  const statePick = h("select", { "aria-label": "State", onchange: () => change({ state: statePick.value }) });
  const metricPick = h("select", { "aria-label": "Colour by", onchange: () => change({ by: metricPick.value }) }, METRICS.map(([key, label]) => h("option", { value: key }, label)));
  const asTable = h("button", { type: "button", class: "seg", onclick: () => change({ view: "" }) }, "Table"), asMap = h("button", { type: "button", class: "seg", onclick: () => change({ view: "map" }) }, "Map");
  const found = h("span", { class: "muted small num" });
  const policy = h("span", { class: "muted" }), problem = h("p", { class: "problem", role: "status", hidden: true });

  root.append(
    h("div", { class: "title" }, h("h1", {}, "Fleet"), policy),
    strip.node, problem, tiles.node,
    h("div", { class: "columns" }, pools.node, h("div", { class: "side" }, replay.node, starts.node, gpus.node)),
    h("section", { class: "panel", "aria-labelledby": "endpoints-title" },
      h("div", { class: "toolbar" }, h("h2", { id: "endpoints-title" }, "Endpoints"), found, h("span", { class: "spring" }), search, poolPick, statePick, metricPick, h("div", { class: "segs", role: "group", "aria-label": "Show as" }, asTable, asMap)),
      h("div", { class: "with-detail", onkeydown: (event) => { if (event.key === "Escape" && state().endpoint) shut(); } }, h("div", { class: "views" }, table.node, map.node), opened.node)),
  );

  function options(pick, names, all, labels = (name) => name) {
    const wanted = ["", ...names], now = [...pick.options].map((option) => option.value);
    if (wanted.join("\n") !== now.join("\n")) pick.replaceChildren(...wanted.map((name) => h("option", { value: name }, name ? labels(name) : all)));
  }

  function draw() {
    const now = state();
    for (const [button, on] of [[asTable, now.view === "table"], [asMap, now.view === "map"]]) button.setAttribute("aria-pressed", String(on));
    table.node.hidden = now.view !== "table"; map.node.hidden = metricPick.hidden = now.view !== "map";
    if (document.activeElement !== search) search.value = now.text;
    table.sorted(now.sort, now.down);
    if (!doc) return;
    options(poolPick, [...new Set([...doc.pools.map((p) => p.pool), ...doc.endpoints.map((row) => row.pool).filter(Boolean), ...(now.pool ? [now.pool] : [])])].sort(), "All pools");
    options(statePick, Object.keys(STATES), "All states", (name) => STATES[name][1]);
    poolPick.value = now.pool; statePick.value = now.state; metricPick.value = now.metric;
    const rows = arrange([...doc.endpoints], now), scoped = doc.endpoints.filter((row) => !now.pool || row.pool === now.pool);
    say(policy, doc.policy ? `routed by ${doc.policy.replaceAll("_", " ")}` : "router policy unknown");
    problem.hidden = !doc.list_error; say(problem, doc.list_error ? `The endpoint list cannot be read, the last one stays: ${doc.list_error}` : "");
    strip.update(doc); tiles.update(scoped, doc, now.pool); pools.update(doc, now.pool); replay.update(doc); gpus.update(doc); starts.update(doc);
    const more = doc.endpoints_total - doc.endpoints.length;
    say(found, `${whole(rows.length)} of ${whole(doc.endpoints_total)}${more > 0 ? `, ${whole(more)} not listed here` : ""}`);
    if (now.view === "table") { table.update(rows); table.selected(now.endpoint); } else map.update(rows, now.metric, now.endpoint);
    opened.update(now.endpoint ? doc.endpoints.find((row) => row.id === now.endpoint) ?? { id: now.endpoint, gone: true } : null);
  }

  function change(to) { setQuery(to, { push: "endpoint" in to || "view" in to || "pool" in to }); draw(); if ("pool" in to) old.now(); }

  const polling = poll(async () => {
    try { doc = await call("console/fleet"); ctx.told(null); } catch (error) { ctx.told(error); return; }
    draw();
    if (first) { first = false; performance.mark("tonnage-fleet"); root.dataset.ready = "true"; }
  }, EVERY);
  const old = poll(async () => {
    try { tiles.history(await call(`console/history?pool=${encodeURIComponent(state().pool)}`)); } catch { /* the banner tells */ }
  }, 2 * EVERY);
  draw();
  return { moved() { draw(); old.now(); }, leave() { polling.stop(); old.stop(); opened.leave(); } };
}
