// What an address of ours computes while we wait: JSON is posted, JSON lines come back.

/** POST JSON to an address of ours; throws an Error with the server's sentence. */
export async function post(url, body, signal = undefined) {
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  if (answer.ok) return answer;
  const { message } = await answer.json().catch(() => ({}));
  throw new Error(message ?? `The server answered ${answer.status}. Reload the page.`);
}

/** The objects of a body of JSON lines, as they come. */
export async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
