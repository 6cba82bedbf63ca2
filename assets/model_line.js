// What the worker does with the model: how far a download is, and a button that stops it.

const bar = make("progress", { class: "ckv-load", max: "1", hidden: true, "aria-label": "Loaded so far" });
const stop = make("button", { type: "button", class: "ckv-button ckv-quiet", text: "Cancel loading", hidden: true });
root.append(bar, stop);
let loading = "";
stop.addEventListener("click", () => trigger("stop", { name: loading }));

onValue((value) => {
  loading = str(value?.loading);
  stop.hidden = loading === "";
  bar.hidden = !Number.isFinite(value?.fraction);
  if (!bar.hidden) bar.value = value.fraction;
});
