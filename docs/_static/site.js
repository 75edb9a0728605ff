// The captions of the navigation are headings without a level.
for (const caption of document.querySelectorAll('.caption[role="heading"]')) {
  caption.setAttribute("aria-level", "2");
}
// What is wider than the page scrolls, so the keyboard must reach it.
for (const box of document.querySelectorAll(".table-wrapper, .highlight pre")) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

// Fill the list of versions from versions.json, which docs/publish_site.py writes next to the folders
// of the versions. Without that file, as in a local build, the list stays hidden.
(async () => {
  const box = document.querySelector(".version-select");
  if (!box || !location.protocol.startsWith("http")) return;
  const root = new URL(document.documentElement.dataset.content_root, location);
  const site = new URL("../", root);
  const response = await fetch(new URL("versions.json", site)).catch(() => null);
  if (!response?.ok) return;
  const select = box.querySelector("select");
  const folder = root.pathname.slice(site.pathname.length).replace("/", "");
  for (const version of await response.json()) {
    select.add(new Option(version, version, false, version === folder));
  }
  box.hidden = false;
  select.addEventListener("change", async () => {
    const home = new URL(`${select.value}/`, site);
    const page = new URL(location.pathname.slice(root.pathname.length), home);
    // The page may not exist in that version.
    const found = await fetch(page, { method: "HEAD" }).catch(() => null);
    location.assign(found?.ok ? page : home);
  });
})();
