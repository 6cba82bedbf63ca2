// The prompt itself, token by token, shaded by how many slots keep each; blocks fill on sight.

import { clamp, make, whole } from "../../../assets/scripts/dom.js";

const BLOCK = 256;
const SHADES = 8;

/** End of the block that starts here: after a line break if one is in its second half. */
function blockEnd(pieces, first) {
  const end = Math.min(first + BLOCK, pieces.length);
  if (end === pieces.length) return end;
  for (let at = end - 1; at >= first + BLOCK / 2; at -= 1) if (pieces[at].includes("\n")) return at + 1;
  return end;
}

export class TextView {
  constructor(app) {
    this.app = app;
    this.marked = [];
    this.box = make("div.ckv-tokens", {
      tabindex: "0",
      role: "group",
      "aria-label":
        "Prompt, shaded by kept entries. Left and right arrows move a token cursor, with Shift they select a span, Enter picks a token, Escape clears.",
    });
    this.box.addEventListener("click", (event) => this.onClick(event));
    this.box.addEventListener("mouseup", () => this.onDragEnd());
    this.box.addEventListener("pointerover", (event) => this.onOver(event));
    this.box.addEventListener("pointerleave", () => app.point(null));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.cut();
  }

  /** Lay out empty blocks of estimated height; the observer fills those near the view. */
  cut() {
    const { pieces } = this.app.prompt;
    this.blocks = [];
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          const block = this.blocks[Number(entry.target.getAttribute("data-block"))];
          if (entry.isIntersecting) this.fill(block);
          else this.drain(block);
        }
      },
      { root: this.box, rootMargin: "800px 0px" },
    );
    for (let first = 0; first < pieces.length; ) {
      const end = blockEnd(pieces, first);
      const node = make("div.ckv-block", { "data-block": String(this.blocks.length) });
      const text = pieces.slice(first, end).join("");
      const lines = text.length / 90 + text.split("\n").length;
      node.style.minHeight = `${Math.round(lines * 24)}px`;
      this.blocks.push({ first, end, node, filled: false });
      this.seen.observe(node);
      first = end;
    }
    this.box.replaceChildren(...this.blocks.map((block) => block.node));
  }

  close() {
    this.seen.disconnect();
  }

  fill(block) {
    if (block.filled) return;
    block.filled = true;
    const { pieces } = this.app.prompt;
    const nodes = [];
    for (let at = block.first; at < block.end; at += 1) {
      const node = document.createElement("span");
      node.dataset.t = at;
      node.textContent = pieces[at];
      nodes.push(node);
    }
    block.node.replaceChildren(...nodes);
    block.node.style.minHeight = "";
    this.shade(block);
    this.mark();
  }

  /** Give far blocks back; they keep their height, so nothing moves. */
  drain(block) {
    if (!block.filled) return;
    block.filled = false;
    block.node.style.minHeight = `${block.node.offsetHeight}px`;
    block.node.replaceChildren();
  }

  shade(block) {
    const { app } = this;
    const kept = app.current().kept;
    const slots = app.slotCount();
    for (const node of block.node.children) {
      const at = Number(node.dataset.t);
      const blank =
        node.textContent.trim() === "" ? (node.textContent.includes("\n") ? " t-line" : node.textContent === "" ? " t-empty" : "") : "";
      if (at >= app.positions) {
        node.className = `t t-later${blank}`;
        node.title = `token ${whole(at)}: read after eviction, kept by all`;
        continue;
      }
      const count = kept.slotsKeeping(at);
      node.className = `t t${count ? Math.ceil(Math.sqrt(count / slots) * SHADES) : 0}${blank}`;
      node.title = `token ${whole(at)}: kept by ${count} of ${slots} slots`;
    }
  }

  reshade() {
    for (const block of this.blocks) if (block.filled) this.shade(block);
    this.mark();
  }

  node(token) {
    const block = this.blockOf(token);
    return block?.filled ? block.node.children[token - block.first] : null;
  }

  blockOf(token) {
    return this.blocks.findLast(({ first }) => first <= token);
  }

  /** Mark the selected span, the picked token and the pointed-at token in filled blocks. */
  mark() {
    const { app } = this;
    for (const node of this.marked) node.classList.remove("t-span", "t-pick", "t-point");
    this.marked = [];
    const set = (token, name) => {
      const node = token === null || token === undefined ? null : this.node(token);
      if (!node) return;
      node.classList.add(name);
      this.marked.push(node);
    };
    if (app.span) {
      for (const block of this.blocks) {
        if (!block.filled) continue;
        for (let at = Math.max(block.first, app.span[0]); at < Math.min(block.end, app.span[1]); at += 1) set(at, "t-span");
      }
    }
    set(app.token, "t-pick");
    set(app.hover?.position, "t-point");
  }

  /** Scroll a token into the box's middle; blocks above may still change height, so twice. */
  reveal(token) {
    const block = this.blockOf(token);
    const center = () => {
      this.fill(block);
      const node = this.node(token);
      const gap = node.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
      this.box.scrollTop += gap - this.box.clientHeight / 2;
    };
    center();
    requestAnimationFrame(() => {
      center();
      requestAnimationFrame(center);
    });
  }

  tokenOf(node) {
    const holder = (node?.nodeType === Node.TEXT_NODE ? node.parentElement : node)?.closest?.("[data-t]");
    return holder && this.box.contains(holder) ? Number(holder.dataset.t) : null;
  }

  onClick(event) {
    const token = this.tokenOf(event.target);
    if (token === null || !window.getSelection().isCollapsed) return;
    this.cursor = token;
    const { app } = this;
    if ((event.shiftKey || app.extending) && app.token !== null) {
      app.selectSpan(Math.min(app.token, token), Math.max(app.token, token) + 1);
    } else app.pick({ token });
  }

  onDragEnd() {
    const selection = window.getSelection();
    if (selection.isCollapsed) return;
    const ends = [this.tokenOf(selection.anchorNode), this.tokenOf(selection.focusNode)];
    if (ends.includes(null)) return;
    this.app.selectSpan(Math.min(...ends), Math.max(...ends) + 1);
  }

  onOver(event) {
    const token = this.tokenOf(event.target);
    if (token !== null && token < this.app.positions) this.app.point({ map: this, position: token, row: null });
  }

  onKey(event) {
    const { app } = this;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) {
      const from = this.cursor ?? app.token ?? 0;
      this.cursor = clamp(from + step, 0, app.prompt.pieces.length - 1);
      if (event.shiftKey) app.selectSpan(...this.extended(from), { quiet: true });
      else if (this.cursor < app.positions) app.point({ map: this, position: this.cursor, row: null });
      this.reveal(this.cursor);
      app.say(`${app.tokenName(this.cursor)}: ${this.node(this.cursor).title}`);
    } else if (event.key === "Enter" && this.cursor !== undefined) app.pick({ token: this.cursor });
    else if (event.key === "Escape") app.clear();
    else return;
    event.preventDefault();
  }

  /** The span from where Shift was first held to the cursor. */
  extended(from) {
    if (!this.app.span || this.anchor === undefined) this.anchor = from;
    return [Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor) + 1];
  }
}
