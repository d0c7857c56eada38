// A countdown, and a recording that is kept in this page's memory only.
"use strict";
(() => {
  const said = document.getElementById("can-record");
  const able = globalThis.isSecureContext && navigator.mediaDevices && globalThis.MediaRecorder;
  if (!able) {
    said.textContent = globalThis.isSecureContext
      ? "This browser cannot record; the timer works."
      : "Browsers record only on localhost or https; here the timer works alone.";
  }
  for (const card of document.querySelectorAll(".say")) {
    const button = card.querySelector(".start"), clock = card.querySelector(".clock"), audio = card.querySelector("audio");
    let running = null;
    button.addEventListener("click", async () => {
      if (running) return running.stop();
      let recorder = null;
      if (able) {
        try {
          const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
          const parts = [];
          recorder = new MediaRecorder(stream);
          recorder.ondataavailable = (e) => parts.push(e.data);
          recorder.onstop = () => {
            stream.getTracks().forEach((t) => t.stop());
            if (audio.src) URL.revokeObjectURL(audio.src);
            audio.src = URL.createObjectURL(new Blob(parts, { type: recorder.mimeType }));
            audio.hidden = false;
          };
          recorder.start();
        } catch {
          said.textContent = "The microphone was not allowed; the timer works alone.";
        }
      }
      let left = Number(card.dataset.seconds);
      const stop = () => {
        clearInterval(running.timer);
        running = null;
        button.textContent = "Again";
        clock.textContent = left > 0 ? `stopped with ${left} s left` : "time";
        if (recorder && recorder.state !== "inactive") recorder.stop();
      };
      const tick = () => {
        clock.textContent = `${left} s${recorder ? ", recording" : ""}`;
        if (left-- <= 0) stop();
      };
      running = { stop, timer: setInterval(tick, 1000) };
      button.textContent = "Stop";
      tick();
    });
  }
})();
