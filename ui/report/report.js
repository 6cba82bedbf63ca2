// Draws a report: its sections' components, which fetch what they need from inside this file.

import { make } from "../../assets/scripts/dom.js";

const root = document.querySelector("main");
const files = new Map([...document.querySelectorAll("script[data-file]")].map((node) => [node.getAttribute("data-file"), node]));
const figures = new Map();

/** One of the packed files that the page carries, as an answer. */
function unpacked(name) {
  const packed = Uint8Array.from(atob(files.get(name).textContent), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** What stands in for `fetch`: addresses are those of the app, nothing leaves the page. */
async function fetchInside(address) {
  const { pathname, searchParams } = new URL(address, "file:///");
  if (!files.has(pathname)) return new Response("", { status: 404 });
  if (!pathname.includes("/figure/")) return unpacked(pathname);
  searchParams.delete("v");
  if (!figures.has(pathname)) figures.set(pathname, unpacked(pathname).json());
  const figure = (await figures.get(pathname))[String(searchParams)];
  return figure ? new Response(JSON.stringify(figure)) : new Response("", { status: 404 });
}

/** The chart library, unpacked when the first chart is seen; the page's policy knows its hash. */
let plotly = null;
async function loadPlotly() {
  document.head.append(make("script", { text: await unpacked("plotly").text() }));
  return globalThis.Plotly;
}
Reflect.defineProperty(globalThis, "ckvPlotly", {
  get() {
    plotly ??= loadPlotly();
    return plotly;
  },
});

globalThis.fetch = fetchInside;

const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", followTheme);
followTheme();

function mount({ component, value }, parent) {
  const part = make("div.ckv", { "data-component": component.name });
  const element = make("div.ckv-host", part);
  parent.append(element);
  globalThis.MODULES[component.module].default({ root: part, element, props: { value }, trigger() {}, watch() {} });
}

function drawSection(section) {
  const node = make("section", { id: section.name, "aria-label": section.heading }, [
    make("h2", { text: section.heading }),
    section.text ? make("p.ckv-section-text.ckv-subdued", { text: section.text }) : null,
  ]);
  root.append(node);
  section.components.forEach((each) => mount(each, node));
}

/** One section alone, in the frame of another page. */
function drawPanel({ sections: [section], whole }) {
  root.classList.add("ckv-panel-alone");
  root.replaceChildren();
  drawSection(section);
  root.append(make("a.ckv-link.ckv-hint", { href: whole, target: "_blank", rel: "noopener", text: "Open the whole result" }));
}

function draw(page) {
  document.title = `${page.title} – CriticalKV Lab`;
  if (page.whole) drawPanel(page);
  else drawReport(page);
  document.body.dataset.drawn = "1";
}

/** A link to a section; the address keeps what it says of the run. */
function sectionLink({ name, heading }) {
  const go = (event) => {
    event.preventDefault();
    const head = /** @type {HTMLElement} */ (root.querySelector(`#${CSS.escape(name)} > h2`));
    head.tabIndex = -1;
    head.focus({ preventScroll: true });
    head.scrollIntoView();
  };
  return make("a.ckv-link", { href: `#${name}`, text: heading, onclick: go });
}

function drawReport(page) {
  root.replaceChildren(
    make("header", make("h1", { text: page.title }), make("p.ckv-subdued", { text: page.subtitle })),
    make("nav.ckv-sections", { "aria-label": "Sections" }, page.sections.map(sectionLink)),
  );
  page.sections.forEach(drawSection);
}

unpacked("page")
  .json()
  .then(draw)
  .catch((error) => {
    root.append(make("p", { role: "alert", text: `The report cannot be shown: ${error.message}. Open it in a current browser.` }));
  });
