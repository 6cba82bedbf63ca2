// Who is logged in, and the way out: what the server wrote into the page's head, in the header.

export default function mount({ element }) {
  const user = document.querySelector("template#ckv-user");
  if (user instanceof HTMLTemplateElement) element.querySelector(".ckv-header-end")?.prepend(user.content.cloneNode(true));
}
