// Reads a text file in the browser, so that no upload exists.

/** Its text; throws an Error whose message is the sentence to show. `limit` is `mostBytes` in words. */
async function textOf(file, mostBytes, limit) {
  if (file.size > mostBytes) {
    throw new Error(`${file.name} has ${whole(file.size / 1e6)} MB; choose one of up to ${limit}.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8 text; save it as UTF-8 and open it again.`);
  }
  if (text.includes("\u0000")) throw new Error(`${file.name} is not a text file; choose one that is.`);
  return text;
}
