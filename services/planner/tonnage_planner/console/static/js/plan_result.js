// A plan: what to rent and why, its curves, memory and roofline, every candidate, and what to copy.
import { call } from "./api.js";
import { chart } from "./chart.js";
import { announce, h, s, say } from "./dom.js";
import { UNKNOWN, isKnown, ms, share, trim, usd, whole, word } from "./format.js";
import { yaml } from "./yaml.js";

const known = (value) => (isKnown(value) ? value : NaN);
const limitOf = (slo, metric) => Object.entries(slo ?? {}).find(([name]) => name.startsWith(metric));

export function planResult(plan, id) {
  const best = plan.best;
  return h("div", { class: "plan-result" },
    verdict(plan),
    best || plan.pareto.length ? h("div", { class: "charts" }, pareto(plan), plan.curve ? [ttft(plan), tpot(plan), goodput(plan)] : "", plan.roofline ? roofline(plan.roofline) : "", best ? memory(best.memory) : "") : "",
    best ? run(plan, id) : "", candidates(plan), advice(plan));
}

function verdict(plan) {
  const best = plan.best, mix = plan.mix;
  const fact = (label, value) => h("div", { class: "big" }, h("h3", {}, label), h("p", { class: "figure num" }, value));
  if (!plan.feasible) {
    return h("section", { class: "card verdict no" }, h("h2", {}, h("span", { class: "mark bad", "aria-hidden": "true" }, "✕ "), "Nothing that is offered holds the SLO"),
      h("p", {}, `What binds: ${word(plan.binding)}. ${plan.reason ?? ""}`),
      plan.relaxations.length ? [h("h3", {}, "Ways out"), h("ol", {}, plan.relaxations.map((way) => h("li", {}, h("code", {}, way.change), `: ${format(way.from)} to ${format(way.to)}. ${way.text}`)))] : "");
  }
  return h("section", { class: "card verdict" },
    h("h2", {}, h("span", { class: "mark good", "aria-hidden": "true" }, "● "), best ? `${whole(best.replicas)} × ${best.name}` : mix.name),
    h("div", { class: "bigs" }, fact("A million output tokens", usd((best ?? mix).usd_per_mtok, 3)), fact("An hour", usd((best ?? mix).usd_per_hour)), best ? fact("GPUs", whole(best.gpus)) : "", best ? fact("TTFT p99", ms(rowOf(plan)?.ttft_ms)) : "", best ? fact("TPOT p99", ms(rowOf(plan)?.tpot_ms)) : ""),
    best ? h("p", {}, sentence(best.why)) : "",
    mix && best ? h("p", { class: "muted" }, `A mix of GPUs: ${mix.name}, ${usd(mix.usd_per_hour)} an hour, ${usd(mix.usd_per_mtok, 3)} a million tokens.`) : "",
    h("p", { class: "small muted" }, `${plan.method} ${whole(plan.considered)} considered, ${whole(plan.simulated)} runs of the engine model, seed ${plan.seed}.`));
}

const rowOf = (plan) => plan.candidates.find((row) => row.name === plan.best.name && row.feasible);
const sentence = (text) => { const t = String(text ?? ""); const first = /^\w*[_.]/.test(t) ? t[0] : t[0]?.toUpperCase(); return t ? `${first}${t.slice(1)}${/[.!?]$/.test(t) ? "" : "."}` : ""; };
const format = (value) => (isKnown(value) ? trim(value) : String(value));

