// What every variant generates, side by side; grows in place while it streams.

const RESTING = new Set(["", "waiting", "queued", "done", "failed", "cancelled"]);
const ANSWERS = { found: ["✓ answer found", "good"], missing: ["✕ answer missing", "warn"] };
const STOPS = { eos: "ended by itself", length: "cut at the token limit" };

const empty = make("p", { class: "ckv-empty", text: "Generated text appears here, one card per variant." });
const answerLine = make("p", { class: "ckv-answer" });
const grid = make("div", { class: "ckv-cards" });
root.append(empty, answerLine, grid);
const cards = new Map();

function newCard(index) {
  const card = {
    before: document.createTextNode(""),
    diff: make("mark", { class: "ckv-diff" }),
    after: make("span", { class: "ckv-after" }),
    name: make("span"), spec: make("code", { class: "ckv-spec" }),
    status: make("span", { class: "ckv-subdued ckv-card-status" }),
    chips: make("div", { class: "ckv-chips" }),
    verdict: make("p", { class: "ckv-verdict" }),
    chipsDrawn: "", text: "",
  };
  card.body = make("div", { class: "ckv-text", tabindex: "0" }, card.before, card.diff, card.after);
  card.copy = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Copy" });
  card.copy.addEventListener("click", async () => {
    card.copy.textContent = (await copyText(card.text)) ? "Copied" : "Not copied";
    setTimeout(() => { card.copy.textContent = "Copy"; }, 1500);
  });
  card.node = make("section", { class: "ckv-card" },
    make("header", { class: "ckv-card-head" },
      make("h3", { class: "ckv-name" }, marker(index), make("span", {}, card.name, card.spec)),
      card.status, card.copy),
    card.chips, card.body, card.verdict);
  card.node.style.borderTopColor = colorOf(Number.isInteger(index) ? index : 0);
  return card;
}

/** A differing token may be blank or empty: show a sign for it. */
function visible(token) {
  if (token === undefined || token === "") return "⟨end⟩";
  return token.trim() === "" ? token.replace(/\n/g, "↵\n").replace(/ /g, "␣") : token;
}

function drawText(card, value) {
  const tokens = list(value.token_texts).map(str);
  const at = Number.isInteger(value.first_difference) ? value.first_difference : null;
  const stick = card.body.scrollTop + card.body.clientHeight > card.body.scrollHeight - 24;
  card.text = tokens.join("");
  const before = at === null ? card.text : tokens.slice(0, at).join("");
  // Appending keeps what the reader has selected while text streams in.
  if (before.startsWith(card.before.data)) card.before.appendData(before.slice(card.before.length));
  else card.before.data = before;
  card.diff.hidden = at === null;
  if (at !== null) {
    setText(card.diff, visible(tokens[at]));
    card.diff.title = `First token that differs from the reference: token ${at + 1}`;
  }
  setText(card.after, at === null ? "" : tokens.slice(at + 1).join(""));
  if (stick) card.body.scrollTop = card.body.scrollHeight;
}

function verdictOf(value, running) {
  const parts = [];
  if (value.reference) parts.push("Reference: the others are compared with this one.");
  else if (Number.isInteger(value.first_difference)) parts.push(`Differs from token ${value.first_difference + 1} on (underlined).`);
  else if (!running && value.stopped) parts.push("Same tokens as the reference.");
  if (STOPS[value.stopped]) parts.push(`${list(value.token_texts).length} tokens, ${STOPS[value.stopped]}.`);
  return parts.join(" ");
}

function drawCard(card, value) {
  const status = str(value.status);
  const running = !value.stopped && !RESTING.has(status.toLowerCase());
  const label = str(value.label);
  setText(card.name, label);
  setText(card.spec, str(value.spec));
  setText(card.status, status);
  card.node.setAttribute("aria-label", label);
  card.body.setAttribute("role", running ? "log" : "group");
  card.body.setAttribute("aria-label", `Text of ${label}`);
  card.node.classList.toggle("ckv-running", running);
  const shape = JSON.stringify([value.chips, value.answer]);
  if (shape !== card.chipsDrawn) {
    card.chipsDrawn = shape;
    const answer = ANSWERS[value.answer];
    card.chips.replaceChildren(...(answer ? [chip(...answer)] : []), ...list(value.chips).map((text) => chip(text)));
  }
  drawText(card, value);
  setText(card.verdict, verdictOf(value, running));
}

onValue((value) => {
  const wanted = list(value?.cards);
  empty.hidden = wanted.length > 0;
  grid.hidden = wanted.length === 0;
  answerLine.hidden = !value?.answer || wanted.length === 0;
  setText(answerLine, value?.answer ? `Reference answer: ${str(value.answer)}` : "");
  const seen = new Set();
  for (const item of wanted) {
    seen.add(item.index);
    if (!cards.has(item.index)) cards.set(item.index, newCard(item.index));
    drawCard(cards.get(item.index), item);
  }
  for (const index of [...cards.keys()]) if (!seen.has(index)) cards.delete(index);
  const nodes = wanted.map((item) => cards.get(item.index).node);
  const same = nodes.length === grid.children.length && nodes.every((node, i) => grid.children[i] === node);
  if (!same) grid.replaceChildren(...nodes);
  balanceColumns(grid, nodes.length);
});
