"use strict";
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const templates = JSON.parse(document.getElementById("templates").textContent);
const charts = [...document.querySelectorAll(".chart")].map((place) => ({
  place,
  figure: JSON.parse(document.querySelector(`script[data-of="${place.id}"]`).textContent),
}));
const config = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (one) => one.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  script.remove();
}

function draw({ place, figure }, dark) {
  const { title, ...layout } = figure.layout; // it stands above the chart
  return Plotly.react(place, figure.data, { ...layout, template: dark ? templates.dark : templates.light }, config);
}

const drawAll = (dark) => Promise.all(charts.map((chart) => draw(chart, dark)));

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
  try { localStorage.setItem("servecast-theme", root.dataset.theme); } catch { /* as above */ }
  drawAll(isDark());
});

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
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
}

(async () => {
  if (charts.length) {
    if (!("DecompressionStream" in window)) {
      document.getElementById("no-charts").hidden = false;
      return;
    }
    await loadPlotly();
    await drawAll(isDark());
    link();
    prefersDark.addEventListener("change", () => drawAll(isDark()));
    addEventListener("beforeprint", () => drawAll(false));
    addEventListener("afterprint", () => drawAll(isDark()));
  }
  root.dataset.drawn = charts.length;
})();
