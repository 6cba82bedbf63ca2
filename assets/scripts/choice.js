// Which variant the reader has chosen: `#variant=INDEX` of the address, which every view of a run follows.

/** Index of the variant that the address names; null for none. */
export function chosenVariant() {
  const named = new URLSearchParams(location.hash.slice(1)).get("variant") ?? "";
  return /^\d{1,9}$/.test(named) ? Number(named) : null;
}

/** Name a variant in the address; views that listen to `hashchange` follow. What others put there stays. */
export function chooseVariant(index) {
  if (index === chosenVariant()) return;
  const fields = new URLSearchParams(location.hash.slice(1));
  fields.set("variant", String(index));
  history.replaceState(history.state, "", `${location.pathname}${location.search}#${fields}`);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
