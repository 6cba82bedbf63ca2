// Says that a run which this browser started has ended, on whichever other page is looked at.

import { list, make, quietButton, str } from "../dom.js";

const KEY = "ckv-open-runs";
const MOST = 8;
const POLL_MS = 5000;
const WORDS = { done: "Done", failed: "Failed", cancelled: "Cancelled" };

/** Slugs of runs that may still go on, the newest last. */
const open = () => list(JSON.parse(localStorage.getItem(KEY) ?? "[]"));

function keep(slugs) {
  try {
    localStorage.setItem(KEY, JSON.stringify(slugs.slice(-MOST)));
  } catch {
    // a browser that is full keeps none, and no message comes
  }
}

/** From now on, say when this run ends. */
export function watchRun(slug) {
  keep([...open().filter((each) => each !== slug), slug]);
}

function toast(slug, run) {
  let box = document.querySelector(".ckv-toasts");
  if (!box) {
    box = make("div.ckv.ckv-toasts", { role: "status" });
    (document.querySelector("main") ?? document.body).append(box);
  }
  const node = make("div.ckv-pop.ckv-row", [
    make("span", make("b", WORDS[run.state] ?? str(run.state)), " ", str(run.title)),
    make("a.ckv-link", { href: `/run?id=${encodeURIComponent(slug)}`, text: "Open" }),
    quietButton("Close", () => node.remove(), { "aria-label": `Close the message on ${str(run.title)}` }),
  ]);
  box.append(node);
}

async function look(slug) {
  const answer = await fetch(`/api/runs/${encodeURIComponent(slug)}`);
  if (answer.status >= 500 || answer.status === 429) return; // later
  const run = answer.ok ? await answer.json() : null;
  if (run && !run.over) return;
  if (!open().includes(slug)) return; // another window was first
  keep(open().filter((each) => each !== slug));
  const shown = location.pathname === "/run" && new URLSearchParams(location.search).get("id") === slug;
  if (run && !shown) toast(slug, run);
}

// A hidden page asks nothing; it looks when it is seen again.
async function lookAtAll() {
  if (document.visibilityState === "visible") await Promise.allSettled(open().map(look));
}

setInterval(lookAtAll, POLL_MS);
document.addEventListener("visibilitychange", lookAtAll);
