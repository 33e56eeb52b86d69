// What is to be served, how well, and what may be rented: the form of a plan's specification.
import { h } from "./dom.js";

export const SAMPLE = {
  model: "meta-llama/Llama-3.1-8B-Instruct", engine: "vllm:0.32.0",
  traffic: { rate_rps: 12, arrivals: "poisson", input_tokens: { p50: 1200, p99: 9000 }, output_tokens: { p50: 220, p99: 900 }, shared_prefix: { tokens: 1800, share: 0.6 } },
  slo: { ttft_ms: { p99: 1500 }, tpot_ms: { p99: 50 } },
  offers: [{ gpu: "H100-SXM-80GB", usd_per_hour: 2.9, max: 16 }, { gpu: "H200-SXM-141GB", usd_per_hour: 3.6, max: 16 }, { gpu: "L40S", usd_per_hour: 0.9, max: 32 }],
  headroom: 0.2, fan_out: 1, seed: 0,
};

const NUMBERS = [
  ["rate", "Requests a second", ["traffic", "rate_rps"], { required: true, min: 0.0001, step: "any" }],
  ["in50", "Prompt tokens, median", ["traffic", "input_tokens", "p50"], { required: true, min: 1, step: 1 }],
  ["in99", "Prompt tokens, p99", ["traffic", "input_tokens", "p99"], { required: true, min: 1, step: 1 }],
  ["out50", "Answer tokens, median", ["traffic", "output_tokens", "p50"], { required: true, min: 1, step: 1 }],
  ["out99", "Answer tokens, p99", ["traffic", "output_tokens", "p99"], { required: true, min: 1, step: 1 }],
  ["prefix", "Shared prefix, tokens", ["traffic", "shared_prefix", "tokens"], { min: 0, step: 1 }],
  ["share", "Share of requests with it", ["traffic", "shared_prefix", "share"], { min: 0, max: 1, step: "any" }],
  ["ttft", "TTFT p99, ms", ["slo", "ttft_ms", "p99"], { min: 1, step: "any" }],
  ["tpot", "TPOT p99, ms", ["slo", "tpot_ms", "p99"], { min: 0.1, step: "any" }],
  ["headroom", "Headroom, share", ["headroom"], { min: 0, max: 0.9, step: "any" }],
  ["fan", "Calls a user", ["fan_out"], { min: 1, step: 1 }],
  ["seed", "Seed", ["seed"], { min: 0, step: 1 }],
];
const at = (value, path) => path.reduce((inner, name) => inner?.[name], value);

