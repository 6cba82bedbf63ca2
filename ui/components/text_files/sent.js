// What our routes answer, and files of this computer that are sent to them.

import { str, whole } from "../../../assets/scripts/dom.js";

const MIB = 2 ** 20;

/** The answer of one of our routes; throws an Error whose message is the sentence to show. */
export async function answerOf(url, options = undefined) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error("The app did not answer; see whether it runs, and try again.");
  }
  if (answer.ok) return answer;
  const known = await answer.json().catch(() => null);
  throw new Error(str(known?.message ?? known?.error) || `The app refused this (status ${answer.status}); reload the page and try again.`);
}

/** The answer of a route that takes a file of up to `most` MiB; `advice` is what to do with a larger one. */
export async function sent(url, file, most, advice) {
  if (file.size > most * MIB) {
    throw new Error(`${file.name} has ${whole(file.size / MIB)} MiB; this app takes ${whole(most)} MiB at a time. ${advice}`);
  }
  const headers = { "Content-Type": "application/octet-stream" };
  return answerOf(url, { method: "POST", body: await file.arrayBuffer(), headers });
}
