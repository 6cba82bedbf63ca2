// After Run: the address becomes the run's, and the browser's Back leads to the form as it was.
// One function for Gradio's `js`: it gets the run's slug, empty where no run was started.
(slug) => {
  if (!slug) return [];
  const here = () => location.pathname + location.search;
  const go = (change, path, name) => {
    const url = new URL(path, location.origin);
    url.searchParams.set(name, slug);
    const theme = new URLSearchParams(location.search).get("__theme");
    if (theme) url.searchParams.set("__theme", theme);
    history[change]({ ckvRun: slug }, "", url);
    return here();
  };
  const isFirst = window.ckvForm === undefined;
  const form = (window.ckvForm ??= { path: location.pathname, title: document.title });
  // Whoever comes back after a reload gets the same form by the run's name.
  form.at = go("replaceState", form.path, "from");
  form.seen = form.run = go("pushState", "/run", "id");
  form.runTitle = `Run ${slug} - ${form.title.split(" - ").pop()}`;
  document.title = form.runTitle;
  if (!isFirst) return [];
  window.addEventListener("popstate", () => {
    if (here() === form.seen) return; // to a section of the page
    form.seen = here();
    if (form.seen !== form.at && form.seen !== form.run) {
      location.reload();
      return;
    }
    const isForm = form.seen === form.at;
    document.title = isForm ? form.title : form.runTitle;
    const bar = document.querySelector("#settings > button");
    if (bar && bar.classList.contains("open") !== isForm) bar.click();
    if (isForm) scrollTo(0, 0);
  });
  return [];
}
