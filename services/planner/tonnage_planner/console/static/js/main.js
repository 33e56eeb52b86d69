// The shell: which page is shown, the theme, whether this reader may act, and how fresh what is shown is.
import { announce, h, say } from "./dom.js";
import { ApiError, call, hasToken, session, setToken } from "./api.js";

const PAGES = { fleet: () => import("./fleet.js"), decisions: () => import("./decisions.js"), plan: () => import("./plan.js") };
const main = document.getElementById("page");
const el = (id) => document.getElementById(id);
let shown = null, turn = 0;

const ctx = {
  actions: "token",
  listeners: new Set(),
  fresh: null,
  /** A page tells that it has news, or what went wrong. */
  told(error) {
    const banner = el("banner");
    if (!error) { this.fresh = performance.now(); banner.hidden = true; tick(); return; }
    const since = this.fresh === null ? "" : `; what is shown is ${Math.round((performance.now() - this.fresh) / 1000)} s old`;
    say(banner, `${error.message}${since}`);
    banner.hidden = false;
    tick();
  },
  /** Nothing more is awaited: what is shown does not age. */
  settled() { this.fresh = null; say(el("freshness"), ""); },
  navigate(to) { history.pushState(null, "", to); show(); },
  openToken,
};

const pageOf = () => { const name = location.pathname.split("/").pop(); return Object.hasOwn(PAGES, name) ? name : "fleet"; };

async function show() {
  const name = pageOf(), mine = ++turn;
  for (const link of document.querySelectorAll("[data-page]")) link.dataset.page === name ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  if (shown?.name === name) { shown.page.moved?.(); return; }
  let module;
  try { module = await PAGES[name](); } catch { if (mine === turn) { shown?.page.leave?.(); shown = null; awaitPage(mine); } return; }
  if (mine !== turn) return;
  shown?.page.leave?.();
  ctx.fresh = null; say(el("freshness"), ""); el("banner").hidden = true;
  const root = h("div", { class: `page page-${name}` });
  main.replaceChildren(root);
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · Tonnage`;
  shown = { name, page: module.mount(root, ctx) };
}

/** A page's script did not come: tell, and load the address again once the planner answers. */
async function awaitPage(mine) {
  while (mine === turn) {
    ctx.told(new Error("This page could not be loaded; it is tried again until the planner answers"));
    await new Promise((done) => setTimeout(done, 2000));
    try { await session(); } catch { continue; }
    if (mine === turn) location.reload();
    return;
  }
}

function tick() {
  const label = el("freshness");
  if (ctx.fresh === null) return;
  const old = (performance.now() - ctx.fresh) / 1000;
  label.classList.toggle("late", old > 8);
  say(label, old < 3 ? "live" : `${Math.round(old)} s ago`);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.target) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || to.hash || !Object.hasOwn(PAGES, to.pathname.split("/").pop()) || !to.pathname.includes("/console/")) return;
  event.preventDefault();
  const moved = pageOf() !== to.pathname.split("/").pop();
  ctx.navigate(to.pathname + to.search);
  if (moved) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
});
addEventListener("popstate", show);

// --- theme ------------------------------------------------------------------
function labelTheme() {
  const choice = document.documentElement.dataset.choice;
  say(el("theme"), { system: "◐", light: "☀", dark: "☾" }[choice]);
  el("theme").setAttribute("aria-label", `Theme: ${choice}. Change it`);
  el("theme").title = `Theme: ${choice}`;
}
el("theme").addEventListener("click", () => announce(`theme: ${window.tonnageTheme.next()}`));
addEventListener("themechange", labelTheme);
labelTheme();

// --- who may act --------------------------------------------------------------
const WHY = {
  off: "Actions are off: the planner has no token. Set TONNAGE_PLANNER_ACTION_TOKEN_SHA256 to the SHA-256 of one; `tonnage up` makes one and prints it. Everything here can be read without; a planner with an access file makes plans only for callers with one of its tokens.",
  token: "Everything here can be read without a token. Draining an endpoint needs the planner's action token: `tonnage up` prints it, elsewhere it is the one whose SHA-256 stands in TONNAGE_PLANNER_ACTION_TOKEN_SHA256.",
  allowed: "This tab holds the action token: it may drain endpoints. The token is kept until the tab is closed.",
};

async function refreshSession() {
  try { ctx.actions = await session(); } catch (error) { if (!(error instanceof ApiError)) throw error; ctx.actions = "token"; }
  say(el("access"), ctx.actions === "allowed" ? "Actions on" : "Read-only");
  for (const listener of ctx.listeners) listener();
}

const answers = () => call("plan").then(() => true, () => false);

function openToken() {
  say(el("token-text"), WHY[ctx.actions]);
  say(el("token-error"), "");
  el("token-field").value = "";
  el("token-forget").hidden = !hasToken();
  el("token-dialog").showModal();
}
el("access").addEventListener("click", openToken);
el("token-close").addEventListener("click", () => el("token-dialog").close());
el("token-forget").addEventListener("click", async () => { setToken(null); await refreshSession(); el("token-dialog").close(); });
el("token-dialog").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setToken(null);
  const open = await answers();  // a planner with an access file makes plans only for its tokens' bearers
  setToken(el("token-field").value.trim());
  await refreshSession();
  if (ctx.actions === "allowed" || (!open && (await answers()))) { el("token-dialog").close(); return; }
  setToken(null);
  say(el("token-error"), "This is not the planner's token.");
});

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { setToken(given); history.replaceState(null, "", location.pathname + location.search); }
refreshSession();
setInterval(tick, 1000);
show();
