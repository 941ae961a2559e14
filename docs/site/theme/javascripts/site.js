// Render mathematics with KaTeX, and show the embedded report in the color scheme of the page.

const site = new URL("..", import.meta.url);

const formulas = document.querySelectorAll(".arithmatex");
if (formulas.length) {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("packages/katex/katex.min.css", site);
  document.head.append(style);
  const { default: katex } = await import(new URL("packages/katex/katex.mjs", site));
  for (const formula of formulas) {
    const text = formula.textContent.trim(); // \( … \) or \[ … \]
    katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\[") });
  }
}

// The report follows the color scheme of the system; make it follow the switch of the page.
const report = document.querySelector("iframe.report");
if (report) {
  const rules = new Set();
  const follow = () => {
    for (const rule of report.contentDocument.styleSheets[0]?.cssRules ?? [])
      if (rule.media?.mediaText.includes("prefers-color-scheme")) rules.add(rule);
    const dark = document.body.dataset.mdColorScheme === "slate";
    for (const rule of rules) rule.media.mediaText = dark ? "screen" : "not all";
  };
  report.addEventListener("load", follow);
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  follow();
}
