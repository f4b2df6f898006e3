"use strict";
// Without this script all frames stand below one another.
const frames = Array.from(document.querySelectorAll("#frames article"));
const controls = document.querySelector(".controls");
const slider = controls.querySelector("input");
const button = controls.querySelector("button");
let timer = null;

function look(at) {
  frames.forEach((frame, i) => { frame.hidden = i !== at; });
  slider.value = String(at);
  slider.setAttribute("aria-valuetext", frames[at].querySelector("small").textContent);
}

function stop() {
  clearInterval(timer);
  timer = null;
  button.textContent = "Play";
}

function step() {
  const next = Number(slider.value) + 1;
  if (next < frames.length) look(next);
  else stop();
}

button.addEventListener("click", () => {
  if (timer !== null) { stop(); return; }
  if (Number(slider.value) === frames.length - 1) look(0);
  button.textContent = "Pause";
  timer = setInterval(step, Math.min(500, 12000 / frames.length));
});
slider.addEventListener("input", () => { stop(); look(Number(slider.value)); });
controls.hidden = false;
look(0);
