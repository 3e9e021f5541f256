"use strict";
// Shows the values of every line at the pointer. Without this script the charts stay as they are.

function valueAt(axis, place) {
  const [kind, place0, value0, place1, value1] = JSON.parse(axis);
  const share = (place - place0) / (place1 - place0);
  return kind === "linear" ? value0 + share * (value1 - value0) : value0 * (value1 / value0) ** share;
}

function inShort(value) {
  return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

function pointsOf(path) {
  const numbers = path.getAttribute("d").match(/-?\d+(\.\d+)?/g).map(Number);
  return numbers.flatMap((number, index) => (index % 2 ? [] : [[number, numbers[index + 1]]]));
}

function follow(svg) {
  const lines = [...svg.querySelectorAll("path[data-name]")].map((path) => ({ path, points: pointsOf(path) }));
  const readout = document.createElement("div");
  const mark = document.createElementNS(svg.namespaceURI, "line");
  readout.className = "readout";
  mark.setAttribute("class", "cursor");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  svg.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const near = lines.map(({ path, points }) => ({
      path, point: points.reduce((best, each) => (Math.abs(each[0] - place) < Math.abs(best[0] - place) ? each : best)),
    })).filter(({ point }) => Math.abs(point[0] - place) < width / 20);
    if (!near.length) return hide();
    const at = near.reduce((best, each) => (Math.abs(each.point[0] - place) < Math.abs(best.point[0] - place) ? each : best));
    for (const [name, value] of Object.entries({ x1: at.point[0], x2: at.point[0], y1: 0, y2: height })) {
      mark.setAttribute(name, value);
    }
    readout.replaceChildren(`${svg.dataset.xName} ${inShort(valueAt(svg.dataset.x, at.point[0]))}`);
    for (const { path, point } of near.sort((one, other) => one.point[1] - other.point[1])) {
      const row = document.createElement("div");
      row.style.color = path.style.stroke;
      row.textContent = `${path.dataset.name}: ${inShort(valueAt(svg.dataset.y, point[1]))}`;
      readout.append(row);
    }
    readout.style.cssText = at.point[0] > width / 2 ? "left: .5rem" : "right: .5rem";
    svg.append(mark);
    svg.parentElement.append(readout);
  });
  const hide = () => { mark.remove(); readout.remove(); };
  svg.addEventListener("pointerleave", hide);
}

document.querySelectorAll("svg[data-x]").forEach(follow);
addEventListener("beforeprint", () => document.querySelectorAll("details:not(.more)").forEach((each) => { each.open = true; }));
