// Calls to the planner. Addresses are relative to the page, so that a prefix of a proxy is kept.
const TOKEN = "tonnage-token";
let token = null;
try { token = sessionStorage.getItem(TOKEN); } catch { token = null; }

export class ApiError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

const base = new URL("../v1/", document.baseURI.split("#")[0]);

export async function call(path, { method = "GET", body, timeout = 15000 } = {}) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (token) headers.authorization = `Bearer ${token}`;
  let answer, text;
  try {
    answer = await fetch(new URL(path, base), { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(timeout), credentials: "same-origin" });
    text = await answer.text();
  } catch (error) {
    throw new ApiError(0, error.name === "TimeoutError" ? "the planner did not answer in time" : "the planner does not answer");
  }
  let document = null;
  try { document = text ? JSON.parse(text) : null; } catch { throw new ApiError(answer.status, `the planner answered ${answer.status} with something else than JSON`); }
  if (answer.status === 401) throw new ApiError(401, "this needs one of the planner's tokens: enter it at the top right");
  if (!answer.ok) throw new ApiError(answer.status, document?.error?.message ?? `the planner answered ${answer.status}`);
  return document;
}

export const hasToken = () => token !== null;

export function setToken(value) {
  token = value && /^[\x21-\x7e]+$/.test(value) ? value : null; // what a header cannot carry is no token
  try { token ? sessionStorage.setItem(TOKEN, token) : sessionStorage.removeItem(TOKEN); } catch { /* kept for this page alone */ }
}

/** off, token or allowed. */
export const session = async () => (await call("console/session")).actions;

/** Call `work` now and every `every` ms while the page is visible; `stop()` ends it, `now()` calls it at once. */
export function poll(work, every) {
  let timer = null, stopped = false, running = false;
  const turn = async () => {
    clearTimeout(timer);
    if (stopped || running) return;
    running = true;
    try { await work(); } catch (error) { reportError(error); } finally { running = false; } // the next turn may do better
    if (!stopped && !document.hidden) timer = setTimeout(turn, every);
  };
  const seen = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", seen);
  turn();
  return { now: turn, stop() { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); } };
}
