// Draw every plot, and hide or show a series in all plots of its figure.
for (const figure of document.querySelectorAll(".figure")) {
  const plots = [...figure.querySelectorAll(".plot")].map((plot) => {
    const spec = JSON.parse(plot.nextElementSibling.textContent);
    const tooltip = { disableDefaultStyle: true };
    return vegaEmbed(plot, spec, { renderer: "svg", actions: false, tooltip });
  });
  const hidden = new Set();
  for (const button of figure.querySelectorAll(".legend button")) {
    button.addEventListener("click", async () => {
      const name = button.dataset.name;
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      for (const plot of plots) (await plot).view.signal("hidden", [...hidden]).runAsync();
    });
  }
  Promise.all(plots).then(() => (figure.dataset.ready = "true"));
}
