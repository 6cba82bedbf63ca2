// What the worker does with the model: how far a download is, and a button that stops it.

import { make, onValue, quietButton, str } from "../../../assets/scripts/dom.js";
import notice from "./notice.js";

export default function mount(host) {
  const { root, trigger } = host;
  notice(host);
  const bar = make("progress.ckv-load", { max: "1", hidden: true, "aria-label": "Loaded so far" });
  const stop = quietButton("Cancel loading", () => trigger("stop", { name: loading }), { hidden: true });
  root.append(bar, stop);
  let loading = "";

  onValue(host, (value) => {
    loading = str(value?.loading);
    stop.hidden = loading === "";
    bar.hidden = !Number.isFinite(value?.fraction);
    if (!bar.hidden) bar.value = value.fraction;
  });
}
