// Links to the sections of a page, the one being read marked; for the app's pages and for a report.

import { make } from "../../../assets/scripts/dom.js";

/** How far below the links a section's heading counts as reached. */
const REACHED = 60;
export class SectionLinks {
  /** `find` gives the headings, in the order of the page; those that are not shown are left out. */
  constructor(find) {
    this.find = find;
    this.names = "";
    this.links = [];
    this.node = make("nav.ckv-sections", { "aria-label": "Sections" });
    this.due = false;
    const soon = () => this.soon();
    window.addEventListener("scroll", soon, { passive: true });
    new ResizeObserver(soon).observe(document.body);
    soon();
  }

  /** Sections come and go while a run goes on; once per frame is enough. */
  soon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  draw() {
    const heads = this.find().filter((head) => head.getClientRects().length > 0);
    const names = heads.map((head) => head.textContent).join("\n");
    if (names !== this.names) {
      this.names = names;
      this.links = heads.map((head) =>
        make("a.ckv-link", {
          href: `#${head.closest("[id]")?.id ?? ""}`,
          text: head.textContent,
          onclick: (event) => this.go(event, head),
        }),
      );
      this.node.replaceChildren(...this.links);
    }
    this.node.hidden = heads.length < 2;
    if (this.node.hidden) return;
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const reached = this.node.getBoundingClientRect().bottom + REACHED;
    const passed = heads.findLastIndex((head) => head.getBoundingClientRect().top < reached);
    const at = atEnd && scrollY > 0 ? heads.length - 1 : Math.max(0, passed);
    this.links.forEach((link, index) => {
      if (index !== at) link.removeAttribute("aria-current");
      else if (!link.hasAttribute("aria-current")) this.mark(link);
    });
  }

  /** On a phone the links are a strip that scrolls by itself. */
  mark(link) {
    link.setAttribute("aria-current", "true");
    this.node.scrollLeft = link.offsetLeft - (this.node.clientWidth - link.offsetWidth) / 2;
  }

  /** The address keeps what it says of the run. */
  go(event, head) {
    event.preventDefault();
    head.tabIndex = -1;
    head.focus({ preventScroll: true });
    head.scrollIntoView();
  }
}
