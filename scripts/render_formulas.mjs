// Renders ui/methods/formulas.json (LaTeX) to assets/formulas.json (MathML, which browsers draw themselves).
// Run after a change: npm install --no-save katex@0.19.1 && node scripts/render_formulas.mjs
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const katex = createRequire(`${process.cwd()}/`)("katex");
const formulas = JSON.parse(readFileSync("ui/methods/formulas.json", "utf8"));
const rendered = Object.fromEntries(Object.entries(formulas).map(([name, tex]) => {
  const html = katex.renderToString(tex, { output: "mathml", displayMode: true, strict: "error" });
  return [name, html.match(/<math.*<\/math>/s)[0]];
}));
writeFileSync("assets/formulas.json", `${JSON.stringify(rendered, null, 1)}\n`);
