// Plan: a form, a job of the planner, and what came of it. The specification and the job stand in the address.
import { call } from "./api.js";
import { announce, h, say } from "./dom.js";
import { SAMPLE, planForm } from "./plan_form.js";
import { planResult } from "./plan_result.js";
import { share } from "./format.js";
import { pack, query, setQuery, unpack } from "./url.js";

const EVERY = 500;
const pause = (time) => new Promise((done) => setTimeout(done, time));

export function mount(root, ctx) {
  let turn = 0, shown = null;
  const form = planForm(start);
  const fill = h("i"), doing = h("p", { class: "muted num" }), stop = h("button", { type: "button", class: "quiet" }, "Stop");
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": "Plan", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const job = h("section", { class: "card job", hidden: true, "aria-label": "Progress" }, doing, bar, h("div", { class: "row-end" }, stop));
  const result = h("div", { class: "result" });
  const hint = h("section", { class: "card hint" }, h("h2", {}, "From traffic to GPUs"), h("p", { class: "muted" }, "Say what is served, how well, and what may be rented. The planner bounds every GPU, layout and number format by formula, runs the cheapest in the engine model, and answers with cost at the SLO, the latency-throughput curve, the memory of a GPU, its roofline, and the flags and YAML to copy. Nothing is changed in the fleet."), h("p", { class: "muted" }, "The address keeps the form: a link opens the same plan."));
  root.append(h("div", { class: "title" }, h("h1", {}, "Plan"), h("span", { class: "muted" }, "the cheapest way to serve this traffic at this SLO")), h("div", { class: "plan" }, form.node, h("div", { class: "outcome" }, job, hint, result)));
  form.node.addEventListener("input", () => setQuery({ spec: pack(form.read()) }));

  async function start(spec, config) {
    form.busy(true);
    try {
      const made = await call("plan", { method: "POST", body: config ? { ...spec, config } : spec, timeout: 30000 });
      setQuery({ spec: pack(spec), plan: made.id }, { push: true });
      follow(made.id);
    } catch (error) { form.wrong(error.message); form.busy(false); }
  }

  async function follow(id) {
    const mine = ++turn;
    shown = id;
    job.hidden = false; hint.hidden = true; result.replaceChildren();
    form.busy(true);
    stop.onclick = () => call(`plan/${encodeURIComponent(id)}`, { method: "DELETE" }).catch((error) => form.wrong(error.message));
    while (mine === turn) {
      let got;
      try { got = await call(`plan/${encodeURIComponent(id)}`); ctx.told(null); } catch (error) {
        if (mine !== turn) return;
        if (error.status === 400) { end(`The address names no plan: ${error.message}`); return; }
        if (error.status === 404) { end("This plan is kept no longer. The form still holds what was asked: plan it again."); return; }
        if (error.status === 401) { job.hidden = true; form.busy(false); }
        ctx.told(error); await pause(2000); continue;
      }
      if (mine !== turn) return;
      if (typeof got?.progress !== "number") { end("The address names no plan."); return; }
      job.hidden = false; form.busy(true);
      fill.style.width = share(got.progress, 0); bar.setAttribute("aria-valuenow", Math.round(100 * got.progress));
      say(doing, got.state === "queued" ? "Waits for its turn: one plan is computed at a time" : `${share(got.progress)}: ${got.doing}`);
      if (got.state === "done") { end(""); result.replaceChildren(planResult(got.plan, id)); root.dataset.ready = "true"; announce(got.plan.feasible ? "The plan is ready" : "The plan is ready: nothing fits"); return; }
      if (got.state === "failed" || got.state === "cancelled") { end(got.error ?? "The plan was stopped."); return; }
      await pause(EVERY);
    }
  }

  function end(message) { ctx.settled(); job.hidden = true; form.busy(false); form.wrong(message); hint.hidden = !message; }

  function read() {
    const q = query(), spec = q.get("spec") ? unpack(q.get("spec")) : null;
    form.write(spec ?? SAMPLE);
    const id = q.get("plan");
    if (id && id !== shown) follow(id);
    else if (!id) { turn += 1; shown = null; job.hidden = true; hint.hidden = false; result.replaceChildren(); form.busy(false); }
  }
  call("console/catalogue").then((catalogue) => { form.names(catalogue); root.dataset.named = "true"; }, (error) => ctx.told(error));
  read();
  return { moved: read, leave() { turn += 1; } };
}
