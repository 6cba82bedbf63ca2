// The prompt itself, token by token, shaded by how many slots keep each; blocks fill on sight.

import { clamp, make, whole } from "../../../assets/scripts/dom.js";
import { depthOf } from "./ramp.js";

const BLOCK = 256;
/** End of the block that starts here: after a line break if one is in its second half. */
function blockEnd(pieces, first) {
  const end = Math.min(first + BLOCK, pieces.length);
  if (end === pieces.length) return end;
  for (let at = end - 1; at >= first + BLOCK / 2; at -= 1) if (pieces[at].includes("\n")) return at + 1;
  return end;
}

/** Class of a piece that shows nothing by itself. */
function blankOf(piece) {
  if (piece.trim() !== "") return "";
  return piece === "" ? "t-empty" : piece.includes("\n") ? "t-line" : "";
}

export class TextView {
  constructor(app) {
    this.app = app;
    this.marked = [];
    this.goal = null; // the token that stays in the middle
    const letGo = () => {
      this.goal = null;
    };
    this.box = make("div.ckv-tokens", {
      tabindex: "0",
      role: "group",
      "aria-label":
        "Prompt, shaded by how many heads keep each token. Left and right arrows move a token cursor, with Shift they select a span, Enter picks a token, Escape clears.",
      onclick: (event) => this.onClick(event),
      onmouseup: () => this.onDragEnd(),
      onpointerover: (event) => this.point(this.tokenOf(event.target)),
      onpointerleave: () => app.point(null),
      onwheel: letGo,
      onpointerdown: letGo,
      onkeydown: (event) => this.onKey(event),
    });
    app.on("shade", () => {
      for (const block of this.blocks) if (block.filled) this.shade(block);
      this.mark();
    });
    app.on("heat", () => this.box.style.setProperty("--ckv-shade", app.current().shade));
    app.on("text", () => this.mark());
    this.sized = new ResizeObserver(() => this.settle());
    this.sized.observe(this.box);
    this.cut();
  }

  /** Lay out empty blocks of estimated height; the observer fills those near the view. */
  cut() {
    const { pieces } = this.app.prompt;
    this.blocks = [];
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const block = this.blocks.find(({ node }) => node === target);
          if (isIntersecting) this.fill(block);
          else this.drain(block);
        }
        this.settle();
      },
      { root: this.box, rootMargin: "800px 0px" },
    );
    for (let first = 0; first < pieces.length; first = this.blocks.at(-1).end) {
      const end = blockEnd(pieces, first);
      const text = pieces.slice(first, end).join("");
      const lines = text.length / 90 + text.split("\n").length;
      const node = make("div.ckv-block", { style: `min-height: ${Math.round(lines * 24)}px` });
      this.blocks.push({ first, end, node, filled: false });
      this.seen.observe(node);
    }
    this.box.replaceChildren(...this.blocks.map((block) => block.node));
  }

  close() {
    this.seen.disconnect();
    this.sized.disconnect();
  }

  fill(block) {
    if (block.filled) return;
    block.filled = true;
    const pieces = this.app.prompt.pieces.slice(block.first, block.end);
    block.node.replaceChildren(...pieces.map((text, at) => make("span", { "data-t": block.first + at, text })));
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
    const { kept } = app.current();
    const slots = app.slotCount();
    for (const node of block.node.children) {
      const at = Number(node.dataset.t);
      const isLater = at >= app.positions;
      const count = isLater ? slots : kept.slotsKeeping(at);
      node.className = `t ${isLater ? "t-later" : count ? "" : "t0"} ${blankOf(node.textContent)}`;
      node.style.setProperty("--kept", isLater ? "0%" : depthOf(count / slots));
      node.title = `token ${whole(at)}: ${isLater ? "read after eviction, kept by all" : `kept by ${count} of ${slots} heads`}`;
    }
  }

  node(token) {
    const block = this.blockOf(token);
    return block?.filled ? block.node.children[token - block.first] : null;
  }

  blockOf(token) {
    return this.blocks.findLast(({ first }) => first <= token);
  }

  /** Mark the selected span and the pointed-at token in filled blocks. */
  mark() {
    const { app } = this;
    for (const node of this.marked) node.classList.remove("t-span", "t-first", "t-last", "t-point");
    this.marked = [];
    const set = (node, name) => {
      if (!node) return;
      node.classList.add(name);
      this.marked.push(node);
    };
    const [first, end] = app.span ?? [0, 0];
    for (const block of this.blocks) {
      if (!block.filled) continue;
      for (let at = Math.max(block.first, first); at < Math.min(block.end, end); at += 1)
        set(block.node.children[at - block.first], "t-span");
    }
    if (app.span) {
      set(this.node(first), "t-first");
      set(this.node(end - 1), "t-last");
    }
    if (app.hover) set(this.node(app.hover.position), "t-point");
  }

  /** Scroll a token into the box's middle, and keep it there while blocks take their heights, until the reader scrolls. */
  reveal(token) {
    this.goal = token;
    this.fill(this.blockOf(token));
    this.settle();
  }

  settle() {
    const node = this.goal === null ? null : this.node(this.goal);
    if (!node) return;
    const gap = node.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    this.box.scrollTop += gap - (this.box.clientHeight - node.offsetHeight) / 2;
  }

  point(token) {
    if (token !== null && token < this.app.positions) this.app.point({ map: this, position: token, row: null });
  }

  tokenOf(node) {
    const holder = (node?.nodeType === Node.TEXT_NODE ? node.parentElement : node)?.closest?.("[data-t]");
    return holder && this.box.contains(holder) ? Number(holder.dataset.t) : null;
  }

  /** Select from one token to another, both included. */
  select(one, two, options = undefined) {
    this.app.selectSpan(Math.min(one, two), Math.max(one, two) + 1, options);
  }

  onClick(event) {
    const token = this.tokenOf(event.target);
    if (token === null || !window.getSelection().isCollapsed) return;
    this.cursor = token;
    const { app } = this;
    if ((event.shiftKey || app.extending) && app.span) this.select(app.span[0], token);
    else app.pick(token);
  }

  onDragEnd() {
    const selection = window.getSelection();
    const ends = [selection.anchorNode, selection.focusNode].map((node) => this.tokenOf(node));
    if (!selection.isCollapsed && !ends.includes(null)) this.select(ends[0], ends[1]);
  }

  onKey(event) {
    const { app } = this;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) {
      const from = this.cursor ?? app.span?.[0] ?? 0;
      this.cursor = clamp(from + step, 0, app.prompt.pieces.length - 1);
      if (!event.shiftKey) this.point(this.cursor);
      else {
        // From where Shift was first held.
        if (!app.span || this.anchor === undefined) this.anchor = from;
        this.select(this.anchor, this.cursor, { quiet: true });
      }
      this.reveal(this.cursor);
      app.say(`${app.tokenName(this.cursor)}: ${this.node(this.cursor).title}`);
    } else if (event.key === "Enter" && this.cursor !== undefined) app.pick(this.cursor);
    else if (event.key === "Escape") app.clear();
    else return;
    event.preventDefault();
  }
}