function pareto(plan) {
  const rows = plan.candidates.filter((row) => row.feasible);
  const dots = (kind) => rows.filter((row) => row.class === kind).map((row) => ({ x: known(row.tpot_ms), y: known(row.usd_per_mtok), name: row.name }));
  return chart({
    title: "Cost against speed", note: "No other candidate beats a joined one on both.",
    series: [
      { label: "Pareto front", tone: "t3", points: plan.pareto.map((row) => ({ x: row.tpot_ms, y: row.usd_per_mtok })), dots: false },
      { label: "by formula", tone: "t6", joined: false, shape: "ring", points: dots("formula") },
      { label: "run in the engine model", tone: "t1", joined: false, points: dots("simulated") },
      plan.best ? { label: "chosen", tone: "t2", joined: false, shape: "diamond", points: [{ x: known(rowOf(plan)?.tpot_ms), y: known(plan.best.usd_per_mtok), name: plan.best.name }] } : { label: "", points: [] },
    ],
    x: { label: "TPOT p99, ms", short: "ms TPOT" }, y: { label: "$ a million output tokens", short: "$ a million tokens" },
  });
}

const points = (plan, of) => plan.curve.points.map((p) => ({ x: p.rate_rps, y: known(of(p)) }));
const limit = (plan, metric) => { const found = limitOf(plan.spec.call_slo ?? plan.spec.slo, metric); return found ? { value: found[1], label: `SLO ${found[0].split(".")[1] ?? ""} ${trim(found[1])} ms` } : null; };

function ttft(plan) {
  return chart({
    title: "Time to first token of one replica", note: sentence(plan.curve.why_not_full),
    series: [
      { label: "p99, engine model", tone: "t1", points: points(plan, (p) => p.ttft_ms?.p99) },
      { label: "mean, engine model", tone: "t3", points: points(plan, (p) => p.ttft_ms?.mean) },
      { label: "mean, M/M/1", tone: "t2", dashed: true, dots: false, points: points(plan, (p) => p.ttft_mean_ms_mm1) },
      { label: "mean, M/G/1", tone: "t4", dashed: true, dots: false, points: points(plan, (p) => p.ttft_mean_ms_mg1) },
    ],
    x: { label: "requests a second", short: "requests/s" }, y: { label: "TTFT, ms", short: "ms", log: true }, limit: limit(plan, "ttft_ms"),
  });
}

function tpot(plan) {
  return chart({
    title: "Time per output token of one replica", note: `The knee is at ${format(plan.curve.knee_rps ?? UNKNOWN)} requests/s, the SLO holds up to ${format(plan.curve.capacity_rps)}.`,
    series: [{ label: "p99", tone: "t1", points: points(plan, (p) => p.tpot_ms?.p99) }, { label: "mean", tone: "t3", points: points(plan, (p) => p.tpot_ms?.mean) }],
    x: { label: "requests a second", short: "requests/s" }, y: { label: "TPOT, ms", short: "ms" }, limit: limit(plan, "tpot_ms"),
  });
}

function goodput(plan) {
  return chart({
    title: "Latency against throughput", note: "Output tokens a second of one replica, and what a request waits for them.",
    series: [{ label: "TTFT p99", tone: "t1", points: plan.curve.points.map((p) => ({ x: known(p.output_tok_s), y: known(p.ttft_ms?.p99), name: `${trim(p.rate_rps)} requests/s${p.meets_slo ? "" : ", past the SLO"}` })) }],
    x: { label: "output tokens a second", short: "tokens/s" }, y: { label: "TTFT p99, ms", short: "ms", log: true }, limit: limit(plan, "ttft_ms"),
  });
}

