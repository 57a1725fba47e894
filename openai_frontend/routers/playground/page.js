// Starts the page: asks for a key if the server needs one, and shows the view that the address
// names after its hash.

import { ApiError, call, key } from "./api.js";
import { element, problem } from "./dom.js";

// Each module is loaded when its view is opened.
const VIEWS = {
  chat: ["Chat", async () => (await import("./chat.js")).chatView],
  vectors: ["Vectors", async () => (await import("./vectors.js")).vectorsView],
  audio: ["Audio", async () => (await import("./audio.js")).audioView],
  tensors: ["Tensors", async () => (await import("./tensors.js")).tensorsView],
  models: ["Models", async () => (await import("./models.js")).modelsView],
  status: ["Status", async () => (await import("./status.js")).statusView],
};

const form = document.getElementById("key");
const view = document.getElementById("view");
const forget = document.getElementById("forget");
const shown = new Map(); // a view keeps its state while others are shown
let models = [];

const named = () => Object.hasOwn(VIEWS, location.hash.slice(1)) ? location.hash.slice(1) : "chat";

function links() {
  document.getElementById("views").replaceChildren(...Object.entries(VIEWS).map(
    ([name, [label]]) => element("a",
      { href: `#${name}`, "aria-current": name === named() ? "page" : null }, label)));
}

async function show() {
  links();
  if (!form.hidden) return;
  const name = named();
  if (!shown.has(name)) {
    const make = await VIEWS[name][1]();
    shown.set(name, make(models, reload));
  }
  if (name !== named()) return; // another one was opened meanwhile
  document.title = `${VIEWS[name][0]} · openai-frontend`;
  const root = shown.get(name);
  if (view.firstChild !== root) view.replaceChildren(root); // else the focus would be lost
  root.shown?.();
}

// Reads the models again. A view that cannot be updated is made anew.
async function reload() {
  try {
    models = (await call("v1/models")).data;
  } catch (error) {
    if (error instanceof ApiError && [401, 403].includes(error.status)) askForKey(error);
    else view.replaceChildren(problem(error));
    return;
  }
  form.hidden = true;
  forget.hidden = key.get() === null;
  for (const [name, root] of shown) if (root.update) root.update(models); else shown.delete(name);
  await show();
}

function askForKey(error) {
  shown.clear();
  view.replaceChildren();
  form.hidden = false;
  const refused = key.get() !== null;
  document.getElementById("key-error").textContent = refused ? error.message : "";
  document.getElementById("key-value").focus();
}

form.addEventListener("submit", event => {
  event.preventDefault();
  const control = document.getElementById("key-value"), given = control.value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) {  // no header can have another
    document.getElementById("key-error").textContent = "A key has ASCII characters without spaces.";
    return;
  }
  key.set(given);
  control.value = "";
  reload();
});
forget.addEventListener("click", () => {
  key.forget();
  forget.hidden = true;
  reload();
});
addEventListener("hashchange", show);
links();
reload();
