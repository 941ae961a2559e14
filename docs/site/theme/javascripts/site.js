// Mathematics with KaTeX, and the color scheme of the embedded report.

const site = new URL("..", import.meta.url);

const formulas = document.querySelectorAll(".arithmatex");
if (formulas.length) {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("packages/katex/katex.min.css", site);
  document.head.append(style);
  const { default: katex } = await import(new URL("packages/katex/katex.mjs", site));
  for (const formula of formulas) {
    const text = formula.textContent.trim();
    katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\[") });
  }
}

// The report follows the system's color scheme; make it follow the switch of this site instead.
const report = document.querySelector("iframe.report");
if (report) {
  const follow = () => {
    const dark = document.body.dataset.mdColorScheme === "slate";
    for (const rule of report.contentDocument?.styleSheets[0]?.cssRules ?? [])
      if (rule instanceof report.contentWindow.CSSMediaRule && /color-scheme/.test(rule.dataset ?? rule.media.mediaText))
        rule.media.mediaText = dark ? "screen" : "not all";
  };
  report.addEventListener("load", follow);
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  follow();
}