function roofline(roof) {
  const box = h("div", { class: "chart-slot" });
  const tops = roof.points.map((p) => p.intensity).filter((v) => v > 0), right = Math.max(roof.ridge_flop_per_byte * 6, ...tops);
  const line = (peak, gbps) => [{ x: 0.7, y: (0.7 * gbps) / 1e3 }, { x: (peak * 1e3) / gbps, y: peak }, { x: right, y: peak }];
  const draw = (measured, note) => {
    const peaks = Object.entries(measured?.peaks_tflops ?? {}), peak = measured?.peaks_tflops?.[roof.peak_tflops > 1.5 * (measured?.peaks_tflops?.bf16 ?? Infinity) ? "fp8" : "bf16"] ?? peaks[0]?.[1];
    box.replaceChildren(chart({
      title: `Roofline of ${roof.gpu}`, note,
      series: [
        { label: "roof the plan used", tone: "t6", dots: false, points: line(roof.peak_tflops, roof.hbm_gbps) },
        measured?.hbm_gbps && peak ? { label: "roof measured", tone: "t2", dots: false, dashed: true, points: line(peak, measured.hbm_gbps) } : { label: "", points: [] },
        ...["bf16", "fp8", "fp16", "int8"].map((kind, i) => ({ label: `measured, ${kind}`, tone: ["t2", "t5", "t4", "t8"][i], joined: false, shape: "square", points: (measured?.points ?? []).filter((p) => p.precision === kind).map((p) => ({ x: p.intensity, y: p.tflops, name: p.label })) })),
        { label: "steps of the plan", tone: "t1", joined: false, points: roof.points.map((p) => ({ x: p.intensity, y: p.tflops, name: `${p.label}, ${ms(p.step_ms)} a step` })) },
      ],
      x: { label: "FLOP a byte", log: true }, y: { label: "TFLOP/s", log: true },
    }));
  };
  draw(null, "Looking for what was measured on this GPU.");
  call(`console/roofline/${encodeURIComponent(roof.gpu)}`).then(
    (got) => draw(got, got.reference ? `Measured on ${got.reference}, ${got.measured_at ?? "at an unknown time"}${got.points.length ? "" : "; its profile has ceilings and no single products"}.` : "Nothing was measured on a GPU of this name: run `tonnage probe` there and send the profile to /v1/profiles."),
    (error) => draw(null, `What was measured is unknown: ${error.message}.`));
  return box;
}

const PARTS = [["weight_gib", "weights", 0], ["activation_peak_gib", "activation peak", 1], ["non_torch_gib", "outside torch", 3], ["cuda_graph_gib", "CUDA graphs", 4], ["kv_cache_gib", "KV pool", 2]];

function memory(doc) {
  const stages = doc.stages ?? [], used = Math.max(0, ...stages.map((stage) => PARTS.reduce((a, [field]) => a + Math.max(0, stage[field] ?? 0), 0))), all = Math.max(doc.memory_gib ?? 0, used, 1e-9);
  const x = (gib) => (gib / all) * 560;
  const bars = stages.map((stage) => {
    let left = 0;
    const pieces = PARTS.map(([field, label, tone]) => { const size = Math.max(0, stage[field] ?? 0), at = left; left += size; return size ? s("rect", { class: `k${tone}`, x: x(at), y: 4, width: Math.max(0.5, x(size) - 1), height: 34, rx: 2 }, s("title", {}, `${label}: ${trim(size)} GiB`)) : null; });
    const fence = doc.gpu_memory_utilization && doc.memory_gib ? s("line", { class: "fence", x1: x(doc.gpu_memory_utilization * doc.memory_gib), x2: x(doc.gpu_memory_utilization * doc.memory_gib), y1: 0, y2: 42 }) : null;
    return h("div", { class: "membar" }, stages.length > 1 ? h("p", { class: "small muted" }, `stage ${stage.stage}`) : "", s("svg", { viewBox: "0 0 560 42", role: "img", "aria-label": `Memory of one GPU: ${PARTS.map(([field, label]) => `${label} ${isKnown(stage[field]) ? trim(stage[field]) : UNKNOWN} GiB`).join(", ")}, of ${trim(all)} GiB` }, s("rect", { class: "membed", x: 0, y: 4, width: 560, height: 34, rx: 4 }), pieces, fence));
  });
  const first = stages[0] ?? doc;
  return h("figure", { class: "card chart" }, h("figcaption", {}, h("h3", { class: "chart-title" }, `Memory of one ${doc.gpu ?? "GPU"}`), h("p", { class: "small muted" }, `${sentence(doc.reason)} The line is the share the engine may use, ${share(doc.gpu_memory_utilization)} of ${trim(doc.memory_gib)} GiB.`)), bars,
    h("p", { class: "legend small" }, PARTS.map(([field, label, tone]) => h("span", { class: "key" }, h("i", { class: `k${tone}`, "aria-hidden": "true" }), `${label} ${isKnown(first[field]) ? `${trim(first[field])} GiB` : UNKNOWN}`))),
    h("details", {}, h("summary", {}, "Derivation"), h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Derivation" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Step"), h("th", { scope: "col" }, "Formula"), h("th", { scope: "col", class: "n" }, "Value"))), h("tbody", {}, (doc.steps ?? []).map((step) => h("tr", {}, h("td", {}, step.name), h("td", { class: "mono small" }, step.formula), h("td", { class: "n" }, `${format(step.value)} ${step.unit ?? ""}`))))))));
}

