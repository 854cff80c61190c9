// The chart of decisions by the minute. Its numbers come with the table below it; here they are only drawn, and drawn over.
"use strict";

(() => {
  const place = () => document.getElementById("chart");
  let chart = null;
  let raw = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Each series is drawn over the higher one behind it, so the columns stand on one another.
  const stacked = ([minutes, allowed, asked, denied]) => [
    minutes,
    allowed.map((count, i) => count + asked[i] + denied[i]),
    allowed.map((count, i) => count + asked[i]),
    allowed,
  ];
  const series = (label, name, column) => ({
    label,
    fill: colour(name),
    stroke: colour(name),
    width: 0,
    paths: uPlot.paths.bars({ size: [0.8, 40] }),
    points: { show: false },
    value: (_, __, ___, i) => (i == null ? "–" : raw[column][i]),
  });
  const options = (width) => ({
    width,
    height: 180,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    cursor: { drag: { x: false, y: false } },
    // A minute's column stands around its beginning: half a minute of room on either side keeps the outermost whole.
    scales: { x: { range: (_, least, most) => [least - 30, most + 30] }, y: { range: (_, __, most) => [0, Math.max(most, 5)] } },
    axes: [
      { stroke: colour("--calm"), grid: { show: false }, values: (_, at) => at.map((t) => new Date(t * 1000).toISOString().slice(11, 16)) },
      { stroke: colour("--calm"), grid: { stroke: colour("--calm-page") }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
    ],
    series: [
      { label: "Minute", value: (_, t) => (t == null ? "–" : new Date(t * 1000).toISOString().slice(11, 16)) },
      series("Denied", "--bad", 3),
      series("Approval required", "--wait", 2),
      series("Allowed", "--good", 1),
    ],
  });
  const draw = () => {
    const found = document.getElementById("minutes");
    if (!found || !place()) return;
    raw = JSON.parse(found.dataset.minutes);
    if (chart && chart.root.isConnected) {
      chart.setData(stacked(raw));
      return;
    }
    chart = new uPlot(options(place().clientWidth), stacked(raw), place());
  };
  const anew = () => {
    chart?.destroy();
    chart = null;
    draw();
  };

  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail?.ctx?.sourceElement?.id === "decisions") draw();
  });
  addEventListener("resize", () => chart?.setSize({ width: place().clientWidth, height: 180 }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  draw();
})();
