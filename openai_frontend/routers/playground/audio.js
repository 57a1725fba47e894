// Transcription of a file, or of what the microphone records.

import { stream, Wire } from "./api.js";
import { button, element, field, problem } from "./dom.js";
import { task } from "./vectors.js";

export function audioView(models) {
  const names = models.filter(each => each.capabilities.transcription).map(each => each.id);
  let recorded = null;
  const file = element("input", { type: "file", accept: "audio/*",
    onchange: () => { recorded = null; state.replaceChildren(); } });
  const language = element("input", { size: 8 });
  const state = element("div", { role: "status" });
  const microphone = new Microphone(blob => {
    recorded = blob;
    state.replaceChildren(`Recorded ${(blob.size / 1024).toFixed(0)} KiB.`);
  }, error => state.replaceChildren(problem(error)));
  const fields = [
    field("File", file, "WAV, FLAC, OGG or MP3."),
    element("div", { class: "row" }, microphone.button, state),
    field("Language", language, "A code such as de; empty: detected, if the model can."),
  ];
  return task("Transcription", names, fields, async (model, _, output) => {
    const source = recorded ?? file.files[0];
    if (!source) throw new Error("Choose a file or record something.");
    const form = new FormData();
    form.append("model", model);
    if (language.value) form.append("language", language.value);
    form.append("stream", "true");
    form.append("file", source, source.name ?? "recording.wav");
    const text = document.createTextNode("");
    output.replaceChildren(element("p", { class: "text" }, text));
    for await (const { data } of stream(new Wire("v1/audio/transcriptions", form))) {
      if (data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (event.type === "transcript.text.delta") text.appendData(event.delta);
    }
  });
}

// Browsers record formats that servers of Whisper do not read, so the recording becomes a WAV file.
class Microphone {
  constructor(onRecorded, onError) {
    Object.assign(this, { onRecorded, onError, recorder: null });
    this.button = button("Record", () => this.toggle(), { "aria-pressed": "false" });
  }

  async toggle() {
    if (this.recorder) { this.recorder.stop(); return; }
    try {
      const source = await navigator.mediaDevices.getUserMedia({ audio: true });
      const parts = [];
      this.recorder = new MediaRecorder(source);
      this.recorder.ondataavailable = event => parts.push(event.data);
      this.recorder.onstop = () => this.finish(source, parts);
      this.recorder.start();
      this.show(true);
    } catch (error) { this.onError(error); }
  }

  async finish(source, parts) {
    this.recorder = null;
    this.show(false);
    source.getTracks().forEach(track => track.stop());
    try {
      this.onRecorded(await wavOf(new Blob(parts)));
    } catch (error) { this.onError(error); }
  }

  show(recording) {
    this.button.textContent = recording ? "Stop recording" : "Record";
    this.button.setAttribute("aria-pressed", String(recording));
  }
}

const RATE = 16000;

async function wavOf(blob) {
  const context = new OfflineAudioContext(1, 1, RATE); // resamples while it decodes
  const samples = (await context.decodeAudioData(await blob.arrayBuffer())).getChannelData(0);
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, value) => [...value].forEach(
    (each, index) => view.setUint8(at + index, each.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // mono
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => view.setInt16(
    44 + 2 * index, Math.max(-1, Math.min(1, sample)) * 0x7fff, true));
  return new Blob([view], { type: "audio/wav" });
}
