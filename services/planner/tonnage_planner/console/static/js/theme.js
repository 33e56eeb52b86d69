// Before the first paint: the theme chosen last, else the system's.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => { try { return localStorage.getItem("tonnage-theme"); } catch { return null; } };
  const apply = () => {
    const choice = chosen();
    root.dataset.theme = choice === "dark" || choice === "light" ? choice : dark.matches ? "dark" : "light";
    root.dataset.choice = choice === "dark" || choice === "light" ? choice : "system";
    dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", apply);
  apply();
  window.tonnageTheme = {
    next() {
      const after = { system: "light", light: "dark", dark: "system" }[root.dataset.choice];
      try { after === "system" ? localStorage.removeItem("tonnage-theme") : localStorage.setItem("tonnage-theme", after); } catch { root.dataset.theme = after; }
      apply();
      return after;
    },
  };
})();
