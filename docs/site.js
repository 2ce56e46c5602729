// Wide tables scroll in themselves: the keyboard must reach them. The theme's copy buttons are no places to navigate to.
const accessible = () => {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0));
  document.querySelectorAll(".md-code__nav").forEach((buttons) => buttons.setAttribute("role", "none"));
};
addEventListener("load", accessible);
