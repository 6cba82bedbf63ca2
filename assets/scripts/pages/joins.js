// A page hears of its next event only once it has heard that the stream of those before has ended.
//
// Gradio ends a session's stream with its last event, and its page opens a new stream only where it
// knows of that end. A busy page may read the answer of its next event first, and would wait for
// ever: a click on Run would do nothing (ui/server/private.py). Gradio aborts a stream that ended.

(() => {
  const MOST_MS = 5_000; // a stream that broke is never aborted
  const own = window.fetch;
  /** @type {Promise<unknown>} */
  let ended = Promise.resolve();

  window.fetch = async (request, options) => {
    const { url, signal } = request instanceof Request ? request : { url: String(request), signal: options?.signal };
    if (signal && url.includes("/queue/data?")) {
      ended = new Promise((done) => signal.addEventListener("abort", done, { once: true }));
    }
    const answer = await own(request, options);
    if (answer.headers.has("x-stream-ended")) {
      await Promise.race([ended, new Promise((done) => setTimeout(done, MOST_MS))]);
    }
    return answer;
  };
})();
