// Links to the sections of a report, the one being read marked.

import { make } from "../../assets/scripts/dom.js";

/** How far below the links a section's heading counts as reached. */
const REACHED = 60;

/** The address keeps what it says of the run. */
function go(event, head) {
  event.preventDefault();
  head.tabIndex = -1;
  head.focus({ preventScroll: true });
  head.scrollIntoView();
}

/** `find` gives the headings, in the order of the page; those that are not shown are left out. */
export function sectionLinks(find) {
  const node = make("nav.ckv-sections", { "aria-label": "Sections" });
  let names = "";
  let due = 0;

  function draw() {
    due = 0;
    const heads = find().filter((head) => head.getClientRects().length > 0);
    const shown = heads.map((head) => head.textContent);
    if (shown.join("\n") !== names) {
      names = shown.join("\n");
      const address = (head) => `#${head.closest("[id]")?.id ?? ""}`;
      const link = (head, at) => make("a.ckv-link", { href: address(head), text: shown[at], onclick: (event) => go(event, head) });
      node.replaceChildren(...heads.map(link));
    }
    node.hidden = heads.length < 2;
    if (node.hidden) return;
    const atEnd = scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const reached = node.getBoundingClientRect().bottom + REACHED;
    const passed = heads.findLastIndex((head) => head.getBoundingClientRect().top < reached);
    mark(/** @type {HTMLElement} */ (node.children[atEnd ? heads.length - 1 : Math.max(0, passed)]));
  }

  /** On a phone the links are a strip that scrolls by itself. */
  function mark(link) {
    if (link.hasAttribute("aria-current")) return;
    node.querySelector("[aria-current]")?.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    node.scrollLeft = link.offsetLeft - (node.clientWidth - link.offsetWidth) / 2;
  }

  /** Sections come and go while a run goes on; once per frame is enough. */
  const soon = () => {
    if (due === 0) due = requestAnimationFrame(draw);
  };
  window.addEventListener("scroll", soon, { passive: true });
  new ResizeObserver(soon).observe(document.body);
  soon();
  return node;
}
