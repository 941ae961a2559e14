// What makes the charts answer: series that can be hidden, values that can be read off with pointer
// or arrow keys. Without it the page shows everything all the same.
"use strict";

for (const figure of document.querySelectorAll(".figure")) {
  const hidden = new Set();

  for (const button of figure.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => toggle(button));
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!shown));
    if (shown) hidden.add(button.dataset.name);
    else hidden.delete(button.dataset.name);
    for (const mark of figure.querySelectorAll("[data-series]")) {
      const names = JSON.parse(mark.dataset.series);
      mark.classList.toggle("off", names.every((name) => hidden.has(name)));
    }
  }

  for (const picture of figure.querySelectorAll(".picture")) {
    reader(picture, hidden);
  }
}

// Shows the values nearest to the pointer, or those that the arrow keys have come to.
function reader(picture, hidden) {
  const svg = picture.querySelector("svg");
  const tip = picture.querySelector(".tip");
  const cursor = svg.querySelector(".cursor");
  const values = JSON.parse(picture.querySelector("script").textContent);
  const [left, top, width, height] = svg.dataset.frame.split(" ").map(Number);
  let place = null; // [x, y] in the picture's own pixels

  function points() {
    const found = [];
    for (const [name, series] of Object.entries(values.series)) {
      if (hidden.has(name)) continue;
      for (const [x, y, xWords, yWords] of series.points) {
        found.push({ name, colour: series.colour, x, y, xWords, yWords });
      }
    }
    return found;
  }

  // Points that belong together: one x of lines; one bar, where bars lie upon each other.
  function near(x, y) {
    const every = points();
    if (!every.length) return [];
    const far = (point) => Math.abs(point.x - x) + ("" in values.series ? Math.abs(point.y - y) : 0);
    const first = every.reduce((a, b) => (far(b) < far(a) ? b : a));
    const here = every.filter((point) => Math.abs(point.x - first.x) < 1.5);
    return "" in values.series ? [first] : here;
  }

  function show(x, y) {
    place = [x, y];
    cursor.replaceChildren();
    if (values.map) showCell(x, y);
    else showPoints(near(x, y));
  }

  function showPoints(found) {
    if (!found.length) return hide();
    place = [found[0].x, found[0].y];
    const line = { x1: found[0].x, x2: found[0].x, y1: top, y2: top + height };
    if (!("" in values.series)) add("line", line);
    for (const point of found) {
      paint(add("circle", { cx: point.x, cy: point.y, r: 4.5 }), point.colour);
    }
    found.sort((a, b) => a.y - b.y);
    const head = (values.x && found[0].name ? values.x + ": " : "") + found[0].xWords;
    tell(head, found.map((point) => [point.colour, point.name, point.yWords]), place);
  }

  function showCell(x, y) {
    const rows = values.map.length;
    const columns = values.map[0].length;
    const j = clamp(Math.floor(((x - left) / width) * columns), 0, columns - 1);
    const i = clamp(Math.floor(((y - top) / height) * rows), 0, rows - 1);
    const cell = { width: width / columns, height: height / rows };
    add("rect", { x: left + j * cell.width, y: top + i * cell.height, ...cell });
    place = [left + (j + 0.5) * cell.width, top + (i + 0.5) * cell.height];
    tell(`query ${i}, key ${j}`, [[null, "", String(values.map[i][j])]], place);
  }

  function tell(head, lines, at) {
    tip.replaceChildren(element("strong", head));
    for (const [colour, name, words] of lines) {
      const line = element("div", "");
      if (name) line.append(paint(element("i", ""), colour), element("span", name));
      line.append(element("b", words));
      tip.append(line);
    }
    tip.hidden = false;
    const scale = svg.clientWidth / svg.viewBox.baseVal.width;
    const free = picture.clientWidth - tip.offsetWidth;
    const beside = at[0] * scale + (at[0] < left + width / 2 ? 14 : -14 - tip.offsetWidth);
    tip.style.left = `${clamp(beside, 0, Math.max(0, free))}px`;
    tip.style.top = `${clamp(at[1] * scale - tip.offsetHeight - 12, 0, svg.clientHeight)}px`;
  }

  function hide() {
    tip.hidden = true;
    cursor.replaceChildren();
  }

  function add(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    cursor.append(made);
    return made;
  }

  function step(dx, dy) {
    if (values.map) {
      const across = width / values.map[0].length;
      const down = height / values.map.length;
      const [x, y] = place ?? [left, top];
      return show(clamp(x + dx * across, left, left + width - 1), clamp(y + dy * down, top, top + height - 1));
    }
    const bars = "" in values.series;
    const stops = points().sort((a, b) => (bars ? a.y - b.y : a.x - b.x));
    if (!stops.length) return hide();
    const way = dx || dy;
    const along = (point) => (bars ? point.y : point.x);
    const now = place === null ? null : place[bars ? 1 : 0];
    const next = now === null
      ? stops[way > 0 ? 0 : stops.length - 1]
      : (way > 0
        ? stops.find((point) => along(point) > now + 1)
        : stops.findLast((point) => along(point) < now - 1));
    if (next) show(next.x, next.y);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    show((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") return hide();
    if (!(event.key in ways)) return;
    event.preventDefault();
    step(...ways[event.key]);
  });
}

function element(name, words) {
  const made = document.createElement(name);
  made.textContent = words;
  return made;
}

function paint(made, colour) {
  if (colour && colour.startsWith("#")) made.style.setProperty("--c", colour);
  else if (colour) made.classList.add(`c-${colour}`);
  return made;
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}
