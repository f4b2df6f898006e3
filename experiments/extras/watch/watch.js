"use strict";
// Each event is the page as it is now, whose texts are escaped; sections that changed are replaced.
const events = new EventSource("events");
events.onmessage = (event) => {
  const now = new DOMParser().parseFromString(JSON.parse(event.data), "text/html");
  for (const section of now.querySelectorAll("section[id]")) {
    const old = document.getElementById(section.id);
    if (old.innerHTML !== section.innerHTML) old.replaceWith(document.importNode(section, true));
  }
};
events.addEventListener("end", () => {
  events.close();
  location.reload();
});
