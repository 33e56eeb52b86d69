// Numbers as people read them. Unknown is a word, never a zero.
export const UNKNOWN = "unknown";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : trim(value);
}

/** Three significant digits. */
export const trim = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });

export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : UNKNOWN);

export function share(value, digits = 0) {
  return known(value) ? `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.1 && digits === 0 ? 1 : digits)}%` : UNKNOWN;
}

export function age(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1.5) return "1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${trim(value)} ${units[at]}`;
}

export const ms = (value) => (known(value) ? `${value >= 100 ? Math.round(value).toLocaleString("en") : trim(value)} ms` : UNKNOWN);
export const usd = (value, digits = 2) => (known(value) ? `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}` : UNKNOWN);
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
export const isKnown = known;

/** Signals and states in words. */
export const WORDS = {
  kv_usage: "KV use", waiting: "waiting", running: "running", demand: "demand", slo: "SLO misses",
  uncached_prefix: "uncached prompt", token_load: "work in flight", prefill_interference: "prefill in the way",
  spoilt_answers: "answers made too slow",
  kv_utilisation: "KV use", adapter: "adapter", gpu_speed: "GPU speed", requests_in_flight: "requests in flight",
  prefix: "cached prefix", load: "least load", only_candidate: "only candidate", home_overloaded: "home overloaded", content_home: "home of its content",
  round_robin: "round robin", power_of_two: "power of two", session: "session", consistent_hash: "hash",
};
export const word = (name) => Object.hasOwn(WORDS, name ?? "") ? WORDS[name] : (String(name ?? UNKNOWN).includes(".") ? String(name) : String(name ?? UNKNOWN).replaceAll("_", " "));

export const STATES = {
  serving: ["●", "serving", "good"], draining: ["◐", "draining", "idle"], starting: ["◌", "starting", "info"],
  stale: ["▲", "stale", "warn"], stuck: ["■", "stuck", "bad"], down: ["✕", "down", "bad"], unknown: ["?", "unknown", "faint"],
};
