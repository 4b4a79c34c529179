// An image with zoom and pan. What is kept is the zoom over the size at first and the point in the middle, in shares of the image:
// both mean the same after a resize.

import { el } from "./dom.js";

const MOST_ZOOM = 40;
const STEP = 1.3;
const LARGE_PIXELS = 4; // from this enlargement on pixels are shown as squares
const LEAST_SIDE = 256; // a smaller image is enlarged up to here, and no further unless asked

let isFilling = false; // whether somebody asked for images as large as there is room; stays for the next ones

export class Viewer {
  constructor(image) {
    this.image = image;
    this.pointers = new Map();
    this.frame = el("div", { className: "frame" }, image);
    this.filling = this.button("Fill", "As large as there is room", () => this.fill());
    this.element = el(
      "div",
      { className: "viewer" },
      this.frame,
      el(
        "div",
        { className: "zoom", role: "group", "aria-label": "Zoom" },
        this.button("−", "Zoom out", () => this.zoomBy(1 / STEP)),
        this.filling,
        this.button("+", "Zoom in", () => this.zoomBy(STEP)),
      ),
    );
    this.fit();
    this.watch();
  }

  button(text, label, action) {
    return el("button", { type: "button", textContent: text, "aria-label": label, onclick: action });
  }

  watch() {
    const frame = this.frame;
    this.observer = new ResizeObserver(() => this.place());
    this.observer.observe(frame);
    frame.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    frame.addEventListener("dblclick", (event) => (this.zoom > 1 ? this.fit() : this.zoomBy(3, this.at(event))));
    frame.addEventListener("pointerdown", (event) => {
      frame.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event);
    });
    frame.addEventListener("pointermove", (event) => this.onMove(event));
    for (const name of ["pointerup", "pointercancel"]) {
      frame.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
  }

  close() {
    this.observer.disconnect();
  }

  fill() {
    isFilling = !isFilling || this.zoom !== 1;
    this.fit();
  }

  fit() {
    this.filling.setAttribute("aria-pressed", String(isFilling));
    this.zoom = 1;
    this.middle = { x: 0.5, y: 0.5 };
    this.place();
  }

  // The largest size that fits, or a smaller one for a small image, times the zoom.
  size() {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    const box = this.frame.getBoundingClientRect();
    const most = isFilling ? Infinity : Math.max(1, LEAST_SIDE / Math.max(width, height));
    const scale = Math.min(box.width / width, box.height / height, most) * this.zoom;
    return { width: width * scale, height: height * scale, scale, box };
  }

  place() {
    const { width, height, scale, box } = this.size();
    if (!box.width || !width) return;
    const within = (value, size, room) => {
      const margin = Math.min(0.5, room / 2 / size);
      return Math.min(1 - margin, Math.max(margin, value));
    };
    this.middle = { x: within(this.middle.x, width, box.width), y: within(this.middle.y, height, box.height) };
    const style = this.image.style;
    style.width = `${width}px`;
    style.height = `${height}px`;
    style.left = `${box.width / 2 - this.middle.x * width}px`;
    style.top = `${box.height / 2 - this.middle.y * height}px`;
    this.image.classList.toggle("large-pixels", scale * devicePixelRatio >= LARGE_PIXELS);
    this.frame.classList.toggle("can-pan", this.zoom > 1);
  }

  // Where a pointer is, from the middle of the frame.
  at(event) {
    const box = this.frame.getBoundingClientRect();
    return { x: event.clientX - box.left - box.width / 2, y: event.clientY - box.top - box.height / 2 };
  }

  // Zoom, and keep the point under the pointer where it is.
  zoomBy(factor, from = { x: 0, y: 0 }) {
    const before = this.size();
    this.zoom = Math.min(MOST_ZOOM, Math.max(1, this.zoom * factor));
    const after = this.size();
    this.middle = {
      x: this.middle.x + from.x / before.width - from.x / after.width,
      y: this.middle.y + from.y / before.height - from.y / after.height,
    };
    this.place();
  }

  pan(x, y) {
    const { width, height } = this.size();
    this.middle = { x: this.middle.x - x / width, y: this.middle.y - y / height };
    this.place();
  }

  onWheel(event) {
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY / 300), this.at(event));
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    if (this.pointers.size === 1) {
      this.pan(event.clientX - before.clientX, event.clientY - before.clientY);
    } else {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      this.zoomBy(apart(event) / apart(before), this.at(other));
    }
    this.pointers.set(event.pointerId, event);
  }
}
