// Elements without markup: every text becomes a text node.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(name, value);
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat(2).filter(child => ![undefined, null, false].includes(child)));
  return made;
}

export const button = (label, onclick, properties = {}) =>
  element("button", { type: "button", onclick, ...properties }, label);

let fields = 0;

// A label and its control, which the returned element has as `control`.
export function field(label, control, note) {
  control.id ||= `field-${++fields}`;
  const hint = note && element("small", { id: `${control.id}-note` }, note);
  if (hint) control.setAttribute("aria-describedby", hint.id);
  const made = element("div", { class: "field" }, element("label", { for: control.id }, label),
    control, hint);
  made.control = control;
  return made;
}

export function select(options, chosen, onchange) {
  const made = element("select", onchange ? { onchange } : {});
  setOptions(made, options, chosen);
  return made;
}

export function setOptions(control, options, chosen = control.value) {
  control.replaceChildren(...options.map(option => {
    const [value, text] = Array.isArray(option) ? option : [option, option];
    return element("option", { value, selected: value === chosen }, text);
  }));
}

// Tabs as WAI-ARIA has them: arrows move, one tab is in the order of the Tab key. `panels` are
// pairs of a label and a function that fills the panel whenever it is shown.
export function tabs(label, panels) {
  const id = `tabs-${++fields}`;
  const list = element("div", { role: "tablist", "aria-label": label });
  const panel = element("div", { role: "tabpanel", id: `${id}-panel`, tabindex: "0" });
  let shown = 0;
  const buttons = panels.map(([name], index) => element("button", {
    type: "button", role: "tab", id: `${id}-${index}`, "aria-controls": panel.id,
    onclick: () => show(index), onkeydown: event => move(event, index),
  }, name));
  function show(index) {
    shown = index;
    buttons.forEach((each, at) => {
      each.setAttribute("aria-selected", String(at === index));
      each.tabIndex = at === index ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", buttons[index].id);
    panel.replaceChildren(...[panels[index][1]()].flat());
  }
  function move(event, index) {
    const steps = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: panels.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = (steps[event.key] + panels.length) % panels.length;
    show(next);
    buttons[next].focus();
  }
  list.append(...buttons);
  show(0);
  const made = element("div", { class: "tabs" }, list, panel);
  made.refresh = () => show(shown);
  made.open = name => show(panels.findIndex(([each]) => each === name));
  return made;
}

// A table in a box that scrolls by itself on a narrow screen, which the keyboard reaches too.
export function table(caption, heads, rows) {
  const cells = row => row.map((cell, index) => index === 0
    ? element("th", { scope: "row" }, cell) : element("td", {}, cell));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {},
        heads.map(head => element("th", { scope: "col" }, head)))),
      element("tbody", {}, rows.map(row => element("tr", {}, cells(row))))));
}

export const code = (text, label) =>
  element("pre", { tabindex: "0", role: "region", "aria-label": label }, text);

export function problem(error) {
  return element("p", { role: "alert", class: "error" }, error.message ?? String(error));
}
