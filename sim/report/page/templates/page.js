async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (one) => one.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  script.remove();
}

(async () => {
  if (document.querySelector(".chart")) {
    if (!("DecompressionStream" in window)) {
      document.getElementById("no-charts").hidden = false;
      return;
    }
    await loadPlotly();
  }
  await drawIn(document);
})();
