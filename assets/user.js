// Who is logged in, and the way out: what the server wrote into the page's head, in the header.

const user = document.getElementById("ckv-user");
if (user) element.querySelector(".ckv-header")?.append(user.content.cloneNode(true));
