// Previews of one run as the server streams them: one request at a time, and the newest wins.

/** POST JSON to an address of ours; throws an Error with the server's sentence. */
export async function post(url, body, signal = undefined) {
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
  if (answer.ok) return answer;
  const { message } = await answer.json().catch(() => ({}));
  throw new Error(message ?? `The server answered ${answer.status}. Reload the page.`);
}

/** The objects of a body of JSON lines, as they come. */
async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

export class Previews {
  /** `take(line, body)` gets each object of the newest request that has a right to be shown. */
  constructor(url, take) {
    this.url = url;
    this.take = take;
    this.next = null; // what waits until the present request has shown its kept sets
    this.abort = null;
    this.isChoosing = false;
  }

  /** Ask for a preview; while another has shown nothing yet, it waits, and a newer one takes its place. */
  ask(body) {
    this.next = body;
    if (!this.isChoosing) this.begin();
  }

  stop() {
    this.next = null;
    this.isChoosing = false;
    this.abort?.abort();
  }

  async begin() {
    const body = this.next;
    this.stop();
    const abort = new AbortController();
    Object.assign(this, { abort, isChoosing: true });
    let isOver = false;
    try {
      for await (const line of linesOf(await post(this.url, body, abort.signal))) {
        if (abort.signal.aborted) return;
        this.take(line, body);
        isOver ||= Boolean(line.end || line.error);
        if (line.kept || isOver) this.goOn();
      }
      if (!isOver) throw new Error("The connection was lost. Move the slider again.");
    } catch (error) {
      if (abort.signal.aborted) return;
      this.take({ error: error.message }, body);
      this.goOn();
    }
  }

  goOn() {
    this.isChoosing = false;
    if (this.next) this.begin();
  }
}
