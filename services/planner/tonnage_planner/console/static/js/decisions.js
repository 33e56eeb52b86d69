// Decisions: why did this request go there, with every candidate's scores.
import { call, poll } from "./api.js";
import { h, keyed, say, setAttr } from "./dom.js";
import { UNKNOWN, age, clock, count, isKnown, share, trim, whole, word } from "./format.js";
import { scoreBoard } from "./scores.js";
import { query, setQuery } from "./url.js";

const key = (row) => `${row.router} ${row.number ?? row.at}`;

/** In words: why the chosen one was chosen. */
export function reasonOf(decision) {
  const chosen = decision.candidates.find((one) => one.endpoint === decision.chosen);
  const others = decision.candidates.filter((one) => one !== chosen && isKnown(one.total)).sort((a, b) => b.total - a.total);
  const hit = isKnown(decision.hit_tokens) && decision.prompt_tokens ? `${whole(decision.hit_tokens)} of ${whole(decision.prompt_tokens)} prompt tokens (${share(decision.hit_tokens / decision.prompt_tokens)}) were believed to be in its cache` : `a prompt of ${whole(decision.prompt_tokens)} tokens`;
  if (decision.reason === "only_candidate") return `It was the only endpoint that could take the request; ${hit}.`;
  if (!chosen || !isKnown(chosen.total)) return `Chosen by ${decision.policy ?? UNKNOWN}, which does not score; ${hit}.`;
  const lead = others.length ? chosen.total - others[0].total : null;
  const gains = others.length ? Object.entries(chosen.parts).map(([name, value]) => [name, value - (others[0].parts[name] ?? 0)]).sort((a, b) => b[1] - a[1]) : [];
  const best = gains.length && gains[0][1] > 1e-6 ? `, most of all by ${word(gains[0][0])} (+${trim(gains[0][1])})` : "";
  const against = lead === null ? "" : lead >= 0.0005 ? ` It leads ${others[0].endpoint} by ${trim(lead)}${best}.` : lead > -0.0005 ? ` It ties with ${others[0].endpoint}; ties are broken at random.` : ` ${others[0].endpoint} scored ${trim(-lead)} more: the picker of ${decision.policy} does not always take the highest.`;
  return `${hit[0].toUpperCase()}${hit.slice(1)}.${against}`;
}

/** A router of another version may leave things out: what is missing is empty. */
const readable = (decision) => decision && ({ ...decision, candidates: (Array.isArray(decision.candidates) ? decision.candidates : []).filter((one) => one !== null && typeof one === "object").map((one) => ({ ...one, scores: one.scores ?? {}, parts: one.parts ?? {} })) });

