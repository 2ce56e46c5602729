// Wide tables scroll in themselves: the keyboard must reach them.
const reachable = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0));
addEventListener("load", reachable);
