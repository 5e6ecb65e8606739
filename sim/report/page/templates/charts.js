"use strict";
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const templates = JSON.parse(document.getElementById("templates").textContent);
const config = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};
let charts = [];

function draw({ place, figure }, dark) {
  const { title, ...layout } = figure.layout; // it stands above the chart
  return Plotly.react(place, figure.data, { ...layout, template: dark ? templates.dark : templates.light }, config);
}

const drawAll = (dark) => Promise.all(charts.map((chart) => draw(chart, dark)));

// The charts in an element, instead of those drawn before.
async function drawIn(element) {
  for (const { place } of charts) Plotly.purge(place);
  charts = [...element.querySelectorAll(".chart")].map((place) => ({
    place,
    figure: JSON.parse(element.querySelector(`script[data-of="${place.id}"]`).textContent),
  }));
  await drawAll(isDark());
  link();
  root.dataset.drawn = charts.length;
}

// Charts over the same time zoom together.
function link() {
  const linked = charts.map(({ place }) => place).filter((place) => "linked" in place.dataset);
  let busy = false;
  for (const place of linked) {
    place.on("plotly_relayout", async (change) => {
      if (busy || !Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
      busy = true;
      const range = { "xaxis.range": [...place.layout.xaxis.range] };
      await Promise.all(linked.filter((other) => other !== place).map((other) => Plotly.relayout(other, range)));
      busy = false;
    });
  }
}

document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("servecast-theme", root.dataset.theme); } catch { /* as in theme.js */ }
  drawAll(isDark());
});
prefersDark.addEventListener("change", () => drawAll(isDark()));
addEventListener("beforeprint", () => drawAll(false));
addEventListener("afterprint", () => drawAll(isDark()));

document.addEventListener("click", async ({ target: button }) => {
  if (!button.matches(".copy")) return;
  const text = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});