/** {node, read(), write(spec), names(catalogue), busy(on), wrong(message)}; `submit(spec)` starts a plan. */
export function planForm(submit) {
  const model = h("input", { id: "f-model", list: "models", required: true, maxlength: 300, spellcheck: "false", autocomplete: "off" });
  const models = h("datalist", { id: "models" }), gpus = h("datalist", { id: "gpus" });
  const engine = h("input", { id: "f-engine", required: true, spellcheck: "false", list: "engines" });
  const engines = h("datalist", { id: "engines" }, ["vllm:0.32.0", "vllm:0.19.0", "sglang:0.5.5", "trtllm:1.1.0"].map((value) => h("option", { value })));
  const arrivals = h("select", { id: "f-arrivals" }, [["poisson", "Poisson"], ["constant", "constant"], ["gamma(2)", "bursty, cv 2"], ["gamma(4)", "very bursty, cv 4"]].map(([value, label]) => h("option", { value }, label)));
  const inputs = Object.fromEntries(NUMBERS.map(([key, , , limits]) => [key, h("input", { id: `f-${key}`, type: "number", inputmode: "decimal", ...limits })]));
  const field = (key, label, input) => h("div", { class: "field" }, h("label", { for: `f-${key}` }, label), input);
  const numbers = (...keys) => keys.map((key) => field(key, NUMBERS.find(([k]) => k === key)[1], inputs[key]));
  const rows = h("div", { class: "offers" }), error = h("p", { class: "field-error", role: "alert" });
  const go = h("button", { type: "submit", class: "strong" }, "Plan"), file = h("input", { id: "f-config", type: "file", accept: "application/json,.json" });
  let config = null;
  file.addEventListener("change", async () => {
    config = null; error.textContent = "";
    if (!file.files[0]) return;
    try { config = JSON.parse(await file.files[0].text()); } catch { error.textContent = "That file is not JSON: pick the model's config.json."; }
  });

  function offer(one) {
    const gpu = h("input", { list: "gpus", "aria-label": "GPU", required: true, maxlength: 300, value: one.gpu, spellcheck: "false" });
    const price = h("input", { type: "number", min: 0.0001, step: "any", "aria-label": "Dollars an hour", required: true, value: one.usd_per_hour });
    const most = h("input", { type: "number", min: 1, step: 1, "aria-label": "Most GPUs", required: true, value: one.max });
    const line = h("div", { class: "offer" }, gpu, price, most, h("button", { type: "button", class: "quiet square", "aria-label": `Remove ${one.gpu || "this offer"}`, onclick: () => { line.remove(); node.dispatchEvent(new Event("input")); } }, "✕"));
    line.tonnageOffer = () => ({ gpu: gpu.value.trim(), usd_per_hour: Number(price.value), max: Number(most.value) });
    return line;
  }
  const group = (title, ...inner) => h("fieldset", {}, h("legend", {}, title), inner);
  const node = h("form", { class: "card plan-form", "aria-label": "Plan", novalidate: true },
    group("Serve", field("model", "Model", model), h("div", { class: "pair" }, field("engine", "Engine", engine), field("config", "config.json, if not in the catalogue", file))),
    group("Traffic", h("div", { class: "pair" }, numbers("rate"), field("arrivals", "Arrivals", arrivals), numbers("in50", "in99", "out50", "out99", "prefix", "share"))),
    group("SLO", h("div", { class: "pair" }, numbers("ttft", "tpot"))),
    group("Offers", h("div", { class: "offer heads small muted", "aria-hidden": "true" }, h("span", {}, "GPU"), h("span", {}, "$ an hour"), h("span", {}, "at most"), h("span")), rows, h("button", { type: "button", class: "quiet", onclick: () => { rows.append(offer({ gpu: "", usd_per_hour: "", max: 8 })); rows.lastChild.querySelector("input").focus(); } }, "Add an offer")),
    group("Margins", h("div", { class: "triple" }, numbers("headroom", "fan", "seed"))),
    error, h("div", { class: "row-end" }, h("button", { type: "button", class: "quiet", onclick: () => { write(SAMPLE); node.dispatchEvent(new Event("input")); } }, "Reset"), go), models, gpus, engines);

  function read() {
    const number = (key) => (inputs[key].value === "" ? undefined : Number(inputs[key].value));
    const spec = { model: model.value.trim(), engine: engine.value.trim(), traffic: { rate_rps: number("rate"), arrivals: arrivals.value, input_tokens: { p50: number("in50"), p99: number("in99") }, output_tokens: { p50: number("out50"), p99: number("out99") } }, slo: {}, offers: [...rows.children].map((line) => line.tonnageOffer()) };
    if (number("prefix") && number("share")) spec.traffic.shared_prefix = { tokens: number("prefix"), share: number("share") };
    if (number("ttft") !== undefined) spec.slo.ttft_ms = { p99: number("ttft") };
    if (number("tpot") !== undefined) spec.slo.tpot_ms = { p99: number("tpot") };
    for (const [key, name] of [["headroom", "headroom"], ["fan", "fan_out"], ["seed", "seed"]]) if (number(key) !== undefined) spec[name] = number(key);
    return spec;
  }

  function write(spec) {
    model.value = spec?.model ?? ""; engine.value = spec?.engine ?? ""; arrivals.value = spec?.traffic?.arrivals ?? "poisson";
    for (const [key, , path] of NUMBERS) inputs[key].value = at(spec, path) ?? "";
    rows.replaceChildren(...(Array.isArray(spec?.offers) ? spec.offers : []).filter((one) => one !== null && typeof one === "object").slice(0, 50).map(offer));
  }

  node.addEventListener("submit", (event) => {
    event.preventDefault();
    error.textContent = "";
    const bad = [...node.querySelectorAll("input")].filter((input) => { const wrong = !input.checkValidity(); input.setAttribute("aria-invalid", String(wrong)); return wrong; });
    if (bad.length) { const name = bad[0].getAttribute("aria-label") ?? node.querySelector(`label[for="${bad[0].id}"]`)?.textContent; error.textContent = `${name}: ${bad[0].validationMessage}`; bad[0].focus(); return; }
    if (!rows.children.length) { error.textContent = "Offers: name at least one GPU with its price."; return; }
    submit(read(), config);
  });
  return {
    node, read, write,
    names(catalogue) {
      models.replaceChildren(...catalogue.models.map((value) => h("option", { value })));
      gpus.replaceChildren(...catalogue.profiles.map((value) => h("option", { value }, "measured here")), ...catalogue.gpus.map((gpu) => h("option", { value: gpu.name }, `${Math.round(gpu.memory_gib)} GiB${gpu.measured ? ", measured here" : ""}`)));
    },
    busy(on) { go.disabled = on; go.textContent = on ? "Planning" : "Plan"; },
    wrong(message) { error.textContent = message; },
  };
}
