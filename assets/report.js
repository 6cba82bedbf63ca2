// Draws a report: its sections' components, which fetch what they need from inside this file.

const files = new Map([...document.querySelectorAll("script[data-file]")].map((node) => [node.dataset.file, node]));
const figures = new Map();

/** One of the packed files that the page carries, as an answer. */
function unpacked(name) {
  const packed = Uint8Array.from(atob(files.get(name).textContent), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** What components use as `fetch`: addresses are those of the app, nothing leaves the page. */
async function fetchInside(address) {
  const { pathname, searchParams } = new URL(address, "file:///");
  if (!files.has(pathname)) return new Response("", { status: 404 });
  if (!pathname.includes("/figure/")) return unpacked(pathname);
  searchParams.delete("v");
  if (!figures.has(pathname)) figures.set(pathname, unpacked(pathname).json());
  const figure = (await figures.get(pathname))[searchParams];
  return figure ? new Response(JSON.stringify(figure)) : new Response("", { status: 404 });
}

/** The chart library, unpacked when the first chart is seen; the page's policy knows its hash. */
let plotly = null;
async function loadPlotly() {
  const text = await unpacked("plotly").text();
  document.head.append(make("script", { text }));
  return window.Plotly;
}
Object.defineProperty(window, "ckvPlotly", { get: () => (plotly ??= loadPlotly()) });

const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", followTheme);
followTheme();

function mount({ component, value }, parent) {
  const host = make("div", { class: "ckv-host" }, make("div", { class: "ckv", "data-component": component }));
  parent.append(host);
  COMPONENTS[component](host, { value }, () => {}, () => {}, fetchInside);
}

function drawSection(section) {
  const node = make("section", { id: section.name, "aria-label": section.heading },
    make("h2", { text: section.heading }),
    section.text ? make("p", { class: "ckv-section-text ckv-subdued", text: section.text }) : null);
  root.append(node);
  section.components.forEach((each) => mount(each, node));
}

function drawTable({ columns, rows }, name) {
  const table = make("table", { class: "ckv-table ckv-wrapped" },
    make("thead", {}, make("tr", {}, ...columns.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...rows.map(([first, ...rest]) => make("tr", {},
      make("th", { scope: "row", text: first }), ...rest.map((text) => make("td", { text }))))));
  return make("div", { class: "ckv-scroll", tabindex: "0", role: "region", "aria-label": `${name}, scrolls sideways` }, table);
}

/** One folded part per heading; what comes before the first one stays open. */
function drawDefinitions(blocks) {
  const node = make("section", { id: "definitions", "aria-label": "Definitions" }, make("h2", { text: "Definitions" }));
  let part = node;
  let name = "Definitions";
  let tables = 0;
  for (const block of blocks) {
    if (block.heading) {
      name = block.heading;
      part = make("details", { class: "ckv-panel" }, make("summary", { text: block.heading }));
      node.append(part);
    } else if (block.columns) part.append(drawTable(block, `${name}, table ${(tables += 1)}`));
    else if (block.items) part.append(make("ul", {}, ...block.items.map((text) => make("li", { text }))));
    else part.append(make("p", { text: block.text }));
  }
  root.append(node);
}

function draw(page) {
  document.title = `${page.title} – CriticalKV Lab`;
  root.replaceChildren(
    make("header", {}, make("h1", { text: page.title }), make("p", { class: "ckv-subdued", text: page.subtitle })),
    new SectionLinks(() => [...root.querySelectorAll("section > h2")]).node);
  page.sections.forEach(drawSection);
  drawDefinitions(page.definitions);
  document.body.dataset.drawn = "1";
}

unpacked("page").json().then(draw).catch((error) => {
  root.append(make("p", { role: "alert", text: `The report cannot be shown: ${error.message}. Open it in a current browser.` }));
});
