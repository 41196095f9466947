"use strict";
// Draws the charts described in #data, and lets the legend and the controls change them.
(() => {
  let { groups, charts } = JSON.parse(document.getElementById("data").textContent);
  const shown = groups.map((group) => group.shown);
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const X = {
    rounds: { title: "Communication rounds", suffix: "" },
    bytes: { title: "Sent by server and clients", suffix: "B" },
    time: { title: "Wall time", suffix: " s" },
  };

  // 0.1, 0.2, 0.5, 1, …: plotly's own labels drop the leading digits.
  const LOG_TICKS = [...Array(19).keys()].flatMap((k) => [1, 2, 5].map((m) => Number(`${m}e${k - 9}`)));

  const axis = () => document.querySelector("input[name=axis]:checked").value;
  const logLoss = () => document.getElementById("log-loss").checked;
  const visible = (line) => line.groups.some((i) => shown[i]);

  // What a dark page would show nothing of; page.css has the same colours for the legend.
  const LIGHTER = { "#000000": "#f2f2f2", "#444444": "#bbbbbb", "#0072B2": "#6f9fe8" };
  const seen = (colour) => (night.matches && LIGHTER[colour]) || colour;
  const PATTERNS = { solid: "", dash: "/", dot: ".", dashdot: "x", longdash: "\\" };

  const tint = (colour) =>
    `rgba(${[1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)).join(",")},0.15)`;

  function traces(chart) {
    const made = [];
    for (const line of chart.lines) {
      const style = { ...groups[line.groups[0]], ...line };
      style.colour = seen(style.colour);
      const x = line.x[axis()] ?? line.x.rounds;
      const common = { x, name: style.name, visible: visible(line), meta: line.groups };
      if (chart.kind === "bar") {
        made.push({
          ...common, type: "bar", y: line.y,
          marker: { color: style.colour, pattern: { shape: PATTERNS[style.dash] ?? "" } },
          hovertemplate: "%{y:,.4~g}" + (chart.bars_are ?? "") + "<extra>%{fullData.name}</extra>",
        });
        continue;
      }
      if (line.low) {
        // Two lines with the space between them filled; they are no curves of their own.
        const edge = { ...common, type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
        made.push({ ...edge, y: line.low });
        made.push({ ...edge, y: line.high, fill: "tonexty", fillcolor: tint(style.colour) });
      }
      const figure = line.hover ? "%{customdata}" : "%{y:.4~g}" + (chart.unit ?? "");
      const band = line.low ? " (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})" : "";
      made.push({
        ...common, type: "scatter", y: line.y,
        mode: "lines+markers",
        line: { color: style.colour, dash: style.dash, width: 2 },
        marker: { symbol: style.marker, size: 7, color: style.colour, maxdisplayed: x.length > 60 ? 9 : 0 },
        customdata: line.hover ?? (line.low ? line.low.map((low, i) => [low, line.high[i]]) : undefined),
        hovertemplate: figure + band + "<extra>%{fullData.name}</extra>",
      });
    }
    return made;
  }

  function layout(chart) {
    const follows = chart.follows;
    const ink = night.matches ? "#e8e8e8" : "#1a1a1a";
    const x = follows ? X[axis()] : { title: chart.x_title ?? X.rounds.title, suffix: "" };
    const line = {
      showline: true, linecolor: night.matches ? "#999" : "#444", gridcolor: night.matches ? "#33373d" : "#e5e5e5",
      zeroline: false, automargin: true,
    };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: night.matches ? "#888" : "#aaa", activecolor: ink },
      hoverlabel: { bgcolor: night.matches ? "#24272d" : "#fff", font: { color: ink } },
      margin: { l: 50, r: 12, t: 8, b: 44 },
      font: { family: "system-ui, sans-serif", size: 12, color: ink },
      hovermode: "x unified",
      dragmode: touch ? false : "zoom", // a finger on a chart is to scroll the page
      showlegend: !follows && (chart.section === "fairness" || chart.lines.some((one) => one.name)),
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
      barmode: "group",
      bargap: 0.1,
      xaxis: {
        ...line, title: { text: x.title }, ticksuffix: x.suffix,
        type: chart.kind === "bar" && typeof chart.lines[0].x.rounds[0] === "string" ? "category" : "linear",
        ...(x.suffix === "B" ? { tickformat: "~s", hoverformat: ".3~s" } : { hoverformat: ",.4~g" }),
        ...(chart.kind === "bar" ? {} : { rangemode: "tozero" }),
      },
      yaxis: {
        ...line, type: chart.can_log && logLoss() ? "log" : "linear",
        title: { text: chart.y_title ?? "" }, ticksuffix: chart.unit ?? (chart.y_bytes ? "B" : ""),
        ...(chart.y_bytes ? { tickformat: "~s" } : {}),
        ...(chart.kind === "bar" || chart.y_bytes ? { rangemode: "tozero" } : {}),
        ...(chart.can_log && logLoss() ? { tickvals: LOG_TICKS, ticktext: LOG_TICKS.map(String) } : {}),
      },
    };
  }

  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? false : "hover", // buttons too small for fingers
    // A list of our own, so that no version of plotly adds a button that sends data away.
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  const draw = () =>
    Promise.all(charts.map((chart) => Plotly.react(chart.id, traces(chart), layout(chart), config)));

  for (const button of document.querySelectorAll("#legend button")) {
    button.addEventListener("click", () => {
      const i = Number(button.dataset.group);
      shown[i] = !shown[i];
      button.setAttribute("aria-pressed", String(shown[i]));
      draw();
    });
  }
  night.addEventListener("change", draw);
  document.getElementById("controls").addEventListener("change", draw);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  draw().then(() => document.body.setAttribute("data-drawn", "true"));

  // While runs go on, what has changed comes from where the page came from.
  const live = document.getElementById("live");
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  function renew(page) {
    const data = JSON.parse(page.getElementById("data").textContent);
    const names = (list, key) => list.map((each) => each[key]);
    if (!same(names(data.groups, "name"), names(groups, "name")) || !same(names(data.charts, "id"), names(charts, "id"))) {
      window.location.reload(); // there are other curves: legend and places are to be made anew
      return;
    }
    ({ groups, charts } = data);
    for (const place of document.querySelectorAll("[data-live]")) {
      const now = page.querySelector(`[data-live="${place.dataset.live}"]`);
      if (now && now.innerHTML !== place.innerHTML) place.replaceChildren(...now.childNodes);
    }
    live.dataset.version = page.getElementById("live").dataset.version;
    draw();
  }

  async function look() {
    try {
      const answer = await fetch(`part?have=${live.dataset.version}`);
      if (answer.status === 200) renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
      live.textContent = `Live: looked at ${new Date().toLocaleTimeString()}.`;
    } catch {
      live.textContent = "No longer live: the command that serves this page has ended.";
    }
    window.setTimeout(look, 2000);
  }
  if (live) look();
})();