function copyable(title, text) {
  const done = h("span", { class: "small muted", role: "status" });
  const button = h("button", { type: "button", class: "quiet", onclick: async () => { try { await navigator.clipboard.writeText(text); say(done, "Copied"); announce(`${title} copied`); } catch { say(done, "Select it and copy by hand: the browser refused"); } } }, "Copy");
  return h("section", { class: "copy", "aria-label": title }, h("div", { class: "copy-top" }, h("h3", {}, title), done, button), h("pre", { tabindex: 0, role: "region", "aria-label": title }, text));
}

function run(plan, id) {
  const best = plan.best, problems = best.check?.problems ?? [];
  return h("section", { class: "card", "aria-labelledby": "run-title" }, h("h2", { id: "run-title" }, "Run it"),
    h("p", { class: "muted" }, problems.length ? problems.join("; ") : "The memory formulas accept these flags. ", h("a", { href: `../v1/plan/${encodeURIComponent(id)}/report`, target: "_blank", rel: "noopener" }, "The whole report as a page")),
    h("div", { class: "copies" }, copyable("Command", best.command.map((part) => (/^[\w./:=-]+$/.test(part) ? part : `'${part.replaceAll("'", "'\\''")}'`)).reduce((line, part) => `${line}${part.startsWith("--") ? " \\\n  " : " "}${part}`)), copyable("ModelServer", yaml(best.model_server))));
}

function candidates(plan) {
  const heads = [["Configuration"], ["Replicas", "n"], ["$ an hour", "n"], ["$ / M tokens", "n"], ["TTFT p99", "n"], ["TPOT p99", "n"], ["Class"], ["Binds"], ["Why"]];
  const cell = (value, formatter) => h("td", { class: "n" }, isKnown(value) ? formatter(value) : h("span", { class: "unknown" }, "–"));
  return h("section", { class: "card", "aria-labelledby": "candidates-title" }, h("h2", { id: "candidates-title" }, "Candidates"),
    h("div", { class: "scroll-x tall", tabindex: 0, role: "region", "aria-label": "Candidates" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map(([label, kind]) => h("th", { scope: "col", class: kind }, label)))),
      h("tbody", {}, plan.candidates.map((row) => h("tr", { class: plan.best && row.name === plan.best.name && row.feasible ? "won" : row.feasible ? "" : "out" }, h("th", { scope: "row", class: "mono" }, row.name), cell(row.replicas, whole), cell(row.usd_per_hour, (v) => usd(v)), cell(row.usd_per_mtok, (v) => usd(v, 3)), cell(row.ttft_ms, ms), cell(row.tpot_ms, ms), h("td", {}, h("span", { class: `tag ${row.class === "simulated" ? "tag-2" : ""}` }, row.class)), h("td", {}, word(row.binding)), h("td", { class: "small muted" }, row.reason)))))));
}

function advice(plan) {
  if (!plan.advice?.length) return "";
  return h("section", { class: "card", "aria-labelledby": "advice-title" }, h("h2", { id: "advice-title" }, "Advice"), h("ul", { class: "advice" }, plan.advice.map((one) => h("li", {}, h("span", { class: "tag" }, word(one.topic)), h("span", {}, sentence(one.text)), h("span", { class: "num muted" }, isKnown(one.saves) ? (one.saves >= 0 ? `saves ${share(one.saves)}` : `costs ${share(-one.saves)} more`) : "")))));
}
