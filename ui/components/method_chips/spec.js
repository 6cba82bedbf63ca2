// A SPEC in its parts and back: METHOD[+critical|+critical_auto][:key=value,...].

/** @typedef {{ method: string, selector: string, pairs: Map<string, string> }} Parts */

/** @returns {Parts | null} null for what has another form */
export function parseSpec(spec) {
  const [head, ...tail] = spec.trim().split(":");
  const [method, selector = "", more] = head.split("+").map((word) => word.trim());
  const pairs = tail
    .join(":")
    .split(",")
    .filter((pair) => pair.trim() !== "")
    .map((pair) => pair.split("="));
  if (more !== undefined || pairs.some((pair) => pair.length !== 2)) return null;
  return { method, selector, pairs: new Map(pairs.map(([key, value]) => [key.trim(), value.trim()])) };
}

/** @param {Parts} parts */
export function writeSpec({ method, selector, pairs }) {
  const tail = [...pairs].map(([key, value]) => `${key}=${value}`).join(",");
  return `${method}${selector && `+${selector}`}${tail && `:${tail}`}`;
}

/** The version of CriticalKV, of those that its method offers, that a SPEC is; undefined for none. */
export function versionOf(method, { selector, pairs }) {
  if (!selector) return undefined;
  const stage = pairs.get("stage2") ?? (pairs.get("preset") === "kvpress" ? "pooled" : "raw");
  return method.versions.find((each) => {
    const own = parseSpec(each.spec);
    return own?.selector === selector && (own.pairs.get("stage2") ?? stage) === stage;
  });
}

/** The same with another version of CriticalKV, or none: what does not belong to it is left out. */
export function withVersion(method, { pairs }, version) {
  const own = version ? parseSpec(version.spec) : { selector: "", pairs: new Map() };
  const takes = new Set(["name", ...[...method.takes[own.selector], ...method.options].map(([key]) => key)]);
  const kept = [...pairs].filter(([key]) => takes.has(key));
  return { method: method.name, selector: own.selector, pairs: new Map([...own.pairs, ...kept]) };
}
