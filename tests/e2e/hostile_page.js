// What a hostile page tries with the app of somebody who has it open: read, change, listen.
async ({ base, slug }) => {
  const got = [], tried = [];
  const note = (name, text) => { if (text) got.push(name); };
  const paths = [`/api/runs/${slug}`, `/data/${slug}/prompt`, `/data/${slug}/result.json`];
  const headers = { "X-Forwarded-Host": location.host };
  const json = { "Content-Type": "application/json" };
  const body = JSON.stringify({ context: "from another site", question: "steps 1" });
  for (const path of paths) {
    for (const options of [{}, { credentials: "include" }, { mode: "no-cors" }, { headers }]) {
      tried.push(path);
      const answer = await fetch(base + path, options).catch(() => null);
      note(path, answer?.ok && await answer.text());
    }
  }
  const included = { credentials: "include" };
  const ways = [{}, included, { mode: "no-cors", ...included }, { headers: json, ...included }, { headers }];
  for (const options of ways) {
    tried.push("post");
    await fetch(`${base}/api/runs`, { method: "POST", body, ...options }).catch(() => {});
  }
  await new Promise((done) => {
    tried.push("form");
    const frame = document.createElement("iframe");
    frame.name = "sink";
    const form = document.createElement("form");
    Object.assign(form, { method: "post", enctype: "text/plain", target: "sink" });
    form.action = `${base}/api/runs`;
    const field = document.createElement("input");
    field.name = '{"context": "by a form", "question": "steps 1", "answer": "';
    field.value = '"}';
    form.append(field);
    document.body.append(frame, form);
    frame.onload = () => setTimeout(done, 300);
    form.submit();
    setTimeout(done, 5000);
  });
  await new Promise((done) => {
    tried.push("frame");
    const frame = document.createElement("iframe");
    frame.src = `${base}/data/${slug}/prompt`;
    frame.onload = () => {
      note("frame", frame.contentDocument?.body?.textContent.includes("pieces"));
      done();
    };
    document.body.append(frame);
    setTimeout(done, 5000);
  });
  await new Promise((done) => {
    tried.push("stream");
    const address = `${base}/gradio_api/queue/data?session_hash=mine`;
    const stream = new EventSource(address, { withCredentials: true });
    stream.onopen = () => {
      got.push("stream");
      done();
    };
    stream.onerror = done;
    setTimeout(done, 5000);
  });
  return { got, tried: tried.length };
}