export function mount(root, ctx) {
  const state = () => { const q = query(); return { number: q.get("number"), router: q.get("router") ?? "", request: q.get("request"), endpoint: q.get("endpoint") ?? "", reason: q.get("reason") ?? "", text: q.get("q") ?? "" }; };
  let rows = [], routers = [], paused = false, shown = null, asked = null, loaded = false;

  const list = h("div", { class: "decisions", role: "list", "aria-label": "Latest decisions" });
  const none = h("p", { class: "muted empty" });
  const search = h("input", { type: "search", placeholder: "Request id or model", "aria-label": "Filter decisions", oninput: () => change({ q: search.value }) });
  const endpointPick = h("select", { "aria-label": "Chosen endpoint", onchange: () => change({ endpoint: endpointPick.value }) });
  const reasonPick = h("select", { "aria-label": "Reason", onchange: () => change({ reason: reasonPick.value }) });
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => { paused = !paused; setAttr(pause, "aria-pressed", String(paused)); say(pause, paused ? "Go on" : "Pause"); if (!paused) polling.now(); } }, "Pause");
  const found = h("span", { class: "muted small num" }), parts = h("p", { class: "problem", role: "status", hidden: true });
  const board = scoreBoard(), title = h("h2", {}, "Pick a decision"), why = h("p", { class: "why" }), facts = h("dl", { class: "facts wide" }), trouble = h("p", { class: "field-error", role: "status" });
  const card = h("section", { class: "card decision", "aria-live": "off" }, title, why, facts, trouble, board.node);
  root.append(h("div", { class: "title" }, h("h1", {}, "Decisions"), h("span", { class: "muted" }, "why a request went where it went")), parts,
    h("div", { class: "split" }, h("section", { class: "panel", "aria-label": "Latest decisions" }, h("div", { class: "toolbar" }, search, endpointPick, reasonPick, pause, h("span", { class: "spring" }), found), list, none), card));

  function options(pick, names, all, label = (name) => name) {
    const wanted = ["", ...names];
    if ([...pick.options].map((o) => o.value).join("\n") !== wanted.join("\n")) pick.replaceChildren(...wanted.map((name) => h("option", { value: name }, name ? label(name) : all)));
  }

  function draw() {
    const now = state(), needle = now.text.toLowerCase();
    options(endpointPick, [...new Set([...rows.map((row) => row.chosen), ...(now.endpoint ? [now.endpoint] : [])])].filter(Boolean).sort(), "All endpoints");
    options(reasonPick, [...new Set([...rows.map((row) => row.reason), ...(now.reason ? [now.reason] : [])])].filter(Boolean).sort(), "All reasons", word);
    endpointPick.value = now.endpoint; reasonPick.value = now.reason;
    if (document.activeElement !== search) search.value = now.text;
    const kept = rows.filter((row) => (!now.endpoint || row.chosen === now.endpoint) && (!now.reason || row.reason === now.reason) && (!needle || `${row.request_id ?? ""} ${row.model ?? ""}`.toLowerCase().includes(needle)));
    say(found, `${whole(kept.length)} of the latest ${whole(rows.length)}`);
    keyed(list, kept, key, (row) => decisionRow(row, (one) => change({ number: one.number, router: one.router }, true)));
    for (const [name, part] of list.tonnageKeyed ?? []) setAttr(part.button, "aria-current", shown && name === key({ ...shown.decision, router: shown.router }) ? "true" : null);
    none.hidden = kept.length > 0;
    const down = routers.filter((part) => part.state === "down");
    say(none, !loaded ? "Asking the routers." : !routers.length ? "No router is configured: TONNAGE_PLANNER_ROUTER_URL names it." : rows.length ? "No decision matches." : down.length === routers.length ? "No router answers, so its decisions are unknown." : "No request was routed yet. Send one to the router, or start a replay.");
    parts.hidden = !down.length;
    say(parts, down.map((part) => `Router ${part.url} is down, ${part.age_s === null ? "it never answered" : `last answered ${age(part.age_s)} ago`}: ${part.problem}`).join(" "));
  }

  function drawOne() {
    const decision = shown?.decision;
    board.node.hidden = facts.hidden = !decision;
    if (!decision) { say(title, "Pick a decision"); say(why, "Each line of the list is one request. The newest is shown here, with its candidates and what each scorer said, until you pick one."); return; }
    say(title, "");
    title.append("Sent to ", h("a", { class: "mono", href: `fleet?endpoint=${encodeURIComponent(decision.chosen)}` }, decision.chosen), ` for ${word(decision.reason)}`);
    say(why, reasonOf(decision));
    const lines = [["Request", decision.request_id ?? "no id was sent"], ["At", `${clock(Date.parse(decision.at) / 1000)}, decision ${decision.number} of ${shown.router}`], ["Model", decision.model ?? UNKNOWN], ["Tenant", decision.tenant ?? "none"], ["Policy", decision.policy ?? UNKNOWN], ["Prefill apart", decision.disaggregation ?? "not asked"]];
    keyed(facts, lines.map(([name, value]) => ({ name, value })), (f) => f.name, (f) => { const value = h("dd"); return { node: h("div", {}, h("dt", {}, f.name), value), update: (n) => say(value, n.value) }; });
    board.update(decision);
  }

  async function open() {
    const now = state();
    const newest = now.number || now.request ? null : rows[0];
    if (!now.number && !newest) { shown = null; asked = null; if (!now.request) say(trouble, ""); drawOne(); draw(); return; }
    const [number, router] = newest ? [newest.number, newest.router] : [now.number, now.router], wanted = `${router} ${number}`;
    if (asked === wanted) return;
    asked = wanted;
    try { const got = await call(`console/decisions/${encodeURIComponent(number)}?router=${encodeURIComponent(router)}`); if (asked === wanted) { shown = { ...got, decision: readable(got.decision) }; say(trouble, ""); } }
    catch (error) { if (asked === wanted) { shown = null; asked = null; say(trouble, error.message); } }
    drawOne(); draw();
  }

  /** A link may name a request instead of a number. */
  function byRequest() {
    const { request, number } = state();
    const row = request && !number ? rows.find((one) => one.request_id === request) : null;
    if (row) change({ number: row.number, router: row.router, request: "" });
    else if (request && !number && loaded) say(trouble, `No decision of request ${request} is among the latest ${rows.length}.`);
  }

  function change(to, push = false) { setQuery(to, { push }); draw(); open(); }

  const polling = poll(async () => {
    if (paused) return;
    try { const got = await call("console/decisions?limit=200"); rows = got.decisions; routers = got.routers; loaded = true; ctx.told(null); } catch (error) { ctx.told(error); return; }
    draw(); byRequest();
    if (!state().number) open();
    root.dataset.ready = "true";
  }, 2000);
  draw(); drawOne(); open();
  return { moved() { draw(); open(); }, leave() { polling.stop(); } };
}

function decisionRow(row, open) {
  const part = isKnown(row.hit_tokens) && row.prompt_tokens ? row.hit_tokens / row.prompt_tokens : null;
  const button = h("button", { type: "button", class: "drow", onclick: () => open(row) },
    h("span", { class: "num faint" }, clock(Date.parse(row.at) / 1000)),
    h("span", { class: "mono small cut", title: row.request_id ?? "" }, row.request_id ?? "no id"),
    h("span", { class: `tag ${row.reason === "prefix" ? "tag-1" : row.reason === "load" ? "tag-2" : ""}` }, word(row.reason)),
    h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * (part ?? 0)}%` } })),
    h("span", { class: "num small muted" }, part === null ? UNKNOWN : `${share(part)} of ${count(row.prompt_tokens)} cached`),
    h("span", { class: "mono small cut", title: row.chosen ?? "" }, row.chosen ?? UNKNOWN));
  return { node: h("div", { role: "listitem" }, button), button };
}
