// Words of the glossary: a button in the text that shows what it means, by mouse, key or touch.
(() => {
  const tip = document.createElement("div");
  tip.className = "ckv-tip";
  tip.id = "ckv-term-tip";
  tip.setAttribute("role", "tooltip");
  tip.setAttribute("popover", "manual");
  let open = null;

  // Gradio shows the line below a field's name as plain text: its words are found here.
  const named = new Map(Object.keys(window.ckvWords).flatMap((word) =>
    [word, `${word}s`, word.replace(/y$/, "ies")].map((form) => [form.toLowerCase(), word])));
  const pattern = new RegExp(`\\b(${[...named.keys()].sort((a, b) => b.length - a.length).join("|")})\\b`, "i");

  function explain(line) {
    line.dataset.terms = "";
    const parts = line.textContent.split(pattern);
    const seen = new Set();
    if (parts.length === 1) return;
    line.replaceChildren(...parts.map((part, at) => {
      const word = at % 2 ? named.get(part.toLowerCase()) : undefined;
      if (!word || seen.has(word)) return part;
      seen.add(word);
      // No button: the line lies in the field's label, which would then be the button's own.
      const term = document.createElement("span");
      Object.assign(term, { className: "ckv-term", tabIndex: 0, role: "button", textContent: part, ariaLabel: `${part}, explain` });
      term.dataset.word = word;
      return term;
    }));
  }

  let waits = false;
  new MutationObserver(() => {
    if (waits) return;
    waits = true;
    setTimeout(() => {
      waits = false;
      document.querySelectorAll(".info-text:not([data-terms])").forEach(explain);
    }, 250);
  }).observe(document.documentElement, { childList: true, subtree: true });

  const termOf = (event) => event.target instanceof Element && event.target.closest(".ckv-term");

  function hide() {
    open?.removeAttribute("aria-describedby");
    open = null;
    if (tip.matches(":popover-open")) tip.hidePopover();
  }

  function show(term) {
    const text = window.ckvWords[term.dataset.word ?? term.value];
    if (!text || term === open) return;
    hide();
    if (!tip.isConnected) (document.querySelector(".gradio-container") ?? document.body).append(tip);
    open = term;
    tip.textContent = text;
    term.setAttribute("aria-describedby", tip.id);
    tip.showPopover();
    place();
  }

  function place() {
    if (!open) return;
    const [at, box] = [open.getBoundingClientRect(), tip.getBoundingClientRect()];
    const left = at.left + at.width / 2 - box.width / 2;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
    tip.style.top = `${at.top - box.height - 6 > 8 ? at.top - box.height - 6 : at.bottom + 6}px`;
  }

  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => { if (termOf(event)) show(termOf(event)); });
  }
  document.addEventListener("pointerout", (event) => {
    if (termOf(event) && document.activeElement !== termOf(event)) hide();
  });
  document.addEventListener("focusout", (event) => { if (termOf(event)) hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", place, { capture: true, passive: true });
  // Within a label, a click would go on to its field; on touch it is what shows the words.
  document.addEventListener("click", (event) => {
    const term = termOf(event);
    if (!term) return hide();
    event.preventDefault();
    show(term);
  }, true);
})();
