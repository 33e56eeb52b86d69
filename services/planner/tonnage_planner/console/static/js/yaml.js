// A document of mappings, lists and scalars as YAML. Texts are quoted, so that none is read as something else.
const scalar = (value) => {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return /^[A-Za-z][A-Za-z0-9 ./:_-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n|~)$/i.test(value) && !/: |:$| #/.test(value) && !value.endsWith(" ") ? value : JSON.stringify(value);
  return String(value);
};

export function yaml(value, depth = 0) {
  const pad = "  ".repeat(depth);
  return Object.entries(value).map(([key, inner]) => {
    const name = scalar(key);
    if (Array.isArray(inner)) return inner.length ? `${pad}${name}:\n${inner.map((one) => (one !== null && typeof one === "object" ? `${pad}  - ${yaml(one, depth + 2).trimStart()}` : `${pad}  - ${scalar(one)}\n`)).join("")}` : `${pad}${name}: []\n`;
    if (inner !== null && typeof inner === "object") return Object.keys(inner).length ? `${pad}${name}:\n${yaml(inner, depth + 1)}` : `${pad}${name}: {}\n`;
    return `${pad}${name}: ${scalar(inner)}\n`;
  }).join("");
}
